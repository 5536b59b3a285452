"""The command line: one module per command or family of commands; `program` combines them."""


def main() -> None:
    """Run the command line and exit.

    The commands are imported here because worker processes import this module too, and most need none of them.
    """
    from nmt.cli.program import main as run_program  # noqa: PLC0415

    run_program()
