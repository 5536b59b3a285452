"""The quickstart recipe, which trains a small model on the built-in toy corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_check.packages import ROOT
from gpu_check.settings import Settings
from nmt import pipeline
from nmt.data.prepare import Prepared, load_prepared, prepare
from nmt.experiments.sweep import merge_overrides
from nmt.processes.distributed import World
from nmt.recipe import Recipe, load_recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.train.trainer import Trainer, build_trainer

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


def prepared_corpus(recipe: Recipe) -> Prepared:
    """Prepare the recipe's corpus if needed and load it."""
    prepare(recipe)
    return load_prepared(recipe.data_directory)


def make_trainer(recipe: Recipe, world: World, prepared: Prepared) -> Trainer:
    """Create a trainer that saves nothing; `recipe.run_dir` must not contain checkpoints."""
    trainer = build_trainer(recipe, prepared, world)
    trainer.loss.train()
    return trainer
