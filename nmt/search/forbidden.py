"""Forbidden phrases of several tokens: which tokens would end one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.search.phrases import PhraseMatcher
from nmt.special_ids import PAD_ID


class ForbiddenPhrases:
    """Phrases of two tokens or more that no output holds, found by all of their tokens but the last.

    most_before: tokens of the longest phrase without its last
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device) -> None:
        lasts: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for *before, last in phrases:
            lasts[tuple(before)].add(last)
        beginnings = sorted(lasts)
        self.most_before = max(map(len, beginnings))
        self._matcher = PhraseMatcher(beginnings, device)
        counts = np.zeros(len(self._matcher.chains), dtype=np.int64)
        starts = np.zeros_like(counts)
        ends, sizes = self._matcher.trie.ends, [len(lasts[before]) for before in beginnings]
        counts[ends], starts[ends] = sizes, np.cumsum([0, *sizes[:-1]])
        # Of each node, how many tokens end a phrase there, and where the list of them begins.
        self._counts, self._starts = to_device(counts, device), to_device(starts, device)
        self._lasts = to_device([token for before in beginnings for token in sorted(lasts[before])], device)
        self._most = max(sizes)

    def apply(self, log_probs: Tensor, outputs: Tensor) -> None:
        """Make impossible, in place, what would end a phrase.

        log_probs: (batch, beam, vocab), where PAD_ID is impossible already; outputs: (batch, beam, n) the last tokens
        of every hypothesis, -1 before the first; `most_before` of them are enough.
        """
        nodes = torch.zeros_like(outputs[:, :, 0])
        for tokens in outputs.unbind(dim=2):
            nodes = self._matcher.after(nodes, tokens)
        chains = self._matcher.chains[nodes]  # (batch, beam, most)
        counts = self._counts[chains]
        # On a CPU the tokens can be counted; to ask a GPU for their number would be a wait.
        most = self._most if counts.is_cuda else int(counts.max())
        places = torch.arange(most, device=counts.device)
        exists = places < counts[..., None]
        lasts = self._lasts[(self._starts[chains][..., None] + places).where(exists, 0)].where(exists, PAD_ID)
        log_probs.scatter_(2, lasts.flatten(2), float("-inf"))


@lru_cache(maxsize=4)
def forbidden_phrases(phrases: tuple[tuple[int, ...], ...], device: torch.device) -> ForbiddenPhrases:
    """The same phrases for search after search."""
    return ForbiddenPhrases(phrases, device)
