"""An unfinished output: it takes its name when it is whole, and only what made it can go on with it."""

import gzip
import json
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from nmt import UserError
from nmt.recipe import CommandError
from nmt.streams import part as part_module
from nmt.streams.part import InputDigest, Mark, Origin, Part, open_part
from nmt.streams.records import Record

LINES = [f"line {number} ü{'x' * (number % 50)}\n" for number in range(1, 301)]
DIGEST = "a" * 64
ORIGIN = Origin({"model": DIGEST, "decode.beam_size": 4}, {DIGEST: "runs/mine"}, "in.txt")


@pytest.fixture(autouse=True)
def marks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "SECONDS_BETWEEN_MARKS", 0.0)


def write(part: Part, end: int = len(LINES), *, together: int = 10) -> None:
    for start in range(part.start.records, end, together):
        stop = min(start + together, end)
        part.write("".join(LINES[start:stop]), stop, f"digest of {stop}")


def interrupt(path: Path, end: int = len(LINES), size: int | None = None) -> None:
    """Write lines and be interrupted; of the part only the first bytes reach the disk."""
    with pytest.raises(KeyboardInterrupt), open_part(path, ORIGIN, restart=True) as part:
        write(part, end)
        raise KeyboardInterrupt
    if size is not None:
        os.truncate(part.path, size)


def read(path: Path) -> list[str]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines(keepends=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path, name: str) -> None:
    with open_part(tmp_path / name, ORIGIN) as part:
        part.write("one\n", 1, "")
        assert names(tmp_path) == [f"{name}.part", f"{name}.part.jsonl"]
        assert b"one" in part.path.read_bytes() or name == "out.gz", "what was written can be read at once"
        part.write("zwei ü\n", 2, "")
    assert names(tmp_path) == [name]
    assert read(tmp_path / name) == ["one\n", "zwei ü\n"]
    with open_part(tmp_path / name, ORIGIN):
        pass
    assert read(tmp_path / name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_an_interrupted_file_is_gone_on_with_wherever_it_was_cut(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    interrupt(path)
    whole = (tmp_path / f"{name}.part").stat().st_size
    starts = []
    for size in [0, 1, 5, 17, *range(30, whole, whole // 12), whole - 1, whole]:
        interrupt(path, size=size)
        with open_part(path, ORIGIN, resume=True) as part:
            starts.append(part.start.records)
            assert part.start.bytes <= size and part.path.stat().st_size == part.start.bytes
            assert part.start.sha256 == (f"digest of {part.start.records}" if starts[-1] else "")
            write(part)
        assert read(path) == LINES
        assert names(tmp_path) == [name]
    assert starts == sorted(starts) and starts[-1] == len(LINES) and len(set(starts)) > 8


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_it_can_be_interrupted_again_and_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for end in (50, 100, 150):
        with pytest.raises(KeyboardInterrupt), open_part(path, ORIGIN, resume=True) as part:
            assert part.start.records == end - 50
            write(part, end)
            raise KeyboardInterrupt
        with (tmp_path / f"{name}.part.jsonl").open("ab") as record:
            record.write(b'{"records": 999')  # a mark that was cut short
    with open_part(path, ORIGIN, resume=True) as part:
        write(part)
    assert read(path) == LINES


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_between_marks_a_killed_process_loses_little_and_an_interrupted_one_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "SECONDS_BETWEEN_MARKS", 1e9)
    path = tmp_path / name
    with open_part(path, ORIGIN) as part:
        write(part, 100)
        record = (tmp_path / f"{name}.part.jsonl").read_text().splitlines()
        assert [json.loads(line)["records"] for line in record[1:]] == [10]
        content = part.path.read_bytes()
    (tmp_path / f"{name}.part").write_bytes(content)  # as if it had been killed there
    (tmp_path / f"{name}.part.jsonl").write_text("".join(f"{line}\n" for line in record))
    with open_part(path, ORIGIN, resume=True) as part:
        assert part.start.records == 10
        write(part)
    assert read(path) == LINES
    interrupt(path, 100)
    with open_part(path, ORIGIN, resume=True) as part:
        assert part.start.records == 100


def test_without_a_mark_nothing_is_left(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt, UserError):
        with pytest.raises(error), open_part(tmp_path / "out", ORIGIN):
            raise error
    assert names(tmp_path) == []


# --- What may go on ---------------------------------------------------------------------------------------------------


def refusal(path: Path, origin: Origin = ORIGIN, *, resume: bool = False) -> str:
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    with pytest.raises(CommandError) as caught, open_part(path, origin, resume=resume):
        pytest.fail("it must be refused")
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before
    return str(caught.value).replace(f"{path.parent}/", "")


def test_a_part_is_not_overwritten_in_silence(tmp_path: Path) -> None:
    interrupt(tmp_path / "out", 20)
    assert refusal(tmp_path / "out") == (
        "out.part holds 20 lines that an interrupted call has translated; it is not overwritten; give --resume to "
        "continue, or --restart to start over"
    )
    with open_part(tmp_path / "out", ORIGIN, restart=True) as part:
        assert part.start == Mark()
        write(part)
    assert read(tmp_path / "out") == LINES


def test_a_part_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
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
            f"out.part was made otherwise: {expected}; --resume needs the same; give the same, or --restart to start "
            "over"
        )
    with open_part(tmp_path / "out", Origin(ORIGIN.facts, {DIGEST: "elsewhere"}), resume=True) as part:
        assert part.start.records == 20, "where the same model lies does not matter"


@pytest.mark.parametrize("record", [None, b"", b"\xff\n", b"[]\n", b'{"format": 9}\n', b'{"format": 1, "x": 2}\n'])
def test_a_part_without_record_is_refused(tmp_path: Path, record: bytes | None) -> None:
    (tmp_path / "out.part").write_text("who knows\n")
    if record is not None:
        (tmp_path / "out.part.jsonl").write_bytes(record)
    for resume in (False, True):
        with (
            pytest.raises(CommandError, match=r"out\.part has no record of what made it; .* --restart"),
            open_part(tmp_path / "out", ORIGIN, resume=resume),
        ):
            pytest.fail("it must be refused")
        assert (tmp_path / "out.part").read_text() == "who knows\n"


def digest(*records: Record) -> InputDigest:
    found = InputDigest()
    found.add(records)
    return found


def test_the_input_must_be_the_same_as_far_as_it_was_read(tmp_path: Path) -> None:
    first, second = Record(1, "a", "a"), Record(2, "b", "b", "pre", ("x", "y"))
    with pytest.raises(KeyboardInterrupt), open_part(tmp_path / "out", ORIGIN) as part:
        part.write("A\nB\n", 2, digest(first, second).hexdigest())
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), open_part(tmp_path / "out", ORIGIN, resume=True) as part:
        part.check_input(digest(first, second), "same.txt")
        for other in (Record(2, "c", "c", "pre", ("x", "y")), Record(2, "b", "b"), Record(2, "b", "b", "pre", ("xy",))):
            with pytest.raises(
                CommandError, match=r"the first 2 lines of in2 are not those that .*out\.part was made of"
            ):
                part.check_input(digest(first, other), "in2")
        with pytest.raises(CommandError, match=r"in2 has 1 lines; .*out\.part holds translations of 2 \(in\.txt\)"):
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
    context = multiprocessing.get_context("fork")
    own, other = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path / "out", other))
    process.start()
    own.recv()
    yield process
    process.kill()
    process.join()


def test_one_process_at_a_time_writes_a_part(tmp_path: Path, holder: BaseProcess) -> None:
    for options in ({"resume": True}, {"restart": True}, {}):
        with (
            pytest.raises(UserError, match=r"out\.part is written by another process"),
            open_part(tmp_path / "out", ORIGIN, **options),
        ):
            pytest.fail("it must be refused")
    holder.kill()
    holder.join()
    with open_part(tmp_path / "out", ORIGIN, resume=True) as part:
        assert part.start.records == 1
