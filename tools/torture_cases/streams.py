"""Cases of `nmt translate`: special files, a closed pipe, and a partial output of another model."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nmt.storage.run_folder import list_checkpoints
from torture_cases.multi_process import check_no_processes
from torture_cases.sandbox import LIMIT, CommandResult, Sandbox, SetupError, Trial, first_problem

_LINES = 60

# Maximum time from the exit of a reader to the exit of all processes.
_END_LIMIT = 15.0


def odd_streams(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """A closed pipe, a partial output of another model, and a FIFO, a link, a device and the input as output."""
    setup = _Translation(sandbox)
    trials: Sequence[tuple[str, Callable[[_Translation, Path], str | None]]] = (
        ("partial output of another model", _other_model),
        ("output to a FIFO", _to_fifo),
        ("output to a symbolic link", _to_link),
        ("output to a device", _to_device),
        ("the input as output", _to_input),
        ("a closed pipe, two processes", _closed_pipe),
    )
    for name, problem in trials[: -1 if quick else None]:
        folder = sandbox.new_run()
        folder.mkdir()
        yield Trial(name, problem(setup, folder), folder)


class _Translation:
    """Two models of one run, a text, and its translation by the first model."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        reference = sandbox.reference()[0]
        self.other, self.model = list_checkpoints(reference)[-2:]
        self.text = sandbox.folder / "text"
        self.text.write_text("".join(f"The man sees {n} houses.\n" for n in range(_LINES)), encoding="utf-8")
        out = sandbox.folder / "translation"
        result = self.translate("-o", str(out))
        if result.status != 0:
            raise SetupError(f"the fault-free translation failed: {result.summary}")
        self.expected = out.read_bytes()

    def arguments(self, *options: str, model: Path | None = None) -> list[str]:
        return ["translate", str(model or self.model), str(self.text), "--engine", "torch", "--window", "2", *options]

    def translate(self, *options: str, model: Path | None = None) -> CommandResult:
        return self.sandbox.run(self.arguments(*options, model=model))

    def check(self, result: CommandResult, written: bytes) -> str | None:
        """Return a problem unless the output is the fault-free translation."""
        if result.status != 0:
            return f"it failed ({result.summary})"
        return None if written == self.expected else "the text differs from the fault-free translation"


def _refused(result: CommandResult, *words: str) -> str | None:
    if result.status not in (1, 2) or result.has_traceback:
        return f"expected an error with status 1 or 2 and no traceback ({result.summary})"
    if len(result.error_lines) != 1 or any(word not in result.error_lines[0] for word in words):
        return f"expected a one-line error with {', '.join(words)} ({result.summary})"
    return None


def _other_model(setup: _Translation, folder: Path) -> str | None:
    out, part = folder / "out", folder / "out.part"
    command = setup.sandbox.start(setup.arguments("-o", str(out)))
    command.wait_until(
        lambda: part.exists() and part.read_bytes().count(b"\n") >= 4, LIMIT, "the translation did not start"
    )
    command.kill()
    if not part.exists():
        raise SetupError("the translation finished before it was killed")
    before = part.read_bytes()
    silent, other = setup.translate("-o", str(out)), setup.translate("-o", str(out), "--resume", model=setup.other)
    problem = first_problem(
        _refused(silent, "--resume", "--restart"), _refused(other, setup.model.name, setup.other.name)
    )
    changed = None if part.exists() and part.read_bytes() == before else "the partial output was changed"
    resumed = setup.translate("-o", str(out), "--resume")
    left = [path.name for path in folder.iterdir() if path != out]
    return first_problem(
        problem, changed, setup.check(resumed, out.read_bytes()), f"{', '.join(left)} remains" if left else None
    )


def _to_fifo(setup: _Translation, folder: Path) -> str | None:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE) as reader:
        result = setup.translate("-o", str(fifo))
        if not fifo.is_fifo() or result.status != 0:
            reader.kill()  # the FIFO may have no writer
        written = reader.communicate()[0]
    return first_problem(setup.check(result, written), None if fifo.is_fifo() else "the FIFO was replaced")


def _to_link(setup: _Translation, folder: Path) -> str | None:
    link, target = folder / "link", folder / "elsewhere" / "target"
    target.parent.mkdir()
    target.write_text("before")
    link.symlink_to(target)
    result = setup.translate("-o", str(link))
    is_kept = link.is_symlink() and target.is_file() and not target.is_symlink()
    return first_problem(setup.check(result, target.read_bytes()), None if is_kept else "the link was replaced")


def _to_device(setup: _Translation, folder: Path) -> str | None:
    """Write to a copy of /dev/null, or, if it cannot be created, to /dev/stdout."""
    device = folder / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("wb").close()
    except OSError:
        command = setup.sandbox.start(setup.arguments("-o", "/dev/stdout"))
        result = command.finish()
        return setup.check(result, (command.log_dir / "stdout").read_bytes())
    result = setup.translate("-o", str(device))
    is_kept = device.is_char_device() and [path.name for path in folder.iterdir()] == [device.name]
    failed = None if result.status == 0 else f"it failed ({result.summary})"
    return first_problem(failed, None if is_kept else "the device was replaced")


def _to_input(setup: _Translation, folder: Path) -> str | None:
    link, before = folder / "link", setup.text.read_bytes()
    link.symlink_to(setup.text)
    for out in (setup.text, link):
        problem = _refused(setup.translate("-o", str(out)), "is the input")
        if problem or setup.text.read_bytes() != before:
            return problem or "the input was changed"
    return None


def _closed_pipe(setup: _Translation, folder: Path) -> str | None:
    """Close the pipe like `head -n 1` while two processes translate for minutes."""
    fifo, text = folder / "fifo", folder / "text"
    os.mkfifo(fifo)
    text.write_text(setup.text.read_text(encoding="utf-8") * 500, encoding="utf-8")
    arguments = setup.arguments("-o", str(fifo), "--processes", "2")
    arguments[2] = str(text)
    command = setup.sandbox.start(["-q", *arguments], launch="new")  # without progress on a slow machine
    subprocess.run(["head", "-n", "1", str(fifo)], stdout=subprocess.DEVNULL, timeout=LIMIT, check=True)
    closed = time.monotonic()
    result = command.finish(LIMIT)
    late = time.monotonic() - closed > _END_LIMIT
    wrong = (
        None
        if result.status == 1 and not result.stderr.strip()
        else f"expected status 1 without output ({result.summary})"
    )
    return first_problem(wrong, "it ended late" if late else None, check_no_processes(command))
