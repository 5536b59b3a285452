"""Published files of Multi30k."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"
needs_multi30k = pytest.mark.skipif(not FOLDER.is_dir(), reason="the Multi30k files are not beside the project")


def read_lines(name: str) -> list[str]:
    return (FOLDER / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")
