"""Benchmark results as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmt.bench.decoding import DecodingResult
from nmt.bench.statistics import Spread
from nmt.bench.training import TrainingResult
from nmt.evaluate.report import describe_machine, describe_software, find_git_commit
from nmt.logs import counted
from nmt.storage.sealed import write_file

Rows = list[tuple[str, str]]

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def training_rows(result: TrainingResult) -> Rows:
    """Return label and text of each row of the training table."""
    linear, best = result.linear, result.fraction_of_best_linear
    rows = [
        ("target tokens per second", _spread(result.tgt_tokens_per_second)),
        ("model FLOP/s", f"{_scaled(result.flops_per_second)}FLOP/s"),
        ("  per target token", f"{_scaled(result.flops_per_tgt_token)}FLOP"),
        ("  source tokens per target token", f"{result.src_tokens_per_tgt_token:.3f}"),
        ("F.linear at the model's shapes", f"{_scaled(linear.mean)}FLOP/s, best shape {_scaled(linear.best)}FLOP/s"),
        ("  model FLOP/s relative to it", f"{result.fraction_of_linear:.1%}, of the best {best:.1%}"),
        ("padding", f"{result.row_padding:.2%} of rows"),
        ("peak memory", f"{_scaled(result.peak_memory)}B"),
        (
            "excluded from rates",
            f"setup {result.setup_seconds:.1f} s, first update {result.first_update_seconds:.1f} s, "
            f"total warm-up {result.warm_up_seconds:.1f} s",
        ),
        (
            "model",
            f"{result.parameters:,} parameters, {result.precision}, micro-batches of {result.micro_batch_tokens:,} "
            "tokens",
        ),
    ]
    if result.skipped:
        rows.append(("warning", f"{counted(result.skipped, 'update')} skipped because of non-finite gradients"))
    if result.compiled_while_timed:
        graphs = counted(result.compiled_while_timed, "graph")
        rows.append(("warning", f"{graphs} compiled during timing; raise --warm-up"))
    return rows


def decoding_rows(result: DecodingResult) -> Rows:
    """Return label and text of each row of the translation table."""
    rows = [
        ("output tokens per second", _spread(result.tokens_per_second)),
        ("sentences per second", _spread(result.sentences_per_second)),
        ("pass", f"{result.sentences:,} sentences, {result.tokens:,} output tokens"),
        ("peak memory", f"{_scaled(result.peak_memory)}B"),
        ("excluded from rates", f"loading {result.load_seconds:.1f} s, first pass {result.warm_up_seconds:.1f} s"),
        ("model", f"{result.parameters:,} parameters"),
    ]
    if result.latencies is not None:
        latencies = ", ".join(f"{name} {seconds * 1e3:,.1f}" for name, seconds in result.latencies.items())
        rows.insert(2, ("latency per sentence, ms", latencies))
    return rows


def format_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format rows in two columns under a title."""
    width = max(len(label) for label, _ in rows)
    return "\n".join([title, "", *(f"  {label:<{width}}  {text}" for label, text in rows)])


def write_json(path: Path, kind: str, settings: Mapping[str, Any], result: TrainingResult | DecodingResult) -> None:
    """Write settings and measurements with date, command, machine and software versions."""
    report = {
        "kind": kind,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["nmt", *sys.argv[1:]]),
        "machine": dataclasses.asdict(describe_machine()),
        "versions": describe_software(),
        "git_commit": find_git_commit(),
        "settings": dict(settings),
        "measurements": dataclasses.asdict(result),
    }
    write_file(path, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())


def _spread(spread: Spread) -> str:
    median, lower, upper, least, most = (
        f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        for value in (spread.median, spread.lower_quartile, spread.upper_quartile, spread.least, spread.most)
    )
    return f"{median}  (median of {len(spread.samples)}; quartiles {lower} to {upper}; range {least} to {most})"


def _scaled(value: float) -> str:
    """Format a value with four digits and the SI prefix of the unit that follows: `375.7 M`."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "
