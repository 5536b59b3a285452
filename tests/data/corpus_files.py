"""Files of corpora with difficult lines, and what is read from them."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from nmt.data.corpus import ReadOptions, read_pairs
from nmt.errors import UserError
from nmt.recipe import Corpus
from nmt.text.lines import InvalidUtf8

HOSTILE = [
    "plain",
    "a\u2028b",
    "c\u0085d",
    "e\rf",
    "g\x1ch",
    "i\x00j",
    "k\x0bl\x0cm",
    "",
    " ",
    "שלום",
    "crlf\r",
    "\u2029",
]
SRC = [f"source {line}" for line in HOSTILE]
TGT = [f"{line} target" for line in HOSTILE]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "txt": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


class Records(list[object]):
    """Records that replace a dataset of Hugging Face."""

    info = SimpleNamespace(builder_name="parquet")


def options(root: Path, tgt_lang: str = "de", invalid_utf8: InvalidUtf8 = "error") -> ReadOptions:
    return ReadOptions(root, "en", tgt_lang, invalid_utf8)


def read(corpus: Corpus, root: Path, invalid_utf8: InvalidUtf8 = "error") -> list[tuple[str, str]]:
    return list(read_pairs(corpus, options(root, invalid_utf8=invalid_utf8)))


def write(path: Path, lines: list[str], suffix: str = "txt") -> None:
    path.write_bytes(COMPRESSORS[suffix]("".join(f"{line}\n" for line in lines).encode()))


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pydict(columns), path, row_group_size=5)


def one_line_error(corpus: Corpus, root: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read(corpus, root)
    assert "\n" not in str(caught.value)
