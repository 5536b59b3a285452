"""Translated test sets of a run, which are reused while model, text, machine and software are unchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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


def is_changed(
    run: Path, name: str, content: Literal["source", "references", "context", "output"], digest: str
) -> bool:
    """Return whether the report of a run has a different digest of a test set; False if it has none."""
    return _recorded(run, name).get(content) not in (None, "", digest)


def has_other_output(run: Path, name: str, path: Path) -> bool:
    """Return whether a translated test set is missing, or differs from the digest in the report, if there is one."""
    try:
        return is_changed(run, name, "output", text_digest(_read_output(path)))
    except (OSError, ValueError):
        return True


def find_translated(run: Path, name: str, path: Path, origin: str, src: Sequence[str]) -> TranslatedSet | None:
    """Return the translation in `path` if the report of the run has its digest, otherwise None.

    name:   name of the test set
    origin: describes model, search, machine and software
    """
    recorded = _recorded(run, name)
    try:
        lines = _read_output(path)
        digest = translation_digest(origin, src, lines)
        return TranslatedSet(lines, float(recorded["seconds"]), digest) if recorded["digest"] == digest else None
    except (OSError, ValueError, KeyError, TypeError):  # no translation, or a report of an earlier version
        return None


def _recorded(run: Path, name: str) -> dict[str, Any]:
    """Return the entry of a test set in the report of a run; {} if there is none, or it is damaged."""
    try:
        tests = {test["name"]: test for test in json.loads((run / "report.json").read_bytes())["tests"]}
        return dict(tests[name])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _read_output(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")
