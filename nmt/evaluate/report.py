"""What the report of a run says: what was trained on what, where, how fast, and how well it translates.

Everything in it is plain data that the caller hands over; only the machine and the software describe themselves.
`nmt/evaluate/report_format.py` formats it.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nmt.data.leaks import LeakCounts
from nmt.evaluate.metrics import GroupScore, Score
from nmt.recipe import Recipe
from nmt.train.state import Change

_PACKAGES = ("nmt", "torch", "sentencepiece", "sacrebleu", "sacremoses", "numpy")


@dataclass(frozen=True)
class DataSummary:
    """What preparation made of the corpora.

    train_read: training pairs found; train_pairs: of these, kept; dropped: the others, counted by reason
    valid_pairs: development pairs; src_tokens, tgt_tokens: subword tokens of the kept training pairs
    valid_leaks: development pairs of which a side occurs in the training text, exactly or nearly; None if unknown
    """

    train_read: int
    train_pairs: int
    dropped: dict[str, int]
    valid_pairs: int
    src_tokens: int
    tgt_tokens: int
    src_vocab_size: int
    tgt_vocab_size: int
    valid_leaks: int | None = None

    @classmethod
    def from_prepare_report(cls, report: Mapping[str, Any], valid_leaks: int | None = None) -> DataSummary:
        """The facts in a parsed `prepare.json`, and what was found in the development text."""
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
            valid_leaks=valid_leaks,
        )


@dataclass(frozen=True)
class TrainingSummary:
    """How the weights were found.

    seconds: training time over all starts, without preparation; tgt_tokens: target tokens trained on, end tokens
    included; valid_nll: negative log-likelihood of a validation token in nats, without label smoothing, at the best
    validation, None if never measured; averaged: number of checkpoints whose mean translates the test sets; skipped:
    updates without a finite gradient;
    micro_batches: of an update over all processes, on average; work_share: share of the processes' work that counts,
    the rest being padding and waiting for the busiest; None where the run has noted neither.
    """

    steps: int
    epochs: float
    seconds: float
    tgt_tokens: int
    world_size: int
    device: str
    precision: str
    valid_nll: float | None
    valid_step: int | None
    averaged: int
    skipped: int = 0
    micro_batches: float | None = None
    work_share: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Target tokens trained per second."""
        return self.tgt_tokens / self.seconds if self.seconds else 0.0

    @property
    def valid_perplexity(self) -> float | None:
        """Perplexity of a development token at the best validation."""
        if self.valid_nll is None:
            return None
        return math.exp(self.valid_nll) if self.valid_nll < 700 else math.inf  # beyond, a float overflows


@dataclass(frozen=True)
class Sample:
    """One translated sentence beside its source and reference."""

    src: str
    ref: str
    translation: str


@dataclass(frozen=True)
class ScoredTestSet:
    """One test set: its scores, scores by label where sentences have labels, and a few translations.

    seconds: time to translate all of its `sentences`
    leaks: how many of them occur in the training text; None if unknown
    clean_scores: the scores of the others; empty where there are none or all
    """

    name: str
    sentences: int
    seconds: float
    scores: tuple[Score, ...]
    groups: tuple[GroupScore, ...] = ()
    samples: tuple[Sample, ...] = ()
    leaks: LeakCounts | None = None
    clean_scores: tuple[Score, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The machine: processor model, usable cores, GPU names."""

    cpu: str
    cores: int
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class RunReport:
    """Everything that the report of a run says.

    summary: the recipe in a line (`summarize`); parameters: trained weights, tied ones counted once;
    versions: package -> version; git_commit: of the working tree that ran, `-dirty` when it had changes
    recipe: its options that are not the default, as TOML; curves: file name of their picture beside the report
    notes: what the report lacks, and why; changes: options that changed while the run was trained
    """

    name: str
    summary: str
    seed: int
    data: DataSummary
    parameters: int
    training: TrainingSummary
    tests: tuple[ScoredTestSet, ...]
    machine: Machine
    versions: dict[str, str]
    git_commit: str | None
    recipe: str = ""
    curves: str | None = None
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def summarize(recipe: Recipe) -> str:
    """The recipe in a line: languages, size of the model, updates, search."""
    model, train, decode = recipe.model, recipe.train, recipe.decode
    alpha = "" if decode.length_penalty == "none" else f" {decode.length_alpha:g}"
    return (
        f"{recipe.src_lang} to {recipe.tgt_lang}, Transformer of {model.num_encoder_layers}+{model.num_decoder_layers} "
        f"layers, d_model {model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads, dropout {model.dropout:g}; "
        f"at most {train.max_steps:,} updates of {train.batch_tokens:,} target tokens; beam {decode.beam_size}, "
        f"length penalty {decode.length_penalty}{alpha}"
    )


def describe_machine() -> Machine:
    """The machine that this process runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Machine(_cpu_model(), cores, gpus)


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
