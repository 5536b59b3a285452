"""Lines of plain and compressed text."""

import bz2
import gzip
import io
import lzma
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nmt.errors import UserError
from nmt.text import lines as lines_module
from nmt.text.lines import count_lines, decode_lines, read_lines
from tests.data.corpus_files import COMPRESSORS, HOSTILE, write


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_lines_end_at_line_feeds_only(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"lines.{suffix}"
    write(path, HOSTILE, suffix)
    assert list(read_lines(path)) == HOSTILE


@pytest.mark.parametrize(("content", "count"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3)])
def test_as_many_lines_are_counted_as_read(content: bytes, count: int, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(content)
    assert count_lines(tmp_path / "lines") == len(list(read_lines(tmp_path / "lines"))) == count


@pytest.mark.slow
@given(st.lists(st.text(max_size=10).map(lambda text: text.replace("\n", "")), max_size=10))
def test_arbitrary_lines_round_trip(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    assume(len(re.findall(r"[\x00-\x1f]", "".join(lines))) <= 3)  # with more, the file may look like UTF-16
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    write(path, lines)
    expected = [line.removeprefix("\ufeff") if number == 0 else line for number, line in enumerate(lines)]
    assert list(read_lines(path)) == expected


def test_byte_order_mark_and_missing_final_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\n\xef\xbb\xbfsecond")
    assert list(read_lines(path)) == ["first", "\ufeffsecond"]
    path.write_bytes(b"")
    assert list(read_lines(path)) == []


def test_invalid_utf8_error_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"fine\nfine\nna\xefve\nfine\n")
    with pytest.raises(UserError, match=r"lines\.txt, line 3: byte 0xef is not UTF-8"):
        list(read_lines(path))
    assert list(read_lines(path, "replace")) == ["fine", "fine", "na\ufffdve", "fine"]


PARTS = [b"\n", b"\n", b"\n", b"a", b"thirteen bytes", "ö€😀".encode(), b"\xe2\x82", b"\xff", b"\xef\xbb\xbf", b"\r"]


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.sampled_from(PARTS), max_size=20).map(b"".join), st.integers(1, 9))
def test_lines_are_independent_of_block_size(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block_bytes: int
) -> None:
    """Overlong lines and invalid bytes are reported with their line number for any block size."""
    path = tmp_path_factory.mktemp("blocks") / "lines.txt"
    path.write_bytes(content)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", block_bytes)
        patch.setattr(lines_module, "MAX_LINE_BYTES", 12)
        too_long = [n for n, line in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", content), 1) if len(line) > 12]
        if too_long:
            with pytest.raises(UserError, match=f"line {too_long[0]} is longer"):
                list(read_lines(path, "replace"))
            return
        plain = [line.decode("utf-8", "replace") for line in lines]
        if content.startswith(b"\xef\xbb\xbf"):
            plain[0] = lines[0][3:].decode("utf-8", "replace")
        assert list(read_lines(path, "replace")) == plain
        wrong = [number for number, line in enumerate(lines, 1) if not is_utf8(line)]
        if wrong:
            with pytest.raises(UserError, match=f"line {wrong[0]}: byte 0x.. is not UTF-8"):
                list(read_lines(path))
        else:
            assert list(read_lines(path)) == plain


def is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_truncated_compressed_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"lines.{suffix}"
    for text in (bytes(range(1, 128)) * 1000 + b"\n", b"\n" * (1 << 21)):
        whole = COMPRESSORS[suffix](text)
        for size in (len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(UserError, match="damaged or truncated"):
                count_lines(path)


def test_truncated_standard_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_bytes(gzip.compress(b"text\n")[:-1])
    with (tmp_path / "lines").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(UserError, match=r"^standard input is damaged or truncated"):
            list(read_lines(Path("-"), allow_pipe=True))


def test_unreadable_standard_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "write-only").open("w") as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(UserError, match=r"^cannot read standard input: "):
            list(read_lines(Path("-"), allow_pipe=True))


def test_concatenated_compressed_members(tmp_path: Path) -> None:
    for suffix, compress in COMPRESSORS.items():
        path = tmp_path / f"lines.{suffix}"
        path.write_bytes(compress(b"one\ntw") + compress(b"o\nthree\n"))
        assert list(read_lines(path)) == ["one", "two", "three"]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_damage_after_the_first_compressed_member(suffix: str, tmp_path: Path) -> None:
    """The header of the second member is damaged. `lzma.LZMAFile` ends there without an error."""
    path, compress = tmp_path / "lines", COMPRESSORS[suffix]
    for second in (b"\xff" + compress(b"two\n")[1:], b"garbage", compress(b"two\n")[:5]):
        path.write_bytes(compress(b"one\n") + second)
        with pytest.raises(UserError, match="damaged or truncated"):
            list(read_lines(path))


@pytest.mark.slow
def test_padding_of_xz_streams(tmp_path: Path) -> None:
    text = b"".join(b"%d\n" % number for number in range(300_000))
    (tmp_path / "lines").write_bytes(lzma.compress(text, preset=0) + bytes(8) + lzma.compress(b"last") + bytes(1 << 21))
    assert list(read_lines(tmp_path / "lines")) == [*map(str, range(300_000)), "last"]


def test_memory_for_repetitive_xz_text(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lzma.compress(b"a line\n" * (1 << 23), preset=0))
    tracemalloc.start()
    try:
        assert count_lines(tmp_path / "lines") == 1 << 23
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_for_bzip2_text_of_equal_bytes(tmp_path: Path) -> None:
    """In bzip2, a byte can expand to a million."""
    content = bz2.compress(b"\n" * (1 << 25))
    assert len(content) < 256
    (tmp_path / "lines").write_bytes(content)
    tracemalloc.start()
    try:
        assert count_lines(tmp_path / "lines") == 1 << 25
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_zstandard_file_starting_with_a_skippable_frame(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + COMPRESSORS["zst"](b"one\n"))
    assert list(read_lines(tmp_path / "lines")) == ["one"]


def test_zstandard_file_with_a_large_window(tmp_path: Path) -> None:
    stream = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=28)
    ).compressobj()  # as zstd --long=28
    (tmp_path / "lines").write_bytes(stream.compress(b"one\n") + stream.flush())
    assert list(read_lines(tmp_path / "lines")) == ["one"]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_compressed_text_where_plain_text_is_expected(compress: Callable[[bytes], bytes]) -> None:
    for text in (b"", b"one\ntwo\n"):
        with pytest.raises(UserError, match="standard input is compressed; expected text"):
            list(decode_lines(io.BytesIO(compress(text)), "standard input"))
    assert list(decode_lines([b"BZhelp\n"], "text")) == ["BZhelp"]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_text_compressed_twice_is_an_error_even_if_invalid_bytes_are_replaced(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "lines.gz").write_bytes(gzip.compress(compress(b"one\ntwo\n")))
    with pytest.raises(UserError, match=r"lines\.gz is compressed; expected text"):
        list(read_lines(tmp_path / "lines.gz", "replace"))


def test_an_office_document_where_text_is_expected() -> None:
    with pytest.raises(UserError, match=r"letter\.docx is a zip archive or an office document; expected a text file"):
        list(decode_lines([b"PK\x03\x04\n"], "letter.docx"))


def test_compression_is_detected_by_content(tmp_path: Path) -> None:
    write(tmp_path / "lines", HOSTILE, "gz")
    assert list(read_lines(tmp_path / "lines")) == HOSTILE
