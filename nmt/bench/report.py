"""What was measured, as a table for people and as JSON with everything that is needed to measure it again."""

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
from nmt.storage.sealed import write_file

Rows = list[tuple[str, str]]

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def training_rows(figures: TrainingResult) -> Rows:
    """The figures of training, in words."""
    stages, linear, best = figures.stages, figures.linear, figures.share_of_best_linear
    model = f"{figures.parameters:,} weights, {figures.precision}, {figures.micro_batch_tokens:,} tokens at a time"
    rows = [
        ("target tokens a second", _spread(figures.tgt_tokens_per_second)),
        ("model arithmetic", f"{_scaled(figures.flops_per_second)}FLOP/s"),
        ("  for each target token", f"{_scaled(figures.flops_per_tgt_token)}FLOP"),
        ("  source tokens for each target token", f"{figures.src_tokens_per_tgt_token:.3f}"),
        ("F.linear at the model's shapes", f"{_scaled(linear.mean)}FLOP/s, at its best {_scaled(linear.best)}FLOP/s"),
        ("  share of it reached (MFU)", f"{figures.share_of_linear:.1%}, of its best {best:.1%}"),
        ("time by stage, each waited for", ", ".join(f"{name} {share:.1%}" for name, share in stages.shares.items())),
        ("padding", f"{stages.row_padding:.2%} of rows, {stages.attention_padding:.2%} inside attention"),
        ("most memory", f"{_scaled(figures.peak_memory)}B"),
        ("outside the clock", _outside_the_clock(figures)),
        ("model", model),
    ]
    if figures.skipped:
        rows.append(("beware", f"{figures.skipped} updates had no finite gradient and were skipped"))
    if figures.compiled_while_timed:
        rows.append(("beware", f"{figures.compiled_while_timed} graphs were compiled on the clock; warm up for longer"))
    return rows


def decoding_rows(figures: DecodingResult) -> Rows:
    """The figures of translation, in words."""
    rows = [
        ("output tokens a second", _spread(figures.tokens_per_second)),
        ("sentences a second", _spread(figures.sentences_per_second)),
        ("a pass", f"{figures.sentences:,} sentences, {figures.tokens:,} output tokens"),
        ("most memory", f"{_scaled(figures.peak_memory)}B"),
        ("outside the clock", f"loading {figures.load_seconds:.1f} s, first pass {figures.warm_up_seconds:.1f} s"),
        ("model", f"{figures.parameters:,} weights"),
    ]
    if figures.latencies is not None:
        latencies = ", ".join(f"{name} {seconds * 1e3:,.1f}" for name, seconds in figures.latencies.items())
        rows.insert(2, ("a sentence alone, ms", latencies))
    return rows


def format_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Two columns under a title, each row on one line."""
    width = max(len(label) for label, _ in rows)
    return "\n".join([title, "", *(f"  {label:<{width}}  {text}" for label, text in rows)])


def write_json(path: Path, kind: str, settings: Mapping[str, Any], figures: TrainingResult | DecodingResult) -> None:
    """Write settings and figures, with date, command, machine and software; UserError where that cannot be."""
    report = {
        "kind": kind,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["nmt", *sys.argv[1:]]),
        "machine": dataclasses.asdict(describe_machine()),
        "versions": describe_software(),
        "git_commit": find_git_commit(),
        "settings": dict(settings),
        "figures": dataclasses.asdict(figures),
    }
    write_file(path, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())


def _outside_the_clock(figures: TrainingResult) -> str:
    return (
        f"set-up {figures.setup_seconds:.1f} s, first update {figures.first_update_seconds:.1f} s, "
        f"warm-up in all {figures.warm_up_seconds:.1f} s"
    )


def _spread(spread: Spread) -> str:
    """Median, then quartiles and extremes."""
    median, lower, upper, least, most = (
        _number(value)
        for value in (spread.median, spread.lower_quartile, spread.upper_quartile, spread.least, spread.most)
    )
    return f"{median}  (median of {len(spread.samples)}; quartiles {lower} to {upper}; all {least} to {most})"


def _number(value: float) -> str:
    """Four digits or more."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _scaled(value: float) -> str:
    """Four digits and the prefix of the unit that follows: `375.7 M`."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "
