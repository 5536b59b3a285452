"""COMET scores from the external `comet-score` program.

COMET pins old versions of shared dependencies, so it runs in its own environment. The command is
`comet-score -s SRC -t HYP... -r REF --quiet --only_system`; unbabel-comet 2 prints `FILE<tab>score: 0.8536` per system.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.errors import UserError
from nmt.evaluate.metrics import Score

_SCORE = re.compile(r"^(?P<file>.*)\tscore: (?P<score>-?[0-9]+\.?[0-9]*)\s*$", re.MULTILINE)
_PRINT_VERSION = "from importlib.metadata import version; print(version('unbabel-comet'))"


def comet_scores(
    command: str, systems: Mapping[str, Sequence[str]], sources: Sequence[str], reference: Sequence[str]
) -> dict[str, Score]:
    """Score each system; `command` is the path of comet-score, optionally with arguments.

    Raises UserError if the command is missing, fails, or prints no score for a system.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(
            f"the COMET command {command!r} has no closing quote or ends with a backslash; correct it"
        ) from error
    if not words:
        raise UserError("the COMET command is empty; set it to the path of comet-score")
    with TemporaryDirectory(prefix="nmt-comet-") as folder:
        source_file = _write(Path(folder) / "source", sources)
        reference_file = _write(Path(folder) / "reference", reference)
        files = {
            name: _write(Path(folder) / f"system-{number}", lines)
            for number, (name, lines) in enumerate(systems.items(), start=1)
        }
        arguments = ["-s", source_file, "-t", *files.values(), "-r", reference_file, "--quiet", "--only_system"]
        output = _run([*words, *map(str, arguments)])
    scores = {Path(match["file"].strip()).name: float(match["score"]) for match in _SCORE.finditer(output)}
    if missing := [name for name, file in files.items() if file.name not in scores]:
        raise UserError(
            f"{words[0]} printed no score for {missing[0]}; it must print FILE<tab>score: NUMBER per system; "
            "check that it is comet-score of unbabel-comet 2"
        )
    signature = _signature(words)
    return {name: Score("comet", scores[file.name], signature) for name, file in files.items()}


def _write(path: Path, lines: Sequence[str]) -> Path:
    # COMET reads with universal newlines: a carriage return inside a sentence would shift all later lines.
    path.write_text("".join(line.replace("\r", " ") + "\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def _run(words: Sequence[str]) -> str:
    try:
        process = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"cannot run {words[0]}: {error.strerror or error}; it must be comet-score in its own environment; "
            "create one: python3 -m venv comet && comet/bin/pip install unbabel-comet"
        ) from error
    if process.returncode:
        message = (process.stderr.strip() or process.stdout.strip() or "no output").splitlines()[-1]
        raise UserError(f"{words[0]} failed with exit status {process.returncode} ({message}); run it by hand to debug")
    return process.stdout


def _signature(words: Sequence[str]) -> str:
    """Return model and version, without which a COMET score is meaningless (Zouhar et al. 2024)."""
    model = "default"
    for word, following in pairwise([*words, ""]):
        if word.startswith("--model="):
            model = word.removeprefix("--model=")
        elif word == "--model":
            model = following
    try:  # the Python interpreter of the environment is beside the program, which may be a link
        program = Path(shutil.which(words[0]) or words[0]).resolve()
        command = [str(program.with_name("python")), "-I", "-c", _PRINT_VERSION]
        version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        version = "unknown"
    return f"COMET|nrefs:1|model:{model}|version:{version}"
