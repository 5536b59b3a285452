"""Warnings of a command that resumes after the first lines, or whose first lines are empty."""

from pathlib import Path

import pytest

from nmt.streams.input_warnings import with_warnings
from nmt.streams.records import Format, RecordReader
from nmt.streams.source import Source


def warnings(
    capsys: pytest.CaptureFixture[str], path: Path, kind: Format, lines: list[str], *, done: int = 0
) -> list[str]:
    """Read a file, of which `done` lines are already translated, in windows of two lines; return the warnings."""
    path.write_text("".join(f"{line}\n" for line in lines))
    source = Source.open(path, RecordReader(kind), "error")
    records = list(source.records())[done:]
    windows = [records[start : start + 2] for start in range(0, len(records), 2)]
    assert list(with_warnings(iter(windows), source, {}, is_language_model=False)) == windows
    return capsys.readouterr().err.splitlines()


def test_lines_are_compared_with_the_first_line_that_has_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, lines = tmp_path / "in.tsv", ["", "a\tb", "c", "d\te\tf"]
    for done, warned in (
        (0, "2 lines of {} (first: line 3) have a different number of columns than line 2 (2), so"),
        (2, "1 line of {} (first: line 4) has a different number of columns than line 3 (1), so"),
    ):
        (found,) = warnings(capsys, path, "tsv", lines, done=done)
        assert found.startswith(f"warning: {warned.format(path)}")


def test_the_format_is_checked_at_the_first_lines_of_a_file_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.txt"
    (found,) = warnings(capsys, path, "text", ["source", "a dog"])
    assert "begins with 'source', which looks like a column name" in found
    assert not warnings(capsys, path, "text", ["a cat", "a cow", "source", "a dog"], done=2)
