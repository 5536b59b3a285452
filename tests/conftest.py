"""What all tests of the command line share."""

import os
import sys

import pytest
import torch
from hypothesis import settings

from nmt import cli
from nmt.processes.distributed import choose_device
from tests.calling import Nmt, Result
from tests.fake_cuda import install_device_guard

settings.register_profile("nmt", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("nmt")
install_device_guard()


# With NMT_TEST_DEVICE=cpu, tests that take the fixture `gpu` run on the CPU: a rehearsal, so that they work when a GPU
# is there.
REHEARSAL = os.environ.get("NMT_TEST_DEVICE") == "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        can_be_rehearsed = REHEARSAL and "gpu" in getattr(item, "fixturenames", ())
        if item.get_closest_marker("gpu") and not can_be_rehearsed:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_runtest_setup() -> None:
    """Compute with one thread: training sets the number of threads for the whole process, so for later tests too."""
    torch.set_num_threads(1)


@pytest.fixture
def gpu() -> torch.device:
    """The GPU, as the commands use it; in a rehearsal the CPU."""
    return choose_device("cpu" if REHEARSAL else f"cuda:{torch.cuda.current_device()}")


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Nmt:
    """Run a command in this process; gives exit status, stdout and stderr."""

    monkeypatch.setattr("nmt.logs._verbosity", "normal")  # to have it restored after `nmt -q`

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        out, err = capfd.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call
