"""Reuse of earlier translations of test sets."""

import json
from pathlib import Path

import pytest

from nmt.evaluate.translated import find_translated, translation_digest


def test_a_translation_is_found_if_nothing_changed(tmp_path: Path) -> None:
    lines, src = ["ein Hund", "", "zwei"], ["a dog", "\ud800", "two"]
    path = tmp_path / "news.de"
    path.write_text("".join(f"{line}\n" for line in lines))
    digest = translation_digest("model", src, lines)
    (tmp_path / "report.json").write_text(json.dumps({"tests": [{"name": "news", "digest": digest, "seconds": 2}]}))
    found = find_translated(tmp_path, "news", path, "model", src)
    assert found is not None and (found.lines, found.seconds, found.digest) == (lines, 2.0, digest)
    assert find_translated(tmp_path, "news", path, "other", src) is None
    assert find_translated(tmp_path, "news", path, "model", src[:2]) is None
    assert find_translated(tmp_path, "other", path, "model", src) is None
    path.write_text("ein Hund\n\ndrei\n")
    assert find_translated(tmp_path, "news", path, "model", src) is None


@pytest.mark.parametrize("report", ["", "[]", '{"tests": [{"name": "news", "seconds": 1}]}', '{"tests": 3}', "\xff"])
def test_malformed_and_older_reports_are_ignored(tmp_path: Path, report: str) -> None:
    (tmp_path / "news.de").write_text("a\n")
    (tmp_path / "report.json").write_bytes(report.encode("latin-1"))
    assert find_translated(tmp_path, "news", tmp_path / "news.de", "model", ["a"]) is None
