"""Contents of a run report: data, training, test scores, machine and software.

The caller collects them; `nmt/evaluate/report_format.py` formats them. Field names are the keys of `report.json`.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nmt.diagnostics.leaks import LeakCounts
from nmt.evaluate.forecast import Forecast
from nmt.evaluate.metrics import GroupScore, Score
from nmt.processes.cores import num_cores
from nmt.recipe import NO_LANGUAGE, Recipe
from nmt.recipe.corpora import directions
from nmt.train.state import Change
from nmt.train.validate import perplexity

_PACKAGES = ("nmt", "torch", "sentencepiece", "sacrebleu", "sacremoses", "numpy")


@dataclass(frozen=True)
class DataSummary:
    """Prepared corpora.

    train_read:  training pairs read; train_pairs of them were kept
    dropped:     number of dropped training pairs by reason
    src_tokens, tgt_tokens: subword tokens of the kept training pairs
    valid_leaks: validation pairs with an exact or near match of a side in the training text; None if unknown
    valid_read:  validation pairs searched for leaks; valid_pairs of them fit the model. None if unknown
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
    valid_read: int | None = None

    @classmethod
    def from_prepare_report(cls, report: Mapping[str, Any], valid_leaks: int | None = None) -> DataSummary:
        """Create the summary from a parsed `prepare.json`."""
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
            valid_read=report["valid"].get("pairs_read"),
        )


@dataclass(frozen=True)
class TrainingSummary:
    """Training of the scored model.

    seconds:       training time over all sessions, without preparation, validation and writing of checkpoints
    tgt_tokens:    trained target tokens, EOS included
    valid_nll:     negative log-likelihood per validation token in nats at the best validation, without label smoothing;
                   of the EMA if the best score is that of the EMA; None if no validation has a finite score
    averaged:      number of averaged checkpoints; 0 if the model is the EMA
    average_nll:   validation nll of the average; None for a single checkpoint or the EMA, which training validates
    is_from_ema:   whether the best validation is that of the EMA
    is_worse_than_start: whether the best validation is worse than that of the model that fine-tuning started from
    skipped:       updates with non-finite gradients
    valid_bleu:    BLEU of the best validation if `train.best_metric` is "bleu"; otherwise None
    micro_batches: mean number per update, over all ranks; None if unknown
    useful_fraction: fraction of the computation that is neither padding nor waiting for the slowest rank; None if
                   unknown
    valid:         fingerprint of the validation set, see `nmt.data.prepare.Prepared.valid_identity`; "" if unknown
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
    is_worse_than_start: bool = False
    is_from_ema: bool = False
    skipped: int = 0
    valid_bleu: float | None = None
    micro_batches: float | None = None
    useful_fraction: float | None = None
    average_nll: float | None = None
    valid: str = ""

    @property
    def tokens_per_second(self) -> float:
        """Trained target tokens per second."""
        return self.tgt_tokens / self.seconds if self.seconds else 0.0

    @property
    def valid_perplexity(self) -> float | None:
        """Perplexity per validation token at the best validation."""
        return None if self.valid_nll is None else perplexity(self.valid_nll)


@dataclass(frozen=True)
class Sample:
    """A translated sentence with its source and reference."""

    src: str
    ref: str
    translation: str


@dataclass(frozen=True)
class ScoredTestSet:
    """Scores of a test set.

    seconds:      time of translation, or of scoring by a language model
    groups:       scores by label, if sentences have labels
    leaks:        sentences in the training text; None if unknown
    clean_scores: scores of the sentences without a leak; empty if all or none leak, or if unknown
    search:       engine and precision of the translation; "" for a language model
    digest:       SHA-256 of model, text and translation, see `nmt.evaluate.translated`
    source, output: SHA-256 of the translated sentences and of their translations; "" if unknown
    references: SHA-256 of the references; "" if unknown
    context: SHA-256 of the number of previous sentences of each; "" without context, or if unknown
    tag:          prepended to each source sentence; "" if none
    languages:    such as "en to fr" if they are not those of the recipe, otherwise ""
    baseline, baseline_description, baseline_scores: see `nmt.evaluate.baselines`; empty without a baseline
    """

    name: str
    sentences: int
    seconds: float
    scores: tuple[Score, ...]
    groups: tuple[GroupScore, ...] = ()
    samples: tuple[Sample, ...] = ()
    leaks: LeakCounts | None = None
    clean_scores: tuple[Score, ...] = ()
    search: str = ""
    digest: str = ""
    source: str = ""
    references: str = ""
    context: str = ""
    output: str = ""
    tag: str = ""
    languages: str = ""
    baseline: str = ""
    baseline_description: str = ""
    baseline_scores: tuple[Score, ...] = ()


@dataclass(frozen=True)
class Machine:
    """CPU model, usable cores and GPU names."""

    cpu: str
    cores: int
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class RunReport:
    """Contents of a run report.

    summary:    one-line description of the recipe (`summarize`)
    parameters: number of parameters, frozen ones included; tied ones count once
    versions:   version by package
    git_commit: commit of the working tree, with `-dirty` if modified
    recipe:     non-default options as TOML
    curves:     file name of the training curves
    notes:      missing parts of the report, with the reason
    changes:    options that changed during training
    forecast:   made by `nmt plan` before the run; None if there is none
    start_from: the initial model, whose training text is not searched for test sentences; None if there is none
    model:      SHA-256 of the manifest of the scored model
    decoding_files: SHA-256 of the files that search options name, see `nmt.decode.requirements`
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
    forecast: Forecast | None = None
    start_from: str | None = None
    model: str = ""
    decoding_files: Mapping[str, str] = field(default_factory=dict)


def summarize(recipe: Recipe) -> str:
    """Describe a recipe in one line: languages, model size, updates and search."""
    train = recipe.train
    task, search = ", ".join(directions(recipe.data.train, recipe)), ""
    if recipe.is_language_model:
        task = f"language model of {task.replace(f'{NO_LANGUAGE} to ', '')}"
    else:
        search = f"; {recipe.decode.description}"
    return (
        f"{task}, {recipe.model.description}; "
        f"at most {train.max_steps:,} updates of {train.batch_tokens:,} target tokens{search}"
    )


def with_direction(test: ScoredTestSet, recipe: Recipe) -> ScoredTestSet:
    """Return a test set with its tag, and with its languages if they are not those of the recipe."""
    corpus = recipe.data.test[test.name]
    languages = corpus.languages(recipe)
    is_own = languages != (recipe.src_lang, recipe.tgt_lang)
    tag = corpus.tag or recipe.decode.tag or ""
    shown = languages[1] if recipe.is_language_model else " to ".join(languages)
    return replace(test, tag=tag, languages=shown if is_own else "")


def describe_machine() -> Machine:
    """Return CPU and GPUs of this machine."""
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Machine(_cpu_model(), num_cores(), gpus)


def describe_software() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # running from a source tree that is not installed
            versions[package] = "not installed"
    return versions | {"torch": torch.__version__}  # with its build, such as +cu130


def find_git_commit(ignored: Sequence[str] = ()) -> str | None:
    """Return the commit of this source tree, with `-dirty` if modified; None outside of a repository.

    ignored: paths, from the root of the tree, of files whose changes do not count
    """
    # An installed copy may be inside an unrelated repository.
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git("rev-parse", "HEAD")
    files = [":/", *(f":(top,exclude){path}" for path in ignored)]
    is_modified = _git("status", "--porcelain", "--untracked-files=no", "--", *files)
    return f"{commit}-dirty" if commit and is_modified else commit


def choose_samples(
    sources: Sequence[str], references: Sequence[str], translations: Sequence[str], number: int
) -> tuple[Sample, ...]:
    """Return up to `number` samples, evenly spaced over the test set."""
    number = min(number, len(sources))
    chosen = [index * len(sources) // number for index in range(number)]
    return tuple(Sample(sources[i], references[i], translations[i]) for i in chosen)


def _cpu_model() -> str:
    try:  # on Linux, `platform` does not know the model
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        cpuinfo = ""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
