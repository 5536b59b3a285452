"""`nmt compare` of runs: their options, scores and curves."""

import json
import shutil
from pathlib import Path

import pytest

from nmt.evaluate.metrics import score_corpus
from nmt.evaluate.translated import context_digest, references_digest, text_digest
from tests.calling import Nmt, one_line

RECIPE = """
name = "NAME"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 20 }]
[data.test.heldout]
kind = "text"
src = "test.en"
tgt = "test.de"
[data.test.EXTRA]
kind = "toy"
split = "nested"
pairs = 5
[train]
max_steps = STEPS
[evaluate]
metrics = ["chrf"]
"""
REFERENCES = ["Der Hund schläft.", "Die Katze sieht den Hund.", "Heute schläft die Katze nicht.", "Ein Hund läuft."]
TRANSLATIONS = {"a": ["Der Hund läuft.", *REFERENCES[1:]], "b": ["Der Hund.", "Die Katze.", *REFERENCES[2:]]}


@pytest.fixture
def runs(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two run directories with only the files that the comparison reads."""
    monkeypatch.chdir(tmp_path)
    Path("test.en").write_text("".join(f"{line}\n" for line in "abcd"))
    Path("test.de").write_text("".join(f"{line}\n" for line in REFERENCES))
    for steps, (name, lines) in enumerate(TRANSLATIONS.items(), start=1):
        run = tmp_path / name
        (run / "translations").mkdir(parents=True)
        text = RECIPE.replace("NAME", name).replace("STEPS", str(steps)).replace("EXTRA", f"only-{name}")
        (run / "recipe.toml").write_text(text)
        (run / "translations" / "heldout.de").write_text("".join(f"{line}\n" for line in lines))
        figures = {"train/nll": 3.0 / steps, "valid/nll": 2.0 / steps}
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps({'step': n, **figures})}\n" for n in (1, 2)))
        shutil.copytree(model, run / "model")
    return tmp_path


def test_options_and_scores_are_compared(runs: Path, nmt: Nmt) -> None:
    status, out, err = nmt("compare", "a", "b", "--resamples", 100, "--trials", 100, "--format", "json")
    assert status == 0, err
    document = json.loads(out)
    differing = {row["option"]: (row["a"], row["b"]) for row in document["options"]}
    assert differing["train.max_steps"] == ("1", "2")
    assert "data.test.only-a.kind" in differing
    assert not any(name.startswith(("name", "run_dir", "model", "data.train")) for name in differing)
    assert set(document["tests"]) == {"heldout"}  # not the test set of only one run
    (chrf,) = document["tests"]["heldout"]
    for row in chrf["systems"]:
        (expected,) = score_corpus(TRANSLATIONS[row["system"]], [REFERENCES], ["chrf"], tgt_lang="de")
        assert row["score"] == pytest.approx(expected.value)
    text = nmt("compare", "a", "b", "--metrics", "bleu,chrf,bleu,", "--resamples", 100, "--trials", 100)[1]
    assert "options that differ" in text and text.count("heldout: bleu") == 1 and "a (baseline)" in text


def test_runs_with_the_same_options_have_no_table_of_options(runs: Path, nmt: Nmt) -> None:
    before, _, rest = RECIPE.replace("STEPS", "1").partition("[data.test.EXTRA]")
    for name in TRANSLATIONS:
        (runs / name / "recipe.toml").write_text(before + rest[rest.index("[train]") :])
    few = ("--resamples", 10, "--trials", 10)
    status, out, err = nmt("compare", "a", "b", *few)
    assert status == 0, err
    assert "options that differ" not in out and "the recipes have the same options\n" in err
    assert json.loads(nmt("compare", "a", "b", *few, "--json")[1])["options"] == []


def test_metrics_that_do_not_ignore_case_are_named_for_lowercase_models(
    runs: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--metrics", "bleu,bleu-tokenized", "--resamples", 10, "--trials", 10)
    message = "bleu-tokenized of data.test.heldout does not ignore case, which lowers the score; compute bleu or"
    assert message not in nmt("compare", "a", "b", *options)[2]
    monkeypatch.setattr("nmt.text.tokenizer.Tokenizer.lowercases", lambda self: True)
    status, _, err = nmt("compare", "a", "b", *options)
    assert status == 0 and message in err and "bleu and" not in err


def test_translations_in_lower_case_give_a_hint(runs: Path, nmt: Nmt) -> None:
    out = runs / "b" / "translations" / "heldout.de"
    hint = (
        "hint: the translations of data.test.heldout by b are lowercased and the reference is not, which lowers chrf; "
    )
    assert hint not in nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)[2]
    out.write_text(out.read_text().lower())
    status, _, err = nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)
    assert status == 0 and hint in err


@pytest.mark.slow
def test_curves_of_runs_are_plotted_in_one_figure(runs: Path, nmt: Nmt) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
    status, _, err = nmt("compare", "a", "b", "--resamples", 100, "--trials", 0, "-o", "curves.png")
    assert status == 0, err
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    Path("photo.png").write_bytes(b"\x89PNG of another program")
    status, out, err = nmt("compare", "a", "b", "-o", "photo.png")
    assert (status, out) == (1, "") and "photo.png was not written by this command" in one_line(err)
    assert Path("photo.png").read_bytes() == b"\x89PNG of another program"


def test_without_a_common_test_set_the_options_are_shown(runs: Path, nmt: Nmt) -> None:
    recipe = runs / "b" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("test.de", "other.de"))
    Path("other.de").write_text("".join(f"{line}\n" for line in REFERENCES[::-1]))
    status, out, err = nmt("compare", "a", "b")
    assert (status, json.loads(nmt("compare", "a", "b", "--format", "json")[1])["tests"]) == (0, {})
    assert "train.max_steps" in out and "no test set in common" in err
    assert "data.test.heldout is left out: its text is not the same in all runs" in err


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("a", "b", "--ref", "test.de"), 2, "--ref has no effect on runs, whose recipes set it"),
        (("a", "b", "--lowercase"), 2, "--lowercase has no effect on runs"),
        (("a", "b", "--metrics", ","), 2, "--metrics is empty"),
        (("a", "a"), 2, "a is given twice"),
        (("a", "test.de"), 1, "test.de is not a run directory: it has no recipe.toml"),
        (("test.de", "test.de", "--ref", "test.de", "-o", "x.png"), 2, "-o plots the curves of runs"),
        (("a", "b", "-o", "a/metrics.jsonl"), 1, "-o a/metrics.jsonl is the input a/metrics.jsonl"),
    ],
)
def test_invalid_input_is_one_line(
    runs: Path, nmt: Nmt, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    found, out, err = nmt("compare", *arguments)
    assert (found, out) == (status, "")
    assert expected in one_line(err)


def test_the_run_of_a_classifier_is_named(runs: Path, nmt: Nmt) -> None:
    description = runs / "b" / "checkpoints" / "step-00000001" / "classifier.toml"
    description.parent.mkdir(parents=True)
    description.touch()
    status, out, err = nmt("compare", "a", "b")
    assert (status, out) == (1, "") and "b is the run of a classifier" in one_line(err)


def test_a_run_that_is_not_complete_is_named(runs: Path, nmt: Nmt) -> None:
    (runs / "b" / "translations" / "heldout.de").unlink()
    status, _, err = nmt("compare", "a", "b")
    assert status == 1 and "b/translations/heldout.de is missing; `nmt run` writes it" in one_line(err)


def test_a_changed_test_set_is_not_scored_with_earlier_translations(runs: Path, nmt: Nmt) -> None:
    for name in TRANSLATIONS:
        test = {"name": "heldout", "source": text_digest(list("abcd"))}
        (runs / name / "report.json").write_text(json.dumps({"tests": [test]}))
    assert nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)[0] == 0
    (runs / "test.en").write_text("a\nb\nc\nD\n")
    status, out, err = nmt("compare", "a", "b")
    assert (status, out) == (1, "")
    assert "data.test.heldout has changed since a/translations/heldout.de was written; restore the" in one_line(err)


def test_translations_with_the_context_of_other_documents_are_not_compared(runs: Path, nmt: Nmt) -> None:
    corpus = 'kind = "tsv"\npath = "test.tsv"\nsrc_column = 0\ntgt_column = 1\ndocument_column = 2'
    for name in TRANSLATIONS:
        recipe = (runs / name / "recipe.toml").read_text()
        recipe = recipe.replace('kind = "text"\nsrc = "test.en"\ntgt = "test.de"', corpus)
        recipe = recipe.replace("[data]\n", "[data]\ncontext = 1\n") if name == "b" else recipe
        (runs / name / "recipe.toml").write_text(recipe)
    test = {"name": "heldout", "context": context_digest([0, 1, 0, 1])}  # b uses context, a does not
    (runs / "b" / "report.json").write_text(json.dumps({"tests": [test]}))
    for documents, expected in (("xxyy", 0), ("xyyy", 1)):
        rows = zip("abcd", REFERENCES, documents, strict=True)
        (runs / "test.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        status, _, err = nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)
        problem = "the documents of data.test.heldout have changed since b translated it with their context"
        assert (status, problem in err) == (expected, bool(expected)), err


def test_changed_references_give_a_warning(runs: Path, nmt: Nmt) -> None:
    for name in TRANSLATIONS:
        test = {"name": "heldout", "references": references_digest([REFERENCES])}
        (runs / name / "report.json").write_text(json.dumps({"tests": [test]}))
    assert nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)[2] == ""
    (runs / "test.de").write_text("".join(f"{line}\n" for line in REFERENCES[::-1]))
    status, _, err = nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)
    assert status == 0
    assert "the references of data.test.heldout have changed since the report of a, whose scores" in err


def test_translations_other_than_those_of_the_report_are_not_compared(runs: Path, nmt: Nmt) -> None:
    """A run may have been killed between translating a test set and writing its report."""
    for name, lines in TRANSLATIONS.items():
        test = {"name": "heldout", "output": text_digest(lines)}
        (runs / name / "report.json").write_text(json.dumps({"tests": [test]}))
    assert nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)[0] == 0
    (runs / "b" / "translations" / "heldout.de").write_text("Ein Hund.\n" * 4)
    status, out, err = nmt("compare", "a", "b")
    assert (status, out) == (1, "")
    assert "b/translations/heldout.de has changed since the report of b was written; run `nmt run`" in one_line(err)


def test_a_run_that_was_trained_further_is_compared_as_it_was_translated(runs: Path, nmt: Nmt) -> None:
    """Its recipe.toml has the new options; its translations, report and scores belong to the old ones."""
    recipe = runs / "b" / "recipe.toml"
    report = {"recipe": recipe.read_text(), "training": {"steps": 2}, "tests": []}
    (runs / "b" / "report.json").write_text(json.dumps(report))
    options = ("compare", "a", "b", "--resamples", 10, "--trials", 10, "--format", "json")
    status, before, err = nmt(*options)
    assert (status, err) == (0, "")
    recipe.write_text(recipe.read_text().replace("max_steps = 2", "max_steps = 2\nthreads = 1"))
    assert nmt(*options) == (0, before, "")
    recipe.write_text(recipe.read_text().replace("max_steps = 2", "max_steps = 7"))
    status, after, err = nmt(*options)
    assert (status, after) == (0, before)
    assert "b was trained with different options after its test sets were translated (train.max_steps)" in err
    assert "at step 2; `nmt run` updates them" in err


def test_identical_translations_have_no_p_value(runs: Path, nmt: Nmt) -> None:
    (runs / "b" / "translations" / "heldout.de").write_text("".join(f"{line}\n" for line in TRANSLATIONS["a"]))
    status, _, err = nmt("compare", "a", "b", "--resamples", 10, "--trials", 10)
    assert status == 0
    assert "heldout: b is identical to the baseline; check that it is the intended file" in err
