"""`nmt plot curves`: a figure of the metrics of a run, and one-line errors."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.calling import Nmt


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    lines = [{"step": step, "train/loss": 5.0 / step, "train/tokens_per_second": 900.0} for step in range(1, 9)]
    lines.append({"step": 8, "valid/loss": 2.0, "valid/perplexity": 7.4, "valid/bleu": 12.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.mark.slow
def test_curves_of_a_run_are_written_as_png(run_dir: Path, nmt: Nmt) -> None:
    status, out, err = nmt("plot", "curves", run_dir, "-o", run_dir / "a.png")
    assert (status, out, err) == (0, f"{run_dir / 'a.png'}\n", "")
    head = (run_dir / "a.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    assert width > 1200
    assert height > 600


@pytest.mark.slow
def test_curves_of_several_runs_are_plotted_in_one_figure(run_dir: Path, nmt: Nmt) -> None:
    (run_dir / "b").mkdir()
    (run_dir / "b" / "metrics.jsonl").write_text(json.dumps({"step": 1, "valid/bleu": 3.0}) + "\n")
    status, out, err = nmt("plot", "curves", run_dir, run_dir / "b", "-o", run_dir / "a.png")
    assert (status, out, err) == (0, f"{run_dir / 'a.png'}\n", "")


@pytest.mark.slow
def test_the_backend_of_the_environment_is_not_used(run_dir: Path) -> None:
    command = [sys.executable, "-m", "nmt", "plot", "curves", str(run_dir), "-o", str(run_dir / "a.png")]
    done = subprocess.run(command, env=os.environ | {"MPLBACKEND": "Qt4Agg"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_are_one_line(run_dir: Path, nmt: Nmt) -> None:
    (run_dir / "none").mkdir()
    (run_dir / "bad").mkdir()
    (run_dir / "bad" / "metrics.jsonl").write_text("{}\n")
    for folder, out, expected_status, expected in (
        (run_dir / "none", run_dir / "a.png", 1, "metrics.jsonl"),
        (run_dir / "bad", run_dir / "a.png", 1, "line 1 is not a JSON object with a step"),
        (run_dir, run_dir / "a.doc", 2, "the name needs an extension such as .png"),
        (run_dir, run_dir / "no" / "a.png", 1, "cannot write"),
    ):
        status, printed, err = nmt("plot", "curves", folder, "-o", out)
        assert (status, printed) == (expected_status, "")
        assert expected in err
        assert len(err.splitlines()) == 1
