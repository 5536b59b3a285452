"""Output that takes its name when it is whole, and that an interrupted call can go on with, wherever it was cut."""

import gzip
import os
import threading
from pathlib import Path

import pytest

from nmt import UserError
from nmt.cli.output import Output
from nmt.storage.sealed import write_file

LINES = [f"line {number} ü{'x' * (number % 50)}\n" for number in range(1, 301)]


def interrupt(output: Output, size: int | None = None, lines: list[str] = LINES) -> bytes:
    """Write lines, ten at a time, and be interrupted; of the unfinished file only the first bytes reach the disk."""
    with pytest.raises(KeyboardInterrupt), output.open() as sink:
        for start in range(0, len(lines), 10):
            sink.write("".join(lines[start : start + 10]))
        raise KeyboardInterrupt
    assert not output.path.exists()
    if size is not None:
        os.truncate(output.unfinished, size)
    return output.unfinished.read_bytes()


def read(path: Path) -> list[str]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines(keepends=True)


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path, name: str) -> None:
    output = Output(tmp_path / name)
    with output.open() as sink:
        sink.write("one\n")
        assert [path.name for path in tmp_path.iterdir()] == [f"{name}.part"]
        assert output.records_done() == 1, "what was written can be read at once"
        sink.write("zwei ü\n")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert read(tmp_path / name) == ["one\n", "zwei ü\n"]
    with output.open():
        pass
    assert read(tmp_path / name) == []


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_an_interrupted_file_is_gone_on_with_wherever_it_was_cut(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.cli.output._MEMBER_BYTES", 1500)  # so that there are several members
    output = Output(tmp_path / name)
    whole = len(interrupt(output))
    most = 0
    for size in [0, 1, 5, 17, *range(30, whole, max(97, whole // 25)), whole]:
        interrupt(output, size)
        done = output.records_done()
        assert most <= done <= len(LINES)
        most = done
        for kept in {0, min(1, done), done // 2, max(done - 3, 0), done}:
            interrupt(output, size)
            output.cut(kept)
            assert output.records_done() == kept
            with output.open(append=True) as sink:
                sink.write("".join(LINES[kept:200]))
                sink.write("".join(LINES[max(kept, 200) :]))
            assert read(tmp_path / name) == LINES
            output.path.unlink()
    assert most == len(LINES)


def test_compressed_members_are_read_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.cli.output._MEMBER_BYTES", 500)
    with Output(tmp_path / "out.gz").open() as sink:
        for line in LINES:
            sink.write(line)
    content = (tmp_path / "out.gz").read_bytes()
    assert content.count(b"\x1f\x8b\x08") > 10
    with gzip.open(tmp_path / "out.gz", "rt", encoding="utf-8") as file:
        assert list(file) == LINES


def test_records_of_several_lines_are_counted_by_their_numbers(tmp_path: Path) -> None:
    output = Output(tmp_path / "out", n_best=2)
    lines = ["1\t-1\ta\n", "1\t-2\tb\n", "2\t0\t\n", "3\t-1\tc\n", "3\t-2\td\n"]
    for size, done in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 3)):
        interrupt(output, lines=lines[:size])
        assert output.records_done() == done
        output.cut(done)
        assert output.unfinished.read_text() == "".join(line for line in lines if int(line[0]) <= done)
    interrupt(output, lines=["no number\n"])
    with pytest.raises(UserError, match=r"out\.part has a line without number;.*;"):
        output.records_done()


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    output = Output(tmp_path / "out")
    assert output.records_done() == 0
    output.cut(0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"standard output;.*;"):
        Output(Path("-")).records_done()


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*none/out.*;"), Output(tmp_path / "none" / "out").open():
        pass
    with pytest.raises(UserError, match=r"out\.xz cannot be written;.*\.gz"):
        Output(tmp_path / "out.xz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot write"), Output(tmp_path / "folder").open() as sink:
        sink.write("x\n")
    if Path("/dev/full").exists():
        (tmp_path / "full.part").symlink_to("/dev/full")
        with pytest.raises(UserError, match=r"cannot write .*full"), Output(tmp_path / "full").open() as sink:
            sink.write("x\n")


# --- What is no plain file --------------------------------------------------------------------------------------------


def read_in_thread(path: Path) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("name", ["pipe", "pipe.gz"])
def test_a_named_pipe_is_written_through_and_stays(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    thread, found = read_in_thread(pipe)
    with Output(pipe).open() as sink:
        sink.write("one\n")
    thread.join(20)
    assert (gzip.decompress(found[0]) if name.endswith("gz") else found[0]) == b"one\n"
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(UserError, match="no plain file"):
        Output(pipe).records_done()


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    device = Path("/dev/full")
    before = device.stat()
    with pytest.raises(UserError, match="No space left"), Output(device).open() as sink:
        sink.write("one\n")
    assert device.stat().st_rdev == before.st_rdev and not device.is_file()
    with Output(Path("/dev/null")).open() as sink:
        sink.write("one\n")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UserError, match="disk is full"):
        write_file(device, b"text")
    write_file(Path("/dev/null"), b"text")
    assert device.is_char_device() and Path("/dev/null").is_char_device()


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "target.txt", tmp_path / "link.txt"
    if exists:
        target.write_text("before")
    link.symlink_to(target)
    output = Output(link)
    with output.open() as sink:
        sink.write("one\n")
        assert output.unfinished == target.with_name("target.txt.part")
    assert link.is_symlink() and target.read_text() == "one\n"
    write_file(link, b"two")
    assert link.is_symlink() and target.read_text() == "two"
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["target.txt"]


def test_a_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory"), Output(tmp_path).open():
        pass
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()


def test_an_input_is_never_the_output(tmp_path: Path) -> None:
    text, link = tmp_path / "text", tmp_path / "link"
    text.write_text("one\n")
    link.symlink_to(text)
    for out in (text, link, tmp_path / "." / "text"):
        with pytest.raises(UserError, match=r"is the input .*; it must be another file"):
            Output(out).require_other_than([None, text])
    Output(tmp_path / "new").require_other_than([None, text])
    Output(Path("-")).require_other_than([text])
