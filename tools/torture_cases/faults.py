"""Fault injection: at the n-th event of a kind, a command is killed, gets a signal, or runs out of disk space.

Faults are installed in the command's process before it starts. Events are detected without its cooperation, by wrapping
functions of nmt, PyTorch and Python, and for two events by the source file of the called function.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from nmt.train.optimizer import Adam

Event = Literal["update", "accumulation", "validation", "decoding", "file", "view"]
Action = Literal["record", "kill", "tear", "full", "full-run", "signal", "hide", "flip"]

# A call to a function in these files is the event.
_FILES = {"validation": "/nmt/train/validate.py", "decoding": "/nmt/decode/"}

# File operations that fail on a full disk.
ALLOCATING = ("create", "write", "mkdir", "fsync", "rename", "link")

_STEP = re.compile(r"step-(\d{8})")
_real_open = io.open


@dataclass(frozen=True)
class Fault:
    """A fault.

    event:  `update`: end of an optimizer step; `accumulation`: first backward pass after an optimizer step;
            `validation`, `decoding`: a call into that part of the program, after the first update;
            `file`: a file operation during the save of checkpoint `step`;
            `view`: from the start, for checkpoint `step`
    count:  number of the event, from 1; for `accumulation`, the number of updates before it
    action: `kill`: SIGKILL before the event; `tear`: SIGKILL in the middle of a write; `signal`: send `number`;
            `full`, `full-run`: from then on, the disk is full for checkpoints, or for the whole run;
            `record`: only log all file operations; `hide`: the checkpoint is missing; `flip`: its weights have a
            flipped bit
    rank:   process that detects the event
    target: process that receives the signal
    """

    event: Event
    count: int
    action: Action
    step: int = 0
    number: int = int(signal.SIGTERM)
    rank: int = 0
    target: int = 0

    def to_json(self) -> str:
        """Serialize for an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Fault:
        """Parse the output of `to_json`."""
        return cls(**json.loads(text))


def count_updates() -> Callable[[], int]:
    """Start counting the optimizer steps of this process; returns a function that returns the count."""
    counts = [0]

    def count() -> None:
        counts[0] += 1

    _after_update(count)
    return lambda: counts[0]


def _after_update(call: Callable[[], None]) -> None:
    """Call a function after each optimizer step."""
    step = Adam.step

    def step_and_call(self: Adam, skip: torch.Tensor | None = None) -> None:
        step(self, skip)
        call()

    Adam.step = step_and_call  # type: ignore[method-assign]


def install(fault: Fault, run: Path, log_dir: Path) -> None:
    """Install a fault in this process. `log_dir` has the files `pid-RANK` of the other processes."""
    match fault.event:
        case "update":
            updates = count_updates()
            _after_update(lambda: _send(fault, log_dir) if updates() == fault.count else None)
        case "accumulation":
            _before_backward(fault, log_dir)
        case "validation" | "decoding":
            _at_call(_FILES[fault.event], fault, log_dir)
        case "file":
            watch_files(run, SaveWatcher(fault, run, log_dir))
        case "view":
            _alter_view(fault, run / "checkpoints" / f"step-{fault.step:08d}")


def _send(fault: Fault, log_dir: Path) -> None:
    """Send the signal to the target process."""
    pid = os.getpid() if fault.target == fault.rank else int((log_dir / f"pid-{fault.target}").read_text())
    record_time(log_dir)
    os.kill(pid, fault.number)


def record_time(log_dir: Path) -> None:
    """Write the current time in seconds to the file `fired`."""
    with _real_open(log_dir / "fired", "w") as file:
        file.write(str(time.time()))


def _before_backward(fault: Fault, log_dir: Path) -> None:
    updates, backward = count_updates(), torch.autograd.backward
    pending = [True]

    @wraps(backward)
    def watched(*arguments: Any, **options: Any) -> None:
        if pending[0] and updates() == fault.count:
            pending[0] = False
            _send(fault, log_dir)
        backward(*arguments, **options)

    setattr(torch.autograd, "backward", watched)  # noqa: B010 - mypy rejects the assignment


def _at_call(file: str, fault: Fault, log_dir: Path) -> None:
    updates, calls = count_updates(), [0]

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and file in frame.f_code.co_filename and updates():
            calls[0] += 1
            if calls[0] == fault.count:
                sys.setprofile(None)
                _send(fault, log_dir)

    sys.setprofile(see)


def _alter_view(fault: Fault, checkpoint: Path) -> None:
    """Make `os.stat` miss a checkpoint, or `open` read different weights."""
    stat = os.stat

    def blind(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if not isinstance(path, int) and checkpoint in (Path(path), *Path(path).parents):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return stat(path, *arguments, **options)

    def flipped(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        opened = _real_open(file, mode, *arguments, **options)
        if mode != "rb" or Path(str(file)) != checkpoint / "model.safetensors":
            return opened
        with opened:
            content = bytearray(opened.read())
        content[-1] ^= 1
        return io.BytesIO(content)

    if fault.action == "hide":
        setattr(os, "stat", blind)  # noqa: B010 - mypy rejects the assignment
    else:
        for module in (io, builtins):
            setattr(module, "open", flipped)  # noqa: B010 - as above


# --- Files ------------------------------------------------------------------------------------------------------------

# Called before a file operation with its kind, the path, and for a write a function that writes half of it.
Watcher = Callable[[str, Path, Callable[[], object] | None], None]


class SaveWatcher:
    """Counts the file operations of one save, from the first on its checkpoint to the first on a later one."""

    def __init__(self, fault: Fault, run: Path, log_dir: Path) -> None:
        self._fault, self._checkpoints, self._log_dir = fault, run / "checkpoints", log_dir
        self._saving, self._disk_full, self._count = False, False, 0

    def __call__(self, kind: str, path: Path, write_half: Callable[[], object] | None) -> None:
        """Handle an operation before it happens; may kill this process or raise OSError."""
        in_checkpoints = path.is_relative_to(self._checkpoints)
        if in_checkpoints and (steps := [int(step) for step in _STEP.findall(str(path))]):
            self._saving = steps[-1] == self._fault.step or (self._saving and steps[-1] < self._fault.step)
        if self._saving and in_checkpoints and (kind in ALLOCATING or not self._fault.action.startswith("full")):
            self._count += 1
            if self._fault.action == "record":
                with _real_open(self._log_dir / "operations", "a") as file:
                    file.write(f"{kind} {_without_pid(path.name)}\n")
            elif self._count == self._fault.count:
                record_time(self._log_dir)
                self._act(write_half)
        if self._disk_full and kind in ALLOCATING and (in_checkpoints or self._fault.action == "full-run"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _act(self, write_half: Callable[[], object] | None) -> None:
        if self._fault.action.startswith("full"):
            self._disk_full = True
        elif self._fault.action == "signal":
            _send(self._fault, self._log_dir)
        else:
            if self._fault.action == "tear" and write_half is not None:
                write_half()
            os.kill(os.getpid(), signal.SIGKILL)


def _without_pid(name: str) -> str:
    """Replace the process id in a file name."""
    return re.sub(r"\d+$", "PID", name) if ".part" in name else name


@contextmanager
def watching_files(folder: Path, watch: Watcher) -> Iterator[None]:
    """Context manager of `watch_files`."""
    undo = watch_files(folder, watch)
    try:
        yield
    finally:
        undo()


def watch_files(folder: Path, watch: Watcher) -> Callable[[], None]:
    """Call `watch` before every file operation of this process's Python code under `folder`.

    Files are written unbuffered: each write is one operation. Returns a function that undoes the patches.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - links must not be resolved
    before: list[tuple[Any, str, Any]] = []

    def notify(kind: str, path: Path | None, write_half: Callable[[], object] | None = None) -> None:
        if path is not None and path.is_relative_to(folder):
            watch(kind, path, write_half)

    def replace(module: Any, name: str, make: Callable[..., Any], *details: Any) -> None:
        original = getattr(module, name)
        before.append((module, name, original))
        setattr(module, name, wraps(original)(make(original, notify, *details)))

    for name, kind in _PATH_FUNCTIONS.items():
        replace(os, name, _path_function, kind)
    for name, kind in _DESCRIPTOR_FUNCTIONS.items():
        replace(os, name, _descriptor_function, kind)
    replace(os, "open", _os_open)
    for module in (io, builtins):
        replace(module, "open", _open, folder)

    def undo() -> None:
        for module, name, original in reversed(before):
            setattr(module, name, original)

    return undo


_PATH_FUNCTIONS = {
    "rename": "rename",
    "replace": "rename",
    "link": "link",
    "symlink": "link",
    "mkdir": "mkdir",
    "rmdir": "remove",
    "unlink": "remove",
    "remove": "remove",
    "truncate": "write",
}
_DESCRIPTOR_FUNCTIONS = {"fsync": "fsync", "fdatasync": "fsync", "ftruncate": "write", "write": "write"}


def _path_function(original: Callable[..., Any], notify: Callable[..., None], kind: str) -> Callable[..., Any]:
    def watched(*arguments: Any, **options: Any) -> Any:
        two_paths = kind in ("rename", "link")
        notify(kind, _absolute(arguments[1 if two_paths else 0], options.get("dst_dir_fd" if two_paths else "dir_fd")))
        return original(*arguments, **options)

    return watched


def _descriptor_function(original: Callable[..., Any], notify: Callable[..., None], kind: str) -> Callable[..., Any]:
    def watched(descriptor: int, *arguments: Any) -> Any:
        notify(kind, _absolute(descriptor))
        return original(descriptor, *arguments)

    return watched


def _os_open(original: Callable[..., Any], notify: Callable[..., None]) -> Callable[..., Any]:
    def watched(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            notify("create", _absolute(path, options.get("dir_fd")))
        return original(path, flags, *arguments, **options)

    return watched


def _open(original: Callable[..., Any], notify: Callable[..., None], folder: Path) -> Callable[..., Any]:
    def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        path = _absolute(file)
        if path is None or not path.is_relative_to(folder) or not set(mode) & set("wax+"):
            return original(file, mode, *arguments, **options)
        if not isinstance(file, int):
            notify("create", path)
        return _WatchedFile(original(file, mode, *arguments, **options), path, notify)

    return watched


def _absolute(path: Any, folder_descriptor: int | None = None) -> Path | None:
    """Return the absolute path of a path or file descriptor; None for a file without a name."""
    if isinstance(path, int):
        target = Path(f"/proc/self/fd/{path}").readlink()
        return target if target.is_absolute() else None
    folder = Path() if folder_descriptor is None else _absolute(folder_descriptor)
    return folder and Path(os.path.abspath(folder / os.fsdecode(path)))  # noqa: PTH100 - as above


class _WatchedFile:
    """A file that reports every write and flushes it."""

    def __init__(self, file: Any, path: Path, notify: Callable[..., None]) -> None:
        self._file, self._path, self._notify = file, path, notify

    def write(self, data: Any) -> Any:
        half = data[: len(data) // 2]
        self._notify("write", self._path, lambda: (self._file.write(half), self._file.flush()))
        written = self._file.write(data)
        self._file.flush()
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
