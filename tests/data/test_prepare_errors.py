"""Preparation that fails, is killed or would overwrite files."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.data.cleaning import Frame
from nmt.data.fingerprint import outdated_splits
from nmt.data.prepare import load_prepared, prepare
from nmt.errors import UserError
from nmt.processes.run_lock import LOCK_FILE, run_lock
from nmt.recipe import dump_recipe
from tests.data.directories import contents, one_line_error
from tests.data.dirty_corpus import recipe_for, sentence_pairs, write_corpus
from tests.processes.sessions import assert_session_ends

ROOT = Path(__file__).parents[2]


DYING_PROGRAM = """
import os, signal, sys
from pathlib import Path
from nmt.data import corpus
from nmt.data.cleaning import Frame
from nmt.data.prepare import prepare
from nmt.recipe import load_recipe

write = Frame.write

def write_and_die(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    Frame.write = write_and_die
    corpus.PAIRS_PER_CHUNK = 50
    prepare(load_recipe(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_killed_preparation_is_not_reused(folder: Path) -> None:
    recipe = recipe_for(folder, "killed", "data.workers=2")
    (folder / "recipe.toml").write_text(dump_recipe(recipe))
    (folder / "program.py").write_text(DYING_PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder / "recipe.toml")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    assert process.wait() == -signal.SIGKILL
    assert [path.name for path in (folder / "killed").iterdir()] == [f".data.part-{process.pid}"]
    assert_session_ends(process.pid)
    prepare(recipe_for(folder, "killed"))
    prepare(recipe_for(folder, "whole"))
    assert contents(folder / "killed" / "data") == contents(folder / "whole" / "data")
    assert [path.name for path in (folder / "killed").iterdir()] == ["data"]


def test_text_is_kept_if_a_preparation_is_killed_while_it_replaces_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_for(folder)
    prepared = prepare(recipe)
    before = contents(prepared.directory)
    prepared.directory.rename(prepared.directory.with_name(".data.replaced"))  # the first of two renames
    (folder / "text" / "train.de").unlink()
    with pytest.raises(UserError, match=r"train\.de: No such file"):
        prepare(recipe)
    assert contents(prepared.directory) == before
    capsys.readouterr()
    prepare(recipe)
    assert "no longer exists; using the text prepared from it" in capsys.readouterr().err


def test_input_errors_leave_no_files(folder: Path) -> None:
    (folder / "text" / "train.de").write_text("one line\n")
    one_line_error(recipe_for(folder), r"train\.en has 211 sentences and .*train\.de has 1")
    (folder / "text" / "train.de").unlink()
    one_line_error(recipe_for(folder), "cannot read .*No such file")
    (folder / "text" / "train.de").write_bytes(b"\xff\n" * 211)
    one_line_error(recipe_for(folder), r"train\.de, line 1: byte 0xff is not UTF-8")
    recipe = recipe_for(folder, "run", "data.train=[{kind='sgm', src='no.sgm', tgt='no.sgm'}]")
    one_line_error(recipe, r"no\.sgm: No such file; no\.sgm is relative to data\.root")


def test_a_corpus_file_that_became_a_pipe_is_an_error(folder: Path) -> None:
    prepare(recipe_for(folder))
    (folder / "text" / "train.de").unlink()
    os.mkfifo(folder / "text" / "train.de")
    with pytest.raises(UserError, match=r"train\.de is a pipe, but is read more than once"):
        prepare(recipe_for(folder))


def test_a_corpus_without_usable_pairs_is_an_error(folder: Path) -> None:
    write_corpus(folder / "text", [("кошка", "Katze"), ("собака", "Hund"), ("", "")], sentence_pairs(5))
    one_line_error(recipe_for(folder), "all 3 training pairs were dropped, 2 of them as 'wrong script'")
    (folder / "text" / "train.tsv").write_text("the old dog sees a cat\tder alte Hund\n")
    tsv = recipe_for(folder, "run", "data.train=[{kind='tsv', path='train.tsv', src_column=0, tgt_column=0}]")
    one_line_error(tsv, "as 'identical sides'; at least one must remain; check data.drop_identical, the languages")
    write_corpus(folder / "text", [], sentence_pairs(5))
    one_line_error(recipe_for(folder), r"data\.train has no sentences")
    write_corpus(folder / "text", sentence_pairs(100), [])
    one_line_error(recipe_for(folder, "run"), r"data\.valid\.0 has no sentence")
    write_corpus(folder / "text", sentence_pairs(100), sentence_pairs(5))
    one_line_error(recipe_for(folder, "run", "data.max_tokens=2"), "100 of them as 'too many tokens'")


def test_an_empty_validation_corpus_beside_others_is_an_error(folder: Path) -> None:
    (folder / "text" / "empty").write_text("")
    corpora = "{kind='text',src='valid.en',tgt='valid.de'},{kind='text',src='empty',tgt='empty'}"
    recipe = recipe_for(folder, "run", f"data.valid=[{corpora}]")
    message = r"data\.valid\.1 has no sentences; it must have at least one; correct or remove it"
    with pytest.raises(UserError, match=message):
        prepare(recipe)
    prepare(recipe_for(folder))  # then only the validation set is outdated
    with pytest.raises(UserError, match=message):
        prepare(recipe)


def test_an_unsuitable_vocabulary_size_is_an_error(folder: Path) -> None:
    one_line_error(recipe_for(folder, "run", "tokenizer.vocab_size=30000"), r"allows at most \d+ pieces")


def test_a_full_disk_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Frame, "write", fail)
    one_line_error(recipe_for(folder), "the disk is full while writing .*; .*; free some space, or set run_dir")


def test_an_unwritable_directory_is_an_error(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*Not a directory"):
        prepare(recipe_for(folder, "file"))
    assert (folder / "file").read_text() == ""


def test_other_directories_are_not_overwritten(folder: Path) -> None:
    directory = recipe_for(folder).data_directory
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(UserError, match="not a prepared corpus"):
        prepare(recipe_for(folder))
    assert (directory / "thesis.txt").read_text() == "irreplaceable"


@pytest.mark.parametrize("name", ["notes.txt", "train.en", "valid.de.txt", "tokenizer.old.model"])
def test_other_files_in_a_prepared_corpus_are_not_lost(name: str, folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    (directory / name).write_text("irreplaceable")
    assert not outdated_splits(recipe_for(folder), directory)
    with pytest.raises(UserError, match=rf"{re.escape(name)} is not part of the prepared corpus .*move it away"):
        prepare(recipe_for(folder, "run", "data.max_tokens=30"))
    assert (directory / name).read_text() == "irreplaceable"


LOCK = """
import sys
from pathlib import Path
from nmt.processes.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_two_runs_cannot_prepare_a_shared_folder_at_the_same_time(folder: Path) -> None:
    shared = folder / "shared" / "data"
    shared.mkdir(parents=True)
    recipes = recipe_for(folder, "one"), recipe_for(folder, "other", "data.max_tokens=30")
    for recipe in recipes:
        recipe.directory.mkdir()
        recipe.data_directory.symlink_to(shared)
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(shared.parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline()
        with pytest.raises(UserError, match=rf"is in use by process {holder.pid}"):
            prepare(recipes[0])
        holder.stdin.close()
    assert prepare(recipes[0]).directory.is_symlink() and shared.is_dir()
    assert prepare(recipes[1]).report["recipe"]["data"]["max_tokens"] == 30


def test_a_run_that_holds_its_lock_can_prepare_a_folder_inside_it(folder: Path) -> None:
    recipe = recipe_for(folder)
    with run_lock(recipe.directory):
        recipe.data_directory.symlink_to("elsewhere")
        prepare(recipe)
        assert (recipe.directory / LOCK_FILE).exists()
    assert (recipe.directory / "elsewhere").is_dir()


def test_text_of_another_trained_run_is_not_replaced_through_a_link(folder: Path) -> None:
    trained = prepare(recipe_for(folder, "trained")).directory
    other = recipe_for(folder, "other", "data.max_tokens=30")
    other.directory.mkdir()
    other.data_directory.symlink_to(trained)
    (trained.parent / "checkpoints" / "step-00000005").mkdir(parents=True)
    before = contents(trained)
    with pytest.raises(UserError, match=r"other/data is a link to the text of another run, .*trained, .*remove"):
        prepare(other)
    assert contents(trained) == before
    same = recipe_for(folder, "same")
    same.directory.mkdir()
    same.data_directory.symlink_to(trained)
    assert prepare(same).directory.is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stamps.json", "prepare.json"])
def test_damaged_reports_are_replaced(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = contents(directory)
    for damaged in ("", "5", "[1]", "[[1]]", "{}", "\ufffd", '{"format": 2}'):
        (directory / name).write_text(damaged, encoding="utf-8")
        capsys.readouterr()
        prepare(recipe_for(folder))
        assert contents(directory) == before, damaged
        wrong = "incomplete or of another version of nmt" if "format" in damaged else "unreadable"
        reason = f"preparing the text again: {directory / name} is {wrong}\n"
        assert (reason in capsys.readouterr().err) == (name == "prepare.json"), damaged


@pytest.mark.slow
def test_a_changed_digit_in_the_report_is_an_error(folder: Path) -> None:
    path = prepare(recipe_for(folder)).directory / "prepare.json"
    before = path.read_text(encoding="utf-8")
    for found in list(re.finditer("[0-9]", before))[::7]:
        changed = str((int(found[0]) + 1) % 10)
        path.write_text(before[: found.start()] + changed + before[found.end() :], encoding="utf-8")
        with pytest.raises(UserError, match=r"prepare\.json is damaged: its content does not match its checksum"):
            prepare(recipe_for(folder))
        with pytest.raises(UserError, match=r"prepare\.json is damaged"):
            load_prepared(path.parent)
    path.write_text(before, encoding="utf-8")
    prepare(recipe_for(folder))
    assert path.read_text(encoding="utf-8") == before


def test_a_wrong_number_of_pairs_in_the_report_is_an_error(folder: Path) -> None:
    recipe = recipe_for(folder)
    prepared = prepare(recipe)
    prepared.mixture(recipe)
    prepared.report["train"]["corpora"][0]["pairs"] -= 1
    with pytest.raises(UserError, match=r"prepare\.json is damaged: it has [0-9]+ training pairs"):
        prepared.mixture(recipe)


def test_a_change_with_the_same_size_and_modification_time_is_detected(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    before, path = contents(directory), folder / "text" / "train.en"
    modified = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))
    os.utime(path, ns=(modified, modified))
    assert contents(prepare(recipe_for(folder)).directory) != before


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `nmt prepare`"):
        load_prepared(tmp_path)
