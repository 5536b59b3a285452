"""Training a classifier: runs, reports, options and files."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from nmt.checkpoint import Checkpoint, load_checkpoint
from nmt.classify.examples import Examples
from nmt.classify.run import train_classifier
from nmt.classify.text_classifier import TextClassifier
from nmt.classify.trainer import ClassifierTrainer
from nmt.devices.precision import choose_precision
from nmt.errors import CommandError, RecipeError, UserError
from nmt.evaluate.classification import ClassificationScore
from nmt.processes.interruption import Interrupted
from nmt.recipe import load_classification_recipe, load_recipe
from nmt.storage.sealed import CorruptError
from nmt.train.signals import Stopped
from tests.classify.conftest import train

RECIPE_NOTE = "# my own notes\n"
RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "classifiers"


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
@pytest.mark.parametrize("earlier", [(), ("train.validate_every=2",)])
def test_an_interrupted_run_can_end_where_it_stopped(
    earlier: tuple[str, ...], reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = ClassifierTrainer._update

    def stop_at_3(self: ClassifierTrainer, *arguments: Any) -> float:
        if self.state.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierTrainer, "_update", stop_at_3)
        with pytest.raises(Stopped):
            train(*earlier)
    train("train.max_steps=3", *earlier)
    report = json.loads((reviews / "runs/reviews/report.json").read_text())
    assert report["steps"] == 3 and "3" in last_checkpoint(reviews / "runs/reviews").state["scores"]


@pytest.mark.slow
def test_the_last_update_has_a_line_in_the_metrics_if_patience_ends_the_run(reviews: Path) -> None:
    train("train.learning_rate=1e-9", "train.validate_every=1", "train.patience=1", "train.max_steps=50")
    lines = [json.loads(line) for line in (reviews / "runs/reviews/metrics.jsonl").read_text().splitlines()]
    last = max(line["step"] for line in lines)
    assert last < 20  # log_every
    assert [line["step"] for line in lines if "train/loss" in line][-1] == last


@pytest.mark.filterwarnings("error")
def test_a_diverged_classifier_is_an_error(reviews: Path) -> None:
    with pytest.raises(UserError, match=r"^no validation nll of runs/reviews is finite: training has diverged; train "):
        train("train.learning_rate=1e38", "train.warmup_steps=1", "train.max_steps=1", "train.validate_every=1")
    assert not (reviews / "runs/reviews/model").exists()
    with pytest.raises(UserError, match=r"^the gradient of update 2 is not finite: .* diverged; train under "):
        train("train.max_steps=2", "train.validate_every=1")


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
        "'bpe', 'unigram' or 'char', or remove tokenizer.character_coverage (on the command line: "
        "tokenizer.character_coverage=)",
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


def test_the_recipe_of_the_guide_is_valid(tmp_path: Path) -> None:
    page = (RECIPES.parents[1] / "nmt/guide/classifying.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "topics.toml").write_text(recipe)
    assert load_classification_recipe(tmp_path / "topics.toml").data.labels == ("business", "sport")


def test_packaged_recipes_load_and_have_the_name_of_their_file() -> None:
    found = sorted(RECIPES.glob("*.toml"))
    assert len(found) == 2
    assert all(load_classification_recipe(path).name == path.stem for path in found)
