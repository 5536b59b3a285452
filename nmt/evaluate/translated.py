"""Translated test sets of a run, which are reused while model, text, machine and software are unchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.recipe import Recipe


@dataclass(frozen=True)
class TranslatedSet:
    """The translation of a test set.

    seconds: translation time
    digest:  SHA-256 of everything that determines the translation, and of the translation, see `translation_digest`
    """

    lines: list[str]
    seconds: float
    digest: str


def output_name(recipe: Recipe, test: str) -> str:
    """Return the name of the file with the translations of a test set, NAME.LANG."""
    return f"{test}.{recipe.data.test[test].languages(recipe)[1]}"


def translation_digest(origin: str, src: Sequence[str], lines: Sequence[str]) -> str:
    """Return a SHA-256 of the origin of a translation, its source and its lines."""
    return text_digest([origin, *src, *lines])


def text_digest(lines: Sequence[str]) -> str:
    """Return a SHA-256 of lines."""
    return hashlib.sha256(json.dumps(list(lines)).encode()).hexdigest()


def references_digest(refs: Sequence[Sequence[str]]) -> str:
    """Return a SHA-256 of all reference streams."""
    return text_digest([line for stream in refs for line in stream])


def context_digest(previous: Sequence[int] | None) -> str:
    """Return a SHA-256 of the number of previous sentences of each source sentence; "" without context."""
    return "" if previous is None else text_digest(list(map(str, previous)))


def has_other_source(run: Path, name: str, src: Sequence[str]) -> bool:
    """Return whether a run translated other sentences for a test set; False if its report does not say."""
    return _recorded(run, name, "source") not in ("", text_digest(src))


def has_other_references(run: Path, name: str, refs: Sequence[Sequence[str]]) -> bool:
    """Return whether a run was scored with other references of a test set; False if its report does not say."""
    return _recorded(run, name, "references") not in ("", references_digest(refs))


def has_other_context(run: Path, name: str, previous: Sequence[int] | None) -> bool:
    """Return whether a run translated a test set with different document context; False if its report does not say."""
    return _recorded(run, name, "context") not in ("", context_digest(previous))


def has_other_output(run: Path, name: str, path: Path) -> bool:
    """Return whether a translated test set is missing, or differs from the digest in the report, if there is one."""
    try:
        return _recorded(run, name, "output") not in ("", text_digest(_read_output(path)))
    except (OSError, ValueError):
        return True


def _recorded(run: Path, name: str, key: str) -> str:
    try:
        tests = {test["name"]: test for test in json.loads((run / "report.json").read_bytes())["tests"]}
        return str(tests[name].get(key) or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no report, or a damaged one
        return ""


def find_translated(run: Path, name: str, path: Path, origin: str, src: Sequence[str]) -> TranslatedSet | None:
    """Return the translation in `path` if the report of the run has its digest, otherwise None.

    name:   name of the test set
    origin: describes model, search, machine and software
    """
    try:
        tests = json.loads((run / "report.json").read_bytes())["tests"]
        recorded = {test["name"]: (test["digest"], float(test["seconds"])) for test in tests}
        lines = _read_output(path)
    except (OSError, ValueError, KeyError, TypeError):  # no report, or one of an earlier version
        return None
    digest = translation_digest(origin, src, lines)
    if name not in recorded or recorded[name][0] != digest:
        return None
    return TranslatedSet(lines, recorded[name][1], digest)


def _read_output(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")
