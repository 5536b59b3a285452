"""Progress lines, durations and verbosity."""

import io
import re

import pytest
from rich.console import Console

from nmt import logs
from nmt.logs import format_duration, format_rate, progress
from nmt.terminal_bar import open_bar


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5.0 s"), (64, "1 min 04 s"), (3599, "59 min 59 s"), (3725, "1 h 02 min")]
)
def test_durations_have_units_of_their_size(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(1234.5, "1,234 updates/s"), (0.52, "0.5 updates/s"), (0.05, "180 updates/h")]
)
def test_slow_rates_are_per_hour(rate: float, text: str) -> None:
    assert format_rate(rate, " updates") == text


def test_the_terminal_bar_shows_slow_rates_per_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now, output = [100.0], io.StringIO()
    screen = Console(file=output, force_terminal=True, width=120, get_time=lambda: now[0])
    monkeypatch.setattr("nmt.terminal_bar.console", screen)
    bar, task = open_bar("training", 100, "updates", 0, format_rate)
    for _ in range(3):
        now[0] += 20
        bar.update(task, advance=1)
    bar.stop()
    assert "180 updates/h" in output.getvalue()


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


def test_bytes_of_a_path_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    logs.print_line("Gr\udcc3\udcb6\udcc3\udc9fe m\udcff")
    assert capsys.readouterr().err == "Größe m\\xff\n"
