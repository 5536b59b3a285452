"""The command line: one file for each family of commands, and `program`, which makes one program of them."""

from nmt.cli.program import app, main

__all__ = ["app", "main"]
