"""Sentences in the source language of a model, whatever that is, to compare an export with the model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from nmt.checkpoint import LoadedModel
from nmt.data.prepare import load_prepared
from nmt.recipe import UserError
from nmt.text.subword_file import PieceKind, read_pieces
from nmt.text.tokenizer import Tokenizer

NUM_SENTENCES = 24
_MOST_PIECES = 20


@dataclass(frozen=True)
class Sentences:
    """Sentences, and in words where they come from."""

    lines: list[str]
    origin: str


def sample_sentences(loaded: LoadedModel, tokenizer: Tokenizer) -> Sentences:
    """Validation text of the run that a model belongs to; for a model without a run, random pieces of its tokenizer."""
    validation = _validation_text(loaded.directory.resolve())
    if validation:
        chosen = [validation[i * len(validation) // NUM_SENTENCES] for i in range(NUM_SENTENCES)]
        return Sentences(list(dict.fromkeys(chosen)), "of the validation text")
    return Sentences(_random_pieces(tokenizer), "of random pieces of the source tokenizer")


def _validation_text(model: Path) -> list[str]:
    """The lines that are not empty; none where the model is neither a run's average nor one of its checkpoints."""
    run = model.parent if model.name == "model" else model.parent.parent
    try:
        return [line for line in load_prepared(run / "data").valid_set().src if line.strip()]
    except UserError:
        return []


def _random_pieces(tokenizer: Tokenizer) -> list[str]:
    kinds = [piece.kind for piece in read_pieces(tokenizer.model)]
    ordinary = [token for token, kind in enumerate(kinds) if kind == PieceKind.ordinary]
    rng = random.Random(1)
    return [
        tokenizer.decode(rng.choices(ordinary, k=rng.randint(1, _MOST_PIECES)))
        for _ in range(NUM_SENTENCES if ordinary else 0)
    ]
