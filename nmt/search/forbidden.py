"""Negative lexical constraints of several tokens.

Each hypothesis has a node of an automaton over the phrases, so the cost of a step does not depend on their length.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.search.per_sentence import PerSentence
from nmt.search.phrases import PhraseMatcher
from nmt.special_ids import PAD_ID


class ForbiddenPhrases:
    """Phrases of at least two tokens that no output contains.

    matcher: matches all tokens of a phrase but the last
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device) -> None:
        last_tokens: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for *context, last in phrases:
            last_tokens[tuple(context)].add(last)
        contexts = sorted(last_tokens)
        self.matcher = matcher = PhraseMatcher(contexts, device)
        # The last tokens of all phrases, concatenated by node, with their number and offset for each node.
        counts = np.zeros(len(matcher.suffixes), dtype=np.int64)
        offsets = np.zeros_like(counts)
        sizes = [len(last_tokens[context]) for context in contexts]
        counts[matcher.trie.ends] = sizes
        offsets[matcher.trie.ends] = np.cumsum([0, *sizes[:-1]])
        self._counts, self._offsets = to_device(counts, device), to_device(offsets, device)
        self._last_tokens = to_device([last for context in contexts for last in sorted(last_tokens[context])], device)
        self._max_count = max(sizes)

    def apply(self, log_probs: Tensor, nodes: Tensor) -> None:
        """Make tokens that complete a phrase impossible, in place.

        log_probs: (batch, beam, vocab), PAD_ID already impossible; nodes: (batch, beam) of the outputs so far
        """
        suffixes = self.matcher.suffixes[nodes]  # (batch, beam, max_suffixes)
        counts, offsets = self._counts[suffixes], self._offsets[suffixes]
        if log_probs.is_cuda:  # reading the actual numbers of tokens would synchronize
            self.forbid_padded(log_probs, counts, offsets)
        else:
            self.forbid_listed(log_probs, counts, offsets)

    def forbid_listed(self, log_probs: Tensor, counts: Tensor, offsets: Tensor) -> None:
        """Make listed last tokens impossible, in place. counts, offsets: of each list, (batch, beam, max_suffixes)."""
        batch, beam, suffix = counts.nonzero(as_tuple=True)
        counts, offsets = counts[batch, beam, suffix], offsets[batch, beam, suffix]  # (lists,)
        shifts = (offsets - counts.cumsum(0) + counts).repeat_interleave(counts)
        tokens = self._last_tokens[shifts + torch.arange(len(shifts))]
        log_probs[batch.repeat_interleave(counts), beam.repeat_interleave(counts), tokens] = -math.inf

    def forbid_padded(self, log_probs: Tensor, counts: Tensor, offsets: Tensor) -> None:
        """Like `forbid_listed`, but pad all lists to the longest, which avoids synchronization."""
        positions = torch.arange(self._max_count, device=counts.device)
        exists = positions < counts[..., None]
        tokens = self._last_tokens[(offsets[..., None] + positions).where(exists, 0)]
        log_probs.scatter_(2, tokens.where(exists, PAD_ID).flatten(2), -math.inf)


forbidden_phrases = lru_cache(maxsize=4)(ForbiddenPhrases)  # shared by searches


@dataclass
class ForbiddenProgress(PerSentence):
    """Progress of each live hypothesis through the forbidden phrases.

    nodes: (batch, beam) int64
    """

    phrases: ForbiddenPhrases
    nodes: Tensor

    @classmethod
    def start(
        cls, forbidden: Sequence[tuple[int, ...]], batch: int, beam_size: int, device: torch.device
    ) -> ForbiddenProgress | None:
        """Return the progress of empty outputs; None if no phrase has several tokens."""
        phrases = tuple(phrase for phrase in forbidden if len(phrase) > 1)
        if not phrases:
            return None
        nodes = torch.zeros(batch, beam_size, dtype=torch.int64, device=device)
        return cls(forbidden_phrases(phrases, device), nodes)

    def apply(self, log_probs: Tensor) -> None:
        """Make tokens that complete a phrase impossible, in place; see `ForbiddenPhrases.apply`."""
        self.phrases.apply(log_probs, self.nodes)

    def extend(self, parents: Tensor | None, tokens: Tensor) -> ForbiddenProgress:
        """Return the progress of hypotheses that extend `parents` by `tokens`, both (batch, beam).

        parents: None if each hypothesis extends itself, as in sampling
        """
        nodes = self.nodes if parents is None else self.nodes.gather(1, parents)
        return replace(self, nodes=self.phrases.matcher.step(nodes, tokens))
