"""The quickstart recipe, which trains a small model on the built-in toy corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_check.packages import ROOT
from gpu_check.settings import Settings
from nmt import pipeline
from nmt.experiments.sweep import merge_overrides
from nmt.recipe import Recipe, load_recipe
from nmt.storage.run_folder import list_checkpoints

# Dry run: a minimal vocabulary and model.
_SMALL = (
    "tokenizer.vocab_size=400",
    'data.train=[{kind="toy", split="train", pairs=300}]',
    'data.valid=[{kind="toy", split="valid", pairs=20}]',
    'data.test={heldout={kind="toy", split="test", pairs=12}}',
    "data.workers=1",
    "data.max_tokens=100",
    "model.d_model=32",
    "model.d_ff=48",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "train.batch_tokens=200",
    "train.micro_batch_tokens=200",
    "train.threads=1",
    "train.max_steps=30",
    "train.warmup_steps=10",
    "train.validate_every=30",
    "train.save_every=10",
    "decode.max_extra_tokens=5",
)


def quickstart_recipe(settings: Settings, overrides: Sequence[str] = ()) -> Recipe:
    """Load the recipe with a run directory in the output folder, shared by the stages."""
    run_dir = settings.folder("work") / "quickstart"
    defaults = [f"run_dir={run_dir}", *settings.pick((), _SMALL)]
    return load_recipe(ROOT / "recipes/quickstart.toml", merge_overrides(defaults, overrides))


def trained_model(recipe: Recipe) -> Path:
    """Train, or resume training, and average the last checkpoints; the stages share the model."""
    out = recipe.directory / "averaged"
    if not out.exists():
        pipeline.train(recipe)
        count = min(recipe.train.average_count, len(list_checkpoints(recipe.directory)))
        pipeline.average(recipe.directory, out, "last", count)
    return out
