"""Worker processes that translate with torch: only they load the model."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from nmt.errors import RecipeError
from nmt.streams import torch_workers
from nmt.streams.records import Record
from nmt.streams.torch_workers import start_torch_workers
from nmt.streams.workers import Counts, TranslatedWindow, WindowTranslator

pytestmark = pytest.mark.slow

WINDOWS = [[Record(number, "", "a")] for number in range(3)]


class ProcessIdTranslator:
    """Translates each window as the id of its process."""

    def __call__(self, window: list[Record]) -> TranslatedWindow:
        return TranslatedWindow(str(os.getpid()), "", Counts(1, 1))


def load_translator(parent: int, in_parent: bool) -> WindowTranslator:
    """Load the translator; fail in a process of the wrong kind."""
    assert (os.getpid() == parent) == in_parent
    return cast(WindowTranslator, ProcessIdTranslator())


def fail_to_load() -> WindowTranslator:
    raise RecipeError("this option does not fit the model")


def translate(processes: int | None, load: Callable[[], WindowTranslator], *, is_pipe: bool = False) -> set[str]:
    """Translate the windows; return the ids of the processes."""
    num_lines, wait = (None, lambda seconds: True) if is_pipe else (len(WINDOWS), None)
    with start_torch_workers("cpu", processes) as workers:
        return {result.text for result in workers.translate(load, iter(WINDOWS), wait, num_lines)}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_workers, "num_cores", lambda: 2)
    monkeypatch.setattr(torch_workers, "LINES_PER_PROCESS", 1)


@pytest.mark.parametrize(("processes", "is_pipe"), [(2, False), (None, False), (2, True)])
def test_only_workers_load_the_model(processes: int | None, is_pipe: bool) -> None:
    ids = translate(processes, partial(load_translator, os.getpid(), in_parent=False), is_pipe=is_pipe)
    assert 1 <= len(ids) <= 2
    assert str(os.getpid()) not in ids


def test_workers_that_exceed_the_memory_end_before_this_process_loads_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_workers, "free_host_memory", lambda: 0)
    events: list[str] = []

    def load_here() -> WindowTranslator:
        events.append("load")
        return load_translator(os.getpid(), in_parent=True)

    def map_in_order(*arguments: object, option: str) -> Iterator[int]:
        events.append(f"start {arguments[2]} workers")
        try:
            yield 10**9
        finally:
            events.append("end workers")

    monkeypatch.setattr(torch_workers, "map_in_order", map_in_order)
    assert translate(None, load_here) == {str(os.getpid())}
    assert events == ["start 2 workers", "end workers", "load"]


@pytest.mark.parametrize(("device", "expected"), [("cpu", 2), ("cuda", 1)])
def test_0_processes_are_one_per_core_or_one_on_a_gpu(
    device: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SimpleNamespace(size=1, is_main=True, device=SimpleNamespace(type=device))
    monkeypatch.setattr(torch_workers, "start_world", lambda *arguments: nullcontext(world))
    with start_torch_workers(device, 0) as workers:
        assert cast(torch_workers._TorchWorkers, workers).processes == expected


@pytest.mark.parametrize("processes", [2, None])
def test_an_error_while_loading_is_raised_before_the_first_result(
    processes: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with start_torch_workers("cpu", processes) as workers, pytest.raises(RecipeError, match="does not fit the model"):
        workers.translate(fail_to_load, iter(WINDOWS), None, len(WINDOWS))
    assert capfd.readouterr().err == ""
