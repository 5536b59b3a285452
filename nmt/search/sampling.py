"""Random sampling of translations from the model's distribution.

The random number of a token is a function of seed, source sentence, sample index and output position. The samples of a
line therefore do not depend on other lines, and a larger `n_best` starts with the same samples.
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
from nmt.search.constraints import Constraints
from nmt.search.forbidden import ForbiddenProgress
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions, length_penalty
from nmt.search.per_sentence import ActiveSentences, PerSentence, split_rows
from nmt.special_ids import BOS_ID, EOS_ID


@torch.inference_mode()
def sample(
    model: StepModel[State],
    src: PackedSequences,
    options: SearchOptions,
    decode: DecodeRecipe,
    prefixes: Sequence[Sequence[int]] | None = None,
    finished: dict[int, list[Hypothesis]] | None = None,
) -> list[list[Hypothesis]]:
    """Return `n_best` independent translations of each source sentence, ordered by sample index.

    Constraints, limits, src, prefixes and finished are as in `beam_search`. Log-probabilities and scores are the
    model's, before temperature and truncation. Samples that violate the constraints are omitted.

    decode: its seed, temperature and truncation apply
    """
    results = {} if finished is None else finished
    if src.num_sentences == 0:
        return []
    device = src.tokens.device
    constraints = Constraints(options, src, prefixes)
    max_length = max(constraints.limits)
    sentences = ActiveSentences.start(list(range(src.num_sentences)), device)
    forbidden = ForbiddenProgress.start(options.forbidden, src.num_sentences, options.n_best, device)
    random = _random_numbers(src, decode.sampling_seed, options.n_best, max_length)
    samples = _Samples.start(sentences, random, forbidden)
    tokens = torch.full_like(samples.tokens[:, :, 0], BOS_ID)
    state = model.start(src, options.n_best)

    for length in range(1, max_length + 1):
        log_probs = model.step(tokens, state)  # (batch, n_best, vocab)
        samples.sentences.advance()
        constraints.apply(log_probs, samples.sentences, partial(samples.outputs, length - 1), samples.forbidden)
        tokens = choose(log_probs, samples.random[:, :, length - 1], decode)
        samples.append(length, tokens, log_probs.gather(2, tokens[:, :, None]).squeeze(2))
        is_done = samples.has_ended.all(dim=1).tolist()
        if any(is_done):
            done, active = split_rows(is_done)
            ended = samples.select(done, to_device(done, device))
            results.update(zip(ended.sentences.ids, ended.read(options), strict=True))
            if not active:
                break
            index = to_device(active, device)
            state.select(index)
            samples, tokens = samples.select(active, index), tokens[index]
    return [results[sentence] for sentence in range(src.num_sentences)]


def choose(log_probs: Tensor, random: Tensor, decode: DecodeRecipe) -> Tensor:
    """Sample one token from each distribution, (...) int64.

    log_probs: (..., vocab)
    random:    (...) in [0, 1)
    decode:    temperature, and truncation: to the `top_k` most probable tokens, to the smallest set of tokens with a
               total probability of `top_p` (Holtzman et al. 2020), and to tokens with at least `min_p` times the
               highest probability
    """
    scaled = log_probs / decode.temperature  # unnormalized
    if decode.top_k:
        threshold = scaled.topk(min(decode.top_k, scaled.shape[-1]), dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < threshold, -math.inf)
    if decode.top_p < 1.0:
        probs = scaled.softmax(dim=-1)
        descending = probs.sort(dim=-1, descending=True).values
        is_needed = descending.cumsum(dim=-1) - descending < decode.top_p  # more probable tokens do not reach top_p
        threshold = descending.masked_fill(~is_needed, 1.0).amin(dim=-1, keepdim=True)
        scaled = scaled.masked_fill(probs < threshold, -math.inf)
    if decode.min_p > 0.0:
        threshold = scaled.amax(dim=-1, keepdim=True) + math.log(decode.min_p)
        scaled = scaled.masked_fill(scaled < threshold, -math.inf)
    # In float64, because float32 rounding over a large vocabulary would favor some tokens.
    cumulative = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_().cumsum(dim=-1, dtype=torch.float64)
    tokens = torch.searchsorted(cumulative, (random.double() * cumulative[..., -1])[..., None], right=True).squeeze(-1)
    return tokens.clamp(max=log_probs.shape[-1] - 1)


def _random_numbers(src: PackedSequences, seed: int, n_best: int, max_length: int) -> Tensor:
    """Return uniform numbers in [0, 1) for each sentence, sample and position, (batch, n_best, max_length) float64."""
    numbers = [
        [
            np.random.Generator(np.random.PCG64([seed % (1 << 64), index, *sentence])).random(max_length)
            for index in range(n_best)
        ]
        for sentence in src.to_lists()
    ]
    return to_device(np.array(numbers), src.tokens.device)


@dataclass
class _Samples(PerSentence):
    """Samples of the sentences in the batch; positions after EOS are undefined.

    random:          (batch, n_best, max_length) float64 in [0, 1)
    tokens:          (batch, n_best, max_length) int64
    token_log_probs: (batch, n_best, max_length) float32
    has_ended:       (batch, n_best) bool, after EOS or an impossible token
    forbidden:       progress through the forbidden phrases; None without them
    """

    sentences: ActiveSentences
    random: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    has_ended: Tensor
    forbidden: ForbiddenProgress | None

    @classmethod
    def start(cls, sentences: ActiveSentences, random: Tensor, forbidden: ForbiddenProgress | None) -> _Samples:
        """Samples without tokens. random: (batch, n_best, max_length)."""
        tokens = torch.zeros_like(random, dtype=torch.int64)
        log_probs = torch.zeros_like(random, dtype=torch.float32)
        has_ended = torch.zeros_like(tokens[:, :, 0], dtype=torch.bool)
        return cls(sentences, random, tokens, log_probs, has_ended, forbidden)

    def outputs(self, length: int, count: int) -> Tensor:
        """Return the last `count` of the first `length` tokens, (batch, n_best, count)."""
        return self.tokens[:, :, length - count : length]

    def append(self, length: int, tokens: Tensor, log_probs: Tensor) -> None:
        """Append the token that makes samples `length` tokens long; tokens, log_probs: (batch, n_best)."""
        self.tokens[:, :, length - 1] = tokens
        self.token_log_probs[:, :, length - 1] = log_probs
        self.has_ended |= (tokens == EOS_ID) | ~log_probs.isfinite()  # if no token is possible, the choice is arbitrary
        if self.forbidden is not None:
            self.forbidden = self.forbidden.extend(None, tokens)

    def read(self, options: SearchOptions) -> list[list[Hypothesis]]:
        """Copy the possible samples of each sentence to the host."""
        by_sentence = zip(*to_lists(self.tokens, self.token_log_probs), strict=True)
        samples = [
            [_hypothesis(tokens, log_probs, options) for tokens, log_probs in zip(*sentence, strict=True)]
            for sentence in by_sentence
        ]
        return [[sample for sample in sentence if sample is not None] for sentence in samples]


def _hypothesis(tokens: list[int], log_probs: list[float], options: SearchOptions) -> Hypothesis | None:
    """Return the sample up to EOS; None if it has an impossible token."""
    length = tokens.index(EOS_ID) + 1 if EOS_ID in tokens else len(tokens)
    log_probs = log_probs[:length]
    log_prob = math.fsum(log_probs)
    if not math.isfinite(log_prob):
        return None
    score = log_prob / length_penalty(length, options.length_penalty, options.length_alpha)
    return Hypothesis(tokens[: length - 1], score, log_prob, log_probs)
