"""Damage in prepared text is found before training."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from nmt import pipeline
from nmt.data.shared import verify_data
from nmt.errors import UserError
from nmt.processes.distributed import World
from nmt.recipe import load_recipe
from nmt.storage.run_folder import list_checkpoints
from tests.calling import Nmt
from tests.train.small_run import flip_a_bit
from tests.train.small_run import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")


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


def test_a_damaged_tokenizer_of_prepared_text_is_created_again(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    prepare = ("prepare", recipe, f"run_dir={tmp_path / 'run'}")
    assert nmt(*prepare)[0] == 0
    path = tmp_path / "run" / "data" / "tokenizer.model"
    content = path.read_bytes()
    path.write_bytes(b"\xff" * len(content))
    status, _, err = nmt(*prepare)
    assert status == 1
    assert err.splitlines()[-1].startswith(f"nmt: {path} is damaged: its SHA-256 is not the one in prepare.json; ")
    assert err.endswith(f"remove {path.parent}, then rerun to create it again\n")
    shutil.rmtree(path.parent)
    assert nmt(*prepare)[0] == 0
    assert path.read_bytes() == content


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
