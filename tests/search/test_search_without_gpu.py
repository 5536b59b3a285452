"""Search on a simulated GPU: the results of the CPU, one synchronization per step (two with a bias) and per departure.

`simulated_cuda` documents the limits of the simulation.
"""

from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.inference.captured import CapturedModel
from nmt.inference.prepacked import prepack
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.ensemble import Ensemble
from nmt.search.fusion import Fusion
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.search.sampling import sample
from nmt.special_ids import EOS_ID
from tests.simulated_cuda import CUDA, SimulatedCuda, SynchronizationError, on_gpu, simulated_cuda

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")

VOCAB = 37
SIZES = {"d_model": 32, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
SOURCES = [[5, 6, 7], [6], [7, 8, 9, 10, 11, 12], [], [13, 14, 15, 16], [17, 18], [5, 5, 5]]
PREFIXES = [[5], [], [6, 7, 8], [], [9], [], []]
REQUIRED = [[[[5, 6]], [[7]]], [], [[[8], [13, 14]]], [[[9, 10]]], [], [[[11], [15]], [[12]]], []]

STEP, READ = "search/beam_search.py:beam_search", "search/beam.py:Beam.read"
BIAS = "search/bias.py:Bias.extend"
SAMPLE, READ_SAMPLES = "search/sampling.py:sample", "search/sampling.py:_Samples.read"
TOKENS, UNION = "packing/packed.py:PackedSequences.to_lists", "search/restricted.py:RestrictedModel._unite"
COMPACT = "kv_cache/cache.py:Slots.compact"

CPU = torch.device("cpu")
Wrap = Callable[[Callable[..., Transformer]], StepModel[Any]]


def make_model(device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 1) -> Transformer:
    """A prepacked model, as in the translator."""
    torch.manual_seed(seed)
    recipe = ModelRecipe.model_validate(SIZES | {"max_positions": 200})
    model = Transformer(recipe, VOCAB, VOCAB).to(dtype).eval().requires_grad_(False)
    if device == CUDA:
        on_gpu(model)
    prepack(model)
    return model


def sources(device: torch.device) -> PackedSequences:
    return PackedSequences.from_lists([[*source, EOS_ID] for source in SOURCES]).to(device)


def sizes(mode: SimulatedCuda, function: str = STEP) -> list[int]:
    """Number of sentences in each step."""
    return [shape[0] for place, shape in mode.copies_to_host if place == function and len(shape) == 1]


def run(
    options: SearchOptions,
    wrap: Wrap,
    rows: int | None = None,
    dtype: torch.dtype = torch.float32,
    allowed: Collection[str] = (),
) -> SimulatedCuda:
    """Search on the CPU and on the simulated GPU, with equal results; return the simulation."""
    with simulated_cuda({STEP, READ, BIAS, *allowed}) as mode:
        found, expected = (
            beam_search(wrap(partial(make_model, device, dtype)), sources(device), options, PREFIXES, REQUIRED, rows)
            for device in (CUDA, CPU)
        )
    assert len(found) == len(SOURCES) and all(found), "every sentence has a result"
    assert len(sizes(mode)) > 6, "the search takes many steps"
    if dtype == torch.float32:
        for hypotheses, others in zip(found, expected, strict=True):
            assert [hypothesis.tokens for hypothesis in hypotheses] == [hypothesis.tokens for hypothesis in others]
            scores, other_scores = ([hypothesis.score for hypothesis in each] for each in (hypotheses, others))
            assert scores == pytest.approx(other_scores, rel=1e-5)
    return mode


def departures(sizes: list[int]) -> int:
    """Number of steps after which sentences left, without refilling."""
    return 1 + sum(after < before for before, after in pairwise(sizes))


PLAIN: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 4, "n_best": 3},
    "length penalty": {"length_penalty": "power", "length_alpha": 1.0},
    "groups": {"beam_size": 6, "beam_groups": 3, "n_best": 4},
    "lengths": {"min_tokens": 4, "min_length_ratio": 0.9, "max_length_ratio": 3.0, "max_tokens": 40},
    "no n-gram twice": {"no_repeat_ngram": 3},
    "no token twice": {"no_repeat_ngram": 1},
    "forbidden": {"forbidden": ((5,), (6, 7), (8, 9, 10), (11,))},
    "bias": {"bias": (((5, 6), 1.5), ((7,), -2.0))},
}
EVERYTHING: dict[str, Any] = {name: value for options in PLAIN.values() for name, value in options.items()} | {
    "beam_size": 6
}
OPTIONS = PLAIN | {"everything": EVERYTHING}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greedy", "beam", "bias", "everything"])
def test_search_synchronizes_once_per_step_and_departure(name: str) -> None:
    mode = run(SearchOptions(**{"max_extra_tokens": 9} | OPTIONS[name]), lambda make: make())
    steps = sizes(mode)
    assert mode.synchronizations.pop(BIAS, 0) == (len(steps) if "bias" in OPTIONS[name] else 0)
    assert mode.synchronizations == {STEP: len(steps), READ: departures(steps)}


MODELS: dict[str, Wrap] = {
    "graphs": lambda make: CapturedModel(make()),
    "fusion of graphs": lambda make: Fusion(CapturedModel(make()), CapturedModel(make(seed=2)), 0.3, [EOS_ID]),
    "ensemble of graphs": lambda make: Ensemble([CapturedModel(make()), CapturedModel(make(seed=2))]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options", "rows"),
    [
        ("graphs", "greedy", 2),
        ("fusion of graphs", "beam", 4),
        ("graphs", "everything", 4),
        ("ensemble of graphs", "beam", 2),
    ],
)
def test_refilling_does_not_synchronize(model: str, options: str, rows: int | None) -> None:
    mode = run(SearchOptions(**{"max_extra_tokens": 9} | OPTIONS[options]), MODELS[model], rows)
    steps = sizes(mode)
    assert mode.num_captures > 0
    assert max(steps) == (rows or len(SOURCES))
    assert mode.synchronizations[STEP] == len(steps) and mode.synchronizations.keys() - {BIAS} == {STEP, READ}
    assert mode.synchronizations[READ] <= len(SOURCES)


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "dtype"), [("linear", torch.bfloat16), ("log", torch.float16)])
def test_ensembles_and_half_precision_do_not_synchronize_more(mean: Any, dtype: torch.dtype) -> None:
    options = SearchOptions(max_extra_tokens=9)
    mode = run(options, lambda make: Ensemble([make(), make(seed=2)], mean), dtype=dtype)
    assert mode.synchronizations == {STEP: len(sizes(mode)), READ: departures(sizes(mode))}


@pytest.mark.slow
def test_a_shortlist_synchronizes_when_it_gathers_candidates() -> None:
    """The search reads their number at the start, and whenever half of the sentences have left."""

    def wrap(make: Callable[..., Transformer]) -> StepModel[Any]:
        model = make()
        is_candidate = torch.ones(len(SOURCES), VOCAB, dtype=torch.bool, device=model.tgt_embedding.weight.device)
        is_candidate[:, 20:30] = False
        return restrict(model, is_candidate)

    mode = run(SearchOptions(max_extra_tokens=9, **PLAIN["forbidden"]), wrap, allowed={UNION})
    assert 1 <= mode.synchronizations.pop(UNION) <= 3
    assert mode.synchronizations == {STEP: len(sizes(mode)), READ: departures(sizes(mode))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "constraints"),
    [
        ({}, "greedy"),
        ({"top_k": 5}, "lengths"),
        ({"top_p": 0.8}, "no n-gram twice"),
        ({"min_p": 0.1, "temperature": 0.7}, "forbidden"),
    ],
)
def test_sampling_synchronizes_once_per_step_and_departure(sampling: dict[str, Any], constraints: str) -> None:
    options = SearchOptions(**{"max_extra_tokens": 20} | PLAIN[constraints] | {"beam_size": 3, "n_best": 3})
    with simulated_cuda({SAMPLE, TOKENS, READ_SAMPLES, COMPACT}) as mode:
        found, expected = (
            sample(make_model(device), sources(device), options, DecodeRecipe(sampling=True, **sampling), PREFIXES)
            for device in (CUDA, CPU)
        )
    assert [[hypothesis.tokens for hypothesis in each] for each in found] == [
        [hypothesis.tokens for hypothesis in each] for each in expected
    ]
    steps = sizes(mode, SAMPLE)
    assert len(steps) > 6
    assert mode.synchronizations[SAMPLE] == len(steps) and mode.synchronizations[TOKENS] == 1
    assert mode.synchronizations[READ_SAMPLES] <= departures(steps)
    assert mode.synchronizations[COMPACT] <= len(steps) // 16


@pytest.mark.slow
def test_synchronization_in_a_step_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails if the model synchronizes in any step."""
    advance, steps = Transformer.advance, []

    def wait_at_step_five(self: Transformer, tokens: Tensor, state: Any) -> Tensor:
        steps.append(len(tokens))
        if len(steps) == 5:
            tokens.max().item()
        return advance(self, tokens, state)

    monkeypatch.setattr(Transformer, "advance", wait_at_step_five)
    with pytest.raises(SynchronizationError, match="a number is read"):
        run(SearchOptions(max_extra_tokens=9), lambda make: make())
    assert len(steps) == 5
