"""Negative lexical constraints of several tokens."""

from __future__ import annotations

import math
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
    """Phrases of at least two tokens that no output contains, matched by all their tokens but the last.

    max_context: tokens of the longest phrase, minus one
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device) -> None:
        last_tokens: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for *context, last in phrases:
            last_tokens[tuple(context)].add(last)
        contexts = sorted(last_tokens)
        self.max_context = max(map(len, contexts))
        self._matcher = PhraseMatcher(contexts, device)
        # The last tokens of all phrases, concatenated by node, with their number and offset for each node.
        counts = np.zeros(len(self._matcher.suffixes), dtype=np.int64)
        offsets = np.zeros_like(counts)
        sizes = [len(last_tokens[context]) for context in contexts]
        counts[self._matcher.trie.ends], offsets[self._matcher.trie.ends] = sizes, np.cumsum([0, *sizes[:-1]])
        self._counts, self._offsets = to_device(counts, device), to_device(offsets, device)
        self._last_tokens = to_device([t for context in contexts for t in sorted(last_tokens[context])], device)
        self._max_count = max(sizes)

    def apply(self, log_probs: Tensor, outputs: Tensor) -> None:
        """Make tokens that complete a phrase impossible, in place.

        log_probs: (batch, beam, vocab), PAD_ID already impossible; outputs: (batch, beam, n) the last tokens of every
        hypothesis, at least `max_context` if there are as many, -1 before the first
        """
        nodes = torch.zeros_like(outputs[:, :, 0])
        for tokens in outputs.unbind(dim=2):
            nodes = self._matcher.step(nodes, tokens)
        suffixes = self._matcher.suffixes[nodes]  # (batch, beam, max_suffixes)
        counts = self._counts[suffixes]
        # On a GPU, reading the actual maximum would synchronize.
        max_count = self._max_count if counts.is_cuda else int(counts.max())
        positions = torch.arange(max_count, device=counts.device)
        exists = positions < counts[..., None]
        offsets = (self._offsets[suffixes][..., None] + positions).where(exists, 0)
        log_probs.scatter_(2, self._last_tokens[offsets].where(exists, PAD_ID).flatten(2), -math.inf)


@lru_cache(maxsize=4)
def forbidden_phrases(phrases: tuple[tuple[int, ...], ...], device: torch.device) -> ForbiddenPhrases:
    """Return the `ForbiddenPhrases`, cached across searches."""
    return ForbiddenPhrases(phrases, device)
