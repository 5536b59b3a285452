"""Reports count leaked test sentences and score the others separately."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from nmt.evaluate.metrics import score_corpus
from nmt.pipeline import averaging, reporting
from nmt.recipe import Recipe
from tests.calling import Nmt
from tests.recipes import SMALL_MODEL
from tests.train.small_run import RECIPE

pytestmark = pytest.mark.usefixtures("no_curves")

OPTIONS = ['evaluate.metrics=["bleu", "chrf"]']


def write(folder: Path, name: str, numbers: Iterable[int]) -> None:
    numbers = list(numbers)
    (folder / f"{name}.en").write_text("".join(f"the cat sees {n} mice\n" for n in numbers))
    (folder / f"{name}.de").write_text("".join(f"die Katze sieht {n} Mäuse\n" for n in numbers))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """200 training pairs and 12 test pairs: one exact match, one near match, one of a source, one of a reference."""
    write(tmp_path, "train", range(200))
    write(tmp_path, "news", [7, *range(1_000, 1_011)])
    for side, near, alone in (("en", "The cat sees 8 mice!", 2), ("de", "Die Katze sieht 8 Mäuse.", 3)):
        lines = (tmp_path / f"news.{side}").read_text().splitlines()
        lines[1] = near
        lines[alone] = (tmp_path / f"train.{side}").read_text().splitlines()[20]
        (tmp_path / f"news.{side}").write_text("".join(f"{line}\n" for line in lines))
    write(tmp_path, "valid", [3, 2_000, 2_001])
    path = tmp_path / "small.toml"
    corpora = RECIPE.replace("FOLDER", str(tmp_path)).replace(
        'valid = [{ kind = "text", src = "train.en", tgt = "train.de" }]',
        'valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]',
    )
    path.write_text(corpora + SMALL_MODEL)
    return path


@pytest.mark.slow
def test_a_report_has_leaks_and_the_score_of_clean_sentences(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    status, out, err = nmt("run", recipe, f"run_dir={run}", *OPTIONS)
    assert status == 0, err
    assert "data.test.news: exact matches in the training text for 3 of 12 sentences, near matches for 1" in err
    report = json.loads((run / "report.json").read_text())
    (test,) = report["tests"]
    assert test["leaks"] == {
        "sentences": 12,
        "source": {"exact": 2, "near": 1},
        "reference": {"exact": 2, "near": 1},
        "both": {"exact": 1, "near": 1},
        "any": {"exact": 3, "near": 1},
    }
    assert report["data"]["valid_leaks"] == 1
    lines = (run / "translations" / "news.de").read_text().splitlines()
    references = (tmp_path / "news.de").read_text().splitlines()
    expected = score_corpus(lines[4:], [references[4:]], ["bleu", "chrf"], tgt_lang="de")
    assert [(score["value"], score["signature"]) for score in test["clean_scores"]] == [
        (score.value, score.signature) for score in expected
    ]
    first_page, _, _ = out.partition("## Training")
    assert "| match in the training text | source | reference | both, in one pair | any of these |" in first_page
    assert "| exact | 2 | 2 | 1 | 3 |" in first_page
    assert "| near | 1 | 1 | 1 | 1 |" in first_page
    assert "| metric | all 12 | clean 8 | signature |" in first_page
    assert "| validation pairs | 3, 1 of them with a match in the training text |" in out


@pytest.mark.slow
def test_the_training_text_is_searched_again_only_for_a_changed_test_set_or_a_damaged_result(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    options = [f"run_dir={run}", *OPTIONS]
    reads: list[int] = []
    monkeypatch.setattr("nmt.diagnostics.leaks.search_training_text", lambda recipe, finder: reads.append(1))
    assert nmt("prepare", recipe, *options)[0] == 0
    written = (run / "leaks.json").read_text()
    assert {found["name"]: len(found["leaks"]) for found in json.loads(written)["sets"]} == {
        "data.test.news": 4,
        "data.valid.0": 1,
    }
    assert nmt("run", recipe, *options)[0] == 0
    assert reads == [] and (run / "leaks.json").read_text() == written
    monkeypatch.undo()
    for damaged in (written[:100], written.replace('"sentences": ', '"sentences": 9')):
        (run / "leaks.json").write_text(damaged)
        assert nmt("prepare", recipe, *options)[0] == 0
        assert (run / "leaks.json").read_text() == written
    write(tmp_path, "news", [4, 3_000])
    _, out, err = nmt("run", recipe, *options)
    assert "data.test.news: exact matches in the training text for 1 of 2 sentences, near matches for 0" in err
    assert "| exact | 1 | 1 | 1 | 1 |" in out


@pytest.mark.slow
def test_a_test_set_without_leaks_or_without_clean_sentences_gets_one_score(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    write(tmp_path, "news", [3_000, 3_001])
    command = ("run", recipe, f"run_dir={tmp_path / 'run'}", *OPTIONS)
    status, out, err = nmt(*command)
    assert status == 0 and "data.test.news: exact matches" not in err
    assert "No sentence has an exact or near match in the training text" in out
    assert "| metric | score | signature |" in out
    write(tmp_path, "news", [3, 4])
    status, out, _ = nmt(*command)
    assert status == 0 and "| exact | 2 | 2 | 2 | 2 |" in out
    assert "| metric | score | signature |" in out


@pytest.mark.slow
def test_leaks_are_those_of_a_test_set_that_changed_during_training(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_model = averaging.update_model

    def change_test_set(recipe: Recipe) -> list[Path]:
        write(tmp_path, "news", [*range(1_000, 1_005), 7, 8])
        return update_model(recipe)

    monkeypatch.setattr(reporting, "update_model", change_test_set)
    status, out, err = nmt("run", recipe, f"run_dir={tmp_path / 'run'}", *OPTIONS)
    assert status == 0, err
    assert "data.test.news: exact matches in the training text for 2 of 7 sentences, near matches for 0" in err
    assert "| exact | 2 | 2 | 2 | 2 |" in out
    assert "| metric | all 7 | clean 5 | signature |" in out


@pytest.mark.slow
def test_leaks_are_unknown_without_the_training_text_and_the_run_continues(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    options = [f"run_dir={tmp_path / 'run'}", *OPTIONS]
    assert nmt("prepare", recipe, *options)[0] == 0
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").unlink()
    status, out, err = nmt("run", recipe, *options)
    assert status == 0, err
    assert "| exact | 2 | 2 | 1 | 3 |" in out  # from the earlier search
    write(tmp_path, "news", [4, 3_000])
    status, out, err = nmt("run", recipe, *options)
    assert status == 0
    assert "warning: skipping the search for test sentences in the training text: cannot read" in err
    assert f"; removing {tmp_path / 'run' / 'leaks.json'}, the result of an earlier search" in err
    assert "Overlap with the training text is unknown" in out
    assert not (tmp_path / "run" / "leaks.json").exists()


def test_a_test_set_that_cannot_be_read_does_not_stop_preparation(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    """`nmt prepare` and `nmt train` need no test sets, but `nmt run` does."""
    (tmp_path / "news.de").unlink()
    status, _, err = nmt("prepare", recipe, f"run_dir={tmp_path / 'run'}")
    assert status == 0
    (warning,) = (line for line in err.splitlines() if "search for test sentences" in line)
    assert "warning: skipping the search for test sentences in the training text: " in warning
    assert "news.de: No such file" in warning and warning.endswith("`nmt run` needs all test sets")
    status, _, err = nmt("run", recipe, f"run_dir={tmp_path / 'run'}")
    assert status == 1 and "news.de: No such file" in err
