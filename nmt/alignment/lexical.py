"""A small statistical aligner: it judges the attention of a model, and tells which pieces translate which.

The model of Dyer et al. 2013 ("A Simple, Fast, and Effective Reparameterization of IBM Model 2"): each target token is
the translation of one source token or of nothing; a source token is the likelier the nearer it lies to the diagonal.
The tension of the diagonal and the share of nothing are theirs, and the probabilities of words are estimated by
expectation maximisation. Links are those on which both directions agree: few, but most of them right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TENSION = 4.0
_SHARE_OF_NOTHING = 0.08
_ITERATIONS = 5

# How often `estimate_lexicon` reads all pairs.
PASSES = 1 + _ITERATIONS

Sentence = Sequence[int]
Pairs = Sequence[tuple[Sentence, Sentence]]
Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]


def agreed_links(pairs: Pairs) -> list[set[tuple[int, int]]]:
    """The links (source token, target token) of each pair that both directions find, by place in the sentence.

    pairs: token ids of source and target, without begin and end token; a sentence may be empty
    """
    forward = best_sources(pairs)
    backward = best_sources([(tgt, src) for src, tgt in pairs])
    return [
        {(source, target) for target, source in enumerate(sources) if source >= 0 and targets[source] == target}
        for sources, targets in zip(forward, backward, strict=True)
    ]


def best_sources(pairs: Pairs) -> list[list[int]]:
    """The most probable source token of each target token, by its place; -1 where it comes from nothing."""
    vocab = 1 + max((token for pair in pairs for side in pair for token in side), default=0)
    cells = _Cells.of_pairs(pairs, vocab)
    lexicon = _estimate(lambda: [cells], vocab)
    return cells.best(cells.posterior(lexicon.probability), [len(tgt) for _, tgt in pairs])


def estimate_lexicon(read: Callable[[], Iterable[Pairs]], vocab: int) -> Lexicon:
    """How probable each target token is as the translation of each source token.

    read: gives all pairs, chunk by chunk, each time it is called, which is `PASSES` times; a chunk needs about 100
    bytes for each way in which a token of it can come from another, the lexicon 60 bytes an entry while it is estimated
    vocab: token ids of both sides are below it
    """
    return _estimate(lambda: (_Cells.of_pairs(pairs, vocab) for pairs in read()), vocab)


@dataclass(frozen=True)
class Lexicon:
    """The probability of each target token, given a source token, for those that stand in one pair of sentences.

    keys:        (entries,) in ascending order, source token * vocab + target token; source token `vocab` is nothing
    probability: (entries,); those of one source token sum to 1
    """

    vocab: int
    keys: Ints
    probability: Floats

    def best(self, count: int) -> Ints:
        """The keys of the `count` most probable target tokens of each source token but nothing, in ascending order.

        Of equally probable ones those with the lower ids.
        """
        sources = self.keys // self.vocab
        order = np.lexsort((-self.probability, sources))  # stable, so that equals stay in the order of their keys
        starts = np.searchsorted(sources, sources)  # where the entries of the same source begin, in either order
        is_best = (np.arange(len(order)) - starts < count) & (sources < self.vocab)
        best: Ints = np.sort(self.keys[order[is_best]])
        return best


def _estimate(read: Callable[[], Iterable[_Cells]], vocab: int) -> Lexicon:
    """Expectation maximisation from a uniform start; `read` gives the same cells each time."""
    keys = np.zeros(0, dtype=np.int64)
    for cells in read():
        keys = _merged(keys, cells.keys)
    sources = (keys // vocab).astype(np.int32)
    probability = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        counts = np.zeros(len(keys))
        for cells in read():
            places = np.searchsorted(keys, cells.keys)
            shares = cells.posterior(probability[places])
            counts[places] += np.bincount(cells.entry, shares, minlength=len(places))
        probability = counts / np.bincount(sources, counts)[sources]
    return Lexicon(vocab, keys, probability)


def _merged(first: Ints, second: Ints) -> Ints:
    """The distinct values of two ascending arrays (n,) of what is not negative, ascending."""
    both = np.concatenate([first, second])
    both.sort(kind="stable")  # two runs are only merged; NumPy's own union hashes them, which takes ten times as long
    return both[np.diff(both, prepend=-1) > 0]


@dataclass(frozen=True)
class _Cells:
    """Every way in which a target token can come from a source token or from nothing; all of one token together.

    source: (cells,) place of the source token, -1 for nothing
    prior:  (cells,) probability of that place
    entry:  (cells,) place of its pair of words among the keys
    starts: (target tokens,) the first cell of each target token
    keys:   (entries,) the pairs of words, as in `Lexicon`
    """

    source: Ints
    prior: Floats
    entry: Ints
    starts: Ints
    keys: Ints

    @classmethod
    def of_pairs(cls, pairs: Pairs, vocab: int) -> _Cells:
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
        return cls(np.concatenate(sources), np.concatenate(priors), entry, starts, entries)

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
