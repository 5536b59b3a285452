"""Descriptions of models in TOML, such as `model.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from nmt.errors import UserError, message_of
from nmt.logs import warn
from nmt.recipe import Section, explain, upgrade_options
from nmt.storage.sealed import CorruptError

FORMAT = 1

Description = TypeVar("Description", bound=Section)


def read_description(path: Path, kind: type[Description]) -> Description:
    """Read and validate the description of a model.

    Raises CorruptError if it is not readable or has invalid values, and UserError for another format number.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptError(
            f"{path} is not a readable model description ({message_of(error)}); copy the model directory again"
        ) from error
    if "format" not in tree:
        raise _invalid(path, "format is missing")
    if (found := tree["format"]) != FORMAT:
        raise UserError(f"{path} has format {found}; this version reads format {FORMAT}; update nmt")
    _warn_ignored(path, tuple(upgrade_options(tree)))
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        missing = [".".join(map(str, problem["loc"])) for problem in error.errors() if problem["type"] == "missing"]
        raise _invalid(path, f"{', '.join(missing)} is missing" if missing else explain(error, kind)) from error


def _invalid(path: Path, problem: str) -> CorruptError:
    return CorruptError(f"{path} is not a valid model description: {problem}; copy the model directory again")


@cache
def _warn_ignored(path: Path, options: tuple[str, ...]) -> None:
    """Warn once about removed options in a model of an earlier version."""
    if options:
        warn(f"{path}: ignoring options that no longer exist: {', '.join(options)}")
