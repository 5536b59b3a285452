"""A model small enough to benchmark within a second, and a corpus for it."""

from pathlib import Path

import pytest

from nmt.bench.corpora import LengthDistribution, write_random_corpus
from nmt.bench.model_specs import ModelSpec, find_model_spec
from nmt.data.store import PairStore

SMALL = ["model.d_model=16", "model.d_ff=32", "model.num_heads=2", "model.max_positions=64", "data.max_tokens=20"]
SMALL += ["model.num_encoder_layers=1", "model.num_decoder_layers=1"]
SMALL += ["train.batch_tokens=200", "train.micro_batch_tokens=90", "train.device=cpu", "train.threads=1"]
SMALL += ["train.precision=fp32"]  # without rows of padding, which bf16 has on a CPU
SMALL_VOCAB = 50


@pytest.fixture
def small_spec(tmp_path: Path) -> ModelSpec:
    """A reduced `tiny` with several micro-batches per update and an EMA."""
    return find_model_spec("tiny", [*SMALL, "train.ema_decay=0.9", f"run_dir={tmp_path / 'run'}"], SMALL_VOCAB)


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> PairStore:
    """About 3,000 target tokens."""
    lengths = LengthDistribution(src_mean=7.0, tgt_mean=8.0, deviation=0.4, correlation=0.9)
    folder = tmp_path_factory.mktemp("bench-corpus")
    sizes = (SMALL_VOCAB, SMALL_VOCAB)
    return write_random_corpus(folder, lengths, tgt_tokens=3_000, longest=20, vocab_sizes=sizes, seed=1)
