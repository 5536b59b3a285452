"""Beam search: the most probable translations under a model that predicts the next token.

`beam_search` is the loop. `nmt.search.beam` stores the hypotheses, `nmt.search.ranking` compares them. The contract:

Score       log_prob / length_penalty(n), where n counts EOS. Higher is better. A bias (`nmt.search.bias`) counts as
            log-probability.
Step        The 2 * beam_size best extensions of a sentence's live hypotheses by one token are selected, by
            log-probability with bias, unless required phrases or beam groups change the order. Extensions that end
            compete by score for the n_best finished slots. The best beam_size of the others stay alive. At most
            beam_size extensions can end, so the beam stays full. Impossible extensions (-inf) neither end nor stay
            alive. Greedy search (a beam of 1) selects the single best extension and stops when it is EOS.
Limit       An output has at most max_extra_tokens more tokens than the source, at most max_length_ratio times as many,
            and at most max_tokens and max_own_tokens, EOS excluded. A longer prefix raises the limit. So do required
            phrases, but not above max_tokens and max_own_tokens. A hypothesis at the limit can only end, with the true
            log-probability of EOS.
Stop        A sentence is done when no live hypothesis can exceed its worst kept finished one. Log-probability never
            increases and the length penalty never decreases, so log_prob / penalty at the limit is an upper bound;
            `Ranker.upper_bound` shows this for every option. With this rule, `exact`, a beam that never drops a
            hypothesis finds the true optimum. With `first`, a sentence is also done when beam_size hypotheses have
            ended, as in fairseq and CTranslate2; with `patience`, when patience * beam_size have (Kasai et al. 2022).
            Under both rules, only the best beam_size extensions can end a hypothesis. With beam groups, these
            numbers are divided by beam_groups and apply to each group; a group that has finished accepts no more.
Constraints `nmt.search.constraints` and `nmt.search.trees` make some extensions impossible; all others keep
            their true log-probability. `nmt.search.required` allocates the beam to hypotheses with required phrases.
Groups      With beam_groups above 1, each group is a beam of beam_size / beam_groups hypotheses. Tokens that earlier
            groups choose at the same step rank lower (`Ranker.best_extensions`). A sentence is done when all of its
            groups are. The best finished hypotheses of all groups come first, by score, then the second best, and so
            on. The first n_best distinct ones are returned, best first; duplicates can make the list shorter.
Batching    Continuous batching: at most `batch_size` sentences at a time, longest first. Waiting sentences refill the
            slots of sentences that are done (`_Queue`). Each sentence counts its own steps, so its result does not
            depend on when it starts. `Beam.clock` counts the steps of the search and addresses the ring buffers.
Order       Ties between extensions are broken by parent, then by token id. If only some of the tied extensions can be
            selected, topk's choice depends only on their sentence, not on other sentences of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.packing.packed import PackedSequences
from nmt.search.beam import Beam
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import Requirement
from nmt.search.options import SearchOptions
from nmt.search.per_sentence import split_rows
from nmt.search.ranking import Ranker
from nmt.search.required import RequiredPhrases
from nmt.search.trees import TreeConstraint
from nmt.special_ids import EOS_ID

# Refill when 1 / n of the batch is free: encoding only a few sentences at a time is inefficient.
_REFILL_FRACTION = 4


class StepState(Protocol):
    """State that a model carries from one step to the next."""

    def reorder(self, beam_index: Tensor) -> None:
        """Make hypothesis j of sentence b continue hypothesis `beam_index[b, j]`; (batch, beam) int64."""

    def select(self, sentence_index: Tensor) -> None:
        """Select sentences, in this order; (selected,) int64, empty only directly before a refill."""


State = TypeVar("State", bound=StepState)


class StepModel(Protocol[State]):
    """A model that predicts the next token: a Transformer, an ensemble, a table in a test."""

    def start(self, src: PackedSequences, beam_size: int) -> State:
        """Encode the source sentences and return the state before the first step."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities of the next token after `tokens` (batch, beam): (batch, beam, vocab) float32.

        At the first step all hypotheses of a sentence are equal. Values are at most 0 and may be -inf. Search writes
        into the tensor, so each call must return a new one.
        """


@runtime_checkable
class RefillableModel(StepModel[State], Protocol[State]):
    """A model that supports continuous batching."""

    def refill(self, src: PackedSequences, state: State, steps: int) -> None:
        """Append sentences, none longer than the longest sentence passed to `start`.

        steps: the maximum number of steps that a sentence in the batch has taken
        """


@torch.inference_mode()
def beam_search(
    model: StepModel[State],
    src: PackedSequences,
    options: SearchOptions,
    prefixes: Sequence[Sequence[int]] | None = None,
    required: Sequence[Sequence[Requirement]] | None = None,
    batch_size: int | None = None,
    finished: dict[int, list[Hypothesis]] | None = None,
    trees: TreeConstraint | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` translations of each source sentence, best first; see the module docstring.

    A list is shorter if fewer translations are possible, and empty if the constraints exclude all or the model returns
    only -inf and NaN.

    src: sentences that end with EOS, on the model's device
    prefixes: token ids that each translation begins with, or ANY_TOKEN where any token is possible
    required: requirements of each translation: lists of alternative phrases, as token ids; trees: allows only trees
    batch_size: sentences searched at a time; None: all. A smaller batch requires a `RefillableModel`
    finished: receives the translations of each sentence, by index, as soon as it is done; an error loses none of them
    """
    results = {} if finished is None else finished
    if src.num_sentences == 0:
        return []
    device = src.tokens.device
    constraints = Constraints(options, src, prefixes, required)
    max_length = max(constraints.limits)
    ranker = Ranker(options, max_length, device)
    phrases = RequiredPhrases.start(required, options.beam_size, device, options.separator)
    start_beam = partial(Beam.start, options, constraints.device_limits, max_length, phrases, trees)

    queue = _Queue(src, batch_size)
    beam = start_beam(queue.pop(active=0), clock=0)
    state = model.start(src.select(beam.sentences.ids), options.beam_size)
    while True:
        log_probs = model.step(beam.last_tokens(), state)  # (batch, beam, vocab)
        beam.advance()
        constraints.apply(log_probs, beam.sentences, beam.outputs, beam.forbidden, beam.trees)
        best = ranker.best_extensions(beam, log_probs)
        beam.finish(best, ranker.scores(beam, best))
        beam.extend(best, log_probs[:, :, EOS_ID])

        is_done = beam.is_done(ranker.upper_bound(beam)).tolist()  # without bias, the only synchronization of the step
        for row, (sentence, length) in enumerate(beam.sentences.on_host()):
            is_done[row] = is_done[row] or length == constraints.limits[sentence]
        if any(is_done):
            done, active = split_rows(is_done)
            results.update(beam.select(done, to_device(done, device)).read(options.n_best))
            new = queue.pop(active=len(active))
            if not active and not new:
                return [results[sentence] for sentence in range(src.num_sentences)]
            index = to_device(active, device)
            beam = beam.select(active, index)
            state.select(index)
            if new:
                assert isinstance(model, RefillableModel), "this model does not support continuous batching"
                model.refill(src.select(new), state, max(beam.sentences.lengths, default=0))
                beam = beam.concat(start_beam(new, beam.clock))
        state.reorder(beam.last_parents())


class _Queue:
    """Sentences waiting for a slot of the batch."""

    def __init__(self, src: PackedSequences, batch_size: int | None) -> None:
        self._batch_size = src.num_sentences if batch_size is None else min(batch_size, src.num_sentences)
        order = list(range(src.num_sentences))
        if self._batch_size < src.num_sentences:
            order.sort(key=lambda sentence: -src.sizes[sentence])
        self._waiting = order[::-1]

    def pop(self, active: int) -> list[int]:
        """Return the sentences that start now, in addition to `active` others; none until enough slots are free."""
        free = self._batch_size - active
        if free < min(len(self._waiting), max(1, self._batch_size // _REFILL_FRACTION)):
            return []
        return [self._waiting.pop() for _ in range(min(free, len(self._waiting)))]
