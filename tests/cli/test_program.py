"""What the program says when the system refuses something."""

import errno
from pathlib import Path

import pytest
from calling import Nmt, one_line

from nmt import pipeline

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.toml"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl"), "the disk is full (run/metrics.jsonl)"),
        (OSError(errno.EIO, "Input/output error"), "the system says: Input/output error; "),
    ],
)
def test_what_the_system_refuses_is_one_line(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str
) -> None:
    def refuse(recipe: object) -> None:
        raise error

    monkeypatch.setattr(pipeline, "prepare", refuse)
    status, out, err = nmt("prepare", str(RECIPE))
    assert (status, out) == (1, "")
    assert one_line(err).startswith(expected)
