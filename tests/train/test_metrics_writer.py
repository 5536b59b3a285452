"""metrics.jsonl and TensorBoard."""

import errno
import json
import math
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nmt.diagnostics.replay import _read_metrics, logged_metrics
from nmt.errors import UserError
from nmt.plots.curves import read_metrics
from nmt.train.metrics_writer import MetricsWriter


def test_resumed_run_does_not_repeat_metrics(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, {"train/loss": 10.0 - step})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "train/lo')  # killed while writing
    writer = MetricsWriter(tmp_path, after_step=2)
    writer.write(3, {"train/loss": 0.5})
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"step": 1, "train/loss": 9.0},
        {"step": 2, "train/loss": 8.0},
        {"step": 3, "train/loss": 0.5},
    ]


def test_non_finite_metrics_are_null(tmp_path: Path) -> None:
    """JSON has no NaN and no infinity: other programs reject a file with them."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": NaN, "train/perplexity": Infinity}\n')  # of earlier versions
    writer = MetricsWriter(tmp_path, after_step=1)
    writer.write(2, {"train/loss": 2.5, "train/nll": math.nan, "train/perplexity": math.inf})
    writer.close()
    old, new = path.read_text().splitlines()
    assert json.loads(old)["train/perplexity"] == math.inf
    assert new == '{"step": 2, "train/loss": 2.5, "train/nll": null, "train/perplexity": null}'
    assert read_metrics(path) == {"train/loss": [(2, 2.5)]}


def test_a_resume_never_loses_earlier_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 3)))
    before, inode = path.read_bytes(), path.stat().st_ino
    MetricsWriter(tmp_path, after_step=3).close()
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode), "nothing to drop"

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match="the disk is full while writing"):
        MetricsWriter(tmp_path, after_step=2)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["metrics.jsonl"]


def test_repeated_validation_is_written_once(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for step in (1, 2):
        writer.write(step, {"train/loss": 10.0 - step})
        writer.write(step, {"valid/loss": 5.0 - step})
    writer.close()
    MetricsWriter(tmp_path, after_step=2, validates_again=True).close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "train/loss": 9.0}, {"step": 1, "valid/loss": 4.0}, {"step": 2, "train/loss": 8.0}]


@pytest.mark.parametrize("content", [b"\x80\x04N.\n", b"[]\n", b"[1]\n", b"{}\n", b"no JSON\n"])
def test_damaged_metrics_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        MetricsWriter(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == content


@pytest.mark.parametrize("change", ["moved", "deleted", "replaced"])
def test_a_moved_deleted_or_replaced_run_directory_is_an_error(
    tmp_path: Path, change: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    writer = MetricsWriter(run)
    writer.write(1, {"train/loss": 5.0})
    if change == "deleted":
        shutil.rmtree(run)
    else:
        run.rename(tmp_path / "other")
    if change == "replaced":
        run.mkdir()
        (run / "metrics.jsonl").touch()
    with pytest.raises(UserError, match=r"metrics\.jsonl was moved or deleted during training; the run directory"):
        writer.write(2, {"train/loss": 4.0})
    writer.close()
    assert capfd.readouterr().err == ""


def test_tensorboard_of_a_resumed_run_hides_repeated_steps(tmp_path: Path) -> None:
    for after_step, loss in ((0, 5.0), (1, 3.0)):
        writer = MetricsWriter(tmp_path, after_step)
        for step in range(after_step + 1, 4):
            writer.write(step, {"train/loss": loss})
        writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 5.0), (2, 3.0), (3, 3.0)]


def test_tensorboard_has_metrics_and_texts(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write(5, {"valid/bleu": 33.25})
    writer.text(5, "valid/samples", "| a | b |")
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("valid/bleu")
    assert (scalar.step, scalar.value) == (5, 33.25)
    assert events.Tags()["tensors"] == ["valid/samples/text_summary"]


def test_damaged_lines_are_not_replayed(tmp_path: Path) -> None:
    damaged = b'[1]\n\xff\n{"step": 1, "train/loss": "x", "train/nll": 2.5, "train/grad": null, "valid/nll": 3}\n{"st'
    other_steps = b'{"step": null, "train/nll": 1}\n{"step": "1", "train/nll": 1}\n{"train/nll": 1}\n'
    (tmp_path / "metrics.jsonl").write_bytes(other_steps + damaged)
    assert [entry["step"] for entry in _read_metrics(tmp_path)] == [1]
    assert logged_metrics(tmp_path, 1) == pytest.approx({"train/nll": 2.5, "train/grad": math.nan}, nan_ok=True)
