"""`nmt bench` as a user types it."""

import json
import re
from pathlib import Path

import pytest

from tests.calling import Nmt, one_line

SMALL = ["model.d_model=16", "model.d_ff=32", "model.num_heads=2", "train.device=cpu"]


@pytest.mark.slow
def test_training_is_measured(nmt: Nmt, tmp_path: Path) -> None:
    status, out, err = nmt(
        *("bench", "train", "tiny", *SMALL, "--vocab-size", 80, "--batch-tokens", 400, "--precision", "fp32"),
        *("--no-compile", "--warm-up", 1, "--updates", 2, "--repetitions", 2, "--threads", 1),
        *("--json", tmp_path / "train.json"),
    )
    assert status == 0, err
    assert out.startswith(
        "training tiny on cpu, 1 process, vocabulary 80, lengths of wmt14, 400 target tokens per update\n"
    )
    report = json.loads((tmp_path / "train.json").read_text())
    assert report["settings"]["recipe"]["train"]["batch_tokens"] == 400
    assert report["settings"]["recipe"]["model"]["d_model"] == 16
    assert len(report["measurements"]["tgt_tokens_per_second"]["samples"]) == 2
    assert report["command"].startswith("nmt bench train tiny")
    assert f"{report['measurements']['flops_per_tgt_token'] / 1e3:.4g} kFLOP" in out


@pytest.mark.slow
def test_translation_is_measured(nmt: Nmt, tmp_path: Path) -> None:
    status, out, err = nmt(
        *("bench", "decode", "tiny", "--vocab-size", 80, "--sentences", 6, "--output-tokens", 3, "--beam-size", 2),
        *("--batch-tokens", 100, "--threads", 1, "--precision", "fp32", "--latency", "--repetitions", 2),
        *("--device", "cpu", "--set", "length_penalty=none", "--json", tmp_path / "decode.json"),
    )
    assert status == 0, err
    assert "6 sentences, 18 output tokens" in out
    report = json.loads((tmp_path / "decode.json").read_text())
    assert report["measurements"]["tokens"] == 18
    assert report["measurements"]["latencies"]["p50"] > 0
    assert report["settings"]["decode"]["length_penalty"] == "none"


@pytest.mark.slow
def test_the_title_names_what_ran(nmt: Nmt) -> None:
    command = ("bench", "decode", "tiny", "--vocab-size", 80, "--sentences", 2, "--output-tokens", 2, "--threads", 1)
    options = ("--repetitions", 1, "--set", "sampling=true", "--set", "n_best=3", "--set", "mbr_metric=chrf")
    status, out, err = nmt(*command, *options, "--device", "cpu")
    assert status == 0, err
    title = r"translating with tiny, 3 samples per sentence, MBR with chrf, (fp32|bf16) on cpu\n"
    assert re.match(title, out)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("train", "huge"), 1, "unknown model 'huge'"),
        (("train", "tiny", "train.batch_token=5"), 2, "did you mean 'batch_tokens'"),
        (("train", "tiny", "--lengths", "nowhere"), 1, "nowhere has no complete corpus of a translation model"),
        (("decode", "tiny", "--input", "text"), 2, "random weights need a tokenizer"),
        (("decode", "tiny", "--threads", 2_000), 2, "it must be less than or equal to 1024"),
        (("train", "tiny", "--threads", 2_000), 2, "it must be less than or equal to 1024"),
        (("train", "tiny", "--json", "none/train.json"), 1, "none is not a directory"),
        (("decode", "tiny", "--json", "none/decode.json"), 1, "none is not a directory"),
        (("decode", "tiny", "--device", "tpu"), 1, "device 'tpu'"),
        (("decode", "tiny", "--set", "diversity_penalty=1"), 2, "diversity_penalty has no effect without beam_groups"),
        (("decode", "tiny", "--set", "sampling=true", "--beam-size", 2), 2, "beam_size has no effect without a search"),
    ],
)
def test_invalid_input_is_one_line(nmt: Nmt, arguments: tuple[object, ...], status: int, words: str) -> None:
    found, out, err = nmt("bench", *arguments)
    assert (found, out) == (status, "")
    assert words in one_line(err)
