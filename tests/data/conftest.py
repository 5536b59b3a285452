"""A small corpus to prepare, and prepared text for sampled segmentations."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nmt.data import sampling
from nmt.data.sampling import SampledEpochs
from nmt.recipe import TrainRecipe
from tests.data import dirty_corpus, sampled_corpus
from tests.data.dirty_corpus import DIRTY, HOSTILE, sentence_pairs
from tests.data.sampled_corpus import MAX_TOKENS, PAIRS_PER_SHARD, Sample


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pairs that are kept, and pairs that are dropped."""
    dirty_corpus.write_corpus(tmp_path / "text", [*sentence_pairs(200), *DIRTY], [*sentence_pairs(20), *HOSTILE])
    return tmp_path


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    sampled_corpus.write_corpus(folder / "bpe", "bpe", joint=True)
    sampled_corpus.write_corpus(folder / "unigram", "unigram", joint=False)
    return folder


@pytest.fixture(params=["bpe", "unigram"])
def corpus(request: pytest.FixtureRequest, corpora: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpora / request.param, tmp_path / request.param))


@pytest.fixture
def bpe_corpus(corpora: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpora / "bpe", tmp_path / "bpe"))


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample]:
    """Create sampled epochs with small shards; close them at the end."""
    monkeypatch.setattr(sampling, "_PAIRS_PER_SHARD", PAIRS_PER_SHARD)
    monkeypatch.setattr(sampling, "_POLL_SECONDS", 0.01)
    opened: list[SampledEpochs] = []

    def start(directory: Path, alpha: float = 0.2, sides: str = "both", **options: Any) -> SampledEpochs:
        recipe = TrainRecipe(subword_sampling=alpha, subword_sampling_sides=sides)
        settings = {"seed": 7, "max_tokens": MAX_TOKENS, "workers": 1, **options}
        opened.append(SampledEpochs(directory, recipe, **settings))
        return opened[-1]

    yield start
    for epochs in opened:
        epochs.close()
