"""A tiny corpus, and a recipe whose training on it takes a second."""

from pathlib import Path

import pytest

from nmt.recipe import Recipe
from tests.train.run_tiny import TINY_VOCAB, write_reversed_pairs


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token store whose targets are reversed sources: 240 training and 20 validation pairs."""
    directory = tmp_path_factory.mktemp("tiny-data")
    write_reversed_pairs(directory, TINY_VOCAB, max_length=8)
    return directory


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Recipe:
    """A recipe with dropout, several micro-batches per update and about nine updates per epoch."""
    return Recipe.model_validate(
        {
            "name": "tiny",
            "src_lang": "en",
            "tgt_lang": "de",
            "run_dir": str(tmp_path / "run"),
            "data": {
                "train": [{"kind": "text", "src": "a", "tgt": "b"}],
                "valid": [{"kind": "text", "src": "a", "tgt": "b"}],
                "max_tokens": 20,
            },
            "model": {
                "d_model": 16,
                "d_ff": 32,
                "num_heads": 2,
                "num_encoder_layers": 1,
                "num_decoder_layers": 1,
                "dropout": 0.1,
                "max_positions": 32,
            },
            "train": {
                "precision": "fp32",  # for comparisons with other implementations
                "max_steps": 24,
                "batch_tokens": 150,
                "micro_batch_tokens": 80,
                "schedule": "linear",
                "learning_rate": 3e-3,
                "warmup_steps": 5,
                "log_every": 1,
                "validate_every": 6,
                "save_every": 6,
                "keep_last": 10,
                "device": "cpu",
                "threads": 1,
            },
        }
    )
