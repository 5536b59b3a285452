"""`model.toml`: what a model directory says of its model."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from nmt.logs import warn
from nmt.recipe import DecodeRecipe, ModelRecipe, UserError, drop_removed
from nmt.storage.sealed import CorruptError

FORMAT = 1

USUAL_MAX_TOKENS = 256
"""The longest training sentence of models that do not say it: the default of `data.max_tokens`."""


@dataclass(frozen=True)
class ModelFacts:
    """What `model.toml` says of a model besides its architecture.

    origin:         where the weights come from, such as `{"run": ..., "steps": [...]}`
    reverse_target: whether it reads and writes the tokens of the target side in reverse
    max_tokens:     the longest sentence that it was trained on, in tokens of either side, a tag included
    """

    src_lang: str
    tgt_lang: str
    src_vocab_size: int
    tgt_vocab_size: int
    unicode_form: str
    decode: DecodeRecipe
    origin: dict[str, Any] = field(default_factory=dict)
    reverse_target: bool = False
    max_tokens: int = USUAL_MAX_TOKENS


def read_model_facts(directory: Path) -> ModelFacts:
    """What `model.toml` says of a model; CorruptError where it cannot be read."""
    return read_model_toml(directory / "model.toml")[1]


def read_model_recipe(directory: Path) -> ModelRecipe:
    """The architecture that `model.toml` says; CorruptError where it cannot be read."""
    return read_model_toml(directory / "model.toml")[0]


def model_toml(model_recipe: ModelRecipe, facts: ModelFacts) -> str:
    """The text of `model.toml`."""
    tree = {
        "format": FORMAT,
        "languages": {"src": facts.src_lang, "tgt": facts.tgt_lang},
        "vocabulary": {"src": facts.src_vocab_size, "tgt": facts.tgt_vocab_size},
        "text": {
            "unicode_form": facts.unicode_form,
            "reverse_target": facts.reverse_target,
            "max_tokens": facts.max_tokens,
        },
        "model": model_recipe.model_dump(mode="json", exclude_none=True),
        "decode": facts.decode.model_dump(mode="json", exclude_none=True),
        "origin": facts.origin,
    }
    return tomli_w.dumps(tree)


def read_model_toml(path: Path) -> tuple[ModelRecipe, ModelFacts]:
    """Architecture and all else that a `model.toml` says; CorruptError where it cannot be read."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT:
            raise UserError(f"{path} has format {tree['format']}; this version reads format {FORMAT}; update nmt")
        _say_ignored(path, tuple(drop_removed(tree)))
        facts = ModelFacts(
            src_lang=tree["languages"]["src"],
            tgt_lang=tree["languages"]["tgt"],
            src_vocab_size=tree["vocabulary"]["src"],
            tgt_vocab_size=tree["vocabulary"]["tgt"],
            unicode_form=tree["text"]["unicode_form"],
            decode=DecodeRecipe.model_validate(tree["decode"]),
            origin=tree["origin"],
            reverse_target=tree["text"].get("reverse_target", False),  # models of before know no such thing
            max_tokens=tree["text"].get("max_tokens", USUAL_MAX_TOKENS),
        )
        return ModelRecipe.model_validate(tree["model"]), facts
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValidationError) as error:
        raise CorruptError(f"{path} is not a readable model description; copy the model directory again") from error


@cache
def _say_ignored(path: Path, options: tuple[str, ...]) -> None:
    """Say once which options of a model of an earlier version no longer exist, if there are any."""
    if options:
        warn(f"{path}: {', '.join(options)} no longer exists; it is ignored")
