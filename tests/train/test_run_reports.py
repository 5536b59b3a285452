"""Reports of runs: scores, the chosen checkpoint, diverged runs."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt.pipeline import averaging
from nmt.storage.run_folder import list_checkpoints
from nmt.train import trainer as trainer_module
from tests.calling import Nmt
from tests.train.small_run import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.slow
@pytest.mark.parametrize("tokenize", [None, "char"])
def test_scores_with_several_references_equal_the_sacrebleu_command(
    tokenize: str | None, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    (tmp_path / "second.de").write_text("eine Katze sieht\nMäuse, 1\ndie Maus\n")
    options = ["evaluate.resamples=50", "data.test.news.tgt=['news.de','second.de']"]
    options += [f"evaluate.tokenize={tokenize}"] if tokenize else []
    assert nmt("run", recipe, f"run_dir={run}", *options)[0] == 0
    (found,) = json.loads((run / "report.json").read_text())["tests"]
    first, second, out = tmp_path / "news.de", tmp_path / "second.de", run / "translations" / "news.de"
    tokenize_option = ["--tokenize", tokenize] if tokenize else []
    command = [sys.executable, "-m", "sacrebleu", first, second, "-i", out, "-m", "bleu", "chrf", "ter"]
    command += ["--width", "14", "--confidence", "--confidence-n", "50", *tokenize_option]
    expected = json.loads(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout)
    for score, theirs in zip(found["scores"], expected, strict=True):
        assert score["signature"] == f"{theirs['name']}|{theirs['signature']}"
        assert "|nrefs:2|" in score["signature"]
        assert float(f"{score['value']:.14f}") == theirs["score"]
        assert float(f"{score['interval']:.14f}") == theirs.get("confidence_var", 0.0)
    assert "nrefs:2" in (run / "report.md").read_text()
    _, printed, _ = nmt("evaluate", "--ref", first, "--ref", second, out, "--json", *tokenize_option)
    (evaluated,) = json.loads(printed)["systems"].values()
    assert [score["value"] for score in evaluated] == [score["value"] for score in found["scores"]]


@pytest.mark.slow
def test_a_finished_run_is_not_reported_with_options_that_no_update_used(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    assert nmt("run", recipe, f"run_dir={run}")[0] == 0
    report = (run / "report.md").read_text()
    refused = {
        "train.learning_rate=0.5": "is 0.5, was 0.01",
        "train.max_steps=1": "is 1, was 2",
        "train.precision=bf16": "is bf16, was auto",
        "train.adam_epsilon=1e-5": "is 1e-05, was 1e-09",
    }
    for option, message in refused.items():
        status, _, err = nmt("run", recipe, f"run_dir={run}", option)
        assert status == 1
        assert message in err.splitlines()[-1]
        assert (run / "report.md").read_text() == report
    assert nmt("run", recipe, f"run_dir={run}", "decode.beam_size=2", "train.keep_last=4")[0] == 0
    assert nmt("run", recipe, f"run_dir={run}", "train.learning_rate=0.02", "train.max_steps=3")[0] == 0


@pytest.mark.slow
def test_a_report_has_the_best_validation_of_the_ema_and_ties_choose_the_first_step(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    options = ("train.ema_decay=0.9", "train.average=ema", "train.average_count=", "train.max_steps=4")
    assert nmt("run", recipe, f"run_dir={run}", "evaluate.resamples=0", *options)[0] == 0
    found = json.loads((run / "report.json").read_text())["training"]
    entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    best = min((entry for entry in entries if "valid/loss" in entry), key=lambda entry: entry["valid/average_loss"])
    assert (found["valid_step"], found["valid_nll"]) == (best["step"], best["valid/average_nll"])
    for checkpoint in list_checkpoints(run):
        state = json.loads((checkpoint / "state.json").read_text())
        (checkpoint / "state.json").write_text(json.dumps(state | {"scores": {"2": 0.0, "4": 0.0}}))
    assert averaging._choose_checkpoints(run, "best", 1) == list_checkpoints(run)[:1]


@pytest.mark.slow
def test_the_report_names_bleu_if_it_chose_the_best_checkpoint(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    by_bleu = ("train.best_metric=bleu", "train.validate_bleu_every=2", "train.max_steps=4")
    assert nmt("run", recipe, f"run_dir={run}", "evaluate.resamples=0", *by_bleu)[0] == 0
    found = json.loads((run / "report.json").read_text())["training"]
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (best,) = [entry for entry in entries if "valid/bleu" in entry and entry["step"] == found["valid_step"]]
    assert found["valid_bleu"] == best["valid/bleu"]
    assert f"| best validation | BLEU {best['valid/bleu']:.2f}, by which it" in (run / "report.md").read_text()


@pytest.mark.slow
def test_a_diverged_run_is_named_where_its_model_is_used(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverged(*_: object) -> SimpleNamespace:
        return SimpleNamespace(loss=800.0, nll=810.0, perplexity=math.inf)

    assert nmt("run", recipe, f"run_dir={tmp_path / 'well'}")[0] == 0
    monkeypatch.setattr(trainer_module, "validate", diverged)
    run = tmp_path / "run"
    status, out, _ = nmt("run", recipe, f"run_dir={run}")
    assert status == 0
    assert "| best validation | none has a finite score |" in out
    uses = [
        (run, ("translate", run, tmp_path / "news.en")),
        (run / "model", ("translate", run / "model", tmp_path / "news.en")),
        (list_checkpoints(run)[0], ("translate", list_checkpoints(run)[0], tmp_path / "news.en")),
        (run, ("info", run)),
        (run, ("average", run, "--last", 1, "-o", tmp_path / "average")),
        (run, ("serve", run, "--port", 0, "--engine", "torch", "--processes", 2)),  # an error after loading
    ]
    for path, command in uses:
        status, _, err = nmt(*command)
        assert status == (2 if command[0] == "serve" else 0), err
        assert f"warning: no validation score of the run of {path} is finite; training probably diverged; use" in err
    _, _, err = nmt("translate", tmp_path / "well", tmp_path / "news.en")
    assert "warning" not in err


@pytest.mark.slow
def test_the_average_of_the_best_leaves_out_diverged_checkpoints(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={run}", "train.max_steps=4", "train.save_every=2")[0] == 0
    checkpoints = list_checkpoints(run)
    state = json.loads((checkpoints[-1] / "state.json").read_text())
    for scores, expected in (([-2.0, -math.inf], checkpoints[:1]), ([-math.inf, -math.inf], checkpoints)):
        named = dict(zip(("2", "4"), scores, strict=True))
        (checkpoints[-1] / "state.json").write_text(json.dumps(state | {"scores": named}))
        assert averaging._choose_checkpoints(run, "best", 2, accept_fewer=True) == expected
