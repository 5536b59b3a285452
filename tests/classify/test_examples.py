"""Labels and texts of examples: classes, errors and warnings."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.classify.examples import held_out, read_labeled
from nmt.classify.lines import classify_files
from nmt.classify.text_classifier import TextClassifier
from nmt.errors import UserError
from nmt.recipe import ClassificationRecipe, load_classification_recipe
from tests.classify.conftest import train


def test_a_class_whose_only_example_is_held_out_is_a_class(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the label of the held-out example would be unknown, and the error would name a missing data.valid."""
    lines = (reviews / "train.jsonl").read_text().splitlines()
    numbers = [((str(number),), "") for number in range(len(lines))]
    _, valid = held_out(numbers, load_classification_recipe(Path("reviews.toml")).seed)
    lines[int(valid[0][0][0])] = json.dumps({"text": "no film", "label": 2})
    (reviews / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    train("data.labels=[]", "train.max_steps=1")
    err = " ".join(capsys.readouterr().err.split())
    assert "warning: data.train has one example of class '2'" in err
    assert "warning: classes without training examples are not learned: 2; add examples to data.train" in err


def test_a_class_without_training_examples_is_named(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (reviews / "train.jsonl").read_text().splitlines(keepends=True)
    (reviews / "train.jsonl").write_text("".join(line for line in lines if json.loads(line)["label"] == 1))
    train("tokenizer.vocab_size=284", "train.max_steps=1")
    assert (
        "warning: classes without training examples are not learned: negative; add examples to data.train"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_classes_of_pairs_are_labels_or_kinds_of_noise(reviews: Path) -> None:
    lines = [f"the film {n}\tder Film ist {n} und gut\t{('bad', 'ok')[n % 2]}" for n in range(40)]
    (reviews / "pairs.tsv").write_text("\n".join(lines) + "\n")
    corpus = '{kind="tsv", path="pairs.tsv"}'
    noise = [f"data.{split}=[{corpus}]" for split in ("train", "valid")]
    options = ("data.labels=[]", "data.test={}", "train.max_steps=2", "train.micro_batch_tokens=514")
    train("run_dir=noise", *noise, 'data.noise=["shuffled", "truncated"]', *options)
    assert TextClassifier.load(Path("noise")).metadata.labels == ("translation", "shuffled", "truncated")
    train("run_dir=labels", 'data.train=[{kind="tsv", path="pairs.tsv", label_column=2}]', *options)
    classifier = TextClassifier.load("labels")
    assert classifier.metadata.labels == ("bad", "ok")
    assert classifier.metadata.texts == 2
    ids = classifier.encode([("the film", "der Film"), ("the film der Film", "")])
    assert ids[0] != ids[1]
    assert all(example.count(2) == 1 and example[-1] == 3 for example in ids)  # BOS between the texts, EOS at the end


def test_labels_of_a_file_with_crlf_have_no_carriage_return(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (reviews / "films.tsv").write_bytes(
        b"".join(b"the film %d\t%s\r\n" % (n, (b"bad", b"ok")[n % 2]) for n in range(40))
    )
    train('data.train=[{kind="tsv", path="films.tsv"}]', "data.labels=[]", "data.test={}", "train.max_steps=2")
    classifier = TextClassifier.load(Path("runs/reviews"))
    assert classifier.metadata.labels == ("bad", "ok")
    (reviews / "texts").write_text("the film 1\n")
    (reviews / "gold").write_bytes(b"ok\r\n")
    list(classify_files(classifier, [reviews / "texts"], None, reviews / "gold"))
    err = capsys.readouterr().err
    assert "accuracy" in err and "class indices" not in err
    (reviews / "gold").write_bytes(b"0\r\n")  # indices into the sorted labels, an order that only the model stores
    list(classify_files(classifier, [reviews / "texts"], None, reviews / "gold"))
    assert "gold has class indices; in the order of the model, 0 is bad, 1 is ok" in capsys.readouterr().err


def noise_recipe(**data: Any) -> ClassificationRecipe:
    toy = {"kind": "toy", "pairs": 40}
    return ClassificationRecipe.model_validate({"name": "toy", "data": {"train": [toy], "valid": [toy], **data}})


def test_noise_differs_between_splits_and_seeds() -> None:
    recipe = noise_recipe(noise=["shuffled", "misaligned"])
    train_text, valid_text = (read_labeled(recipe.data.train, recipe, split) for split in ("train", "valid"))
    assert [texts for texts, _ in train_text] != [texts for texts, _ in valid_text]
    assert train_text == read_labeled(recipe.data.train, recipe, "train")
    assert train_text != read_labeled(recipe.data.train, recipe.model_copy(update={"seed": 2}), "train")


def misspell_a_label(folder: Path) -> None:
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    lines[249] = json.dumps({**json.loads(lines[249]), "label": "negativ"}) + "\n"
    (folder / "train.jsonl").write_text("".join(lines))


def replace_labels(value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
        (folder / "train.jsonl").write_text("".join(json.dumps({**one, "label": value}) + "\n" for one in records))

    return change


@pytest.mark.parametrize(
    ("change", "override", "message"),
    [
        (
            replace_labels(2),
            "seed=1",
            r"^data.train, example 1, has label '2'; it must be one of negative, positive; correct",
        ),
        (
            misspell_a_label,
            "seed=1",
            r"^data.train, example 250, has label 'negativ'; it must be one of negative, positive; correct",
        ),
        (replace_labels("x"), "data.labels=[]", r"^data.train has only the label 'x'; a classifier needs two or more;"),
        (replace_labels(""), "seed=1", r"^data.train, example 1, has no label; it must have one; correct"),
        (replace_labels(" "), "seed=1", r"^data.train, example 1, has no label; it must have one; correct"),
        (replace_labels("a\tb"), "data.labels=[]", r"^label 'a\\tb' has a tab or a line break; .* rename it"),
        (lambda folder: None, 'data.labels=["bad\\n", "good"]', r"^label 'bad\\n' has a tab or a line break;"),
        (replace_labels(0.5), "seed=1", r"^train.jsonl, line 1: field 'label' is of type float; it must be text;"),
        (
            lambda folder: (folder / "train.jsonl").write_text(""),
            "seed=1",
            r"^data.train has no examples; it must have",
        ),
    ],
)
def test_errors_of_labels_name_the_example(
    change: Callable[[Path], object], override: str, message: str, reviews: Path
) -> None:
    change(reviews)
    with pytest.raises(UserError, match=message):
        train(override)


@pytest.mark.slow
def test_similar_labels_are_named_and_renamed_ones_are_an_error(
    reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def name_labels(*names: str) -> None:
        """Replace label 0 by the first name, and label 1 by the other names in turn."""
        first, *others = names
        for path in (reviews / "train.jsonl", reviews / "test.jsonl"):
            records = list(map(json.loads, (reviews / f"{path.stem}.numbers").read_text().splitlines()))
            for index, record in enumerate(records):
                record["label"] = others[index // 2 % len(others)] if record["label"] else first
            path.write_text("".join(f"{json.dumps(record)}\n" for record in records))

    for split in ("train", "test"):
        (reviews / f"{split}.jsonl").rename(reviews / f"{split}.numbers")
    options = ("data.labels=[]", "train.max_steps=1")
    name_labels("bad", "good")
    train(*options)
    assert "differ only" not in capsys.readouterr().err
    name_labels("bad", "great")  # sorted in the same order
    message = r"labels of data.train are bad, great, but .*step-00000001 was trained with bad, good; .* keep its labels"
    with pytest.raises(UserError, match=message):
        train(*options)
    name_labels("bad", "good", "Good ")
    train(*options, "name=similar")
    err = " ".join(capsys.readouterr().err.split())
    assert "labels 'Good ' and 'good' of data.train differ only in case or spaces; they are two classes" in err


def test_empty_texts_are_counted(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = reviews / "train.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[3:5] = [json.dumps({"text": text, "label": 1}) + "\n" for text in ("", " \n")]
    path.write_text("".join(lines))
    train("train.max_steps=1")
    err = " ".join(capsys.readouterr().err.split())
    assert "warning: data.train has empty texts in 2 of 400 examples; remove them" in err
    assert "data.test" not in err


@pytest.mark.slow
def test_a_label_of_one_example_is_named(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header counts as an example of a class of its own."""
    for split in ("train", "test"):
        records = map(json.loads, (reviews / f"{split}.jsonl").read_text().splitlines())
        rows = [(" ".join(one["text"].split()), ("bad", "good")[one["label"]]) for one in records]
        (reviews / f"{split}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    corpora = {split: f'{{kind="tsv", path="{split}.tsv", src_column=0, tgt_column=1}}' for split in ("train", "test")}
    options = [f"data.train=[{corpora['train']}]", f"data.valid=[{corpora['test']}]", "data.labels=[]"]
    options += [f"data.test.reviews={corpora['test']}", "train.max_steps=1"]
    train(*options)
    assert "one example" not in capsys.readouterr().err
    path = reviews / "train.tsv"
    path.write_text("text\tlabel\n" + path.read_text())
    train(*options, "name=header")
    err = " ".join(capsys.readouterr().err.split())
    assert "warning: data.train has one example of class 'label'; if a label is a header or misspelled" in err


@pytest.mark.slow
def test_examples_that_occur_in_the_training_text_are_counted(
    reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (reviews / "train.jsonl").read_text().splitlines(keepends=True)
    texts = [json.loads(line)["text"] for line in lines]
    spaced = [{"text": f" {text}\u200b".replace(" ", "\t "), "label": 1} for text in texts[:3]]  # equal once normalized
    near = [{"text": f"{texts[3]}.", "label": 1}]
    (reviews / "valid.jsonl").write_text("".join(json.dumps(record) + "\n" for record in spaced + near))
    corpus = '{kind="jsonl", path="%s.jsonl", src_field="text", tgt_field="label"}'
    options = (f"data.test.seen={corpus % 'train'}", "train.max_steps=1")
    report = train(*options, f"data.valid=[{corpus % 'valid'}]")
    err = " ".join(capsys.readouterr().err.split())
    assert "warning: data.valid shares 3 of 4 examples with the training text" in err
    assert "warning: data.test.seen shares 400 of 400 examples with the training text" in err
    assert "data.test.reviews shares" not in err
    assert (
        "| valid | 4 | 3 |" in report
        and "| test.reviews | 60 | 0 |" in report
        and "| test.seen | 400 | 400 |" in report
    )
    assert json.loads(Path("runs/reviews/report.json").read_text())["training_overlap"] == {
        "valid": {"examples": 4, "in_training": 3},
        "test.reviews": {"examples": 60, "in_training": 0},
        "test.seen": {"examples": 400, "in_training": 400},
    }
    (reviews / "train.jsonl").write_text("".join(2 * lines[:50]))
    report = train("train.max_steps=1", "name=twice")
    err = " ".join(capsys.readouterr().err.split())
    (count,) = re.findall(
        r"the validation set held out from data.train shares (\d) of 10 examples with the training text", err
    )
    assert f"| valid | 10 | {count} |" in report


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_examples_in_the_training_text_are_counted_ignoring_case_if_the_model_lowercases(
    lowercase: bool, reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (reviews / "train.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"].upper() for line in lines[:3]]
    (reviews / "valid.jsonl").write_text("".join(json.dumps({"text": text, "label": 1}) + "\n" for text in texts))
    corpus = "{kind='jsonl', path='valid.jsonl', src_field='text', tgt_field='label'}"
    train(f"data.valid=[{corpus}]", f"tokenizer.lowercase={str(lowercase).lower()}", "train.max_steps=1")
    err = " ".join(capsys.readouterr().err.split())
    assert ("data.valid shares 3 of 3 examples with the training text" in err) == lowercase


def test_a_pair_occurs_in_the_training_text_if_both_texts_do(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [f"the film {n}\tder Film {n}\t{('bad', 'ok')[n % 2]}\n" for n in range(40)]
    test = [*pairs[:1], "the film 1\tder Film 2\tok\n"]
    for name, lines in (("train", pairs), ("test", test)):
        (reviews / f"{name}.tsv").write_text("".join(lines))
    splits = ("data.train=[%s]", "train"), ("data.valid=[%s]", "test"), ("data.test={t=%s}", "test")
    corpora = [option % f'{{kind="tsv", path="{name}.tsv", label_column=2}}' for option, name in splits]
    train(*corpora, "data.labels=[]", "train.max_steps=1", "train.micro_batch_tokens=514")
    err = " ".join(capsys.readouterr().err.split())
    for name in ("data.valid", "data.test.t"):
        assert f"warning: {name} shares 1 of 2 examples with the training text" in err


def test_class_indices_need_the_names_of_the_classes(reviews: Path) -> None:
    """Indices follow the order of data.labels; labels found in the training text have no such order."""
    path = reviews / "train.jsonl"
    records = list(map(json.loads, path.read_text().splitlines()))
    for record in records:
        record["label"] = ("negative", "positive")[record["label"]]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    train("train.max_steps=1")
    with pytest.raises(
        UserError, match=r"^data.test.\S+, example 1, has label '[01]'; it must be one of negative, posit"
    ):
        train("train.max_steps=1", "data.labels=[]", "name=unnamed")
