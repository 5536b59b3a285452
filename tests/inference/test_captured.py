"""Steps in static buffers: the same results as the Transformer, and what CUDA graph capture requires.

Capture itself needs a GPU. On a CPU, `RepeatingRecorder` replaces the recorder.
"""

import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.checkpoint import load_model
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.devices.memory import capture_lock, free_unused_memory
from nmt.errors import UserError
from nmt.inference.buffers import Arena, Shape, Sizes
from nmt.inference.captured import CapturedModel, GraphRecorder, Run, StaticState
from nmt.inference.padded import PaddedModel
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe, parse_recipe
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.ensemble import Ensemble
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.search.sampling import sample
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.tokenizer import Tokenizers

VOCAB = 30
SIZES = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2}
CPU = torch.device("cpu")


class RepeatingRecorder:
    """Runs a function several times before its result is used, as a capture does."""

    def __init__(self) -> None:
        self.recorded: list[Run] = []
        self.times_cleared = 0

    def record(self, run: Run) -> Run:
        run()
        run()
        self.recorded.append(run)
        return run

    def clear(self) -> None:
        self.recorded.clear()
        self.times_cleared += 1


def make_model(seed: int = 0, **options: object) -> Transformer:
    """Random weights in float64, with clear preferences."""
    torch.manual_seed(seed)
    recipe = ModelRecipe.model_validate(SIZES | {"max_positions": 150} | options)
    model = Transformer(recipe, VOCAB, VOCAB).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def random_sources(rng: random.Random, count: int, longest: int = 20) -> PackedSequences:
    lengths = [rng.randint(0, longest) for _ in range(count)]
    return PackedSequences.from_lists([[rng.randrange(4, VOCAB) for _ in range(n)] + [EOS_ID] for n in lengths])


def random_tokens(rng: random.Random, sentences: int, beam: int) -> Tensor:
    return torch.tensor([[rng.randrange(4, VOCAB) for _ in range(beam)] for _ in range(sentences)])


# --- Step by step ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    sentences=st.integers(1, 9),
    beam=st.integers(1, 5),
    steps=st.integers(1, 30),
    norm_order=st.sampled_from(("post", "pre")),
)
def test_steps_equal_the_transformers(seed: int, sentences: int, beam: int, steps: int, norm_order: str) -> None:
    rng, model = random.Random(seed), make_model(seed % 3, norm_order=norm_order)
    captured = CapturedModel(model, RepeatingRecorder())
    for _ in range(2):  # the second search reuses the buffers of the first
        src = random_sources(rng, sentences)
        own, recorded = model.start(src, beam), captured.start(src, beam)
        tokens = torch.full((sentences, beam), BOS_ID)
        left = sentences
        for _ in range(steps):
            expected, found = model.advance(tokens, own), captured.advance(tokens, recorded)
            torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)
            if left > 1 and rng.random() < 0.3:
                rows = torch.tensor(rng.sample(range(left), k=rng.randint(1, left - 1)))
                left = len(rows)
                own.select(rows)
                recorded.select(rows)
            beam_index = torch.tensor([[rng.randrange(beam) for _ in range(beam)] for _ in range(left)])
            own.reorder(beam_index)
            recorded.reorder(beam_index)
            tokens = random_tokens(rng, left, beam)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_the_row_of_a_sentence_that_reached_the_last_position_may_stay_idle(positions: str) -> None:
    rng, model = random.Random(2), make_model(positions=positions, max_positions=8)
    captured = CapturedModel(model, RepeatingRecorder())
    state = captured.start(random_sources(rng, 1, 7), 2)
    for _ in range(3):
        captured.advance(random_tokens(rng, 1, 2), state)
    captured.refill(random_sources(rng, 3, 7), state, 3)
    for _ in range(5):  # then the first sentence has taken 8 steps
        captured.advance(random_tokens(rng, 4, 2), state)
    state.select(torch.tensor([1, 2, 3]))
    assert state.step.shape.batch == 4, "one row must be idle"
    assert captured.advance(random_tokens(rng, 3, 2), state).isfinite().all()


def fill_idle_rows(state: StaticState, value: float) -> None:
    """Overwrite all rows that are not in use."""
    buffers, used = state.step.buffers, len(state.rows)
    assert state.rows.tolist() == list(range(used)) and used < state.step.shape.batch
    numbers = [buffers.memory_mask, buffers.mask, buffers.hidden]
    for tensor in [*numbers, *(part for layer in buffers.layers for part in (layer.cache.stored, layer.memory))]:
        tensor[used:] = value
    buffers.tokens[used:] = VOCAB - 1


@torch.inference_mode()
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_idle_rows_do_not_affect_others(value: float) -> None:
    rng, model = random.Random(1), make_model()
    src, beam = random_sources(rng, 11), 3
    models = CapturedModel(model), CapturedModel(model)
    states = [captured.start(src, beam) for captured in models]
    tokens, rows = torch.full((11, beam), BOS_ID), torch.tensor([7, 0, 3])
    for step in range(40):
        if step in (0, 12):
            fill_idle_rows(states[1], value)
        pair = [captured.step(tokens, state) for captured, state in zip(models, states, strict=True)]
        assert torch.equal(*pair) and pair[0].isfinite().all()
        if step == 10:
            for state in states:
                state.select(rows)
        tokens = random_tokens(rng, len(states[0].rows), beam)


def test_a_later_search_ends_the_previous_one() -> None:
    captured = CapturedModel(make_model())
    src = random_sources(random.Random(0), 2)
    first, _ = captured.start(src, 2), captured.start(src, 2)
    with pytest.raises(AssertionError, match="a later search"):
        captured.step(torch.full((2, 2), BOS_ID), first)


def test_results_are_new_tensors() -> None:
    rng, captured = random.Random(2), CapturedModel(make_model())
    state = captured.start(random_sources(rng, 4), 2)
    first = captured.step(torch.full((4, 2), BOS_ID), state)
    kept = first.clone()
    with torch.inference_mode():
        second = captured.step(random_tokens(rng, 4, 2), state)
        assert torch.equal(first, kept) and not torch.equal(first, second)
        first.zero_()
        assert second.any() and captured.step(random_tokens(rng, 4, 2), state).any()


# --- Requirements of CUDA graphs -------------------------------------------------------------------------------------


def addresses(state: StaticState) -> list[int]:
    buffers = state.step.buffers
    names = ("tokens", "slots", "hidden", "memory_mask", "mask")
    layers = [part for layer in buffers.layers for part in (layer.cache.stored, layer.memory)]
    return [part.data_ptr() for part in [*(getattr(buffers, name) for name in names), *layers]]


@pytest.mark.slow
def test_a_shape_is_captured_once_and_keeps_its_addresses() -> None:
    rng, recorder = random.Random(3), RepeatingRecorder()
    captured = CapturedModel(make_model(), recorder)
    known: dict[Shape, list[int]] = {}
    for number, count in enumerate((6, 6, 5, 3, 1, 6)):
        src = random_sources(rng, count, longest=15)
        state = captured.start(src, 4)
        for step in range(40):
            captured.step(random_tokens(rng, len(state.rows), 4), state)
            if number:  # the first search has allocated memory for all later shapes
                assert known.setdefault(state.step.shape, addresses(state)) == addresses(state)
            if step == 20 and count > 2:
                state.select(torch.tensor([2, 0]))
        if number == 0:
            after_first = recorder.times_cleared
    assert recorder.times_cleared == after_first, "memory grows only if a search needs more than all earlier ones"
    assert after_first == 2, "memory grows at the start of the first search, and when its KV cache is full"
    assert len(known) > 5
    often = [step for step in captured._steps.values() if step.count >= 3]  # the third run is captured
    assert often and len(recorder.recorded) == len(often)
    assert {id(step.run) for step in often} == {id(run) for run in recorder.recorded}


@pytest.mark.slow
def test_a_search_does_not_synchronize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the meta device have no contents: every read would raise."""
    device, beam, recorder = torch.device("meta"), 4, RepeatingRecorder()
    model, src = make_model().to(device), random_sources(random.Random(4), 5).to(device)
    memory = torch.zeros(src.total, 16, dtype=torch.float64, device=device)
    monkeypatch.setattr(model, "encode", lambda _: memory)  # the meta device has no autocast
    captured = CapturedModel(model, recorder)
    state = captured.start(src, beam)
    for step in range(40):
        found = captured.step(torch.zeros(len(state.rows), beam, dtype=torch.int64, device=device), state)
        if step == 9:
            state.select(torch.zeros(2, dtype=torch.int64, device=device))
        state.reorder(torch.zeros(len(state.rows), beam, dtype=torch.int64, device=device))
    assert len(recorder.recorded) > 1
    assert found.is_meta and found.shape == (2, beam, VOCAB)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # the error of every read
        found.sum().item()


# --- Whole searches --------------------------------------------------------------------------------------------------


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], *, rel: float = 1e-5) -> None:
    assert [[h.tokens for h in of_one] for of_one in found] == [[h.tokens for h in of_one] for of_one in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.score == pytest.approx(other.score, rel=rel)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=rel, abs=1e-6)


SEARCHES = {
    "greedy": SearchOptions(beam_size=1, max_extra_tokens=12),
    "beam": SearchOptions(beam_size=5, n_best=3, max_extra_tokens=12),
    "groups": SearchOptions(beam_size=4, n_best=4, beam_groups=2, max_extra_tokens=12),
    "long": SearchOptions(beam_size=4, max_extra_tokens=50, min_tokens=50),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES.keys())
def test_beam_search_is_the_same(options: SearchOptions) -> None:
    rng, model, recorder = random.Random(5), make_model(), RepeatingRecorder()
    captured = CapturedModel(model, recorder)
    for count in (7, 3):
        src = random_sources(rng, count, longest=9)
        prefixes = [[rng.randrange(4, VOCAB) for _ in range(rng.choice((0, 0, 3)))] for _ in range(count)]
        found = beam_search(captured, src, options, prefixes)
        assert_same(found, beam_search(model, src, options, prefixes))
        if options is SEARCHES["long"]:
            assert all(len(of_one[0].tokens) >= 50 for of_one in found)
            assert {shape.capacity for shape in captured._steps} >= {256}, "the shape has changed"
    assert recorder.recorded


@pytest.mark.slow
def test_samples_are_the_same() -> None:
    rng, model = random.Random(6), make_model()
    captured = CapturedModel(model, RepeatingRecorder())
    options = SearchOptions(beam_size=6, n_best=6, max_extra_tokens=12)
    for truncation in ({}, {"top_k": 5}, {"top_p": 0.8}):
        sampling = DecodeRecipe(sampling=True, sampling_seed=3, **truncation)
        src = random_sources(rng, 6, longest=9)
        assert_same(sample(captured, src, options, sampling), sample(model, src, options, sampling))


@pytest.mark.slow
@pytest.mark.parametrize(
    "combine", [lambda models: models[0], lambda models: Ensemble(models)], ids=["one", "ensemble"]
)
@pytest.mark.parametrize("with_shortlist", [False, True])
def test_ensembles_and_shortlists_are_the_same(
    combine: Callable[[list[Any]], StepModel[Any]], with_shortlist: bool
) -> None:
    rng, models = random.Random(7), [make_model(seed) for seed in (1, 2)]
    src = random_sources(rng, 6, longest=9)
    allowed = torch.tensor([[piece == EOS_ID or rng.random() < 0.5 for piece in range(VOCAB)] for _ in range(6)])
    both = []
    for members in (models, [CapturedModel(model, RepeatingRecorder()) for model in models]):
        model = combine(members)
        model = restrict(model, allowed) if with_shortlist else model
        both.append(beam_search(model, src, SearchOptions(n_best=2, max_extra_tokens=12)))
    assert_same(*both)


# --- The translator --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = "\n".join(f"{name} = {value}" for name, value in SIZES.items())
    data = 'train = [{ kind = "toy" }]\nvalid = [{ kind = "toy" }]'
    text = f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n[data]\n{data}\n[model]\n{sizes}\n'
    directory = tmp_path_factory.mktemp("captured") / "model"
    write_random_model(directory, parse_recipe(text, [], "test"), numbered_word_tokenizers(40))
    return directory


def translations(
    directory: Path, wrap: Callable[[Transformer], StepModel[Any]], device: torch.device = CPU, **decode: object
) -> list[list[Translation]]:
    loaded = load_model(directory, device)
    translator = Translator(
        wrap(loaded.transformer.double()),
        Tokenizers.load(directory),
        DecodeRecipe.model_validate({"max_extra_tokens": 6, "n_best": 2} | decode),
        max_positions=100,
        unicode_form="NFC",
        device=device,
    )
    rng = random.Random(8)
    return translator.translate_n_best([" ".join(f"w{rng.randrange(30)}" for _ in range(n)) for n in range(14)])


def assert_same_translations(found: list[list[Translation]], expected: list[list[Translation]]) -> None:
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert (one.text, one.alignment) == (other.text, other.alignment)
        assert one.score == pytest.approx(other.score, rel=1e-5)


@pytest.mark.slow
def test_translations_and_alignments_are_the_same(model_directory: Path) -> None:
    expected = translations(model_directory, lambda model: model, alignments=True)
    found = translations(model_directory, lambda model: CapturedModel(model, RepeatingRecorder()), alignments=True)
    assert any(translation.alignment for [translation, *_] in found)
    assert_same_translations(found, expected)
    options: dict[str, Any] = {"alignments": True, "batch_tokens": 64, "bias": {"w1 w2": 0.5}, "no_repeat_ngram": 2}
    expected = translations(model_directory, lambda model: model, **options)
    captured: list[CapturedModel] = []

    def wrap(model: Transformer) -> CapturedModel:
        captured.append(CapturedModel(model, RepeatingRecorder()))
        return captured[0]

    assert_same_translations(translations(model_directory, wrap, **options), expected)
    assert max(shape.batch for shape in captured[0]._steps) == 4, "at most 4 of 14 sentences at a time"


@pytest.mark.slow
def test_too_little_memory_halves_the_batch(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow, most, refused = Arena.grow, 2, []

    def grow_a_little(self: Arena, sizes: Sizes) -> None:
        if sizes["tokens"][0] > most:
            refused.append(sizes["tokens"][0])
            raise torch.OutOfMemoryError("no")
        grow(self, sizes)

    expected = translations(model_directory, lambda model: model)
    monkeypatch.setattr(Arena, "grow", grow_a_little)
    assert_same_translations(translations(model_directory, CapturedModel), expected)
    assert set(refused) == {16, 8, 4}
    most = 0
    with pytest.raises(UserError, match="out of memory for a single sentence"):
        translations(model_directory, CapturedModel)


def test_a_cpu_searches_without_graphs(model_directory: Path) -> None:
    assert isinstance(Translator.load(model_directory, device="cpu")._model, PaddedModel)


@pytest.mark.gpu
def test_cuda_graphs_give_the_same_translations(model_directory: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert isinstance(Translator.load(model_directory, device=str(device))._model, CapturedModel)
    assert_same_translations(
        translations(model_directory, CapturedModel, device), translations(model_directory, lambda model: model, device)
    )
    rng, model = random.Random(9), make_model().to(device)
    captured = CapturedModel(model)
    for count in (7, 3, 7, 2):
        src = random_sources(rng, count, longest=9).to(device)
        for options in SEARCHES.values():
            assert_same(beam_search(captured, src, options), beam_search(model, src, options))
    assert any(step.count > 3 for step in captured._steps.values())


def test_a_failed_capture_runs_eagerly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Running out of memory is not a failed capture. After one, nothing is captured anymore."""
    recorder = object.__new__(GraphRecorder)  # the constructor needs a GPU
    recorder._device, recorder._has_failed = torch.device("cuda", 0), False
    errors = iter([torch.OutOfMemoryError("full"), RuntimeError("operation not permitted\nwhen stream is capturing")])

    def fail(_: Run) -> Run:
        raise next(errors)

    monkeypatch.setattr(recorder, "_capture", fail)

    def run() -> None: ...

    with pytest.raises(torch.OutOfMemoryError):
        recorder.record(run)
    assert recorder.record(run) is run
    assert capsys.readouterr().err.endswith("search continues without graphs: operation not permitted\n")
    assert recorder.record(run) is run and not list(errors)


def test_a_step_that_ran_out_of_memory_is_captured_later() -> None:
    class FailingOnce(RepeatingRecorder):
        fails = True

        def record(self, run: Run) -> Run:
            if self.fails:
                self.fails = False
                raise torch.OutOfMemoryError("full")
            return super().record(run)

    model, recorder = make_model(), FailingOnce()
    captured = CapturedModel(model, recorder)
    src = random_sources(random.Random(2), 3, longest=5)
    tokens = torch.full((3, 1), BOS_ID)
    state = captured.start(src, 1)
    captured.advance(tokens, state)
    captured.advance(tokens, state)
    with pytest.raises(torch.OutOfMemoryError):
        captured.advance(tokens, state)
    state = captured.start(src, 1)
    for _ in range(3):
        assert not recorder.recorded
        captured.advance(tokens, state)
    assert recorder.recorded


def test_captures_and_freeing_of_memory_are_mutually_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a model that runs out of memory would make the capture of another model fail."""
    is_locked = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: is_locked.append(capture_lock.locked()))
    free_unused_memory(torch.device("cuda", 0))
    free_unused_memory(torch.device("cpu"))
    assert is_locked == [True] and not capture_lock.locked()
