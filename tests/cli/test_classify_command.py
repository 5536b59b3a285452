"""`nmt train-classifier` and `nmt classify`."""

import re
from pathlib import Path

import pytest

from tests.calling import Nmt, PipeIn, one_line
from tests.classify.conftest import reviews

__all__ = ["reviews"]  # the fixture

TEXTS = "a good and lovely film\nthe awful story was dull\n"


@pytest.fixture
def model(reviews: Path, nmt: Nmt) -> Path:
    status, out, err = nmt("train-classifier", "reviews.toml", "train.max_steps=40")
    assert status == 0, err
    assert out.startswith("# Classifier reviews")
    (reviews / "texts").write_text(TEXTS)
    return reviews / "runs" / "reviews"


def test_labels_and_probabilities_of_lines(model: Path, nmt: Nmt, reviews: Path, pipe_in: PipeIn) -> None:
    status, out, _ = nmt("classify", model, "texts")
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert [label for label, _ in rows] == ["positive", "negative"]
    assert all(0.5 < float(probability) <= 1 for _, probability in rows)
    _, out, _ = nmt("classify", model / "model", "texts", "--label", "positive")
    first, second = map(float, out.splitlines())
    assert first == float(rows[0][1])
    assert second == pytest.approx(1 - float(rows[1][1]), abs=2e-6)
    (reviews / "gold").write_text("positive\npositive\n")
    _, _, err = nmt("classify", model, "texts", "--gold", "gold")
    assert "0.5000" in err
    assert "gold: 2 examples" in err
    pipe_in(lambda write: write(b"positive\n0\n"))
    _, _, err = nmt("classify", model, "texts", "--gold", "-")
    assert "standard input: 2 examples" in err
    pipe_in(lambda write: write(b"neutral\n"))
    _, _, err = nmt("classify", model, "texts", "--gold", "-")
    assert one_line(err).startswith(
        "standard input, example 1, has label 'neutral'; it must be one of negative, positive"
    )

    assert "truncated" not in err
    (reviews / "long").write_text(TEXTS + "film " * 2_000 + "\n")
    _, out, err = nmt("classify", model, "long")
    assert (len(out.splitlines()), err) == (3, "truncated 1 text to the first 256 tokens (data.max_tokens)\n")
    _, _, err = nmt("train-classifier", "reviews.toml", "train.max_steps=1", "name=short", "data.max_tokens=3")
    assert re.search(r"^truncated \d+ texts to the first 3 tokens", err, re.MULTILINE)

    (reviews / "columns").write_text("a good film\tpositive\n \t \n\nfilm\tnegative\n")
    _, out, err = nmt("classify", model, "columns")
    assert len(out.splitlines()) == 4
    columns, empty = err.splitlines()
    assert columns.startswith("warning: all lines of columns, lines 1 to 4, have tabs; columns such as scores count")
    assert empty == "warning: 2 of 4 lines have an empty text; their probabilities are meaningless"

    (reviews / "texts.csv").write_text('1,"a good film"\n')
    _, out, err = nmt("classify", model, "texts.csv")
    assert (len(out.splitlines()), len(err.splitlines())) == (1, 1)
    assert err.startswith("warning: texts.csv is read as plain text, including commas and quotes; extract the text")

    # Errors, with the same model to save time.
    def error(*arguments: object) -> str:
        status, _, err = nmt(*arguments)
        assert status == expected
        return one_line(err)

    expected = 2
    assert error("classify", model, "texts", "texts") == (
        "got 2 files; a classifier of single texts needs one FILE; give 1"
    )
    assert error("classify", model, "texts", "--label", "neutral") == (
        "--label is 'neutral'; it must be one of negative, positive; correct it"
    )
    expected = 1
    (reviews / "gold").write_text("positive\n")
    status, out, err = nmt("classify", model, "texts", "--gold", "gold")
    assert (status, out) == (1, "")  # before any work
    assert one_line(err).startswith("gold has 1 label and texts has 2 lines; there must be one label per line")
    assert error("translate", model, "texts").endswith(
        "runs/reviews is a classifier; expected a translation model; use it with nmt classify"
    )
    other = "runs/reviews is the run of a classifier; expected the run of a translation model; correct the path"
    assert error("replay", model, "--step", 3).endswith(other)
    assert error("average", model, "--last", 2).endswith(other)
    assert error("classify", "nowhere", "texts").startswith("nowhere does not exist; expected a model directory")
