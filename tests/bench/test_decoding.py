"""Decoding benchmarks in one process and in several."""

import multiprocessing
from pathlib import Path

import pytest

from nmt.bench.decoding import (
    DecodingBench,
    DecodingProcesses,
    DecodingTask,
    _serve,
    measure_decoding,
    summarize_latencies,
)
from nmt.bench.inputs import DecodingRequest, prepare_decoding
from nmt.decode.translator import Translator
from nmt.recipe import override_decode

SENTENCES = ("w1 w2 w3", "w4", "w9 w8 w7 w6 w5 w4 w3 w2 w1 w0", "w30 w31")


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
    request = DecodingRequest(str(recipe), None, None, 4, 60, 6, ("beam_size=2",))
    model, decode, _ = prepare_decoding(request, folder)
    return DecodingTask(model, SENTENCES, decode, "cpu", "fp32", 1)


def test_pass_counts_the_tokens_of_the_translations(task: DecodingTask) -> None:
    bench = DecodingBench(task)
    one = bench.run()
    assert one.tokens == 6 * len(SENTENCES)
    assert one.seconds > 0
    translator = Translator.load(task.model, "cpu", "fp32", task.decode)
    assert [len(translations[0].pieces) for translations in translator.translate_n_best(SENTENCES)] == [6] * 4
    free = Translator.load(task.model, "cpu", "fp32", override_decode(task.decode, ["max_tokens=9"]))
    assert max(len(translations[0].pieces) for translations in free.translate_n_best(SENTENCES)) <= 9


def test_each_sentence_has_a_latency(task: DecodingTask) -> None:
    figures = measure_decoding(task, processes=1, repetitions=2, latency=True)
    latencies = figures.latencies
    assert latencies is not None
    assert 0 < latencies["p50"] <= latencies["p90"] <= latencies["p99"] <= latencies["max"]
    assert figures.tokens == 24
    assert len(figures.tokens_per_second.samples) == 2
    assert figures.tokens_per_second.median == pytest.approx(6 * figures.sentences_per_second.median)


def test_percentiles_are_interpolated() -> None:
    summary = summarize_latencies([float(value) for value in range(1, 102)])
    assert (summary["p50"], summary["p90"], summary["p99"], summary["max"]) == (51.0, 91.0, 100.0, 101.0)


@pytest.mark.slow
def test_processes_split_the_sentences(task: DecodingTask) -> None:
    with DecodingProcesses(task, 2) as processes:
        assert processes.run().tokens == 24
        assert processes.run().tokens == 24
        assert processes.peak_memory() > 200e6
        assert processes.parameters == DecodingBench(task).parameters


def test_error_of_a_process_reaches_the_parent(task: DecodingTask, tmp_path: Path) -> None:
    missing = DecodingTask(tmp_path / "none", SENTENCES, task.decode, "cpu", "fp32", 1)
    ours, theirs = multiprocessing.Pipe()
    _serve(missing, theirs)
    assert "none does not exist" in ours.recv()
