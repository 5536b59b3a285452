"""`nmt train-classifier` and `nmt classify`."""

import re
from pathlib import Path

import pytest

from nmt.classify.run import train_classifier
from nmt.recipe import load_classification_recipe
from tests.calling import Nmt, PipeIn, one_line
from tests.classify.conftest import reviews, write_reviews

__all__ = ["reviews"]  # the fixture

TEXTS = "a good and lovely film\nthe awful story was dull\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a classifier of reviews."""
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_classifier(load_classification_recipe(Path("reviews.toml"), ["train.max_steps=40"]))
    return folder / "runs" / "reviews"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a file with two texts in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_text(TEXTS)
    return "texts"


def test_training_prints_the_report_and_counts_truncated_texts(reviews: Path, nmt: Nmt) -> None:
    status, out, err = nmt("train-classifier", "reviews.toml", "train.max_steps=1", "data.max_tokens=3")
    assert status == 0, err
    assert out.startswith("# Classifier reviews")
    assert re.search(r"^truncated \d+ texts to the first 3 tokens", err, re.MULTILINE)


@pytest.mark.slow
def test_each_line_gets_a_label_and_its_probability(run: Path, texts: str, nmt: Nmt) -> None:
    status, out, err = nmt("classify", run, texts)
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert [label for label, _ in rows] == ["positive", "negative"]
    assert all(0.5 < float(probability) <= 1 for _, probability in rows)
    _, out, _ = nmt("classify", run / "model", texts, "--label", "positive")
    first, second = map(float, out.splitlines())
    assert first == float(rows[0][1])
    assert second == pytest.approx(1 - float(rows[1][1]), abs=2e-6)


def test_gold_labels_of_a_file_or_standard_input_give_the_accuracy(
    run: Path, texts: str, nmt: Nmt, pipe_in: PipeIn
) -> None:
    Path("gold").write_text("positive\npositive\n")
    _, _, err = nmt("classify", run, texts, "--gold", "gold")
    assert "0.5000" in err
    assert "gold: 2 examples" in err
    pipe_in(lambda write: write(b"positive\n0\n"))
    _, _, err = nmt("classify", run, texts, "--gold", "-")
    assert "standard input: 2 examples" in err
    pipe_in(lambda write: write(b"neutral\n"))
    _, _, err = nmt("classify", run, texts, "--gold", "-")
    assert one_line(err).startswith(
        "standard input, example 1, has label 'neutral'; it must be one of negative, positive"
    )


def test_long_texts_are_truncated(run: Path, texts: str, nmt: Nmt) -> None:
    Path("long").write_text(TEXTS + "film " * 2_000 + "\n")
    _, out, err = nmt("classify", run, "long")
    assert (len(out.splitlines()), err) == (3, "truncated 1 text to the first 256 tokens (data.max_tokens)\n")


def test_empty_texts_and_text_with_columns_are_a_warning(run: Path, texts: str, nmt: Nmt) -> None:
    Path("columns").write_text("a good film\tpositive\n \t \n\nfilm\tnegative\n")
    _, out, err = nmt("classify", run, "columns")
    assert len(out.splitlines()) == 4
    columns, empty = err.splitlines()
    assert columns.startswith("warning: all lines of columns, lines 1 to 4, have tabs; columns such as scores count")
    assert empty == "warning: empty texts in 2 of 4 lines: their probabilities are meaningless"

    Path("texts.csv").write_text('1,"a good film"\n')
    _, out, err = nmt("classify", run, "texts.csv")
    assert (len(out.splitlines()), len(err.splitlines())) == (1, 1)
    assert err.startswith("warning: texts.csv is read as plain text, including commas and quotes; extract the text")


def test_invalid_input_is_one_line(run: Path, texts: str, nmt: Nmt) -> None:
    Path("one-label").write_text("positive\n")
    run_of_a_classifier = f"{run} is the run of a classifier; expected the run of a translation model; correct the path"
    for arguments, status, message in (
        (("classify", run, texts, texts), 2, "got 2 files; a classifier of single texts needs one FILE; give 1"),
        (
            ("classify", run, texts, "--label", "neutral"),
            2,
            "--label is 'neutral'; it must be one of negative, positive; correct it",
        ),
        (
            ("classify", run, texts, "--gold", "one-label"),
            1,
            "one-label has 1 label and texts has 2 lines; there must be one label per line",
        ),
        (
            ("translate", run, texts),
            1,
            f"{run} is a classifier; expected a translation model; use it with nmt classify",
        ),
        (("replay", run, "--step", 3), 1, run_of_a_classifier),
        (("average", run, "--last", 2), 1, run_of_a_classifier),
        (("classify", "nowhere", texts), 1, "nowhere does not exist; expected a model directory"),
    ):
        found, out, err = nmt(*arguments)
        assert (found, out) == (status, "")
        assert one_line(err).startswith(message)
