"""Comparison of systems that translate a file with a trained model until EOS: complete commands, or loaded systems.

Each command is a new process, and its startup is timed. A loaded system stays in memory, and each round translates the
file once more. Exports are created beforehand and not timed. Memory is the peak in the timed rounds of the summed
proportional set sizes of a command's processes, sampled at intervals of a tenth of the time so far, but at least every
second.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import IO, Any

from bench.comparison import TOOLS, Comparison, Measurement, System, SystemProcess, alternate
from bench.environments import inherited_environment, shared_packages
from bench.ratio import paired_ratio
from bench.worker import end_with_parent
from nmt.errors import UserError
from nmt.evaluate.metrics import make_scorer
from nmt.logs import say
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.lines import count_lines, read_lines
from nmt.text.tokenizer import Tokenizers

_SAMPLING_SECONDS = 1.0
_NMT = [sys.executable, "-m", "nmt"]

# Systems and the defaults of their settings. The default device is that of the workload.
DEFAULTS = {
    "nmt": {"device": "cpu", "precision": "auto", "engine": "auto", "processes": "auto"},
    "ctranslate2": {
        "device": "cpu",
        "compute_type": "int8",
        "inter_threads": "2",
        "intra_threads": "1",
        "batch_sentences": "16",
    },
    "transformers": {"device": "cpu", "precision": "fp32", "threads": "2", "batch_sentences": "64"},
}
# The same for a loaded system, where they differ.
LOADED_DEFAULTS = DEFAULTS | {"nmt": {"device": "cpu", "precision": "auto", "engine": "torch", "threads": "1"}}


@dataclass(frozen=True)
class FileWorkload:
    """A model and a file to translate with it.

    ref:    reference translations for BLEU
    device: `cpu` or `cuda`, for systems without a setting `device`
    """

    model: Path
    source: Path
    ref: Path | None = None
    beam_size: int = 5
    warm_up: int = 1
    device: str = "cpu"


@dataclass
class _Command:
    """A system's translation command, and the time and peak memory in bytes of each run, warm-up included."""

    name: str
    settings: dict[str, str]
    words: list[str]
    out: Path
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Translate the file once; raises UserError if the command fails."""
        try:
            seconds, memory = run_command(self.words)
        except UserError as error:
            raise UserError(f"{self.name} failed: {error}") from error
        self.seconds.append(seconds)
        self.memory.append(memory)

    def measurement(self, workload: FileWorkload) -> Measurement:
        """Rates in lines per second of the timed rounds; memory and BLEU are listed with the settings."""
        num_lines = count_lines(workload.source)
        rates = [num_lines / seconds for seconds in self.seconds[workload.warm_up :]]
        # `nmt translate` converts the model in its first run, for which it imports torch.
        peak = max(self.memory[workload.warm_up :])
        settings = self.settings | {"memory": f"{peak / 2**20:.0f} MiB"}
        measurement = Measurement(self.name, settings, {}, 0.0, rates)
        _add_bleu(measurement, self.out, workload)
        return measurement


def compare_files(workload: FileWorkload, ours: System, theirs: System, rounds: int) -> Comparison:
    """Translate the file with two systems in alternating rounds.

    Raises UserError if one of them fails.
    """
    with tempfile.TemporaryDirectory() as name:
        one, other = (_command(workload, *system, Path(name) / str(i)) for i, system in enumerate((ours, theirs)))
        for number in range(1 - workload.warm_up, rounds + 1):
            one.run()
            other.run()
            if number > 0:
                say(f"round {number} of {rounds}: {one.seconds[-1]:.2f} s and {other.seconds[-1]:.2f} s")
        first, second = one.measurement(workload), other.measurement(workload)
        return Comparison(first, second, paired_ratio(first.rates, second.rates))


def compare_loaded(workload: FileWorkload, ours: System, theirs: System, rounds: int) -> Comparison:
    """Translate the file with two loaded systems in alternating rounds.

    Raises UserError if one of them fails.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folders = [Path(name) / "ours", Path(name) / "theirs"]
        with (
            _loaded(workload, *ours, folders[0]) as one,
            _loaded(workload, *theirs, folders[1]) as other,
        ):
            comparison = alternate(one, other, rounds, "lines")
        for side, folder in zip((comparison.ours, comparison.theirs), folders, strict=True):
            _add_bleu(side, folder / "out.txt", workload)
        return comparison


def _loaded(workload: FileWorkload, name: str, settings: dict[str, str], folder: Path) -> SystemProcess:
    settings = _all_settings(workload, name, settings, LOADED_DEFAULTS)
    folder.mkdir()
    model = workload.model.absolute() if name == "nmt" else _export(workload, name, settings, folder)
    words = [sys.executable, "-m", "bench.file_worker", f"bench.peers.{name}_file", str(max(1, workload.warm_up))]
    words += [str(workload.source.absolute()), str(folder / "out.txt"), *_assignments(workload, settings, model)]
    threads = settings.get("threads") or settings["intra_threads"]
    path = os.pathsep.join([*filter(None, [shared_packages()]), str(TOOLS), str(TOOLS.parent)])
    environment = inherited_environment() | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads}
    return SystemProcess(name, settings, words, environment, folder / "log")


def _command(workload: FileWorkload, name: str, settings: dict[str, str], folder: Path) -> _Command:
    settings = _all_settings(workload, name, settings, DEFAULTS)
    folder.mkdir()
    source, out = workload.source.absolute(), folder / "out.txt"
    if name == "nmt":
        options = [f"--{key}={value}" for key, value in settings.items() if value != "auto"]
        options += [f"--beam-size={workload.beam_size}", "--restart"]
        options += ["--length-penalty=power", "--length-alpha=1"] if workload.beam_size > 1 else []
        words = [*_NMT, "translate", *map(str, (workload.model.absolute(), source)), "-o", str(out), *options]
    else:
        program = str(TOOLS / "bench" / "peers" / f"{name}_file.py")
        export = _export(workload, name, settings, folder)
        words = [sys.executable, program, str(source), str(out), *_assignments(workload, settings, export)]
    return _Command(name, settings, words, out)


def _all_settings(
    workload: FileWorkload, name: str, settings: dict[str, str], defaults: dict[str, dict[str, str]]
) -> dict[str, str]:
    """Add the defaults; raises UserError for an unknown system or setting."""
    if name not in defaults:
        raise UserError(f"{name!r} does not support files; it must be one of {', '.join(defaults)}; choose one")
    if unknown := settings.keys() - defaults[name].keys():
        known = ", ".join(defaults[name])
        raise UserError(f"{name} has no setting {min(unknown)!r}; it must be one of {known}; choose one")
    return defaults[name] | {"device": workload.device} | settings


def _export(workload: FileWorkload, name: str, settings: dict[str, str], folder: Path) -> Path:
    target = ["huggingface"]
    if name == "ctranslate2":
        target = ["ctranslate2", f"--quantization={settings['compute_type']}"]
    run_command([*_NMT, "export", str(workload.model.absolute()), "-o", str(folder / "export"), "--to", *target])
    return folder / "export"


def _assignments(workload: FileWorkload, settings: dict[str, str], model: Path) -> list[str]:
    return [*map("=".join, settings.items()), f"model={model}", f"beam_size={workload.beam_size}"]


def _add_bleu(measurement: Measurement, out: Path, workload: FileWorkload) -> None:
    """List BLEU with the settings, if there are references; ignore case if translations are always lowercase."""
    if workload.ref is not None:
        directory = find_model(workload.model)
        lowercase, tgt_lang = Tokenizers.load(directory).tgt.lowercases(), read_model_metadata(directory).tgt_lang
        metric = make_scorer("bleu", tgt_lang=tgt_lang, lowercase=lowercase).metric
        score = metric.corpus_score(list(read_lines(out)), [list(read_lines(workload.ref))]).score
        measurement.settings["BLEU"] = f"{score:.2f}"
        measurement.versions["BLEU"] = str(metric.get_signature())


def run_command(command: Sequence[str]) -> tuple[float, int]:
    """Run a command; returns its seconds and peak memory in bytes.

    Raises UserError with its last lines if it fails.
    """
    ended, memory = Event(), [0]
    with tempfile.TemporaryFile("w+") as log:
        start = perf_counter()
        process = start_command(command, log)

        def sample_memory() -> None:  # at longer intervals in long commands, which sampling would slow down
            while not ended.wait(min(_SAMPLING_SECONDS, 0.005 + (perf_counter() - start) / 10)):
                memory.append(session_memory(process.pid))

        sampler = Thread(target=sample_memory, daemon=True)
        sampler.start()
        try:
            status, seconds = process.wait(), perf_counter() - start
        finally:
            ended.set()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        sampler.join()
        log.seek(0)
        if status:
            last = "".join(f"  {line}" for line in log.readlines()[-15:])
            raise UserError(f"{' '.join(command[:4])} failed with exit status {status}; its last output:\n{last}")
    return seconds, max(memory)


def start_command(command: Sequence[str], log: IO[Any]) -> subprocess.Popen[bytes]:
    """Start a measured command in a session of its own, with its output in `log`."""
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        cwd=TOOLS.parent,
        env=inherited_environment(),
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


def session_memory(leader: int) -> int:
    """Memory of all processes of a session in bytes; shared pages count once."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == leader:
                found = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
                total += int(found[1]) * 1024 if found else 0
        except OSError:  # it has exited
            continue
    return total
