"""Sentence lengths, size and token frequencies of random corpora."""

from pathlib import Path

import numpy as np
import pytest

from nmt.bench.corpora import FIRST_ORDINARY_ID, WMT14, open_corpus, sample_tokens, write_random_corpus
from nmt.errors import UserError


def generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(1))


def test_sampled_lengths_have_the_moments_of_the_distribution() -> None:
    src, tgt = WMT14.sample(200_000, 10_000, generator())
    assert (src + 1).mean() == pytest.approx(WMT14.src_mean, rel=0.01)
    assert (tgt + 1).mean() == pytest.approx(WMT14.tgt_mean, rel=0.01)
    logs = np.log(np.stack([src, tgt]) + 1)
    assert logs.std(axis=1) == pytest.approx(WMT14.deviation, rel=0.02)
    assert np.corrcoef(logs)[0, 1] == pytest.approx(WMT14.correlation, abs=0.01)
    assert min(src.min(), tgt.min()) >= 1


def test_lengths_are_clipped() -> None:
    src, tgt = WMT14.sample(20_000, 40, generator())
    assert src.max() == tgt.max() == 40


def test_random_corpus_is_large_enough_and_reproducible(tmp_path: Path) -> None:
    sizes = (300, 70_000)
    stores = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        stores.append(
            write_random_corpus(tmp_path / name, WMT14, tgt_tokens=20_000, longest=60, vocab_sizes=sizes, seed=5)
        )
    one, again = stores
    assert 20_000 < len(one.tgt.tokens) + len(one) < 30_000
    for side, size in ((one.src, sizes[0]), (one.tgt, sizes[1])):
        assert side.tokens.min() == FIRST_ORDINARY_ID
        assert FIRST_ORDINARY_ID < side.tokens.max() < size
        assert side.lengths.max() <= 60
    assert np.array_equal(one.tgt.tokens, again.tgt.tokens)
    assert np.array_equal(one.src.offsets, again.src.offsets)


def test_tokens_have_a_zipf_distribution() -> None:
    vocab_size = FIRST_ORDINARY_ID + 1023
    tokens = sample_tokens(200_000, vocab_size, generator())
    counts = np.bincount(tokens, minlength=vocab_size)[FIRST_ORDINARY_ID:] / len(tokens)
    assert counts[0] == pytest.approx(0.1, rel=0.05)  # ln 2 / ln 1024
    assert counts[:31].sum() == pytest.approx(0.5, abs=0.01)  # ln 32 / ln 1024
    assert tokens.max() < vocab_size


def test_directory_without_a_corpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no complete corpus of a translation model"):
        open_corpus(tmp_path)
