"""What all tests of the command line share."""

import sys

import pytest
from calling import Nmt, Result
from fake_cuda import install_device_guard
from hypothesis import settings

from nmt import cli

settings.register_profile("nmt", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("nmt")
install_device_guard()


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Nmt:
    """Run a command in this process; gives exit status, stdout and stderr."""

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
