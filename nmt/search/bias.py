"""Phrase bias: soft constraints that prefer or avoid words and phrases.

The biases of the phrases in an output are added to its log-probability for ranking and scores. A positive bias counts
once per output, which does not reward repetition; a negative bias counts each time. The reported log-probability
remains the model's.

Each matched token of a preferred phrase earns a part of its bias as credit, which keeps the hypothesis in the beam
until the phrase is complete. The credit is lost if the match fails or the output ends. Impossible tokens remain
impossible.

The cost of a step does not grow with the number of phrases. The reward of a token depends on the phrases that an output
has started and on those that it contains. Without any, the rewards are one vector over the vocabulary, computed once.
For all other hypotheses the host overrides the rewards of a few tokens. It reads the last token of every hypothesis at
each step, which synchronizes a GPU once more.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.devices.transfer import to_device, to_lists
from nmt.search.batched import Batched
from nmt.search.phrases import PhraseTrie

# Biases are rounded to multiples of this. Sums are then exact and independent of their order.
_RESOLUTION = 2.0**-30

Biases = tuple[tuple[tuple[int, ...], float], ...]


class Rewards(NamedTuple):
    """Rewards of some tokens. tokens: (count,) int64, distinct; values: (count,) float32."""

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]


_NO_REWARDS = Rewards(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class MetPhrases:
    """Preferred phrases that a hypothesis contains; shared between hypotheses.

    phrases:       indices of these phrases
    remaining:     sum of the positive biases of all other phrases
    first_rewards: rewards of their first tokens at the root of the trie
    overrides:     by node, rewards of the tokens that would earn more if these phrases were not met
    """

    phrases: frozenset[int]
    remaining: float
    first_rewards: dict[int, float] = field(default_factory=dict)
    overrides: dict[int, dict[int, float]] = field(default_factory=dict)


class Progress(NamedTuple):
    """Progress of a hypothesis in the phrases. node: node of the trie; earned: total bias if it ended now."""

    node: int
    met: MetPhrases
    earned: float


class BiasedPhrases:
    """Phrases with a bias, and the reward of each token after any output.

    start: progress of the empty hypothesis
    """

    def __init__(self, biases: Biases) -> None:
        """biases: token ids and bias of each phrase; a phrase may occur several times."""
        by_phrase: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for phrase, bias in biases:
            by_phrase[phrase].append(round(bias / _RESOLUTION) * _RESOLUTION)
        self._phrases = [*by_phrase]
        self._gains = [sum(bias for bias in values if bias > 0) for values in by_phrase.values()]
        self._highest = [max(0.0, *values) for values in by_phrase.values()]
        self._trie = trie = PhraseTrie(self._phrases)
        self._paths = [trie.path(phrase) for phrase in self._phrases]
        # By node: the sum of negative biases, and the preferred phrases that end there.
        self._penalties = [0.0] * len(trie.children)
        self._ends: list[tuple[int, ...]] = [()] * len(trie.children)
        for index, phrase_biases in enumerate(by_phrase.values()):
            self._penalties[trie.ends[index]] = sum(bias for bias in phrase_biases if bias < 0)
            self._ends[trie.ends[index]] = (index,) if self._gains[index] else ()
        for node in range(1, len(trie.children)):
            self._penalties[node] += self._penalties[trie.suffix_links[node]]
            self._ends[node] += self._ends[trie.suffix_links[node]]
        # By node: the preferred phrases that begin with it, the highest credit per token first.
        self._begun: list[list[int]] = [[] for _ in trie.children]
        rates = [highest / len(phrase) for highest, phrase in zip(self._highest, self._phrases, strict=True)]
        for index in sorted(range(len(rates)), key=lambda index: -rates[index]):
            for node in self._paths[index][1:] if self._gains[index] else ():
                self._begun[node].append(index)
        self._none_met = MetPhrases(frozenset(), sum(self._gains))
        self._rewards_by_node = {0: _NO_REWARDS}
        self._root_rewards: dict[tuple[int, torch.device], Tensor] = {}
        self.start = Progress(0, self._none_met, 0.0)

    def extend(self, progress: Progress, token: int) -> Progress:
        """Return the progress after one more token."""
        node, met = self._trie.step(progress.node, token), progress.met
        if not node:
            return progress if not progress.node else Progress(0, met, progress.earned)
        gain = 0.0
        if new := [index for index in self._ends[node] if index not in met.phrases]:
            gain = sum(self._gains[index] for index in new)
            more = MetPhrases(met.phrases.union(new), met.remaining - gain, dict(met.first_rewards))
            for first in {self._phrases[index][0] for index in new}:
                more.first_rewards[first] = self._reward(self._trie.children[0][first], more)
            met = more
        return Progress(node, met, progress.earned + self._penalties[node] + gain)

    def root_rewards(self, vocab: int, device: torch.device) -> Tensor:
        """Return the reward of each token if no phrase is begun or met, (vocab,) float32."""
        if (vocab, device) not in self._root_rewards:
            rewards = np.zeros(vocab, dtype=np.float32)
            for token, node in self._trie.children[0].items():
                rewards[token] = self._reward(node, self._none_met)
            self._root_rewards[vocab, device] = to_device(rewards, device)
        return self._root_rewards[vocab, device]

    def node_rewards(self, node: int) -> Rewards:
        """Return the rewards at a node that differ from `root_rewards` if no phrase is met."""
        if node not in self._rewards_by_node:
            rewards, children = self.node_rewards(self._trie.suffix_links[node]), self._trie.children[node]
            if children:
                others = ~np.isin(rewards.tokens, [*children])
                child_rewards = [self._reward(child, self._none_met) for child in children.values()]
                rewards = Rewards(
                    np.concatenate([rewards.tokens[others], np.array([*children], dtype=np.int64)]),
                    np.concatenate([rewards.values[others], np.array(child_rewards, dtype=np.float32)]),
                )
            self._rewards_by_node[node] = rewards
        return self._rewards_by_node[node]

    def overrides(self, node: int, met: MetPhrases) -> dict[int, float]:
        """Return the rewards of tokens that continue a met phrase; those of `node_rewards` are too high."""
        if not node:
            return met.first_rewards
        if node not in met.overrides:
            children = {token: self._trie.step(node, token) for token in met.first_rewards}
            for suffix in self._trie.suffixes(node):
                depth = self._trie.depths[suffix]
                for index in met.phrases:
                    if depth < len(self._phrases[index]) and self._paths[index][depth] == suffix:
                        token = self._phrases[index][depth]
                        children[token] = self._trie.step(node, token)
            met.overrides[node] = {
                token: met.first_rewards[token] if self._trie.depths[child] == 1 else self._reward(child, met)
                for token, child in children.items()
            }
        return met.overrides[node]

    def _reward(self, node: int, met: MetPhrases) -> float:
        """Return the reward of the step to a node, credit included."""
        ends = self._ends[node]
        reward = self._penalties[node] + sum(self._gains[index] for index in ends if index not in met.phrases)
        credit = 0.0
        for suffix in self._trie.suffixes(node):
            for index in self._begun[suffix]:
                if index not in met.phrases and index not in ends:
                    phrase_credit = self._trie.depths[suffix] * self._highest[index] / len(self._phrases[index])
                    credit = max(credit, phrase_credit)
                    break
        return reward + credit


@lru_cache(maxsize=4)
def biased_phrases(biases: Biases) -> BiasedPhrases:
    """Return the `BiasedPhrases`, cached across searches."""
    return BiasedPhrases(biases)


@dataclass
class Bias(Batched):
    """Progress of the live hypotheses in the phrases with a bias.

    progress: (batch,) lists of (beam,)
    """

    phrases: BiasedPhrases
    device: torch.device
    progress: list[list[Progress]]

    @classmethod
    def start(cls, biases: Biases, batch: int, beam_size: int, device: torch.device) -> Bias:
        """biases: token ids and bias of each phrase."""
        phrases = biased_phrases(biases)
        return cls(phrases, device, [[phrases.start] * beam_size] * batch)

    def apply(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities of the next token plus its reward, both (batch, beam, vocab) float32.

        Bias that the hypothesis has earned before is not included.
        """
        vocab, live = log_probs.shape[2], [progress for beam in self.progress for progress in beam]
        biased = log_probs + self.phrases.root_rewards(vocab, self.device)
        rewards = [self.phrases.node_rewards(progress.node) for progress in live]
        offsets = np.repeat(np.arange(len(live)) * vocab, [len(tokens) for tokens, _ in rewards])
        tokens, values = (np.concatenate(parts) for parts in zip(*rewards, strict=True))
        self._set_rewards(biased, log_probs, offsets + tokens, values)
        overrides = [self.phrases.overrides(progress.node, progress.met) for progress in live]
        indices = [row * vocab + token for row, by_token in enumerate(overrides) for token in by_token]
        values = np.array([value for by_token in overrides for value in by_token.values()], dtype=np.float32)
        self._set_rewards(biased, log_probs, np.array(indices, dtype=np.int64), values)
        return biased

    def _set_rewards(
        self, biased: Tensor, log_probs: Tensor, indices: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Replace the rewards at indices (count,) of the flat tensor."""
        if len(indices):
            device_indices = to_device(indices, self.device)
            rewarded = log_probs.reshape(-1)[device_indices] + to_device(values, self.device)
            biased.view(-1).index_copy_(0, device_indices, rewarded)

    @cached_property
    def earned(self) -> Tensor:
        """Total bias of each hypothesis if it ended now, (batch, beam) float32."""
        return self._to_device([[progress.earned for progress in beam] for beam in self.progress])

    def max_total(self) -> Tensor:
        """Upper bound on the total bias of each hypothesis, (batch, beam) float32: all gains, no further penalties."""
        return self._to_device(
            [[progress.earned + progress.met.remaining for progress in beam] for beam in self.progress]
        )

    def extend(self, parents: Tensor, tokens: Tensor) -> Bias:
        """Return the progress of hypotheses that extend `parents` by `tokens`, both (batch, beam)."""
        steps: Any = zip(self.progress, *to_lists(parents, tokens), strict=True)
        extend = self.phrases.extend
        progress = [[extend(beam[parent], token) for parent, token in zip(*step, strict=True)] for beam, *step in steps]
        return replace(self, progress=progress)

    def _to_device(self, values: list[list[float]]) -> Tensor:
        return to_device(np.array(values, dtype=np.float32), self.device)
