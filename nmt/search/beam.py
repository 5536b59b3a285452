"""The hypotheses of a batch during beam search: live ones, finished ones, and the history of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.devices.transfer import to_lists
from nmt.search.bias import Bias
from nmt.search.forbidden import ForbiddenProgress
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.per_sentence import ActiveSentences, PerSentence
from nmt.search.required import RequiredPhrases
from nmt.search.trees import TreeConstraint, TreeProgress
from nmt.special_ids import BOS_ID, EOS_ID


class Extensions(NamedTuple):
    """Extensions of hypotheses by one token, best first; all fields (..., count).

    log_probs:       log-probability of the extended hypothesis, float32
    parents:         beam index of the hypothesis that is extended
    tokens:          the new token
    token_log_probs: log-probability of the new token, float32
    """

    log_probs: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor

    def live(self, count: int) -> Extensions:
        """Return the best `count` that do not end; if there are fewer, pad with impossible ones."""
        is_end = self.tokens == EOS_ID
        order = is_end.int().argsort(dim=-1, stable=True)[..., :count]
        possible = self._replace(log_probs=self.log_probs.masked_fill(is_end, -math.inf))
        return Extensions(*(part.gather(-1, order) for part in possible))


@dataclass
class Beam(PerSentence):
    """Hypotheses of every sentence in the batch after `clock` steps of the search.

    A beam consists of `beam_groups` contiguous groups of equal size; without diverse beam search there is one group.

    limits:          (batch,) int64, maximum length of the output, EOS included
    bias, required, forbidden: progress of each live hypothesis through these phrases; None without them
    trees:           progress of each live hypothesis in its tree; None without this constraint
    Live hypotheses, best first in each group; empty slots have log-probability -inf:
      log_prob:      (batch, beam) float32
    Finished hypotheses, best first; empty slots have score -inf:
      scores:        (batch, groups, kept) float32
      ends:          (batch, groups, kept) int64, length * beam_size + beam index of the parent of EOS
      num_finished:  (batch, groups) int64, kept or not; counted only if `max_finished` is set
    History, a ring buffer over steps; step t is stored at (t - 1) % capacity:
      parents:         (batch, capacity, beam) int64, beam index one step earlier
      tokens:          (batch, capacity, beam) int64
      token_log_probs: (batch, capacity, beam) float32
      end_log_probs:   (batch, capacity, beam) float32, log-probability of EOS after each parent
    """

    beam_groups: int
    max_finished: int | None
    clock: int
    sentences: ActiveSentences
    limits: Tensor
    bias: Bias | None
    required: RequiredPhrases | None
    forbidden: ForbiddenProgress | None
    trees: TreeProgress | None
    log_prob: Tensor
    scores: Tensor
    ends: Tensor
    num_finished: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    end_log_probs: Tensor

    @classmethod
    def start(
        cls,
        options: SearchOptions,
        limits: Tensor,
        capacity: int,
        required: RequiredPhrases | None,
        trees: TreeConstraint | None,
        ids: list[int],
        clock: int,
    ) -> Beam:
        """Start with one empty live hypothesis in each group.

        limits, required, trees: of all sentences of the search; capacity: the highest limit; ids: sentences that start
        now
        """
        batch, beam_size, device = len(ids), options.beam_size, limits.device
        sentences = ActiveSentences.start(ids, device)
        own_limits = limits[sentences.device_ids]
        width = beam_size // options.beam_groups
        log_prob = torch.full((batch, beam_size), -math.inf, dtype=torch.float32, device=device)
        log_prob[:, ::width] = 0.0
        kept = (batch, options.beam_groups, min(options.n_best, width))
        integers = torch.zeros(batch, capacity, beam_size, dtype=torch.int64, device=device)
        floats = torch.zeros(batch, capacity, beam_size, dtype=torch.float32, device=device)
        return cls(
            beam_groups=options.beam_groups,
            max_finished=options.max_finished,
            clock=clock,
            sentences=sentences,
            limits=own_limits,
            bias=Bias.start(options.bias, batch, beam_size, device, options.separator) if options.bias else None,
            required=None if required is None else required.select(ids, sentences.device_ids),
            forbidden=ForbiddenProgress.start(options.forbidden, batch, beam_size, device),
            trees=None if trees is None else trees.start(sentences.device_ids, own_limits, capacity, beam_size),
            log_prob=log_prob,
            scores=torch.full(kept, -math.inf, dtype=torch.float32, device=device),
            ends=torch.zeros(kept, dtype=torch.int64, device=device),
            num_finished=torch.zeros(kept[:2], dtype=torch.int64, device=device),
            parents=integers,
            tokens=integers + BOS_ID,
            token_log_probs=floats,
            end_log_probs=floats.clone(),
        )

    @property
    def _now(self) -> int:
        return (self.clock - 1) % self.tokens.shape[1]

    def last_parents(self) -> Tensor:
        """Beam index of each live hypothesis before the last step, (batch, beam)."""
        return self.parents[:, self._now]

    def last_tokens(self) -> Tensor:
        """Last token of each live hypothesis, (batch, beam)."""
        return self.tokens[:, self._now]

    def advance(self) -> None:
        """Begin the next step."""
        self.clock += 1
        self.sentences.advance()

    def outputs(self, count: int) -> Tensor:
        """Last `count` tokens of each hypothesis before the current step, (batch, beam, count); -1 before the first."""
        batch, capacity, beam_size = self.tokens.shape
        outputs = self.tokens.new_full((batch, beam_size, count), -1)
        beam_index = torch.arange(beam_size, device=outputs.device).expand(batch, -1)
        for back in range(1, count + 1):
            slot = (self.clock - 1 - back) % capacity
            exists = (back < self.sentences.device_lengths)[:, None]
            outputs[:, :, count - back] = self.tokens[:, slot].gather(1, beam_index).where(exists, -1)
            beam_index = self.parents[:, slot].gather(1, beam_index)
        return outputs

    def finish(self, best: Extensions, scores: Tensor) -> None:
        """Add the extensions that end to the finished hypotheses; ties keep the earlier hypothesis.

        best, scores: (batch, groups, count)
        """
        scores = scores.masked_fill(best.tokens != EOS_ID, -math.inf)
        beam_size, kept = self.log_prob.shape[1], self.scores.shape[2]
        if self.max_finished is not None:
            scores[:, :, beam_size // self.beam_groups :] = -math.inf
            scores.masked_fill_((self.num_finished >= self.max_finished)[:, :, None], -math.inf)
            self.num_finished = self.num_finished + (scores > -math.inf).sum(dim=2)
        ends = self.sentences.device_lengths[:, None, None] * beam_size + best.parents
        scores, order = torch.cat([self.scores, scores], dim=2).sort(dim=2, descending=True, stable=True)
        self.scores = scores[:, :, :kept]
        self.ends = torch.cat([self.ends, ends], dim=2).gather(2, order[:, :, :kept])

    def extend(self, best: Extensions, end_log_probs: Tensor) -> None:
        """Replace the live hypotheses with the best extensions that do not end.

        best: (batch, groups, count); end_log_probs: (batch, beam) log-probability of EOS after each live hypothesis
        """
        live = best.live(self.log_prob.shape[1] // self.beam_groups)
        self.log_prob = live.log_probs.flatten(1)
        self.parents[:, self._now] = live.parents.flatten(1)
        self.tokens[:, self._now] = live.tokens.flatten(1)
        self.token_log_probs[:, self._now] = live.token_log_probs.flatten(1)
        self.end_log_probs[:, self._now] = end_log_probs
        if self.bias is not None:
            self.bias = self.bias.extend(self.last_parents(), self.last_tokens())
        if self.required is not None:
            self.required = self.required.extend(self.last_parents(), self.last_tokens())
        if self.forbidden is not None:
            self.forbidden = self.forbidden.extend(self.last_parents(), self.last_tokens())
        if self.trees is not None:
            self.trees = self.trees.extend(self.last_parents(), self.last_tokens())

    def is_done(self, upper_bound: Tensor) -> Tensor:
        """Return whether each sentence is done, (batch,) bool.

        upper_bound: (batch, groups) score that no live hypothesis can exceed
        """
        is_done = upper_bound <= self.scores[:, :, -1]
        if self.max_finished is not None:
            is_done |= self.num_finished >= self.max_finished
        return is_done.all(dim=1)

    def read(self, n_best: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Copy the finished hypotheses of each sentence to the host, best first."""
        steps = torch.arange(max(self.sentences.lengths), device=self.tokens.device)
        slots = (self.clock - self.sentences.device_lengths[:, None] + steps) % self.tokens.shape[1]
        slots = slots[:, :, None].expand(-1, -1, self.tokens.shape[2])
        buffers = [self.parents, self.tokens, self.token_log_probs, self.end_log_probs]
        *histories, ends, scores = to_lists(*(buffer.gather(1, slots) for buffer in buffers), self.ends, self.scores)
        for row, sentence in enumerate(self.sentences.ids):
            history = tuple(of_batch[row] for of_batch in histories)
            groups = []
            for group_ends, group_scores in zip(ends[row], scores[row], strict=True):
                finished = zip(group_ends, group_scores, strict=True)
                groups.append([_trace_back(history, end, score) for end, score in finished if math.isfinite(score)])
            yield sentence, _merge_groups(groups, n_best)


def _merge_groups(groups: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Take the best hypothesis of each group, then the second best, up to `n_best` distinct ones; sort them."""
    distinct: dict[tuple[int, ...], Hypothesis] = {}
    for rank in zip_longest(*groups):
        of_rank = [hypothesis for hypothesis in rank if hypothesis is not None]
        for hypothesis in sorted(of_rank, key=lambda h: h.score, reverse=True):
            distinct.setdefault(tuple(hypothesis.tokens), hypothesis)
    return sorted(list(distinct.values())[:n_best], key=lambda h: h.score, reverse=True)


def _trace_back(history: tuple[Any, ...], end: int, score: float) -> Hypothesis:
    """Trace one hypothesis back from its `end`. history: four (length, beam) lists of one sentence."""
    parents, tokens, token_log_probs, end_log_probs = history
    length, beam_index = divmod(end, len(parents[0]))
    output: list[int] = []
    log_probs: list[float] = [end_log_probs[length - 1][beam_index]]
    for step in range(length - 2, -1, -1):
        output.append(tokens[step][beam_index])
        log_probs.append(token_log_probs[step][beam_index])
        beam_index = parents[step][beam_index]
    return Hypothesis(output[::-1], score, math.fsum(log_probs), log_probs[::-1])
