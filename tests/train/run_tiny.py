"""Trains the tiny recipe given as TOML on the tiny data; the tests start it alone or under torchrun."""

import sys
from pathlib import Path

import torch

from nmt.checkpoint import ModelFacts, model_files
from nmt.data.store import PairStore
from nmt.distributed import start_world
from nmt.model.transformer import Transformer
from nmt.recipe import Recipe, load_recipe
from nmt.train.position import Position
from nmt.train.signals import Stopped
from nmt.train.trainer import Trainer, TrainingText, TranslateValidation


def train_tiny(recipe: Recipe, data: Path, vocab: int = 40, translate: TranslateValidation | None = None) -> Position:
    facts = ModelFacts("en", "de", vocab, vocab, "NFC", recipe.decode, {})
    with start_world(recipe.train.device) as world:
        torch.manual_seed(recipe.seed)
        trainer = Trainer(
            recipe,
            world,
            Transformer(recipe.model, vocab, vocab),
            TrainingText(PairStore(data, "train"), PairStore(data, "valid")),
            lambda tensors, step: model_files(recipe.model, tensors, {"tokenizer.model": b"none"}, facts),
            translate,
        )
        return trainer.run()


if __name__ == "__main__":
    try:
        train_tiny(load_recipe(Path(sys.argv[1])), Path(sys.argv[2]))
    except Stopped as stopped:
        sys.exit(stopped.status)
