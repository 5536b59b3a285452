"""Decoding benchmarks."""

import pytest

from nmt.bench.decoding import DecodingBench, DecodingTask, measure_decoding, summarize_latencies
from nmt.bench.inputs import DecodingRequest, prepare_decoding
from nmt.decode.translator import Translator
from nmt.recipe import override_decode

SENTENCES = ("w1 w2 w3", "w4", "w9 w8 w7 w6 w5 w4 w3 w2 w1 w0", "w30 w31")
OUTPUT_TOKENS = 6  # of each translation


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> DecodingTask:
    """A random model whose outputs have exactly six tokens, more than some sources and fewer than others."""
    folder = tmp_path_factory.mktemp("decoding")
    recipe = folder / "small.toml"
    recipe.write_text(
        'name = "small"\nsrc_lang = "en"\ntgt_lang = "de"\n'
        'data = { train = [{ kind = "toy" }], valid = [{ kind = "toy" }], max_tokens = 60 }\n'
        "model = { d_model = 16, d_ff = 32, num_heads = 2, num_encoder_layers = 1, num_decoder_layers = 1, "
        "max_positions = 64 }\n"
    )
    request = DecodingRequest(
        str(recipe),
        source=None,
        tokenizer=None,
        num_sentences=len(SENTENCES),
        vocab_size=60,
        output_tokens=OUTPUT_TOKENS,
        settings=("beam_size=2",),
    )
    model, decode, _ = prepare_decoding(request, folder)
    return DecodingTask(model, SENTENCES, decode, "cpu", "fp32", 1)


def test_pass_counts_the_tokens_of_the_translations(task: DecodingTask) -> None:
    bench = DecodingBench(task)
    one = bench.run()
    assert one.tokens == OUTPUT_TOKENS * len(SENTENCES)
    assert one.seconds > 0
    translator = Translator.load(task.model, "cpu", "fp32", task.decode)
    lengths = [len(translations[0].pieces) for translations in translator.translate_n_best(SENTENCES)]
    assert lengths == [OUTPUT_TOKENS] * len(SENTENCES)
    # The model itself prefers longer translations.
    longer = Translator.load(task.model, "cpu", "fp32", override_decode(task.decode, ["max_tokens=9"]))
    assert max(len(translations[0].pieces) for translations in longer.translate_n_best(SENTENCES)) > OUTPUT_TOKENS


@pytest.mark.slow
def test_throughput_and_latencies_are_measured(task: DecodingTask) -> None:
    result = measure_decoding(task, repetitions=2, latency=True)
    latencies = result.latencies
    assert latencies is not None
    assert 0 < latencies["p50"] <= latencies["p90"] <= latencies["p99"] <= latencies["max"]
    assert result.tokens == OUTPUT_TOKENS * len(SENTENCES)
    assert len(result.tokens_per_second.samples) == 2
    tokens_per_second = OUTPUT_TOKENS * result.sentences_per_second.median
    assert result.tokens_per_second.median == pytest.approx(tokens_per_second)


def test_percentiles_are_interpolated() -> None:
    summary = summarize_latencies([1.0, 2.0, 4.0, 8.0])
    # Percentile p is at index 3 * p / 100 of the sorted latencies.
    assert summary["p50"] == pytest.approx(3.0)
    assert summary["p90"] == pytest.approx(4.0 + 0.7 * 4.0)
    assert summary["p99"] == pytest.approx(4.0 + 0.97 * 4.0)
    assert summary["max"] == 8.0
