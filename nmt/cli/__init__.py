"""The command line: one file for each family of commands, and `program`, which makes one program of them."""


def main() -> None:
    """Run the command line and exit.

    The commands are imported only now: processes that a command starts import this module too, and those that prepare
    text need nothing of what stands behind the commands.
    """
    from nmt.cli.program import main as run_program  # noqa: PLC0415

    run_program()
