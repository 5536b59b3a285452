"""Cases of `nmt translate`: what it reads and writes is no plain file, goes away, or was made by another model."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torture_cases.evidence import checkpoints
from torture_cases.several import nothing_left
from torture_cases.trial import Trial, first_problem
from torture_cases.workshop import LIMIT, Command, Ended, Workshop, WorkshopError

_LINES = 60

# Longest from the end of a reader to the end of all processes.
_END_LIMIT = 15.0


def odd_streams(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """A pipe that closes, a part of another model, and outputs that are a FIFO, a link, a device and the input."""
    bench = _Bench(shop)
    trials: Sequence[tuple[str, Callable[[_Bench, Path], str | None]]] = (
        ("a part of another model", _part_of_another_model),
        ("output to a FIFO", _to_fifo),
        ("output to a symbolic link", _to_link),
        ("output to a device", _to_device),
        ("the input named as output", _to_input),
        ("a closed pipe, two processes", _closed_pipe),
    )
    for name, problem in trials[: -1 if quick else None]:
        folder = shop.new_run()
        folder.mkdir()
        yield Trial(name, problem(bench, folder), folder)


class _Bench:
    """Two models of one run, a text, and the translation by the first model."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        reference = shop.reference()[0]
        self.other, self.model = checkpoints(reference)[-2:]
        self.text = shop.folder / "text"
        self.text.write_text("".join(f"The man sees {n} houses.\n" for n in range(_LINES)), encoding="utf-8")
        out = shop.folder / "translation"
        ended = self.translate("-o", str(out))
        if ended.status != 0:
            raise WorkshopError(f"the undisturbed translation failed: {ended.summary}")
        self.expected = out.read_bytes()

    def arguments(self, *options: str, model: Path | None = None) -> list[str]:
        return ["translate", str(model or self.model), str(self.text), "--engine", "torch", "--window", "2", *options]

    def translate(self, *options: str, model: Path | None = None) -> Ended:
        return self.shop.do(self.arguments(*options, model=model))

    def done(self, ended: Ended, written: bytes) -> str | None:
        """What is wrong with a translation that should be the undisturbed one."""
        if ended.status != 0:
            return f"it failed ({ended.summary})"
        return None if written == self.expected else "the text differs from the undisturbed translation"


def _refused(ended: Ended, *words: str) -> str | None:
    if ended.status not in (1, 2) or ended.traceback:
        return f"it must be refused with status 1 or 2 and no traceback ({ended.summary})"
    if len(ended.error_lines) != 1 or any(word not in ended.error_lines[0] for word in words):
        return f"it must say in one line with {', '.join(words)} why ({ended.summary})"
    return None


def _part_of_another_model(bench: _Bench, folder: Path) -> str | None:
    out, part = folder / "out", folder / "out.part"
    command = bench.shop.start(bench.arguments("-o", str(out)))
    _wait_until(lambda: part.exists() and part.read_bytes().count(b"\n") >= 4, command)
    command.kill()
    if not part.exists():
        raise WorkshopError("the translation was through before it could be killed")
    before = part.read_bytes()
    silent, other = bench.translate("-o", str(out)), bench.translate("-o", str(out), "--resume", model=bench.other)
    problem = first_problem(
        _refused(silent, "--resume", "--restart"), _refused(other, bench.model.name, bench.other.name)
    )
    changed = None if part.exists() and part.read_bytes() == before else "the part was changed"
    resumed = bench.translate("-o", str(out), "--resume")
    left = [path.name for path in folder.iterdir() if path != out]
    return first_problem(
        problem, changed, bench.done(resumed, out.read_bytes()), f"{', '.join(left)} is left" if left else None
    )


def _to_fifo(bench: _Bench, folder: Path) -> str | None:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE) as reader:
        ended = bench.translate("-o", str(fifo))
        if not fifo.is_fifo() or ended.status != 0:
            reader.kill()  # nobody may have opened the other end
        written = reader.communicate()[0]
    return first_problem(bench.done(ended, written), None if fifo.is_fifo() else "it is no FIFO any more")


def _to_link(bench: _Bench, folder: Path) -> str | None:
    link, target = folder / "link", folder / "elsewhere" / "target"
    target.parent.mkdir()
    target.write_text("before")
    link.symlink_to(target)
    ended = bench.translate("-o", str(link))
    is_kept = link.is_symlink() and target.is_file() and not target.is_symlink()
    return first_problem(bench.done(ended, target.read_bytes()), None if is_kept else "the link was replaced")


def _to_device(bench: _Bench, folder: Path) -> str | None:
    """To a copy of the null device, which a wrong program may replace; where no such copy can be made, to stdout."""
    device = folder / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("wb").close()
    except OSError:
        command = bench.shop.start(bench.arguments("-o", "/dev/stdout"))
        ended = command.end()
        return bench.done(ended, (command.notes / "out").read_bytes())
    ended = bench.translate("-o", str(device))
    is_kept = device.is_char_device() and [path.name for path in folder.iterdir()] == [device.name]
    failed = None if ended.status == 0 else f"it failed ({ended.summary})"
    return first_problem(failed, None if is_kept else "the device was replaced")


def _to_input(bench: _Bench, folder: Path) -> str | None:
    link, before = folder / "link", bench.text.read_bytes()
    link.symlink_to(bench.text)
    for out in (bench.text, link):
        problem = _refused(bench.translate("-o", str(out)), "is the input")
        if problem or bench.text.read_bytes() != before:
            return problem or "the input was changed"
    return None


def _closed_pipe(bench: _Bench, folder: Path) -> str | None:
    """As `| head -n 1` does, while two processes translate what would take minutes."""
    fifo, text = folder / "fifo", folder / "text"
    os.mkfifo(fifo)
    text.write_text(bench.text.read_text(encoding="utf-8") * 500, encoding="utf-8")
    arguments = bench.arguments("-o", str(fifo), "--processes", "2")
    arguments[2] = str(text)
    command = bench.shop.start(arguments, launch="new")
    subprocess.run(["head", "-n", "1", str(fifo)], stdout=subprocess.DEVNULL, timeout=LIMIT, check=True)
    closed = time.monotonic()
    ended = command.end(LIMIT)
    late = time.monotonic() - closed > _END_LIMIT
    wrong = None if ended.status == 1 and not ended.said.strip() else f"it must end with 1 in silence ({ended.summary})"
    return first_problem(wrong, "it ended late" if late else None, nothing_left(command))


def _wait_until(is_so: Callable[[], bool], command: Command) -> None:
    limit = time.monotonic() + LIMIT
    while not is_so():
        if time.monotonic() > limit or command.wait(0.005) is not None:
            raise WorkshopError(f"the translation did not come so far: {command.end(1.0).summary}")
