"""Positive lexical constraints: dynamic beam allocation (Post and Vilar 2018) with an Aho-Corasick automaton.

An output contains a phrase if the tokens of the phrase are consecutive in it. Phrases may overlap or contain each
other, and a phrase that is required twice needs to appear once. A hypothesis cannot end before it contains all of its
phrases.

Hypotheses that contain more of their phrases are less probable and would lose their slots to hypotheses that postpone
the phrases. The slots of the beam are therefore allocated to banks. A bank holds the hypotheses that miss the same
number of tokens. The best of each bank gets a slot, then the second best of each, and so on, banks that miss fewest
tokens first. Slots that a bank cannot fill go to the others. Every token that can continue a phrase is a candidate,
however improbable. A beam with more slots than required tokens can keep every bank and places the phrases best.

If necessary, the maximum length grows until all phrases fit one after the other behind the prefix, but never beyond
`max_tokens`. A hypothesis that has capacity for its missing tokens ranks before all others and always has such an
extension. A beam of any size therefore finds an output with all phrases, unless the model or another constraint makes
each of these extensions impossible or the phrases exceed `max_tokens`. In these cases there may be no output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.search.batched import Batched
from nmt.search.phrases import PhraseMatcher
from nmt.special_ids import EOS_ID, PAD_ID


@dataclass
class RequiredPhrases(Batched):
    """Progress of each live hypothesis in the phrases that its sentence requires.

    candidates: (batch, max_tokens) int64, distinct tokens of the phrases, padded with PAD_ID, which is never possible
    phrases:    (batch, max_phrases) int64, their indices in the matcher, padded with that of the empty phrase
    nodes:      (batch, beam) int64, state of the matcher
    met:        (batch, beam, max_phrases) bool, whether the hypothesis contains the phrase
    """

    matcher: PhraseMatcher
    candidates: Tensor
    phrases: Tensor
    nodes: Tensor
    met: Tensor

    @classmethod
    def start(
        cls, required: Sequence[Sequence[Sequence[int]]] | None, beam_size: int, device: torch.device
    ) -> RequiredPhrases | None:
        """required: token ids of the phrases of each sentence. Returns None if there are none."""
        if required is None or not any(map(any, required)):
            return None
        by_sentence = [sorted({tuple(phrase) for phrase in phrases if phrase}) for phrases in required]
        distinct: list[tuple[int, ...]] = [(), *sorted({phrase for phrases in by_sentence for phrase in phrases})]
        matcher = PhraseMatcher(distinct, device)
        index = {phrase: i for i, phrase in enumerate(distinct)}
        phrases = _pad([[index[phrase] for phrase in phrases] for phrases in by_sentence], index[()], device)
        tokens = [sorted({token for phrase in phrases for token in phrase}) for phrases in by_sentence]
        return cls(
            matcher=matcher,
            candidates=_pad(tokens, PAD_ID, device),
            phrases=phrases,
            nodes=torch.zeros(len(required), beam_size, dtype=torch.int64, device=device),
            met=(matcher.lengths[phrases] == 0)[:, None].repeat(1, beam_size, 1),
        )

    def forbid_end(self, log_probs: Tensor) -> None:
        """Make EOS impossible, in place, before all phrases are met. log_probs: (batch, beam, vocab)."""
        log_probs[:, :, EOS_ID].masked_fill_(~self.met.all(dim=2), float("-inf"))

    def add_candidates(self, tokens: Tensor) -> Tensor:
        """Append all tokens that can continue a phrase to candidates (batch, width, count); duplicates may result."""
        return torch.cat([tokens, self.candidates[:, None].expand(-1, tokens.shape[1], -1)], dim=2)

    def allocate(self, parents: Tensor, tokens: Tensor, is_possible: Tensor, capacity: Tensor) -> Tensor:
        """Return the order in which candidates get slots, (batch, candidates) int64; see the head of this module.

        parents, tokens, is_possible: (batch, candidates), best first; capacity: (batch,) tokens that may follow
        """
        _, met, matched = self._extend(parents, tokens)
        # Tokens to come if all phrases follow one after the other, beginning with the one in progress.
        lengths = self.matcher.lengths[self.phrases][:, None].expand_as(matched)
        missing = lengths.masked_fill(met, 0).sum(dim=2) - matched.masked_fill(met, 0).amax(dim=2)
        by_bank = missing.argsort(dim=1, stable=True)
        banks = missing.gather(1, by_bank)
        positions = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
        is_first = torch.ones_like(is_possible)
        is_first[:, 1:] = banks[:, 1:] != banks[:, :-1]
        turn = positions - positions.masked_fill(~is_first, 0).cummax(dim=1).values  # rank within the bank
        is_late = (banks > capacity[:, None]).long() + 2 * (~is_possible).gather(1, by_bank)
        turn = turn + banks.shape[1] * is_late
        return by_bank.gather(1, turn.argsort(dim=1, stable=True))

    def extend(self, parents: Tensor, tokens: Tensor) -> RequiredPhrases:
        """Return the progress of hypotheses that extend `parents` by `tokens`, both (batch, beam)."""
        nodes, met, _ = self._extend(parents, tokens)
        return replace(self, nodes=nodes, met=met)

    def _extend(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return nodes (batch, n), met phrases and matched tokens of each phrase, both (batch, n, max_phrases)."""
        nodes = self.matcher.step(self.nodes.gather(1, parents), tokens)
        matched = self.matcher.matched(nodes[:, :, None], self.phrases[:, None])
        met = self.met.gather(1, parents[:, :, None].expand(-1, -1, self.met.shape[2]))
        return nodes, met | (matched == self.matcher.lengths[self.phrases][:, None]), matched


def _pad(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> Tensor:
    """Pad rows to one tensor, (rows, longest) int64."""
    longest = max(map(len, rows))
    padded = [[*row, *[filler] * (longest - len(row))] for row in rows]
    return to_device(torch.tensor(padded, dtype=torch.int64), device)
