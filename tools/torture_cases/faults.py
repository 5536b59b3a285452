"""What goes wrong inside a command: at the n-th event of a kind it dies, gets a signal, or finds the disk full.

Installed in the process of the command before it begins. The command itself is not told: events are seen from outside,
at PyTorch's and Python's own functions, and for two of them by the file that the running code stands in.
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
from torch.optim.optimizer import register_optimizer_step_post_hook

Event = Literal["update", "accumulation", "validation", "decoding", "file", "view"]
Deed = Literal["record", "kill", "tear", "full", "full-run", "signal", "hide", "flip"]

# Code that runs in these files is what the event is named after.
_PLACES = {"validation": "/nmt/train/validate.py", "decoding": "/nmt/decode/"}

# Operations on files that may find the disk full.
SPACE_TAKING = ("create", "write", "mkdir", "fsync", "rename", "link")

_STEP = re.compile(r"step-(\d{8})")
_real_open = io.open


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    event:  `update`: an optimiser step is done; `accumulation`: the first backward pass after an optimiser step;
            `validation`, `decoding`: a call into that part of the program, after the first update;
            `file`: an operation that changes a file, during the save of checkpoint `step`;
            `view`: from the start, the process sees checkpoint `step` differently than it is
    count:  which of these events it is, from 1; of `accumulation`: after how many updates
    deed:   `kill`: SIGKILL before the event; `tear`: SIGKILL when half of a write is done; `signal`: send `number`;
            `full`, `full-run`: from here on the disk has no room for checkpoints, or for the whole run;
            `record`: note all file operations, do nothing; `hide`: the checkpoint is not there; `flip`: its weights
            have a flipped bit
    rank:   the process in which the event is waited for
    target: the process that gets the signal
    """

    event: Event
    count: int
    deed: Deed
    step: int = 0
    number: int = int(signal.SIGTERM)
    rank: int = 0
    target: int = 0

    def to_json(self) -> str:
        """As a string for the environment of another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Fault:
        """What `to_json` made."""
        return cls(**json.loads(text))


def count_updates() -> Callable[[], int]:
    """Begin to count the optimiser steps of this process; returns how many there were."""
    counts = [0]

    def count(*_: object) -> None:
        counts[0] += 1

    register_optimizer_step_post_hook(count)
    return lambda: counts[0]


def install(fault: Fault, run: Path, notes: Path) -> None:
    """Let `fault` happen in this process; what it does is noted in the folder `notes`.

    A process of several finds the others by the files `pid-RANK` in that folder.
    """
    match fault.event:
        case "update":
            updates = count_updates()
            register_optimizer_step_post_hook(lambda *_: _send(fault, notes) if updates() == fault.count else None)
        case "accumulation":
            _before_backward(fault, notes)
        case "validation" | "decoding":
            _at_place(_PLACES[fault.event], fault, notes)
        case "file":
            watch_files(run, SaveWatch(fault, run, notes))
        case "view":
            _see_differently(fault, run / "checkpoints" / f"step-{fault.step:08d}")


def _send(fault: Fault, notes: Path) -> None:
    """Send the signal to the process that it is for."""
    pid = os.getpid() if fault.target == fault.rank else int((notes / f"pid-{fault.target}").read_text())
    note_time(notes)
    os.kill(pid, fault.number)


def note_time(notes: Path) -> None:
    """Leave the file `fired` with the present time in seconds."""
    with _real_open(notes / "fired", "w") as file:
        file.write(str(time.time()))


def _before_backward(fault: Fault, notes: Path) -> None:
    updates, backward = count_updates(), torch.autograd.backward
    pending = [True]

    @wraps(backward)
    def watched(*arguments: Any, **options: Any) -> None:
        if pending[0] and updates() == fault.count:
            pending[0] = False
            _send(fault, notes)
        backward(*arguments, **options)

    setattr(torch.autograd, "backward", watched)  # noqa: B010 - it is another function of the same shape


def _at_place(place: str, fault: Fault, notes: Path) -> None:
    updates, calls = count_updates(), [0]

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and place in frame.f_code.co_filename and updates():
            calls[0] += 1
            if calls[0] == fault.count:
                sys.setprofile(None)
                _send(fault, notes)

    sys.setprofile(see)


def _see_differently(fault: Fault, checkpoint: Path) -> None:
    """Let `Path.stat`, by which pathlib finds files, miss a checkpoint, or `open` read other weights."""
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

    if fault.deed == "hide":
        setattr(os, "stat", blind)  # noqa: B010 - it is another function of the same shape
    else:
        for module in (io, builtins):
            setattr(module, "open", flipped)  # noqa: B010 - likewise


# --- Files ------------------------------------------------------------------------------------------------------------

# Called before a change: its kind, the path, and for a write what would write half of it.
Watcher = Callable[[str, Path, Callable[[], object] | None], None]


class SaveWatch:
    """Counts the file operations of one save, from the first that names its checkpoint until a later one is named."""

    def __init__(self, fault: Fault, run: Path, notes: Path) -> None:
        self._fault, self._checkpoints, self._notes = fault, run / "checkpoints", notes
        self._saving, self._disk_full, self._seen = False, False, 0

    def __call__(self, kind: str, path: Path, write_half: Callable[[], object] | None) -> None:
        """Judge one operation before it happens; kills this process or raises OSError when its time has come."""
        in_checkpoints = path.is_relative_to(self._checkpoints)
        if in_checkpoints and (named := [int(step) for step in _STEP.findall(str(path))]):
            self._saving = named[-1] == self._fault.step or (self._saving and named[-1] < self._fault.step)
        if self._saving and in_checkpoints and (kind in SPACE_TAKING or not self._fault.deed.startswith("full")):
            self._seen += 1
            if self._fault.deed == "record":
                with _real_open(self._notes / "operations", "a") as file:
                    file.write(f"{kind} {_anonymous(path.name)}\n")
            elif self._seen == self._fault.count:
                note_time(self._notes)
                self._act(write_half)
        if self._disk_full and kind in SPACE_TAKING and (in_checkpoints or self._fault.deed == "full-run"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _act(self, write_half: Callable[[], object] | None) -> None:
        if self._fault.deed.startswith("full"):
            self._disk_full = True
        elif self._fault.deed == "signal":
            _send(self._fault, self._notes)
        else:
            if self._fault.deed == "tear" and write_half is not None:
                write_half()
            os.kill(os.getpid(), signal.SIGKILL)


def _anonymous(name: str) -> str:
    """A file's name without the number of the process that made it."""
    return re.sub(r"\d+$", "PID", name) if ".part" in name else name


@contextmanager
def watched_files(folder: Path, watch: Watcher) -> Iterator[None]:
    """`watch_files` for the length of a `with` block."""
    undo = watch_files(folder, watch)
    try:
        yield
    finally:
        undo()


def watch_files(folder: Path, watch: Watcher) -> Callable[[], None]:
    """Call `watch` before every change that Python code of this process makes to files under `folder`.

    Returns what puts everything back. Files opened for writing are written through, so that each write is one change.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - not resolved: neither are the paths that are compared
    before: list[tuple[Any, str, Any]] = []

    def see(kind: str, path: Path | None, write_half: Callable[[], object] | None = None) -> None:
        if path is not None and path.is_relative_to(folder):
            watch(kind, path, write_half)

    def replace(module: Any, name: str, make: Callable[..., Any], *details: Any) -> None:
        original = getattr(module, name)
        before.append((module, name, original))
        setattr(module, name, wraps(original)(make(original, see, *details)))

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


def _path_function(original: Callable[..., Any], see: Callable[..., None], kind: str) -> Callable[..., Any]:
    def watched(*arguments: Any, **options: Any) -> Any:
        two_paths = kind in ("rename", "link")
        see(kind, _place(arguments[1 if two_paths else 0], options.get("dst_dir_fd" if two_paths else "dir_fd")))
        return original(*arguments, **options)

    return watched


def _descriptor_function(original: Callable[..., Any], see: Callable[..., None], kind: str) -> Callable[..., Any]:
    def watched(descriptor: int, *arguments: Any) -> Any:
        see(kind, _place(descriptor))
        return original(descriptor, *arguments)

    return watched


def _os_open(original: Callable[..., Any], see: Callable[..., None]) -> Callable[..., Any]:
    def watched(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            see("create", _place(path, options.get("dir_fd")))
        return original(path, flags, *arguments, **options)

    return watched


def _open(original: Callable[..., Any], see: Callable[..., None], folder: Path) -> Callable[..., Any]:
    def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        place = _place(file)
        if place is None or not place.is_relative_to(folder) or not set(mode) & set("wax+"):
            return original(file, mode, *arguments, **options)
        if not isinstance(file, int):
            see("create", place)
        return _WatchedFile(original(file, mode, *arguments, **options), place, see)

    return watched


def _place(path: Any, folder_descriptor: int | None = None) -> Path | None:
    """The absolute path that a path, or the number of an open file, means; None for a file without a name."""
    if isinstance(path, int):
        target = Path(f"/proc/self/fd/{path}").readlink()
        return target if target.is_absolute() else None
    folder = Path() if folder_descriptor is None else _place(folder_descriptor)
    return folder and Path(os.path.abspath(folder / os.fsdecode(path)))  # noqa: PTH100 - see above


class _WatchedFile:
    """A file open for writing whose every write is seen, and reaches the system at once."""

    def __init__(self, file: Any, path: Path, see: Callable[..., None]) -> None:
        self._file, self._path, self._see = file, path, see

    def write(self, data: Any) -> Any:
        half = data[: len(data) // 2]
        self._see("write", self._path, lambda: (self._file.write(half), self._file.flush()))
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
