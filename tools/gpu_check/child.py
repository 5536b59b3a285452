"""Process of one stage: `python -m gpu_check.child MODULE STAGE SETTINGS`.

A stage module has `run(settings, results, part)`; `part` is the name of the sub-stage, or "".
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.worker import end_with_parent

from gpu_check.outcome import Results
from gpu_check.settings import Settings


def main(module: str, stage: str, text: str) -> None:
    """Run the stage. Exceptions go to the log; checks added before them are kept."""
    end_with_parent()
    settings = Settings.from_json(text)
    results = Results(stage, Path(settings.out) / "results")
    importlib.import_module(module).run(settings, results, stage.partition(":")[2])
    results.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
