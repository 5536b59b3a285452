"""Incomplete outputs: renamed when complete, resumed only with the same origin and input."""

import errno
import gzip
import json
import multiprocessing
import os
from collections.abc import Iterator
from io import FileIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest

from nmt import UserError
from nmt.errors import CommandError
from nmt.streams import part as part_module
from nmt.streams.part import InputDigest, Mark, Origin, PartFile, journal_path, open_part, part_path
from nmt.streams.records import Record

LINES = [f"line {number} ü{'x' * (number % 50)}\n" for number in range(1, 301)]
DIGEST = "a" * 64
ORIGIN = Origin({"model": DIGEST, "decode.beam_size": 4}, {DIGEST: "runs/mine"}, "in.txt")


@pytest.fixture(autouse=True)
def mark_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "SECONDS_BETWEEN_MARKS", 0.0)


def write(part: PartFile, end: int = len(LINES), *, together: int = 10) -> None:
    for start in range(part.start.records, end, together):
        stop = min(start + together, end)
        part.write("".join(LINES[start:stop]), stop, f"digest of {stop}")


def interrupt(path: Path, end: int = len(LINES)) -> None:
    """Write lines up to `end` and interrupt."""
    with pytest.raises(KeyboardInterrupt), open_part(path, ORIGIN, restart=True) as part:
        write(part, end)
        raise KeyboardInterrupt


def shorten(path: Path, size: int) -> None:
    """Reduce the part and its journal to what a process that was killed after `size` bytes would leave."""
    part = part_path(path)
    os.truncate(part, size)
    journal = journal_path(part)
    origin, *marks = journal.read_text().splitlines(keepends=True)
    journal.write_text(origin + "".join(mark for mark in marks if json.loads(mark)["bytes"] <= size))


def read(path: Path) -> list[str]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines(keepends=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_part_is_renamed_when_complete(tmp_path: Path, name: str) -> None:
    with open_part(tmp_path / name, ORIGIN) as part:
        part.write("one\n", 1, "")
        assert names(tmp_path) == [f"{name}.part", f"{name}.part.jsonl"]
        assert b"one" in part.path.read_bytes() or name == "out.gz", "the output can be read before it is complete"
        part.write("zwei ü\n", 2, "")
    assert names(tmp_path) == [name]
    assert read(tmp_path / name) == ["one\n", "zwei ü\n"]
    with open_part(tmp_path / name, ORIGIN):
        pass
    assert read(tmp_path / name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_resume_after_a_kill_at_any_byte(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    interrupt(path)
    whole = (tmp_path / f"{name}.part").stat().st_size
    starts = []
    for size in [0, 1, 5, 17, *range(30, whole, whole // 12), whole - 1, whole]:
        interrupt(path)
        shorten(path, size)
        with open_part(path, ORIGIN, resume=True) as part:
            starts.append(part.start.records)
            assert part.start.bytes <= size and part.path.stat().st_size == part.start.bytes
            assert part.start.sha256 == (f"digest of {part.start.records}" if starts[-1] else "")
            write(part)
        assert read(path) == LINES
        assert names(tmp_path) == [name]
    assert starts == sorted(starts) and starts[-1] == len(LINES) and len(set(starts)) > 8


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_an_output_is_complete_after_several_interruptions(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for end in (50, 100, 150):
        with pytest.raises(KeyboardInterrupt), open_part(path, ORIGIN, resume=True) as part:
            assert part.start.records == end - 50
            write(part, end)
            raise KeyboardInterrupt
        with (tmp_path / f"{name}.part.jsonl").open("ab") as journal:
            journal.write(b'{"records": 999')  # an incomplete mark
    with open_part(path, ORIGIN, resume=True) as part:
        write(part)
    assert read(path) == LINES


def test_marks_before_a_damaged_one_are_valid(tmp_path: Path) -> None:
    interrupt(tmp_path / "out", 100)
    journal = journal_path(part_path(tmp_path / "out"))
    origin, *marks = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([origin, *marks[:4], marks[4][:9], *marks[5:]]))
    with open_part(tmp_path / "out", ORIGIN, resume=True) as part:
        assert part.start.records == 40
        write(part)
    assert read(tmp_path / "out") == LINES


def test_a_full_disk_leaves_no_empty_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(part_module, "_append_line", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(UserError, match="the disk is full"), open_part(tmp_path / "out", ORIGIN):
            pass
    assert names(tmp_path) == []


def test_a_mark_that_a_full_disk_cuts_off_is_removed(tmp_path: Path) -> None:
    class FullDisk(FileIO):
        def write(self, content: Any) -> int:
            if self.tell() > 150:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(memoryview(content)[:9])

    with FullDisk(tmp_path / "journal", "a+") as journal:
        part_module._append_line(journal, {"text": "x" * 100})
        complete = (tmp_path / "journal").read_bytes()
        with pytest.raises(OSError, match="No space left"):
            part_module._append_line(journal, {"text": "y" * 100})
    assert (tmp_path / "journal").read_bytes() == complete == b'{"text": "%s"}\n' % (b"x" * 100)


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_killed_process_resumes_at_the_last_mark_and_interrupted_one_at_its_end(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "SECONDS_BETWEEN_MARKS", 1e9)
    path = tmp_path / name
    with open_part(path, ORIGIN) as part:
        write(part, 100)
        journal = (tmp_path / f"{name}.part.jsonl").read_text()
        assert [json.loads(line)["records"] for line in journal.splitlines()[1:]] == [10]
        content = part.path.read_bytes()
    (tmp_path / f"{name}.part").write_bytes(content)  # as if the process had been killed here
    (tmp_path / f"{name}.part.jsonl").write_text(journal)
    with open_part(path, ORIGIN, resume=True) as part:
        assert part.start.records == 10
        write(part)
    assert read(path) == LINES
    interrupt(path, 100)
    with open_part(path, ORIGIN, resume=True) as part:
        assert part.start.records == 100


def test_part_without_a_mark_is_removed(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt, UserError):
        with pytest.raises(error), open_part(tmp_path / "out", ORIGIN):
            raise error
    assert names(tmp_path) == []


# --- Conditions for resuming ------------------------------------------------------------------------------------------


def refusal(path: Path, origin: Origin = ORIGIN, *, resume: bool = False) -> str:
    """Return the error of opening a part, which must not change any file."""
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    with pytest.raises(CommandError) as caught, open_part(path, origin, resume=resume):
        pytest.fail("the part must not be opened")
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before
    return str(caught.value).replace(f"{path.parent}/", "")


def test_existing_part_is_not_overwritten(tmp_path: Path) -> None:
    interrupt(tmp_path / "out", 20)
    assert refusal(tmp_path / "out") == (
        "out.part has 20 lines from an interrupted command; it is not overwritten; use --resume to continue, or "
        "--restart to start over"
    )
    with open_part(tmp_path / "out", ORIGIN, restart=True) as part:
        assert part.start == Mark()
        write(part)
    assert read(tmp_path / "out") == LINES


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_changed_part_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    interrupt(path, 30)
    part = part_path(path)
    content = part.read_bytes()
    for changed in (content[:5] + b"?" + content[6:], b"new\n" + content):
        part.write_bytes(changed)
        with pytest.raises(CommandError, match=r"was changed after .* wrote it"), open_part(path, ORIGIN, resume=True):
            pass
        assert part.read_bytes() == changed
    part.write_bytes(content)
    with pytest.raises(KeyboardInterrupt), open_part(path, ORIGIN, resume=True) as resumed:
        write(resumed, 40)
        raise KeyboardInterrupt
    with open_part(path, ORIGIN, resume=True) as resumed:
        assert resumed.start.records == 40
        write(resumed)
    assert read(path) == LINES


@pytest.mark.parametrize("name", ["out", "out.gz"])
@pytest.mark.parametrize("end", [10, 30])  # one mark, and three
def test_shortened_part_is_an_error(tmp_path: Path, name: str, end: int) -> None:
    path = tmp_path / name
    interrupt(path, end)
    whole = part_path(path).stat().st_size
    for size in (whole - 1, 5, 0):
        os.truncate(part_path(path), size)
        for resume in (False, True):
            assert refusal(path, resume=resume) == (
                f"{name}.part was changed after an interrupted command wrote it; it must be unchanged to resume; save "
                "a copy if you need it, and use --restart to start over"
            )
    with open_part(path, ORIGIN, restart=True) as part:
        write(part)
    assert read(path) == LINES


def test_a_kill_after_the_part_is_renamed_starts_over(tmp_path: Path) -> None:
    for resume in (False, True):
        interrupt(tmp_path / "out", 10)
        part_path(tmp_path / "out").replace(tmp_path / "out")
        with open_part(tmp_path / "out", ORIGIN, resume=resume) as part:
            assert part.start == Mark()
            write(part, 20)
        assert read(tmp_path / "out") == LINES[:20]
        assert names(tmp_path) == ["out"]


def test_different_origin_is_an_error(tmp_path: Path) -> None:
    interrupt(tmp_path / "out", 20)
    other = "b" * 64
    for origin, expected in (
        (
            Origin({"model": other, "decode.beam_size": 4}, {other: "runs/other"}),
            "model was runs/mine (SHA-256 aaaaaaaaaaaa) and is runs/other (SHA-256 bbbbbbbbbbbb)",
        ),
        (Origin({"model": DIGEST, "decode.beam_size": 5}), "decode.beam_size was 4 and is 5"),
        (Origin({"model": DIGEST, "new": "x"}), 'new was null and is "x"; decode.beam_size was 4 and is null'),
    ):
        assert refusal(tmp_path / "out", origin, resume=True) == (
            f"out.part was made with other settings: {expected}; --resume needs the same settings; restore them, or "
            "use --restart to start over"
        )
    with open_part(tmp_path / "out", Origin(ORIGIN.settings, {DIGEST: "elsewhere"}), resume=True) as part:
        assert part.start.records == 20, "the path of the model may differ"


def test_an_undecodable_file_name_in_the_origin_can_be_resumed(tmp_path: Path) -> None:
    origin = Origin({"glossary-report": os.fsdecode(b"report-\xff.tsv")})
    with pytest.raises(KeyboardInterrupt), open_part(tmp_path / "out", origin) as part:
        write(part, 20)
        raise KeyboardInterrupt
    with open_part(tmp_path / "out", origin, resume=True) as part:
        assert part.start.records == 20


@pytest.mark.parametrize("journal", [None, b"", b"\xff\n", b"[]\n", b'{"format": 9}\n', b'{"format": 1, "x": 2}\n'])
def test_part_without_journal_is_an_error(tmp_path: Path, journal: bytes | None) -> None:
    (tmp_path / "out.part").write_text("text\n")
    if journal is not None:
        (tmp_path / "out.part.jsonl").write_bytes(journal)
    for resume in (False, True):
        with (
            pytest.raises(CommandError, match=r"out\.part has no valid journal; .* --restart"),
            open_part(tmp_path / "out", ORIGIN, resume=resume),
        ):
            pytest.fail("the part must not be opened")
        assert (tmp_path / "out.part").read_text() == "text\n"


def digest(*records: Record) -> InputDigest:
    found = InputDigest()
    found.add(records)
    return found


def test_changed_input_is_an_error(tmp_path: Path) -> None:
    first, second = Record(1, "a", "a"), Record(2, "b", "b", "pre", ("x", "y"))
    with pytest.raises(KeyboardInterrupt), open_part(tmp_path / "out", ORIGIN) as part:
        part.write("A\nB\n", 2, digest(first, second).hexdigest())
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), open_part(tmp_path / "out", ORIGIN, resume=True) as part:
        part.check_input(digest(first, second), "same.txt")
        for other in (Record(2, "c", "c", "pre", ("x", "y")), Record(2, "b", "b"), Record(2, "b", "b", "pre", ("xy",))):
            with pytest.raises(
                CommandError, match=r"in2 does not start with the 2 lines that .*out\.part was made from"
            ):
                part.check_input(digest(first, other), "in2")
        with pytest.raises(CommandError, match=r"in2 has 1 line; .*out\.part has translations of 2 \(in\.txt\)"):
            part.check_input(digest(first), "in2")
        raise KeyboardInterrupt


def hold(path: Path, connection: "multiprocessing.connection.Connection") -> None:
    with open_part(path, ORIGIN) as part:
        part.write("one\n", 1, "")
        connection.send("open")
        connection.recv()
        os._exit(9)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[BaseProcess]:
    """A process that has opened the part and waits."""
    context = multiprocessing.get_context("fork")
    own, other = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path / "out", other))
    process.start()
    other.close()  # otherwise, `recv` would wait forever for a process that has failed
    own.recv()
    yield process
    process.kill()
    process.join()


def test_part_is_locked(tmp_path: Path, holder: BaseProcess) -> None:
    for options in ({"resume": True}, {"restart": True}, {}):
        with (
            pytest.raises(UserError, match=r"out\.part is being written by another process"),
            open_part(tmp_path / "out", ORIGIN, **options),
        ):
            pytest.fail("the part must not be opened")
    holder.kill()
    holder.join()
    with open_part(tmp_path / "out", ORIGIN, resume=True) as part:
        assert part.start.records == 1


def test_a_part_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_path(tmp_path / "out.txt")

    def cannot_lock(_: FileIO) -> bool:
        journal_path(part).unlink()  # files are not visible before they are closed
        return False

    monkeypatch.setattr(part_module, "lock", cannot_lock)
    with part_module._open_journal(part) as file:
        assert not file.closed


def test_a_file_with_the_name_of_a_journal_is_kept(tmp_path: Path) -> None:
    other = tmp_path / "out.part.jsonl"
    other.write_text('{"translation": "Hallo"}\n')
    for options in ({}, {"resume": True}, {"restart": True}):
        with (
            pytest.raises(CommandError, match=r"out\.part\.jsonl is not a journal; the journal of the output"),
            open_part(tmp_path / "out", ORIGIN, **options),
        ):
            pytest.fail("the part must not be opened")
    assert other.read_text() == '{"translation": "Hallo"}\n'
    for start in (b"", b'{"form', b'{"format": 1, "fac'):  # journals of a killed command
        other.write_bytes(start)
        with open_part(tmp_path / "out", ORIGIN):
            pass
        assert not other.exists()


@pytest.mark.parametrize("name", ["out.part", "out.part.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_a_part_that_is_not_a_regular_file_is_kept(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "mine").touch()
    match kind:
        case "pipe":
            os.mkfifo(tmp_path / name)
        case "link":
            (tmp_path / name).symlink_to(tmp_path / "mine")
        case _:
            (tmp_path / name).mkdir()
    for restart in (False, True):
        with (
            pytest.raises(CommandError, match=f"{name} is not a regular file; .*; move it, or choose another output"),
            open_part(tmp_path / "out", ORIGIN, restart=restart),
        ):
            pytest.fail("the part must not be opened")
    assert names(tmp_path) == ["mine", name]


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_restart_keeps_the_part_until_the_first_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    interrupt(path, 20)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt), open_part(path, Origin({"model": "other"}), restart=True):
        raise KeyboardInterrupt
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
    with open_part(path, ORIGIN, resume=True) as part:
        write(part)
    assert read(path) == LINES


def test_restart_keeps_a_file_of_another_program_until_the_first_text(tmp_path: Path) -> None:
    (tmp_path / "out.part").write_text("notes\n")
    with pytest.raises(KeyboardInterrupt), open_part(tmp_path / "out", ORIGIN, restart=True):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out.part"] and (tmp_path / "out.part").read_text() == "notes\n"


def test_a_gzip_member_without_an_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the member ends."""
    monkeypatch.setattr(part_module, "SECONDS_BETWEEN_MARKS", 1e9)

    def fail(content: bytes) -> None:
        raise UserError("the disk is full")

    for has_mark in (False, True):
        with pytest.raises(UserError, match="the disk is full"), open_part(tmp_path / "out.gz", ORIGIN) as part:
            part._last_mark = monotonic()
            write(part, 20)
            if has_mark:
                part.mark()
                part.write("".join(LINES[20:30]), 30, "digest of 30")
            monkeypatch.setattr(part._sink, "_write_bytes", fail)
        assert names(tmp_path) == (["out.gz.part", "out.gz.part.jsonl"] if has_mark else [])
    with open_part(tmp_path / "out.gz", ORIGIN, resume=True) as part:
        assert part.start.records == 20
        write(part)
    assert read(tmp_path / "out.gz") == LINES


def test_restart_without_text_replaces_the_part(tmp_path: Path) -> None:
    interrupt(tmp_path / "out", 20)
    with open_part(tmp_path / "out", ORIGIN, restart=True):
        pass
    assert names(tmp_path) == ["out"] and read(tmp_path / "out") == []
