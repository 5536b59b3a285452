"""Contents of prepared directories, and errors of preparation."""

from pathlib import Path

import numpy as np
import pytest

from nmt.data.prepare import Prepared, prepare
from nmt.data.store import PairStore, Split
from nmt.errors import UserError
from nmt.recipe import Recipe


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def modification_times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in [directory, *directory.iterdir()]}


def stored(prepared: Prepared, split: Split = "train") -> list[tuple[list[int], list[int]]]:
    """Return the token ids of the pairs of a split."""
    store = PairStore(prepared.directory, split)
    sides = [store.src.gather(np.arange(len(store))), store.tgt.gather(np.arange(len(store)))]
    parts = [np.split(tokens, np.cumsum(lengths))[:-1] for tokens, lengths in sides]
    return [(src.tolist(), tgt.tolist()) for src, tgt in zip(*parts, strict=True)]


def one_line_error(recipe: Recipe, match: str) -> None:
    """Require that preparation fails with a one-line error and leaves no files."""
    with pytest.raises(UserError, match=match) as caught:
        prepare(recipe)
    assert "\n" not in str(caught.value)
    assert not recipe.data_directory.exists()
    assert not recipe.directory.exists() or list(recipe.directory.iterdir()) == []
