"""The command line: one module per command or family of commands; `program` combines them."""

import gc


def main() -> None:
    """Run the command line and exit.

    The commands are imported here because worker processes import this module too, and most need none of them.
    """
    gc.disable()  # during imports, which leave no garbage; `Program.resolve_command` enables it
    from nmt.cli.program import main as run_program  # noqa: PLC0415

    run_program()
