"""Translated test sets of a run, which are reused while model, text, machine and software are unchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TranslatedSet:
    """The translation of a test set.

    seconds: translation time
    digest:  SHA-256 of everything that determines the translation, and of the translation, see `translation_digest`
    """

    lines: list[str]
    seconds: float
    digest: str


def translation_digest(origin: str, src: Sequence[str], lines: Sequence[str]) -> str:
    """Return a SHA-256 of the origin of a translation, its source and its lines."""
    return hashlib.sha256(json.dumps([origin, *src, *lines]).encode()).hexdigest()


def source_digest(src: Sequence[str]) -> str:
    """Return a SHA-256 of source sentences."""
    return hashlib.sha256(json.dumps(list(src)).encode()).hexdigest()


def has_other_source(run: Path, name: str, src: Sequence[str]) -> bool:
    """Return whether a run translated other sentences for a test set; False if its report does not say."""
    try:
        tests = json.loads((run / "report.json").read_bytes())["tests"]
        recorded = {test["name"]: test.get("source", "") for test in tests}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no report, or a damaged one
        return False
    return bool(recorded.get(name)) and recorded[name] != source_digest(src)


def find_translated(run: Path, name: str, path: Path, origin: str, src: Sequence[str]) -> TranslatedSet | None:
    """Return the translation in `path` if the report of the run has its digest, otherwise None.

    name:   of the test set
    origin: describes model, search, machine and software
    """
    try:
        tests = json.loads((run / "report.json").read_bytes())["tests"]
        recorded = {test["name"]: (test["digest"], float(test["seconds"])) for test in tests}
        lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except (OSError, ValueError, KeyError, TypeError):  # no report, or one of an earlier version
        return None
    digest = translation_digest(origin, src, lines)
    if name not in recorded or recorded[name][0] != digest:
        return None
    return TranslatedSet(lines, recorded[name][1], digest)
