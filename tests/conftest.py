"""Shared fixtures."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from hypothesis import settings

from nmt import cli
from nmt.processes.distributed import choose_device
from nmt.processes.parallel import _context
from tests import forked
from tests.calling import Nmt, Result
from tests.device_guard import install_device_guard
from tests.simulated_cuda import simulated_cuda

settings.register_profile("nmt", deadline=None)  # durations depend on the load of the machine
settings.load_profile("nmt")
install_device_guard()

# Variables of the shell that would change results: its job, repository, terminal, seed, and settings of nmt and tools.
_VARIABLES = re.compile(
    "(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|GIT_(DIR|INDEX_FILE|WORK_TREE)"
    "|SACREBLEU_SEED|COLUMNS|FORCE_COLOR|TTY_COMPATIBLE|NMT_.*"
)
for _name in filter(_VARIABLES.fullmatch, list(os.environ)):
    del os.environ[_name]

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def pytest_configure(config: pytest.Config) -> None:
    """Start the fork server of a pytest-xdist worker: a server preloads only the modules requested at its start."""
    if hasattr(config, "workerinput"):
        _context(forked.MODULES)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU, mark tests on a simulated one as slow, and skip the other tests marked `gpu`."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_runtest_setup() -> None:
    """Use one thread. Training sets the number of threads of the process, which would affect later tests."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Skip fsync: no test simulates a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@contextmanager
def _restored_signals() -> Iterator[None]:
    """Restore signal handlers: commands change those of their process, and processes started later inherit them."""
    handlers, mask = [signal.getsignal(number) for number in _SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    with _restored_signals():
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under `nohup`, which commands would respect
            signal.signal(signal.SIGHUP, lambda *_: None)
        yield


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """The GPU as used by the commands, or a simulated one."""
    with nullcontext() if torch.cuda.is_available() else simulated_cuda(None):
        yield choose_device(f"cuda:{torch.cuda.current_device()}")


@pytest.fixture
def real_gpu() -> torch.device:
    """The GPU as used by the commands; for tests marked `gpu` that a simulation cannot run."""
    return choose_device(f"cuda:{torch.cuda.current_device()}")


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Nmt:
    """Return a function that runs a command in this process and returns exit status, stdout and stderr."""
    monkeypatch.setattr("nmt.logs._verbosity", "normal")  # restored after `nmt -q`

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, arguments)])
        capfd.readouterr()
        with _restored_signals(), pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        gc.enable()  # commands that end before their work leave it disabled
        out, err = capfd.readouterr()
        code = ended.value.code
        status = code if isinstance(code, int) else int(code is not None)  # as the interpreter exits
        return status, out, err

    return call


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the curves at the end of `nmt run`: drawing takes longer than the rest of a tiny run."""
    monkeypatch.setattr("nmt.pipeline.reporting._draw_curves", lambda recipe: (None, ()))
