"""Aho-Corasick automata: match phrases in outputs token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import pad_rows, to_device

_TOKEN_BITS = 32  # the low bits of an edge key hold the token id, the high bits the node


class PhraseTrie:
    """The automaton of Aho and Corasick (1975) on the host; one step per token for any number of phrases.

    A node is the longest suffix of an output that is a prefix of some phrase; node 0 is the empty one. Node numbers
    increase with depth.

    children:     node by token, for each node
    depths:       number of tokens of each node
    suffix_links: node of the longest proper suffix of each node
    ends:         node of each phrase
    """

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        """phrases: token ids of each; an empty phrase ends at node 0."""
        self.children: list[dict[int, int]] = [{}]
        self.depths = [0]
        self.suffix_links = [0]
        self.ends = [0] * len(phrases)
        for depth in range(max(map(len, phrases), default=0)):
            for number, phrase in enumerate(phrases):
                if depth < len(phrase):
                    self.ends[number] = self._add(self.ends[number], phrase[depth])

    def _add(self, node: int, token: int) -> int:
        """Return the child of `node`; create it if missing."""
        if token not in self.children[node]:
            self.children[node][token] = len(self.children)
            self.suffix_links.append(self.step(self.suffix_links[node], token) if node else 0)
            self.depths.append(self.depths[node] + 1)
            self.children.append({})
        return self.children[node][token]

    def step(self, node: int, token: int) -> int:
        """Return the node after one more token."""
        while node and token not in self.children[node]:
            node = self.suffix_links[node]
        return self.children[node].get(token, 0)

    def suffixes(self, node: int) -> Iterator[int]:
        """Yield the node and the nodes of all its suffixes, longest first, without node 0."""
        while node:
            yield node
            node = self.suffix_links[node]

    def path(self, phrase: Sequence[int]) -> list[int]:
        """Return the nodes of all prefixes of a phrase, shortest first, from node 0."""
        nodes = [0]
        for token in phrase:
            nodes.append(self.children[nodes[-1]][token])
        return nodes


class PhraseMatcher:
    """The automaton for batches on a device. Memory is linear in the total length of the phrases times `max_suffixes`.

    trie:     the automaton on the host
    lengths:  (phrases,) int64, number of tokens
    suffixes: (nodes, max_suffixes) int64, each node and its suffixes, padded with node 0
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device) -> None:
        """phrases: distinct and in ascending order."""
        self.trie = trie = PhraseTrie(phrases)
        suffixes = [[*trie.suffixes(node), 0] for node in range(len(trie.children))]
        edges = [
            (node << _TOKEN_BITS | token, child)
            for node, children in enumerate(trie.children)
            for token, child in sorted(children.items())
        ]
        edges.append((np.iinfo(np.int64).max, 0))  # sentinel for searchsorted
        keys, nodes = np.ascontiguousarray(np.array(edges, dtype=np.int64).T)
        # Phrases with the same prefix are consecutive: those that begin with a node are first <= number < end.
        first, end = np.zeros((2, len(suffixes)), dtype=np.int64)
        paths = [trie.path(phrase) for phrase in phrases]
        for number, path in enumerate(paths):
            end[path] = number + 1
        for number in reversed(range(len(paths))):
            first[paths[number]] = number
        self.lengths = to_device([len(phrase) for phrase in phrases], device)
        self.suffixes = pad_rows(suffixes, 0, device)
        self._keys, self._nodes = to_device(keys, device), to_device(nodes, device)
        self._depths = to_device(trie.depths, device)
        self._first, self._end = to_device(first, device), to_device(end, device)

    def step(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """Return the nodes after one more token each; all of the same shape. Token -1 leads to node 0."""
        keys = (self.suffixes[nodes] << _TOKEN_BITS) + tokens[..., None]  # (..., max_suffixes)
        edges = torch.searchsorted(self._keys, keys)
        # The longest match has the highest node number.
        return self._nodes[edges].where(self._keys[edges] == keys, 0).amax(dim=-1)

    def matched(self, nodes: Tensor, phrases: Tensor) -> Tensor:
        """Return the length of the longest prefix of each phrase that is a suffix of the output at each node.

        nodes, phrases: int64, broadcast to the shape of the result
        """
        suffixes, phrases = self.suffixes[nodes], phrases[..., None]
        is_prefix = (self._first[suffixes] <= phrases) & (phrases < self._end[suffixes])
        return self._depths[suffixes].where(is_prefix, 0).amax(dim=-1)
