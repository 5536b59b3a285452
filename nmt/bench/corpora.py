"""Benchmark corpora: prepared text, or random tokens with realistic sentence lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.data.prepare import load_prepared
from nmt.data.store import PairStore, PairWriter, Side, token_dtype
from nmt.errors import UserError
from nmt.special_ids import EOS_ID
from nmt.storage.run_folder import find_prepared

Ints = NDArray[np.int64]

# Lower ids are special tokens.
FIRST_ORDINARY_ID = EOS_ID + 1


@dataclass(frozen=True)
class LengthDistribution:
    """Lengths of sentence pairs in tokens, EOS included, as two correlated log-normal variables.

    src_mean, tgt_mean: mean lengths
    deviation:          standard deviation of the log length, equal on both sides
    correlation:        correlation of the log lengths
    """

    src_mean: float
    tgt_mean: float
    deviation: float
    correlation: float

    def sample(self, num_pairs: int, longest: int, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Sample source and target lengths (num_pairs,), EOS excluded, clipped to the range from 1 to `longest`."""
        normal = random.standard_normal((2, num_pairs))
        normal[1] = self.correlation * normal[0] + math.sqrt(1 - self.correlation**2) * normal[1]
        means = np.array([[self.src_mean], [self.tgt_mean]])
        lengths = np.exp(np.log(means) - self.deviation**2 / 2 + self.deviation * normal)
        src, tgt = np.clip(np.rint(lengths) - 1, 1, longest).astype(np.int64)
        return src, tgt


# WMT14 English-German with a joint vocabulary of 37,000. The training text has 4.5 million pairs of 116 and 110 million
# words (Luong et al. 2015, section 4.1), or 25.8 and 24.4 per pair. At about 1.0 and 1.1 tokens per word, plus EOS,
# the means are 27 and 28 tokens. Deviation and correlation are those of log(words + 1), measured on 27,434 pairs of
# WMT's English-German news test sets.
WMT14 = LengthDistribution(src_mean=27.0, tgt_mean=28.0, deviation=0.585, correlation=0.956)


def open_corpus(path: Path) -> tuple[PairStore, tuple[int, int]]:
    """Open the prepared training pairs of a run directory or its `data` folder; raises UserError if missing.

    Returns them with the sizes of the source and target vocabularies.
    """
    directory = find_prepared(path)
    sizes = load_prepared(directory).report["vocab_size"]
    return PairStore(directory, "train"), (sizes["src"], sizes["tgt"])


def write_random_corpus(
    directory: Path,
    lengths: LengthDistribution,
    *,
    tgt_tokens: int,
    longest: int,
    vocab_sizes: tuple[int, int],
    seed: int,
    has_source: bool = True,
) -> PairStore:
    """Write a token store of random sentences with at least `tgt_tokens` target tokens.

    vocab_sizes: of source and target
    has_source:  False for empty sources, as for a language model
    """
    require_ordinary_tokens(min(vocab_sizes))
    random = np.random.Generator(np.random.PCG64(seed))
    mean = float(lengths.sample(10_000, longest, np.random.Generator(np.random.PCG64(seed)))[1].mean()) + 1
    src, tgt = lengths.sample(math.ceil(1.1 * tgt_tokens / mean) + 100, longest, random)
    src = src if has_source else np.zeros_like(src)
    sides: tuple[tuple[Side, Ints, int], ...] = (("src", src, vocab_sizes[0]), ("tgt", tgt, vocab_sizes[1]))
    with PairWriter(directory, "train", {side: token_dtype(size) for side, _, size in sides}) as writer:
        for side, side_lengths, size in sides:
            writer.append(side, sample_tokens(int(side_lengths.sum()), size, random), side_lengths)
    return PairStore(directory, "train")


def sample_tokens(count: int, vocab_size: int, random: np.random.Generator) -> Ints:
    """Sample ordinary token ids (count,), nearly Zipfian: the probability is proportional to log(1 + 1 / rank)."""
    ordinary = vocab_size - FIRST_ORDINARY_ID
    ranks = np.floor(np.exp(random.random(count) * math.log(ordinary + 1))) - 1
    ids: Ints = FIRST_ORDINARY_ID + np.minimum(ranks, ordinary - 1).astype(np.int64)
    return ids


def require_ordinary_tokens(vocab_size: int) -> None:
    """Raise UserError for a vocabulary that has only special tokens."""
    if vocab_size <= FIRST_ORDINARY_ID:
        raise UserError(f"vocabulary size must be at least {FIRST_ORDINARY_ID + 1}, got {vocab_size}")
