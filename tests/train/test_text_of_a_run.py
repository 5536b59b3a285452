"""A run keeps the text and the tokenizer that it was started with."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from pytest import MonkeyPatch

from nmt.data.prepare import load_prepared
from nmt.errors import UserError
from nmt.processes.distributed import World
from nmt.recipe import load_recipe
from nmt.storage.model_metadata import longest_source_of, read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.tokenizer import Tokenizers
from nmt.train.data import TrainingData
from tests.calling import Nmt, one_line
from tests.train.changing_text import files_of, write_text
from tests.train.changing_text import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.slow
def test_a_model_records_the_longest_source_of_its_text_and_of_its_start_model(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    short_text = (tmp_path / "train.en").read_text()
    long_line = "the cat sees 17 mice and 18 mice and 19 mice"
    (tmp_path / "train.en").write_text(short_text.replace("the cat sees 17 mice", long_line))
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    (tmp_path / "train.en").write_text(short_text)
    assert nmt("train", recipe, f"run_dir={second}", f"train.start_from={first}")[0] == 0

    tokenizer = Tokenizers.load(find_model(first)).src
    longest = len(tokenizer.encode(long_line))
    assert max(len(tokenizer.encode(line)) for line in short_text.splitlines()) < longest
    for run in (first, second):
        assert read_model_metadata(find_model(run)).longest_source == longest
    assert longest_source_of(tmp_path / "none", None) == 0


@pytest.mark.slow
def test_fine_tuning_from_an_outdated_average_is_a_warning(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first = tmp_path / "first"
    for command, steps in (("run", 4), ("train", 8)):
        assert nmt(command, recipe, f"run_dir={first}", f"train.max_steps={steps}")[0] == 0
    for name, start, warns in (("second", first, True), ("third", find_model(first), False)):
        err = nmt("train", recipe, f"run_dir={tmp_path / name}", f"train.start_from={start}")[2]
        expected = f"{first / 'model'} was averaged at step 4, but the run has a checkpoint of step 8"
        assert (expected in err) == warns


@pytest.mark.slow
def test_fine_tuning_without_the_context_of_the_start_model_is_a_warning(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    symbols = "tokenizer.user_symbols=['<sep>']"
    for name, context, start in (("plain", 0, None), ("joined", 1, "plain"), ("lost", 0, "joined")):
        options = [] if start is None else [f"train.start_from={tmp_path / start}"]
        status, _, err = nmt(
            "train", recipe, f"run_dir={tmp_path / name}", f"data.context={context}", symbols, *options
        )
        assert status == 0
        expected = "different text: data.context: 1 in the initial model and 0 in the recipe"
        assert (expected in err) == (name == "lost")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", []),
        ("prepare", ["train.guided_alignment=true"]),
        ("train", ["train.glossary_markup=0.5"]),
    ],
)
def test_a_changed_corpus_is_rejected_without_changing_files(
    command: str, options: list[str], recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    options = [f"run_dir={run}", *options]
    assert nmt("train", recipe, *options)[0] == 0
    before = files_of(run)
    write_text(tmp_path, "train", 0, 260)
    status, _, err = nmt(command, recipe, *options, "train.max_steps=8")
    assert status != 0
    assert f"cannot be resumed: {tmp_path / 'train.en'} has changed since the text was prepared;" in err
    assert "train under another name, or fine-tune: name=NEW train.start_from=" in err
    assert files_of(run) == before
    write_text(tmp_path, "train", 0, 200)  # the same content again
    assert nmt("train", recipe, *options, "train.max_steps=8")[0] == 0


@pytest.mark.slow
def test_checkpoints_that_are_a_link_to_those_of_another_run_are_rejected(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    assert nmt("train", recipe, f"run_dir={run}")[0] == 0
    before = files_of(run)
    other.mkdir()
    (other / "checkpoints").symlink_to(run / "checkpoints")
    for command in ("train", "prepare"):
        status, _, err = nmt(command, recipe, f"run_dir={other}", "train.max_steps=8")
        assert status == 1
        assert f"is a link to the checkpoints of another run, {run}; each run must have its own" in one_line(err)
        assert files_of(run) == before


def test_a_text_that_differs_from_that_of_rank_0_is_an_error(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: MonkeyPatch
) -> None:
    texts: dict[int, str] = {}
    for count in (200, 210):
        write_text(tmp_path, "train", 0, count)
        one = load_recipe(recipe, [f"run_dir={tmp_path / str(count)}"])
        assert nmt("prepare", recipe, f"run_dir={one.directory}")[0] == 0
        prepared = load_prepared(one.data_directory)
        monkeypatch.setattr(World, "broadcast_text", lambda self, text, count=count: texts.setdefault(count, text))
        TrainingData.from_prepared(prepared, one, World(0, 2, torch.device("cpu")))
    monkeypatch.setattr(World, "broadcast_text", lambda self, text: texts[200])
    with pytest.raises(UserError, match="data on rank 1 differs from that on rank 0; all processes must"):
        TrainingData.from_prepared(prepared, one, World(1, 2, torch.device("cpu")))


@pytest.mark.slow
def test_a_deleted_corpus_is_reported_once(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    assert nmt("train", recipe, f"run_dir={tmp_path / 'run'}")[0] == 0
    (tmp_path / "train.de").unlink()
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'run'}", "train.max_steps=8")
    assert status == 0, err
    assert err.count("train.de no longer exists; using the text prepared from it") == 1


@pytest.mark.slow
def test_links_survive_a_changed_file_a_deleted_file_and_a_changed_validation_text(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    (tmp_path / "links").write_text("0-0 1-1\n" * 200)
    recipe.write_text(recipe.read_text().replace('tgt = "train.de"', 'tgt = "train.de", alignment = "links"'))
    options = [f"run_dir={tmp_path / 'run'}", "train.guided_alignment=true"]
    assert nmt("train", recipe, *options)[0] == 0
    before = files_of(tmp_path / "run")
    (tmp_path / "links").write_text("0-1\n" * 200)
    status, _, err = nmt("train", recipe, *options, "train.max_steps=8")
    assert status == 1 and "cannot be resumed: data.train.0.alignment has changed since the text was prepared;" in err
    assert files_of(tmp_path / "run") == before
    (tmp_path / "links").unlink()
    write_text(tmp_path, "valid", 900, 30)
    status, _, err = nmt("train", recipe, *options, "train.max_steps=8")
    assert status == 0, err
    assert "links no longer exists; the word alignments made from it are used" in err


@pytest.mark.slow
def test_another_tokenizer_is_rejected_without_prepared_text(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={run}")[0] == 0
    shutil.rmtree(run / "data")
    assert nmt("train", recipe, f"run_dir={run}", "train.max_steps=6")[0] == 0  # the same text gives the same bytes
    tokenizer = run / "data" / "tokenizer.model"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"\xe2\x96\x81", b"\xe2\x96\x82", 1))
    status, _, err = nmt("train", recipe, f"run_dir={run}", "train.max_steps=8")
    assert status == 1 and "tokenizer.model is damaged: its SHA-256 is not the one in prepare.json" in err
    shutil.rmtree(run / "data")
    write_text(tmp_path, "train", 300, 260)
    status, _, err = nmt("train", recipe, f"run_dir={run}", "train.max_steps=8")
    assert status != 0
    assert "step-00000006 was trained with another tokenizer" in err
    write_text(tmp_path, "train", 0, 200)  # as the error says, although `data` has the other text
    status, _, err = nmt("train", recipe, f"run_dir={run}", "train.max_steps=8")
    assert status == 0, err


@pytest.mark.slow
def test_a_changed_tokenizer_of_the_start_model_is_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    start, run = tmp_path / "start", tmp_path / "run"
    fine_tuning = (recipe, f"run_dir={run}", f"train.start_from={start}")
    assert nmt("train", recipe, f"run_dir={start}")[0] == 0
    assert nmt("train", *fine_tuning)[0] == 0
    shutil.rmtree(start)
    write_text(tmp_path, "train", 300, 260)
    assert nmt("train", recipe, f"run_dir={start}")[0] == 0
    write_text(tmp_path, "train", 0, 200)
    status, _, err = nmt("train", *fine_tuning, "train.max_steps=8")
    assert status == 1
    assert f"{run} cannot be resumed: the tokenizer of {start} has changed since the text was prepared; its text" in err
    shutil.rmtree(start)  # the run does not need it
    assert nmt("train", *fine_tuning, "train.max_steps=8")[0] == 0


@pytest.mark.slow
def test_changed_options_of_the_text_are_named(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run, wrong, corpus = tmp_path / "run", tmp_path / "wrong", "{kind='text', src='train.en', tgt='train.de'}"
    assert nmt("train", recipe, f"run_dir={run}")[0] == 0
    new_name = "choose another name or run_dir"
    fine_tune = f"{new_name}, or fine-tune: name=NEW train.start_from={run}"
    renamed, tagged = corpus.replace("train.en", "other.en"), corpus.replace("}", ", tag='<a>'}")
    for options, message, advice in (
        (["src_lang=fr", "tgt_lang=it"], "src_lang is fr, was en; tgt_lang is it, was de", new_name),
        (["seed=2", "data.max_tokens=50"], "seed is 2, was 1; data.max_tokens is 50, was 60", new_name),
        (["tokenizer.vocab_size=280"], "tokenizer.vocab_size is 280, was 300", fine_tune),
        (
            ["data.max_tokens=50", "tokenizer.algorithm=unigram"],
            "data.max_tokens is 50, was 60; tokenizer.algorithm is unigram, was bpe",
            fine_tune,
        ),
        ([f"data.train=[{renamed}]"], "data.train.0.src is other.en, was train.en", fine_tune),
        ([f"data.train=[{tagged}]"], "data.train.0.tag is <a>, was not set", fine_tune),
        ([f"data.train=[{corpus}, {corpus}]"], "the number of entries of data.train is 2, was 1", fine_tune),
    ):
        status, _, err = nmt("train", recipe, f"run_dir={run}", *options)
        assert status == 1
        assert f"{run} holds a run with another recipe: {message}; these must not change; " in one_line(err)
        assert one_line(err).endswith(advice)
    status, _, err = nmt("train", recipe, f"run_dir={run}", f"data.root={wrong}", "train.max_steps=8")
    assert status == 1
    assert f"cannot read {wrong / 'train.en'}: No such file; train.en is relative to data.root, which is {wrong}" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.model", "manifest.json"])
def test_a_damaged_tokenizer_in_a_checkpoint_is_not_a_mismatch(
    name: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={run}")[0] == 0
    damaged = run / "checkpoints" / "step-00000004" / name
    content = bytearray(damaged.read_bytes())
    offset = content.find(b'"sha256": "') + 20 if name == "manifest.json" else len(content) // 2  # within a digest
    content[offset] ^= 1
    damaged.write_bytes(content)
    status, _, err = nmt("train", recipe, f"run_dir={run}")
    assert status == 0, err
    assert "set aside as corrupt-step-00000004" in err


@pytest.mark.slow
def test_another_text_with_the_same_tokenizer_is_rejected(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, run = tmp_path / "first", tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    reused = f"tokenizer.start_from={first}"
    assert nmt("train", recipe, f"run_dir={run}", reused)[0] == 0
    shutil.rmtree(run / "data")
    write_text(tmp_path, "train", 300, 260)
    status, _, err = nmt("train", recipe, f"run_dir={run}", reused, "train.max_steps=8")
    assert status != 0
    assert "not that of the checkpoint" in err


@pytest.mark.slow
def test_other_validation_text_does_not_end_a_run(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={run}")[0] == 0
    write_text(tmp_path, "valid", 700, 30)
    status, _, err = nmt("train", recipe, f"run_dir={run}", "train.max_steps=8")
    assert status == 0
    assert "prepared 30 new validation pairs; the training text is up to date" in err


@pytest.mark.slow
def test_the_report_of_a_finished_run_has_the_nll_of_its_average_on_other_validation_text(
    recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    run = tmp_path / "run"
    command = ("run", recipe, f"run_dir={run}", "train.average_count=2")
    found = []
    for first in (900, 3):
        write_text(tmp_path, "valid", first, 20)
        assert nmt(*command)[0] == 0
        found.append(json.loads((run / "report.json").read_text()))
    before, after = found
    assert before["model"] == after["model"]
    assert before["training"]["average_nll"] != after["training"]["average_nll"]
