"""The command line: one module per command or family of commands; `program` combines them."""

import gc
import os
import signal
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Run the command line and exit.

    The commands are imported here because worker processes import this module too, and most need none of them.
    """
    gc.disable()  # during imports, which leave no garbage; `Program.resolve_command` enables it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in background jobs of shells
        signal.signal(signal.SIGINT, _end_at_once)  # `Program.resolve_command` restores the default
    from nmt.cli.program import main as run_program  # noqa: PLC0415

    run_program()


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """End during imports, in which extension modules turn KeyboardInterrupt into other errors; no work has begun."""
    with suppress(OSError):  # stderr may be closed
        os.write(2, b"nmt: interrupted\n")
    os._exit(130)
