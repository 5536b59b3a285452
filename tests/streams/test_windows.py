"""Windows of input lines."""

import math
from collections.abc import Iterator

import pytest

from nmt import UserError
from nmt.streams.records import Record
from nmt.streams.windows import MAX_WINDOW_CHARACTERS, split_windows, window_of_file, with_pauses


def records(count: int, text: str = "a", numbers_read: list[int] | None = None, bad: int = 0) -> Iterator[Record]:
    """Yield records numbered from 1; add each number to `numbers_read`, and raise UserError at record `bad`."""
    for number in range(1, count + 1):
        if number == bad:
            raise UserError("bad line")
        if numbers_read is not None:
            numbers_read.append(number)
        yield Record(number, text, text)


def numbers(found: Iterator[list[Record]]) -> list[list[int]]:
    return [[record.number for record in window] for window in found]


@pytest.mark.parametrize(("lines", "expected"), [(0, 256), (1000, 256), (10_000, 313), (65_536, 2048), (10**9, 2048)])
def test_the_window_size_is_a_fraction_of_the_file_within_limits(lines: int, expected: int) -> None:
    assert window_of_file(lines) == expected


def test_windows_for_a_gpu_are_larger() -> None:
    assert [window_of_file(lines, on_gpu=True) for lines in (0, 3_000, 50_000, 10**9)] == [256, 256, 3_125, 32_768]
    found = numbers(split_windows(records(25, text="x" * 100_000), 2_048, max_characters=10 * MAX_WINDOW_CHARACTERS))
    assert [len(window) for window in found] == [25]


def test_windows_do_not_read_ahead() -> None:
    numbers_read: list[int] = []
    found = split_windows(records(7, numbers_read=numbers_read), 3)
    for last, expected in ((3, [1, 2, 3]), (6, [4, 5, 6]), (7, [7])):
        assert [record.number for record in next(found)] == expected
        assert numbers_read[-1] == last
    assert next(found, None) is None
    assert numbers(split_windows(records(6), 3)) == [[1, 2, 3], [4, 5, 6]]
    assert numbers(split_windows(records(0), 3)) == []


def test_long_lines_end_windows_early() -> None:
    found = numbers(split_windows(records(25, text="x" * 100_000), 2_048))
    full_window = math.ceil(MAX_WINDOW_CHARACTERS / 100_000)
    assert [len(window) for window in found] == [full_window, full_window, 25 - 2 * full_window]


def test_records_before_an_error_are_yielded() -> None:
    found = split_windows(records(9, bad=5), 3)
    assert [len(next(found)) for _ in range(2)] == [3, 1]
    with pytest.raises(UserError, match="bad line"):
        next(found)
    with pytest.raises(UserError, match="bad line"):
        list(split_windows(records(3, bad=1), 3))


def test_a_window_of_a_pipe_ends_if_no_line_arrives_within_the_delay() -> None:
    delay = 1_000.0  # far longer than the test; elapsed time is subtracted from each timeout
    numbers_read: list[int] = []
    timeouts: list[float] = []

    def wait(seconds: float) -> bool:
        timeouts.append(seconds)
        return numbers_read[-1] not in (2, 3, 9)

    assert numbers(split_windows(records(10, numbers_read=numbers_read), 4, wait, delay)) == [
        [1, 2],
        [3],
        [4, 5, 6, 7],
        [8, 9],
        [10],
    ]
    assert all(0.9 * delay < seconds <= delay for seconds in timeouts)
    assert len(timeouts) == 9, "a full window must end without waiting"


def test_available_lines_are_added_after_the_delay() -> None:
    assert numbers(split_windows(records(5), 4, lambda seconds: True, delay=0.0)) == [[1, 2, 3, 4], [5]]
    timeouts: list[float] = []

    def wait(seconds: float) -> bool:
        timeouts.append(seconds)
        return len(timeouts) < 3

    list(split_windows(records(3), 4, wait, delay=0.0))
    assert timeouts == [0.0] * 3


def test_none_precedes_a_wait_and_an_error() -> None:
    ready = iter([True, False, True])
    found = list(with_pauses(split_windows(records(3), 1), lambda seconds: next(ready)))
    assert [window and window[0].number for window in found] == [1, 2, None, 3]
    assert None not in list(with_pauses(split_windows(records(3), 1), None))
    broken = with_pauses(split_windows(records(3, bad=2), 1), None)
    assert next(broken) is not None
    assert next(broken) is None
    with pytest.raises(UserError, match="bad line"):
        next(broken)
