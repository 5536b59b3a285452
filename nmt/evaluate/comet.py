"""COMET through its own command: it pins old versions of much that nmt needs, so it lives in an environment of its own.

What is asked of the command is `comet-score -s SRC -t HYP... -r REF --quiet --only_system`, and what is read is a line
`FILE<tab>score: 0.8536` for each system, as unbabel-comet 2 prints them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.evaluate.metrics import Score
from nmt.recipe import UserError

_SCORE = re.compile(r"^(?P<file>.*)\tscore: (?P<score>-?[0-9]+\.?[0-9]*)\s*$", re.MULTILINE)
_ASK_VERSION = "from importlib.metadata import version; print(version('unbabel-comet'))"


def comet_scores(
    command: str, systems: Mapping[str, Sequence[str]], sources: Sequence[str], reference: Sequence[str]
) -> dict[str, Score]:
    """COMET of each system by name, as `command` gives it: `PATH/comet-score`, with further arguments where wanted.

    Raises UserError when the command is missing, fails, or prints no score for a system.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"the COMET command {command!r} has no closing quote; correct it") from error
    if not words:
        raise UserError("the COMET command is empty; it must be the path of comet-score; give that")
    with TemporaryDirectory(prefix="nmt-comet-") as folder:
        source_file = _write(Path(folder) / "source", sources)
        reference_file = _write(Path(folder) / "reference", reference)
        files = {
            name: _write(Path(folder) / f"system-{number}", lines)
            for number, (name, lines) in enumerate(systems.items(), start=1)
        }
        arguments = ["-s", source_file, "-t", *files.values(), "-r", reference_file, "--quiet", "--only_system"]
        printed = _run([*words, *map(str, arguments)])
    found = {Path(line["file"].strip()).name: float(line["score"]) for line in _SCORE.finditer(printed)}
    if missing := [name for name, file in files.items() if file.name not in found]:
        raise UserError(
            f"{words[0]} printed no score for {missing[0]}; it must print FILE<tab>score: NUMBER for each system; "
            "check that it is comet-score of unbabel-comet 2"
        )
    signature = _signature(words)
    return {name: Score("comet", found[file.name], signature) for name, file in files.items()}


def _write(path: Path, lines: Sequence[str]) -> Path:
    # COMET reads with universal newlines: a carriage return inside a sentence would shift all that follow.
    path.write_text("".join(line.replace("\r", " ") + "\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def _run(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"cannot run {words[0]}: {error.strerror or error}; it must be comet-score in an environment of its own; "
            "make one: python3 -m venv comet && comet/bin/pip install unbabel-comet"
        ) from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise UserError(
            f"{words[0]} failed with exit status {done.returncode} ({said}); run it by hand to see what is wrong"
        )
    return done.stdout


def _signature(words: Sequence[str]) -> str:
    """Model and version, without which a COMET score means nothing (Zouhar et al. 2024)."""
    model = next((after for word, after in pairwise(words) if word == "--model"), None)
    model = model or next((word.partition("=")[2] for word in words if word.startswith("--model=")), "default")
    return f"COMET|nrefs:1|model:{model}|version:{_version(Path(words[0]))}"


def _version(program: Path) -> str:
    """The version of unbabel-comet beside the program, where that is a Python environment."""
    try:
        asked = [str(program.parent / "python"), "-c", _ASK_VERSION]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
