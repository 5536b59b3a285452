"""COMET scores from an external program."""

import os
import sys
from pathlib import Path

import pytest

from nmt.evaluate.comet import comet_scores

PROGRAM = f"""#!{sys.executable}
import sys
words = sys.argv[1:]
first, second = words[words.index("-t") + 1 : words.index("-r")]
for file in (second, first):  # not in the order of the arguments
    print(f"{{file}}\\tSegment 0\\tscore: 0.1111")
    print(f"{{file}}\\tscore: {{len(open(file).readlines()) / 100:.4f}}")
"""


def test_lines_end_only_at_line_feeds(tmp_path: Path) -> None:
    program = tmp_path / "comet-score"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    systems = {"a": ["one\rline", "zwei\u2028Zeilen"], "b": ["x", "y"]}
    scores = comet_scores(str(program), systems, ["s", "t"], ["r", "q"])
    assert {name: score.value for name, score in scores.items()} == {"a": 0.02, "b": 0.02}
    assert scores["a"].signature == "COMET|nrefs:1|model:default|version:unknown"


def test_version_is_that_of_a_linked_program_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, path = tmp_path / "environment", tmp_path / "path"
    for folder in (environment, path):
        folder.mkdir()
    for name, text in {"comet-score": PROGRAM, "python": "#!/bin/sh\necho 2.2.7\n"}.items():
        (environment / name).write_text(text)
        (environment / name).chmod(0o755)
    (path / "comet-score").symlink_to(environment / "comet-score")
    monkeypatch.setenv("PATH", str(path), prepend=os.pathsep)
    scores = comet_scores("comet-score", {"a": ["x"], "b": ["y"]}, ["s"], ["r"])
    assert scores["a"].signature == "COMET|nrefs:1|model:default|version:2.2.7"
