"""Beam search: the most probable translations under a model that predicts the next token.

The loop is `beam_search`. What it does, exactly:

Score   log_prob / length_penalty(n), where n counts the end token. Higher is better. A bias (`nmt.search.bias`) counts
        as log-probability.
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
        optimum. That is the rule `exact`. With `first`, a sentence is also done when as many hypotheses as the beam is
        wide have ended, as in fairseq and CTranslate2; with `patience`, so many times that number (Kasai et al. 2022).
        With these two only an extension counts as an end that is among the best beam_size, and with groups each group
        takes no further ones when it has its number.
Rules   What else an output must not hold is in `nmt.search.rules`. A rule makes extensions impossible; those that it
        leaves keep their true log-probability. What it must hold, and how the beam makes room for it, is in
        `nmt.search.required`.
Groups  With num_groups above 1, each group is a beam of beam_size / num_groups of its own, for which tokens rank lower
        that earlier groups take at the same step (`best_of_groups`). A sentence is done when all of its groups are. The
        best finished hypotheses of all groups come first, by score, then their second ones, and so on; of these the
        first n_best that differ are the result, best first. Groups that find the same may leave fewer.
Rows    So many sentences at a time, where there are more than fit. They begin in the order of their length, the longest
        first; others take the places of those that are done (`_Queue`). Each counts its own steps, so that it finds
        what it would find alone. `clock` is the steps of the search, and what is stored by it goes round in a ring.
Order   Equal candidates rank by parent, then by token id. Which of many equals topk takes at its edge depends on that
        hypothesis alone, so nothing that stands beside a sentence can change its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from nmt.devices.transfer import to_device, to_lists
from nmt.packing.packed import PackedSequences
from nmt.search.extensions import Extensions
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.rules import Rows, Rules
from nmt.search.steering import Steering, rows_of
from nmt.special_ids import BOS_ID, EOS_ID

_IMPOSSIBLE = float("-inf")

# Sentences join when this part of the rows is free: fewer at a time are read at the price of many.
_WORTH_JOINING = 4


# --- What search needs, and what it gives ----------------------------------------------------------------------------


class StepState(Protocol):
    """What a model remembers of every hypothesis from one step to the next."""

    def reorder(self, beam_index: Tensor) -> None:
        """Hypothesis j of sentence b continues what hypothesis `beam_index[b, j]` was; (batch, beam) int64."""

    def keep(self, sentence_index: Tensor) -> None:
        """Only these sentences stay in the batch, in this order; (kept,) int64; none, where others join at once."""


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


@runtime_checkable
class OpenModel(StepModel[State], Protocol[State]):
    """A model in the search of which sentences may join those that are on their way."""

    def join(self, src: PackedSequences, state: State, steps: int) -> None:
        """Further sentences, behind the others, before their first step.

        None of them is longer than the longest that `start` was given; steps: the most that one of the others has taken
        """


# --- The search ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def beam_search(
    model: StepModel[State],
    src: PackedSequences,
    options: SearchOptions,
    prefixes: Sequence[Sequence[int]] | None = None,
    required: Sequence[Sequence[Sequence[int]]] | None = None,
    rows: int | None = None,
    finished: dict[int, list[Hypothesis]] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` best translations of each source sentence, best first, as the head of this file defines them.

    src: sentences closed by the end token, on the model's device; prefixes: the tokens that the translation of each
    sentence must begin with; required: the phrases, as tokens, that the translation of each must hold; rows: how many
    sentences are searched at a time, for which the model must be an `OpenModel`; by default all. A list is shorter than
    `n_best` where fewer translations are possible, and empty where rules leave none, or where the model gives no number
    but -inf or NaN. finished: gets the translations of each sentence, by its number, as soon as it is done; they stay
    there after an error.
    """
    if src.num_sentences == 0:
        return []
    device = src.tokens.device
    rules = Rules(options, [length - 1 for length in src.sizes.tolist()], prefixes, required)
    begin = partial(_Batch.start, options, rules.limits, Steering(options, src, rules.limits, required))
    results = {} if finished is None else finished
    queue = _Queue(src, rows)
    batch = begin(queue.next(busy=0), clock=0)
    state = model.start(src.select(batch.sentences), options.beam_size)

    while batch.sentences:
        beam, steering = batch.beam, batch.steering
        log_probs = model.step(beam.newest(), state)  # (batch, beam, vocab)
        beam.clock += 1
        lengths = beam.lengths()
        rules.apply(log_probs, batch.rows(lengths), beam.outputs)
        log_probs = log_probs.reshape(*beam.log_prob.shape, -1)  # (rows, width, vocab), a row for each group
        best = steering.best_extensions(beam.log_prob, log_probs, lengths)
        beam.finish(best, lengths, steering.scores(best, lengths))
        beam.live_on(best, log_probs[:, :, EOS_ID])
        steering.follow(*beam.last_step())

        is_done = beam.is_done(steering.reach(beam.log_prob, lengths)).tolist()  # the one wait for the device
        leaving, staying = batch.parted(is_done, rules.limits)
        if leaving:
            for sentence, hypotheses in batch.of(leaving, to_device(leaving, device)).read(options.n_best):
                results[sentence] = hypotheses
            newcomers = queue.next(busy=len(staying))
            if not staying and not newcomers:
                break
            kept = to_device(staying, device)
            batch = batch.of(staying, kept)
            state.keep(kept)
            if newcomers:
                assert isinstance(model, OpenModel), "all begin at once with a model that nothing can join"
                model.join(src.select(newcomers), state, max(batch.lengths(), default=0))
                batch = batch.joined(begin(newcomers, clock=batch.beam.clock))
        state.reorder(batch.beam.parents_in_batch())
    return [results[sentence] for sentence in range(src.num_sentences)]


class _Queue:
    """The sentences that have not begun, and how many of them may."""

    def __init__(self, src: PackedSequences, rows: int | None) -> None:
        self._rows = src.num_sentences if rows is None else min(rows, src.num_sentences)
        order = list(range(src.num_sentences))
        if self._rows < src.num_sentences:
            order.sort(key=lambda sentence: -src.sizes[sentence])
        self._waiting = order[::-1]

    def next(self, busy: int) -> list[int]:
        """Those that begin now, while `busy` rows go on; none, unless enough are free that it is worth reading them."""
        free = self._rows - busy
        if free < min(len(self._waiting), max(1, self._rows // _WORTH_JOINING)):
            return []
        return [self._waiting.pop() for _ in range(min(free, len(self._waiting)))]


@dataclass(frozen=True)
class _Batch:
    """The sentences that are searched together, with all that search follows of them.

    sentences: which one each row is; index: the same on the device; began: the step before its first
    """

    sentences: list[int]
    index: Tensor
    began: list[int]
    beam: _Beam
    steering: Steering

    @classmethod
    def start(
        cls, options: SearchOptions, limits: Sequence[int], steering: Steering, sentences: list[int], clock: int
    ) -> _Batch:
        """Sentences that begin after `clock` steps; limits and steering: of all that there are."""
        index = to_device(sentences, steering.device)
        beam = _Beam.start(len(sentences), options, max(limits), steering.device, clock)
        return cls(sentences, index, [clock] * len(sentences), beam, steering.of(sentences, index))

    def lengths(self) -> list[int]:
        """Tokens of the outputs of each sentence with the one that this step gives, (batch,)."""
        return [self.beam.clock - began for began in self.began]

    def rows(self, lengths: Tensor) -> Rows:
        """What the rules ask of each sentence. lengths: (rows,), one for each group."""
        return Rows(self.sentences, self.lengths(), self.index, lengths[:: self.beam.num_groups])

    def parted(self, is_done: Sequence[bool], limits: Sequence[int]) -> tuple[list[int], list[int]]:
        """The rows that are done, or could write no more, and all others."""
        rows = list(enumerate(zip(is_done, self.lengths(), self.sentences, strict=True)))
        leaving = [row for row, (done, length, sentence) in rows if done or length == limits[sentence]]
        return leaving, sorted(set(range(len(rows))) - set(leaving))

    def of(self, rows: Sequence[int], index: Tensor) -> _Batch:
        """The batch of some of its rows; index: the same on the device."""
        sentences, began = [self.sentences[row] for row in rows], [self.began[row] for row in rows]
        return _Batch(sentences, self.index[index], began, self.beam.of(index), self.steering.of(rows, index))

    def joined(self, others: _Batch) -> _Batch:
        """With other sentences behind these."""
        beam, steering = self.beam.joined(others.beam), self.steering.joined(others.steering)
        index = torch.cat([self.index, others.index])
        return _Batch(self.sentences + others.sentences, index, self.began + others.began, beam, steering)

    def read(self, n_best: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Each sentence with its finished hypotheses."""
        return zip(self.sentences, self.beam.read(max(self.lengths()), n_best), strict=True)


@dataclass
class _Beam:
    """All that search itself remembers of the hypotheses of the sentences in the batch, after `clock` steps.

    A row is one group of one sentence (with one group, the sentence), those of a sentence beside each other; it has
    `width` live hypotheses, beam_size / num_groups. It has begun at the step `began`, (rows,) int64.

    Live hypotheses, best first; a place that holds none has log-probability -inf:
      log_prob:         (rows, width) float32
    Finished hypotheses, best first; a place that holds none has score -inf:
      scores:           (rows, kept) float32
      ends:             (rows, kept) int64, length * width + place of the hypothesis that ended
      ended:            (rows,) int64, how many have ended, kept or not
    History, from which outputs are read backwards in the end; what happened at step t is entry (t - 1) % room:
      parents:          (rows, room, width) int64, place in the row one token earlier
      tokens:           (rows, room, width) int64, the newest token
      token_log_probs:  (rows, room, width) float32, of the newest token
      end_log_probs:    (rows, room, width) float32, of ending instead, for each parent
    """

    num_groups: int
    ends_wanted: int | None
    clock: int
    began: Tensor
    log_prob: Tensor
    scores: Tensor
    ends: Tensor
    ended: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    end_log_probs: Tensor

    @classmethod
    def start(cls, num_sentences: int, options: SearchOptions, room: int, device: torch.device, clock: int) -> _Beam:
        """One live hypothesis in each row, the empty one, which seems to have got the begin token last."""
        rows, width = num_sentences * options.num_groups, options.beam_size // options.num_groups
        log_prob = torch.full((rows, width), _IMPOSSIBLE, device=device)
        log_prob[:, 0] = 0.0
        scores = torch.full((rows, min(options.n_best, width)), _IMPOSSIBLE, device=device)
        integers = torch.zeros(rows, room, width, dtype=torch.int64, device=device)
        floats = torch.zeros(rows, room, width, device=device)
        return cls(
            num_groups=options.num_groups,
            ends_wanted=options.ends_wanted,
            clock=clock,
            began=torch.full((rows,), clock, device=device),
            log_prob=log_prob,
            scores=scores,
            ends=torch.zeros(scores.shape, dtype=torch.int64, device=device),
            ended=torch.zeros(rows, dtype=torch.int64, device=device),
            parents=integers,
            tokens=integers + BOS_ID,
            token_log_probs=floats,
            end_log_probs=floats.clone(),
        )

    def lengths(self) -> Tensor:
        """Tokens of each row's hypotheses with the one that this step gives, (rows,)."""
        return self.clock - self.began

    @property
    def now(self) -> int:
        """The entry of the history that is of the last step."""
        return (self.clock - 1) % self.tokens.shape[1]

    def last_step(self) -> tuple[Tensor, Tensor]:
        """Parents and newest tokens of the live hypotheses, both (rows, width)."""
        return self.parents[:, self.now], self.tokens[:, self.now]

    def newest(self) -> Tensor:
        """The newest token of each live hypothesis, (batch, beam)."""
        return self.tokens[:, self.now].reshape(-1, self.num_groups * self.tokens.shape[2])

    def finish(self, best: Extensions, lengths: Tensor, scores: Tensor) -> None:
        """Let those extensions to `lengths` that end compete for the finished places; of equals the earlier wins."""
        width = self.log_prob.shape[1]
        scores = scores.masked_fill(best.tokens != EOS_ID, _IMPOSSIBLE)
        if self.ends_wanted is not None:
            scores[:, width:] = _IMPOSSIBLE
            scores.masked_fill_(self.has_enough()[:, None], _IMPOSSIBLE)
            self.ended = self.ended + (scores > _IMPOSSIBLE).sum(dim=1)
        ends = lengths[:, None] * width + best.parents
        all_scores, order = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        kept = self.scores.shape[1]
        self.scores = all_scores[:, :kept]
        self.ends = torch.cat([self.ends, ends], dim=1).gather(1, order[:, :kept])

    def live_on(self, best: Extensions, end_log_probs: Tensor) -> None:
        """Let the best of those extensions live on that do not end. end_log_probs: (rows, width), for each parent."""
        living = best.living(self.log_prob.shape[1])
        self.log_prob = living.log_probs
        self.parents[:, self.now] = living.parents
        self.tokens[:, self.now] = living.tokens
        self.token_log_probs[:, self.now] = living.token_log_probs
        self.end_log_probs[:, self.now] = end_log_probs

    def is_done(self, reach: Tensor) -> Tensor:
        """Whether nothing can change any more, (batch,) bool, where no live hypothesis exceeds `reach`, (rows,)."""
        is_done = reach <= self.scores[:, -1]
        if self.ends_wanted is not None:
            is_done |= self.has_enough()
        return is_done.view(-1, self.num_groups).all(dim=1)

    def has_enough(self) -> Tensor:
        """Whether as many hypotheses have ended as the rule of stopping asks for, (rows,) bool."""
        assert self.ends_wanted is not None
        return self.ended >= self.ends_wanted

    def parents_in_batch(self) -> Tensor:
        """The parents of the live hypotheses by their place in the sentence, (batch, beam) int64."""
        parents = self.parents[:, self.now].unflatten(0, (-1, self.num_groups))  # (batch, groups, width)
        places: Tensor = torch.arange(self.num_groups, device=parents.device)[:, None] * parents.shape[2] + parents
        return places.flatten(1)

    def outputs(self, count: int) -> Tensor:
        """The last `count` tokens before this step of every hypothesis, (batch, beam, count); -1 before the first."""
        rows, room, width = self.tokens.shape
        outputs = self.tokens.new_full((rows, width, count), -1)
        place, lengths = torch.arange(width, device=outputs.device).expand(rows, -1), self.lengths()
        for back in range(1, count + 1):
            entry = (self.clock - 1 - back) % room
            is_there = (back < lengths)[:, None]
            outputs[:, :, count - back] = self.tokens[:, entry].gather(1, place).where(is_there, -1)
            place = self.parents[:, entry].gather(1, place)
        return outputs.view(rows // self.num_groups, self.num_groups * width, count)

    def of(self, sentences: Tensor) -> _Beam:
        """The beam of some of the sentences, (kept,) int64."""
        index = rows_of(sentences, self.num_groups)
        return replace(self, **{name: value[index] for name, value in self._tensors().items()})

    def joined(self, others: _Beam) -> _Beam:
        """With the sentences of another beam, of the same clock, behind these."""
        theirs = others._tensors()
        both: dict[str, Any] = {name: torch.cat([own, theirs[name]]) for name, own in self._tensors().items()}
        return replace(self, **both)

    def _tensors(self) -> dict[str, Any]:
        """All that has an entry for each row."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def read(self, length: int, n_best: int) -> list[list[Hypothesis]]:
        """The finished hypotheses of each sentence, best first, on the host; none is longer than `length`."""
        places = torch.arange(length, device=self.began.device)
        entries = ((self.began[:, None] + places) % self.tokens.shape[1])[:, :, None].expand(
            -1, -1, self.tokens.shape[2]
        )
        parts = [self.parents, self.tokens, self.token_log_probs, self.end_log_probs]
        *of_parts, of_ends, of_scores = to_lists(*(part.gather(1, entries) for part in parts), self.ends, self.scores)
        of_rows = [
            [_trace_back(history, end, score) for end, score in zip(ends, scores, strict=True) if math.isfinite(score)]
            for history, ends, scores in zip(zip(*of_parts, strict=True), of_ends, of_scores, strict=True)
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
