"""metrics.jsonl, TensorBoard, progress lines, durations and verbosity."""

import json
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nmt import logs
from nmt.logs import MetricsWriter, format_duration, progress
from nmt.recipe import UserError


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


def test_repeated_validation_is_written_once(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for step in (1, 2):
        writer.write(step, {"train/loss": 10.0 - step})
        writer.write(step, {"valid/loss": 5.0 - step})
    writer.close()
    MetricsWriter(tmp_path, after_step=2, validates_again=True).close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "train/loss": 9.0}, {"step": 1, "valid/loss": 4.0}, {"step": 2, "train/loss": 8.0}]


@pytest.mark.parametrize("content", [b"\x80\x04N.\n", b"[]\n", b"{}\n", b"no JSON\n"])
def test_damaged_metrics_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        MetricsWriter(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == content


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


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5.0 s"), (64, "1 min 04 s"), (3599, "59 min 59 s"), (3725, "1 h 02 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_progress_without_a_terminal_is_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs, "monotonic", lambda: now[0])
    with progress("counting", 100, "pairs") as bar:
        bar.advance(10)
        now[0] += 20
        bar.advance(10)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == "counting: 20 of 100 pairs, 1.0/s, 1 min 20 s left"


def test_time_left_ignores_progress_of_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs, "monotonic", lambda: now[0])
    with progress("training", 1000, "updates", done=900) as bar:
        now[0] += 20
        bar.advance(0)
        now[0] += 20
        bar.advance(20)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["training: 900 of 1,000 updates", "training: 920 of 1,000 updates, 0.5/s, 2 min 40 s left"]


def test_quiet_prints_only_warnings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(logs, "monotonic", lambda: now[0])
    monkeypatch.setattr(logs, "_verbosity", "quiet")
    with progress("counting", 100, "pairs") as bar:
        now[0] += 20
        bar.advance(10)
    logs.say("counted")
    logs.warn("few pairs")
    assert capsys.readouterr().err == "warning: few pairs\n"


def test_verbose_prints_times(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logs, "_verbosity", "verbose")
    logs.say("counted")
    logs.warn("few pairs")
    assert re.fullmatch(r"\d\d:\d\d:\d\d counted\n\d\d:\d\d:\d\d warning: few pairs\n", capsys.readouterr().err)
