"""Phrase bias: soft constraints that prefer or avoid words and phrases.

The biases of the phrases in an output are added to its log-probability for ranking and scores. A positive bias counts
once per output, so repetition is not rewarded; a negative bias counts each time. The reported log-probability excludes
bias.

Each matched token of a preferred phrase earns a part of its bias as credit, which keeps the hypothesis in the beam
until the phrase is complete. The credit is lost if the match fails or the output ends. Impossible tokens remain
impossible.

The cost of a step hardly grows with the number of phrases. The reward of a token depends on the phrases that an output
has started and on those that it contains. Without either, the rewards are one vector over the vocabulary, computed
once. For all hypotheses at once, the host then replaces the rewards of a few tokens. It reads the last token of every
hypothesis at each step, which adds one GPU synchronization.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.devices.transfer import to_device, to_lists
from nmt.search.per_sentence import PerSentence
from nmt.search.phrase_rewards import Biases, PhraseRewards, Phrases

phrase_rewards = lru_cache(maxsize=4)(PhraseRewards)  # shared by searches


@lru_cache(maxsize=4)
def _root_rewards(phrases: PhraseRewards, vocab: int, device: torch.device) -> Tensor:
    """Return the reward of each token if no phrase is started or met, (vocab,) float32."""
    return to_device(phrases.at_root(vocab), device)


@dataclass
class Bias(PerSentence):
    """Progress of the live hypotheses through the phrases with a bias, on the host.

    nodes:   (batch, beam) int64, node of the trie
    met:     (batch, beam, width) int32, preferred phrases that the hypothesis contains, padded
    rewards: (batch, beam, width) float32, reward of the first token of each of these phrases if no phrase is started
    totals:  (batch, beam) float64, total bias if the hypothesis ended now
    unmet:   (batch, beam) float64, sum of the positive biases of all other phrases
    separator: token after a previous translation, whose phrases do not count
    """

    phrases: PhraseRewards
    device: torch.device
    nodes: NDArray[np.int64]
    met: Phrases
    rewards: NDArray[np.float32]
    totals: NDArray[np.float64]
    unmet: NDArray[np.float64]
    separator: int | None

    @classmethod
    def start(
        cls, biases: Biases, batch: int, beam_size: int, device: torch.device, separator: int | None = None
    ) -> Bias:
        """biases: token ids and bias of each phrase."""
        phrases = phrase_rewards(biases)
        shape = (batch, beam_size)
        return cls(
            phrases,
            device,
            nodes=np.zeros(shape, dtype=np.int64),
            met=np.full((*shape, 1), phrases.padding, dtype=np.int32),
            rewards=np.zeros((*shape, 1), dtype=np.float32),
            totals=np.zeros(shape),
            unmet=np.full(shape, phrases.gains.sum()),
            separator=separator,
        )

    def concat(self, other: Self) -> Self:
        """Append the sentences of `other`."""
        width = max(self.met.shape[2], other.met.shape[2])
        return PerSentence.concat(self._padded(width), other._padded(width))

    def _padded(self, width: int) -> Self:
        """Pad `met` and `rewards` to at least this width."""
        missing = width - self.met.shape[2]
        if missing <= 0:
            return self
        met = np.full((*self.nodes.shape, missing), self.phrases.padding, dtype=np.int32)
        rewards = np.zeros(met.shape, dtype=np.float32)
        return replace(
            self, met=np.concatenate([self.met, met], axis=2), rewards=np.concatenate([self.rewards, rewards], axis=2)
        )

    def apply(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities of the next token plus its reward, both (batch, beam, vocab) float32.

        Bias that the hypothesis has already earned is not included.
        """
        vocab, phrases, count = log_probs.shape[2], self.phrases, self.nodes.size
        nodes, met = self.nodes.ravel(), self.met.reshape(count, -1)
        biased = log_probs + _root_rewards(phrases, vocab, self.device)
        # Later rewards replace earlier ones.
        for rewards in (
            phrases.first_tokens(met, self.rewards.reshape(count, -1)),
            phrases.next_tokens(nodes),
            phrases.next_tokens_after(nodes, met),
        ):
            indices = to_device(rewards.rows * vocab + rewards.tokens, self.device)
            rewarded = log_probs.reshape(-1).index_select(0, indices) + to_device(rewards.values, self.device)
            biased.view(-1).scatter_(0, indices, rewarded)
        return biased

    @cached_property
    def earned(self) -> Tensor:
        """Total bias of each hypothesis if it ended now, (batch, beam) float32."""
        return to_device(self.totals.astype(np.float32), self.device)

    def max_total(self) -> Tensor:
        """Upper bound on the total bias of each hypothesis, (batch, beam) float32: unmet gains, no further costs."""
        return to_device((self.totals + self.unmet).astype(np.float32), self.device)

    def extend(self, parents: Tensor, tokens: Tensor) -> Bias:
        """Return the progress of hypotheses that extend `parents` by `tokens`, both (batch, beam)."""
        phrases = self.phrases
        parent_array, token_array = map(np.array, to_lists(parents, tokens))
        index = np.arange(len(self.nodes))[:, None], parent_array
        nodes = phrases.step(self.nodes[index].ravel(), token_array.ravel()).reshape(self.nodes.shape)
        met, ends = self.met[index], phrases.ends[nodes]
        is_new = (ends[..., None] != met[..., None, :]).all(axis=-1) & (ends != phrases.padding)
        gains = np.where(is_new, phrases.gains[ends], 0.0).sum(axis=-1)
        extended = replace(
            self,
            nodes=nodes,
            met=met,
            rewards=self.rewards[index],
            totals=self.totals[index] + phrases.costs[nodes] + gains,
            unmet=self.unmet[index] - gains,
        )
        if self.separator is not None:
            extended._restart(token_array == self.separator)
        return extended._add(ends, is_new)

    def _restart(self, rows: NDArray[np.bool_]) -> None:
        """Reset these hypotheses, (batch, beam), in place, after a separator, which no phrase contains."""
        self.met[rows], self.rewards[rows] = self.phrases.padding, 0.0
        self.totals[rows], self.unmet[rows] = 0.0, self.phrases.gains.sum()

    def _add(self, ends: Phrases, is_new: NDArray[np.bool_]) -> Self:
        """Add new phrases to `met`, in place where it is wide enough. ends, is_new: (batch, beam, candidates)."""
        counts = (self.met != self.phrases.padding).sum(axis=-1)
        padded = self._padded((counts + is_new.sum(axis=-1)).max())
        batch, beam, column = is_new.nonzero()
        positions = (counts[..., None] + is_new.cumsum(axis=-1) - 1)[batch, beam, column]
        new = ends[batch, beam, column]
        padded.met[batch, beam, positions] = new
        met = padded.met[batch, beam]  # (new, width)
        # Phrases with the same first token share its reward.
        same, columns = self.phrases.same_first_token(met, new).nonzero()
        padded.rewards[batch[same], beam[same], columns] = self.phrases.of_first_token(new, met)[same]
        return padded
