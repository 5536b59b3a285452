"""The report of glossary terms."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from nmt.decode.glossary import Term, TermUse
from nmt.errors import CommandError, UserError
from nmt.streams.sink import Sink
from nmt.streams.term_report import TermReport, format_use

DOG, CAT = Term("dog", ("Hund", "Hunde")), Term("cat", ("Katze",))
HEADER = "line\tterm\ttranslation\tresult\n"


def test_a_report_has_a_row_per_term_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.tsv"
    used, missed = format_use(1, TermUse(DOG, "Hunde")), format_use(3, TermUse(CAT, ""))
    assert (used, missed) == ("1\tdog\tHunde\tused\n", "3\tcat\tKatze\tmissed\n")
    report = TermReport(path)
    with report.open(done=0):
        report.add(used)
        report.add("")
        report.add(missed)
    report.log()
    assert path.read_text() == HEADER + used + missed
    assert "glossary (constrain): 1 of 2 terms used (50.0%); missed most often: cat (1)" in capsys.readouterr().err


def test_a_resumed_report_keeps_only_the_rows_of_translated_lines(tmp_path: Path) -> None:
    path = tmp_path / "report.tsv"
    first, later = "1\tdog\tHunde\tused\n", "3\tcat\tKatze\tmissed\n"
    path.write_text(f"{HEADER}{first}{later}4\tdog\tHu")  # the command was killed while it wrote a row
    resumed = TermReport(path)
    with resumed.open(done=2):
        resumed.add(later)
    assert path.read_text() == HEADER + first + later


def test_a_kill_of_a_resumed_command_keeps_the_rows_of_translated_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.tsv"
    first, later = "1\tdog\tHunde\tused\n", "3\tcat\tKatze\tmissed\n"
    path.write_text(HEADER + first + later)
    resumed = TermReport(path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), resumed.open(done=2):
        patch.setattr(Sink, "write", Mock(side_effect=KeyboardInterrupt))
        resumed.add(later)
    again = TermReport(path)
    with again.open(done=2):
        again.add(later)
    assert path.read_text() == HEADER + first + later


def test_a_resumed_report_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="the terms of the first 2 lines"), TermReport(tmp_path / "r").open(done=2):
        pass


@pytest.mark.parametrize("has_glossary", [False, True])
def test_a_glossary_without_effect_is_named(capsys: pytest.CaptureFixture[str], has_glossary: bool) -> None:
    report = TermReport(mode="annotate", has_glossary=has_glossary)
    with report.open(done=0):
        report.add("")
    report.log()
    expected = "glossary (annotate): none of its terms occur in the translated lines\n" if has_glossary else ""
    assert capsys.readouterr().err == expected


def test_a_report_is_kept_if_no_line_is_translated(tmp_path: Path) -> None:
    path = tmp_path / "report.tsv"
    path.write_text(HEADER + "1\tdog\tHund\tused\n")
    with pytest.raises(UserError, match="no translation"), TermReport(path).open(done=0):
        raise UserError("no translation is possible")
    assert path.read_text() == HEADER + "1\tdog\tHund\tused\n"
    with TermReport(path).open(done=0):
        pass
    assert path.read_text() == HEADER


def test_a_report_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "report.tsv"
    first = TermReport(path)
    with first.open(done=0):
        with pytest.raises(UserError, match="is being written by another process"), TermReport(path).open(done=0):
            raise AssertionError
        first.add("1\tdog\tHund\tused\n")
    assert path.read_text() == HEADER + "1\tdog\tHund\tused\n"


@pytest.mark.parametrize("text", ["a text\n", "\na text\n"])
def test_another_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "text"
    path.write_text(text)
    with pytest.raises(UserError, match="is not a glossary report"):
        TermReport(path)
    assert path.read_text() == text


def test_a_report_is_not_compressed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"terms.tsv.gz: a glossary report cannot be compressed; leave out .gz"):
        TermReport(tmp_path / "terms.tsv.gz")


def test_a_named_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe, received = tmp_path / "terms", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with TermReport(pipe).open(done=0):
        pass
    reader.join(timeout=60)
    assert received == [HEADER.encode()] and pipe.is_fifo()


def test_a_resumed_command_does_not_read_a_named_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "terms"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with TermReport(pipe).open(done=2):
        pass
    assert os.read(reader, 1000) == HEADER.encode()
    os.close(reader)
