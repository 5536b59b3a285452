"""`leaks.json` in a run directory: what was found of the test sentences in the training text, once for each text.

The search goes with preparation, which reads the training text anyway. Where that is up to date and the test or
validation text is not the one that was looked for, the training text is read for the search alone.
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

# Grows when the same text would give other leaks than before.
_FORMAT = 2


def begin_search(recipe: Recipe) -> LeakFinder | None:
    """What looks for the test and validation sentences of a recipe; None, with a warning, where they cannot be read."""
    try:
        return LeakFinder(searched_sets(recipe))
    except UserError as error:
        _warn(error)
        return None


def record_leaks(recipe: Recipe, prepare_report: dict[str, Any], finder: LeakFinder | None) -> None:
    """Write what was found into the run directory; search first where the finder was shown no training text.

    Nothing is done where the record is up to date. Training text that can no longer be read is worth a warning; there
    is no record then.
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
                f"{found.name}: of {found.sentences:,} sentences, {count.exact:,} occur in the training text exactly "
                f"and {count.near:,} nearly; `nmt leaks` lists them"
            )
    record = {"key": key, "sets": [asdict(found) for found in leaks]}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_leaks(run_dir: Path) -> dict[str, SetLeaks]:
    """What the record of a run says, by the name of the set; empty where there is none."""
    sets = _read(run_dir / LEAKS_FILE).get("sets", [])
    return {
        found["name"]: SetLeaks(found["name"], found["sentences"], tuple(Leak(**leak) for leak in found["leaks"]))
        for found in sets
    }


def _key(text: str, sets: tuple[SearchedSet, ...]) -> str:
    """SHA-256 of the training text's identity and of all that is looked for in it."""
    return hashlib.sha256(json.dumps([_FORMAT, text, *map(asdict, sets)]).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or one that was cut short
        return {}
    return record if isinstance(record, dict) else {}


def _warn(error: UserError) -> None:
    warn(f"test sentences are not looked for in the training text: {error}")
