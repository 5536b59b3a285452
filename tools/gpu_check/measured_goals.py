"""Measures a goal with its command and adds the result to the ledger of the output folder.

Measurements of full size on a GPU are also added to the ledger of the source tree.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from bench.goals import Goal
from bench.ledger import Entry, add_entries, format_result, is_reached, read_ledger, value_entry
from bench.worker import end_with_parent

from gpu_check.outcome import Results
from gpu_check.quickstart import quickstart_recipe, trained_model
from gpu_check.settings import Settings
from nmt.grammar import generate

_BENCH = (sys.executable, "-m", "bench")
_SMALL_TRAINING = {
    "--vocab-size": "100",
    "--batch-tokens": "300",
    "--micro-batch-tokens": "300",
    "--updates": "1",
    "--repetitions": "1",
    "--warm-up": "1",
}
_SMALL_COMPARISON = {
    "train": "--shape tiny --rounds 2 --updates 1 --batch-tokens 200 --threads 1",
    "decode": "--shape tiny --rounds 2 --num-sentences 4 --output-tokens 4 --batch-sentences 2 --threads 1",
    "file": "--rounds 2 --warm-up 0 --beam-size 1",
}


def measure(settings: Settings, results: Results, goal: Goal) -> None:
    """Measure one goal and add its check."""
    row = (goal.text, goal.target_text)
    words = shlex.split(goal.command)
    entry, problem = _measure_alone(settings, goal, words) if words[0] == "nmt" else _compare(settings, words)
    if entry is None:
        failed, _, _ = problem.removeprefix("bench: ").partition(" ")
        if failed in ("eole", "transformers", "ctranslate2"):
            results.not_measured(*row, problem)
        else:
            results.check(*row, problem, False)
        return
    for line in _times_and_scores(entry):
        results.note(line)
    if not settings.on_gpu:
        results.note(f"On a CPU: {format_result(entry)}.")
        results.not_measured(*row, "no GPU; measured on the CPU")
        return
    results.check(*row, format_result(entry), is_reached(entry))
    if not settings.small:
        add_entries([entry])


def _measure_alone(settings: Settings, goal: Goal, words: Sequence[str]) -> tuple[Entry | None, str]:
    """Measure nmt with `nmt bench train`."""
    path = settings.folder("work") / f"{goal.name}.json"
    words = training_command(words, path, is_small=settings.small, on_gpu=settings.on_gpu)
    if problem := _run([sys.executable, "-m", *words]):
        return None, problem
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    measurements = report["measurements"]
    is_padding = goal.name == "train-gpu-rows"
    value = 1 - measurements["row_padding"] if is_padding else measurements["fraction_of_linear"]
    tokens = measurements["tgt_tokens_per_second"]["median"]
    note = f"{tokens:,.0f} target tokens/s (median); {measurements['compiled_while_timed']} graphs compiled while timed"
    entry = value_entry(goal.name, value, shlex.join(words), note, report)
    add_entries([entry], _ledger(settings))
    return entry, ""


def training_command(words: Sequence[str], path: Path, *, is_small: bool, on_gpu: bool) -> list[str]:
    """Return the command of a goal with the options of this check, which replace its own."""
    words, values = [*words], {"--json": str(path)}
    if is_small:
        words[3] = "tiny"
        values |= _SMALL_TRAINING
    if not on_gpu:
        words = [*(word for word in words if word != "--compile"), "--no-compile"]
        values |= {"--device": "cpu", "--precision": "fp32", "--threads": "1"}
    for option, value in values.items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


def _compare(settings: Settings, words: Sequence[str]) -> tuple[Entry | None, str]:
    """Compare two systems with `tools/bench/run`."""
    ledger = _ledger(settings)
    command = [*_BENCH, *words[1:], "--ledger", str(ledger)]
    command += _file_options(settings) if words[1] == "file" else _text_options(settings)
    if settings.small:
        command += shlex.split(_SMALL_COMPARISON[words[1]])
    if not settings.on_gpu:  # no compilation, which is slow, and no float16
        for index in (len(_BENCH) + 1, len(_BENCH) + 2):
            command[index] = command[index].partition(":")[0]
        command += ["--device", "cpu"]
    problem = _run(command)
    return (None, problem) if problem else (read_ledger(ledger)[-1], "")


def _run(command: Sequence[str]) -> str:
    """Run a command; returns its last error message, or "" if it succeeds."""
    done = subprocess.run(
        command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=end_with_parent
    )
    sys.stderr.write(done.stderr)
    lines = [line.strip() for line in done.stderr.split("\n") if line.strip()]
    if not done.returncode:
        return ""
    errors = [line for line in lines if line.startswith("bench: ")]
    problem = (errors or lines or [f"exit status {done.returncode}"])[-1]
    return (f"{problem} {lines[-1]}" if problem.endswith("output:") else problem)[:300]


def _times_and_scores(entry: Entry) -> Iterator[str]:
    """Describe the time and the BLEU of each system that translated a file."""
    if entry.get("work", {}).get("task") != "file":
        return
    for side in (entry["ours"], entry["theirs"]):
        seconds, bleu = entry["work"]["num_lines"] / median(side["rates"]), side["settings"]["BLEU"]
        yield f"{side['name']}: {seconds:.2f} s (median), BLEU {bleu}."


def _file_options(settings: Settings) -> list[str]:
    """Return the options of a comparison that translates a file; trains the model if missing, and writes the file."""
    model = trained_model(quickstart_recipe(settings, [f"train.device={settings.device}"]))
    folder = settings.folder("work/file")
    source, ref = folder / "source.en", folder / "reference.de"
    _write_toy_pairs("test", settings.pick(10_000, 3), source, ref)
    note = "Quickstart model; test sentences of the built-in toy corpus."
    return ["--model", str(model), "--source", str(source), "--ref", str(ref), "--note", note]


def _text_options(settings: Settings) -> list[str]:
    """Return the options that name and describe the prepared text of comparisons; prepares the text if missing."""
    given = settings.data
    note = "Text: raw files of --data." if given else "Text: the built-in toy corpus."
    folder = settings.folder("work") / ("comparison-text-given" if given else "comparison-text")
    if not (folder / "vocab.txt").exists():
        raw = Path(given) if given else _write_toy_corpus(settings)
        vocabulary = "8000" if given else settings.pick("3000", "400")
        command = ["data", "--data", str(raw), "--folder", str(folder), "--vocab-size", vocabulary]
        if problem := _run([*_BENCH, *command]):
            raise SystemExit(problem)
    return ["--folder", str(folder), "--note", note]


def _write_toy_corpus(settings: Settings) -> Path:
    """Write as many toy pairs as Multi30k has, under its file names."""
    raw = settings.folder("work/comparison-raw")
    size, held_out = settings.pick((29_000, 1_000), (300, 20))
    _write_toy_pairs("train", size, raw / "train.en", raw / "train.de")
    _write_toy_pairs("valid", held_out, raw / "val.en", raw / "val.de")
    _write_toy_pairs("test", held_out, raw / "test.en", raw / "test.de")
    return raw


def _write_toy_pairs(split: Literal["train", "valid", "test"], size: int, source: Path, target: Path) -> None:
    pairs = list(generate(split, size, seed=1))
    source.write_text("".join(f"{pair.src}\n" for pair in pairs), encoding="utf-8")
    target.write_text("".join(f"{pair.tgt}\n" for pair in pairs), encoding="utf-8")


def _ledger(settings: Settings) -> Path:
    """Ledger of the output folder, which `tools/bench/run ledger --add` merges into that of the source tree."""
    return settings.folder("ledger")
