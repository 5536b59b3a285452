"""Beam search: the most probable translations under a model that predicts the next token.

The loop is `beam_search`. What it does, exactly:

Score   log_prob / length_penalty(n), where n counts the end token. Higher is better.
Step    Of all extensions of a sentence's live hypotheses by one token, the 2 * beam_size most probable are taken.
        Those that end compete by score for the n_best finished places; the best beam_size of the others live on. At
        most beam_size of them can end, so the beam stays full. What is impossible (-inf) neither ends nor lives on.
        Greedy search, a beam of one, takes the single most probable extension, and is done when that is the end.
Limit   An output has at most max_extra_tokens tokens more than the source, at most max_length_ratio times as many, and
        at most max_tokens, end tokens not counted. A hypothesis at the limit can only end, at the true log-probability
        of ending there.
Stop    A sentence is done when no live hypothesis can overtake its worst kept finished one any more. Log-probability
        only falls and the penalty only grows, so a live hypothesis reaches at most log_prob / penalty at the limit.
        So a beam that never drops a hypothesis finds the true optimum.
Rules   What else an output must or must not hold is in `nmt.decode.rules`. A rule makes extensions impossible; those
        that it leaves keep their true log-probability.
Order   Equal candidates rank by parent, then by token id. Which of many equals topk takes at its edge depends on that
        hypothesis alone, so nothing that stands beside a sentence can change its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from nmt.decode.options import SearchOptions, length_penalty
from nmt.decode.rules import Rules
from nmt.packed import BOS_ID, EOS_ID, PackedSequences

_IMPOSSIBLE = float("-inf")


# --- What search needs, and what it gives ----------------------------------------------------------------------------


class StepState(Protocol):
    """What a model remembers of every hypothesis from one step to the next."""

    def reorder(self, beam_index: Tensor) -> None:
        """Hypothesis j of sentence b continues what hypothesis `beam_index[b, j]` was; (batch, beam) int64."""

    def keep(self, sentence_index: Tensor) -> None:
        """Only these sentences stay in the batch, in this order; (kept,) int64."""


State = TypeVar("State", bound=StepState)


class StepModel(Protocol[State]):
    """A model that says how probable each next token is: a Transformer, an ensemble, a table in a test."""

    def start(self, src: PackedSequences, beam_size: int) -> State:
        """Read the source sentences and return the state before the first step."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities of the next token, (batch, beam, vocab) float32, after the last `tokens` (batch, beam).

        None is above 0, and -inf is allowed; search writes into the tensor, so it must be a fresh one.
        """


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation of one sentence.

    tokens:          without begin and end token
    score:           log_prob / length penalty
    log_prob:        natural logarithm of its probability, end token included
    token_log_probs: of each token and of the end token; they sum to log_prob
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]


# --- The search ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def beam_search(
    model: StepModel[State],
    src: PackedSequences,
    options: SearchOptions,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` best translations of each source sentence, best first, as the head of this file defines them.

    src: sentences closed by the end token, on the model's device; prefixes: the tokens that the translation of each
    sentence must begin with. A list is shorter than `n_best` where fewer translations are possible, and empty where
    rules leave none, or where the model gives no number but -inf or NaN.
    """
    if src.num_sentences == 0:
        return []
    device, beam_size = src.tokens.device, options.beam_size
    rules = Rules(options, [length - 1 for length in src.lengths.tolist()], prefixes)
    limits = rules.limits
    penalties = [length_penalty(n, options.length_penalty, options.length_alpha) for n in range(max(limits) + 1)]
    penalty = torch.tensor(penalties, device=device)

    results: list[list[Hypothesis]] = [[] for _ in limits]
    sentences = list(range(src.num_sentences))  # which sentence each row of the batch is
    beam = _Beam.start(penalty[torch.tensor(limits, device=device)], beam_size, options.n_best, room=max(limits))
    tokens = torch.full((src.num_sentences, beam_size), BOS_ID, device=device)
    state = model.start(src, beam_size)

    for length in range(1, max(limits) + 1):
        log_probs = model.step(tokens, state)  # (batch, beam, vocab)
        rules.apply(log_probs, length, sentences, beam.outputs)
        best = _best_extensions(beam.log_prob, log_probs, count=2 * beam_size if beam_size > 1 else 1)
        beam.finish(best, length, penalty[length])
        beam.live_on(best, length, log_probs[:, :, EOS_ID])

        moved = (beam.parents[:, length - 1] != torch.arange(beam_size, device=device)).any(dim=1)
        is_done, has_moved = torch.stack([beam.done, moved]).tolist()  # the one wait for the device in each step
        if any(is_done):
            leaving = [row for row, done in enumerate(is_done) if done]
            outputs = beam.keep(torch.tensor(leaving, device=device)).read(length)
            for row, hypotheses in zip(leaving, outputs, strict=True):
                results[sentences[row]] = hypotheses
            staying = [row for row, done in enumerate(is_done) if not done]
            if not staying:
                break
            rows = torch.tensor(staying, device=device)
            state.keep(rows)
            beam = beam.keep(rows)
            sentences = [sentences[row] for row in staying]
            has_moved = [has_moved[row] for row in staying]
        if any(has_moved):
            state.reorder(beam.parents[:, length - 1])
        tokens = beam.tokens[:, length - 1]
    return results


@dataclass(frozen=True)
class _Extensions:
    """Extensions of each sentence's hypotheses by one token, the most probable first; all (batch, count).

    log_probs:       of the whole, float32
    parents:         place in the beam of the hypothesis that is extended
    tokens:          the new token
    token_log_probs: of the new token, float32
    """

    log_probs: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor


def _best_extensions(log_prob: Tensor, next_log_probs: Tensor, count: int) -> _Extensions:
    """The `count` most probable extensions. log_prob: (batch, beam), next_log_probs: (batch, beam, vocab)."""
    # What is not among the best of its own parent cannot be among the best of all. As topk leaves the order of equals
    # open, they are put in the order of their ids first, which the stable sort then preserves.
    per_parent = min(count, next_log_probs.shape[2])
    tokens = next_log_probs.topk(per_parent).indices.sort().values  # (batch, beam, per_parent)
    token_log_probs = next_log_probs.gather(2, tokens)
    log_probs = (log_prob[:, :, None] + token_log_probs).flatten(1)  # (batch, beam * per_parent)
    best = log_probs.argsort(dim=1, descending=True, stable=True)[:, :count]
    return _Extensions(
        log_probs=log_probs.gather(1, best),
        parents=best // per_parent,
        tokens=tokens.flatten(1).gather(1, best),
        token_log_probs=token_log_probs.flatten(1).gather(1, best),
    )


@dataclass
class _Beam:
    """All that search itself remembers of the sentences in the batch.

    Live hypotheses, best first; a place that holds none has log-probability -inf:
      log_prob:         (batch, beam) float32
      penalty_at_limit: (batch,) float32, the length penalty at the longest output
    Finished hypotheses, best first; a place that holds none has score -inf:
      scores:           (batch, n_best) float32
      ends:             (batch, n_best) int64, length * beam + place of the hypothesis that ended
    History, from which outputs are read backwards in the end; entry t is of outputs of t + 1 tokens:
      parents:          (batch, room, beam) int64, place in the beam one token earlier
      tokens:           (batch, room, beam) int64, the newest token
      token_log_probs:  (batch, room, beam) float32, of the newest token
      end_log_probs:    (batch, room, beam) float32, of ending instead, for each parent
    """

    log_prob: Tensor
    penalty_at_limit: Tensor
    scores: Tensor
    ends: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    end_log_probs: Tensor

    @classmethod
    def start(cls, penalty_at_limit: Tensor, beam_size: int, n_best: int, room: int) -> _Beam:
        """One live hypothesis in each sentence, the empty one. penalty_at_limit: (batch,)."""
        batch, device = penalty_at_limit.shape[0], penalty_at_limit.device
        log_prob = torch.full((batch, beam_size), _IMPOSSIBLE, device=device)
        log_prob[:, 0] = 0.0
        scores = torch.full((batch, n_best), _IMPOSSIBLE, device=device)
        integers = torch.zeros(batch, room, beam_size, dtype=torch.int64, device=device)
        floats = torch.zeros(batch, room, beam_size, device=device)
        return cls(
            log_prob=log_prob,
            penalty_at_limit=penalty_at_limit,
            scores=scores,
            ends=torch.zeros(scores.shape, dtype=torch.int64, device=device),
            parents=integers,
            tokens=integers.clone(),
            token_log_probs=floats,
            end_log_probs=floats.clone(),
        )

    def finish(self, best: _Extensions, length: int, penalty: Tensor) -> None:
        """Let those extensions that end compete for the finished places; of equals the earlier wins."""
        scores = (best.log_probs / penalty).masked_fill(best.tokens != EOS_ID, _IMPOSSIBLE)
        ends = length * self.log_prob.shape[1] + best.parents
        all_scores, order = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        n_best = self.scores.shape[1]
        self.scores = all_scores[:, :n_best]
        self.ends = torch.cat([self.ends, ends], dim=1).gather(1, order[:, :n_best])

    def live_on(self, best: _Extensions, length: int, end_log_probs: Tensor) -> None:
        """Let the best of those extensions live on that do not end. end_log_probs: (batch, beam), for each parent."""
        ending = best.tokens == EOS_ID
        places = ending.int().argsort(dim=1, stable=True)[:, : self.log_prob.shape[1]]
        self.log_prob = best.log_probs.masked_fill(ending, _IMPOSSIBLE).gather(1, places)
        self.parents[:, length - 1] = best.parents.gather(1, places)
        self.tokens[:, length - 1] = best.tokens.gather(1, places)
        self.token_log_probs[:, length - 1] = best.token_log_probs.gather(1, places)
        self.end_log_probs[:, length - 1] = end_log_probs

    @property
    def done(self) -> Tensor:
        """Whether no live hypothesis can overtake the worst finished one any more, (batch,) bool."""
        return self.log_prob[:, 0] / self.penalty_at_limit <= self.scores[:, -1]

    def outputs(self, length: int) -> Tensor:
        """The first `length` tokens of every live hypothesis, (batch, beam, length), when it has as many."""
        batch, _, beam_size = self.tokens.shape
        outputs = self.tokens.new_empty(batch, beam_size, length)
        place = torch.arange(beam_size, device=outputs.device).expand(batch, -1)
        for t in range(length - 1, -1, -1):
            outputs[:, :, t] = self.tokens[:, t].gather(1, place)
            place = self.parents[:, t].gather(1, place)
        return outputs

    def keep(self, rows: Tensor) -> _Beam:
        """The beam of some of the sentences, (kept,)."""
        return _Beam(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def read(self, length: int) -> list[list[Hypothesis]]:
        """The finished hypotheses of each sentence, best first, on the host; none is longer than `length`."""
        parts = (self.parents, self.tokens, self.token_log_probs, self.end_log_probs)
        histories = zip(*(part[:, :length].tolist() for part in parts), strict=True)
        return [
            [_trace_back(history, end, score) for end, score in zip(ends, scores, strict=True) if math.isfinite(score)]
            for history, ends, scores in zip(histories, self.ends.tolist(), self.scores.tolist(), strict=True)
        ]


def _trace_back(history: tuple[Any, ...], end: int, score: float) -> Hypothesis:
    """Read one hypothesis backwards from its `end`; history: the four parts of one sentence, (length, beam) lists."""
    parents, tokens, token_log_probs, end_log_probs = history
    length, place = divmod(end, len(parents[0]))
    output: list[int] = []
    log_probs: list[float] = [end_log_probs[length - 1][place]]
    for t in range(length - 2, -1, -1):
        output.append(tokens[t][place])
        log_probs.append(token_log_probs[t][place])
        place = parents[t][place]
    return Hypothesis(output[::-1], score, math.fsum(log_probs), log_probs[::-1])
