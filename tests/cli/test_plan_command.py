"""`nmt plan` forecasts a run: exact counts, load balance, and time from measured speed."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import plan_check
import pytest

from nmt.bench.training import Repetition, TrainingBench
from nmt.checkpoint import load_checkpoint
from nmt.cli.arguments import find_recipe
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.evaluate.forecast import SpeedForecast, read_forecast, with_earlier_speed, write_forecast
from nmt.evaluate.forecast_table import speed_rows
from nmt.recipe import load_recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.train.state import TrainState
from tests.calling import Nmt, one_line
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "toy", pairs = 100 }, { kind = "toy", pairs = 50, seed = 9, weight = 3.0 }]
valid = [{ kind = "toy", split = "valid", pairs = 10 }]
""",
    """
max_steps = 25
batch_tokens = 400
micro_batch_tokens = 200
validate_every = 10
save_every = 100
average_count = 1
""",
    top='run_dir = "FOLDER/run"',
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    return path


def plan(nmt: Nmt, *arguments: object) -> dict[str, Any]:
    status, out, err = nmt("plan", *arguments, "--json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_without_prepared_text_the_hint_has_the_overrides(recipe: Path, nmt: Nmt) -> None:
    status, _, err = nmt("plan", recipe, "--seconds", 0, "seed=7", 'evaluate.metrics=["chrf"]')
    assert status == 0
    assert f"nmt prepare {recipe} seed=7 'evaluate.metrics=[\"chrf\"]', then rerun" in " ".join(err.split())


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("train.max_epochs=2", "train.shapes=fixed")])
def test_counts_and_work_are_those_of_the_run(
    recipe: Path, tmp_path: Path, nmt: Nmt, overrides: tuple[str, ...]
) -> None:
    assert nmt("prepare", recipe)[0] == 0
    found = plan(nmt, recipe, *overrides, "--seconds", 0.05)
    assert nmt("train", recipe, *overrides)[0] == 0
    (*_, last) = list_checkpoints(tmp_path / "run")
    state = TrainState.load(last)
    text, work, speed = found["text"], found["work"], found["speed"]
    assert (text["updates"], text["tgt_tokens"]) == (state.step, state.tgt_tokens)
    assert text["epochs"] == pytest.approx(state.epochs)
    assert text["train_pairs"] == len(PairStore(tmp_path / "run" / "data", "train"))
    assert work[0]["micro_batches"] == state.workload["micro_batches"]
    assert work[0]["useful"] == state.workload["useful"]
    assert [one["processes"] for one in work] == [1, 2, 4, 8]
    saved = load_checkpoint(last)
    tensors = [*saved.model.values(), *saved.optimizer.values()]
    assert found["checkpoint"] == sum(4 * tensor.numel() for tensor in tensors if tensor.ndim)
    assert 0 <= speed["low"] <= speed["seconds"] <= speed["high"]
    assert speed["memory"] > 12 * found["parameters"], "gradients and Adam's two moments in fp32"
    assert (speed["validations"], speed["processes"]) == (-(-state.step // 10), 1)


@pytest.mark.slow
def test_the_validation_of_the_start_model_is_counted(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    assert nmt("train", recipe, "train.max_steps=1")[0] == 0
    tuned = (recipe, "name=tuned", f"run_dir={tmp_path / 'tuned'}", f"train.start_from={tmp_path / 'run'}")
    assert nmt("prepare", *tuned)[0] == 0
    speed = plan(nmt, *tuned, "--seconds", 0.1)["speed"]
    err = nmt("train", *tuned)[2]
    assert speed["validations"] == sum("validation loss" in line for line in err.splitlines()) == 4


@pytest.mark.slow
def test_time_has_an_interval(recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nmt("prepare", recipe)[0] == 0
    costs = itertools.chain([9.0, 9.0], range(1, 7))  # the first two updates are not measured
    monkeypatch.setattr(TrainingBench, "run", lambda bench, updates: Repetition(next(costs), 10, 10, 1, 0))
    found = plan(nmt, recipe)
    tokens, speed = found["text"]["tgt_tokens"], found["speed"]
    half = 2.570582 * 1.870829 / 6**0.5  # Student's t with 5 degrees of freedom; standard deviation of 1 to 6
    expected = [tokens / 10 * seconds for seconds in (3.5 - half, 3.5, 3.5 + half)]
    assert [speed[name] for name in ("low", "seconds", "high")] == pytest.approx(expected, rel=1e-5)
    assert speed["tgt_tokens_per_second"] == pytest.approx(10 / 3.5)


@pytest.mark.slow
def test_without_prepared_text_the_updates_are_a_maximum(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    status, out, err = nmt("plan", recipe)
    assert status == 0 and "updates  at most 25" in out and "training time" not in out
    assert f"nmt prepare {recipe}, then rerun this command" in err
    assert not (tmp_path / "run").exists()
    assert nmt("prepare", recipe)[0] == 0
    assert plan(nmt, recipe, "data.max_tokens=40")["text"] is None


@pytest.mark.slow
def test_an_unknown_vocabulary_is_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    """The characters, and the brackets of trees, are known only when the text is prepared."""
    trees = f"data.train=[{{kind='trees', path='{tmp_path / 'a.trees'}'}}]"
    separate = ("tokenizer.joint=false", "model.tied_embeddings='decoder'")
    warning = "the vocabulary is unknown without prepared text; model and disk sizes assume tokenizer.vocab_size"
    for options, is_unknown in (
        (["tokenizer.algorithm=char"], True),
        ([trees, *separate], True),
        ([trees], False),
        (separate, False),
        (["tokenizer.algorithm=byte"], False),
    ):
        status, _, err = nmt("plan", recipe, "--json", *options)
        assert status == 0
        assert (warning in " ".join(err.split())) == is_unknown


def test_a_missing_file_of_the_text_is_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    changes = ("data.root=nowhere", "data.train=[{kind='text', src='a.en', tgt='a.de'}]")
    status, out, err = nmt("plan", recipe, *changes)
    assert status == 0 and "updates  at most 25" in out
    (line,) = err.splitlines()
    path = Path("nowhere/a.en").absolute()
    assert f"cannot read {path}: No such file; a.en is relative to data.root, which is nowhere; correct" in line
    assert "nmt prepare" not in err


@pytest.mark.slow
def test_the_forecast_is_saved_and_printed_with_notes(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    assert nmt("prepare", recipe)[0] == 0
    options = ("train.patience=1", "train.micro_batches=4", "train.subword_sampling=0.1")
    status, out, err = nmt("plan", recipe, "--seconds", 0, *options)
    assert status == 0 and err.strip().endswith(f"wrote {tmp_path / 'run' / 'plan.json'}")
    assert not (tmp_path / "run" / "data" / "epochs").exists()
    assert f"{'processes':27}  1, 2, 4\n" in out
    assert "--processes 8 is left out, because train.micro_batches (4) is not a multiple of it" in err
    assert "train.patience may end the run earlier" in out and "sampled text has more tokens" in out
    assert "load balance needs" not in out
    _, out, _ = nmt("plan", recipe, "--seconds", 0, "train.micro_batch_tokens=auto")
    assert "The load balance needs a measurement (--seconds)" in out
    _, out, _ = nmt("plan", recipe, "--seconds", 0, "train.max_minutes=1", "train.patience=1")
    assert "train.patience or train.max_minutes may end the run earlier" in out
    forecast = read_forecast(tmp_path / "run")
    assert forecast is not None and forecast.text is not None and forecast.text.updates == 25
    assert read_forecast(write_forecast(forecast, tmp_path).parent) == forecast
    speed = SpeedForecast("cpu", "fp32", 1, 400, 30, 9.0, 8.0, 7.0, 9.0, 1, 2.0, None, None)
    measured = replace(forecast, speed=speed)
    write_forecast(measured, tmp_path)
    assert with_earlier_speed(forecast, tmp_path) == measured
    for other in (
        replace(forecast, options="seed = 2"),
        replace(forecast, text=replace(forecast.text, train_pairs=forecast.text.train_pairs + 1)),
    ):
        assert with_earlier_speed(other, tmp_path) == other


@pytest.mark.slow
def test_a_forecast_without_measurement_has_the_earlier_speed(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    assert nmt("prepare", recipe)[0] == 0
    measured = plan(nmt, recipe, "--seconds", 0.05)
    assert measured["speed"] is not None
    assert plan(nmt, recipe, "--seconds", 0)["speed"] == measured["speed"]
    saved = read_forecast(tmp_path / "run")
    assert saved is not None and saved.speed == SpeedForecast(**measured["speed"])
    assert plan(nmt, recipe, "--seconds", 0, "seed=7")["speed"] is None


@pytest.mark.parametrize("content", ['{"parameters": 1}', "[]", "", None])
def test_a_forecast_of_another_version_is_reported(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"{tmp_path / 'plan.json'} is damaged or from another version of nmt; it is ignored\n"
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    assert read_forecast(tmp_path) is None
    assert capsys.readouterr().err == ("" if content is None else message)


def test_invalid_values_are_usage_errors(recipe: Path, nmt: Nmt) -> None:
    for wrong in ("0", "1,x", "", "2,100000"):
        status, _, err = nmt("plan", recipe, "--processes", wrong)
        assert status == 2 and one_line(err).startswith(
            "--processes must be numbers from 1 to 4096, such as 1,2,4, got"
        )
    assert [nmt("plan", recipe, "--seconds", seconds)[0] for seconds in (-1, "inf", "nan")] == [2, 2, 2]


@pytest.mark.slow
def test_plan_check_forecasts_and_executes_the_same_run(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_process(*arguments: object) -> str:
        status, out, err = nmt(*arguments)
        assert status == 0, err
        return out

    monkeypatch.setattr(plan_check, "nmt", in_process)
    monkeypatch.setattr(plan_check, "TRIAL_SECONDS", 0.05)
    monkeypatch.setattr(plan_check, "TRIAL_UPDATES", 5)
    overrides = ("train.batch_tokens=300",)
    report = plan_check.check(str(recipe), overrides, tmp_path / "check", seconds=0.1, measurement=0.05)
    forecast, training = report["forecast"], report["training"]
    assert forecast["options"] == report["recipe"]
    assert forecast["text"]["tgt_tokens"] == training["tgt_tokens"]
    assert forecast["text"]["updates"] == training["steps"]
    line, ratio = plan_check.row("small", report)
    assert line.startswith(f"| small | {training['steps']:,} | ")
    assert ratio == pytest.approx(forecast["speed"]["seconds"] / training["seconds"])


def test_plan_check_counts_accurate_forecasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = [{"seconds": seconds, "low": 50.0, "high": 70.0} for seconds in (54.5, 66.5)]
    reports = [{"forecast": {"speed": speed}, "training": {"seconds": 60.0, "steps": 1200}} for speed in speeds]
    monkeypatch.setattr(plan_check, "check", Mock(side_effect=reports * 5))
    assert plan_check.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| toy | 1,200 | 54.5 (50.0 to 70.0) | 60.0 | 0.908 |"
    assert lines[-1] == "within 10% in 5 of 10 runs"
    monkeypatch.setattr(plan_check, "check", Mock(side_effect=reports))
    assert plan_check.main(["--only", "toy"]) == 0


@pytest.mark.slow
def test_plan_check_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_check.main(["--only", "toys"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plan-check: --only 'toys': there is no such run; runs: toy;")
    with pytest.raises(UserError, match=r"nmt prepare failed with exit status 2: .*missing\.toml"):
        plan_check.nmt("prepare", "missing.toml")
    with pytest.raises(SystemExit, match="2"):
        plan_check.main(["--data", "nowhere"])
    assert "--data nowhere is not a folder" in capsys.readouterr().err


def test_recipes_of_plan_check_are_valid(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        runs = plan_check.runs_of(data, ())
        assert len(runs) == 10
        recipes = [load_recipe(find_recipe(name), [*more, *plan_check.SHORT]) for name, *more in runs.values()]
        assert len({recipe.model_dump_json() for recipe in recipes}) == 10


@pytest.mark.slow
def test_prepare_is_not_suggested_for_a_run_with_changed_text(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    """`nmt prepare` would fail too."""
    changes = [f"data.train=[{{kind='tsv', path='{tmp_path}/train.tsv'}}]"]
    lines = [f"the dog sees {n} cats\tder Hund sieht {n} Katzen\n" for n in range(300)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    status, _, err = nmt("train", recipe, *changes, "train.max_steps=1")  # with the recipe's number, it is not finished
    assert status == 0, err
    (tmp_path / "train.tsv").write_text("".join(lines[1:]))
    status, _, err = nmt("plan", recipe, *changes)
    assert status == 0
    assert f"cannot be resumed: {tmp_path}/train.tsv has changed since" in err
    assert "nmt prepare" not in err
    status, _, err = nmt("plan", recipe, *changes, "model.d_ff=64")
    assert status == 0 and "holds a run with another recipe: model.d_ff is 64, was 32" in err


@pytest.mark.slow
def test_a_run_that_cannot_be_resumed_with_the_recipe_is_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    recipe.write_text(
        recipe.read_text().replace("max_steps = 25", 'max_steps = 3\nschedule = "cosine"\nwarmup_steps = 1')
    )
    assert nmt("train", recipe)[0] == 0
    forecast = tmp_path / "run" / "plan.json"
    for changes, reason in (
        (["model.d_ff=64"], "holds a run with another recipe: model.d_ff is 64, was 32"),
        (["train.learning_rate=9"], "is already trained, and train.learning_rate is 9.0, was 1.0"),
        (["train.max_steps=40"], "the learning rate of update 4 would be "),
        (["train.max_steps=40", "train.schedule_start=3"], ""),
    ):
        status, out, err = nmt("plan", recipe, "--seconds", 0, *changes)
        assert status == 0 and "updates" in out
        if reason:
            (line,) = err.splitlines()
            assert line.startswith("warning: nmt train rejects this recipe, so the forecast is not saved: ")
            assert reason in line
        assert forecast.exists() == (not reason)
        forecast.unlink(missing_ok=True)
    status, _, err = nmt("plan", recipe, "--seconds", 0, "train.validate_every=5")
    assert status == 0 and err.endswith(f"{tmp_path / 'run'} is finished at step 3, so the forecast is not saved\n")
    assert not forecast.exists()


@pytest.mark.slow
def test_changed_word_alignments_are_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "train.tsv").write_text(
        "".join(f"the dog sees {n} cats\tder Hund sieht {n} Katzen\n" for n in range(300))
    )
    links = tmp_path / "links"
    links.write_text("0-0 1-1 2-2 3-3 4-4\n" * 300)
    corpus = f"data.train=[{{kind='tsv', path='{tmp_path}/train.tsv', alignment='{links}'}}]"
    changes = [corpus, "train.guided_alignment=true"]
    assert nmt("train", recipe, *changes, "train.max_steps=1")[0] == 0
    links.write_text("0-0\n" * 300)
    status, _, err = nmt("plan", recipe, "--seconds", 0, *changes, "train.max_steps=2")
    assert status == 0, err
    assert "nmt train rejects this recipe" in err and "data.train.0.alignment has changed since" in err
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.slow
def test_text_that_is_not_that_of_the_checkpoints_is_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    """The tokenizer is given, so `nmt prepare` does not notice changed text after the prepared text is deleted."""
    lines = [f"the dog sees {n} cats\tder Hund sieht {n} Katzen\n" for n in range(300)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    changes = [f"data.train=[{{kind='tsv', path='{tmp_path}/train.tsv'}}]", "train.max_steps=1"]
    assert nmt("train", recipe, *changes)[0] == 0
    (tmp_path / "run").rename(tmp_path / "first")
    changes.append(f"tokenizer={{start_from='{tmp_path}/first'}}")
    assert nmt("train", recipe, *changes)[0] == 0
    shutil.rmtree(tmp_path / "run" / "data")
    (tmp_path / "train.tsv").write_text("".join(lines[1:]))
    assert nmt("prepare", recipe, *changes)[0] == 0
    status, _, err = nmt("plan", recipe, "--seconds", 0, *changes[:1], "train.max_steps=2", changes[2])
    assert status == 0, err
    assert "nmt train rejects this recipe" in err and "its prepared training text is not that of the checkpoint" in err
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_damaged_prepared_text_is_refused(seconds: float, recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    assert nmt("prepare", recipe)[0] == 0
    tokens = tmp_path / "run" / "data" / "train.tgt.tokens.npy"
    content = bytearray(tokens.read_bytes())
    content[-1] ^= 1
    tokens.write_bytes(content)
    before = sorted((tmp_path / "run").iterdir())
    status, out, err = nmt("plan", recipe, "--seconds", seconds)
    assert (status, out) == (1, "")
    assert f"nmt: {tokens} is damaged: its SHA-256 is not the one in prepare.json; " in err
    assert sorted((tmp_path / "run").iterdir()) == before


@pytest.mark.parametrize(("processes", "words"), [(1, "5.0 GB at most, in"), (2, "5.0 GB per process at most, in")])
def test_memory_is_that_of_a_process(processes: int, words: str) -> None:
    speed = SpeedForecast(
        device="cpu",
        precision="fp32",
        processes=processes,
        micro_batch_tokens=500,
        measured_updates=60,
        tgt_tokens_per_second=2e3,
        seconds=9.0,
        low=8.0,
        high=10.0,
        validations=3,
        validation_seconds=1.0,
        memory=5 * 10**9,
        available=None,
    )
    assert dict(speed_rows(speed))["memory"].startswith(words)
