"""The command line: one module per command or family of commands; `program` combines them."""

import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

# Waiting OpenMP threads spin this many times before they sleep. GCC's default is 300,000; it makes training up to ten
# times slower while other programs run, and 6% faster on exclusive cores.
_SPIN_COUNT = "1000"


def main() -> None:
    """Run the command line and exit.

    The commands are imported here because worker processes import this module too, and most need none of them.
    """
    if sys.platform == "win32":  # no POSIX signals, file locks and pipes
        sys.exit("nmt: Windows is not supported; use Linux or macOS, or the Windows Subsystem for Linux")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)  # read once, when torch is imported
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # finding them takes 10 ms
    os.environ["MPLBACKEND"] = "agg"  # an unknown one prevents the import of matplotlib, also in comet-score
    gc.disable()  # during imports, which create no garbage; `Program.resolve_command` enables it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in background jobs of shells
        signal.signal(signal.SIGINT, _exit_immediately)  # `Program.resolve_command` restores the default
    from nmt.cli.program import main as run_program  # noqa: PLC0415

    run_program()


def _exit_immediately(_number: int, _frame: FrameType | None) -> None:
    """Exit during imports, where extension modules turn KeyboardInterrupt into other errors; no work has started."""
    with suppress(OSError):  # stderr may be closed
        os.write(2, b"nmt: interrupted\n")
    os._exit(130)
