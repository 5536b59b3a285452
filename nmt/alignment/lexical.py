"""Statistical word alignment, for choosing and training attention heads and for the lexicon of shortlists.

The model is that of Dyer et al. 2013 ("A Simple, Fast, and Effective Reparameterization of IBM Model 2"): each target
token translates one source token or the null token, and source tokens near the diagonal are more probable. Diagonal
tension and null probability are those of the paper. Word probabilities are estimated by expectation maximization (EM).
Links are the intersection of both directions, which favors precision over recall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TENSION = 4.0
_NULL_PROBABILITY = 0.08
_ITERATIONS = 5

# Number of times that `estimate_lexicon` reads all pairs.
PASSES = 1 + _ITERATIONS

# Maximum number of (source token, target token) cells of a chunk and of a pair in `agreed_links`; a cell needs about
# 100 bytes.
_CHUNK_CELLS, _MAX_PAIR_CELLS = 1 << 22, 1 << 20

# Probability of a target token that does not co-occur with the source token.
_UNSEEN = 1e-9

Sentence = Sequence[int]
Pairs = Sequence[tuple[Sentence, Sentence]]
Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]


def agreed_links(pairs: Pairs) -> list[set[tuple[int, int]]]:
    """Return the (source position, target position) links of each pair in the intersection of both directions.

    Pairs of more than about a thousand tokens per side, which would need too much memory, have no links.

    pairs: token ids of source and target, without BOS and EOS; sentences may be empty
    """
    pairs = [pair if _num_cells(pair) <= _MAX_PAIR_CELLS else ((), ()) for pair in pairs]
    return _agreed(best_sources(pairs), best_sources(_swapped(pairs)))


def _agreed(forward: Sequence[Sequence[int]], backward: Sequence[Sequence[int]]) -> list[set[tuple[int, int]]]:
    """Return the links found in both directions, given the best source of each target token and the reverse."""
    return [
        {(source, target) for target, source in enumerate(sources) if source >= 0 and targets[source] == target}
        for sources, targets in zip(forward, backward, strict=True)
    ]


def _swapped(pairs: Pairs) -> Pairs:
    return [(tgt, src) for src, tgt in pairs]


def best_sources(pairs: Pairs) -> list[list[int]]:
    """Return the position of the most probable source token of each target token; -1 for the null token."""
    vocab = 1 + max((token for pair in pairs for side in pair for token in side), default=0)
    chunks = _chunks(pairs)
    if len(chunks) > 1:
        trained = estimate_lexicon(lambda: chunks, vocab)
        return [sources for chunk in chunks for sources in trained.best_sources(chunk)]
    cells = _Cells.of_pairs(pairs, vocab)
    lexicon = _estimate(lambda: [cells], vocab)
    return cells.best(cells.posterior(lexicon.probability), [len(tgt) for _, tgt in pairs])


def _num_cells(pair: tuple[Sentence, Sentence]) -> int:
    return (len(pair[0]) + 1) * len(pair[1])


def _chunks(pairs: Pairs) -> list[Pairs]:
    """Split pairs into consecutive chunks of about `_CHUNK_CELLS` cells."""
    numbers = (np.cumsum([_num_cells(pair) for pair in pairs], dtype=np.int64) // _CHUNK_CELLS).tolist()
    numbered = zip(numbers, pairs, strict=True)
    return [[pair for _, pair in chunk] for _, chunk in groupby(numbered, key=lambda item: item[0])]


def estimate_lexicon(read: Callable[[], Iterable[Pairs]], vocab: int) -> Lexicon:
    """Estimate the translation probability of each target token given each source token.

    read:  returns all pairs in chunks, and is called `PASSES` times. Memory is about 100 bytes per (source, target)
           cell of a chunk and 60 bytes per entry of the lexicon
    vocab: exclusive upper bound of the token ids of both sides
    """
    return _estimate(lambda: (_Cells.of_pairs(pairs, vocab) for pairs in read()), vocab)


@dataclass(frozen=True)
class Lexicon:
    """Probability of target tokens given a source token, for tokens that co-occur in a pair.

    keys:        (entries,) ascending, source token * vocab + target token; source token `vocab` is the null token
    probability: (entries,); sums to 1 for each source token
    """

    vocab: int
    keys: Ints
    probability: Floats

    def lookup(self, keys: Ints) -> Floats:
        """Return the probability of each key, `_UNSEEN` if its tokens do not co-occur."""
        if not len(self.keys):
            return np.full(len(keys), _UNSEEN)
        entries = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[entries] == keys, self.probability[entries], _UNSEEN)

    def best_sources(self, pairs: Pairs) -> list[list[int]]:
        """Return the position of the most probable source token of each target token; -1 for the null token."""
        cells = _Cells.of_pairs(pairs, self.vocab)
        return cells.best(cells.posterior(self.lookup(cells.keys)), [len(tgt) for _, tgt in pairs])

    def best(self, count: int) -> Ints:
        """Return the keys of the `count` most probable target tokens of each source token except the null token.

        The result is ascending. Of equally probable tokens, those with lower ids are preferred.
        """
        sources = self.keys // self.vocab
        order = np.lexsort((-self.probability, sources))  # stable: ties keep the order of their keys
        starts = np.searchsorted(sources, sources)  # first entry of the same source, in either order
        is_best = (np.arange(len(order)) - starts < count) & (sources < self.vocab)
        best: Ints = np.sort(self.keys[order[is_best]])
        return best


@dataclass(frozen=True)
class LexicalAligner:
    """A trained statistical aligner."""

    forward: Lexicon
    backward: Lexicon

    @classmethod
    def train(cls, read: Callable[[], Iterable[Pairs]], vocab: int) -> LexicalAligner:
        """Estimate the lexicons of both directions; `read` and `vocab` as in `estimate_lexicon`."""
        return cls(estimate_lexicon(read, vocab), estimate_lexicon(lambda: map(_swapped, read()), vocab))

    def save(self, folder: Path) -> None:
        """Write the lexicons to a new folder, from which other processes on this machine map them into memory."""
        folder.mkdir()
        for name, lexicon in (("forward", self.forward), ("backward", self.backward)):
            np.save(folder / f"{name}.keys.npy", lexicon.keys)
            np.save(folder / f"{name}.probability.npy", lexicon.probability)

    @classmethod
    def load(cls, folder: Path, vocab: int) -> LexicalAligner:
        """Map saved lexicons into memory."""

        def load(name: str) -> Lexicon:
            keys = np.load(folder / f"{name}.keys.npy", mmap_mode="r", allow_pickle=False)
            probability = np.load(folder / f"{name}.probability.npy", mmap_mode="r", allow_pickle=False)
            return Lexicon(vocab, keys, probability)

        return cls(load("forward"), load("backward"))

    def links(self, pairs: Pairs) -> list[set[tuple[int, int]]]:
        """Return the links of each pair, like `agreed_links`, but also of very long pairs."""
        return _agreed(self.forward.best_sources(pairs), self.backward.best_sources(_swapped(pairs)))


def _estimate(read: Callable[[], Iterable[_Cells]], vocab: int) -> Lexicon:
    """Run EM from uniform probabilities; `read` returns the same cells each time."""
    keys = np.zeros(0, dtype=np.int64)
    for cells in read():
        keys = _union(keys, cells.keys)
    sources = (keys // vocab).astype(np.int32)
    probability = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        counts = np.zeros(len(keys))
        for cells in read():
            entries = np.searchsorted(keys, cells.keys)
            posterior = cells.posterior(probability[entries])
            counts[entries] += np.bincount(cells.entry, posterior, minlength=len(entries))
        probability = counts / np.bincount(sources, counts)[sources]
    return Lexicon(vocab, keys, probability)


def _union(first: Ints, second: Ints) -> Ints:
    """Return the ascending union of two ascending arrays (n,) of non-negative values."""
    both = np.concatenate([first, second])
    both.sort(kind="stable")  # merges two sorted runs, ten times as fast as np.union1d
    return both[np.diff(both, prepend=-1) > 0]


@dataclass(frozen=True)
class _Cells:
    """All cells (source token or null, target token) of some pairs, grouped by target token.

    source: (cells,) position of the source token, -1 for null
    prior:  (cells,) probability of that position
    entry:  (cells,) index in `keys`
    starts: (target tokens,) first cell of each target token
    keys:   (entries,) as in `Lexicon`
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
            words = np.array([vocab, *src])  # the null token is one more source token
            shape = (len(tgt), len(words))
            sources.append(np.broadcast_to(np.arange(-1, len(src)), shape).ravel())
            priors.append(_prior(len(src), len(tgt)).ravel())
            keys.append((words * vocab + np.array(tgt, dtype=np.int64)[:, None]).ravel())
            sizes.append(np.full(len(tgt), len(words)))
        distinct_keys, entry = np.unique(np.concatenate(keys), return_inverse=True)
        all_sizes = np.concatenate(sizes)
        starts = np.cumsum(all_sizes) - all_sizes
        return cls(np.concatenate(sources), np.concatenate(priors), entry, starts, distinct_keys)

    def posterior(self, probability: Floats) -> Floats:
        """Return the probability of each cell given its target token. probability: (entries,)."""
        if not len(self.starts):
            return np.zeros(0)
        joint = self.prior * probability[self.entry]
        sizes = np.diff(np.append(self.starts, len(joint)))
        posterior: Floats = joint / np.repeat(np.add.reduceat(joint, self.starts), sizes)
        return posterior

    def best(self, posterior: Floats, lengths: Sequence[int]) -> list[list[int]]:
        """Return the most probable source position of each target token. lengths: target tokens of each pair."""
        cells = pairwise([*self.starts.tolist(), len(posterior)])
        chosen = iter([int(self.source[start + posterior[start:end].argmax()]) for start, end in cells])
        return [[next(chosen) for _ in range(length)] for length in lengths]


def _prior(src_len: int, tgt_len: int) -> Floats:
    """Return the probability of the null token and of each source position, (tgt_len, 1 + src_len)."""
    prior = np.full((tgt_len, 1 + src_len), _NULL_PROBABILITY if src_len else 1.0)
    if src_len:
        src_position = np.arange(1, src_len + 1) / src_len
        tgt_position = np.arange(1, tgt_len + 1) / tgt_len
        proximity = np.exp(-_TENSION * np.abs(tgt_position[:, None] - src_position))
        prior[:, 1:] = (1 - _NULL_PROBABILITY) * proximity / proximity.sum(axis=1, keepdims=True)
    return prior
