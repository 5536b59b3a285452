"""Search on a GPU: captured steps, agreement with the CPU, synchronization, recovery from too little memory."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.decode.translator import Translator
from nmt.inference.captured import CapturedModel, EagerRecorder, GraphRecorder, Recorder, Run
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe, parse_recipe
from nmt.search.beam_search import beam_search
from nmt.search.ensemble import Ensemble
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.search.sampling import sample
from nmt.special_ids import EOS_ID
from tests.inference import test_captured as captured
from tests.inference.test_captured import assert_same

pytestmark = pytest.mark.gpu

VOCAB = 90
SIZES = {"d_model": 64, "d_ff": 96, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
SEARCHES = captured.SEARCHES | {
    "rules": SearchOptions(beam_size=4, no_repeat_ngram=2, forbidden=((5, 6), (7,)), bias=(((8,), 1.5),)),
}


class CountingRecorder:
    """Records as `CapturedModel` does by default, and counts the attempts and those that fail."""

    def __init__(self, device: torch.device) -> None:
        self._inner: Recorder = GraphRecorder(device)
        self.recorded = self.refused = 0

    def record(self, run: Run) -> Run:
        recorded = self._inner.record(run)
        self.recorded += 1
        self.refused += recorded is run
        return recorded

    def clear(self) -> None:
        self._inner.clear()


def make_model(device: torch.device, dtype: torch.dtype = torch.float64, seed: int = 0) -> Transformer:
    """A model with random weights and clear preferences."""
    torch.manual_seed(seed)
    recipe = ModelRecipe.model_validate(SIZES | {"max_positions": 150})
    model = Transformer(recipe, VOCAB, VOCAB).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(device, dtype)


def sources(count: int, longest: int, device: torch.device, seed: int = 5) -> PackedSequences:
    rng = random.Random(seed)
    lengths = [rng.randint(0, longest) for _ in range(count)]
    sentences = [[rng.randrange(4, VOCAB) for _ in range(n)] + [EOS_ID] for n in lengths]
    return PackedSequences.from_lists(sentences).to(device)


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES.keys())
def test_captured_steps_equal_eager_steps(options: SearchOptions, real_gpu: torch.device) -> None:
    """In float64, to exclude rounding; the second search replays the graphs of the first."""
    model, recorder = make_model(real_gpu), CountingRecorder(real_gpu)
    captured = CapturedModel(model, recorder)
    for count in (7, 3, 7):
        src = sources(count, 9, real_gpu, seed=count)
        prefixes = [[5, 9] if i % 3 == 0 else [] for i in range(count)]
        assert_same(beam_search(captured, src, options, prefixes), beam_search(model, src, options, prefixes))
    assert recorder.recorded
    assert recorder.refused == 0, "every step can be captured"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_replays_are_bit_identical_to_eager_steps(dtype: torch.dtype, gpu: torch.device) -> None:
    model, options = make_model(gpu, dtype), SEARCHES["beam"]
    recorded, plain = CapturedModel(model), CapturedModel(model, EagerRecorder())
    for count in (8, 3, 8):
        src = sources(count, 9, gpu, seed=count)
        assert beam_search(recorded, src, options) == beam_search(plain, src, options)


def test_continuous_batching_gives_the_same_results(gpu: torch.device) -> None:
    model, options = make_model(gpu), SEARCHES["beam"]
    src = sources(23, 14, gpu)
    captured = CapturedModel(model)
    assert_same(beam_search(captured, src, options, batch_size=4), beam_search(model, src, options))


def test_captured_samples_ensembles_and_shortlists_are_equal(gpu: torch.device) -> None:
    models = [make_model(gpu, seed=seed) for seed in (1, 2)]
    src, options = sources(6, 9, gpu), SearchOptions(beam_size=4, n_best=4, max_extra_tokens=12)
    for truncation in ({}, {"top_k": 5}, {"top_p": 0.8}):
        sampling = DecodeRecipe(sampling=True, sampling_seed=3, **truncation)
        assert_same(sample(CapturedModel(models[0]), src, options, sampling), sample(models[0], src, options, sampling))
    generator = torch.Generator().manual_seed(1)
    allowed = torch.rand(6, VOCAB, generator=generator) < 0.5
    allowed[:, EOS_ID] = True
    both = []
    for members in (models, [CapturedModel(model) for model in models]):
        both.append(beam_search(Ensemble(members), src, options))
        both.append(beam_search(restrict(members[0], allowed.to(gpu)), src, options))
    assert_same(both[2], both[0])
    assert_same(both[3], both[1])


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES.keys())
def test_float32_results_equal_the_cpu(options: SearchOptions, gpu: torch.device) -> None:
    cpu = torch.device("cpu")
    expected = beam_search(make_model(cpu, torch.float32), sources(9, 9, cpu), options)
    found = beam_search(CapturedModel(make_model(gpu, torch.float32)), sources(9, 9, gpu), options)
    assert_same(found, expected, rel=1e-3)


# --- CUDA only --------------------------------------------------------------------------------------------------------


@contextmanager
def record_synchronizations() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_search_step_synchronizes_at_most_once(real_gpu: torch.device) -> None:
    """Count the additional synchronizations of 8 steps in which no sentence finishes."""
    captured = CapturedModel(make_model(real_gpu, torch.float32))
    src = PackedSequences.from_lists([[9, 8, 7, EOS_ID]] * 4).to(real_gpu)
    counts = []
    for steps in (20, 28):  # both within one captured shape
        options = SearchOptions(beam_size=1, min_tokens=steps, max_tokens=steps, max_extra_tokens=steps)
        for _ in range(2):  # the first search captures
            with record_synchronizations() as seen:
                beam_search(captured, src, options)
        counts.append(sum("synchroniz" in str(warning.message) for warning in seen))
    assert counts[0] > 0, "results are copied to the host"
    assert counts[1] - counts[0] <= 8


def test_translation_recovers_from_too_little_memory(tmp_path: Path, real_gpu: torch.device) -> None:
    text = 'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n[data]\ntrain = [{ kind = "toy" }]\n'
    text += 'valid = [{ kind = "toy" }]\n[model]\n' + "\n".join(f"{name} = {size}" for name, size in SIZES.items())
    write_random_model(tmp_path / "model", parse_recipe(text), numbered_word_tokenizers(5_000))
    rng = random.Random(1)
    lines = [" ".join(f"w{rng.randrange(4_000)}" for _ in range(30)) for _ in range(512)]
    decode = DecodeRecipe(beam_size=8, batch_tokens=16_384, max_extra_tokens=5)
    found, peaks = [], list[int]()
    torch.cuda.empty_cache()
    for is_limited in (False, True):
        translator = Translator.load(tmp_path / "model", str(real_gpu), "fp32", decode)
        before = torch.cuda.memory_allocated(real_gpu)
        if is_limited:
            torch.cuda.empty_cache()
            limit = before + (peaks[0] - before) // 2
            torch.cuda.set_per_process_memory_fraction(
                limit / torch.cuda.get_device_properties(real_gpu).total_memory, real_gpu
            )
        torch.cuda.reset_peak_memory_stats(real_gpu)
        failures = torch.cuda.memory_stats(real_gpu)["num_ooms"]
        try:
            found.append(translator.translate(lines))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, real_gpu)
        peaks.append(torch.cuda.max_memory_allocated(real_gpu))
        assert (torch.cuda.memory_stats(real_gpu)["num_ooms"] > failures) is is_limited
        del translator
    equal = sum(one == other for one, other in zip(*found, strict=True))
    assert equal >= 0.99 * len(lines), "other batch sizes may only change rounding"
