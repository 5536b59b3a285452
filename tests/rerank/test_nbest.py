"""N-best files."""

import pytest

from nmt.errors import UserError
from nmt.rerank.nbest import Candidate, read_n_best, write_n_best


def test_written_lists_are_read_back() -> None:
    lists = [[Candidate("ein Haus", -0.5), Candidate("", -1.25)], [Candidate("x", 3.0)], [Candidate("y", -1e-9)]]
    lines = [line for number, candidates in enumerate(lists, start=1) for line in write_n_best(number, candidates)]
    assert lines == ["1\t-0.5000\tein Haus", "1\t-1.2500\t", "2\t3.0000\tx", "3\t0.0000\ty"]
    assert read_n_best(lines, "file") == [*lists[:2], [Candidate("y", 0.0)]]


def test_further_columns_are_ignored() -> None:
    assert read_n_best(["1\t-1\tein Haus\t0-0 1-1"], "file") == [[Candidate("ein Haus", -1.0)]]


def test_windows_line_endings_are_not_part_of_a_translation() -> None:
    assert read_n_best(["1\t-1\tein Haus\r", "1\t-2\t\r"], "file") == [
        [Candidate("ein Haus", -1.0), Candidate("", -2.0)]
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["ein Haus"], "file, line 1, is malformed; expected number, score and text"),
        (["a house\tein Haus\tdas Haus"], "create it with nmt translate --n-best N --output-format text"),
        (["1\t-0.5"], "file, line 1, is malformed"),
        (["1\t-0.5\ta", "1\tnan\tb"], "file, line 2, is malformed"),
        (["1\t-0.5\ta", "x\t-1\tb"], "file, line 2, is malformed"),
        (["2\t-0.5\ta"], "file, line 1, has number 2; expected 1;"),
        (["0\t-0.5\ta"], "file numbers lines from 0, as Moses does; expected 1; add 1 to each number"),
        (["0 ||| a ||| LM= -1 ||| -0.5"], "file, line 1, is in Moses format; expected number, score and text"),
        (["1\t-0.5\ta", "3\t-1\tb"], "file, line 2, has number 3; expected 1 or 2;"),
        (["1\t-0.5\ta", "2\t-1\tb", "1\t-1\tc"], "file, line 3, has number 1"),
    ],
)
def test_malformed_lines_are_errors(lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_n_best(lines, "file")
