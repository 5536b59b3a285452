"""Whole commands that translate a file with a trained model, in turns: what people wait for, start and all.

Outputs end where the model ends them. Each command is a new process; the exports are made before and not counted.
Memory is what its processes hold together, shared pages counted once, seen twenty times a second, and more often at
first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from sacrebleu.metrics.bleu import BLEU

from bench.contest import TOOLS, Contest, Side
from nmt.bench.statistics import paired_ratio
from nmt.logs import say
from nmt.recipe import UserError
from nmt.text.lines import count_lines, read_lines

_SAMPLING_SECONDS = 0.05

# The systems, and what each setting is unless it is given.
DEFAULTS = {
    "nmt": {"precision": "auto", "engine": "auto", "processes": "auto"},
    "ctranslate2": {"compute_type": "int8", "inter_threads": "2", "intra_threads": "1", "batch_sentences": "32"},
    "transformers": {"precision": "fp32", "threads": "2", "batch_sentences": "64"},
}
_EXPORTS = {"ctranslate2": "ctranslate2", "transformers": "huggingface"}


@dataclass(frozen=True)
class FileWork:
    """A file to translate with a model. ref: reference translations, or None where BLEU is not computed."""

    model: Path
    source: Path
    ref: Path | None = None
    beam_size: int = 5
    warm_up: int = 1


@dataclass
class _Contestant:
    """A system, its settings, and what was seen of it: seconds of each round, and bytes of memory."""

    name: str
    settings: dict[str, str]
    command: list[str]
    out: Path
    seconds: list[float]
    memory: int = 0

    def run(self, *, counts: bool) -> None:
        """Translate the file once."""
        seconds, memory = _run(self.command)
        self.memory = max(self.memory, memory)
        if counts:
            self.seconds.append(seconds)

    def side(self, num_lines: int, ref: Path | None) -> Side:
        """The rates in lines a second; memory and BLEU stand beside the settings."""
        found = {"memory": f"{self.memory / 2**20:.0f} MB"}
        versions: dict[str, str] = {}
        if ref is not None:
            metric = BLEU()
            found["BLEU"] = f"{metric.corpus_score(list(read_lines(self.out)), [list(read_lines(ref))]).score:.2f}"
            versions["BLEU"] = str(metric.get_signature())
        return Side(self.name, self.settings | found, versions, 0.0, [num_lines / taken for taken in self.seconds])


def translate_in_turns(
    work: FileWork, ours: tuple[str, dict[str, str]], theirs: tuple[str, dict[str, str]], rounds: int
) -> Contest:
    """Let two systems translate the file in turns, A-B-A-B; UserError where one fails."""
    with tempfile.TemporaryDirectory() as name:
        one, other = (_contestant(work, *side, Path(name) / str(place)) for place, side in enumerate((ours, theirs)))
        for number in range(1 - work.warm_up, rounds + 1):
            for contestant in (one, other):
                contestant.run(counts=number > 0)
            if number > 0:
                say(f"round {number} of {rounds}: {one.seconds[-1]:.2f} s against {other.seconds[-1]:.2f} s")
        num_lines = count_lines(work.source)
        ours_seen, theirs_seen = (contestant.side(num_lines, work.ref) for contestant in (one, other))
        return Contest(ours_seen, theirs_seen, paired_ratio(ours_seen.rates, theirs_seen.rates))


def _contestant(work: FileWork, name: str, settings: dict[str, str], folder: Path) -> _Contestant:
    if name not in DEFAULTS:
        raise UserError(f"{name!r} cannot translate a file here; it must be one of {', '.join(DEFAULTS)}; choose one")
    if unknown := settings.keys() - DEFAULTS[name].keys():
        able = ", ".join(DEFAULTS[name])
        raise UserError(f"{name} has no setting {min(unknown)!r}; it must be one of {able}; choose one")
    settings = DEFAULTS[name] | settings
    folder.mkdir()
    out, nmt = folder / "out.txt", [sys.executable, "-m", "nmt"]
    if name == "nmt":
        options = [f"--{key}={value}" for key, value in settings.items() if value != "auto"]
        options += [f"--beam-size={work.beam_size}", "--length-penalty=power", "--length-alpha=1", "--restart"]
        command = [*nmt, "translate", str(work.model), str(work.source), "-o", str(out), *options]
    else:
        export = folder / "export"
        stored = [f"--quantization={settings['compute_type']}"] if name == "ctranslate2" else []
        _run([*nmt, "export", str(work.model), "--to", _EXPORTS[name], "-o", str(export), *stored])
        program = str(TOOLS / "bench" / "peers" / f"{name}_file.py")
        given = settings | {"model": str(export), "beam_size": str(work.beam_size)}
        command = [sys.executable, program, str(work.source), str(out), *map("=".join, given.items())]
    return _Contestant(name, settings, command, out, [])


def _run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds and the most bytes of memory of a command; UserError with its last lines where it fails."""
    ended, memory = Event(), [0]
    with tempfile.TemporaryFile("w+") as log:
        start = perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=TOOLS.parent, start_new_session=True)

        def watch() -> None:
            while not ended.wait(min(_SAMPLING_SECONDS, 0.005 + (perf_counter() - start) / 10)):
                memory.append(memory_of_session(process.pid))

        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        status, seconds = process.wait(), perf_counter() - start
        ended.set()
        watcher.join()
        log.seek(0)
        if status:
            last = "".join(f"  {line}" for line in log.readlines()[-15:])
            raise UserError(
                f"{' '.join(command[:4])} ended with status {status}; see what it said, and repair that\n{last}"
            )
    return seconds, max(memory)


def memory_of_session(leader: int) -> int:
    """Bytes that the processes of a session hold, each shared page counted once in all."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == leader:
                found = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
                total += int(found[1]) * 1024 if found else 0
        except OSError:  # ended just now
            continue
    return total
