"""Other segmentations of sentences that are given as token ids: BPE-dropout and unigram sampling, in NumPy.

SentencePiece samples too, but what it draws in one process cannot be drawn again in another, whatever the seed (seen in
version 0.2.3), and it never tries a dropped merge of bpe again, which makes text longer than BPE-dropout does. Here all
is a pure function of the model, the sentences and the generator of random numbers.

Sentences are spelled out in symbols: pieces of one character, and those tokens that stay whole (user symbols, bytes).
The symbols of all sentences lie end to end, cut up into words that no token reaches beyond, and all words are put
together at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from nmt.text.subword_file import SPACE
from nmt.text.tokenizer import Vocabulary

Ints = NDArray[np.int64]
Tokens = NDArray[np.unsignedinteger[Any]]

_NEVER = np.iinfo(np.int64).max


class SubwordSampler:
    """Draws segmentations of text in the pieces of a vocabulary.

    With bpe, each possible merge is dropped with probability `alpha` at each step (BPE-dropout, Provilkov et al. 2020).
    With unigram, all segmentations are possible; each one's probability is proportional to the power `alpha` of that in
    the model (Kudo 2018).
    """

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        spelled = _spell_pieces(vocabulary)
        self._spelled = np.array([symbol for symbols in spelled for symbol in symbols], dtype=np.int64)
        self._spelled_sizes = np.array([len(symbols) for symbols in spelled])
        self._spelled_starts = np.cumsum(self._spelled_sizes) - self._spelled_sizes
        self._is_space = np.array([piece == SPACE for piece in vocabulary.pieces])
        self._segmenter: _DroppingMerges | _SampledPaths
        match vocabulary.algorithm:
            case "bpe":
                self._segmenter = _DroppingMerges(vocabulary, alpha)
            case "unigram":
                self._segmenter = _SampledPaths(vocabulary.scores, spelled, alpha)
            case _:
                assert_never(vocabulary.algorithm)

    def resegment(self, tokens: Tokens, lengths: Ints, random: np.random.Generator) -> tuple[Tokens, Ints]:
        """Sentences of the same text: tokens `(total,)` end to end and lengths `(num_sentences,)` in, and again out."""
        if not len(tokens):
            return tokens, lengths
        sizes = self._spelled_sizes[tokens]
        symbols = gather(self._spelled, self._spelled_starts[tokens], sizes)
        bounds = _from_zero(np.cumsum(sizes))[_from_zero(np.cumsum(lengths))]  # of the sentences, in symbols
        begins_word = self._is_space[symbols]
        begins_word[bounds[:-1][lengths > 0]] = True
        kept, sampled = self._segmenter(symbols, np.flatnonzero(begins_word), random)
        return sampled[kept].astype(tokens.dtype), np.diff(_from_zero(np.cumsum(kept))[bounds])


def gather(flat: NDArray[Any], starts: Ints, lengths: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Parts of a flat array, end to end: those that begin at `starts` `(n,)` and have `lengths` `(n,)`."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    part: NDArray[Any] = flat[np.arange(total) + np.repeat(starts - (ends - lengths), lengths)]
    return part


def reverse_each(tokens: Tokens, lengths: NDArray[np.integer[Any]]) -> Tokens:
    """Every sentence backwards; tokens `(total,)` end to end, lengths `(num_sentences,)`."""
    ends = np.cumsum(lengths)
    return tokens[np.repeat(2 * ends - lengths - 1, lengths) - np.arange(len(tokens))]


class _DroppingMerges:
    """Merges the best pair of neighbors in every word, step by step, but drops merges at random: BPE-dropout.

    Every possible merge is dropped with probability `alpha` at every step; a dropped one may be applied at the next. A
    word is done when it has no merge, or when all of them are dropped. Source: Provilkov et al. 2020, algorithm 1.
    """

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        self._alpha = alpha
        ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if vocabulary.ordinary[i]}
        merges = [
            (ids[piece[:cut]], ids[piece[cut:]], i)
            for piece, i in ids.items()
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        ]
        self._merges = _Table(merges)
        self._nothing = len(vocabulary.pieces)  # In place of a token that is not there; it merges with none.
        _, ranks = np.unique(-np.array(vocabulary.scores), return_inverse=True)
        self._ranks = np.append(ranks.astype(np.int64), -1)  # The last one is for no merge.

    def __call__(self, symbols: Ints, starts: Ints, random: np.random.Generator) -> tuple[NDArray[np.bool_], Ints]:
        """The place of each token's first symbol, as a mask `(total,)`, and the tokens at these places."""
        total = len(symbols)
        nowhere = total  # The place of the neighbor of a token that has none.
        tokens = np.append(symbols, self._nothing)
        right, left = np.minimum(np.arange(1, total + 2), nowhere), np.arange(-1, total)
        right[starts[1:] - 1] = nowhere
        left[starts] = nowhere
        merged = np.full(total + 1, -1)  # What a token and its right neighbor become.
        order = np.full(total + 1, _NEVER)  # Of the merges, the lowest first: by rank, then from left to right.

        def look_up(places: Ints) -> None:
            merged[places] = self._merges.find(tokens[places], tokens[right[places]])
            rank = self._ranks[merged[places]]
            order[places] = np.where(rank >= 0, rank * (total + 1) + places, _NEVER)

        look_up(np.arange(total))
        kept = np.ones(total, dtype=np.bool_)
        for place in self._best_of_each(order, starts, total, random):
            gone = right[place]
            tokens[place] = merged[place]
            order[gone] = _NEVER
            kept[gone] = False
            right[place] = right[gone]
            left[right[gone]] = place
            look_up(np.concatenate([place, left[place]]))
        return kept, tokens[:total]

    def _best_of_each(self, order: Ints, starts: Ints, total: int, random: np.random.Generator) -> Iterator[Ints]:
        """The place of the best merge in each word that is left when some are dropped, until all words are done.

        The caller changes `order` meanwhile.
        """
        sizes = np.diff(np.append(starts, total))
        places = np.arange(total)
        while len(places):
            remaining = np.where(random.random(len(places)) < self._alpha, _NEVER, order[places])
            best = np.minimum.reduceat(remaining, np.cumsum(sizes) - sizes)
            goes_on = best != _NEVER
            if not goes_on.all():
                places, sizes, best = places[np.repeat(goes_on, sizes)], sizes[goes_on], best[goes_on]
            if len(best):
                yield best % (total + 1)


class _SampledPaths:
    """Draws a path through all the pieces that a word can be made of: forward filtering, backward sampling."""

    def __init__(self, scores: Sequence[float], spelled: Sequence[Sequence[int]], alpha: float) -> None:
        self._weights = alpha * np.array(scores)
        # The pieces as a tree: a node for each beginning of a piece; from node to node goes a symbol.
        nodes: dict[tuple[int, ...], int] = {(): 0}
        branches: list[tuple[int, int, int]] = []
        for symbols in map(tuple, spelled):
            for size in range(1, len(symbols) + 1):
                if symbols[:size] not in nodes:
                    nodes[symbols[:size]] = len(nodes)
                    branches.append((nodes[symbols[: size - 1]], symbols[size - 1], nodes[symbols[:size]]))
        self._branches = _Table(branches)
        self._piece = np.full(len(nodes), -1)
        self._piece[[nodes[tuple(symbols)] for symbols in spelled]] = np.arange(len(spelled))

    def __call__(self, symbols: Ints, starts: Ints, random: np.random.Generator) -> tuple[NDArray[np.bool_], Ints]:
        """The place of each token's last symbol, as a mask `(total,)`, and the tokens at these places."""
        total = len(symbols)
        sizes = np.diff(np.append(starts, total))
        depth = np.arange(total) - np.repeat(starts, sizes)
        first, last, piece = self._arcs(symbols, np.repeat(starts + sizes, sizes))
        arcs = np.argsort(depth[last] * total + last, kind="stable")
        first, last, piece = first[arcs], last[arcs], piece[arcs]
        before = np.where(depth[first] > 0, first - 1, total)  # The symbol before a piece; none before a word.
        # The arcs that end with the same symbol lie together, and these symbols are in the order of their depth.
        begins = np.flatnonzero(np.append(True, last[1:] != last[:-1]))
        ends = np.append(begins[1:], len(last))
        ending = last[begins]
        mass = np.zeros(total + 1)  # Logarithm of the sum over all paths that end with a symbol.
        for group in np.split(np.arange(total), np.flatnonzero(np.diff(depth[ending])) + 1):
            arcs_here = slice(begins[group[0]], ends[group[-1]])
            paths = mass[before[arcs_here]] + self._weights[piece[arcs_here]]
            mass[ending[group]] = np.logaddexp.reduceat(paths, begins[group] - arcs_here.start)
        # An arc for every symbol, whether a path will come along there or not.
        share = np.cumsum(np.exp(mass[before] + self._weights[piece] - mass[last]))
        drawn = _from_zero(share)[begins] + random.random(total)
        chosen = np.empty(total, dtype=np.int64)
        chosen[ending] = np.clip(np.searchsorted(share, drawn, "right"), begins, ends - 1)
        kept = np.zeros(total, dtype=np.bool_)
        place = starts + sizes - 1
        while len(place):
            kept[place] = True
            place = before[chosen[place]]
            place = place[place < total]
        return kept, piece[chosen]

    def _arcs(self, symbols: Ints, word_ends: Ints) -> tuple[Ints, Ints, Ints]:
        """First and last symbol of every piece at every place of the text where it may stand, and the piece."""
        found: list[tuple[Ints, Ints, Ints]] = []
        first = last = np.arange(len(symbols))
        node = np.zeros(len(symbols), dtype=np.int64)
        while len(first):
            node = self._branches.find(node, symbols[last])
            is_piece = (node >= 0) & (self._piece[node] >= 0)
            found.append((first[is_piece], last[is_piece], self._piece[node[is_piece]]))
            goes_on = (node >= 0) & (last + 1 < word_ends[first])
            first, last, node = first[goes_on], last[goes_on] + 1, node[goes_on]
        firsts, lasts, pieces = map(np.concatenate, zip(*found, strict=True))
        return firsts, lasts, pieces


class _Table:
    """From two numbers below 2^31 to a third one, for many at a time."""

    def __init__(self, entries: Sequence[tuple[int, int, int]]) -> None:
        table = np.array(entries, dtype=np.int64).reshape(-1, 3)
        keys = (table[:, 0] << 32) + table[:, 1]
        order = np.argsort(keys)
        self._keys = np.append(keys[order], _NEVER)
        self._values = np.append(table[order, 2], -1)

    def find(self, first: Ints, second: Ints) -> Ints:
        """The third numbers `(n,)`; -1 where there is none."""
        keys = (first << 32) + second
        places = np.searchsorted(self._keys, keys)
        return np.where(self._keys[places] == keys, self._values[places], -1)


def _spell_pieces(vocabulary: Vocabulary) -> list[list[int]]:
    """The symbols of each piece: one for each character, or the piece itself when it stays whole."""
    characters = {piece: i for i, piece in enumerate(vocabulary.pieces) if vocabulary.ordinary[i] and len(piece) == 1}
    return [
        [characters[character] for character in piece] if is_ordinary and characters.keys() >= set(piece) else [i]
        for i, (piece, is_ordinary) in enumerate(zip(vocabulary.pieces, vocabulary.ordinary, strict=True))
    ]


def _from_zero(sums: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(1, dtype=sums.dtype), sums])
