"""A small statistical aligner, to judge the attention of a model by where nobody has aligned words by hand.

The model of Dyer et al. 2013 ("A Simple, Fast, and Effective Reparameterization of IBM Model 2"): each target token is
the translation of one source token or of nothing; a source token is the likelier the nearer it lies to the diagonal.
The tension of the diagonal and the share of nothing are theirs, and the probabilities of words are estimated by
expectation maximisation. Links are those on which both directions agree: few, but most of them right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TENSION = 4.0
_SHARE_OF_NOTHING = 0.08
_ITERATIONS = 5

Sentence = Sequence[int]
Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]


def agreed_links(pairs: Sequence[tuple[Sentence, Sentence]]) -> list[set[tuple[int, int]]]:
    """The links (source token, target token) of each pair that both directions find, by place in the sentence.

    pairs: token ids of source and target, without begin and end token; a sentence may be empty
    """
    forward = best_sources(pairs)
    backward = best_sources([(tgt, src) for src, tgt in pairs])
    return [
        {(source, target) for target, source in enumerate(sources) if source >= 0 and targets[source] == target}
        for sources, targets in zip(forward, backward, strict=True)
    ]


def best_sources(pairs: Sequence[tuple[Sentence, Sentence]]) -> list[list[int]]:
    """The most probable source token of each target token, by its place; -1 where it comes from nothing."""
    cells = _Cells.of_pairs(pairs)
    probability = np.ones(cells.num_entries)
    for _ in range(_ITERATIONS):
        counts = np.bincount(cells.entry, cells.posterior(probability), minlength=cells.num_entries)
        totals = np.bincount(cells.source_of_entry, counts)
        probability = counts / totals[cells.source_of_entry]
    return cells.best(cells.posterior(probability), [len(tgt) for _, tgt in pairs])


@dataclass(frozen=True)
class _Cells:
    """Every way in which a target token can come from a source token or from nothing; all of one token together.

    source:          (cells,) place of the source token, -1 for nothing
    prior:           (cells,) probability of that place
    entry:           (cells,) number of the pair of words
    starts:          (target tokens,) the first cell of each target token
    source_of_entry: (entries,) number of the source word
    """

    source: Ints
    prior: Floats
    entry: Ints
    starts: Ints
    source_of_entry: Ints

    @property
    def num_entries(self) -> int:
        return len(self.source_of_entry)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[Sentence, Sentence]]) -> _Cells:
        vocab = 1 + max((token for pair in pairs for side in pair for token in side), default=0)
        none = np.zeros(0, dtype=np.int64)
        sources, keys, sizes = [none], [none], [none]
        priors: list[Floats] = [np.zeros(0)]
        for src, tgt in pairs:
            words = np.array([vocab, *src])  # nothing counts as one more word of the source
            shape = (len(tgt), len(words))
            sources.append(np.broadcast_to(np.arange(-1, len(src)), shape).ravel())
            priors.append(_prior(len(src), len(tgt)).ravel())
            keys.append((words * vocab + np.array(tgt, dtype=np.int64)[:, None]).ravel())
            sizes.append(np.full(len(tgt), len(words)))
        entries, entry = np.unique(np.concatenate(keys), return_inverse=True)
        each = np.concatenate(sizes)
        starts = np.cumsum(each) - each
        _, source_of_entry = np.unique(entries // vocab, return_inverse=True)
        return cls(np.concatenate(sources), np.concatenate(priors), entry, starts, source_of_entry)

    def posterior(self, probability: Floats) -> Floats:
        """How probable each cell is among those of its target token; probability: (entries,) of the pair of words."""
        if not len(self.starts):
            return np.zeros(0)
        joint = self.prior * probability[self.entry]
        sizes = np.diff(np.append(self.starts, len(joint)))
        shares: Floats = joint / np.repeat(np.add.reduceat(joint, self.starts), sizes)
        return shares

    def best(self, posterior: Floats, lengths: Sequence[int]) -> list[list[int]]:
        """The place of the most probable source token of each target token; lengths: target tokens of each pair."""
        cells = pairwise([*self.starts.tolist(), len(posterior)])
        chosen = iter([int(self.source[start + posterior[start:end].argmax()]) for start, end in cells])
        return [[next(chosen) for _ in range(length)] for length in lengths]


def _prior(src_len: int, tgt_len: int) -> Floats:
    """(tgt_len, 1 + src_len): how probable it is that a target token comes from nothing, or from each source token."""
    prior = np.full((tgt_len, 1 + src_len), _SHARE_OF_NOTHING if src_len else 1.0)
    if src_len:
        src_place = np.arange(1, src_len + 1) / src_len
        tgt_place = np.arange(1, tgt_len + 1) / max(tgt_len, 1)
        nearness = np.exp(-_TENSION * np.abs(tgt_place[:, None] - src_place))
        prior[:, 1:] = (1 - _SHARE_OF_NOTHING) * nearness / nearness.sum(axis=1, keepdims=True)
    return prior
