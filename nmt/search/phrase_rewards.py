"""Rewards of the next token from phrases with a bias, for many hypotheses at a time."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.search.phrases import PhraseTrie

# Biases are rounded to multiples of this. Sums are then exact and independent of their order.
_RESOLUTION = 2.0**-30

# Maximum number of cached next-token rewards, 12 bytes each; above it, the cache is emptied.
_CACHE_SIZE = 1 << 22

# Buckets of `_PairTable` for each entry.
_BUCKETS_PER_ENTRY = 16

Biases = tuple[tuple[tuple[int, ...], float], ...]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Phrases = NDArray[np.int32]


class TokenRewards(NamedTuple):
    """Rewards of some tokens after some hypotheses; all fields (count,).

    rows:   int64, index of the hypothesis
    tokens: int64
    values: float32
    """

    rows: Integers
    tokens: Integers
    values: NDArray[np.float32]


class PhraseRewards:
    """Phrases with a bias, and the reward of each token after any output.

    Met phrases are preferred phrases that an output contains, (hypotheses, width) int32, padded with `padding`.

    padding: number of phrases
    gains:   (phrases + 1,) float64, sum of the positive biases of each phrase; 0 for padding
    ends:    (nodes, width) int32, preferred phrases that end at a node, padded
    costs:   (nodes,) float64, sum of the negative biases of phrases that end at a node
    """

    def __init__(self, biases: Biases) -> None:
        """biases: token ids and bias of each phrase; a phrase may occur several times."""
        by_phrase: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for phrase, bias in biases:
            by_phrase[phrase].append(round(bias / _RESOLUTION) * _RESOLUTION)
        phrases = [*by_phrase]
        self._trie = trie = PhraseTrie(phrases)
        self.padding = len(phrases)
        gains = [sum(max(0.0, bias) for bias in by_phrase[phrase]) for phrase in phrases]
        costs = [sum(min(0.0, bias) for bias in by_phrase[phrase]) for phrase in phrases]
        self.gains = np.array([*gains, 0.0])
        self.costs, self.ends = self._sum_by_node(costs)
        suffixes = [[*trie.suffixes(node), 0] for node in range(len(trie.children))]
        self._suffixes = _pad_rows(suffixes, -1).astype(np.int64)
        paths = [trie.path(phrase) for phrase in phrases]
        self._first_nodes = np.array([*(path[1] for path in paths), 0])
        rates = [max(0.0, *by_phrase[phrase]) / len(phrase) for phrase in phrases]
        self._started = _StartedPhrases(paths, rates, len(suffixes))
        self._depths = np.array(trie.depths)
        parents, self._tokens = np.zeros((2, len(suffixes)), dtype=np.int64)
        for node, children in enumerate(trie.children):
            for token, child in children.items():
                parents[child] = node
                self._tokens[child] = token
        nodes = np.arange(len(suffixes))
        self._edges = _PairTable(parents[1:], self._tokens[1:], nodes[1:])
        credits, best = self._credits(nodes, nodes, np.empty((len(nodes), 0), dtype=np.int32))
        self._rewards_of_nodes = self.costs + self.gains[self.ends].sum(axis=1) + credits
        self._critical = _CriticalSteps(parents, self.ends, best, self.padding)
        self._lock, self._next_tokens = Lock(), _NodeRewards(len(nodes))

    def _sum_by_node(self, costs: list[float]) -> tuple[Floats, Phrases]:
        """Return `costs` and `ends`. costs: by phrase."""
        trie = self._trie
        sums = np.zeros(len(trie.children))
        ends: list[list[int]] = [[] for _ in trie.children]
        sums[trie.ends] = costs
        for phrase, node in enumerate(trie.ends):
            ends[node] = [phrase] if self.gains[phrase] else []
        for node in range(1, len(ends)):  # suffixes are shorter and have lower numbers
            sums[node] += sums[trie.suffix_links[node]]
            ends[node] += ends[trie.suffix_links[node]]
        return sums, _pad_rows(ends, self.padding)

    def at_root(self, vocab: int) -> NDArray[np.float32]:
        """Return the reward of each token if no phrase is started or met, (vocab,)."""
        rewards = np.zeros(vocab, dtype=np.float32)
        children = self._trie.children[0]
        rewards[[*children]] = self._rewards_of_nodes[[*children.values()]]
        return rewards

    def same_first_token(self, met: Phrases, phrases: Phrases) -> NDArray[np.bool_]:
        """Return whether each met phrase (rows, width) begins like the phrase of its row; phrases: (rows,)."""
        is_same: NDArray[np.bool_] = self._first_nodes[met] == self._first_nodes[phrases, None]
        return is_same

    def of_first_token(self, phrases: Phrases, met: Phrases) -> NDArray[np.float32]:
        """Return the reward of each phrase's first token if no phrase is started, (rows,).

        phrases, met: (rows,), (rows, width)
        """
        return self._rewards(self._first_nodes[phrases], np.arange(len(phrases)), met)

    def first_tokens(self, met: Phrases, rewards: NDArray[np.float32]) -> TokenRewards:
        """Return the rewards that differ from those `at_root` because phrases are met.

        met, rewards: (hypotheses, width), rewards: `of_first_token` of each met phrase
        """
        rows, columns = self._critical.at_root[met].nonzero()
        tokens = self._tokens[self._first_nodes[met[rows, columns]]]
        return TokenRewards(rows, tokens, rewards[rows, columns])

    def next_tokens(self, nodes: Integers) -> TokenRewards:
        """Return the rewards after a started phrase if no phrase is met. nodes: (hypotheses,)."""
        with self._lock:  # searches in several threads share the cache
            if self._next_tokens.size > _CACHE_SIZE:
                self._next_tokens = _NodeRewards(len(self._depths))
            for node in self._next_tokens.missing(nodes):
                self._next_tokens.add(node, *self._compute_next_tokens(node))
            return self._next_tokens.after(nodes)

    def next_tokens_after(self, nodes: Integers, met: Phrases) -> TokenRewards:
        """Return the rewards that differ from those of `next_tokens` because phrases are met.

        nodes, met: (hypotheses,), (hypotheses, width)
        """
        rows, columns = self._critical.is_parent[self._suffixes[nodes]].nonzero()
        pairs, children = self._critical.find(self._suffixes[nodes[rows], columns], met[rows])
        rows, columns, tokens = rows[pairs], columns[pairs], self._tokens[children]
        # A longer suffix may continue with the same token.
        is_longest = columns == 0
        (others,) = (~is_longest).nonzero()
        is_longest[others] = self.step(nodes[rows[others]], tokens[others]) == children[others]
        rows, children = rows[is_longest], children[is_longest]
        return TokenRewards(rows, tokens[is_longest], self._rewards(children, rows, met))

    def step(self, nodes: Integers, tokens: Integers) -> Integers:
        """Return the nodes after one more token each, (hypotheses,)."""
        suffixes = self._suffixes[nodes]
        (rows, _), children = self._edges.find(suffixes, tokens[:, None])
        stepped = np.zeros_like(nodes)
        stepped[rows[::-1]] = children[::-1]  # the longest match is assigned last
        return stepped

    def _compute_next_tokens(self, node: int) -> tuple[list[int], Floats]:
        """Return the tokens whose rewards after a started phrase differ from those at the root, and these rewards."""
        children: dict[int, int] = {}
        for suffix in reversed([*self._trie.suffixes(node)]):
            children |= self._trie.children[suffix]
        tokens = sorted(children)
        return tokens, self._rewards_of_nodes[[children[token] for token in tokens]]

    def _rewards(self, nodes: Integers, rows: Integers, met: Phrases) -> NDArray[np.float32]:
        """Return the reward of the step to each node, credit included, (steps,).

        nodes, rows: (steps,); met: (hypotheses, width); rows: hypothesis of each step
        """
        ends, known = self.ends[nodes], met[rows]
        is_met = (ends[:, :, None] == known[:, None, :]).any(axis=2)
        gains = np.where(is_met, 0.0, self.gains[ends]).sum(axis=1)
        rewards: Floats = self.costs[nodes] + gains + self._credits(nodes, rows, met)[0]
        return rewards.astype(np.float32)

    def _credits(self, nodes: Integers, rows: Integers, met: Phrases) -> tuple[Floats, Phrases]:
        """Return the highest credit at each node and its phrase; arguments as for `_rewards`."""
        done = np.concatenate([met[rows], self.ends[nodes]], axis=1)
        suffixes = self._suffixes[nodes]
        steps, columns = self._started.exists[suffixes].nonzero()
        started = suffixes[steps, columns]
        credits, best = np.zeros(suffixes.shape), np.full(suffixes.shape, self.padding, dtype=np.int32)
        positions = self._started.first_not_in(done, steps, started)
        credits[steps, columns] = self._depths[started] * self._started.rates[positions]
        best[steps, columns] = self._started.phrases[positions]
        columns = credits.argmax(axis=1)
        every = np.arange(len(nodes))
        return credits[every, columns], best[every, columns]


def _pad_rows(rows: list[list[int]], padding: int) -> Phrases:
    """Return an array of at least one column."""
    padded = np.full((len(rows), max(1, *map(len, rows))), padding, dtype=np.int32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


class _NodeRewards:
    """Rewards of some next tokens after each node, in the order in which the nodes were added.

    size: number of rewards
    """

    def __init__(self, nodes: int) -> None:
        self.size = 0
        self._starts = np.full(nodes, -1)
        self._counts = np.zeros(nodes, dtype=np.int64)
        self._tokens = np.empty(1024, dtype=np.int64)
        self._values = np.empty(1024, dtype=np.float32)

    def missing(self, nodes: Integers) -> set[int]:
        """Return the nodes that have not been added."""
        return {*nodes[self._starts[nodes] < 0].tolist()}

    def add(self, node: int, tokens: list[int], values: Floats) -> None:
        """tokens, values: (count,)."""
        start, self.size = self.size, self.size + len(tokens)
        if self.size > len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * self.size)
            self._values = np.resize(self._values, 2 * self.size)
        self._tokens[start : self.size], self._values[start : self.size] = tokens, values
        self._starts[node], self._counts[node] = start, len(tokens)

    def after(self, nodes: Integers) -> TokenRewards:
        """nodes: (hypotheses,), all of which were added."""
        rows, positions = _ranges(self._starts[nodes], self._counts[nodes])
        return TokenRewards(rows, self._tokens[positions], self._values[positions])


def _ranges(starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Concatenate ranges of `counts` integers from `starts`; return range indices and values, (sum of counts,)."""
    shifts = starts - counts.cumsum() + counts
    return np.arange(len(counts)).repeat(counts), shifts.repeat(counts) + np.arange(counts.sum())


class _StartedPhrases:
    """Preferred phrases that begin with each node and do not end there, the highest credit per token first.

    exists:  (nodes + 1,) bool, whether there is one; the last entry is for padding
    phrases: (entries,) int32, lists of all nodes, each followed by an end marker
    rates:   (entries,) float64, credit per token; 0 for an end marker
    """

    _END = -1

    def __init__(self, paths: list[list[int]], rates: list[float], nodes: int) -> None:
        """paths, rates: nodes of all prefixes and credit per token of each phrase; nodes: number of nodes."""
        started: list[list[int]] = [[] for _ in range(nodes)]
        for phrase in sorted(range(len(rates)), key=lambda phrase: -rates[phrase]):
            for node in paths[phrase][1:-1] if rates[phrase] else ():
                started[node].append(phrase)
        self.exists = np.array([*map(bool, started), False])
        self._starts = np.cumsum([0, *(len(phrases) + 1 for phrases in started[:-1])])
        self.phrases = np.array([*chain.from_iterable((*phrases, self._END) for phrases in started)], dtype=np.int32)
        self.rates = np.array([*rates, 0.0])[self.phrases]

    def first_not_in(self, done: Phrases, steps: Integers, nodes: Integers) -> Integers:
        """Return the entry of the first phrase of each node that is not in its row of `done`, or of the end marker.

        done: (rows, width); steps, nodes: (pairs,); steps: row of `done`
        """
        positions = self._starts[nodes]
        left = np.arange(len(nodes))
        while len(left):
            left = left[(done[steps[left]] == self.phrases[positions[left], None]).any(axis=1)]
            positions[left] += 1
        return positions


class _CriticalSteps:
    """Steps whose reward may change once a phrase is met: the phrase ends there, or earns the credit if none is met.

    at_root:   (phrases + 1,) bool, whether this holds for the phrase's first token
    is_parent: (nodes + 1,) bool, whether any such step leaves the node; False for the root, and padding at the end
    """

    def __init__(self, parents: Integers, ends: Phrases, best: Phrases, padding: int) -> None:
        """parents, best: (nodes,); best: phrase that earns the credit; ends: (nodes, width) padded."""
        phrases = np.concatenate([ends, best[:, None]], axis=1)
        children, columns = (phrases != padding).nonzero()
        phrases = phrases[children, columns]
        self.at_root = np.zeros(padding + 1, dtype=bool)
        self.at_root[phrases[parents[children] == 0]] = True
        self.is_parent = np.zeros(len(ends) + 1, dtype=bool)
        later = parents[children] != 0
        self.is_parent[parents[children[later]]] = True
        self._table = _PairTable(parents[children[later]], phrases[later], children[later])

    def find(self, nodes: Integers, phrases: Phrases) -> tuple[Integers, Integers]:
        """Return the row and the next node of each critical step.

        nodes: (rows,), before the step; phrases: (rows, width), met and padded
        """
        (rows, _), children = self._table.find(nodes[:, None], phrases)
        return rows, children


class _PairTable:
    """A multimap from pairs of integers to integers."""

    def __init__(self, first: Integers, second: Integers | Phrases, values: Integers) -> None:
        """All (entries,)."""
        keys = (first << 32) + second
        # Few lookups find a value. With this many buckets, most of the others hit an empty one.
        self._bits = (_BUCKETS_PER_ENTRY * len(keys)).bit_length()
        hashes = self._hashes(keys)
        order = hashes.argsort(kind="stable")
        self._keys, self._values = keys[order], values[order]
        counts = np.bincount(hashes, minlength=1 << self._bits)
        self._starts = np.array([0, *counts.cumsum()])
        self._is_used = counts > 0

    def find(self, first: Integers, second: Integers | Phrases) -> tuple[tuple[Integers, ...], Integers]:
        """Look up the broadcast arguments; return the positions of the pairs found, and their values."""
        keys = (first << 32) + second
        hashes = self._hashes(keys)
        positions = self._is_used.take(hashes).nonzero()
        keys, hashes = keys[positions], hashes[positions]
        starts = self._starts[hashes]
        indices, entries = _ranges(starts, self._starts[hashes + 1] - starts)
        is_equal = self._keys[entries] == keys[indices]
        indices, entries = indices[is_equal], entries[is_equal]
        return tuple(position[indices] for position in positions), self._values[entries]

    def _hashes(self, keys: Integers) -> Integers:
        # Fibonacci hashing: the high bits of the product depend on all bits of the key.
        return (keys * -7046029254386353131 >> 64 - self._bits) & (1 << self._bits) - 1
