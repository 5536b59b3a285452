"""Mixtures of training corpora: how many pairs of each corpus an epoch contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Mixture:
    """Number of pairs of each corpus that an epoch contains. The corpora are consecutive in the store.

    sizes:           pairs of each corpus
    pairs_per_epoch: pairs of each corpus that an epoch contains, repetitions included; same sum as `sizes`
    """

    sizes: tuple[int, ...]
    pairs_per_epoch: tuple[int, ...]

    @classmethod
    def from_weights(cls, sizes: Sequence[int], weights: Sequence[float], temperature: float) -> Mixture:
        """Allocate pairs in proportion to weight * size^(1/temperature), by largest remainder.

        Every non-empty corpus gets at least one pair. Equal weights at temperature 1 give exactly `sizes`.
        Source: Arivazhagan et al. 2019 (for languages).
        """
        total = sum(sizes)
        assert total > 0, "there must be pairs to mix"
        scaled = [
            Fraction(weight) * Fraction(float(size) ** (1 / temperature))
            for size, weight in zip(sizes, weights, strict=True)
        ]
        quotas = [total * value / sum(scaled) for value in scaled]
        counts = [int(quota) for quota in quotas]
        by_remainder = sorted(range(len(sizes)), key=lambda corpus: counts[corpus] - quotas[corpus])
        for corpus in by_remainder[: total - sum(counts)]:
            counts[corpus] += 1
        for corpus, size in enumerate(sizes):
            if size and not counts[corpus]:
                counts[counts.index(max(counts))] -= 1
                counts[corpus] = 1
        return cls(tuple(sizes), tuple(counts))

    @property
    def contains_each_pair_once(self) -> bool:
        """Whether an epoch contains every pair exactly once."""
        return self.pairs_per_epoch == self.sizes

    def sample_epoch(self, seed: int, epoch: int) -> NDArray[np.integer[Any]]:
        """Return the pair ids of an epoch, corpus by corpus, `(sum(sizes),)`.

        Each corpus is a sequence of permutations that continues from epoch to epoch. After each epoch, every pair of
        a corpus has been used n or n + 1 times, for some n.
        """
        chosen = []
        for corpus, (end, size, count) in enumerate(
            zip(accumulate(self.sizes), self.sizes, self.pairs_per_epoch, strict=True)
        ):
            if not size:
                continue
            ids = np.arange(end - size, end, dtype=pair_id_dtype(sum(self.sizes)))
            first, last = epoch * count, (epoch + 1) * count
            for number in range(first // size, -(-last // size)):
                # spawn_key separates this stream from those seeded with (seed, epoch).
                stream = np.random.SeedSequence(seed % (1 << 64), spawn_key=(corpus, number))
                permutation = np.random.Generator(np.random.PCG64(stream)).permutation(ids)
                chosen.append(permutation[max(first - number * size, 0) : last - number * size])
        return np.concatenate(chosen)


def pair_id_dtype(num_pairs: int) -> np.dtype[Any]:
    """Return int32 if it holds all pair ids, otherwise int64."""
    return np.dtype(np.int32 if num_pairs < 1 << 31 else np.int64)
