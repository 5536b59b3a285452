"""Beam search: the most probable translations under a model that predicts the next token.

The loop is `beam_search`. What it does, exactly:

Score   log_prob / length_penalty(n), where n counts the end token. Higher is better. A bias (`nmt.decode.bias`) counts
        as log-probability, and a coverage penalty (`nmt.decode.coverage`) is added.
Step    Of all extensions of a sentence's live hypotheses by one token, the 2 * beam_size best are taken: the most
        probable, bias included, where required phrases and groups do not say otherwise. Those that end compete by score
        for the n_best finished places; the best beam_size of the others live on. At most beam_size of them can end, so
        the beam stays full. What is impossible (-inf) neither ends nor lives on. Greedy search, a beam of one, takes
        the single best extension, and is done when that is the end.
Limit   An output has at most max_extra_tokens tokens more than the source, at most max_length_ratio times as many, and
        at most max_tokens, end tokens not counted. A hypothesis at the limit can only end, at the true log-probability
        of ending there.
Stop    A sentence is done when no live hypothesis can overtake its worst kept finished one any more. Log-probability
        only falls and the penalty only grows, so a live hypothesis reaches at most log_prob / penalty at the limit;
        `Steering.reach` says why that holds with every option. So a beam that never drops a hypothesis finds the true
        optimum.
Rules   What else an output must not hold is in `nmt.decode.rules`. A rule makes extensions impossible; those that it
        leaves keep their true log-probability. What it must hold, and how the beam makes room for it, is in
        `nmt.decode.required`.
Groups  With num_groups above 1, each group is a beam of beam_size / num_groups of its own, for which tokens rank lower
        that earlier groups take at the same step (`best_of_groups`). A sentence is done when all of its groups are. The
        best finished hypotheses of all groups come first, by score, then their second ones, and so on; of these the
        first n_best that differ are the result, best first. Groups that find the same may leave fewer.
Order   Equal candidates rank by parent, then by token id. Which of many equals topk takes at its edge depends on that
        hypothesis alone, so nothing that stands beside a sentence can change its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from nmt.decode.extensions import Extensions
from nmt.decode.options import SearchOptions
from nmt.decode.rules import Rules
from nmt.decode.steering import Steering
from nmt.packed import BOS_ID, EOS_ID, PackedSequences
from nmt.recipe import UserError

_IMPOSSIBLE = float("-inf")


# --- What search needs, and what it gives ----------------------------------------------------------------------------


class StepState(Protocol):
    """What a model remembers of every hypothesis from one step to the next."""

    def reorder(self, beam_index: Tensor) -> None:
        """Hypothesis j of sentence b continues what hypothesis `beam_index[b, j]` was; (batch, beam) int64."""

    def keep(self, sentence_index: Tensor) -> None:
        """Only these sentences stay in the batch, in this order; (kept,) int64."""


@runtime_checkable
class AttentiveState(StepState, Protocol):
    """A state that can say where the model looks, which nothing but a coverage penalty asks for."""

    def attention(self) -> Tensor:
        """Where the last step looked, asked for before any reorder or keep: (batch, beam, src_len) float32.

        Each row sums to 1; src_len is that of the batch that `start` was given, with 0 behind the end of a source.
        """


State = TypeVar("State", bound=StepState)


class StepModel(Protocol[State]):
    """A model that says how probable each next token is: a Transformer, an ensemble, a table in a test."""

    def start(self, src: PackedSequences, beam_size: int) -> State:
        """Read the source sentences and return the state before the first step."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities of the next token, (batch, beam, vocab) float32, after the last `tokens` (batch, beam).

        At the first step the hypotheses of a sentence are all the same. None of the results is above 0, and -inf is
        allowed; search writes into the tensor, so it must be a fresh one.
        """


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation of one sentence.

    tokens:          without begin and end token
    score:           what translations are ordered by: log_prob / length penalty, with bias and coverage where in use
    log_prob:        natural logarithm of its probability under the model, end token included
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
    required: Sequence[Sequence[Sequence[int]]] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` best translations of each source sentence, best first, as the head of this file defines them.

    src: sentences closed by the end token, on the model's device; prefixes: the tokens that the translation of each
    sentence must begin with; required: the phrases, as tokens, that the translation of each must hold. A list is
    shorter than `n_best` where fewer translations are possible, and empty where rules leave none, or where the model
    gives no number but -inf or NaN. Raises UserError for a coverage penalty with a model that has no attention to show.
    """
    if src.num_sentences == 0:
        return []
    device = src.tokens.device
    rules = Rules(options, [length - 1 for length in src.lengths.tolist()], prefixes, required)
    steering = Steering(options, src, rules.limits, required)

    results: list[list[Hypothesis]] = [[] for _ in rules.limits]
    sentences = list(range(src.num_sentences))  # which sentence each row of the batch is
    beam = _Beam.start(src.num_sentences, options, room=max(rules.limits), device=device)
    tokens = torch.full((src.num_sentences, options.beam_size), BOS_ID, device=device)
    state = model.start(src, options.beam_size)

    for length in range(1, max(rules.limits) + 1):
        log_probs = model.step(tokens, state)  # (batch, beam, vocab)
        rules.apply(log_probs, length, sentences, beam.outputs)
        if steering.needs_attention:
            steering.look(attention_of(state))
        log_probs = log_probs.reshape(*beam.log_prob.shape, -1)  # (rows, width, vocab), a row for each group
        best = steering.best_extensions(beam.log_prob, log_probs, length)
        beam.finish(best, length, steering.scores(best, length))
        beam.live_on(best, length, log_probs[:, :, EOS_ID])
        steering.follow(beam.parents[:, length - 1], beam.tokens[:, length - 1])

        is_done = beam.is_done(steering.reach(beam.log_prob, length)).tolist()  # the one wait for the device
        if any(is_done):
            leaving = [row for row, done in enumerate(is_done) if done]
            outputs = beam.of(torch.tensor(leaving, device=device)).read(length, options.n_best)
            for row, hypotheses in zip(leaving, outputs, strict=True):
                results[sentences[row]] = hypotheses
            staying = [row for row, done in enumerate(is_done) if not done]
            if not staying:
                break
            rows = torch.tensor(staying, device=device)
            state.keep(rows)
            steering.keep(beam.rows_of(rows))
            beam = beam.of(rows)
            sentences = [sentences[row] for row in staying]
        state.reorder(beam.parents_in_batch(length))
        tokens = beam.tokens[:, length - 1].reshape(len(sentences), -1)
    return results


def attention_of(state: StepState) -> Tensor:
    """Where the last step looked, see `AttentiveState.attention`; UserError from a state that does not say."""
    if not isinstance(state, AttentiveState):
        raise UserError(
            "this kind of model does not say where it looks; a coverage penalty needs that; "
            "set decode.coverage_penalty to 0"
        )
    return state.attention()


@dataclass
class _Beam:
    """All that search itself remembers of the hypotheses of the sentences in the batch.

    A row is one group of one sentence (with one group, the sentence), those of a sentence beside each other; it has
    `width` live hypotheses, beam_size / num_groups.

    Live hypotheses, best first; a place that holds none has log-probability -inf:
      log_prob:         (rows, width) float32
    Finished hypotheses, best first; a place that holds none has score -inf:
      scores:           (rows, kept) float32
      ends:             (rows, kept) int64, length * width + place of the hypothesis that ended
    History, from which outputs are read backwards in the end; entry t is of outputs of t + 1 tokens:
      parents:          (rows, room, width) int64, place in the row one token earlier
      tokens:           (rows, room, width) int64, the newest token
      token_log_probs:  (rows, room, width) float32, of the newest token
      end_log_probs:    (rows, room, width) float32, of ending instead, for each parent
    """

    num_groups: int
    log_prob: Tensor
    scores: Tensor
    ends: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    end_log_probs: Tensor

    @classmethod
    def start(cls, num_sentences: int, options: SearchOptions, room: int, device: torch.device) -> _Beam:
        """One live hypothesis in each row, the empty one."""
        rows, width = num_sentences * options.num_groups, options.beam_size // options.num_groups
        log_prob = torch.full((rows, width), _IMPOSSIBLE, device=device)
        log_prob[:, 0] = 0.0
        scores = torch.full((rows, min(options.n_best, width)), _IMPOSSIBLE, device=device)
        integers = torch.zeros(rows, room, width, dtype=torch.int64, device=device)
        floats = torch.zeros(rows, room, width, device=device)
        return cls(
            num_groups=options.num_groups,
            log_prob=log_prob,
            scores=scores,
            ends=torch.zeros(scores.shape, dtype=torch.int64, device=device),
            parents=integers,
            tokens=integers.clone(),
            token_log_probs=floats,
            end_log_probs=floats.clone(),
        )

    def finish(self, best: Extensions, length: int, scores: Tensor) -> None:
        """Let those extensions that end compete for the finished places; of equals the earlier wins."""
        scores = scores.masked_fill(best.tokens != EOS_ID, _IMPOSSIBLE)
        ends = length * self.log_prob.shape[1] + best.parents
        all_scores, order = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        kept = self.scores.shape[1]
        self.scores = all_scores[:, :kept]
        self.ends = torch.cat([self.ends, ends], dim=1).gather(1, order[:, :kept])

    def live_on(self, best: Extensions, length: int, end_log_probs: Tensor) -> None:
        """Let the best of those extensions live on that do not end. end_log_probs: (rows, width), for each parent."""
        living = best.living(self.log_prob.shape[1])
        self.log_prob = living.log_probs
        self.parents[:, length - 1] = living.parents
        self.tokens[:, length - 1] = living.tokens
        self.token_log_probs[:, length - 1] = living.token_log_probs
        self.end_log_probs[:, length - 1] = end_log_probs

    def is_done(self, reach: Tensor) -> Tensor:
        """Whether nothing can change any more, (batch,) bool, where no live hypothesis exceeds `reach`, (rows,)."""
        return (reach <= self.scores[:, -1]).view(-1, self.num_groups).all(dim=1)

    def parents_in_batch(self, length: int) -> Tensor:
        """The parents of the live hypotheses by their place in the sentence, (batch, beam) int64."""
        parents = self.parents[:, length - 1].unflatten(0, (-1, self.num_groups))  # (batch, groups, width)
        places: Tensor = torch.arange(self.num_groups, device=parents.device)[:, None] * parents.shape[2] + parents
        return places.flatten(1)

    def outputs(self, length: int) -> Tensor:
        """The first `length` tokens of every live hypothesis, (batch, beam, length), when it has as many."""
        rows, _, width = self.tokens.shape
        outputs = self.tokens.new_empty(rows, width, length)
        place = torch.arange(width, device=outputs.device).expand(rows, -1)
        for t in range(length - 1, -1, -1):
            outputs[:, :, t] = self.tokens[:, t].gather(1, place)
            place = self.parents[:, t].gather(1, place)
        return outputs.view(rows // self.num_groups, self.num_groups * width, length)

    def rows_of(self, sentences: Tensor) -> Tensor:
        """The rows of some of the sentences, (kept,) -> (kept * num_groups,)."""
        groups = torch.arange(self.num_groups, device=sentences.device)
        return (sentences[:, None] * self.num_groups + groups).flatten()

    def of(self, sentences: Tensor) -> _Beam:
        """The beam of some of the sentences, (kept,)."""
        rows = self.rows_of(sentences)
        tensors: dict[str, Any] = {name: value[rows] for name, value in vars(self).items() if name != "num_groups"}
        return replace(self, **tensors)

    def read(self, length: int, n_best: int) -> list[list[Hypothesis]]:
        """The finished hypotheses of each sentence, best first, on the host; none is longer than `length`."""
        parts = (self.parents, self.tokens, self.token_log_probs, self.end_log_probs)
        histories = zip(*(part[:, :length].tolist() for part in parts), strict=True)
        of_rows = [
            [_trace_back(history, end, score) for end, score in zip(ends, scores, strict=True) if math.isfinite(score)]
            for history, ends, scores in zip(histories, self.ends.tolist(), self.scores.tolist(), strict=True)
        ]
        starts = range(0, len(of_rows), self.num_groups)
        return [_draw(of_rows[start : start + self.num_groups], n_best) for start in starts]


def _draw(groups: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """The first `n_best` that differ of the best of each group, by score, then their seconds, and so on; best first."""
    ranks = zip_longest(*groups)
    in_turn = chain(*(sorted(filter(None, rank), key=lambda h: h.score, reverse=True) for rank in ranks))
    distinct: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in in_turn:
        distinct.setdefault(tuple(hypothesis.tokens), hypothesis)
    return sorted(list(distinct.values())[:n_best], key=lambda h: h.score, reverse=True)


def _trace_back(history: tuple[Any, ...], end: int, score: float) -> Hypothesis:
    """Read one hypothesis backwards from its `end`; history: the four parts of one row, (length, width) lists."""
    parents, tokens, token_log_probs, end_log_probs = history
    length, place = divmod(end, len(parents[0]))
    output: list[int] = []
    log_probs: list[float] = [end_log_probs[length - 1][place]]
    for t in range(length - 2, -1, -1):
        output.append(tokens[t][place])
        log_probs.append(token_log_probs[t][place])
        place = parents[t][place]
    return Hypothesis(output[::-1], score, math.fsum(log_probs), log_probs[::-1])
