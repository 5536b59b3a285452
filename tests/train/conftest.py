"""A tiny corpus, and a recipe whose training on it takes a second."""

from pathlib import Path

import numpy as np
import pytest

from nmt.data.store import PairWriter, Split, token_dtype
from nmt.recipe import Recipe
from tests.train.run_tiny import TINY_VOCAB


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token store whose targets are reversed sources: 240 training and 20 validation pairs."""
    directory = tmp_path_factory.mktemp("tiny-data")
    random = np.random.Generator(np.random.PCG64(7))
    sizes: tuple[tuple[Split, int], ...] = (("train", 240), ("valid", 20))
    for split, pairs in sizes:
        sentences = [random.integers(4, TINY_VOCAB, random.integers(1, 9)) for _ in range(pairs)]
        lengths = np.array([len(sentence) for sentence in sentences])
        with PairWriter(directory, split, {"src": token_dtype(TINY_VOCAB), "tgt": token_dtype(TINY_VOCAB)}) as writer:
            writer.append("src", np.concatenate(sentences), lengths)
            writer.append("tgt", np.concatenate([sentence[::-1] for sentence in sentences]), lengths)
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
