"""Which of some phrases an output holds, followed token by token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nmt.transfer import to_device


class PhraseMatcher:
    """The automaton of Aho and Corasick (1975): one step for each token, however many phrases there are.

    A node stands for the longest end of an output with which some phrase begins; node 0 for none. So phrases may share
    their beginnings, lie inside each other and overlap, and each is seen where its last token comes.

    kinds:   (kinds,) int64, the distinct tokens of the phrases in ascending order
    columns: (nodes, 1 + kinds) int64, the node that follows each node: column 0 for any other token, then each kind
    lengths: (phrases,) int64, tokens of each phrase
    begun:   (nodes, phrases) int64, with how many of its first tokens the output ends; all of them where it is complete
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device) -> None:
        """phrases: tokens of each; one without tokens is complete from the start."""
        kinds = sorted({token for phrase in phrases for token in phrase})
        column = {token: place for place, token in enumerate(kinds, start=1)}
        children, own = _trie(phrases)
        begun = np.array(own, dtype=np.int64).reshape(len(children), len(phrases))
        columns = np.zeros((len(children), 1 + len(kinds)), dtype=np.int64)
        waiting = deque([(0, 0)])  # a node, and that of the longest proper end of what it stands for; short ones first
        while waiting:
            node, shorter = waiting.popleft()
            if node:
                columns[node] = columns[shorter]
                begun[node] = np.maximum(begun[node], begun[shorter])
            for token, child in children[node].items():
                waiting.append((child, int(columns[shorter, column[token]]) if node else 0))
                columns[node, column[token]] = child
        self.kinds = to_device(kinds, device)
        self.columns = to_device(columns, device)
        self.lengths = to_device([len(phrase) for phrase in phrases], device)
        self.begun = to_device(begun, device)

    def after(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """The nodes behind further tokens; nodes, tokens and result are of one shape."""
        places = torch.searchsorted(self.kinds, tokens.contiguous()).clamp_(max=len(self.kinds) - 1)
        columns = torch.where(self.kinds[places] == tokens, places + 1, 0)
        return self.columns[nodes, columns]


def _trie(phrases: Sequence[Sequence[int]]) -> tuple[list[dict[int, int]], list[list[int]]]:
    """For each node its children by token, and how many tokens of each phrase it stands for."""
    children: list[dict[int, int]] = [{}]
    own = [[0] * len(phrases)]
    for number, phrase in enumerate(phrases):
        node = 0
        for depth, token in enumerate(phrase, start=1):
            if token not in children[node]:
                children[node][token] = len(children)
                children.append({})
                own.append([0] * len(phrases))
            node = children[node][token]
            own[node][number] = depth
    return children, own
