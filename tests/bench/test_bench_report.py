"""Tables and JSON of benchmark results."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from nmt.bench.decoding import DecodingResult
from nmt.bench.device import LinearRate
from nmt.bench.report import decoding_rows, format_table, training_rows, write_json
from nmt.bench.statistics import Spread
from nmt.bench.training import TrainingResult
from nmt.errors import UserError

TRAINING = TrainingResult(
    parameters=63_082_496,
    precision="bf16",
    micro_batch_tokens=4_096,
    setup_seconds=2.0,
    first_update_seconds=30.0,
    warm_up_seconds=41.0,
    tgt_tokens_per_second=Spread.of([1_400.0, 1_500.0, 1_450.0]),
    src_tokens_per_tgt_token=0.964,
    flops_per_tgt_token=375.7e6,
    flops_per_second=544.8e9,
    linear=LinearRate(mean=800e9, best=960e9),
    fraction_of_linear=0.681,
    fraction_of_best_linear=0.5675,
    row_padding=0.08,
    peak_memory=3_210_000_000,
    skipped=0,
    compiled_while_timed=0,
)
DECODING = DecodingResult(
    parameters=48_000_000,
    load_seconds=0.5,
    warm_up_seconds=4.0,
    sentences=256,
    tokens=4_096,
    tokens_per_second=Spread.of([812.34]),
    sentences_per_second=Spread.of([50.77]),
    peak_memory=900_000_000,
    latencies={"p50": 0.0512, "p99": 0.2},
)


def test_training_table() -> None:
    table = format_table("training base", training_rows(TRAINING))
    title, blank, *lines = table.split("\n")
    assert (title, blank) == ("training base", "")
    assert len({line.index(text) for line, (_, text) in zip(lines, training_rows(TRAINING), strict=True)}) == 1
    for text in (
        "1,450  (median of 3; quartiles 1,425 to 1,475; range 1,400 to 1,500)",
        "544.8 GFLOP/s",
        "375.7 MFLOP",
        "800 GFLOP/s, best shape 960 GFLOP/s",
        "68.1%, of the best 56.8%",
        "8.00% of rows",
        "3.21 GB",
        "first update 30.0 s",
        "63,082,496 parameters, bf16",
    ):
        assert text in table
    assert "warning" not in table


def test_invalid_measurements_have_a_warning() -> None:
    invalid = TrainingResult(**{**vars(TRAINING), "skipped": 3, "compiled_while_timed": 1})
    assert [text for label, text in training_rows(invalid) if label == "warning"] == [
        "3 updates skipped because of non-finite gradients",
        "1 graph compiled during timing; raise --warm-up",
    ]


def test_decoding_table() -> None:
    rows = dict(decoding_rows(DECODING))
    assert rows["output tokens per second"].startswith("812.3  (median of 1;")
    assert rows["latency per sentence, ms"] == "p50 51.2, p99 200.0"
    assert rows["pass"] == "256 sentences, 4,096 output tokens"


def test_json_has_every_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/nmt", "bench", "train", "base model"])
    path = tmp_path / "out.json"
    write_json(path, "train", {"model": "base"}, TRAINING)
    report = json.loads(path.read_text())
    assert report["measurements"].keys() == {field.name for field in dataclasses.fields(TRAINING)}
    assert report["measurements"]["tgt_tokens_per_second"]["samples"] == [1_400.0, 1_500.0, 1_450.0]
    assert report["measurements"]["linear"]["best"] == 960e9
    assert report["settings"] == {"model": "base"}
    assert report["versions"]["torch"]
    assert report["machine"]["cores"] >= 1
    assert report["command"] == "nmt bench train 'base model'"


def test_json_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        write_json(tmp_path / "none" / "out.json", "train", {}, TRAINING)
