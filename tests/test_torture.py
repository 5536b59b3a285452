"""`tools/torture`: injected faults, comparison of runs, and short runs of its cases."""

import errno
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torture_cases import __main__ as command_line
from torture_cases.damage import _check_detection, malicious_pickle
from torture_cases.faults import ALLOCATING, Fault, watching_files
from torture_cases.run_state import check_repeated, differences, max_loss_difference, metrics
from torture_cases.sandbox import Case, Sandbox, Trial

from nmt.errors import UserError
from nmt.storage.sealed import verify_directory, write_directory

ROOT = Path(__file__).resolve().parents[1]
FILES = {"weights": b"12345678", "state": b"{}"}


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the module as `tools/torture` does."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"}
    command = [sys.executable, "-m", "torture_cases", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


# --- Cases ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quick_cases_pass(tmp_path: Path) -> None:
    out = tmp_path / "torture.jsonl"
    done = torture("--quick", "--only", "save", "--only", "damage", "--out", str(out), "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["case"] for record in records] == ["save", "damage"]
    assert all(record["trials"] == record["passed"] > 0 for record in records)
    assert records[1]["trials"] > 200
    assert "| damage | " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [out.name], "the working folder must be removed"


def test_damage_that_is_not_detected_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed, folder = tmp_path / "sealed", tmp_path / "runs"
    folder.mkdir()
    write_directory(sealed, FILES)
    (sealed / "weights").write_bytes(b"1234567")

    def trials(_sandbox: Sandbox, _quick: bool) -> Iterator[Trial]:
        yield Trial("weights", _check_detection(sealed))

    monkeypatch.setattr(command_line, "CASES", (Case("damage", "a truncation", 1, trials),))
    monkeypatch.setattr(sys, "argv", ["torture", "--folder", str(folder)])
    assert command_line.main() == 0
    assert list(folder.iterdir()) == []
    capsys.readouterr()
    monkeypatch.setattr("torture_cases.run_state.verify_directory", lambda _: None)
    assert command_line.main() == 1
    out, err = capsys.readouterr()
    assert "1 failed:\n- damage: weights: the damage was not detected\n" in out
    (kept,) = folder.iterdir()
    assert f"kept the working folder {kept}\n" in err


def test_help_lists_every_case(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["torture", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        command_line.main()
    shown = capsys.readouterr().out
    assert {"kill", "views", "sizes"} < {case.name for case in command_line.CASES}
    for case in command_line.CASES:
        assert f"\n  {case.name} " in shown


@pytest.mark.parametrize(
    ("option", "path", "message"),
    [
        ("--folder", "absent", "absent is not a folder"),
        ("--out", "absent/results.jsonl", "absent is not a folder"),
        ("--out", ".", "--out . is a folder; it must be a file"),
    ],
)
def test_wrong_paths_are_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, path: str, message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["torture", option, path])
    with pytest.raises(SystemExit, match="2"):
        command_line.main()
    assert message in capsys.readouterr().err


# --- Faults -----------------------------------------------------------------------------------------------------------


def test_every_file_operation_is_reported(tmp_path: Path) -> None:
    seen: list[str] = []
    run = tmp_path / "run"
    run.mkdir()
    with watching_files(run, lambda kind, path, _: seen.append(f"{kind} {path.relative_to(run)}")):
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


def write_on_a_full_disk(first_failure: int, directory: Path) -> None:
    """Write a sealed directory; allocating file operations fail from number `first_failure` on, counted from 1."""
    operations = 0

    def watch(kind: str, path: Path, _: object) -> None:
        nonlocal operations
        if kind in ALLOCATING:
            operations += 1
            if operations >= first_failure:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with watching_files(directory.parent, watch):
        write_directory(directory, FILES)


def test_a_full_disk_leaves_no_partial_directory(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    # Make, sync and rename the directory; create, write and sync every file and the manifest.
    num_operations = 3 + 3 * (len(FILES) + 1)
    for first_failure in range(1, num_operations + 1):
        with pytest.raises(UserError, match="full"):
            write_on_a_full_disk(first_failure, sealed)
        assert list(tmp_path.iterdir()) == []
    write_on_a_full_disk(1_000, sealed)
    verify_directory(sealed)


def test_a_watcher_can_write_half_of_the_data(tmp_path: Path) -> None:
    halves: list[bytes] = []

    def watch(kind: str, path: Path, write_half: Callable[[], object] | None) -> None:
        if kind == "write" and write_half is not None:
            write_half()
            halves.append(path.read_bytes())

    with watching_files(tmp_path, watch):
        (tmp_path / "file").write_bytes(b"12345678")
    assert halves == [b"1234"]


def test_faults_survive_json() -> None:
    fault = Fault("file", 3, "full-run", step=20, rank=1)
    assert Fault.from_json(fault.to_json()) == fault


# --- Comparison of runs -----------------------------------------------------------------------------------------------


def write_run(run: Path, steps: list[int], reached: int, loss: float = 1.0, seconds: float = 2.0) -> Path:
    """Write a run with checkpoints of these steps that was killed after step `reached`, while it wrote metrics."""
    for step in steps:
        checkpoint = run / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        (checkpoint / "state.json").write_text(json.dumps({"step": step, "seconds": seconds}))
    lines = [
        {"step": step, "train/loss": loss, "train/tokens_per_second": 9 / seconds} for step in range(1, reached + 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 999, "cut sh')
    return run


def test_differences_between_runs_are_listed(tmp_path: Path) -> None:
    reference = write_run(tmp_path / "reference", [5, 10], 12)
    assert differences(write_run(tmp_path / "same", [10], 12, seconds=3.0), reference) == []
    assert differences(write_run(tmp_path / "short", [5], 12), reference)
    assert "metrics.jsonl (11 lines" in differences(write_run(tmp_path / "lines", [10], 11), reference)[0]
    assert "from step 1" in differences(write_run(tmp_path / "loss", [10], 12, loss=1.1), reference)[0]
    last = write_run(tmp_path / "bytes", [10], 12) / "checkpoints" / "step-00000010"
    (last / "model.safetensors").write_bytes(b"weighty")
    (last / "state.json").write_text('{"step": 11}')
    assert differences(tmp_path / "bytes", reference) == ["step-00000010/model.safetensors", "state.json"]


def test_losses_are_compared_per_step(tmp_path: Path) -> None:
    reference = write_run(tmp_path / "reference", [5], 12)
    near = write_run(tmp_path / "near", [5], 12, loss=1.001)
    assert max_loss_difference(near, reference)[0] == pytest.approx(1e-3)
    assert max_loss_difference(write_run(tmp_path / "short", [5], 11), reference)[1] is not None
    assert len(metrics(near)) == 12


def test_at_most_one_interval_may_be_repeated(tmp_path: Path) -> None:
    assert check_repeated(write_run(tmp_path / "a", [5, 10], 15), 5) == (5, None)
    run = write_run(tmp_path / "b", [5, 10], 16)
    assert check_repeated(run, 5)[1] is not None
    (run / "checkpoints" / ".step-00000015.part-1").mkdir()  # an unfinished save
    assert check_repeated(run, 5) == (6, None)
    assert check_repeated(write_run(tmp_path / "c", [5], 15), 5)[1] is not None


def test_two_intervals_may_be_repeated_during_an_unfinished_save(tmp_path: Path) -> None:
    for last, is_allowed in (20, True), (21, False):  # update 20 is logged before its save waits for that of update 15
        run = write_run(tmp_path / str(last), [5, 10], last)
        (run / "checkpoints" / ".step-00000015.part-1").mkdir()
        again, problem = check_repeated(run, 5)
        assert (again, problem is None) == (last - 10, is_allowed)


# --- Malicious pickles ------------------------------------------------------------------------------------------------


def test_malicious_pickles_are_executed_by_unsafe_loaders(tmp_path: Path) -> None:
    loads: dict[str, Callable[[bytes], object]] = {
        ".json": pickle.loads,
        ".npy": lambda content: np.load(io.BytesIO(content), allow_pickle=True),
        ".safetensors": lambda content: torch.load(io.BytesIO(content), weights_only=False),
    }
    for suffix, load in loads.items():
        marker = tmp_path / f"executed{suffix}"
        load(malicious_pickle(marker, suffix))
        assert marker.is_dir()
