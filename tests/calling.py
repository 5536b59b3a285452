"""What the tests of the command line are handed, how they read what it says, and how they come by a tool."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

Result = tuple[int, str, str]
Nmt = Callable[..., Result]
"""Runs a command: arguments to exit status, stdout and stderr."""

Write = Callable[[bytes], None]
PipeIn = Callable[[Callable[[Write], None]], None]
"""Lets a function write to standard input in a thread."""


def one_line(err: str) -> str:
    """The only line on stderr, without `nmt: `; no traceback."""
    (line,) = err.strip().splitlines()
    assert line.startswith("nmt: ")
    return line.removeprefix("nmt: ")


def load_tool(name: str) -> ModuleType:
    """The program behind a script of tools/, which is no package."""
    path = Path(__file__).resolve().parents[1] / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
