"""Which of some phrases an output holds, followed token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device

_TOKEN_BITS = 32  # of a number that names a node and a token


class PhraseTrie:
    """The automaton of Aho and Corasick (1975), on the host: one step for each token, however many phrases there are.

    A node stands for the longest end of an output with which some phrase begins; node 0 for none. Nodes are numbered
    by depth: a node has a higher number than all shorter ones.

    children: for each node the token and the number of each node below it
    depths:   tokens of each node
    shorter:  for each node the node of its longest proper end
    ends:     the node of each phrase
    """

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        """phrases: tokens of each; one without tokens ends at node 0."""
        self.children: list[dict[int, int]] = [{}]
        self.depths = [0]
        self.shorter = [0]
        self.ends = [0] * len(phrases)
        for depth in range(max(map(len, phrases), default=0)):
            for number, phrase in enumerate(phrases):
                if depth < len(phrase):
                    self.ends[number] = self._grow(self.ends[number], phrase[depth])

    def _grow(self, node: int, token: int) -> int:
        """The node below `node`, made where there is none."""
        if token not in self.children[node]:
            self.children[node][token] = len(self.children)
            self.shorter.append(self.after(self.shorter[node], token) if node else 0)
            self.depths.append(self.depths[node] + 1)
            self.children.append({})
        return self.children[node][token]

    def after(self, node: int, token: int) -> int:
        """The node behind a further token."""
        while node and token not in self.children[node]:
            node = self.shorter[node]
        return self.children[node].get(token, 0)

    def chain(self, node: int) -> Iterator[int]:
        """The node and all shorter ends of it, the longest first, without node 0."""
        while node:
            yield node
            node = self.shorter[node]

    def path(self, phrase: Sequence[int]) -> list[int]:
        """The nodes of the beginnings of a phrase, that without tokens first."""
        nodes = [0]
        for token in phrase:
            nodes.append(self.children[nodes[-1]][token])
        return nodes


class PhraseMatcher:
    """The same automaton for whole batches, on their device. Its size grows with the number of tokens of the phrases.

    trie:    the automaton on the host
    lengths: (phrases,) int64, tokens of each phrase
    chains:  (nodes, most) int64, each node and all shorter ends of it, filled up with node 0
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device) -> None:
        """phrases: distinct and in ascending order."""
        self.trie = trie = PhraseTrie(phrases)
        chains = [list(trie.chain(node)) for node in range(len(trie.children))]
        most = 1 + max(map(len, chains))
        edges = [
            (node << _TOKEN_BITS | token, child)
            for node, below in enumerate(trie.children)
            for token, child in sorted(below.items())
        ]
        edges.append((np.iinfo(np.int64).max, 0))  # which is never looked for
        keys, nodes = np.ascontiguousarray(np.array(edges, dtype=np.int64).T)
        first, behind = np.zeros((2, len(chains)), dtype=np.int64)
        for number, phrase in enumerate(phrases):
            behind[trie.path(phrase)] = number + 1
        for number, phrase in reversed([*enumerate(phrases)]):
            first[trie.path(phrase)] = number
        self.lengths = to_device([len(phrase) for phrase in phrases], device)
        self.chains = to_device(np.array([[*chain, *[0] * (most - len(chain))] for chain in chains]), device)
        self._keys, self._nodes = to_device(keys, device), to_device(nodes, device)
        self._depths = to_device(trie.depths, device)
        # The phrases that begin with a node, which follow each other.
        self._first, self._behind = to_device(first, device), to_device(behind, device)

    def after(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """The nodes behind further tokens; nodes, tokens and result are of one shape."""
        keys = (self.chains[nodes] << _TOKEN_BITS) + tokens[..., None]  # (..., most); no key for a token of -1
        places = torch.searchsorted(self._keys, keys)
        # Of the nodes that the token leads to, that of the longest end has the highest number.
        return self._nodes[places].where(self._keys[places] == keys, 0).amax(dim=-1)

    def begun(self, nodes: Tensor, phrases: Tensor) -> Tensor:
        """With how many first tokens of phrases outputs at nodes end; int64, of the shape that both broadcast to."""
        chains, phrases = self.chains[nodes], phrases[..., None]
        holds = (self._first[chains] <= phrases) & (phrases < self._behind[chains])
        return self._depths[chains].where(holds, 0).amax(dim=-1)
