"""Learning curves of several systems: validation nll after equal numbers of updates, and BLEU on the test set.

The systems train in alternating rounds on the same pieces, with updates of equal size. Each validates with its own
model, and translates with its own search (beams of the same size, scores divided by length).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import sentencepiece
from sacrebleu.metrics.bleu import BLEU

from bench.comparison import System, SystemProcess, system_process
from bench.workload import Learning, Workload
from nmt.errors import UserError
from nmt.evaluate.student_t import half_width
from nmt.logs import say, warn
from nmt.plots.figure import PALETTE, new_figure, save_figure, style_axes
from nmt.storage.sealed import write_file


@dataclass(frozen=True)
class Curve:
    """One training run.

    updates, tokens, seconds: totals at each validation; tokens of the target, seconds without validation
    nll:  mean negative log-likelihood per target token, EOS included, in nats, at each validation
    bleu: sacreBLEU on the test set
    """

    name: str
    settings: dict[str, str]
    seed: int
    versions: dict[str, str]
    updates: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    bleu: float = 0.0
    signature: str = ""

    @property
    def label(self) -> str:
        """Name and settings."""
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])

    def add(self, answer: Mapping[str, Any], updates: int) -> None:
        """Add the validation after a round."""
        self.updates.append(updates + (self.updates or [0])[-1])
        self.tokens.append(answer["tokens"] + (self.tokens or [0])[-1])
        self.seconds.append(answer["seconds"] + (self.seconds or [0.0])[-1])
        self.nll.append(answer["nll"])


def learn(workload: Workload, systems: Sequence[System], seeds: Sequence[int], results: Path) -> list[Curve]:
    """Train each system with each seed; returns all curves of `results`, a JSON file that is written after each seed.

    Seeds in the file are not repeated. Raises UserError if the file has another workload or a system fails.
    """
    assert workload.learning is not None
    work = asdict(replace(workload, folder="", learning=replace(workload.learning, seed=0, output="")))
    curves = _read(results, work)
    for seed in seeds:
        missing = [one for one in systems if not any((c.name, c.settings, c.seed) == (*one, seed) for c in curves)]
        if not missing:
            say(f"seed {seed} is already in {results}")
            continue
        curves += _learn_seed(workload, missing, seed)
        tree = {"workload": work, "curves": [asdict(curve) for curve in curves]}
        write_file(results, (json.dumps(tree, indent=1) + "\n").encode())
    return curves


def _read(results: Path, work: Mapping[str, Any]) -> list[Curve]:
    if not results.exists():
        return []
    try:
        tree = json.loads(results.read_text(encoding="utf-8"))
        written, curves = tree["workload"], [Curve(**curve) for curve in tree["curves"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot read {results}: {error}; it must be written by this command; choose another file with --results"
        ) from error
    if written != json.loads(json.dumps(work)):
        raise UserError(f"{results} has curves with other settings; choose another file with --results")
    return curves


def _learn_seed(workload: Workload, systems: Sequence[System], seed: int) -> list[Curve]:
    assert workload.learning is not None
    rounds = workload.learning.rounds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary, ExitStack() as stack:
        folder = Path(temporary)
        learning = [
            replace(workload.learning, seed=seed, output=str(folder / f"{number}")) for number in range(len(systems))
        ]
        processes = [
            stack.enter_context(system_process(replace(workload, learning=own), *system, folder))
            for own, system in zip(learning, systems, strict=True)
        ]
        curves = [
            Curve(*system, seed, one.measurement.versions) for system, one in zip(systems, processes, strict=True)
        ]
        for number in range(1, rounds + 1):
            for curve, process in zip(curves, processes, strict=True):
                curve.add(process.request_round(), workload.updates)
            say(f"seed {seed}, round {number} of {rounds}: " + ", ".join(f"{c.label} {c.nll[-1]:.3f}" for c in curves))
        return [
            _score(curve, process, own, workload)
            for curve, process, own in zip(curves, processes, learning, strict=True)
        ]


def _score(curve: Curve, process: SystemProcess, learning: Learning, workload: Workload) -> Curve:
    """Let a system translate the test set, and score the translations."""
    process.request_round()
    lines = _read_translations(Path(learning.output), workload)
    if not any(map(str.strip, lines)):
        warn(f"{curve.label}, seed {curve.seed}: all translations are empty, so BLEU is not meaningful")
    metric = BLEU()
    score = metric.corpus_score(lines, [workload.lines("test.tgt.txt")])
    say(f"{curve.label}, seed {curve.seed}: {score}")  # with the length ratio
    return replace(curve, bleu=score.score, signature=str(metric.get_signature()))


def _read_translations(output: Path, workload: Workload) -> list[str]:
    if (text := output.with_suffix(".txt")).exists():
        return text.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    lines = output.with_suffix(".pieces").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(workload.path("tokenizer.model")))
    return [tokenizer.decode_pieces(line.split()) for line in lines]


def summarize(curves: Sequence[Curve]) -> str:
    """Return a Markdown table: final nll, BLEU, differences from the system of the first curve, and training time."""
    labels = list(dict.fromkeys(curve.label for curve in curves))
    by_label = {label: {c.seed: c for c in curves if c.label == label} for label in labels}
    first = by_label[labels[0]]
    rows = ["| system | seeds | nll | difference | BLEU | difference | seconds |", "|---|---|---|---|---|---|---|"]
    for label, own in by_label.items():
        shared = [] if own is first else sorted(own.keys() & first.keys())
        nll = _interval([own[seed].nll[-1] - first[seed].nll[-1] for seed in shared], 3)
        bleu = _interval([own[seed].bleu - first[seed].bleu for seed in shared], 2)
        means = [
            mean(values) for values in zip(*((c.nll[-1], c.bleu, c.seconds[-1]) for c in own.values()), strict=True)
        ]
        rows.append(f"| {label} | {len(own)} | {means[0]:.3f} | {nll} | {means[1]:.2f} | {bleu} | {means[2]:,.0f} |")
    return "\n".join(rows) + "\n"


def _interval(differences: Sequence[float], digits: int) -> str:
    """Format a mean difference, with Student's 95% interval if there are two or more seeds."""
    if not differences:
        return ""
    center = f"{mean(differences):+.{digits}f}"
    if len(differences) == 1:
        return center
    return f"{center} ± {half_width(differences):.{digits}f}"


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw nll by updates and by training time, one line per seed."""
    figure = new_figure(10.0, 4.2)
    by_updates, by_time = figure.subplots(1, 2, sharey=True)
    labels = list(dict.fromkeys(curve.label for curve in curves))
    for curve in curves:
        color = PALETTE[labels.index(curve.label) % len(PALETTE)]
        label = curve.label if curve.seed == min(c.seed for c in curves if c.label == curve.label) else None
        by_updates.plot(curve.updates, curve.nll, color=color, linewidth=1.2, label=label)
        by_time.plot([seconds / 60 for seconds in curve.seconds], curve.nll, color=color, linewidth=1.2)
    style_axes(by_updates, "Validation nll (nats per target token)")
    style_axes(by_time, "The same by training time")
    by_updates.set_xlabel("updates")
    by_time.set_xlabel("minutes")
    by_updates.legend(frameon=False, fontsize=9)
    save_figure(figure, path)
