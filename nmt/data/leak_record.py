"""`leaks.json` in a run directory: test sentences found in the training text.

Preparation reads the training text anyway, so it feeds the search. If the prepared text is up to date but the record is
not, the training text is read for the search alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmt.data.fingerprint import text_identity
from nmt.data.leaks import Leak, LeakFinder, SearchedSet, SetLeaks, search_training_text, searched_sets
from nmt.logs import say, warn
from nmt.recipe import Recipe, UserError

LEAKS_FILE = "leaks.json"

# Increment when the same text gives different leaks.
_FORMAT = 2


def begin_search(recipe: Recipe) -> LeakFinder | None:
    """Return a finder for the test and validation sentences; warn and return None if they are unreadable."""
    try:
        return LeakFinder(searched_sets(recipe))
    except UserError as error:
        _warn(error)
        return None


def record_leaks(recipe: Recipe, prepare_report: dict[str, Any], finder: LeakFinder | None) -> None:
    """Write the leaks to the run directory, unless the record is up to date.

    Searches the training text if the finder has not read it. If it is unreadable, warns and removes the record.
    """
    path = recipe.directory / LEAKS_FILE
    if finder is None:
        path.unlink(missing_ok=True)
        return
    key = _key(text_identity(prepare_report, recipe), finder.sets)
    if not finder.num_read:
        if _read(path).get("key") == key:
            return
        try:
            search_training_text(recipe, finder)
        except UserError as error:
            _warn(error)
            path.unlink(missing_ok=True)
            return
    leaks = finder.leaks()
    for found in leaks:
        if found.leaks:
            count = found.counts().any
            say(
                f"{found.name}: {count.exact:,} of {found.sentences:,} sentences occur exactly in the training text, "
                f"{count.near:,} nearly; `nmt leaks` lists them"
            )
    record = {"key": key, "sets": [asdict(found) for found in leaks]}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_leaks(run_dir: Path) -> dict[str, SetLeaks]:
    """Return the recorded leaks of a run by set name; empty if there is no record."""
    sets = _read(run_dir / LEAKS_FILE).get("sets", [])
    return {
        found["name"]: SetLeaks(found["name"], found["sentences"], tuple(Leak(**leak) for leak in found["leaks"]))
        for found in sets
    }


def _key(text: str, sets: tuple[SearchedSet, ...]) -> str:
    """Return the SHA-256 of the identity of the training text and of the searched sets."""
    return hashlib.sha256(json.dumps([_FORMAT, text, *map(asdict, sets)]).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing or truncated
        return {}
    return record if isinstance(record, dict) else {}


def _warn(error: UserError) -> None:
    warn(f"skipping the search for test sentences in the training text: {error}")
