"""Tables of the results of a sweep."""

import json
import math
from pathlib import Path

import pytest

from nmt.data import test_sets as sets
from nmt.evaluate.metrics import make_scorer
from nmt.experiments import results
from nmt.experiments.intervals import Estimate
from nmt.experiments.results import TestResult, VariantResult, read_results, result_tables
from nmt.experiments.sweep import make_sweep
from nmt.storage.run_folder import checkpoint_directory

RECIPE = """
name = "tiny"
src_lang = "en"
tgt_lang = "de"
data = { train = [{ kind = "toy" }], valid = [{ kind = "toy", split = "valid" }] }
"""


@pytest.mark.parametrize(
    ("half_width", "verdict", "num_notes"),
    [(math.nan, "", 0), (0.5, "significant", 2), (2.0, "significant", 2), (2.5, "not significant", 2)],
)
def test_a_difference_is_significant_if_its_interval_excludes_zero(
    half_width: float, verdict: str, num_notes: int
) -> None:
    mean, difference = Estimate(30.0, half_width), Estimate(2.1, half_width)
    variants = tuple(
        VariantResult(name, 1_000, (1,), (None,), (30.0,), math.nan, mean, found)
        for name, found in (("base", None), ("other", difference))
    )
    (table,) = result_tables([TestResult("news", "bleu", "BLEU|...", "leaks", variants)])
    assert [row[-1] for row in table.rows] == ["", verdict]
    assert len(table.notes) == 1 + num_notes
    (table,) = result_tables([TestResult("news", "bleu", "BLEU|...", "leaks", variants[:1])])
    assert not any(note.startswith("Significant") for note in table.notes)


def test_the_title_says_that_lower_is_better() -> None:
    found = [TestResult("news", name, "", "", ()) for name in ("bleu", "ter")]
    assert [table.title for table in result_tables(found)] == ["news: bleu", "news: ter (lower is better)"]


@pytest.mark.parametrize(
    ("matches", "stated"),
    [
        ([(0, 0), (0, 0)], "none of 60."),
        ([None, None], "unknown."),
        ([(12, 8), (12, 8)], "12 exact and 8 near of 60; the report of the run has scores without them."),
        (
            [(12, 0), (0, 0)],
            "12 exact and 0 near of 60; the report of the run has scores without them (tiny, seed 1); none of 60 "
            "(tiny, seed 2).",
        ),
    ],
)
def test_the_numbers_of_sentences_in_the_training_text_are_stated(
    matches: list[tuple[int, int] | None], stated: str, tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    runs = make_sweep(tmp_path / "tiny.toml", 2, (), ()).runs(tmp_path / "out")
    for run, found in zip(runs, matches, strict=True):
        leaks = None if found is None else {"sentences": 60, "any": {"exact": found[0], "near": found[1]}}
        run.recipe.directory.mkdir(parents=True)
        report = {"tests": [{"name": "news", "leaks": leaks}]}
        (run.recipe.directory / "report.json").write_text(json.dumps(report))
    assert results.describe_leaks("news", runs) == f"Sentences with a match in the training text: {stated}"


def test_runs_that_the_table_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    runs = make_sweep(tmp_path / "tiny.toml", 1, (), ["model.d_ff=32,64"]).runs(tmp_path)
    monkeypatch.setattr(results, "is_complete", lambda run: run is runs[0])
    assert read_results(runs) == []
    warning = "are incomplete or their options, text or outputs changed: d_ff=64, seed 1"
    assert warning in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "noted"),
    [("cosine", "train.max_steps, train.clip_norm changed"), ("constant", "train.clip_norm changed")],
)
def test_only_changes_that_affect_the_result_are_noted(
    schedule: str, noted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--jobs sets the threads of each run. Without decay, max_steps only ends the training."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    (run,) = make_sweep(tmp_path / "tiny.toml", 1, [f"train.schedule={schedule}"], ()).runs(tmp_path / "out")
    run.recipe.directory.mkdir(parents=True)
    monkeypatch.setattr(results, "is_complete", lambda run: True)
    for options, expected in ((["threads"], []), (["threads", "max_steps", "clip_norm"], [noted])):
        changes = [{"option": f"train.{name}", "step": 2, "before": 0, "now": 1} for name in options]
        report = {"training": {"valid_nll": 1.0}, "changes": changes}
        (run.recipe.directory / "report.json").write_text(json.dumps(report))
        notes = list(results.notes_on_training([run]))
        assert [note.partition(": ")[2].partition(" during")[0] for note in notes] == expected


def test_a_damaged_checkpoint_does_not_prevent_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    (run,) = make_sweep(tmp_path / "tiny.toml", 1, (), ()).runs(tmp_path / "out")
    checkpoint_directory(run.recipe.directory, 1).mkdir(parents=True)
    (run.recipe.directory / "report.json").write_text(json.dumps({"training": {"valid_nll": 1.0}}))
    monkeypatch.setattr(results, "is_complete", lambda run: True)
    assert list(results.notes_on_training([run])) == []


def read_variants(missing: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[VariantResult, ...]:
    """Read the results of three variants with two seeds; each variant has one more wrong translation.

    missing: indices of the incomplete runs; 0 and 3 are those of the first variant
    """
    (tmp_path / "tiny.toml").write_text(RECIPE)
    test = "data.test={ toy = { kind = 'toy', split = 'test', pairs = 9 } }"
    runs = make_sweep(tmp_path / "tiny.toml", 2, [test], ["model.d_ff=32,64,128"]).runs(tmp_path)
    for index, run in enumerate(runs):
        folder = run.recipe.directory
        (folder / "translations").mkdir(parents=True)
        num_wrong = index % 3
        lines = ["x"] * num_wrong + sets.test_sets(run.recipe)["toy"].ref[num_wrong:]
        (folder / "translations" / "toy.de").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (folder / "report.json").write_text(json.dumps({"parameters": 1, "training": {}, "tests": []}))
    monkeypatch.setattr(results, "_scorer", lambda *_: make_scorer("chrf", tgt_lang="de"))
    monkeypatch.setattr(results, "is_complete", lambda run: run not in [runs[index] for index in missing])
    (found,) = read_results(runs)
    return found.variants


def test_differences_are_from_the_first_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = read_variants([0], tmp_path, monkeypatch)
    assert [variant.name for variant in (first, *others)] == ["d_ff=32", "d_ff=64", "d_ff=128"]
    assert first.difference is None
    for variant in others:
        assert variant.difference is not None
        assert variant.difference.value == pytest.approx(variant.mean.value - first.mean.value)
        assert variant.difference.value < 0


def test_without_the_first_variant_there_are_no_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = read_variants([0, 3], tmp_path, monkeypatch)
    assert [(variant.name, variant.difference) for variant in variants] == [("d_ff=64", None), ("d_ff=128", None)]
