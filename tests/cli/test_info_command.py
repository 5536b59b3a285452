"""`nmt info` for models, checkpoints and runs."""

import hashlib
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import Checkpoint, average_checkpoints, load_model, model_files, model_tensors, save_checkpoint
from nmt.export.description import _training_rows
from nmt.heads.masks import attentions
from nmt.heads.pruning import write_pruned
from nmt.storage.sealed import manifest_digest, write_directory
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, one_line

STATE: dict[str, object] = {
    "step": 20,
    "epoch": 1,
    "update": 5,
    "updates_in_epoch": 10,
    "tgt_tokens": 1_234,
    "seconds": 61.0,
    "best_step": 10,
    "best_validation": {"valid/nll": 2.5},
}
TRAINING = {"steps": 99, "epochs": 9.5, "tgt_tokens": 99, "seconds": 1.0, "valid_step": 98, "valid_nll": 1.25}
SCORE = {"name": "bleu", "value": 12.5, "signature": "BLEU|nrefs:1"}
REPORT = {"training": TRAINING, "tests": [{"name": "news", "scores": [SCORE]}]}


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Path:
    """A run with two checkpoints, their average and a report."""
    loaded = load_model(model, torch.device("cpu"))
    tensors, tokenizers = model_tensors(loaded.model), Tokenizers.load(model)
    for step in (10, 20):
        metadata = replace(loaded.metadata, origin={"recipe": "quick", "seed": 7, "step": step})
        files = model_files(loaded.model.recipe, tensors, tokenizers.files(), metadata)
        save_checkpoint(tmp_path / "run", step, Checkpoint(tensors, tensors, {}, {**STATE, "step": step}), files, "")
    average_checkpoints(sorted((tmp_path / "run" / "checkpoints").iterdir()), tmp_path / "run" / "model")
    (tmp_path / "run" / "report.json").write_text(json.dumps(REPORT))
    return tmp_path / "run"


def test_a_run_is_described_by_its_average(run: Path, nmt: Nmt) -> None:
    status, out, err = nmt("info", run)
    assert (status, err) == (0, "")
    rows = dict(re.split(" {2,}", line, maxsplit=1) for line in out.splitlines() if not line.startswith(" "))
    weights = (run / "model" / "model.safetensors").read_bytes()
    assert rows["model"] == str(run / "model")
    assert rows["languages"] == "en to de"
    assert rows["architecture"].startswith("Transformer of 1+1 layers, d_model 16, d_ff 32, 2 heads, dropout 0.1, max_")
    assert rows["recipe"] == "quick"
    assert rows["trained"] == "20 updates, 1.5 epochs, 1,234 target tokens, 1 min 01 s"
    assert rows["average of"] == "2 checkpoints, step-00000010 to step-00000020"
    assert rows["best validation"] == "update 10: nll 2.5"
    assert rows["news bleu"] == "12.50  BLEU|nrefs:1"
    assert rows["torch"] == "fp32, bf16, fp16, int8 (on a CPU)"
    assert f"{hashlib.sha256(weights).hexdigest()}  {len(weights):>13,}  model.safetensors" in out


def test_an_average_of_models_is_described_by_their_names(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    (run / "checkpoints" / "step-00000020").rename(run / "checkpoints" / "step-00000120")
    status, _, err = nmt("average", run, run / "model", run / "checkpoints" / "step-00000010", "-o", tmp_path / "mean")
    assert status == 0 and "was averaged at step 99, but the run has a checkpoint of step 120" in err
    assert re.search("^average of +3 models: run, run, step-00000010$", nmt("info", tmp_path / "mean")[1], re.MULTILINE)


def test_a_model_older_than_the_newest_checkpoint_is_a_warning(run: Path, nmt: Nmt) -> None:
    (run / "checkpoints" / "step-00000120").mkdir()
    assert "was averaged at step 99, but the run has a checkpoint of step 120" in nmt("info", run)[2]


def test_tags_are_listed_with_the_default_one(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    assert re.search("^tags, symbols +<web>, <news>$", nmt("info", run)[1], re.MULTILINE)
    loaded = load_model(run / "model", torch.device("cpu"))
    decode = loaded.metadata.decode.model_copy(update={"tag": "<news>"})
    metadata = replace(loaded.metadata, decode=decode)
    files = model_files(
        loaded.model.recipe, model_tensors(loaded.model), Tokenizers.load(run / "model").files(), metadata
    )
    write_directory(tmp_path / "tagged", files)
    out = nmt("info", tmp_path / "tagged")[1]
    assert re.search("^tags, symbols +<web>, <news>; default tag: <news>$", out, re.MULTILINE)


def test_a_single_checkpoint_is_named_once(run: Path, nmt: Nmt) -> None:
    checkpoint = run / "checkpoints" / "step-00000010"
    average_checkpoints([checkpoint], run / "single")
    assert "1 checkpoint, step-00000010\n" in nmt("info", run / "single")[1]


def test_json_has_no_invalid_numbers(run: Path, monkeypatch: pytest.MonkeyPatch, nmt: Nmt) -> None:
    monkeypatch.setattr("nmt.cli.info.describe_model", lambda _: {"best": {"nll": math.nan, "perplexity": math.inf}})
    assert json.loads(nmt("info", run, "--json")[1]) == {"best": {"nll": None, "perplexity": None}}


def test_json_has_parameters_training_and_files_of_a_checkpoint(run: Path, model: Path, nmt: Nmt) -> None:
    found = json.loads(nmt("info", run / "checkpoints" / "step-00000010", "--json")[1])
    assert found["parameters"] == load_model(model, torch.device("cpu")).model.num_parameters()
    assert found["training"]["step"] == 10
    assert found["training"]["best_validation"] == {"step": 10, "nll": 2.5}
    assert found["scores"] == []  # the scores in the report are those of the average
    assert "optimizer.safetensors" in found["files"]


def test_training_without_checkpoints_is_read_from_the_report(run: Path, nmt: Nmt) -> None:
    shutil.rmtree(run / "checkpoints")
    training = json.loads(nmt("info", run, "--json")[1])["training"]
    assert (training["step"], training["epochs"], training["tgt_tokens"]) == (99, 9.5, 99)
    assert training["best_validation"] == {"step": 98, "nll": 1.25}


def test_an_infinite_perplexity_is_shown(run: Path, nmt: Nmt) -> None:
    score = {"name": "perplexity", "value": None, "signature": "per token"}
    (run / "report.json").write_text(json.dumps(REPORT | {"tests": [{"name": "news", "scores": [score]}]}))
    assert re.search("^news perplexity +infinite  per token$", nmt("info", run)[1], re.MULTILINE)


def test_bits_per_byte_have_the_digits_of_reports(run: Path, nmt: Nmt) -> None:
    score = {"name": "bits-per-byte", "value": 1.03474, "signature": "bits"}
    (run / "report.json").write_text(json.dumps(REPORT | {"tests": [{"name": "news", "scores": [score]}]}))
    assert re.search("^news bits-per-byte +1.0347  bits$", nmt("info", run)[1], re.MULTILINE)


def test_the_scores_of_an_earlier_model_are_left_out(run: Path, nmt: Nmt) -> None:
    (run / "report.json").write_text(json.dumps(REPORT | {"model": manifest_digest(run / "model")}))
    status, out, err = nmt("info", run)
    assert (status, "news bleu" in out, err) == (0, True, "")
    (run / "report.json").write_text(json.dumps(REPORT | {"model": "0" * 64}))
    status, out, err = nmt("info", run)
    assert (status, "news bleu" in out, "best validation  update 10: nll 2.5" in out) == (0, False, True)
    assert f"{run / 'report.json'} is the report of an earlier model, so its scores are left out" in err
    assert json.loads(nmt("info", run, "--json")[1])["scores"] == []


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("", "is a file; expected a model directory (with model.toml), a checkpoint or a run directory; correct the"),
        ("notes.txt", "has no model; expected a model directory"),
        ("data/stamps.json", "is a run without checkpoints; expected a model directory"),
        ("config.json", "is a Hugging Face model; expected an nmt model; convert it with nmt import"),
        ("model.bin", "is an export to CTranslate2; expected an nmt model; use the model that was exported"),
    ],
)
def test_what_is_not_a_model_is_named(tmp_path: Path, nmt: Nmt, file: str, problem: str) -> None:
    path = tmp_path / "given"
    (path / file).parent.mkdir(parents=True, exist_ok=True)
    (path / file).write_text("{}")
    status, out, err = nmt("info", path)
    assert (status, out) == (1, "") and f"{path} {problem}" in one_line(err)


def test_validation_of_the_ema_is_labeled() -> None:
    best = {"step": 10, "nll": 2.5, "average_nll": 2.25}
    training = {"start_from": None, "step": None, "best_validation": best}
    assert list(_training_rows(training)) == [("best validation", "update 10: nll 2.5, EMA nll 2.25")]


def test_a_model_does_not_report_the_training_of_another_run(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    other = tmp_path / "other"
    shutil.copytree(run / "model", other / "model")
    shutil.copytree(run / "checkpoints" / "step-00000020", other / "checkpoints" / "step-00000020")
    assert "1,234 target tokens" in nmt("info", other)[1]
    manifest = other / "checkpoints" / "step-00000020" / "manifest.json"
    digest = json.loads(manifest.read_text())["model.safetensors"]["sha256"]
    manifest.write_text(manifest.read_text().replace(digest, "0" * 64))
    out = nmt("info", other)[1]
    assert "1,234 target tokens" not in out and "best validation" not in out
    assert re.search("^trained +20 updates$", out, re.MULTILINE)


def test_the_initial_model_and_pruning_are_named(run: Path, nmt: Nmt) -> None:
    out = nmt("info", run)[1]
    assert "initial model" not in out and "pruned" not in out
    (run / "report.json").write_text(json.dumps(REPORT | {"start_from": "runs/base"}))
    loaded = load_model(run, torch.device("cpu"))
    write_pruned(loaded, {key: [0] for key in attentions(loaded.transformer)}, run / "pruned")
    assert "initial model" in nmt("info", run)[1]
    assert re.search(
        "^pruned +attention heads, after training and validation$", nmt("info", run / "pruned")[1], re.MULTILINE
    )


def test_a_model_without_a_run_has_no_training(model: Path, nmt: Nmt) -> None:
    status, out, _ = nmt("info", model)
    assert status == 0
    assert "trained" not in out and "best validation" not in out


def test_a_damaged_file_is_an_error(run: Path, nmt: Nmt) -> None:
    weights = run / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    status, out, err = nmt("info", run)
    assert (status, out) == (1, "")
    assert one_line(err).startswith(f"{weights} is missing or corrupt")
