"""The torture itself: its faults happen, its judges see what is wrong, and a short course of it passes."""

import errno
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torture_cases.damage import bomb
from torture_cases.evidence import differences, farthest_losses, metrics, repeated
from torture_cases.faults import SPACE_TAKING, Fault, watched_files

from nmt.recipe import UserError
from nmt.storage.sealed import verify_directory, write_directory

ROOT = Path(__file__).resolve().parents[1]
FILES = {"weights": b"12345678", "state": b"{}"}


def torture(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run it as `tools/torture` does, with `path` before all else among the places to import from."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(map(str, (path, ROOT, ROOT / "tools")))}
    command = [sys.executable, "-m", "torture_cases", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


# --- Whole courses ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_course_passes(tmp_path: Path) -> None:
    out = tmp_path / "torture.jsonl"
    done = torture("--quick", "--only", "save", "--only", "damage", "--out", str(out), "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["case"] for record in records] == ["save", "damage"]
    assert all(record["trials"] == record["passed"] > 0 for record in records)
    assert records[1]["trials"] > 200
    assert "| damage | " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [out.name], "its folder must be gone"


@pytest.mark.slow
def test_a_program_that_does_not_verify_is_found_out(tmp_path: Path) -> None:
    sabotage = "import nmt.storage.sealed\nnmt.storage.sealed.verify_directory = lambda directory: None\n"
    (tmp_path / "sitecustomize.py").write_text(sabotage)
    done = torture("--quick", "--only", "damage", "--folder", str(tmp_path), path=tmp_path)
    assert done.returncode == 1
    assert "it was not found" in done.stdout
    assert "the runs are in" in done.stderr


@pytest.mark.slow
def test_help_names_every_case() -> None:
    shown = torture("--help")
    assert shown.returncode == 0
    for case in (
        "kill",
        "save",
        "full",
        "stop",
        "damage",
        "pickle",
        "twice",
        "shared",
        "streams",
        "lost",
        "terminate",
        "sizes",
    ):
        assert f"\n  {case} " in shown.stdout


# --- Faults -----------------------------------------------------------------------------------------------------------


def test_every_change_of_files_is_seen(tmp_path: Path) -> None:
    seen: list[str] = []
    run = tmp_path / "run"
    run.mkdir()
    with watched_files(run, lambda kind, path, _: seen.append(f"{kind} {path.relative_to(run)}")):
        (run / "new").mkdir()
        with (run / "new" / "weights").open("wb") as file:
            file.write(b"1234")
            os.fsync(file.fileno())
        descriptor = os.open(run / "new", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        (run / "new").rename(run / "old")
        (tmp_path / "elsewhere").write_text("x")
        assert (run / "old" / "weights").read_bytes() == b"1234"
        shutil.rmtree(run / "old")
    written = ["mkdir new", "create new/weights", "write new/weights", "fsync new/weights", "fsync new", "rename old"]
    assert seen == [*written, "remove old/weights", "remove old"]
    (run / "unseen").write_text("x")
    assert seen[-1] == "remove old"


def write_on_a_disk_full_from(change: int, directory: Path) -> None:
    """Seal a directory while the disk has no room from that change on, counted from 1."""
    changes = [0]

    def watch(kind: str, path: Path, _: object) -> None:
        changes[0] += kind in SPACE_TAKING
        if changes[0] >= change and kind in SPACE_TAKING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with watched_files(directory.parent, watch):
        write_directory(directory, FILES)


def test_a_full_disk_at_any_change_leaves_nothing_half_done(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    for change in range(1, 4 + 3 * len(FILES)):  # each of the files, and the manifest, is created, written and synced
        with pytest.raises(UserError, match="full"):
            write_on_a_disk_full_from(change, sealed)
        assert list(tmp_path.iterdir()) == []
    write_on_a_disk_full_from(99, sealed)
    verify_directory(sealed)


def test_half_a_write_is_half_a_write(tmp_path: Path) -> None:
    halves: list[bytes] = []

    def watch(kind: str, path: Path, write_half: Callable[[], object] | None) -> None:
        if kind == "write" and write_half is not None:
            write_half()
            halves.append(path.read_bytes())

    with watched_files(tmp_path, watch):
        (tmp_path / "file").write_bytes(b"12345678")
    assert halves == [b"1234"]


def test_a_fault_survives_the_way_into_another_process() -> None:
    fault = Fault("file", 3, "full-run", step=20, rank=1)
    assert Fault.from_json(fault.to_json()) == fault


# --- Evidence ---------------------------------------------------------------------------------------------------------


def write_run(run: Path, steps: list[int], reached: int, loss: float = 1.0) -> Path:
    for step in steps:
        checkpoint = run / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        (checkpoint / "state.json").write_text(json.dumps({"step": step, "seconds": os.urandom(1)[0]}))
    lines = [{"step": step, "train/loss": loss, "train/tokens_per_second": 9.0} for step in range(1, reached + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 999, "cut sh')
    return run


def test_equal_runs_are_equal_and_every_difference_is_named(tmp_path: Path) -> None:
    reference = write_run(tmp_path / "reference", [5, 10], 12)
    assert differences(write_run(tmp_path / "same", [10], 12), reference) == []
    assert differences(write_run(tmp_path / "short", [5], 12), reference)
    assert "metrics.jsonl (11 lines" in differences(write_run(tmp_path / "lines", [10], 11), reference)[0]
    assert "from step 1" in differences(write_run(tmp_path / "loss", [10], 12, loss=1.1), reference)[0]
    last = write_run(tmp_path / "bytes", [10], 12) / "checkpoints" / "step-00000010"
    (last / "model.safetensors").write_bytes(b"weighty")
    (last / "state.json").write_text('{"step": 11}')
    assert differences(tmp_path / "bytes", reference) == ["step-00000010/model.safetensors", "state.json"]


def test_losses_are_compared_step_by_step(tmp_path: Path) -> None:
    reference = write_run(tmp_path / "reference", [5], 12)
    near = write_run(tmp_path / "near", [5], 12, loss=1.001)
    assert farthest_losses(near, reference)[0] == pytest.approx(1e-3)
    assert farthest_losses(write_run(tmp_path / "short", [5], 11), reference)[1] is not None
    assert len(metrics(near)) == 12


def test_at_most_one_interval_may_be_repeated(tmp_path: Path) -> None:
    assert repeated(write_run(tmp_path / "a", [5, 10], 15), 5) == (5, None)
    run = write_run(tmp_path / "b", [5, 10], 16)
    assert repeated(run, 5)[1] is not None
    (run / "checkpoints" / ".step-00000015.part-1").mkdir()  # its save is under way
    assert repeated(run, 5) == (6, None)
    assert repeated(write_run(tmp_path / "c", [5], 15), 5)[1] is not None


# --- Bombs ------------------------------------------------------------------------------------------------------------


def test_the_malicious_pickles_do_go_off_where_pickle_is_allowed(tmp_path: Path) -> None:
    loads: dict[str, Callable[[bytes], object]] = {
        ".json": pickle.loads,
        ".npy": lambda content: np.load(io.BytesIO(content), allow_pickle=True),
        ".safetensors": lambda content: torch.load(io.BytesIO(content), weights_only=False),
    }
    for suffix, load in loads.items():
        sign = tmp_path / f"executed{suffix}"
        load(bomb(sign, suffix))
        assert sign.is_dir()
