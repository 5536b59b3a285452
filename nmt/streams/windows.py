"""Group input lines into windows that are translated together.

A window ends at a number of lines or characters. A window of a pipe also ends shortly after its first line, unless
more lines are already available: low latency for a slow writer, large windows and high throughput for a fast one.
Memory use is bounded by a few windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from nmt.errors import UserError
from nmt.streams.records import Record

# Lines of a window. Within these limits, a file is split into WINDOWS_PER_FILE windows, to balance the load
# across processes.
MAX_WINDOW, MIN_WINDOW = 2_048, 256
WINDOWS_PER_FILE = 32
# Window for a single process, which has two windows in flight.
SINGLE_PROCESS_WINDOW = 1_024
# GPU batches have up to 16 times as many tokens as CPU batches; a window must hold several batches.
GPU_FACTOR, GPU_WINDOWS_PER_FILE = 16, 16

# A window also ends at this many characters, to bound the memory of long lines.
MAX_WINDOW_CHARACTERS = 1 << 20

Wait = Callable[[float], bool]


def window_of_file(num_lines: int, *, on_gpu: bool = False) -> int:
    """Return the window size for a file, in lines; it does not depend on the number of processes."""
    num_windows = GPU_WINDOWS_PER_FILE if on_gpu else WINDOWS_PER_FILE
    max_window = GPU_FACTOR * MAX_WINDOW if on_gpu else MAX_WINDOW
    return min(max(math.ceil(num_lines / num_windows), MIN_WINDOW), max_window)


def split_windows(
    records: Iterable[Record],
    size: int,
    wait: Wait | None = None,
    delay: float = 0.0,
    *,
    max_characters: int = MAX_WINDOW_CHARACTERS,
    whole_documents: bool = False,
) -> Iterator[list[Record]]:
    """Yield windows of at most `size` records; a window that reaches `max_characters` ends.

    wait:  returns whether a record or the end of the input arrives within a number of seconds; None for a file
    delay: with `wait`, seconds after its first record that a window waits for others
    whole_documents: whether a full window of a file also has the rest of its last document, for models that need
                     translations of the context; windows are the same if a resumed command starts at one of them

    A UserError of `records` is raised after the records before it have been yielded.
    """
    window: list[Record] = []
    characters, end = 0, 0.0
    is_full = False
    try:
        for record in records:
            if is_full and whole_documents and record.context is not None:
                yield window
                window, characters = [], 0
            end = end if window else monotonic() + delay
            window.append(record)
            characters += len(record.line)
            is_full = len(window) >= size or characters >= max_characters
            may_end = is_full and not whole_documents
            # Past the end of the delay, `wait(0.0)` still accepts records that are already available.
            if may_end or (wait is not None and not wait(max(end - monotonic(), 0.0))):
                yield window
                window, characters = [], 0
    except UserError:
        if window:
            yield window
        raise
    if window:
        yield window


def with_pauses(windows: Iterable[list[Record]], wait: Wait | None) -> Iterator[list[Record] | None]:
    """Yield windows, and None before a wait or an error: the caller must then output all earlier windows."""
    try:
        for window in windows:
            yield window
            if wait is not None and not wait(0.0):
                yield None
    except UserError:
        yield None
        raise
