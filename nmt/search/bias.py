"""The bias: words and phrases that search is to prefer or to avoid.

An output is ranked, and scored, as if its log-probability were higher by the biases of the phrases that it holds. A
positive bias counts once, however often the output holds the phrase, since else repeating it would pay; a negative one
counts each time. What is reported as log-probability stays the model's own.

A positive bias is credited little by little while its phrase grows, so that the beam does not drop it half-way; where
the phrase breaks off, or the output ends, the credit is gone. Nothing impossible becomes possible.

The cost of a step does not grow with the number of phrases. What a token earns depends on the phrases that an output
has begun and on those that it holds already. For an output that has done neither, it is one vector over the vocabulary,
computed once. For all others the host knows the few tokens that earn something else. For that it reads the newest
tokens of all hypotheses at each step, which is one more wait for a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.devices.transfer import to_device, to_lists
from nmt.search.phrases import PhraseTrie

# Biases are multiples of this. Their sums are then exact, and do not depend on the order in which they are taken.
_GRAIN = 2.0**-30

Biases = tuple[tuple[tuple[int, ...], float], ...]


class Earnings(NamedTuple):
    """What some tokens earn. tokens: (count,) int64, distinct; values: (count,) float32."""

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]


_NONE = Earnings(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Met:
    """The preferred phrases that a hypothesis holds already; hypotheses share it.

    phrases:     their numbers
    left:        what the others would add
    first:       what the first tokens of these phrases earn where nothing is begun
    corrections: by node, what the tokens earn that earn something else than without these phrases
    """

    phrases: frozenset[int]
    left: float
    first: dict[int, float] = field(default_factory=dict)
    corrections: dict[int, dict[int, float]] = field(default_factory=dict)


class Followed(NamedTuple):
    """What is known of a hypothesis.

    node: of the trie, where the hypothesis ends; earned: what it would gain if it ended now
    """

    node: int
    met: Met
    earned: float


class BiasedPhrases:
    """Phrases with a bias, and what each token earns behind any output.

    nothing: what is known of the empty hypothesis
    """

    def __init__(self, biases: Biases) -> None:
        """biases: the tokens of each phrase, and its bias; the same tokens may come several times."""
        of_phrases: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for phrase, bias in biases:
            of_phrases[phrase].append(round(bias / _GRAIN) * _GRAIN)
        self._phrases = [*of_phrases]
        self._gains = [sum(bias for bias in own if bias > 0) for own in of_phrases.values()]
        self._highest = [max(0.0, *own) for own in of_phrases.values()]
        self._trie = trie = PhraseTrie(self._phrases)
        self._paths = [trie.path(phrase) for phrase in self._phrases]
        # Of each node: the fines for all phrases that end there, and the preferred phrases that do.
        self._fines = [0.0] * len(trie.children)
        self._ends: list[tuple[int, ...]] = [()] * len(trie.children)
        for number, own in enumerate(of_phrases.values()):
            self._fines[trie.ends[number]] = sum(bias for bias in own if bias < 0)
            self._ends[trie.ends[number]] = (number,) if self._gains[number] else ()
        for node in range(1, len(trie.children)):
            self._fines[node] += self._fines[trie.shorter[node]]
            self._ends[node] += self._ends[trie.shorter[node]]
        # Of each node: the preferred phrases that begin with it, that with the highest bias for each token first.
        self._begun: list[list[int]] = [[] for _ in trie.children]
        rates = [highest / len(phrase) for highest, phrase in zip(self._highest, self._phrases, strict=True)]
        for number in sorted(range(len(rates)), key=lambda number: -rates[number]):
            for node in self._paths[number][1:] if self._gains[number] else ():
                self._begun[node].append(number)
        self._met_nothing = Met(frozenset(), sum(self._gains))
        self._earnings = {0: _NONE}
        self._vectors: dict[tuple[int, torch.device], Tensor] = {}
        self.nothing = Followed(0, self._met_nothing, 0.0)

    def follow(self, one: Followed, token: int) -> Followed:
        """The hypothesis with a further token."""
        node, met = self._trie.after(one.node, token), one.met
        if not node:
            return one if not one.node else Followed(0, met, one.earned)
        gain = 0.0
        if new := [number for number in self._ends[node] if number not in met.phrases]:
            gain = sum(self._gains[number] for number in new)
            met = self._meet(met, new, gain)
        return Followed(node, met, one.earned + self._fines[node] + gain)

    def first(self, vocab: int, device: torch.device) -> Tensor:
        """What each token earns behind a hypothesis that has begun nothing and holds nothing, (vocab,) float32."""
        if (vocab, device) not in self._vectors:
            vector = np.zeros(vocab, dtype=np.float32)
            for token, node in self._trie.children[0].items():
                vector[token] = self._worth(node, self._met_nothing)
            self._vectors[vocab, device] = to_device(vector, device)
        return self._vectors[vocab, device]

    def begun(self, node: int) -> Earnings:
        """The tokens that earn something else at a node than `first` says, as long as no phrase is met."""
        if node not in self._earnings:
            shorter, children = self.begun(self._trie.shorter[node]), self._trie.children[node]
            self._earnings[node] = shorter
            if children:
                others = ~np.isin(shorter.tokens, [*children])
                own = _earnings({token: self._worth(child, self._met_nothing) for token, child in children.items()})
                self._earnings[node] = Earnings(
                    np.concatenate([shorter.tokens[others], own.tokens]),
                    np.concatenate([shorter.values[others], own.values]),
                )
        return self._earnings[node]

    def corrected(self, node: int, met: Met) -> dict[int, float]:
        """What the tokens earn that continue a phrase which is met, where that is not what `begun` and `first` say."""
        if not node:
            return met.first
        if node not in met.corrections:
            found = {token: self._trie.after(node, token) for token in met.first}
            for start in self._trie.chain(node):
                depth = self._trie.depths[start]
                for number in met.phrases:
                    if depth < len(self._phrases[number]) and self._paths[number][depth] == start:
                        token = self._phrases[number][depth]
                        found[token] = self._trie.after(node, token)
            met.corrections[node] = {
                token: met.first[token] if self._trie.depths[behind] == 1 else self._worth(behind, met)
                for token, behind in found.items()
            }
        return met.corrections[node]

    def _meet(self, met: Met, new: Sequence[int], gain: float) -> Met:
        """With new phrases, which add `gain`."""
        more = Met(met.phrases.union(new), met.left - gain, dict(met.first))
        for token in {self._phrases[number][0] for number in new}:
            more.first[token] = self._worth(self._trie.children[0][token], more)
        return more

    def _worth(self, node: int, met: Met) -> float:
        """What the step to a node earns, credit included."""
        ends = self._ends[node]
        earned = self._fines[node] + sum(self._gains[number] for number in ends if number not in met.phrases)
        credit = 0.0
        for begun in self._trie.chain(node):
            for number in self._begun[begun]:
                if number not in met.phrases and number not in ends:
                    share = self._trie.depths[begun] * self._highest[number] / len(self._phrases[number])
                    credit = max(credit, share)
                    break
        return earned + credit


def _earnings(values: dict[int, float]) -> Earnings:
    """By token."""
    return Earnings(np.array([*values], dtype=np.int64), np.array([*values.values()], dtype=np.float32))


@lru_cache(maxsize=4)
def biased_phrases(biases: Biases) -> BiasedPhrases:
    """The same phrases for search after search."""
    return BiasedPhrases(biases)


@dataclass(frozen=True)
class Bias:
    """What each live hypothesis has of the phrases with a bias.

    hypotheses: for each row, those of its width
    """

    phrases: BiasedPhrases
    device: torch.device
    hypotheses: list[list[Followed]]

    @classmethod
    def start(cls, biases: Biases, rows: int, width: int, device: torch.device) -> Bias:
        """biases: the tokens of each phrase, and its bias."""
        phrases = biased_phrases(biases)
        return cls(phrases, device, [[phrases.nothing] * width] * rows)

    def rate(self, next_log_probs: Tensor) -> Tensor:
        """The log-probability of each token and what it earns, credit included, both (rows, width, vocab) float32.

        What the hypothesis has earned before is not in it.
        """
        vocab, live = next_log_probs.shape[2], [one for row in self.hypotheses for one in row]
        rated = next_log_probs + self.phrases.first(vocab, self.device)
        earnings = [self.phrases.begun(one.node) for one in live]
        starts = np.repeat(np.arange(len(live)) * vocab, [len(tokens) for tokens, _ in earnings])
        tokens, values = (np.concatenate(parts) for parts in zip(*earnings, strict=True))
        self._correct(rated, next_log_probs, starts + tokens, values)
        corrections = [self.phrases.corrected(one.node, one.met) for one in live]
        places = [place * vocab + token for place, own in enumerate(corrections) for token in own]
        worth = [value for own in corrections for value in own.values()]
        self._correct(rated, next_log_probs, np.array(places, dtype=np.int64), np.array(worth, dtype=np.float32))
        return rated

    def _correct(
        self, rated: Tensor, log_probs: Tensor, places: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Let tokens at some places of all, (count,), earn other values."""
        if len(places):
            on_device = to_device(places, self.device)
            own = log_probs.reshape(-1)[on_device] + to_device(values, self.device)
            rated.view(-1).index_copy_(0, on_device, own)

    @cached_property
    def earned(self) -> Tensor:
        """What each would gain if it ended now, (rows, width) float32."""
        return self._numbers([[one.earned for one in row] for row in self.hypotheses])

    def most(self) -> Tensor:
        """The most that each can earn in the end, (rows, width) float32: all that is positive, and no more fines."""
        return self._numbers([[one.earned + one.met.left for one in row] for row in self.hypotheses])

    def follow(self, parents: Tensor, tokens: Tensor) -> Bias:
        """The hypotheses that extend `parents` by `tokens`, both (rows, width)."""
        steps: Any = zip(self.hypotheses, *to_lists(parents, tokens), strict=True)
        follow = self.phrases.follow
        hypotheses = [[follow(row[parent], token) for parent, token in zip(*step, strict=True)] for row, *step in steps]
        return replace(self, hypotheses=hypotheses)

    def of(self, rows: Sequence[int]) -> Bias:
        """The same for some of the rows."""
        return replace(self, hypotheses=[self.hypotheses[row] for row in rows])

    def joined(self, others: Bias) -> Bias:
        """With other rows behind these."""
        return replace(self, hypotheses=self.hypotheses + others.hypotheses)

    def _numbers(self, values: list[list[float]]) -> Tensor:
        return to_device(np.array(values, dtype=np.float32), self.device)
