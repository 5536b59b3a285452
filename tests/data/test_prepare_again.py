"""Prepared text is reused until its inputs or options change."""

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt.data import prepare as preparation
from nmt.data.fingerprint import describe_change, outdated_splits, text_identity, unpinned_datasets, why_outdated
from nmt.data.prepare import load_prepared, prepare
from nmt.errors import UserError
from tests.data.corpus_files import Records
from tests.data.directories import contents, modification_times
from tests.data.dirty_corpus import DIRTY, recipe_for, sentence_pairs, write_corpus


def test_up_to_date_text_is_reused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = modification_times(directory)
    for leftover in (".data.part-1", ".data.replaced"):  # of killed processes that prepared other text
        (directory.parent / leftover).mkdir()
    monkeypatch.setattr("nmt.data.fingerprint.read_blocks", None)  # the input is not read
    again = prepare(recipe_for(folder, "run", "train.max_steps=7", "data.workers=2"))
    assert modification_times(directory) == before
    assert [path.name for path in directory.parent.iterdir()] == ["data"]
    assert again.tokenizers.src.vocab_size == 340
    assert "up to date" in capsys.readouterr().err


@pytest.mark.slow
def test_a_corpus_may_state_the_languages_of_the_recipe(folder: Path) -> None:
    files = "kind='text',src='train.en',tgt='train.de'"
    plain, stated, other = (
        recipe_for(folder, "run", f"data.train=[{{{files}{languages}}}]", f"data.valid=[{{{files}{languages}}}]")
        for languages in ("", ",src_lang='en',tgt_lang='de'", ",src_lang='fr'")
    )
    for before, after in ((plain, stated), (stated, plain)):
        prepare(before)
        assert outdated_splits(after, after.data_directory) == set()
        assert outdated_splits(other, other.data_directory) == {"train", "valid"}
        shutil.rmtree(before.data_directory)


def test_the_reason_for_another_preparation_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(folder)
    path = recipe.data_directory
    assert why_outdated(recipe, path) == ""
    prepare(recipe)
    monkeypatch.setattr("nmt.data.fingerprint.read_blocks", None)  # the input is not read
    assert why_outdated(recipe, path) == "its input or tokenizer has changed"
    for option, name in {"data.max_tokens=30": "data.max_tokens", "tokenizer.vocab_size=330": "the tokenizer"}.items():
        assert why_outdated(recipe_for(folder, "run", option), path) == f"{name} has changed"
    (path / "train.src.tokens.npy").write_bytes(b"")
    reason = f"{path / 'train.src.tokens.npy'} is missing or has another size than in prepare.json"
    assert why_outdated(recipe, path) == reason


def test_touched_input_is_up_to_date(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = modification_times(directory)
    os.utime(folder / "text" / "train.en", (1, 1))
    prepare(recipe_for(folder))
    after = modification_times(directory)
    assert {name for name in after if after[name] != before[name]} <= {"stamps.json", directory.name}


@pytest.mark.slow
@pytest.mark.parametrize("option", ["data.max_tokens=30", "tokenizer.vocab_size=330", "data.drop_duplicates=false"])
def test_changed_options_invalidate_the_text(option: str, folder: Path) -> None:
    before = contents(prepare(recipe_for(folder)).directory)
    assert contents(prepare(recipe_for(folder, "run", option)).directory) != before
    assert contents(prepare(recipe_for(folder)).directory) == before


def test_changed_input_invalidates_the_text(folder: Path) -> None:
    prepare(recipe_for(folder))
    write_corpus(folder / "text", sentence_pairs(150), sentence_pairs(5))
    assert prepare(recipe_for(folder)).report["train"]["pairs"] == 150


@pytest.mark.slow
def test_changed_grammar_invalidates_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(folder, "run", "data.train=[{kind='toy',pairs=300}]")
    prepare(recipe)
    before = modification_times(recipe.data_directory)
    prepare(recipe)
    assert modification_times(recipe.data_directory) == before
    (folder / "nouns.py").write_text("another grammar", encoding="utf-8")
    monkeypatch.setattr("nmt.data.corpus.source_files", lambda: [folder / "nouns.py"])
    prepare(recipe)
    assert modification_times(recipe.data_directory) != before


def test_deleted_input_is_up_to_date(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = modification_times(directory)
    shutil.rmtree(folder / "text")
    prepare(recipe_for(folder))
    assert modification_times(directory) == before
    assert capsys.readouterr().err.count("no longer exists; using the text prepared from it") == 1


def test_text_that_is_outdated_is_not_said_to_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe_for(folder))
    (folder / "text" / "train.de").unlink()
    (folder / "text" / "train.en").write_text("another text\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.de: No such file"):
        prepare(recipe_for(folder))
    assert "no longer exists" not in capsys.readouterr().err


@pytest.mark.parametrize("change", ["text", "option"])
def test_new_validation_text_does_not_need_the_training_text(folder: Path, change: str) -> None:
    before = prepare(recipe_for(folder)).report
    (folder / "text" / "train.en").unlink()
    options = []
    if change == "text":
        (folder / "text" / "valid.de").write_text("anders\n" * 26, encoding="utf-8")
    else:
        options.append("model.max_positions=60")
    recipe = recipe_for(folder, "run", *options)
    assert outdated_splits(recipe, recipe.data_directory) == {"valid"}
    after = prepare(recipe).report
    assert outdated_splits(recipe, recipe.data_directory) == set()
    assert after["train"] == before["train"]
    assert after["inputs"][:2] == before["inputs"][:2]
    assert (after["inputs"] == before["inputs"]) == (change == "option")


def test_a_mistyped_path_is_detected_despite_a_deleted_input(folder: Path) -> None:
    prepare(recipe_for(folder))
    (folder / "text" / "train.en").unlink()
    recipe = recipe_for(folder, "run", "data.valid=[{kind='text',src='mistyped.en',tgt='mistyped.de'}]")
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    with pytest.raises(UserError, match=r"train\.en: No such file"):
        prepare(recipe)


def test_wrong_path_keeps_the_prepared_text(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    wrong = recipe_for(folder, "run", f"data.root='{folder / 'mistyped'}'")
    before = contents(directory)
    with pytest.raises(UserError, match=r"mistyped/train\.en"):
        prepare(wrong)
    assert contents(directory) == before
    for damaged in ("[]", ""):  # the path cannot be compared
        (directory / "stamps.json").write_text(damaged)
        with pytest.raises(UserError, match=r"mistyped/train\.en"):
            prepare(wrong)
    (directory / "stamps.json").unlink()
    with pytest.raises(UserError, match=r"mistyped/train\.en"):
        prepare(wrong)
    assert contents(directory) == {name: content for name, content in before.items() if name != "stamps.json"}
    prepare(recipe_for(folder))
    assert contents(directory) == before


def test_a_full_disk_leaves_the_stamps_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = contents(directory)
    os.utime(folder / "text" / "train.en", (1, 1))
    replacements: list[str] = []

    def full(path: Path, data: bytes, replaces: Path | None = None) -> None:
        replacements.append(path.name)
        path.write_bytes(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nmt.storage.sealed.write_synced", full)
    prepare(recipe_for(folder))
    assert [name for name in replacements if "stamps.json" in name]
    assert contents(directory) == before


def test_stamps_of_early_versions_match_any_path(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    (directory / "stamps.json").write_text("[[1, 2], [1, 2], [1, 2], [1, 2]]")  # without paths
    before = contents(directory)
    prepare(recipe_for(folder, "run", f"data.root='{folder / 'mistyped'}'"))
    assert contents(directory) == before


@pytest.mark.parametrize("what", ["text", "option"])
def test_changed_validation_text_keeps_the_training_text(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = prepare(recipe_for(folder)).directory
    before, identity = contents(directory), text_identity(load_prepared(directory).report, recipe_for(folder))
    recipe = recipe_for(folder, "run", *(["model.max_positions=60"] if what == "option" else []))
    if what == "text":
        write_corpus(folder / "text", [*sentence_pairs(200), *DIRTY], sentence_pairs(7))
    monkeypatch.setattr(preparation, "clean_corpora", None)  # the training text is not read
    report = prepare(recipe).report
    after = contents(directory)
    changed = {name for name in before if after.get(name) != before[name]}
    assert {name.partition(".")[0] for name in changed} - {"stamps"} == {"valid", "prepare"}
    assert report["valid"]["pairs_read"] == (7 if what == "text" else 26)
    assert report["train"] == json.loads(before["prepare.json"])["train"]
    assert text_identity(report, recipe) == identity
    monkeypatch.undo()
    shutil.rmtree(directory)
    assert contents(prepare(recipe).directory) == after


def test_validation_identity_depends_on_the_text_but_not_on_its_path(folder: Path) -> None:
    identity = prepare(recipe_for(folder)).valid_identity()
    moved = "data.valid=[{kind='text', src='other.en', tgt='other.de'}]"
    for side in ("en", "de"):
        shutil.copy(folder / "text" / f"valid.{side}", folder / "text" / f"other.{side}")
    assert prepare(recipe_for(folder, "run", moved)).valid_identity() == identity
    (folder / "text" / "other.de").write_text((folder / "text" / "other.de").read_text().replace("a", "o", 1))
    assert prepare(recipe_for(folder, "run", moved)).valid_identity() != identity


def test_text_identity_depends_on_options_and_input(folder: Path) -> None:
    first = recipe_for(folder)
    identity = text_identity(prepare(first).report, first)
    other = recipe_for(folder, "other", "data.max_tokens=30")
    assert text_identity(prepare(other).report, other) != identity
    write_corpus(folder / "text", sentence_pairs(200), sentence_pairs(5))
    assert text_identity(prepare(first).report, first) != identity


def test_damaged_text_is_prepared_again(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = contents(directory)
    (directory / "train.src.tokens.npy").write_bytes(b"short")
    with pytest.raises(UserError, match="damaged"):
        load_prepared(directory)
    prepare(recipe_for(folder))
    assert contents(directory) == before


def test_a_changed_option_is_named(folder: Path) -> None:
    report = prepare(recipe_for(folder)).report
    for option, name in (
        ("data.max_tokens=30", "data.max_tokens"),
        ("data.reverse_target=true", "data.reverse_target"),
        ("tgt_lang=fr", "tgt_lang"),
        ("tokenizer.vocab_size=330", "the tokenizer"),
        ("data.train=[{kind='text',src='train.en',tgt='train.de',tag='<a>'}]", "data.train"),
    ):
        assert describe_change(recipe_for(folder, "run", option), report) == name


def test_a_changed_weight_is_named(folder: Path) -> None:
    corpus = "{kind='text',src='train.en',tgt='train.de',weight=%s}"
    plain, weighted = (f"data.train=[{corpus % 1.0},{corpus % weight}]" for weight in (1.0, 2.0))
    report = prepare(recipe_for(folder, "run", plain)).report
    changed = "data.temperature or a weight of data.train"
    assert describe_change(recipe_for(folder, "run", weighted), report) == changed
    assert describe_change(recipe_for(folder, "run", plain, "data.temperature=5.0"), report) == changed


def test_a_local_dataset_that_loses_files_is_outdated(folder: Path) -> None:
    dataset = folder / "text" / "dataset"
    dataset.mkdir()
    for number, pairs in enumerate((sentence_pairs(200)[:150], sentence_pairs(200)[150:])):
        records = [json.dumps({"translation": {"en": src, "de": tgt}}) for src, tgt in pairs]
        (dataset / f"train-{number}.jsonl").write_text("\n".join(records), encoding="utf-8")
    recipe = recipe_for(folder, "run", "data.train=[{kind='huggingface', dataset='dataset'}]")
    report = prepare(recipe).report
    identity = text_identity(report, recipe)
    assert outdated_splits(recipe, recipe.data_directory) == set()
    note = " (all files of a local dataset count as input)"
    (dataset / "test.jsonl").touch()
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    assert describe_change(recipe, report) == f"{dataset / 'test.jsonl'}{note}"
    (dataset / "test.jsonl").unlink()
    (dataset / "train-1.jsonl").unlink()
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    change, root = "the list of input files, which no longer has", f"(data.root is {folder / 'text'})"
    assert describe_change(recipe, report) == f"{change} train-1.jsonl {root}{note},"
    shutil.rmtree(dataset)
    assert describe_change(recipe, report) == f"{change} train-0.jsonl {root}{note},"
    assert outdated_splits(recipe, recipe.data_directory, asks_hub=False) == {"train", "valid"}
    report = load_prepared(recipe.data_directory).report
    assert text_identity(report, recipe) == identity, "the identity depends only on the report"


def test_a_dataset_in_the_home_directory_is_not_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "mine").mkdir()
    recipe = recipe_for(folder, "run", "data.train=[{kind='huggingface', dataset='~/mine'}]")
    assert not unpinned_datasets(recipe, recipe.data.train)


@pytest.mark.slow
def test_a_changed_dataset_of_the_hub_is_prepared_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, commits = sentence_pairs(200), {"a/train": "1" * 40, "a/valid": "2" * 40}

    def dataset_info(self: object, name: str, **options: object) -> SimpleNamespace:
        if not commits:
            raise OSError("no network")
        return SimpleNamespace(sha=commits[name])

    def load_dataset(name: str, *args: object, **options: object) -> Records:
        return Records({"translation": {"en": src, "de": tgt}} for src, tgt in pairs)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("datasets.load.load_dataset", load_dataset)
    corpora = (f"data.{split}=[{{kind='huggingface', dataset='a/{split}'}}]" for split in ("train", "valid"))
    recipe = recipe_for(folder, "run", *corpora)
    assert prepare(recipe).report["commits"] == {
        name: {f"a/{name}": commits[f"a/{name}"]} for name in ("train", "valid")
    }
    identity = text_identity(load_prepared(recipe.data_directory).report, recipe)
    assert outdated_splits(recipe, recipe.data_directory) == set()
    commits["a/valid"] = "3" * 40
    assert outdated_splits(recipe, recipe.data_directory) == {"valid"}
    assert prepare(recipe).report["commits"]["valid"] == {"a/valid": "3" * 40}
    commits["a/train"] = "4" * 40
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    assert text_identity(prepare(recipe).report, recipe) == identity, "the commit changed another file"
    pairs, commits["a/train"] = pairs[1:], "5" * 40
    assert text_identity(prepare(recipe).report, recipe) != identity
    commits.clear()
    capsys.readouterr()
    assert prepare(recipe).report["commits"]["train"] == {"a/train": "5" * 40}
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert [line.partition(" (")[0].rpartition(" ")[0] for line in warnings] == [
        "warning: cannot check whether dataset a/train has",
        "warning: cannot check whether dataset a/valid has",
    ]
    assert all("set its `revision` to a commit" in line for line in warnings)
