"""Restricted search against exhaustive enumeration and unrestricted search."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.ensemble import Ensemble, EnsembleMean
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.search.sampling import sample
from nmt.special_ids import BOS_ID, EOS_ID
from tests.search.test_search import reference_penalty

VOCAB = 30
SIZES = {"d_model": 16, "d_ff": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
SOURCES = [[5, 9, EOS_ID], [7, EOS_ID], [11, 4, 20, EOS_ID], [8, 8, EOS_ID], [EOS_ID], [25, 6, 4, 17, 9, EOS_ID]]


def make_model(seed: int, **options: object) -> Transformer:
    """Random weights with clear preferences."""
    torch.manual_seed(seed)
    model = Transformer(ModelRecipe.model_validate(SIZES | {"max_positions": 40} | options), VOCAB, VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def sample_candidates(seed: int, sentences: int, words: int) -> Tensor:
    """Random words and EOS as candidates of each sentence."""
    rng = random.Random(seed)
    found = torch.zeros(sentences, VOCAB, dtype=torch.bool)
    for row in found:
        row[[EOS_ID, *rng.sample(range(EOS_ID + 1, VOCAB), k=words)]] = True
    return found


def pack(sources: list[list[int]]) -> PackedSequences:
    return PackedSequences.from_lists(sources)


@torch.inference_mode()
def restricted_log_probs(
    model: Transformer, source: list[int], outputs: list[tuple[int, ...]], own: Tensor
) -> list[list[float]]:
    """Return log-probabilities of all tokens of each output, and of EOS: forward passes, softmax over the candidates.

    own: (VOCAB,) bool, the candidates of the sentence
    """
    hidden = model.forward(pack([source] * len(outputs)), pack([[BOS_ID, *output] for output in outputs]))
    columns = {token: column for column, token in enumerate(own.nonzero().flatten().tolist())}
    log_probs = iter(model.logits(hidden)[:, own].double().log_softmax(dim=-1).tolist())
    return [[next(log_probs)[columns[token]] for token in (*output, EOS_ID)] for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("output_bias", [False, True])
def test_restricted_search_finds_the_optimum(output_bias: bool) -> None:
    model = make_model(1, output_bias=output_bias, tied_embeddings="none")
    if model.output.bias is not None:
        torch.nn.init.normal_(model.output.bias)
    longest = 3
    options = SearchOptions(40, 5, length_penalty="power", max_extra_tokens=longest, max_tokens=longest)
    candidates = sample_candidates(2, len(SOURCES), words=3)
    found = beam_search(restrict(model, candidates), pack(SOURCES), options)
    for source, own, hypotheses in zip(SOURCES, candidates, found, strict=True):
        words = own.nonzero().flatten().tolist()[1:]
        outputs = [output for length in range(longest + 1) for output in itertools.product(words, repeat=length)]
        scored = [
            (sum(log_probs) / reference_penalty(len(log_probs), options), list(output), log_probs)
            for output, log_probs in zip(outputs, restricted_log_probs(model, source, outputs, own), strict=True)
        ]
        scored.sort(reverse=True)
        for hypothesis, (score, tokens, log_probs) in zip(hypotheses, scored[:5], strict=True):
            assert hypothesis.tokens == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-5)
            assert hypothesis.token_log_probs == pytest.approx(log_probs, abs=1e-5)


OPTIONS = SearchOptions(beam_size=4, n_best=3, max_extra_tokens=6)
SEARCHES: dict[str, Callable[[StepModel[Any], PackedSequences], list[list[Hypothesis]]]] = {
    "beam": lambda model, src: beam_search(model, src, OPTIONS),
    "greedy": lambda model, src: beam_search(model, src, replace(OPTIONS, beam_size=1, n_best=1)),
    "groups": lambda model, src: beam_search(model, src, replace(OPTIONS, beam_groups=2)),
    "samples": lambda model, src: sample(model, src, OPTIONS, DecodeRecipe(sampling=True, sampling_seed=3, top_p=0.9)),
}


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("ensemble", [None, "linear", "log"])
def test_full_vocabulary_as_candidates_is_bit_identical(search: str, ensemble: EnsembleMean | None) -> None:
    model: StepModel[Any] = make_model(1, output_bias=True)
    if ensemble is not None:
        model = Ensemble([model, make_model(2)], ensemble)
    everything = torch.ones(len(SOURCES), VOCAB, dtype=torch.bool)
    expected = SEARCHES[search](model, pack(SOURCES))
    assert SEARCHES[search](restrict(model, everything), pack(SOURCES)) == expected
    assert len({tuple(h.tokens) for hypotheses in expected for h in hypotheses}) > len(SOURCES) // 2


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("ensemble", [False, True])
def test_outputs_have_only_own_candidates_and_do_not_depend_on_the_batch(search: str, ensemble: bool) -> None:
    model: StepModel[Any] = make_model(1)
    if ensemble:
        model = Ensemble([model, make_model(2)])
    candidates = sample_candidates(4, len(SOURCES), words=6)
    alone = [
        SEARCHES[search](restrict(model, own[None]), pack([source]))[0]
        for source, own in zip(SOURCES, candidates, strict=True)
    ]
    for own, hypotheses in zip(candidates, alone, strict=True):
        assert all(bool(own[h.tokens].all()) for h in hypotheses)
    rng = random.Random(0)
    for _ in range(4):
        rows = rng.sample(range(len(SOURCES)), k=rng.randint(2, len(SOURCES)))
        together = SEARCHES[search](restrict(model, candidates[rows]), pack([SOURCES[row] for row in rows]))
        for row, hypotheses in zip(rows, together, strict=True):
            assert [h.tokens for h in hypotheses] == [h.tokens for h in alone[row]]
            assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone[row]], abs=1e-5)


@pytest.mark.parametrize("mean", ["linear", "log"])
def test_ensemble_members_are_restricted_separately(mean: EnsembleMean) -> None:
    models, candidates = [make_model(1), make_model(2)], sample_candidates(3, 2, words=4)
    together = restrict(Ensemble(models, mean), candidates)
    log_probs = together.step(torch.full((2, 1), BOS_ID), together.start(pack(SOURCES[:2]), 1))[:, 0]
    for source, own, found in zip(SOURCES, candidates, log_probs, strict=False):
        hidden = [model.forward(pack([source]), pack([[BOS_ID]]))[0] for model in models]
        single = [model.logits(h)[own].double().log_softmax(-1) for model, h in zip(models, hidden, strict=True)]
        summed = torch.stack([one.exp() if mean == "linear" else one for one in single]).sum(0)
        expected = (summed / 2).log() if mean == "linear" else (summed / 2).log_softmax(-1)
        assert found[own].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        assert bool((found[~own] == -math.inf).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_projection_shrinks_with_the_batch(dtype: torch.dtype) -> None:
    """Weights are gathered again when half of the sentences have left, not at every departure."""
    model = make_model(1).to(dtype)
    gathered: list[int] = []
    logits_of = model.logits_of

    def spy(tokens: Tensor) -> Callable[[Tensor], Tensor]:
        gathered.append(len(tokens))
        return logits_of(tokens)

    model.logits_of = spy  # type: ignore[method-assign]
    candidates = torch.zeros(4, VOCAB, dtype=torch.bool)
    candidates[:, EOS_ID] = True
    for row, words in enumerate(([10, 11], [12, 13, 14], [15], [10, 16])):
        candidates[row, words] = True
    restricted = restrict(model, candidates)
    state = restricted.start(pack(SOURCES[:4]), 2)
    everywhere = torch.full((4, 2), BOS_ID)
    first = restricted.step(everywhere, state)
    assert gathered == [8]
    state.select(torch.tensor([0, 1, 3]))
    second = restricted.step(everywhere[:3], state)
    assert gathered == [8]
    state.select(torch.tensor([2, 0]))
    third = restricted.step(everywhere[:2], state)
    assert gathered == [8, 4]
    for log_probs, own in ((first, candidates), (second, candidates[[0, 1, 3]]), (third, candidates[[3, 0]])):
        assert torch.equal(log_probs.isfinite(), own[:, None].expand(-1, 2, -1))
        assert log_probs.dtype == torch.float32, "rounded to bf16, the probabilities would not sum to 1"
        assert log_probs.exp().sum(dim=-1).flatten().tolist() == pytest.approx([1.0] * 2 * len(own), abs=1e-5)
