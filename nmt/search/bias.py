"""Phrase bias: soft constraints that prefer or avoid words and phrases.

The biases of the phrases in an output are added to its log-probability for ranking and scores. A positive bias counts
once per output, which does not reward repetition; a negative bias counts each time. The reported log-probability
remains the model's.

Each matched token of a preferred phrase earns a part of its bias as credit, which keeps the hypothesis in the beam
until the phrase is complete. The credit is lost if the match fails or the output ends. Impossible tokens remain
impossible.

The cost of a step does not grow with the number of phrases. The reward of a token depends on the phrases that an output
has started and on those that it contains. Without any, the rewards are one vector over the vocabulary, computed once.
For all other hypotheses the host overrides the rewards of a few tokens. A met phrase changes the reward of a token only
if it ends there or earns the credit, so few rewards are computed again, and they are cached. The host reads the last
token of every hypothesis at each step, which synchronizes a GPU once more.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
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

# Maximum number of entries of each cache of `BiasedPhrases`.
_CACHE_SIZE = 1 << 16

Biases = tuple[tuple[tuple[int, ...], float], ...]


class Rewards(NamedTuple):
    """Rewards of some tokens. tokens: (count,) int64; values: (count,) float32."""

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]


class MetPhrases(NamedTuple):
    """Preferred phrases that a hypothesis contains; shared between hypotheses.

    phrases:   indices of these phrases
    remaining: sum of the positive biases of all other phrases
    rewards:   rewards at the root of the trie that differ from `root_rewards`, by token
    """

    phrases: frozenset[int]
    remaining: float
    rewards: dict[int, float]


class Progress(NamedTuple):
    """Progress of a hypothesis in the phrases.

    node:      node of the trie
    earned:    total bias if the hypothesis ended now
    overrides: rewards at the node that differ from `node_rewards` because phrases are met, by token
    """

    node: int
    met: MetPhrases
    earned: float
    overrides: dict[int, float]


class StepReward(NamedTuple):
    """Reward of the step to a node of the trie. best: the phrase whose credit is included, -1 without credit."""

    reward: float
    best: int


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
        self.node_rewards = lru_cache(_CACHE_SIZE)(self._compute_node_rewards)
        self._critical = lru_cache(_CACHE_SIZE)(self._compute_critical)
        self._step = lru_cache(_CACHE_SIZE)(self._compute_step)
        self._root_rewards: dict[tuple[int, torch.device], Tensor] = {}
        self.start = Progress(0, MetPhrases(frozenset(), sum(self._gains), {}), 0.0, {})

    def extend(self, progress: Progress, token: int) -> Progress:
        """Return the progress after one more token."""
        node, met = self._trie.step(progress.node, token), progress.met
        if not node:
            return progress if not progress.node else Progress(0, met, progress.earned, {})
        earned = progress.earned + self._penalties[node]
        if new := [index for index in self._ends[node] if index not in met.phrases]:
            met = self._add(met, new)
            earned += progress.met.remaining - met.remaining
        return Progress(node, met, earned, self._overrides(node, met.phrases) if met.phrases else {})

    def _add(self, met: MetPhrases, new: list[int]) -> MetPhrases:
        """Return `met` with more phrases."""
        phrases, rewards = met.phrases.union(new), met.rewards
        for index in new:
            first, node = self._phrases[index][0], self._paths[index][1]
            if (reward := self._reward(node, phrases)) != self._step(node, ()).reward:
                rewards = {**rewards, first: reward}
        return MetPhrases(phrases, met.remaining - sum([self._gains[index] for index in new]), rewards)

    def root_rewards(self, vocab: int, device: torch.device) -> Tensor:
        """Return the reward of each token if no phrase is begun or met, (vocab,) float32."""
        if (vocab, device) not in self._root_rewards:
            rewards = np.zeros(vocab, dtype=np.float32)
            for token, node in self._trie.children[0].items():
                rewards[token] = self._step(node, ()).reward
            self._root_rewards[vocab, device] = to_device(rewards, device)
        return self._root_rewards[vocab, device]

    def _compute_node_rewards(self, node: int) -> Rewards:
        """Return the rewards at a node that differ from `root_rewards` if no phrase is met."""
        if node and not self._trie.children[node]:
            return self.node_rewards(self._trie.suffix_links[node])
        rewards: dict[int, float] = {}
        for suffix in reversed([*self._trie.suffixes(node)]):
            rewards |= {token: self._step(child, ()).reward for token, child in self._trie.children[suffix].items()}
        return Rewards(np.array([*rewards], dtype=np.int64), np.array([*rewards.values()], dtype=np.float32))

    def _overrides(self, node: int, met: frozenset[int]) -> dict[int, float]:
        """Return the rewards that differ from `node_rewards` because phrases are met, by token."""
        critical = self._critical(node)
        rewards: dict[int, float] = {}
        for index in critical.keys() & met:
            for token, child in critical[index]:
                rewards[token] = self._reward(child, met)
        return rewards

    def _compute_critical(self, node: int) -> dict[int, list[tuple[int, int]]]:
        """Return, by phrase, tokens whose rewards at a node may change if the phrase is met, and their next nodes."""
        if not node:
            return {}
        critical, children = self._critical(self._trie.suffix_links[node]), self._trie.children[node]
        if children:
            others = {index: [step for step in steps if step[0] not in children] for index, steps in critical.items()}
            critical = defaultdict(list, {index: steps for index, steps in others.items() if steps})
            for token, child in children.items():
                for index in {*self._ends[child], self._step(child, ()).best}:
                    critical[index].append((token, child))
        return critical

    def _reward(self, node: int, met: frozenset[int]) -> float:
        """Return the reward of the step to a node. met: indices of the met phrases."""
        # Of the met phrases, consider only those that change the reward: there are few combinations to cache.
        relevant = tuple([index for index in self._ends[node] if index in met])
        reward, best = self._step(node, relevant)
        while best in met:
            relevant = (*relevant, best)
            reward, best = self._step(node, relevant)
        return reward

    def _compute_step(self, node: int, met: tuple[int, ...]) -> StepReward:
        """Return the reward of the step to a node, credit included. met: indices of the met phrases."""
        ends = self._ends[node]
        reward = self._penalties[node] + sum(self._gains[index] for index in ends if index not in met)
        best = (0.0, -1)
        for suffix in self._trie.suffixes(node):
            for index in self._begun[suffix]:
                if index not in met and index not in ends:
                    credit = self._trie.depths[suffix] * self._highest[index] / len(self._phrases[index])
                    best = max(best, (credit, index))
                    break
        return StepReward(reward + best[0], best[1])


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
        phrases, live = self.phrases, list(chain.from_iterable(self.progress))
        biased = log_probs + phrases.root_rewards(log_probs.shape[2], self.device)
        # Later rewards replace earlier ones.
        self._set_rewards(biased, log_probs, *_flatten([progress.met.rewards for progress in live]))
        self._set_rewards(biased, log_probs, *_concat([phrases.node_rewards(progress.node) for progress in live]))
        self._set_rewards(biased, log_probs, *_flatten([progress.overrides for progress in live]))
        return biased

    def _set_rewards(self, biased: Tensor, log_probs: Tensor, counts: list[int], rewards: Rewards) -> None:
        """Replace rewards. counts: number of rewards of each hypothesis; rewards: those of all, concatenated."""
        if len(rewards.tokens):
            starts = np.repeat(np.arange(len(counts)) * log_probs.shape[2], counts)
            indices = to_device(starts + rewards.tokens, self.device)
            rewarded = log_probs.reshape(-1)[indices] + to_device(rewards.values, self.device)
            biased.view(-1).index_copy_(0, indices, rewarded)

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


def _flatten(rewards: list[dict[int, float]]) -> tuple[list[int], Rewards]:
    """Concatenate rewards by token; also return their counts."""
    tokens = np.fromiter(chain.from_iterable(rewards), dtype=np.int64)
    values = np.fromiter(chain.from_iterable(map(dict.values, rewards)), dtype=np.float32)
    return list(map(len, rewards)), Rewards(tokens, values)


def _concat(rewards: list[Rewards]) -> tuple[list[int], Rewards]:
    """Concatenate rewards; also return their counts."""
    tokens, values = zip(*rewards, strict=True)
    return list(map(len, tokens)), Rewards(np.concatenate(tokens), np.concatenate(values))
