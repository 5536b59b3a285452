"""Reading files and pipes."""

import fcntl
import gzip
import lzma
import os
import resource
import threading
import time
from pathlib import Path

import pytest
import zstandard

from nmt import UserError
from nmt.streams.records import RecordReader
from nmt.streams.source import PipeLines, Source
from nmt.streams.windows import split_windows
from nmt.text import lines as lines_module
from tests.cli.nasty_lines import as_bytes, nasty_lines

TEXT = RecordReader("text")


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


def open_file(path: Path, prefixes: Path | None = None) -> Source:
    return Source.open(path, TEXT, "error", prefixes)


# --- Pipes ------------------------------------------------------------------------------------------------------------


def test_lines_of_a_pipe_end_only_at_line_feeds(pipe: tuple[int, int]) -> None:
    content = as_bytes(nasty_lines(300, num_longest=4)) + b"\n\r\n\0\xff\n" + b"no end"

    def write() -> None:
        offset = 0
        while offset < len(content):
            offset += os.write(pipe[1], content[offset : offset + 10_001])
        os.close(pipe[1])

    writer = threading.Thread(target=write)
    writer.start()
    lines = list(PipeLines(pipe[0], "pipe"))
    writer.join()
    assert b"".join(lines) == content
    assert [line.count(b"\n") for line in lines] == [1] * (len(lines) - 1) + [0]
    assert all(line.endswith(b"\n") for line in lines[:-1])


def test_wait_returns_whether_a_line_is_available(pipe: tuple[int, int]) -> None:
    lines = PipeLines(pipe[0], "pipe")
    started = time.monotonic()
    assert not lines.wait(0.05)
    assert time.monotonic() - started > 0.04
    os.write(pipe[1], b"half a ")
    assert not lines.wait(0.0)
    os.write(pipe[1], b"line\nand another\n")
    assert lines.wait(float("inf"))
    assert next(lines) == b"half a line\n"
    assert lines.wait(0.0)
    assert next(lines) == b"and another\n"
    assert not lines.wait(0.0)
    os.write(pipe[1], b"the end")
    os.close(pipe[1])
    assert lines.wait(10.0)
    assert list(lines) == [b"the end"]
    assert lines.wait(0.0)


@pytest.mark.slow
def test_pipe_limits_a_fast_writer(pipe: tuple[int, int]) -> None:
    written = 0

    def write() -> None:
        nonlocal written
        while True:
            try:
                written += os.write(pipe[1], b"some words\n" * 1000)
            except BrokenPipeError:
                return

    writer = threading.Thread(target=write)
    writer.start()
    lines = PipeLines(pipe[0], "pipe")
    found = split_windows(Source(Path("-"), TEXT, pipe=lines).records(), 100, lines.wait, delay=10.0)
    consumed = sum(len(record.line) + 1 for _ in range(500) for record in next(found))
    time.sleep(0.1)
    # The buffer of the pipe has 64 KiB; `PipeLines` reads at most 64 KiB more than a line.
    assert written - consumed < 400_000, "PipeLines buffered more than one block"
    os.close(pipe[0])
    writer.join()


def test_very_long_line_is_an_error(pipe: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.streams.source.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(lines_module, "_BLOCK_BYTES", 100)  # a line spans several blocks
    os.write(pipe[1], b"fine\n" + b"x" * 999 + b"\n" + b"x" * 5000)
    lines = PipeLines(pipe[0], "pipe")
    assert [len(next(lines)), len(next(lines))] == [5, 1000]
    assert lines.wait(0.0)
    with pytest.raises(UserError, match="pipe, line 3 is longer than"):
        next(lines)
    (tmp_path / "in").write_bytes(b"fine\n" + b"x" * 999 + b"\n" + b"x" * 5000)
    with pytest.raises(UserError, match="in, line 3 is longer than"):
        open_file(tmp_path / "in").check()


def test_unreadable_pipe_is_an_error(pipe: tuple[int, int]) -> None:
    lines = PipeLines(pipe[1], "pipe")  # the write end, which cannot be read
    os.close(pipe[0])
    with pytest.raises(UserError, match=r"cannot read pipe: .*;.*;"):
        next(lines)


def test_descriptors_above_1023_are_supported(pipe: tuple[int, int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        descriptor = fcntl.fcntl(pipe[0], fcntl.F_DUPFD, 1024)
        lines = PipeLines(descriptor, "pipe")
        assert not lines.wait(0.0)
        os.write(pipe[1], b"one\n")
        os.close(pipe[1])
        assert list(lines) == [b"one\n"]
        os.close(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_check_does_not_read_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=lambda: (tmp_path / "fifo").write_text("one\ntwo\n"))
    writer.start()
    source = open_file(tmp_path / "fifo")
    assert source.check() is None
    assert [record.text for record in source.records()] == ["one", "two"]
    writer.join()


def test_header_is_not_a_record(pipe: tuple[int, int], tmp_path: Path) -> None:
    reader = RecordReader("tsv", column="en", header=True)
    content = b"\xef\xbb\xbfid\ten\n1\tone\n2\ttwo\n3\tthree\tx\n"
    (tmp_path / "in.tsv").write_bytes(content)
    (tmp_path / "prefixes").write_text("eins\nzwei\ndrei\n")
    os.mkfifo(tmp_path / "fifo")
    threading.Thread(target=lambda: (tmp_path / "fifo").write_bytes(content), daemon=True).start()
    for path in (tmp_path / "in.tsv", tmp_path / "fifo"):
        source = Source.open(path, reader, "error", tmp_path / "prefixes")
        assert source.reader.names == ("id", "en")
        records = source.records()
        found = [next(records) for _ in range(2)]
        assert [(record.number, record.text, record.prefix) for record in found] == [
            (1, "one", "eins"),
            (2, "two", "zwei"),
        ]
        with pytest.raises(UserError, match="line 4 has 3 columns and the header has 2"):
            next(records)


# --- Files ------------------------------------------------------------------------------------------------------------


def test_compressed_files_have_the_records_of_plain_ones(tmp_path: Path) -> None:
    content = as_bytes(nasty_lines(100, num_longest=1)) + b"no end"
    (tmp_path / "in").write_bytes(content)
    (tmp_path / "in.gz").write_bytes(gzip.compress(content))
    (tmp_path / "in.xz").write_bytes(lzma.compress(content))
    (tmp_path / "in.zst").write_bytes(zstandard.ZstdCompressor().compress(content))
    plain = open_file(tmp_path / "in")
    assert plain.check() == 101
    expected = list(plain.records())
    assert [record.line for record in expected] == content.decode().removeprefix("\ufeff").split("\n")
    assert [record.number for record in expected] == list(range(1, 102))
    for ending in ("gz", "xz", "zst"):
        assert list(open_file(tmp_path / f"in.{ending}").records()) == expected


def test_check_reports_errors(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"fine\n\xff\n")
    with pytest.raises(UserError, match=r"in, line 2: byte 0xff is not UTF-8.*--invalid-utf8"):
        open_file(tmp_path / "in").check()
    replaced = Source.open(tmp_path / "in", TEXT, "replace", None)
    assert replaced.check() == 2
    assert [record.text for record in replaced.records()] == ["fine", "\ufffd"]
    with pytest.raises(UserError, match="cannot read"):
        open_file(tmp_path / "none").check()
    with pytest.raises(UserError, match="cannot read"):
        open_file(tmp_path).check()


# The letters of these alphabets are two bytes below 128, so their UTF-16 is valid UTF-8.
ENGLISH, RUSSIAN, HINDI = "A dog runs.\nTwo cats.\n", "Дождь идёт.\nПёс бежит.\n", "नमस्ते दुनिया\nकुत्ता सोता है\n"  # noqa: RUF001


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, HINDI])
def test_utf16_without_a_byte_order_mark_is_an_error(text: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match="is UTF-16; nmt reads UTF-8"):
        list(lines_module.read_lines(tmp_path / "in"))


@pytest.mark.parametrize("content", [b"a\0b\n\0\0\n" + b"text " * 50, b"0\t1\t" * 90 + b"1\n0\n1\t2", b"\n\n\x1f\n\n0"])
def test_text_may_have_a_few_control_characters_and_many_tabs_or_blank_lines(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(content)
    assert list(lines_module.read_lines(tmp_path / "in")) == content.decode().split("\n")


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, HINDI])
def test_utf32_is_an_error(tmp_path: Path, encoding: str, mark: str, text: str) -> None:
    (tmp_path / "in").write_bytes(f"{mark}{text}".encode(encoding))
    with pytest.raises(UserError, match=r"in is UTF-32; .* iconv -f UTF-32 -t UTF-8"):
        list(lines_module.read_lines(tmp_path / "in"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("invalid_utf8", ["error", "replace"])
def test_utf16_with_a_byte_order_mark_is_an_error(
    tmp_path: Path, encoding: str, invalid_utf8: lines_module.InvalidUtf8
) -> None:
    content = "\ufeffa dog\n\u0a0a\n".encode(encoding)
    (tmp_path / "in").write_bytes(content)
    os.mkfifo(tmp_path / "fifo")
    threading.Thread(target=lambda: (tmp_path / "fifo").write_bytes(content), daemon=True).start()
    for name in ("in", "fifo"):
        with pytest.raises(UserError, match=f"{name} is UTF-16; .* iconv -f UTF-16 -t UTF-8"):
            list(Source.open(tmp_path / name, TEXT, invalid_utf8).records())


def test_each_line_has_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    (tmp_path / "prefixes").write_text("eins\n\n")
    source = open_file(tmp_path / "in", tmp_path / "prefixes")
    assert source.check() == 2
    assert [(record.text, record.prefix) for record in source.records()] == [("one", "eins"), ("two", "")]


def test_prefixes_must_match_the_number_of_lines_and_be_valid_utf8(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    source = open_file(tmp_path / "in", tmp_path / "prefixes")
    for content, counted in (("eins\n", "1 line"), ("a\nb\nc\n", "3 lines")):
        (tmp_path / "prefixes").write_text(content)
        with pytest.raises(UserError, match=f"prefixes has {counted} and .*in has 2 lines of text; it"):
            source.check()
    (tmp_path / "prefixes").write_text("eins\n")
    records = source.records()
    assert next(records).prefix == "eins"
    with pytest.raises(UserError, match=r"has 1 line and .*in has more"):
        next(records)
    (tmp_path / "prefixes").write_text("eins\nzwei\ndrei\n")
    records = source.records()  # as for a pipe, whose lines are not counted in advance
    assert [next(records).prefix, next(records).prefix] == ["eins", "zwei"]
    with pytest.raises(UserError, match=r"prefixes has more lines than .*in has lines of text; it must"):
        next(records)
    (tmp_path / "prefixes").write_bytes(b"eins\n\xff\n")
    with pytest.raises(UserError, match="prefixes, line 2: byte 0xff is not UTF-8"):
        source.check()


def test_a_line_has_at_most_one_prefix(tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("eins\nzwei\n")
    (tmp_path / "in").write_text('{"text": "one"}\n{"text": "two", "prefix": "Zwei"}\n')
    source = Source.open(tmp_path / "in", RecordReader("jsonl"), "error", tmp_path / "prefixes")
    with pytest.raises(UserError, match="in, line 2 has a field 'prefix', and --prefixes has another one"):
        source.check()
    (tmp_path / "prefixes").write_bytes(b"eins\r\n\r\n")
    assert source.check() == 2
    assert [record.prefix for record in source.records()] == ["eins\r", "Zwei"]


def test_the_end_of_a_document_is_not_a_line(tmp_path: Path) -> None:
    path, prefixes = tmp_path / "page.html", tmp_path / "prefixes"
    for content, lines in (("<p>One</p><p>Two</p>", ["Eins", "Zwei"]), ("", []), ("<p>1</p>", [])):
        path.write_text(content)
        prefixes.write_text("".join(f"{line}\n" for line in lines))
        source = Source.open(path, RecordReader("html"), "error", prefixes)
        assert source.check() == len(lines)
        assert [record.prefix for record in source.records()] == [*lines, ""]


def test_each_text_segment_of_a_piped_document_needs_a_prefix(pipe: tuple[int, int], tmp_path: Path) -> None:
    reader, writer = pipe
    os.write(writer, b"<p>One</p>\n<p>Two</p>\n")
    os.close(writer)
    (tmp_path / "prefixes").write_text("Eins\n")
    page = PipeLines(reader, "page")
    source = Source(Path("-"), RecordReader("html"), prefixes=tmp_path / "prefixes", pipe=page)
    with pytest.raises(UserError, match=r"has 1 line and standard input has more; .* per text segment; check both"):
        list(source.records())


def test_subtitles_without_time_codes_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.srt"
    for content, count in (("", 0), ("\n", 0), ("1\n00:00:01,000 --> 00:00:02,000\nA dog.\n", 1)):
        path.write_text(content)
        assert Source.open(path, RecordReader("srt"), "error").check() == count
    for content in ("A dog.\n", "1\nA man --> A dog.\n"):
        path.write_text(content)
        with pytest.raises(UserError, match=r"in\.srt has no subtitles; each must follow a line such as"):
            Source.open(path, RecordReader("srt"), "error").check()
