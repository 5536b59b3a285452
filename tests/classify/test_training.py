"""Training, exact resume, reports and use of classifiers."""

import json
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from nmt.checkpoint import Checkpoint, load_checkpoint
from nmt.classify.examples import Examples, LabeledTexts, held_out, read_labeled
from nmt.classify.lines import classify_files
from nmt.classify.run import train_classifier
from nmt.classify.text_classifier import TextClassifier
from nmt.classify.trainer import ClassifierTrainer
from nmt.cli.program import COMMANDS
from nmt.devices.precision import choose_precision
from nmt.errors import CommandError, RecipeError, UserError
from nmt.evaluate.classification import ClassificationScore
from nmt.processes.interruption import Interrupted
from nmt.recipe import ClassificationRecipe, load_classification_recipe, load_recipe
from nmt.storage.sealed import CorruptError
from nmt.train.signals import Stopped

RECIPE_NOTE = "# my own notes\n"
RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "classifiers"


def train(*overrides: str) -> str:
    return train_classifier(load_classification_recipe(Path("reviews.toml"), overrides))


def last_checkpoint(run: Path) -> Checkpoint:
    return load_checkpoint(sorted((run / "checkpoints").glob("step-*"))[-1])


def test_a_signal_before_training_ends_the_run_cleanly(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.classify.run.train_tokenizer", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(Interrupted) as interrupted:
            train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert interrupted.value.status == 143
    assert not (reviews / "runs").exists()


@pytest.mark.slow
def test_a_classifier_learns_and_reports(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = train()
    score = json.loads((reviews / "runs/reviews/report.json").read_text())["tests"]["reviews"]
    assert score["accuracy"] > 0.95 > 0.6 > score["majority"]
    assert score["examples"] == 60
    assert f"{score['accuracy']:.4f}" in report
    assert "| positive | 30 |" in report
    classifier = TextClassifier.load(reviews / "runs/reviews", "cpu")
    assert classifier.metadata.labels == ("negative", "positive")
    probabilities = classifier.probabilities(
        [("a lovely film with good music",), ("the story was awful and dull",), ("",)]
    )
    assert probabilities[0].argmax() == 1
    assert probabilities[1].argmax() == 0
    assert np.allclose(probabilities.sum(axis=1), 1)
    # Probabilities do not depend on the other texts.
    texts = [("good",), ("the film was a story with actors and bad music",), ("a fine film " * 200,)]
    alone = np.concatenate([classifier.probabilities([text]) for text in texts])
    assert np.allclose(classifier.probabilities(texts), alone, atol=1e-6)
    # On another device, all tensors are there.
    monkeypatch.setattr("nmt.classify.text_classifier.choose_device", torch.device)
    monkeypatch.setattr("nmt.classify.text_classifier.load_tensors", lambda *_: None)  # meta tensors have no data
    model = TextClassifier.load(reviews / "runs/reviews", "meta", "fp32").model
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}


@pytest.mark.gpu
@pytest.mark.slow
def test_a_classifier_learns_on_a_gpu(reviews: Path, gpu: torch.device) -> None:
    train(f"train.device={gpu}", "train.precision=auto")
    assert json.loads((reviews / "runs/reviews/report.json").read_text())["tests"]["reviews"]["accuracy"] > 0.95
    examples = [("a lovely film with good music",), ("the story was awful and dull",)]
    found, expected = (
        TextClassifier.load("runs/reviews", device).probabilities(examples) for device in (str(gpu), "cpu")
    )
    assert np.allclose(found, expected, atol=0.02)


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("train.batch_tokens=1_024", "train.max_steps=16", "train.validate_every=8", "train.save_every=5")
    train("run_dir=whole", *options)
    update = ClassifierTrainer._update

    def interrupted(self: ClassifierTrainer, *arguments: Any) -> float:
        if self.state.step == 12:  # in the middle of the second epoch, two updates after the last checkpoint
            raise Stopped(143)
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierTrainer, "_update", interrupted)
        with pytest.raises(Stopped):
            train("run_dir=parts", *options)
    train("run_dir=parts", *options)
    whole, parts = last_checkpoint(reviews / "whole"), last_checkpoint(reviews / "parts")
    assert whole.state["epoch"] == parts.state["epoch"] == 1
    assert whole.state["scores"] == parts.state["scores"]
    for one, other in ((whole.model, parts.model), (whole.optimizer, parts.optimizer)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_micro_batches_give_the_gradient_of_the_whole_update(reviews: Path) -> None:
    options = ("model.dropout=0.0", "train.max_steps=1", "data.max_tokens=63")
    train("run_dir=one", "train.micro_batch_tokens=512", *options)
    train("run_dir=many", "train.micro_batch_tokens=64", *options)
    one, many = (last_checkpoint(reviews / run).optimizer for run in ("one", "many"))
    moments = [name for name in one if name.startswith("exp_avg/")]  # a tenth of the gradient
    assert any(one[name].abs().max() > 1e-3 for name in moments)
    assert all(torch.allclose(one[name], many[name], rtol=1e-4, atol=1e-7) for name in moments)


@pytest.mark.slow
def test_a_changed_recipe_or_text_of_a_run_is_an_error(reviews: Path) -> None:
    train("train.max_steps=10")
    with pytest.raises(UserError, match=r"^runs/reviews holds a run with another recipe: model.d_ff is 48, was 32; "):
        train("model.d_ff=48")
    with pytest.raises(UserError, match=r"train.learning_rate is 0.5, was 0.01: no update used this value"):
        train("train.max_steps=10", "train.learning_rate=0.5")
    with (reviews / "train.jsonl").open("a") as file:
        file.write('{"text": "new", "label": 0}\n')
    with pytest.raises(UserError, match=r"have changed since .*; a run must keep its text; restore it, or choose"):
        train("train.max_steps=20")


@pytest.mark.slow
def test_changed_options_are_logged_on_resuming(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("train.max_steps=10", "train.schedule=cosine")
    with pytest.raises(UserError, match=r"it must not jump; restart the schedule \(train.schedule_start=10\)$"):
        train("train.max_steps=20", "train.schedule=cosine")
    assert len(list((reviews / "runs/reviews/checkpoints").iterdir())) == 1
    capsys.readouterr()
    train("train.max_steps=20", "train.schedule=cosine", "train.schedule_start=10")
    err = capsys.readouterr().err
    assert "changed options: train.max_steps is 20, was 10; train.schedule_start is 10, was 0" in err
    assert "the learning rate of update 11 is" in err
    changes = json.loads(Path("runs/reviews/report.json").read_text())["changes"]
    assert changes[0] == {"step": 10, "option": "train.max_steps", "before": 10, "now": 20}
    assert "| 10 | train.schedule_start | 0 | 10 |" in Path("runs/reviews/report.md").read_text()
    train("train.max_steps=20", "train.schedule=cosine", "train.schedule_start=10", "train.log_every=1")
    assert json.loads(Path("runs/reviews/report.json").read_text())["changes"] == changes


@pytest.mark.slow
def test_the_report_has_the_device_of_the_updates(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was trained on a GPU may be reported on a computer without one."""
    save = ClassifierTrainer._save

    def save_on_gpu(trainer: ClassifierTrainer) -> None:
        trainer.state.device = "cuda:0"
        save(trainer)

    with monkeypatch.context() as first:
        first.setattr(ClassifierTrainer, "_save", save_on_gpu)
        train("train.max_steps=10")
    report = reviews / "runs/reviews/report.md"
    train("train.max_steps=10")
    assert " on cuda:0; the model is checkpoint" in report.read_text()
    train("train.max_steps=20")
    assert " on cpu; the model is checkpoint" in report.read_text()
    assert "| 10 | device | cuda:0 | cpu |" in report.read_text()


@pytest.mark.slow
def test_test_sets_are_classified_in_the_precision_of_training(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precision = {"fp32": "bf16", "bf16": "fp32"}[choose_precision("auto", torch.device("cpu"))]
    used: list[str] = []
    score = TextClassifier.score

    def recorded(classifier: TextClassifier, examples: Examples) -> ClassificationScore:
        used.append(classifier._precision)
        return score(classifier, examples)

    monkeypatch.setattr(TextClassifier, "score", recorded)
    train("train.max_steps=1", f"train.precision={precision}")
    assert used == [precision, precision]  # validation, test set


def test_several_processes_are_an_error(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CommandError, match="a classifier is trained by one process, got 2; start it without torchrun"):
        train()
    assert not (reviews / "runs").exists()


def test_a_class_whose_only_example_is_held_out_is_a_class(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the label of the held-out example would be unknown, and the error would name a missing data.valid."""
    lines = (reviews / "train.jsonl").read_text().splitlines()
    numbers = LabeledTexts([(str(number),) for number in range(len(lines))], [""] * len(lines))
    _, valid = held_out(numbers, load_classification_recipe(Path("reviews.toml")).seed)
    lines[int(valid.texts[0][0])] = json.dumps({"text": "no film", "label": 2})
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
def test_a_classifier_trains_on_a_hugging_face_dataset_like_imdb(reviews: Path) -> None:
    """The format of stanfordnlp/imdb: Parquet files by split, with text and an integer label."""
    records = [json.loads(line) for line in (reviews / "train.jsonl").read_text().splitlines()]
    (reviews / "imdb").mkdir()
    for split, part in (("train", records[:300]), ("test", records[300:])):
        Dataset.from_list(part).to_parquet(reviews / "imdb" / f"{split}-00000-of-00001.parquet")
    recipe = load_classification_recipe(
        RECIPES / "imdb.toml",
        [
            'data.train=[{kind="huggingface", dataset="imdb", src_field="text", tgt_field="label"}]',
            'data.test={imdb={kind="huggingface", dataset="imdb", split="test", src_field="text", tgt_field="label"}}',
            *("tokenizer.vocab_size=300", "model.d_model=16", "train.max_steps=2", "train.threads=1"),
        ],
    )
    report = train_classifier(recipe)
    assert "| positive | 50 |" in report


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
    assert classifier.metadata.num_texts == 2
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
    assert train_text.texts != valid_text.texts
    assert train_text == read_labeled(recipe.data.train, recipe, "train")
    assert train_text != read_labeled(recipe.data.train, recipe.model_copy(update={"seed": 2}), "train")


WRONG: list[tuple[str, str]] = [
    (
        "model.num_decoder_layers=2",
        "model.num_decoder_layers has no effect on a classifier; remove model.num_decoder_layers",
    ),
    ("model.output_bias=true", "model.output_bias has no effect on a classifier; remove model.output_bias"),
    ("train.ema_decay=0.9", "train.ema_decay has no effect on a classifier; remove train.ema_decay"),
    ("train.precision=fp16", "train.precision is 'fp16', which a classifier does not support; use 'bf16' or 'fp32'"),
    (
        "data.max_tokens=2000",
        "data.max_tokens is 2000, which makes examples of up to 2001 tokens; set model.max_positions to 2001 or more",
    ),
    (
        "train.micro_batch_tokens=256",
        "train.micro_batch_tokens is 256; the longest example must fit; set train.micro_batch_tokens to 257 or more, "
        "or lower data.max_tokens",
    ),
    (
        'data.noise=["shuffled"]',
        "data.valid is missing; data.noise needs it, because held-out pairs would have noisy copies in training",
    ),
    (
        'data.noise=["loud"]',
        "data.noise.0 = 'loud'; it must be 'shuffled', 'truncated', 'wrong-language' or 'misaligned'",
    ),
    ('data.labels=["one"]', "data.labels has one name; it must have all classes, at least two; add the others"),
    ('data.labels=["a", "b", "a"]', "data.labels has 'a' twice; names must be distinct; remove one"),
    ("data.lables=[]", "unknown option 'data.lables'; did you mean 'labels'?"),
    ("quux=en", "unknown option 'quux'; known options: name, seed, run_dir, data, tokenizer, model, train"),
    ("src_lang=en", "reviews.toml is for a translation model; it must be for a classifier; use nmt run"),
    (
        'data.test.t={kind="text", src="x", tgt=["y", "z"]}',
        "tgt of a corpus is a list of 2 files; a classifier reads one; give one file",
    ),
    (
        'tokenizer.user_symbols=["New York"]',
        "tokenizer.user_symbols has 'New York'; a symbol must have characters and no white space; correct or remove "
        "the symbol",
    ),
    (
        'tokenizer.user_symbols=["a", "a"]',
        "tokenizer.user_symbols has 'a' twice; symbols must be distinct; remove one",
    ),
    ('run_dir=""', "run_dir = ''; it must be a path that is not empty"),
    (
        "tokenizer={algorithm='byte', character_coverage=0.99}",
        "tokenizer.character_coverage has no effect on bytes, which cover all characters; set tokenizer.algorithm to "
        "'bpe', 'unigram' or 'char', or remove tokenizer.character_coverage",
    ),
    (
        'data.valid=[{kind="monolingual", path="x"}]',
        "a corpus has kind 'monolingual', which has no labels; a classifier needs texts with labels, or pairs; use "
        "another kind",
    ),
    (
        'data.valid=[{kind="tsv", path="x", weight=2.0}]',
        "weight of a corpus has no effect on a classifier; remove weight",
    ),
    (
        'data.valid=[{kind="tsv", path="x", document_column=2}]',
        "document_column of a corpus has no effect on a classifier; remove document_column",
    ),
    (
        'data.valid=[{kind="tsv", path="x", label_column=2}]',
        "some corpora have label_column or label_field and others do not; all must have pairs of texts, or all "
        "single texts; correct the corpora",
    ),
]


@pytest.mark.parametrize(("override", "message"), WRONG)
def test_errors_of_recipes_name_the_option(override: str, message: str, reviews: Path) -> None:
    with pytest.raises(RecipeError) as error:
        train(override)
    assert str(error.value).removeprefix("reviews.toml: ") == message


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
    assert "data.test.reviews: " not in err
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
        r"validation, held out from data.train shares (\d) of 10 examples with the training text", err
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


@pytest.mark.slow
def test_unrelated_files_are_not_overwritten(reviews: Path) -> None:
    run = reviews / "runs/reviews"
    (run / "model").mkdir(parents=True)
    (run / "model" / "thesis.txt").touch()
    with pytest.raises(UserError, match=r"runs/reviews/model exists but is not a model, so it is not overwritten"):
        train()
    (run / "model" / "thesis.txt").unlink()
    (run / "report.md").touch()
    with pytest.raises(UserError, match=r"runs/reviews has report.md but no run; the new run would overwrite existing"):
        train()
    (run / "report.md").unlink()
    (run / "model").rmdir()
    own = RECIPE_NOTE + (reviews / "reviews.toml").read_text()
    (run / "recipe.toml").write_text(own)
    (run / "tokenizer.model").write_text("mine")
    train("train.max_steps=1")
    assert (run / "tokenizer.model").read_text() == "mine"
    assert (run / "recipe.toml").read_text() == own
    (run / "recipe.toml").unlink()
    train("train.max_steps=1")
    (run / "recipe.toml").write_text("incomplete = ")  # of a training run that crashed
    train("train.max_steps=1")
    assert load_classification_recipe(run / "recipe.toml").train.max_steps == 1


def test_damaged_files_are_found(reviews: Path) -> None:
    train("train.max_steps=2")
    description = reviews / "runs/reviews/model/classifier.toml"
    description.write_text(description.read_text().replace("positive", "cheerful"))
    with pytest.raises(CorruptError, match="is missing or corrupt"):
        TextClassifier.load(reviews / "runs/reviews/model")


def test_a_recipe_of_a_classifier_does_not_train_a_translation_model(reviews: Path) -> None:
    with pytest.raises(RecipeError, match=r"^reviews.toml is for a classifier; .* use nmt train-classifier$"):
        load_recipe(Path("reviews.toml"))
    text = Path("reviews.toml").read_text()
    Path("plain.toml").write_text(re.sub(r"labels = .*\n", "", text))
    with pytest.raises(RecipeError, match=r"^plain.toml: option 'src_lang' is missing; .* use nmt train-classifier$"):
        load_recipe(Path("plain.toml"))


def test_the_recipe_and_the_commands_of_the_guide_are_valid(tmp_path: Path) -> None:
    page = (RECIPES.parents[1] / "nmt/guide/classifying.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "topics.toml").write_text(recipe)
    assert load_classification_recipe(tmp_path / "topics.toml").data.labels == ("business", "sport")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^nmt .*", page, re.MULTILINE)]
    assert len(commands) == 7
    for _, name, *words in commands:
        command = COMMANDS[name].load(name)
        command.make_context(name, words[: words.index(">")] if ">" in words else words)


def test_packaged_recipes_load_and_have_the_name_of_their_file() -> None:
    found = sorted(RECIPES.glob("*.toml"))
    assert len(found) == 2
    assert all(load_classification_recipe(path).name == path.stem for path in found)
