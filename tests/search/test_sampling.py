"""Sampling: frequencies, truncation, and independence from the batch."""

import math
from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch

from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.search.options import SearchOptions
from nmt.search.sampling import choose, sample
from nmt.special_ids import EOS_ID
from tests.search.test_search import Prefix, TableModel, random_table, search, source_of

SOURCE = source_of(2, 0)


def sampled(seed: int, count: int, sources: list[Prefix], sampling: DecodeRecipe, **options: Any) -> list[list[Prefix]]:
    table = random_table(seed, 2)
    search_options = SearchOptions(beam_size=count, n_best=count, max_extra_tokens=0, **options)
    found = sample(TableModel(table), PackedSequences.from_lists(sources), search_options, sampling)
    return [[tuple(hypothesis.tokens) for hypothesis in hypotheses] for hypotheses in found]


@pytest.mark.slow
def test_sample_frequencies_match_probabilities() -> None:
    count = 6_000
    table = random_table(5, 2)
    [outputs] = sampled(5, count, [SOURCE], DecodeRecipe(sampling=True, sampling_seed=3))

    def probability(tokens: Prefix) -> float:
        """Probability of an output, without special tokens and with a limit of two words."""
        total = 1.0
        for position, token in enumerate((*tokens, EOS_ID)):
            probs = [math.exp(value) for value in table(SOURCE, tokens[:position])]
            allowed = sum(probs[EOS_ID:]) if position < 2 else probs[EOS_ID]
            total *= probs[token] / allowed
        return total

    frequency = Counter(outputs)
    possible = [tokens for length in range(3) for tokens in product((4, 5), repeat=length)]
    assert sum(map(probability, possible)) == pytest.approx(1)
    for tokens in possible:
        expected = probability(tokens)
        assert frequency[tokens] / count == pytest.approx(expected, abs=4 * math.sqrt(expected / count) + 1e-3)


def test_scores_are_not_affected_by_temperature() -> None:
    table = random_table(9, 3)
    options = SearchOptions(beam_size=5, n_best=5, length_penalty="power", length_alpha=1.0, max_extra_tokens=1)
    [found] = sample(
        TableModel(table), PackedSequences.from_lists([SOURCE]), options, DecodeRecipe(sampling=True, temperature=0.5)
    )
    for hypothesis in found:
        tokens = tuple(hypothesis.tokens)
        steps = [table(SOURCE, tokens[:i])[token] for i, token in enumerate((*tokens, EOS_ID))]
        assert hypothesis.token_log_probs == pytest.approx(steps, rel=1e-5)
        assert hypothesis.score == pytest.approx(sum(steps) / len(steps), rel=1e-5)


@pytest.mark.parametrize("option", [{"top_k": 1}, {"temperature": 1e-4}])
def test_top_k_of_one_or_a_low_temperature_is_greedy_search(option: dict[str, Any]) -> None:
    sources = [source_of(3, 0), source_of(1, 1)]
    greedy = search(random_table(4, 2), sources, SearchOptions(beam_size=1, max_extra_tokens=0))
    sampling = DecodeRecipe(sampling=True, **option)
    assert sampled(4, 1, sources, sampling) == [[tuple(h.tokens) for h in hypotheses] for hypotheses in greedy]


def test_samples_do_not_depend_on_the_batch_or_their_number() -> None:
    sources = [source_of(3, 0), source_of(1, 1), source_of(2, 2)]
    together = sampled(8, 4, sources, DecodeRecipe(sampling=True))
    for source, outputs in zip(sources, together, strict=True):
        assert sampled(8, 4, [source], DecodeRecipe(sampling=True)) == [outputs]
        assert sampled(8, 2, [source], DecodeRecipe(sampling=True)) == [outputs[:2]]
    assert sampled(8, 4, sources, DecodeRecipe(sampling=True, sampling_seed=2)) != together


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (DecodeRecipe(sampling=True, top_k=2), {0, 2}),
        (DecodeRecipe(sampling=True, top_p=0.6), {0, 2}),
        (DecodeRecipe(sampling=True, top_p=0.39), {0}),
        (DecodeRecipe(sampling=True, min_p=0.3), {0, 2, 3}),
        (DecodeRecipe(sampling=True, temperature=0.5, min_p=0.3), {0, 2}),
        (DecodeRecipe(sampling=True), {0, 1, 2, 3}),
    ],
)
def test_truncated_tokens_are_not_sampled(sampling: DecodeRecipe, expected: set[int]) -> None:
    log_probs = torch.tensor([0.4, 0.1, 0.3, 0.2, 0.0]).log().expand(1_000, -1)
    assert set(choose(log_probs, torch.arange(1_000) / 1_000, sampling).tolist()) == expected


def test_samples_respect_constraints() -> None:
    [outputs] = sampled(1, 50, [SOURCE], DecodeRecipe(sampling=True), min_tokens=2, no_repeat_ngram=1)
    assert set(outputs) <= {(4, 5), (5, 4)}
    [outputs] = sampled(1, 50, [SOURCE], DecodeRecipe(sampling=True), min_tokens=2, forbidden=((4, 5),))
    assert set(outputs) == {(4, 4), (5, 4), (5, 5)}


def test_impossible_samples_are_omitted() -> None:
    """A source without words allows only the empty output."""
    options = {"min_tokens": 1, "forbidden": ((4,), (5,))}
    assert sampled(1, 3, [SOURCE, source_of(0, 0)], DecodeRecipe(sampling=True), **options) == [[], [()] * 3]


def test_a_sample_that_cannot_end_does_not_affect_the_others() -> None:
    """After token 4, EOS is impossible, so these samples have no possible token at the limit."""

    def table(_: Prefix, prefix: Prefix) -> list[float]:
        possible = {(): (4, 5), (5,): (EOS_ID,)}.get(prefix, (4,))
        return [-math.log(len(possible)) if token in possible else -math.inf for token in range(6)]

    sources = [source_of(1, 0), source_of(1, 1)]
    options = SearchOptions(beam_size=8, n_best=8, max_extra_tokens=0)
    for found in sample(TableModel(table), PackedSequences.from_lists(sources), options, DecodeRecipe(sampling=True)):
        assert 0 < len(found) < 8
        assert {tuple(hypothesis.tokens) for hypothesis in found} == {(5,)}
