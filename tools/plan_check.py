"""Comparison of `nmt plan` with short training runs; see `tools/plan-check`."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.errors import UserError

# Test sets are not part of training.
SHORT = ("data.test={}", "train.log_every=50", "train.validate_every=1_000_000", "train.save_every=1_000_000")
TOY = ("quickstart", "data.train=[{kind='toy',pairs=20_000}]", "data.valid=[{kind='toy',split='valid',pairs=100}]")
GRU = "model={architecture='gru',num_encoder_layers=1,num_decoder_layers=1,d_model=128}"
# Recipe and overrides by name.
TOY_RUNS = {
    "toy": TOY,
    "toy, d_model 256": (*TOY, "model.d_model=256", "model.d_ff=1024"),
    "toy, 6 + 6 layers": (*TOY, "model.num_encoder_layers=6", "model.num_decoder_layers=6"),
    "toy, 4 micro-batches": (*TOY, "train.batch_tokens=4_096"),
    "toy, packed": (*TOY, "train.shapes=packed"),
    "toy, fp32": (*TOY, "train.precision=fp32"),
    "toy, GRU": (*TOY, GRU, "train.shapes=packed"),
}
OTHER_TOY_RUNS = {
    "toy, dropout": (*TOY, "model.dropout=0.1", "model.attention_dropout=0.1"),
    "toy, large updates": (*TOY, "train.batch_tokens=8_192", "train.micro_batch_tokens=8_192"),
    "toy, 8,000 tokens": (*TOY, "tokenizer.vocab_size=8_000"),
}
MULTI30K_RUNS = {
    "Multi30k": ("multi30k-en-de-wide",),
    "Multi30k, packed": ("multi30k-en-de-wide", "train.shapes=packed"),
    "Multi30k, GRU": ("multi30k-en-de-gru",),
}
LIMIT = 0.1
# Updates and seconds of the first forecast, which determines the number of updates.
TRIAL_UPDATES, TRIAL_SECONDS = 100, 3.0

EPILOG = """\
Each run is prepared, forecast with `nmt plan`, and trained with `nmt run` for the number of updates that take about
--seconds. Both times are those of the report: updates only, without validation and saving checkpoints. The machine must
be otherwise idle. Ten runs take about 20 minutes.

exit status: 0 if all ratios are from 0.9 to 1.1; 1 if not, if a command fails, or if --only names an unknown run;
2 for another invalid command line
"""


def nmt(*arguments: object) -> str:
    """Execute a command of nmt and return its output; raises UserError with its last message."""
    done = subprocess.run(
        [sys.executable, "-m", "nmt", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"nmt {arguments[0]} failed with exit status {done.returncode}: {last}")
    return done.stdout


def check(recipe: str, overrides: Sequence[str], folder: Path, *, seconds: float, measurement: float) -> dict[str, Any]:
    """Forecast and execute a run in `folder`; return its report."""
    options = [recipe, *overrides, *SHORT, f"run_dir={folder}"]
    nmt("prepare", *options)
    trial = json.loads(nmt("plan", *options, f"train.max_steps={TRIAL_UPDATES}", "--seconds", TRIAL_SECONDS, "--json"))
    options.append(f"train.max_steps={math.ceil(seconds * TRIAL_UPDATES / trial['speed']['seconds'])}")
    nmt("plan", *options, "--seconds", measurement)
    nmt("run", *options)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def row(name: str, report: Mapping[str, Any]) -> tuple[str, float]:
    """Return a line of the table, and the ratio of forecast to actual time."""
    speed, training = report["forecast"]["speed"], report["training"]
    ratio = speed["seconds"] / training["seconds"]
    times = f"{speed['seconds']:.1f} ({speed['low']:.1f} to {speed['high']:.1f}) | {training['seconds']:.1f}"
    return f"| {name} | {training['steps']:,} | {times} | {ratio:.3f} |", ratio


def runs_of(data: Path | None, only: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return recipes and overrides by name; three runs are on Multi30k if its folder is given."""
    multi30k = {name: (*run, f"data.root={data}") for name, run in MULTI30K_RUNS.items()}
    runs: dict[str, Sequence[str]] = {**TOY_RUNS, **(OTHER_TOY_RUNS if data is None else multi30k)}
    if unknown := [name for name in only if name not in runs]:
        raise UserError(f"--only {unknown[0]!r}: there is no such run; runs: {'; '.join(runs)}")
    return {name: runs[name] for name in only or runs}


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/plan-check",
        description="Compare the training time that nmt plan forecasts with that of ten short runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of Multi30k, for three of the runs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="select a run; may be repeated")
    parser.add_argument("--seconds", type=float, default=60, help="of each run (default: %(default)s)")
    parser.add_argument("--measurement", type=float, default=15, help="seconds of each forecast (default: %(default)s)")
    options = parser.parse_args(arguments)
    for name in ("seconds", "measurement"):
        if not 0 < getattr(options, name) < math.inf:
            parser.error(f"--{name} must be a finite number above 0, got {getattr(options, name)}")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data {options.data} is not a folder")
    ratios = []
    try:
        runs = runs_of(options.data and options.data.resolve(), options.only)
        sys.stdout.write("| run | updates | forecast (s) | actual (s) | ratio |\n|---|---|---|---|---|\n")
        for name, (recipe, *overrides) in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                report = check(
                    recipe, overrides, Path(folder) / "run", seconds=options.seconds, measurement=options.measurement
                )
            line, ratio = row(name, report)
            ratios.append(ratio)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"plan-check: {error}\n")
        return 1
    good = sum(abs(ratio - 1) <= LIMIT for ratio in ratios)
    sys.stdout.write(f"\nwithin {LIMIT:.0%} in {good} of {len(ratios)} runs\n")
    return 0 if good == len(ratios) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
