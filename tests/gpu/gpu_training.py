"""A tiny training task for CPU and GPU: the target is the reversed source."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from nmt.checkpoint import model_files
from nmt.data.store import PairStore
from nmt.model.transformer import Transformer
from nmt.processes.distributed import start_world
from nmt.recipe import Recipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.train.data import TrainingData
from nmt.train.trainer import Trainer

VOCAB = 60
SIZES = {"d_model": 32, "d_ff": 64, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}


def make_recipe(run_dir: Path, device: torch.device, dropout: float = 0.0, **train: object) -> Recipe:
    options = {
        "max_steps": 12,
        "batch_tokens": 300,
        "micro_batch_tokens": 160,
        "shapes": "fixed",  # the same batches on every device
        "precision": "fp32",
        "schedule": "linear",
        "learning_rate": 3e-3,
        "warmup_steps": 5,
        "log_every": 1,
        "validate_every": 4,
        "save_every": 4,
        "device": str(device),
        "threads": 1,
    }
    text = [{"kind": "text", "src": "a", "tgt": "b"}]
    return Recipe.model_validate(
        {
            "name": "tiny",
            "src_lang": "en",
            "tgt_lang": "de",
            "run_dir": str(run_dir),
            "data": {"train": text, "valid": text, "max_tokens": 20},
            "model": SIZES | {"dropout": dropout, "max_positions": 32},
            "train": options | train,
        }
    )


@contextmanager
def trainer_of(recipe: Recipe, folder: Path) -> Iterator[Trainer]:
    """Create a trainer on the pairs in `folder`, in training mode."""
    metadata = ModelMetadata("en", "de", VOCAB, VOCAB, "NFC", recipe.decode, {})
    assert recipe.train.device is not None
    with start_world(recipe.train.device) as world:
        torch.manual_seed(recipe.seed)
        trainer = Trainer(
            recipe,
            world,
            Transformer(recipe.model, VOCAB, VOCAB),
            TrainingData(PairStore(folder, "train"), PairStore(folder, "valid")),
            lambda tensors, step: model_files(recipe.model, tensors, {"tokenizer.model": b"none"}, metadata),
        )
        trainer.loss.train()
        yield trainer


def gradient(trainer: Trainer) -> Tensor:
    """Gradient of the last update as one float64 vector on the CPU."""
    return torch.cat(
        [weight.grad.flatten().cpu().double() for weight in trainer.model.parameters() if weight.grad is not None]
    )
