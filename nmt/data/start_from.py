"""The subword model of a trained model, taken over as it is: weights mean nothing without the vocabulary they had."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nmt.recipe import Recipe, UserError
from nmt.storage.run_folder import find_model
from nmt.text.tokenizer import Tokenizers


def start_models(recipe: Recipe) -> list[Path]:
    """The models from which a recipe takes its tokenizers, as it names them; none when they are to be trained."""
    named = (recipe.train.start_from, recipe.tokenizer.start_from)
    return list(dict.fromkeys(path for path in named if path is not None))


def taken_tokenizers(recipe: Recipe) -> Tokenizers | None:
    """The tokenizers that a recipe takes from a model, joint or apart as they are there; None when it takes none.

    Raises UserError when there is no model, when its tokenizers are missing or are not the files that were saved, and
    when the recipe names two models of different tokenizers.
    """
    taken = [verified_tokenizers(find_model(path)) for path in start_models(recipe)]
    if any(tokenizers.files() != taken[0].files() for tokenizers in taken):
        wrong = f"tokenizer.start_from ({recipe.tokenizer.start_from}) has other tokenizers than train.start_from"
        raise UserError(
            f"{wrong} ({recipe.train.start_from}); weights need those they had; leave out tokenizer.start_from"
        )
    return taken[0] if taken else None


def tokenizer_digests(tokenizers: Tokenizers) -> dict[str, str]:
    """The SHA-256 of each file of the tokenizers, by its name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in tokenizers.files().items()}


def verified_tokenizers(directory: Path) -> Tokenizers:
    """The tokenizers of a model directory; UserError where they are not the files that were saved."""
    manifest = directory / "manifest.json"
    try:
        entries = json.loads(manifest.read_bytes()).items()
        expected = {name: entry["sha256"] for name, entry in entries if name.startswith("tokenizer")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{manifest} cannot be read; a model to start from must be whole; copy it again") from error
    tokenizers = Tokenizers.load(directory)
    if tokenizer_digests(tokenizers) != expected:
        wrong = f"the tokenizer of {directory} is corrupt (its SHA-256 is not what {manifest.name} says)"
        raise UserError(f"{wrong}; it must be the one that was saved; copy the model again")
    return tokenizers
