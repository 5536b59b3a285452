"""Random translations, drawn token by token from what the model thinks probable.

The number that decides a draw is a function of the seed, the source sentence, the sample's number and the place in the
output. So the same line gets the same samples whatever stands beside it, and asking for more samples gives those
already known first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device, to_lists
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.search.beam_search import State, StepModel
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions, length_penalty
from nmt.search.rules import Rows, Rules
from nmt.special_ids import BOS_ID, EOS_ID

_IMPOSSIBLE = float("-inf")


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw. The defaults are the model's own distribution; what is cut off is shared out among the rest."""

    seed: int = 1
    """Another seed gives other translations."""
    temperature: float = 1.0
    """Log-probabilities are divided by it: below 1 the likely becomes likelier."""
    top_k: int = 0
    """Only so many of the most probable tokens; 0 allows all."""
    top_p: float = 1.0
    """Only the fewest tokens that together have this probability (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens with at least this share of the most probable one's probability."""

    @classmethod
    def from_recipe(cls, recipe: DecodeRecipe) -> SamplingOptions:
        """The options of a recipe."""
        return cls(recipe.sampling_seed, recipe.temperature, recipe.top_k, recipe.top_p, recipe.min_p)


@torch.inference_mode()
def sample(
    model: StepModel[State],
    src: PackedSequences,
    options: SearchOptions,
    sampling: SamplingOptions,
    prefixes: Sequence[Sequence[int]] | None = None,
    finished: dict[int, list[Hypothesis]] | None = None,
) -> list[list[Hypothesis]]:
    """`n_best` independent translations of each source sentence, in the order of their numbers.

    src, prefixes and finished as for `beam_search`; its rules and limits hold here too. Probabilities and scores are
    those of the model, not those that were drawn from. A translation that the rules make impossible is left out.
    """
    if src.num_sentences == 0:
        return []
    rules = Rules(options, [length - 1 for length in src.sizes.tolist()], prefixes)
    results = {} if finished is None else finished
    sentences = list(range(src.num_sentences))  # which sentence each row of the batch is
    drawn = _Drawn.start(_decisions(src, sampling.seed, options.n_best, max(rules.limits)))
    tokens = torch.full_like(drawn.tokens[:, :, 0], BOS_ID)
    state = model.start(src, options.n_best)
    index = torch.arange(src.num_sentences, device=tokens.device)

    for length in range(1, max(rules.limits) + 1):
        log_probs = model.step(tokens, state)  # (batch, n_best, vocab)
        rows = Rows(sentences, [length] * len(sentences), index, torch.full_like(index, length))
        rules.apply(log_probs, rows, partial(drawn.outputs, length - 1))
        tokens = choose(log_probs, drawn.decisions[:, :, length - 1], sampling)
        drawn.add(length, tokens, log_probs.gather(2, tokens[:, :, None]).squeeze(2))
        is_done = drawn.has_ended.all(dim=1).tolist()
        if any(is_done):
            leaving = [row for row, done in enumerate(is_done) if done]
            ended = drawn.keep(to_device(leaving, tokens.device)).read(options)
            for row, samples in zip(leaving, ended, strict=True):
                results[sentences[row]] = samples
            staying = [row for row, done in enumerate(is_done) if not done]
            if not staying:
                break
            kept = to_device(staying, tokens.device)
            state.keep(kept)
            drawn, tokens, index = drawn.keep(kept), tokens[kept], index[kept]
            sentences = [sentences[row] for row in staying]
    return [results.get(sentence, []) for sentence in range(src.num_sentences)]


def choose(log_probs: Tensor, decisions: Tensor, sampling: SamplingOptions) -> Tensor:
    """One token from each distribution, (...) int64. log_probs: (..., vocab); decisions: (...) evenly in [0, 1)."""
    scaled = log_probs / sampling.temperature  # up to what makes them sum to 1, which nothing below asks for
    if sampling.top_k:
        least = scaled.topk(min(sampling.top_k, scaled.shape[-1]), dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, _IMPOSSIBLE)
    if sampling.top_p < 1.0:
        probable = scaled.softmax(dim=-1).sort(dim=-1, descending=True).values
        is_needed = probable.cumsum(dim=-1) - probable < sampling.top_p  # those before do not suffice
        least = probable.masked_fill(~is_needed, 1.0).amin(dim=-1, keepdim=True)
        scaled = scaled.masked_fill(scaled.softmax(dim=-1) < least, _IMPOSSIBLE)
    if sampling.min_p > 0.0:
        least = scaled.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        scaled = scaled.masked_fill(scaled < least, _IMPOSSIBLE)
    # Summed in float64, since over a large vocabulary the rounding of float32 would favour some tokens.
    ends = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_().cumsum(dim=-1, dtype=torch.float64)
    places = torch.searchsorted(ends, (decisions.double() * ends[..., -1])[..., None], right=True).squeeze(-1)
    return places.clamp(max=log_probs.shape[-1] - 1)


def _decisions(src: PackedSequences, seed: int, count: int, room: int) -> Tensor:
    """A random number in [0, 1) for each sentence, sample and place in the output, (batch, count, room) float64."""
    numbers = [
        [
            np.random.Generator(np.random.PCG64([seed % (1 << 64), number, *sentence])).random(room)
            for number in range(count)
        ]
        for sentence in src.to_lists()
    ]
    return to_device(np.array(numbers), src.tokens.device)


@dataclass
class _Drawn:
    """What has been drawn for the sentences in the batch; what stands behind an end token does not count.

    decisions:       (batch, count, room) float64 in [0, 1)
    tokens:          (batch, count, room) int64
    token_log_probs: (batch, count, room) float32
    has_ended:       (batch, count) bool
    """

    decisions: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    has_ended: Tensor

    @classmethod
    def start(cls, decisions: Tensor) -> _Drawn:
        """Nothing yet. decisions: (batch, count, room)."""
        tokens = torch.zeros_like(decisions, dtype=torch.int64)
        return cls(decisions, tokens, torch.zeros_like(decisions, dtype=torch.float32), tokens[:, :, 0].bool())

    def outputs(self, length: int, last: int) -> Tensor:
        """The `last` tokens of each at the end of its first `length`, (batch, count, last)."""
        return self.tokens[:, :, length - last : length]

    def add(self, length: int, tokens: Tensor, log_probs: Tensor) -> None:
        """Token number `length` of each, (batch, count), and its log-probability."""
        self.tokens[:, :, length - 1] = tokens
        self.token_log_probs[:, :, length - 1] = log_probs
        self.has_ended |= tokens == EOS_ID

    def keep(self, rows: Tensor) -> _Drawn:
        """What was drawn for some of the sentences, (kept,)."""
        return _Drawn(self.decisions[rows], self.tokens[rows], self.token_log_probs[rows], self.has_ended[rows])

    def read(self, options: SearchOptions) -> list[list[Hypothesis]]:
        """The samples of each sentence, on the host; those that had nowhere to go are left out."""
        found = [
            [_hypothesis(tokens, log_probs, options) for tokens, log_probs in zip(*of_sentence, strict=True)]
            for of_sentence in zip(*to_lists(self.tokens, self.token_log_probs), strict=True)
        ]
        return [[one for one in samples if math.isfinite(one.log_prob)] for samples in found]


def _hypothesis(tokens: list[int], log_probs: list[float], options: SearchOptions) -> Hypothesis:
    length = tokens.index(EOS_ID) + 1
    own = log_probs[:length]
    log_prob = math.fsum(own) if all(map(math.isfinite, own)) else _IMPOSSIBLE
    score = log_prob / length_penalty(length, options.length_penalty, options.length_alpha)
    return Hypothesis(tokens[: length - 1], score, log_prob, own)
