"""Checksums of prepared files."""

import hashlib
import os
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.storage.checksums import read_checked, require_undamaged, sha256_of, write_checked


def test_checksums_are_those_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"")
    expected = {"a": hashlib.sha256(b"one").hexdigest(), "b": hashlib.sha256(b"").hexdigest()}
    assert sha256_of([tmp_path / "a", tmp_path / "b"]) == expected


def test_reports_may_name_files_whose_names_are_not_utf8(tmp_path: Path) -> None:
    report = {"inputs": [{"name": os.fsdecode(b"caf\xe9.parquet")}], "languages": ["日本語"]}
    write_checked(tmp_path / "prepare.json", report)
    assert read_checked(tmp_path / "prepare.json") == report


def test_a_missing_file_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^\S+links\.npy is missing, but report\.json lists it; remove .* rerun to create it again$"
    ):
        require_undamaged(tmp_path, {"links.npy": "0"}, "report.json")
