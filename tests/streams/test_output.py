"""Outputs: files, pipes, devices and links, and outputs that would overwrite an input."""

import errno
import gzip
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt import UserError
from nmt.storage.sealed import write_file
from nmt.streams.output import Output
from nmt.streams.output_checks import require_distinct, require_not_input
from nmt.streams.part import Origin

ORIGIN = Origin({"model": "m"})


def write(output: Output, text: str) -> None:
    with output.open(ORIGIN) as sink:
        sink.write(text, 1, "")


def test_unwritable_outputs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*none/out.*;"):
        write(Output(tmp_path / "none" / "out"), "x\n")
    with pytest.raises(UserError, match=r"cannot write .*out\.xz: only \.gz"):
        Output(tmp_path / "out.xz")
    with pytest.raises(UserError, match=r"cannot write .*out\.BZ2: only \.gz"):
        Output(tmp_path / "out.BZ2")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_earlier_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_text("earlier\n")

    def full(descriptor: int) -> None:
        part = tmp_path / "out.part"
        if part.exists() and os.path.samestat(os.fstat(descriptor), part.stat()):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"the disk is full while writing .*out"):
        write(Output(tmp_path / "out"), "x\n")
    assert (tmp_path / "out").read_text() == "earlier\n"


def test_streams_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"standard output;.*;"):
        Output(Path("-")).require_resumable("text", resume=True, restart=False)
    with pytest.raises(UserError, match="must be a regular file"):
        Output(Path("/dev/null")).require_resumable("text", resume=True, restart=False)
    Output(tmp_path / "new").require_resumable("text", resume=True, restart=False)


def test_finished_records_are_counted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert Output(out).count_finished() is None
    out.write_text("1\t-1\ta\n1\t-2\tb\n2\t-1\tc\n")
    assert Output(out).count_finished() == 3
    assert Output(out, header="text\n").count_finished() == 2
    assert Output(out, is_numbered=True).count_finished() == 2
    out.write_text("0 ||| a ||| LogProb= -1.0 ||| -1.0\n1 ||| b ||| LogProb= -1.0 ||| -1.0\n")
    assert Output(out, is_numbered=True).count_finished() == 2
    (tmp_path / "out.part").touch()
    assert Output(out).count_finished() is None


# --- Pipes, devices and links -----------------------------------------------------------------------------------------


def read_in_thread(path: Path) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("name", ["out.gz", "out.GZ"])
def test_the_name_determines_the_compression(tmp_path: Path, name: str) -> None:
    write(Output(tmp_path / name), "x\n")
    assert gzip.decompress((tmp_path / name).read_bytes()) == b"x\n"


@pytest.mark.parametrize("name", ["pipe", "pipe.gz"])
def test_named_pipe_is_written_in_place(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    thread, found = read_in_thread(pipe)
    write(Output(pipe), "one\n")
    thread.join(60)
    assert (gzip.decompress(found[0]) if name.endswith("gz") else found[0]) == b"one\n"
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(UserError, match="must be a regular file"):
        Output(pipe).require_resumable("text", resume=True, restart=False)


def test_device_is_written_in_place(tmp_path: Path) -> None:
    device = Path("/dev/full")
    before = device.stat()
    with pytest.raises(UserError, match="the disk is full while writing /dev/full"):
        write(Output(device), "one\n")
    assert device.stat().st_rdev == before.st_rdev and not device.is_file()
    write(Output(Path("/dev/null")), "one\n")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UserError, match="disk is full"):
        write_file(device, b"text")
    write_file(Path("/dev/null"), b"text")
    assert device.is_char_device() and Path("/dev/null").is_char_device()


@pytest.mark.parametrize("exists", [True, False])
def test_target_of_a_symbolic_link_is_replaced(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "target.txt", tmp_path / "link.txt"
    if exists:
        target.write_text("before")
    link.symlink_to(target)
    output = Output(link)
    with output.open(ORIGIN) as sink:
        sink.write("one\n", 1, "")
        assert output.part == target.with_name("target.txt.part")
    assert link.is_symlink() and target.read_text() == "one\n"
    write_file(link, b"two")
    assert link.is_symlink() and target.read_text() == "two"
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["target.txt"]


@pytest.mark.parametrize("name", ["itself", "first", "itself/out"])
def test_loop_of_symbolic_links_as_output_is_an_error(tmp_path: Path, name: str) -> None:
    for link, target in (("itself", "itself"), ("first", "second"), ("second", "first")):
        (tmp_path / link).symlink_to(target)
    expected = r"^cannot write .*: its symbolic link loops; it must lead to a file; remove the link, or choose another "
    with pytest.raises(UserError, match=expected):
        Output(tmp_path / name)
    with pytest.raises(UserError, match=expected):
        write_file(tmp_path / name, b"text")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_symlink()) == ["first", "itself", "second"]


def test_directory_as_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory"), Output(tmp_path).open(ORIGIN):
        pass
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()


def test_output_that_is_an_input_is_an_error(tmp_path: Path) -> None:
    text, link = tmp_path / "text", tmp_path / "link"
    text.write_text("one\n")
    link.symlink_to(text)
    for out in (text, link, tmp_path / "." / "text"):
        with pytest.raises(UserError, match=r"is the input .*; it must be another file"):
            require_not_input("-o", out, [None, text])
    require_not_input("-o", tmp_path / "new", [None, text])
    require_not_input("-o", Path("-"), [text])


@contextmanager
def redirected(file: int, *descriptors: int) -> Iterator[None]:
    """Redirect standard streams of this process to an open file inside a `with` block."""
    saved = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    try:
        for descriptor in descriptors:
            os.dup2(file, descriptor)
        yield
    finally:
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)


def test_output_that_is_standard_input_is_an_error(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    for path in (text, other):
        path.write_text("keep me\n")
    with text.open() as file, redirected(file.fileno(), 0):
        with pytest.raises(UserError, match=r"^-o .*text is the input standard input; it must be another file; "):
            require_not_input("-o", text, [Path("-")])
        require_not_input("-o", other, [Path("-")])


def test_one_pipe_as_input_and_output_is_an_error(tmp_path: Path) -> None:
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    for path in (pipe, other):
        os.mkfifo(path)
    (tmp_path / "link").symlink_to(pipe)
    for name in (pipe, tmp_path / "link"):
        with pytest.raises(UserError, match=r"^-o .* is the input .*pipe; it must be another file; choose a new one$"):
            require_not_input("-o", name, [None, pipe])
    require_not_input("-o", other, [pipe])
    require_not_input("-o", Path("/dev/null"), [Path("/dev/null")])


def test_only_a_pipe_is_an_error_as_both_standard_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    controller, terminal = os.openpty()
    ends = socket.socketpair()
    pipe, null = (os.open(path, os.O_RDWR) for path in (tmp_path / "pipe", os.devnull))
    for descriptor in (null, terminal, ends[0].fileno(), pipe):
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=partial(int, descriptor)))
        with redirected(descriptor, 0):
            if descriptor != pipe:
                require_not_input("-o", Path("-"), [Path("-")])
                continue
            with pytest.raises(UserError, match=r"^standard output is the input standard input; it must"):
                require_not_input("-o", Path("-"), [Path("-")])
    for descriptor in (pipe, null, controller, terminal):
        os.close(descriptor)
    for end in ends:
        end.close()


def test_standard_output_that_is_an_input_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("keep me\n")
    with text.open("a") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(UserError, match=r"^standard output is the input .*text; it must be another file; "):
            require_not_input("-o", Path("-"), [text])
    with other.open("a") as file:
        monkeypatch.setattr(sys, "stdout", file)
        require_not_input("-o", Path("-"), [text])
    monkeypatch.setattr(sys, "stdout", None)  # closed
    require_not_input("-o", Path("-"), [text])


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/dev/fd/2", "/dev/stderr", "/proc/self/fd/2", "link"])
def test_writing_to_the_name_of_a_descriptor_appends(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").write_text("keep\n")
    Path("link").symlink_to("/dev/stdout")
    with Path("log").open("a") as file, redirected(file.fileno(), 1, 2):
        monkeypatch.setattr(sys, "stdout", file)
        write(Output(Path(name)), "more\n")
    assert Path("log").read_text() == "keep\nmore\n"


def test_a_loop_of_links_is_a_distinct_path(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    require_distinct({"-o": tmp_path / "a", "--memory": tmp_path / "c"})


def test_output_has_the_permissions_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("before")
    private.chmod(0o600)
    write_file(private, b"two")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    output = Output(private)
    with output.open(ORIGIN) as sink:
        assert stat.S_IMODE(output.part.stat().st_mode) == 0o600
        sink.write("one\n", 1, "")
    assert (stat.S_IMODE(private.stat().st_mode), private.read_text()) == (0o600, "one\n")
