"""The windows of lines that are translated together, of a file or of what comes through a pipe.

A file is read in windows of a fixed number of lines. What comes through a pipe or is typed must be answered before all
is there: a window ends a moment after its first line, unless more is there already. So a slow writer gets each answer
soon, and a fast one wide windows, which are quicker by the line. Memory holds a few windows, whatever comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from nmt.recipe import UserError
from nmt.streams.records import Record

# Lines of a window at most. A smaller file is divided into parts, so that several processes have enough to share.
WIDEST_WINDOW, NARROWEST_WINDOW = 2_048, 256
PARTS_OF_A_FILE = 32
# Where one process does all, two windows are on their way at a time.
WINDOW_OF_ONE = 1_024
# A GPU takes batches of up to 16 times as many tokens as a CPU, and a window of a large file must hold several of them.
# Of a small file, there must still be one for each of several GPUs.
TIMES_ON_A_GPU, PARTS_ON_A_GPU = 16, 16

# A window that holds so many characters is closed, however few its lines are: what is known of them must fit in memory.
WINDOW_CHARACTERS = 1 << 20

Wait = Callable[[float], bool]


def window_of_file(num_lines: int, *, on_gpu: bool = False) -> int:
    """How many lines of a file are translated together; the same for any number of processes."""
    parts, times = (PARTS_ON_A_GPU, TIMES_ON_A_GPU) if on_gpu else (PARTS_OF_A_FILE, 1)
    return min(max(-(-num_lines // parts), NARROWEST_WINDOW), times * WIDEST_WINDOW)


def windows(
    records: Iterable[Record],
    size: int,
    wait: Wait | None = None,
    delay: float = 0.0,
    *,
    most_characters: int = WINDOW_CHARACTERS,
) -> Iterator[list[Record]]:
    """The records in windows of at most `size`, closed as soon as they hold `most_characters`.

    wait: says whether another record, or the end, comes within so many seconds; then a window ends `delay` seconds
    after its first record too. An error of the user's ends a window as well: what stands before it is given first.
    """
    window: list[Record] = []
    characters, end = 0, 0.0
    problem: UserError | None = None
    try:
        for record in records:
            end = end if window else monotonic() + delay
            window.append(record)
            characters += len(record.line)
            is_full = len(window) >= size or characters >= most_characters
            # What is there already is taken even when the time is over: it costs nothing.
            if is_full or (wait is not None and not wait(max(end - monotonic(), 0.0))):
                yield window
                window, characters = [], 0
    except UserError as error:
        problem = error
    if window:
        yield window
    if problem is not None:
        raise problem


def with_pauses(found: Iterable[list[Record]], wait: Wait | None) -> Iterator[list[Record] | None]:
    """The windows, and None where the next is not there yet or an error follows: all before it shall be answered."""
    try:
        for window in found:
            yield window
            if wait is not None and not wait(0.0):
                yield None
    except UserError:
        yield None
        raise
