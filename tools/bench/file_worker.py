"""One system that translates a file in each round: `python -m bench.file_worker MODULE WARM_UP IN OUT KEY=VALUE...`.

The protocol is that of `bench.worker`; a round counts lines, not tokens.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.worker import Clock, end_with_parent, redirect_output


def main(module: str, warm_up: str, source: str, target: str, *settings: str) -> None:
    """Load the system, then translate until stdin is closed."""
    end_with_parent()
    answers = redirect_output()
    translate = importlib.import_module(module).load(dict(setting.split("=", 1) for setting in settings))
    num_lines = len(Path(source).read_bytes().removesuffix(b"\n").split(b"\n"))
    clock = Clock(int(warm_up), answers, sys.stdin)
    while True:
        translate(Path(source), Path(target))
        clock.end_round(num_lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
