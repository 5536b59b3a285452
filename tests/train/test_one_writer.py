"""Protection of a run: changed corpora, tokenizers and languages, and concurrent commands."""

import errno
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pytest import MonkeyPatch

from nmt import cli
from nmt.checkpoint import save_checkpoint
from nmt.data.prepare import load_prepared
from nmt.errors import UserError
from nmt.processes.distributed import World
from nmt.processes.run_lock import LOCK_FILE, run_lock
from nmt.recipe import load_recipe
from nmt.storage.model_metadata import longest_source_of, read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import write_directory, write_file
from nmt.text.tokenizer import Tokenizers
from nmt.train import trainer
from nmt.train.data import TrainingData
from tests.calling import Nmt, one_line
from tests.forked import PROCESSES

pytestmark = pytest.mark.usefixtures("no_curves")

ROOT = Path(__file__).resolve().parents[2]
LOCK_ONCE = """
import pathlib, sys
from nmt.processes.run_lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])): pass
"""
LOCK_AND_WRITE_NAME_LATE = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(0.3)
file.write("process 7")
file.flush()
time.sleep(30)
"""
RECIPE = """
name = "small"
src_lang = "en"
tgt_lang = "de"
[data]
root = "FOLDER"
workers = 1
max_tokens = 60
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
[tokenizer]
vocab_size = 300
[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
max_positions = 64
[train]
max_steps = 4
batch_tokens = 300
micro_batch_tokens = 300
schedule = "constant"
learning_rate = 0.01
warmup_steps = 2
validate_every = 4
save_every = 2
average_count = 1
device = "cpu"
threads = 1
"""


def write_text(folder: Path, split: str, first: int, count: int) -> None:
    numbers = range(first, first + count)
    (folder / f"{split}.en").write_text("".join(f"the cat sees {n} mice\n" for n in numbers))
    (folder / f"{split}.de").write_text("".join(f"die Katze sieht {n} Mäuse\n" for n in numbers))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_text(tmp_path, "train", 0, 200)
    write_text(tmp_path, "valid", 900, 20)
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    return path


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts
    }


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


# --- The text of a run ------------------------------------------------------------------------------------------------


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


# --- One writer -------------------------------------------------------------------------------------------------------


def hold(run: Path, ready: Event) -> None:
    with run_lock(run):
        ready.set()
        time.sleep(60)


@contextmanager
def holding(run: Path) -> Iterator[BaseProcess]:
    """Start a process that holds the lock of a run for a minute; kill it at the end of a `with` block."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(run, ready))
    process.start()
    try:
        assert ready.wait(20)
        yield process
    finally:
        process.kill()
        process.join()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[BaseProcess]:
    with holding(tmp_path / "run") as process:
        yield process


@pytest.mark.parametrize("command", ["train", "run", "prepare"])
def test_a_locked_run_is_rejected(command: str, recipe: Path, tmp_path: Path, holder: BaseProcess, nmt: Nmt) -> None:
    status, _, err = nmt(command, recipe, f"run_dir={tmp_path / 'run'}")
    assert status == 1
    assert f"is in use by process {holder.pid} on " in err and "choose another name" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]


def test_a_run_that_this_process_has_locked_is_rejected(tmp_path: Path) -> None:
    """The kernel's record locks belong to a process. Closing a second descriptor of the file would release them."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "run")
    message = "run is in use by another thread of this process; only"
    with run_lock(tmp_path / "run"):
        for path in (tmp_path / "run", link):
            with pytest.raises(UserError, match=message), run_lock(path):
                pass
        held = subprocess.run(
            [sys.executable, "-c", LOCK_ONCE, str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True
        )
        assert f"is in use by process {os.getpid()} on " in held.stderr
    with run_lock(tmp_path / "run"):
        pass


def test_another_thread_may_lock_a_run_while_a_file_is_written(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    samestat = os.path.samestat

    def slow(first: os.stat_result, second: os.stat_result) -> bool:
        monkeypatch.undo()
        thread = threading.Thread(target=other.__enter__)
        thread.start()
        thread.join()
        return samestat(first, second)

    with run_lock(tmp_path / "run"):
        other = run_lock(tmp_path / "other")
        monkeypatch.setattr("os.path.samestat", slow)
        write_file(tmp_path / "run" / "file", b"content")
        other.__exit__(None, None, None)
    assert (tmp_path / "run" / "file").read_bytes() == b"content"


@pytest.mark.slow
def test_one_of_many_concurrent_threads_locks_a_run(tmp_path: Path) -> None:
    num_threads, old_interval = 8, sys.getswitchinterval()
    start, end = threading.Barrier(num_threads), threading.Barrier(num_threads)
    results = queue.Queue[str]()

    def lock() -> None:
        start.wait(20)
        try:
            with run_lock(tmp_path / "run"):
                results.put("locked")
                end.wait(20)
        except UserError as error:
            results.put(str(error))
            end.wait(20)

    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            threads = [threading.Thread(target=lock) for _ in range(num_threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found = [results.get_nowait() for _ in range(num_threads)]
            assert found.count("locked") == 1
            assert sum("in use by another thread" in text for text in found) == num_threads - 1
    finally:
        sys.setswitchinterval(old_interval)


def test_a_directory_that_its_previous_holder_removes_is_created_again(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    run, mkdir = tmp_path / "runs" / "run", Path.mkdir

    def mkdir_and_lose(path: Path, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Path, "mkdir", mkdir)
        mkdir(path, *args, **kwargs)
        path.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    with run_lock(run):
        assert (run / LOCK_FILE).exists()
    assert not (tmp_path / "runs").exists()


def test_the_lock_of_a_killed_process_is_released(recipe: Path, tmp_path: Path, holder: BaseProcess, nmt: Nmt) -> None:
    run = tmp_path / "run"
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert (run / LOCK_FILE).exists()
    assert nmt("prepare", recipe, f"run_dir={run}")[0] == 0
    assert not (run / LOCK_FILE).exists()


@pytest.mark.slow
def test_a_holder_that_writes_its_name_late_is_named(tmp_path: Path) -> None:
    """One of two concurrent commands has the lock, but has not written its name yet."""
    command = [sys.executable, "-c", LOCK_AND_WRITE_NAME_LATE, str(tmp_path / LOCK_FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(UserError, match="is in use by process 7; "), run_lock(tmp_path):
            pass
        holder.kill()


@pytest.mark.slow
def test_children_do_not_hold_the_lock(tmp_path: Path) -> None:
    with run_lock(tmp_path / "run"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
        forked = os.fork()
        if not forked:
            time.sleep(60)
            os._exit(0)
    try:
        subprocess.run([sys.executable, "-c", LOCK_ONCE, str(tmp_path / "run")], check=True, cwd=ROOT)
    finally:
        child.kill()
        child.wait()
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_errors_leave_no_empty_directory(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "train.de").unlink()
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'runs' / 'new'}")
    assert status != 0 and "train.de" in err
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_directory_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), run_lock(tmp_path / "file" / "run"):
        pass


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    message = r"the disk is full while writing .*\.lock; free some space, or set run_dir to another disk"
    with pytest.raises(UserError, match=message), run_lock(tmp_path / "runs" / "new"):
        pass
    assert not (tmp_path / "runs").exists()


def test_a_deleted_run_is_not_written_into_its_successor(tmp_path: Path) -> None:
    """`rm -r` of the run, then the same command again: the first command must not write into the new run."""
    run = tmp_path / "run"
    with ExitStack() as stack:
        with run_lock(run):
            write_file(run / "report.md", b"first")
            shutil.rmtree(run)
            with pytest.raises(UserError, match=r"run/\.lock was deleted or replaced"):
                write_file(run / "report.md", b"first")
            successor = stack.enter_context(holding(run))
            with pytest.raises(UserError, match=r"must stay in place until its command ends; new is not written"):
                write_directory(run / "checkpoints" / "new", {"a": b""})
            write_file(tmp_path / "elsewhere", b"")
        assert [path.name for path in run.iterdir()] == [LOCK_FILE]  # of the successor
        with pytest.raises(UserError, match=f"is in use by process {successor.pid}"), run_lock(run):
            pass


@pytest.mark.slow
def test_a_deleted_run_ends_its_training(recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: MonkeyPatch) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    save = save_checkpoint

    def replace_run(*arguments: Any) -> Path:
        if not other.exists():
            run.rename(other)
            run.mkdir()
            (run / LOCK_FILE).write_text("process 7")
        return save(*arguments)

    monkeypatch.setattr(trainer, "save_checkpoint", replace_run)
    status, _, err = nmt("train", recipe, f"run_dir={run}")
    assert status == 1 and "Traceback" not in err
    # Checkpoints are written in the background, so the metrics writer may be the first to notice.
    assert "step-00000002 is not written; rerun" in err or "was moved or deleted during training" in err
    assert [path.name for path in run.iterdir()] == [LOCK_FILE]


@pytest.mark.parametrize("content", [b"mine", b"\xff\xfe mine"])
def test_a_lock_of_another_program_is_kept(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / LOCK_FILE
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not the lock of a run; move it away"), run_lock(path.parent):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory"])
def test_the_lock_must_be_a_regular_file(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "run" / LOCK_FILE, tmp_path / "notes"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    with (
        pytest.raises(UserError, match=r"is not a regular file, as a lock must be; remove .+, then"),
        run_lock(path.parent),
    ):
        pass
    assert not other.exists() or other.read_text() == "mine"
    assert os.path.lexists(path)


def run_command(arguments: list[str], stderr: Path) -> None:
    """Run the command line in a new process, with stderr in a file."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    sys.argv = ["nmt", *arguments]
    cli.main()


@pytest.mark.slow
def test_concurrent_commands_make_one_run(recipe: Path, tmp_path: Path) -> None:
    """One trains; the other reports the lock, or finds the run complete."""
    command = ["train", str(recipe), f"run_dir={tmp_path / 'run'}", "train.max_steps=40"]
    files = [tmp_path / "first.err", tmp_path / "second.err"]
    both = [PROCESSES.Process(target=run_command, args=(command, file)) for file in files]
    try:
        for process in both:
            process.start()
        for process in both:
            process.join(120)
    finally:
        for process in both:
            process.kill()
    messages = [file.read_text() for file in files]
    assert sorted(process.exitcode for process in both if process.exitcode is not None) in ([0, 0], [0, 1]), messages
    assert sum("is in use by process" in text or "training is complete" in text for text in messages) == 1
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [*range(4, 41, 4), 40]  # every validation once, and the training metrics at the end
