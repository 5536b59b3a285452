"""Contents of prepared directories, and errors of preparation."""

from pathlib import Path

import pytest

from nmt.data.prepare import prepare
from nmt.errors import UserError
from nmt.recipe import Recipe


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def modification_times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in [directory, *directory.iterdir()]}


def one_line_error(recipe: Recipe, match: str) -> None:
    """Require that preparation fails with a one-line error and leaves no files."""
    with pytest.raises(UserError, match=match) as caught:
        prepare(recipe)
    assert "\n" not in str(caught.value)
    assert not recipe.data_directory.exists()
    assert not recipe.directory.exists() or list(recipe.directory.iterdir()) == []
