"""The report of a run: what was trained on what, where, how fast, and how well it translates; Markdown and JSON.

Everything in it is plain data that the caller hands over; only the machine and the software describe themselves.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nmt.evaluate.metrics import GroupScore, Score
from nmt.logs import format_duration
from nmt.recipe import Recipe

_PACKAGES = ("nmt", "torch", "sentencepiece", "sacrebleu", "sacremoses", "numpy")


@dataclass(frozen=True)
class DataFacts:
    """What preparation made of the corpora.

    train_read: training pairs found; train_pairs: of these, kept; dropped: the others, counted by reason
    valid_pairs: development pairs; src_tokens, tgt_tokens: subword tokens of the kept training pairs
    """

    train_read: int
    train_pairs: int
    dropped: dict[str, int]
    valid_pairs: int
    src_tokens: int
    tgt_tokens: int
    src_vocab_size: int
    tgt_vocab_size: int

    @classmethod
    def from_prepare_report(cls, report: Mapping[str, Any]) -> DataFacts:
        """The facts in a parsed `prepare.json`."""
        train, vocab_size = report["train"], report["vocab_size"]
        return cls(
            train_read=train["pairs_read"],
            train_pairs=train["pairs"],
            dropped=dict(train["drops"]),
            valid_pairs=report["valid"]["pairs"],
            src_tokens=train["src"]["tokens"],
            tgt_tokens=train["tgt"]["tokens"],
            src_vocab_size=vocab_size["src"],
            tgt_vocab_size=vocab_size["tgt"],
        )


@dataclass(frozen=True)
class TrainingFacts:
    """How the weights were found.

    seconds: training time over all sittings, without preparation; tgt_tokens: target tokens trained on, end tokens
    included; valid_loss: best validation loss, nats per target token without label smoothing, None if never measured;
    averaged: number of checkpoints whose mean translates the test sets.
    """

    steps: int
    epochs: float
    seconds: float
    tgt_tokens: int
    world_size: int
    device: str
    precision: str
    valid_loss: float | None
    valid_loss_step: int | None
    averaged: int

    @property
    def tokens_per_second(self) -> float:
        """Target tokens trained per second."""
        return self.tgt_tokens / self.seconds if self.seconds else 0.0

    @property
    def valid_perplexity(self) -> float | None:
        """Perplexity of a development token at the best validation."""
        if self.valid_loss is None:
            return None
        return math.exp(self.valid_loss) if self.valid_loss < 700 else math.inf  # beyond, a float overflows


@dataclass(frozen=True)
class Sample:
    """One translated sentence beside its source and reference."""

    src: str
    ref: str
    translation: str


@dataclass(frozen=True)
class ScoredTestSet:
    """One test set: its scores, scores by phenomenon where sentences are labelled, and a few translations.

    seconds: time to translate all of its `sentences`
    """

    name: str
    sentences: int
    seconds: float
    scores: tuple[Score, ...]
    groups: tuple[GroupScore, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class MachineFacts:
    """The machine: processor model, usable cores, GPU names."""

    cpu: str
    cores: int
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class RunFacts:
    """Everything that the report of a run says.

    summary: the recipe in a line (`summarize`); parameters: trained weights, tied ones counted once;
    versions: package -> version; git_commit: of the working tree that ran, `-dirty` when it had changes
    """

    name: str
    summary: str
    seed: int
    data: DataFacts
    parameters: int
    training: TrainingFacts
    tests: tuple[ScoredTestSet, ...]
    machine: MachineFacts
    versions: dict[str, str]
    git_commit: str | None


def summarize(recipe: Recipe) -> str:
    """The recipe in a line: languages, size of the model, updates, search."""
    model, train, decode = recipe.model, recipe.train, recipe.decode
    return (
        f"{recipe.src_lang} to {recipe.tgt_lang}, Transformer of {model.num_encoder_layers}+{model.num_decoder_layers} "
        f"layers, d_model {model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads, dropout {model.dropout:g}; "
        f"at most {train.max_steps:,} updates of {train.batch_tokens:,} target tokens; beam {decode.beam_size}, "
        f"length penalty {decode.length_penalty} {decode.length_alpha:g}"
    )


def describe_machine() -> MachineFacts:
    """The machine that this process runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return MachineFacts(_cpu_model(), cores, gpus)


def describe_software() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            versions[package] = "not installed"
    return versions


def find_git_commit() -> str | None:
    """The commit of the working tree that this code belongs to, `-dirty` where it has changes; None outside of one."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:  # an installed copy inside somebody's tree
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def choose_samples(
    sources: Sequence[str], references: Sequence[str], translations: Sequence[str], number: int
) -> tuple[Sample, ...]:
    """At most `number` samples, spread evenly over the test set, the same at every call."""
    number = min(number, len(sources))
    chosen = [index * len(sources) // number for index in range(number)]
    return tuple(Sample(sources[i], references[i], translations[i]) for i in chosen)


def write_report(facts: RunFacts, directory: Path) -> tuple[Path, Path]:
    """Write `report.md` and `report.json` into `directory`; returns their paths."""
    markdown, data = directory / "report.md", directory / "report.json"
    markdown.write_text(format_markdown(facts), encoding="utf-8")
    data.write_text(format_json(facts), encoding="utf-8")
    return markdown, data


def format_json(facts: RunFacts) -> str:
    """The report as JSON: the fields of `RunFacts` and what follows from them; null for numbers that are not finite."""
    tree = dataclasses.asdict(facts)
    tree["training"]["tokens_per_second"] = facts.training.tokens_per_second
    tree["training"]["valid_perplexity"] = facts.training.valid_perplexity
    return json.dumps(_finite(tree), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def format_markdown(facts: RunFacts) -> str:
    """The report as Markdown: scores first, then how they came about."""
    lines = [f"# {_escape(facts.name)}", "", f"{_escape(facts.summary)}.", ""]
    for test in facts.tests:
        lines += [*_test_section(test), ""]
    lines += [*_training_section(facts), "", *_data_section(facts.data), "", *_origin_section(facts)]
    return "\n".join(lines) + "\n"


def _test_section(test: ScoredTestSet) -> Iterator[str]:
    rate = f", {test.sentences / test.seconds:,.1f} a second" if test.seconds else ""
    yield f"## Test set {_escape(test.name)}: {test.sentences:,} sentences{rate}"
    yield ""
    yield from _table(
        ("metric", "score", "signature"),
        ((_metric(score), f"{score.value:.2f}", f"`{score.signature}`") for score in test.scores),
    )
    for score in test.scores:
        if score.detail:
            yield ""
            yield f"{score.name}: {score.detail}"
    if test.groups:
        yield ""
        yield from _group_table(test.groups)
    for number, sample in enumerate(test.samples, start=1):
        yield ""
        yield f"{number}. source: {_escape(sample.src)}<br>"
        yield f"   reference: {_escape(sample.ref)}<br>"
        yield f"   translation: {_escape(sample.translation)}"


def _group_table(groups: Sequence[GroupScore]) -> Iterator[str]:
    header = ("phenomenon", "sentences", "exactly right", *(_metric(score) for score in groups[0].scores))
    rows = (
        (
            _escape(group.group),
            f"{group.sentences:,}",
            f"{group.exact:.1f} %",
            *(f"{s.value:.2f}" for s in group.scores),
        )
        for group in groups
    )
    return _table(header, rows)


def _training_section(facts: RunFacts) -> Iterator[str]:
    training = facts.training
    processes = f", {training.world_size} processes" if training.world_size > 1 else ""
    yield "## Training"
    yield ""
    yield from _pairs(
        {
            "parameters": f"{facts.parameters:,}",
            "updates": f"{training.steps:,} ({training.epochs:.1f} epochs)",
            "time": format_duration(training.seconds),
            "speed": f"{training.tokens_per_second:,.0f} target tokens a second",
            "computed in": f"{training.precision} on {training.device}{processes}",
            "best validation": _validation(training),
            "averaged checkpoints": str(training.averaged),
            "seed": str(facts.seed),
        }
    )


def _validation(training: TrainingFacts) -> str:
    if training.valid_loss is None:
        return "never measured"
    at = f" at update {training.valid_loss_step:,}" if training.valid_loss_step is not None else ""
    return f"loss {training.valid_loss:.4f}, perplexity {training.valid_perplexity:.2f}{at}"


def _data_section(data: DataFacts) -> Iterator[str]:
    yield "## Data"
    yield ""
    yield from _pairs(
        {
            "training pairs": f"{data.train_pairs:,} of {data.train_read:,}",
            **{f"dropped: {_escape(reason)}": f"{count:,}" for reason, count in data.dropped.items() if count},
            "training tokens": f"{data.src_tokens:,} source, {data.tgt_tokens:,} target",
            "development pairs": f"{data.valid_pairs:,}",
            "vocabulary": f"{data.src_vocab_size:,} source, {data.tgt_vocab_size:,} target pieces",
        }
    )


def _origin_section(facts: RunFacts) -> Iterator[str]:
    yield "## Machine and software"
    yield ""
    yield from _pairs(
        {
            "processor": f"{facts.machine.cpu}, {facts.machine.cores} cores",
            "GPUs": _count_equal(facts.machine.gpus) or "none",
            **facts.versions,
            "git commit": facts.git_commit or "unknown",
        }
    )


def _metric(score: Score) -> str:
    return f"{score.name} (lower is better)" if score.name == "ter" else score.name


def _count_equal(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _pairs(rows: dict[str, str]) -> Iterator[str]:
    return _table(("", ""), rows.items())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = (cell.replace("|", r"\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Text that Markdown shows as it stands, on one line; an underscore inside a word needs no mark."""
    return re.sub(r"([\\`*\[\]<>#&~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value


def _cpu_model() -> str:
    """The processor's name: Linux tells it in a file only; elsewhere the platform's word must do."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
