"""Random segmentations of encoded sentences: BPE-dropout and unigram sampling, in NumPy.

SentencePiece can also sample, but another process cannot reproduce its samples, even with the same seed (version
0.2.3). Its BPE sampling also never retries a dropped merge, so its sequences are longer than with BPE-dropout. Here,
samples are a pure function of the model, the sentences and the random generator.

Sentences are spelled in symbols: single-character pieces, and tokens that are never split (user symbols, bytes). The
symbols of all sentences are concatenated and divided into words that no token crosses. All words are segmented in
parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from nmt.text.subword_file import SPACE, Algorithm, Piece, PieceKind

Ints = NDArray[np.int64]
Tokens = NDArray[np.unsignedinteger[Any]]

_NEVER = np.iinfo(np.int64).max


class SubwordSampler:
    """Samples segmentations of text into the pieces of a vocabulary.

    bpe: each possible merge is dropped with probability `alpha` at each step (BPE-dropout, Provilkov et al. 2020).
    unigram: the probability of a segmentation is proportional to its model probability to the power of `alpha` (Kudo
    2018).
    """

    def __init__(self, algorithm: Algorithm, pieces: Sequence[Piece], alpha: float) -> None:
        spelled = _spell_pieces(pieces)
        self._spelled = np.array([symbol for symbols in spelled for symbol in symbols], dtype=np.int64)
        self._spelled_lengths = np.array([len(symbols) for symbols in spelled])
        self._spelled_starts = np.cumsum(self._spelled_lengths) - self._spelled_lengths
        self._is_space = np.array([piece.text == SPACE for piece in pieces])
        self._segmenter: _BpeDropout | _UnigramSampler
        match algorithm:
            case "bpe":
                self._segmenter = _BpeDropout(pieces, alpha)
            case "unigram":
                self._segmenter = _UnigramSampler(pieces, spelled, alpha)
            case _:
                assert_never(algorithm)

    def resegment(self, tokens: Tokens, lengths: Ints, random: np.random.Generator) -> tuple[Tokens, Ints]:
        """Resegment sentences, passed and returned as concatenated tokens `(total,)` and lengths `(num_sentences,)`."""
        if not len(tokens):
            return tokens, lengths
        sizes = self._spelled_lengths[tokens]
        symbols = gather(self._spelled, self._spelled_starts[tokens], sizes)
        bounds = _from_zero(np.cumsum(sizes))[_from_zero(np.cumsum(lengths))]  # sentence boundaries, in symbols
        starts_word = self._is_space[symbols]
        starts_word[bounds[:-1][lengths > 0]] = True
        kept, sampled = self._segmenter(symbols, np.flatnonzero(starts_word), random)
        return sampled[kept].astype(tokens.dtype), np.diff(_from_zero(np.cumsum(kept))[bounds])


def gather(flat: NDArray[Any], starts: Ints, lengths: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Concatenate the slices of a flat array with the given `starts` and `lengths`, both `(n,)`."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # The index of an element in `flat` is its index in the result plus a constant per slice.
    gathered: NDArray[Any] = flat[np.arange(total) + np.repeat(starts - (ends - lengths), lengths)]
    return gathered


def reverse_each(tokens: Tokens, lengths: NDArray[np.integer[Any]]) -> Tokens:
    """Reverse every sentence of concatenated tokens `(total,)`; lengths: `(num_sentences,)`."""
    ends = np.cumsum(lengths)
    return tokens[np.repeat(2 * ends - lengths - 1, lengths) - np.arange(len(tokens))]


class _BpeDropout:
    """BPE-dropout: in each word, each step applies the best merge that is not dropped at random.

    Each possible merge is dropped with probability `alpha` at each step, independently of earlier steps. A word is
    finished when it has no merges, or when all of them are dropped. Source: Provilkov et al. 2020, algorithm 1.
    """

    def __init__(self, pieces: Sequence[Piece], alpha: float) -> None:
        self._alpha = alpha
        ids = {piece.text: i for i, piece in enumerate(pieces) if piece.kind == PieceKind.ordinary}
        merges = [
            (ids[piece[:split]], ids[piece[split:]], i)
            for piece, i in ids.items()
            for split in range(1, len(piece))
            if piece[:split] in ids and piece[split:] in ids
        ]
        self._merges = _PairTable(merges)
        self._no_token = len(pieces)  # placeholder for a missing neighbor; no merge contains it
        _, ranks = np.unique([-piece.score for piece in pieces], return_inverse=True)
        self._ranks = np.append(ranks.astype(np.int64), -1)  # index -1: no merge

    def __call__(self, symbols: Ints, starts: Ints, random: np.random.Generator) -> tuple[NDArray[np.bool_], Ints]:
        """Return a mask `(total,)` of the first symbol of each token, and the tokens at these positions."""
        total = len(symbols)
        missing = total  # position of a missing neighbor
        tokens = np.append(symbols, self._no_token)
        right, left = np.minimum(np.arange(1, total + 2), missing), np.arange(-1, total)
        right[starts[1:] - 1] = missing
        left[starts] = missing
        merged = np.full(total + 1, -1)  # result of merging a token with its right neighbor
        order = np.full(total + 1, _NEVER)  # priority of this merge: rank, then position

        def update_merges(positions: Ints) -> None:
            merged[positions] = self._merges.find(tokens[positions], tokens[right[positions]])
            rank = self._ranks[merged[positions]]
            order[positions] = np.where(rank >= 0, rank * (total + 1) + positions, _NEVER)

        update_merges(np.arange(total))
        kept = np.ones(total, dtype=np.bool_)
        for position in self._best_merges(order, starts, total, random):
            removed = right[position]
            tokens[position] = merged[position]
            order[removed] = _NEVER
            kept[removed] = False
            right[position] = right[removed]
            left[right[removed]] = position
            update_merges(np.concatenate([position, left[position]]))
        return kept, tokens[:total]

    def _best_merges(self, order: Ints, starts: Ints, total: int, random: np.random.Generator) -> Iterator[Ints]:
        """Yield the positions of the best remaining merges, at most one per word, until all words are finished.

        The caller updates `order` between steps.
        """
        sizes = np.diff(np.append(starts, total))
        positions = np.arange(total)
        while len(positions):
            remaining = np.where(random.random(len(positions)) < self._alpha, _NEVER, order[positions])
            best = np.minimum.reduceat(remaining, np.cumsum(sizes) - sizes)
            active = best != _NEVER
            if not active.all():
                positions, sizes, best = positions[np.repeat(active, sizes)], sizes[active], best[active]
            if len(best):
                yield best % (total + 1)


class _UnigramSampler:
    """Unigram sampling: samples a path in the lattice of each word by forward filtering and backward sampling."""

    def __init__(self, pieces: Sequence[Piece], spelled: Sequence[Sequence[int]], alpha: float) -> None:
        self._weights = alpha * np.array([piece.score for piece in pieces])
        # A trie of the pieces. Nodes are prefixes, edges are symbols.
        nodes: dict[tuple[int, ...], int] = {(): 0}
        edges: list[tuple[int, int, int]] = []
        for symbols in map(tuple, spelled):
            for size in range(1, len(symbols) + 1):
                if symbols[:size] not in nodes:
                    nodes[symbols[:size]] = len(nodes)
                    edges.append((nodes[symbols[: size - 1]], symbols[size - 1], nodes[symbols[:size]]))
        self._edges = _PairTable(edges)
        self._piece = np.full(len(nodes), -1)
        self._piece[[nodes[tuple(symbols)] for symbols in spelled]] = np.arange(len(spelled))

    def __call__(self, symbols: Ints, starts: Ints, random: np.random.Generator) -> tuple[NDArray[np.bool_], Ints]:
        """Return a mask `(total,)` of the last symbol of each token, and the tokens at these positions."""
        total = len(symbols)
        sizes = np.diff(np.append(starts, total))
        depth = np.arange(total) - np.repeat(starts, sizes)
        first, last, piece = self._arcs(symbols, np.repeat(starts + sizes, sizes))
        arcs = np.argsort(depth[last] * total + last, kind="stable")
        first, last, piece = first[arcs], last[arcs], piece[arcs]
        before = np.where(depth[first] > 0, first - 1, total)  # the previous symbol; `total` at the start of a word
        # Arcs with the same last symbol are consecutive, and these symbols are ordered by depth.
        begins = np.flatnonzero(np.append(True, last[1:] != last[:-1]))
        ends = np.append(begins[1:], len(last))
        ending = last[begins]
        mass = np.zeros(total + 1)  # log-sum over all paths that end at a symbol
        for group in np.split(np.arange(total), np.flatnonzero(np.diff(depth[ending])) + 1):
            arcs_here = slice(begins[group[0]], ends[group[-1]])
            paths = mass[before[arcs_here]] + self._weights[piece[arcs_here]]
            mass[ending[group]] = np.logaddexp.reduceat(paths, begins[group] - arcs_here.start)
        # Sample an arc for every symbol, even if the path does not visit it.
        cumulative = np.cumsum(np.exp(mass[before] + self._weights[piece] - mass[last]))
        sampled = _from_zero(cumulative)[begins] + random.random(total)
        chosen = np.empty(total, dtype=np.int64)
        chosen[ending] = np.clip(np.searchsorted(cumulative, sampled, "right"), begins, ends - 1)
        kept = np.zeros(total, dtype=np.bool_)
        position = starts + sizes - 1
        while len(position):
            kept[position] = True
            position = before[chosen[position]]
            position = position[position < total]
        return kept, piece[chosen]

    def _arcs(self, symbols: Ints, word_ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return first symbol, last symbol and piece of every match of a piece within a word."""
        arcs: list[tuple[Ints, Ints, Ints]] = []
        first = last = np.arange(len(symbols))
        node = np.zeros(len(symbols), dtype=np.int64)
        while len(first):
            node = self._edges.find(node, symbols[last])
            is_piece = (node >= 0) & (self._piece[node] >= 0)
            arcs.append((first[is_piece], last[is_piece], self._piece[node[is_piece]]))
            active = (node >= 0) & (last + 1 < word_ends[first])
            first, last, node = first[active], last[active] + 1, node[active]
        firsts, lasts, pieces = map(np.concatenate, zip(*arcs, strict=True))
        return firsts, lasts, pieces


class _PairTable:
    """A vectorized map from pairs of integers below 2^31 to integers."""

    def __init__(self, entries: Sequence[tuple[int, int, int]]) -> None:
        table = np.array(entries, dtype=np.int64).reshape(-1, 3)
        keys = (table[:, 0] << 32) + table[:, 1]
        order = np.argsort(keys)
        self._keys = np.append(keys[order], _NEVER)
        self._values = np.append(table[order, 2], -1)

    def find(self, first: Ints, second: Ints) -> Ints:
        """Look up pairs, `(n,)`; -1 if a pair is missing."""
        keys = (first << 32) + second
        indices = np.searchsorted(self._keys, keys)
        return np.where(self._keys[indices] == keys, self._values[indices], -1)


def _spell_pieces(pieces: Sequence[Piece]) -> list[list[int]]:
    """Return the symbols of each piece: its characters, or the piece itself if it is never split."""
    ordinary = {piece.text: i for i, piece in enumerate(pieces) if piece.kind == PieceKind.ordinary}
    characters = {text: i for text, i in ordinary.items() if len(text) == 1}
    return [
        [characters[character] for character in piece.text]
        if piece.kind == PieceKind.ordinary and characters.keys() >= set(piece.text)
        else [i]
        for i, piece in enumerate(pieces)
    ]


def _from_zero(sums: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(1, dtype=sums.dtype), sums])
