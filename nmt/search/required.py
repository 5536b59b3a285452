"""Positive lexical constraints: dynamic beam allocation (Post and Vilar 2018) with an Aho-Corasick automaton.

A requirement is a list of alternative phrases, such as the inflected forms of a term; any one of them meets it. An
output contains a phrase if the tokens of the phrase are consecutive in it. Phrases may overlap or contain each other.
Duplicate requirements count once. A hypothesis cannot end before it meets all requirements.

Hypotheses that contain more of their phrases are less probable and would lose their slots to hypotheses that postpone
the phrases. The slots of the beam are therefore allocated to banks. A bank contains the hypotheses that lack the same
number of tokens: the rest of a phrase in progress, then the shortest alternatives still missing. The best of each
bank gets a slot, then the second best of each, and so on, starting with the banks that lack the fewest tokens. Slots
that a bank cannot fill go to the others. Every token that can continue a phrase is a candidate, regardless of its
probability. The alternatives of a requirement compete by probability. A beam with more slots than required tokens can
keep every bank, which gives the best translations.

If necessary, the maximum length grows until all phrases fit one after the other, following the prefix, but never beyond
`max_tokens` or `max_own_tokens`. Hypotheses with capacity for their missing tokens rank before all others, and at least
one extension of each has capacity too. A beam of any size therefore finds an output with all phrases, unless the model
or another constraint makes each of these extensions impossible, or the phrases do not fit into `max_tokens` or
`max_own_tokens`. In these cases there may be no output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from nmt.devices.transfer import pad_rows
from nmt.search.limits import Requirement, distinct_requirements
from nmt.search.per_sentence import PerSentence
from nmt.search.phrases import PhraseMatcher
from nmt.special_ids import EOS_ID, PAD_ID


@dataclass
class RequiredPhrases(PerSentence):
    """Progress of each live hypothesis through the phrases that its sentence requires.

    candidates: (batch, count) int64, distinct tokens of the phrases, padded with PAD_ID, which is impossible
    phrases:    (batch, requirements, alternatives) int64, indices in the matcher; requirements are padded with
                the empty phrase, alternatives by repetition
    nodes:      (batch, beam) int64, state of the matcher
    met:        (batch, beam, requirements) bool, whether the hypothesis contains one of the alternatives
    separator:  token after a previous translation, whose phrases do not count; -1 for none
    """

    matcher: PhraseMatcher
    candidates: Tensor
    phrases: Tensor
    nodes: Tensor
    met: Tensor
    separator: int

    @classmethod
    def start(
        cls,
        required: Sequence[Sequence[Requirement]] | None,
        beam_size: int,
        device: torch.device,
        separator: int | None = None,
    ) -> RequiredPhrases | None:
        """required: requirements of each sentence. Returns None if there are none."""
        by_sentence = [distinct_requirements(requirements) for requirements in required or ()]
        if not any(by_sentence):
            return None
        distinct = [(), *sorted(set(chain.from_iterable(chain(*by_sentence))))]
        matcher = PhraseMatcher(distinct, device)
        index = {phrase: i for i, phrase in enumerate(distinct)}
        max_alternatives = max(len(alternatives) for alternatives in chain(*by_sentence))
        indices: list[list[int]] = []
        tokens: list[list[int]] = []
        for requirements in by_sentence:
            repeated = [(alternatives * max_alternatives)[:max_alternatives] for alternatives in requirements]
            indices.append([index[phrase] for phrase in chain(*repeated)])
            tokens.append(sorted({token for phrase in chain(*requirements) for token in phrase}))
        phrases = pad_rows(indices, index[()], device).unflatten(1, (-1, max_alternatives))
        return cls(
            matcher=matcher,
            candidates=pad_rows(tokens, PAD_ID, device),
            phrases=phrases,
            nodes=torch.zeros(len(by_sentence), beam_size, dtype=torch.int64, device=device),
            met=(matcher.lengths[phrases] == 0).any(dim=2)[:, None].repeat(1, beam_size, 1),
            separator=-1 if separator is None else separator,
        )

    def forbid_end(self, log_probs: Tensor) -> None:
        """Make EOS impossible, in place, before all requirements are met. log_probs: (batch, beam, vocab)."""
        log_probs[:, :, EOS_ID].masked_fill_(~self.met.all(dim=2), -math.inf)

    def add_candidates(self, tokens: Tensor) -> Tensor:
        """Append all tokens that can continue a phrase to candidates (batch, width, count); may add duplicates."""
        return torch.cat([tokens, self.candidates[:, None].expand(-1, tokens.shape[1], -1)], dim=2)

    def allocate(self, parents: Tensor, tokens: Tensor, is_possible: Tensor, capacity: Tensor) -> Tensor:
        """Return the order in which candidates get slots, (batch, candidates) int64; see the module docstring.

        parents, tokens, is_possible: (batch, candidates), best first; capacity: (batch,) tokens that may follow
        """
        _, met, matched = self._extend(parents, tokens)
        # Tokens to come: the rest of the phrase in progress if that saves tokens, and the shortest other alternatives.
        lengths = self.matcher.lengths[self.phrases][:, None]  # (batch, 1, requirements, alternatives)
        shortest = lengths.amin(dim=3)
        saved = (shortest[..., None] - lengths + matched).amax(dim=3)  # by the phrase in progress; (batch, n, ...)
        missing = shortest.expand_as(met).masked_fill(met, 0).sum(dim=2) - saved.masked_fill(met, 0).amax(dim=2)
        by_bank = missing.argsort(dim=1, stable=True)
        banks = missing.gather(1, by_bank)
        positions = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
        is_first = torch.ones_like(is_possible)
        is_first[:, 1:] = banks[:, 1:] != banks[:, :-1]
        rank = positions - positions.masked_fill(~is_first, 0).cummax(dim=1).values  # within the bank
        # Candidates without capacity for their missing tokens come after all others, and impossible ones come last.
        delay = (banks > capacity[:, None]).long() + 2 * (~is_possible).gather(1, by_bank)
        return by_bank.gather(1, (rank + banks.shape[1] * delay).argsort(dim=1, stable=True))

    def extend(self, parents: Tensor, tokens: Tensor) -> RequiredPhrases:
        """Return the progress of hypotheses that extend `parents` by `tokens`, both (batch, beam)."""
        nodes, met, _ = self._extend(parents, tokens)
        return replace(self, nodes=nodes, met=met)

    def _extend(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return nodes (batch, n), met requirements, and matched tokens of each phrase (batch, n, ...)."""
        nodes = self.matcher.step(self.nodes.gather(1, parents), tokens)
        matched = self.matcher.matched(nodes[:, :, None, None], self.phrases[:, None])
        met = self.met.gather(1, parents[:, :, None].expand(-1, -1, self.met.shape[2]))
        met = met & (tokens != self.separator)[:, :, None]
        return nodes, met | (matched == self.matcher.lengths[self.phrases][:, None]).any(dim=3), matched
