"""The recipes that come with nmt."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path


def packaged_recipes(folder: str = "") -> dict[str, Path]:
    """Return the recipes that come with nmt, by name.

    folder: "" for models, `classifiers`, or `sweeps` for those of `nmt repeat`
    """
    with as_file(files("nmt").joinpath("recipes", folder)) as path:
        return {recipe.stem: recipe for recipe in sorted(path.glob("*.toml"))}


def packaged_files() -> dict[str, Path]:
    """Return the recipes of models and classifiers and the sweeps that come with nmt, by name."""
    return packaged_recipes() | packaged_recipes("classifiers") | packaged_recipes("sweeps")
