"""Search on a simulated GPU: no mix of devices, one synchronization per step (two with a bias) and per departure.

Tensors have no contents, so values that search reads are made up: after each step some sentences are declared done,
leave the batch, and are replaced if the model supports it. `fake_cuda` documents the limits of the simulation.
"""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.inference.captured import CapturedModel
from nmt.inference.prepacked import prepack
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.ensemble import Ensemble
from nmt.search.fusion import Fusion
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.search.sampling import SamplingOptions, sample
from nmt.special_ids import EOS_ID
from tests.fake_cuda import CUDA, FakeCuda, SynchronizationError, fake_cuda, on_gpu
from tests.inference.test_captured import RepeatingRecorder

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

Wrap = Callable[[Callable[[], Transformer]], StepModel[Any]]


def zeros(tensor: Tensor) -> Any:
    """Contents of tensors that are read; only their shape matters."""

    def of(shape: tuple[int, ...]) -> Any:
        return [of(shape[1:]) for _ in range(shape[0])] if shape else 0

    return of(tuple(tensor.shape))


class Script:
    """Declares sentences done: none before the third step, then each at random."""

    def __init__(self, seed: int = 1) -> None:
        self.rng, self.sizes = random.Random(seed), list[int]()

    def __call__(self, is_done: Tensor) -> list[bool]:
        self.sizes.append(len(is_done))
        return [len(self.sizes) > 2 and self.rng.random() < 0.35 for _ in range(len(is_done))]


def make_model(dtype: torch.dtype = torch.float32) -> Transformer:
    """A prepacked model, as in the translator."""
    recipe = ModelRecipe.model_validate(SIZES | {"max_positions": 200})
    with fake_modes_off():
        model = Transformer(recipe, VOCAB, VOCAB).to(dtype).eval().requires_grad_(False)
    on_gpu(model)
    prepack(model)
    return model


def fake_modes_off() -> Any:
    return torch._subclasses.fake_tensor.unset_fake_temporarily()


def run(
    options: SearchOptions, wrap: Wrap, rows: int | None = None, dtype: torch.dtype = torch.float32, **answers: Any
) -> tuple[FakeCuda, Script]:
    script = Script()
    with fake_cuda({STEP: script, READ: zeros, BIAS: zeros, **answers}) as mode:
        model = wrap(lambda: make_model(dtype))
        src = PackedSequences.from_lists([[*source, EOS_ID] for source in SOURCES]).to(CUDA)
        found = beam_search(model, src, options, PREFIXES, REQUIRED, rows)
    assert len(found) == len(SOURCES) and all(found), "every sentence has a result"
    assert len(script.sizes) > 6, "the search takes many steps"
    return mode, script


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
    mode, script = run(SearchOptions(**{"max_extra_tokens": 9} | OPTIONS[name]), lambda make: make())
    assert mode.synchronizations.pop(BIAS, 0) == (len(script.sizes) if "bias" in OPTIONS[name] else 0)
    assert mode.synchronizations == {STEP: len(script.sizes), READ: departures(script.sizes)}


MODELS: dict[str, Wrap] = {
    "buffers": lambda make: CapturedModel(make(), RepeatingRecorder()),
    "fusion of buffers": lambda make: Fusion(
        CapturedModel(make(), RepeatingRecorder()), CapturedModel(make(), RepeatingRecorder()), 0.3, [EOS_ID]
    ),
    "ensemble of buffers": lambda make: Ensemble([CapturedModel(make(), RepeatingRecorder()) for _ in range(2)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options", "rows"),
    [
        ("buffers", "greedy", 2),
        ("fusion of buffers", "beam", 4),
        ("buffers", "everything", 4),
        ("ensemble of buffers", "beam", 2),
    ],
)
def test_refilling_does_not_synchronize(model: str, options: str, rows: int | None) -> None:
    mode, script = run(SearchOptions(**{"max_extra_tokens": 9} | OPTIONS[options]), MODELS[model], rows)
    assert max(script.sizes) == (rows or len(SOURCES))
    assert mode.synchronizations[STEP] == len(script.sizes) and mode.synchronizations.keys() - {BIAS} == {STEP, READ}
    assert mode.synchronizations[READ] <= len(SOURCES)


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "dtype"), [("linear", torch.bfloat16), ("log", torch.float16)])
def test_ensembles_and_half_precision_do_not_synchronize_more(mean: Any, dtype: torch.dtype) -> None:
    options = SearchOptions(max_extra_tokens=9)
    mode, script = run(options, lambda make: Ensemble([make(), make()], mean), dtype=dtype)
    assert mode.synchronizations == {STEP: len(script.sizes), READ: departures(script.sizes)}


@pytest.mark.slow
def test_a_shortlist_synchronizes_when_it_gathers_candidates() -> None:
    """The search reads their number at the start, and whenever half of the sentences have left."""

    def wrap(make: Callable[[], Transformer]) -> StepModel[Any]:
        return restrict(make(), torch.ones(len(SOURCES), VOCAB, dtype=torch.bool, device=CUDA))

    def union(is_candidate: Tensor) -> Tensor:
        return torch.zeros(11, 1, dtype=torch.int64, device=CUDA)

    mode, script = run(
        SearchOptions(max_extra_tokens=9, **PLAIN["forbidden"]), wrap, None, torch.float32, **{UNION: union}
    )
    assert mode.synchronizations.pop(UNION) <= 3
    assert mode.synchronizations == {STEP: len(script.sizes), READ: departures(script.sizes)}


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
    script = Script()

    def source_tokens(tokens: Tensor) -> list[int]:
        return [token for source in SOURCES for token in (*source, EOS_ID)]

    def sampled(values: Tensor) -> Any:
        return [[[EOS_ID] * values.shape[2]] * values.shape[1]] * values.shape[0]

    options = SearchOptions(**{"max_extra_tokens": 20} | PLAIN[constraints] | {"beam_size": 3, "n_best": 3})
    with fake_cuda({SAMPLE: script, TOKENS: source_tokens, READ_SAMPLES: sampled}) as mode:
        src = PackedSequences.from_lists([[*source, EOS_ID] for source in SOURCES]).to(CUDA)
        sample(make_model(), src, options, SamplingOptions(**sampling), PREFIXES)
    assert len(script.sizes) > 6
    assert mode.synchronizations[SAMPLE] == len(script.sizes) and mode.synchronizations[TOKENS] == 1
    assert mode.synchronizations[READ_SAMPLES] <= departures(script.sizes)


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
