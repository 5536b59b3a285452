"""Results of other programs, in a folder beside the project that is not part of it."""

import json
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "vectors"


def load_vectors(name: str) -> Any:
    """Read a file of the folder, or skip the test."""
    path = _FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} does not exist")
    return json.loads(path.read_text())
