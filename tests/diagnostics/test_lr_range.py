"""Learning rate range test: rates, losses of plain updates, and the summary of a curve."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.data.prepare import load_prepared, prepare
from nmt.diagnostics.lr_range import RatePoint, range_rates, run_range_test, smooth, summarize_range
from nmt.processes.distributed import start_world
from nmt.recipe import load_recipe
from nmt.train.trainer import build_trainer
from nmt.train.update import Updater, UpdateResult
from tests.calling import Nmt, one_line
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "toy", pairs = 100 }]
valid = [{ kind = "toy", split = "valid", pairs = 10 }]
""",
    """
batch_tokens = 400
micro_batch_tokens = 200
precision = "fp32"
""",
    top='run_dir = "FOLDER/run"',
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose text is prepared."""
    folder = tmp_path_factory.mktemp("rates")
    path = folder / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)))
    prepare(load_recipe(path))
    return path


def points(*smoothed: float) -> list[RatePoint]:
    rates = range_rates(1e-3, 1.0, len(smoothed))
    return [RatePoint(rate, loss, loss) for rate, loss in zip(rates, smoothed, strict=True)]


def test_rates_are_geometric() -> None:
    assert range_rates(1e-4, 1.0, 5) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


def test_summary_of_a_curve() -> None:
    curve = points(9.0, 9.0, 8.9, 7.0, 6.5, 6.4, 6.6, 9.5)
    found = summarize_range(curve, diverged=True)
    assert found.steepest == curve[3].learning_rate  # 8.9 to 6.5 around it
    assert found.lowest == curve[5].learning_rate
    rising = points(5.0, 6.0, 7.0)
    assert summarize_range(rising, diverged=True).steepest == rising[0].learning_rate
    assert math.isnan(summarize_range([], diverged=True).lowest)


def test_smoothing_is_a_mean_with_weights_by_distance() -> None:
    losses, decay = [5.0, 3.0, 4.0, 5.0], math.exp(-1 / 2)
    for index, mean in enumerate(smooth([*losses[:3], 90.0], 40)):  # a loss above the first counts as the first
        weights = [decay ** abs(index - other) for other in range(4)]
        assert mean == pytest.approx(sum(map(math.prod, zip(weights, losses, strict=True))) / sum(weights))


def test_rates_do_not_depend_on_the_number_of_updates() -> None:
    """A mean of the latest losses would lag behind: by 3 decades with 20 updates, and 0.3 with 200."""

    def loss_at(rate: float) -> float:  # falls most steeply at 1e-3, lowest at 1.5e-2
        return 9.0 - 3.5 / (1.0 + math.pow(1e-3 / rate, 1.5)) + math.pow(rate / 0.1, 1.5)

    for updates in (20, 60, 200, 2_000):
        rates = range_rates(1e-6, 1.0, updates)
        losses = [loss_at(rate) for rate in rates]
        smoothed = smooth(losses, updates)
        found = summarize_range([RatePoint(*values) for values in zip(rates, losses, smoothed, strict=True)], False)
        assert abs(math.log10(found.steepest / 1e-3)) < 0.25, updates
        assert abs(math.log10(found.lowest / 1.5e-2)) < 0.35, updates
        jump = [loss + 20.0 * (rate > 0.05) for rate, loss in zip(rates, losses, strict=True)]
        points_of_jump = [RatePoint(*values) for values in zip(rates, jump, smooth(jump, updates), strict=True)]
        assert abs(math.log10(summarize_range(points_of_jump, True).lowest / 1.5e-2)) < 0.5, updates


@pytest.mark.slow
def test_losses_equal_those_of_plain_training(recipe: Path, tmp_path: Path) -> None:
    """Plain training with a warm-up has the same first rate, 1e-3. The second rate only affects later losses."""
    loaded = load_recipe(recipe)
    prepared = load_prepared(loaded.data_directory)
    with start_world("cpu") as world:
        found = run_range_test(loaded, prepared, world, 1e-3, 1e-2, 2)
        options = {"schedule": "linear", "warmup_steps": 10, "learning_rate": 1e-2, "max_steps": 10**6}
        train = loaded.train.model_copy(update=options)  # the first rate is 1e-3
        other = build_trainer(loaded.model_copy(update={"run_dir": tmp_path / "o", "train": train}), prepared, world)
        other.loss.train()
        with other.batches() as batches:
            updates = [next(batches) for _ in range(2)]
            losses = [float(other.update(update).loss) / update.tgt_tokens for update in updates]
    assert [point.loss for point in found.points] == losses
    assert [point.smoothed for point in found.points] == smooth(losses, 2)


@pytest.mark.slow
def test_an_overflow_of_the_loss_scale_is_not_divergence(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[bool] = []
    update = Updater.__call__

    def record_skipped(self: Updater, *arguments: Any) -> UpdateResult:
        result = update(self, *arguments)
        skipped.append(bool(result.skipped))
        return result

    monkeypatch.setattr(Updater, "__call__", record_skipped)
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=2.0**40))
    loaded = load_recipe(recipe, ["train.precision=fp16"])
    with start_world("cpu") as world:
        found = run_range_test(loaded, load_prepared(loaded.data_directory), world, 1e-4, 1e-3, 4)
    assert any(skipped)
    assert len(found.points) == 4 and not found.diverged


@pytest.mark.slow
def test_command(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    plot = tmp_path / "rates.svg"
    before = sorted(recipe.parent.rglob("*"))
    status, out, err = nmt("lr-range", recipe, "--updates", 40, "--highest", 10, "-o", plot, "--json")
    assert status == 0 and f"wrote {plot}" in err
    found = json.loads(out)
    assert found["diverged"] and found["points"][0]["learning_rate"] == pytest.approx(1e-6)
    assert found["points"][0]["learning_rate"] < found["steepest"] <= found["lowest"] < 10
    assert "<svg" in plot.read_text()
    assert sorted(recipe.parent.rglob("*")) == before and list(tmp_path.iterdir()) == [plot]
    status, out, _ = nmt("lr-range", recipe, "--updates", 20, "--highest", 1e-5, "-o", plot, "train.max_steps=5")
    assert status == 0 and "20, 1e-06 to 1e-05" in out and "no; raise --highest" in out
    assert "the peak of noam with train.learning_rate=" in out


def test_an_infinite_loss_at_the_first_rate_is_an_error_without_json(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.cli.lr_range.run_range_test", lambda *_: summarize_range([], diverged=True))
    status, out, err = nmt("lr-range", recipe, "--json")
    assert (status, out) == (1, "") and "the loss is not finite at the first rate; --lowest must be lower" in err


def test_the_text_must_be_that_of_the_recipe(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    options = (recipe, f"run_dir={tmp_path / 'run'}")
    assert nmt("prepare", *options)[0] == 0
    test = ("lr-range", *options, "--updates", "20", "-o", tmp_path / "out.png")
    status, _, err = nmt(*test, "data.max_tokens=50")
    assert status == 1
    assert "was prepared from other text or with other options" in err
    tokens = tmp_path / "run" / "data" / "train.src.tokens.npy"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status, _, err = nmt(*test)
    assert status == 1
    assert "train.src.tokens.npy is damaged" in err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.slow
def test_the_word_alignments_must_be_those_of_the_recipe(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"the dog sees {n}\tder Hund sieht {n}\n" for n in range(300)))
    (tmp_path / "links").write_text("0-0 1-1 2-2 3-3\n" * 300)
    corpus = f"data.train=[{{kind='tsv', path='{tmp_path}/train.tsv', alignment='{tmp_path}/links'}}]"
    options = (recipe, f"run_dir={tmp_path / 'run'}", corpus, "tokenizer.vocab_size=300", "train.guided_alignment=true")
    assert nmt("prepare", *options)[0] == 0
    (tmp_path / "links").write_text("0-0\n" * 300)
    status, _, err = nmt("lr-range", *options, "-o", tmp_path / "rates.png", "--updates", 20)
    assert status == 1
    assert "was prepared from other text or with other options" in err


def test_wrong_rates_missing_text_and_wrong_outputs_are_errors(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    for highest in ("0.1", "inf"):
        status, _, err = nmt("lr-range", recipe, "--lowest", 1, "--highest", highest)
        assert status == 2
        assert one_line(err) == f"--lowest must be positive and below a finite --highest, got 1 and {highest}"
    status, _, err = nmt("lr-range", recipe, f"run_dir={tmp_path / 'none'}", "-o", tmp_path / "a.png")
    assert status == 1 and "or run `nmt prepare` with its recipe" in one_line(err)
    status, out, err = nmt("lr-range", recipe, "-o", tmp_path / "a.txt")
    assert (status, out) == (2, "") and "a.txt: the name needs an extension such as .png" in one_line(err)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG of another program")
    status, out, err = nmt("lr-range", recipe, "-o", tmp_path / "photo.png")
    assert (status, out) == (1, "") and "photo.png was not written by this command" in one_line(err)
