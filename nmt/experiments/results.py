"""Scores of a sweep on each test set, with intervals over seeds and sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.data.fingerprint import unpinned_datasets
from nmt.data.test_sets import TestSet, test_sets
from nmt.errors import UserError
from nmt.evaluate.metrics import Scorer, make_scorer, scoring_options
from nmt.evaluate.result_tables import metric_heading
from nmt.evaluate.tables import Table, escape_markdown, markdown_rows
from nmt.experiments.intervals import SEED, Estimate, RunScores, estimate, score_runs
from nmt.experiments.launch import is_complete
from nmt.experiments.run_comparison import read_translations
from nmt.experiments.sweep import Run
from nmt.logs import warn
from nmt.recipe import Recipe
from nmt.storage.finite import finite
from nmt.storage.run_folder import list_checkpoints, read_json_object
from nmt.text.tokenizer import Tokenizers
from nmt.train.state import TrainState
from nmt.train.warm_start import changed_start_model, with_start_model

_RESAMPLES = 1000
_INTERVALS = (
    "Mean and difference with half widths of their 95% intervals over seeds and test sentences "
    f"(Student's t, degrees of freedom by Satterthwaite; {_RESAMPLES:,} bootstrap resamples, seed {SEED})."
)
_SIGNIFICANCE = (
    "Significant: the interval of the difference from the first variant excludes zero. Intervals are not corrected for "
    "multiple comparisons."
)
_MISSING = "-"


@dataclass(frozen=True)
class VariantResult:
    """Results of the complete runs of a variant on one test set.

    valid_nll: nll per token of each run; None if no validation of the run has a finite score
    scores:    score of each run, in the order of `seeds`
    """

    name: str
    parameters: int
    seeds: tuple[int, ...]
    valid_nll: tuple[float | None, ...]
    scores: tuple[float, ...]
    deviation: float
    mean: Estimate
    difference: Estimate | None


@dataclass(frozen=True)
class TestResult:
    """Results of all variants on one test set, the baseline first; without it, no variant has a difference.

    leaks: a sentence with the number of test sentences in the training text
    """

    __test__ = False  # not a pytest class

    test: str
    metric: str
    signature: str
    leaks: str
    variants: tuple[VariantResult, ...]


def require_same_test_sets(runs: Sequence[Run]) -> None:
    """Raise UserError, before training, for variants with different test sets; reads them if `data.root` differs."""
    recipes = [run.recipe for run in runs]
    if any(recipe.data.test != recipes[0].data.test for recipe in recipes):
        raise UserError("variants must have the same test sets to be compared; remove data.test from their options")
    by_root = {recipe.data.root: recipe for recipe in recipes}
    if len(by_root) == 1:
        return
    tests = list(map(test_sets, by_root.values()))
    for name, test in tests[0].items():
        if any((other[name].src, other[name].refs) != (test.src, test.refs) for other in tests[1:]):
            raise UserError(
                f"data.test.{name} has different text in another data.root; variants must have the same test sets to "
                "be compared; give absolute paths to its files"
            )


def require_comparable(runs: Sequence[Run], metric: str | None) -> None:
    """Raise UserError, before training, for test sets or metrics that differ or are unavailable."""
    require_same_test_sets(runs)
    recipes = list({run.variant: run.recipe for run in runs}.values())
    test = next(iter(test_sets(recipes[0]).values()), None)
    signatures = [] if test is None else [_signature(recipe, metric, test) for recipe in recipes]
    distinct = list(dict.fromkeys(signatures))
    if len(distinct) > 1:
        raise UserError(
            f"variants use different metrics, {distinct[0]} and {distinct[1]}; they must use the same one to be "
            "compared; select a --metric, or set evaluate.metrics, evaluate.tokenize, tokenizer.lowercase or tgt_lang "
            "to the same value in all variants"
        )


def _signature(recipe: Recipe, metric: str | None, test: TestSet) -> str:
    """Return name and signature of the scores of a recipe; raises UserError for an unavailable metric."""
    lowercase = recipe.tokenizer.lowercase
    with suppress(UserError):  # without the initial model, no run starts
        lowercase = with_start_model(recipe).tokenizer.lowercase
    scorer = _make_scorer(recipe, metric, lowercase, test.name)
    return f"{scorer.name} {scorer.score(test.ref[:1], [stream[:1] for stream in test.refs]).signature}"


def warn_of_replaced(folder: Path, runs: Sequence[Run], metric: str | None) -> None:
    """Warn, before training, if a report in `folder` has runs or a metric that the new report will not have."""
    earlier: list[str] = []
    shown = metric or runs[0].recipe.evaluate.metrics[0]
    with suppress(KeyError, TypeError):  # of another version
        for test in read_json_object(folder / "report.json")["tests"]:
            if test.get("metric", shown) != shown:
                earlier.append(f"scores of {test['metric']} on {test['test']}")
            for variant in test["variants"]:
                earlier += [f"{variant['name']}, seed {seed}" for seed in variant["seeds"]]
    known = {run.name for run in runs}
    if lost := dict.fromkeys(name for name in earlier if name not in known):
        warn(
            f"{folder / 'report.md'} has {'; '.join(lost)}; it will be replaced by a report without them; to keep it, "
            "save a copy"
        )


def read_results(runs: Sequence[Run], metric: str | None = None) -> list[TestResult]:
    """Score the complete runs on each test set; warn of the others.

    metric: None selects the first metric of the recipe

    Raises UserError if no run is complete.
    """
    complete: dict[str, list[Run]] = {run.variant: [] for run in runs}  # in the order of the variants
    missing = []
    for run in runs:
        if is_complete(run):
            complete[run.variant].append(run)
        else:
            missing.append(run.name)
    if not any(complete.values()):
        raise UserError("no run is complete; wait for one, or rerun the command")
    if missing:
        warn(
            "not in the table, because they are incomplete or their options, text or outputs changed: "
            f"{'; '.join(missing)}; rerun the command"
        )
    return [_score_test(test, complete, metric) for test in test_sets(runs[0].recipe).values()]


def notes_on_training(runs: Sequence[Run]) -> Iterator[str]:
    """Yield notes on complete runs that diverged, whose options changed in training, or whose initial model changed."""
    for run in filter(is_complete, runs):
        decays = run.recipe.train.schedule in ("cosine", "linear")
        report = _report(run)
        if report["training"].get("valid_nll") is None:
            yield f"{run.name}: no validation has a finite score, as after divergence; the mean nll excludes this run"
        changed = dict.fromkeys(str(change["option"]) for change in report.get("changes", ()))
        # `nmt repeat` sets the threads itself. Without decay to max_steps, a run that was extended equals a longer one.
        unrelated = {"train.threads"} if decays else {"train.threads", "train.max_steps"}
        if names := [name for name in changed if name not in unrelated]:
            yield (
                f"{run.name}: {', '.join(names)} changed during training, so its scores do not reflect only the "
                f"current options; {run.recipe.directory / 'report.md'} lists the values; repeat the run in another "
                "folder (-o)"
            )
        for checkpoint in list_checkpoints(run.recipe.directory)[-1:]:
            with suppress(UserError):  # damaged, or of an earlier version; the results do not depend on it
                if problem := changed_start_model(run.recipe, TrainState.load(checkpoint)):
                    yield f"{run.name}: {problem}"


def warn_of_unpinned(runs: Sequence[Run]) -> None:
    """Warn of Hub datasets without a fixed revision."""
    unpinned: set[str] = set()
    for run in runs:
        unpinned.update(unpinned_datasets(run.recipe, [*run.recipe.data.train, *run.recipe.data.valid]))
    if unpinned:
        warn(
            f"no fixed revision of dataset {', '.join(sorted(unpinned))}; the runs may have been trained on different "
            "text; set `revision` to a commit to pin it"
        )


def result_tables(results: Sequence[TestResult]) -> list[Table]:
    """Return a table per test set."""
    header = ("variant", "parameters", "runs", "validation nll", "mean", "deviation", "difference", "")
    return [
        Table(
            title=f"{result.test}: {metric_heading(result.metric)}",
            columns="lrrrrrrl",
            header=header,
            rows=tuple(_row(variant) for variant in result.variants),
            signatures=((result.metric, result.signature),),
            notes=(result.leaks, *(_notes(results) if result is results[-1] else ())),
        )
        for result in results
    ]


def _notes(results: Sequence[TestResult]) -> Iterator[str]:
    """Yield notes on intervals and significance, if the tables have them; a single seed has no interval."""
    variants = [variant for result in results for variant in result.variants]
    if any(_has_interval(variant.mean) for variant in variants):
        yield _INTERVALS
    if any(_has_interval(variant.difference) for variant in variants):
        yield _SIGNIFICANCE


def _has_interval(score: Estimate | None) -> bool:
    return score is not None and not math.isnan(score.half_width)


def describe_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what is needed to repeat each complete run: its options, commit, machine and software."""
    fields = ("git_commit", "machine", "versions")
    return [
        {"run": run.name, "recipe": str(run.recipe_file), "options": list(run.overrides)}
        | {name: _report(run).get(name) for name in fields}
        for run in runs
        if is_complete(run)
    ]


def runs_section(runs: Sequence[Mapping[str, Any]]) -> str:
    """Format the results of `describe_runs` as Markdown."""
    rows = [(escape_markdown(run["run"]), escape_markdown(" ".join(run["options"]))) for run in runs]
    lines = ["## Runs", "", *markdown_rows(("run", "options"), rows), ""]
    for name, heading in (("git_commit", "Commit"), ("machine", "Machine"), ("versions", "Software")):
        distinct = dict.fromkeys(json.dumps(run[name]) for run in runs)
        lines += [f"{heading}: {'; '.join(map(_describe, map(json.loads, distinct)))}.", ""]
    return "\n".join(lines)


def _describe(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_describe(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_describe, value)) or "none"
    return "unknown" if value is None else str(value)


def as_document(results: Sequence[TestResult]) -> dict[str, Any]:
    """Return the results as JSON values, with null for NaN."""
    return {"tests": finite([asdict(result) for result in results])}


def _score_test(test: TestSet, complete: Mapping[str, Sequence[Run]], metric: str | None) -> TestResult:
    baseline: RunScores | None = None
    results: list[VariantResult] = []
    first = next(iter(complete))
    for name, runs in complete.items():
        if not runs:
            continue
        scorer = _scorer(runs[0].recipe, metric, test.name)
        lines = [read_translations(run.recipe, run.recipe.directory, test) for run in runs]
        signature = scorer.score(lines[0], test.refs).signature
        scores = score_runs(scorer, lines, test.refs, _RESAMPLES)
        results.append(_variant_result(name, runs, scores, baseline))
        if name == first:  # without it, no variant has a difference
            baseline = scores
    leaks = describe_leaks(test.name, [run for runs in complete.values() for run in runs])
    return TestResult(test.name, scorer.name, signature, leaks, tuple(results))


def describe_leaks(test: str, runs: Sequence[Run]) -> str:
    """State how many sentences of a test set occur in the training text, according to the reports of the runs."""
    runs_by_counts: dict[str, list[str]] = {}
    for run in runs:
        leaks = next((entry.get("leaks") for entry in _report(run)["tests"] if entry["name"] == test), None)
        runs_by_counts.setdefault(_leak_counts(leaks), []).append(run.name)
    counts = list(runs_by_counts)
    if len(counts) > 1:
        counts = [f"{text} ({', '.join(names)})" for text, names in runs_by_counts.items()]
    return f"Sentences with a match in the training text: {'; '.join(counts)}."


def _leak_counts(leaks: Mapping[str, Any] | None) -> str:
    if leaks is None:
        return "unknown"
    exact, near, total = leaks["any"]["exact"], leaks["any"]["near"], leaks["sentences"]
    if not exact and not near:
        return f"none of {total:,}"
    return f"{exact:,} exact and {near:,} near of {total:,}; the report of the run has scores without them"


def _variant_result(name: str, runs: Sequence[Run], scores: RunScores, baseline: RunScores | None) -> VariantResult:
    reports = list(map(_report, runs))
    return VariantResult(
        name=name,
        parameters=int(reports[0]["parameters"]),
        seeds=tuple(run.recipe.seed for run in runs),
        valid_nll=tuple(report["training"].get("valid_nll") for report in reports),
        scores=tuple(scores.whole.tolist()),
        deviation=scores.deviation,
        mean=estimate(scores),
        difference=None if baseline is None else estimate(scores, baseline),
    )


def _report(run: Run) -> dict[str, Any]:
    """Return the report of a complete run."""
    report: dict[str, Any] = json.loads((run.recipe.directory / "report.json").read_text(encoding="utf-8"))
    return report


def _scorer(recipe: Recipe, metric: str | None, test: str) -> Scorer:
    """Return a scorer with the options of the run's report."""
    return _make_scorer(recipe, metric, Tokenizers.load(recipe.directory / "model").tgt.lowercases(), test)


def _make_scorer(recipe: Recipe, metric: str | None, lowercase: bool, test: str) -> Scorer:
    name = metric or recipe.evaluate.metrics[0]
    return make_scorer(name, **scoring_options(recipe, lowercase, test))


def _row(variant: VariantResult) -> tuple[str, ...]:
    nlls = [nll for nll in variant.valid_nll if nll is not None]
    difference = variant.difference
    verdict = ""
    if difference is not None and _has_interval(difference):
        verdict = "significant" if difference.is_significant else "not significant"
    return (
        variant.name,
        f"{variant.parameters:,}",
        str(len(variant.seeds)),
        f"{sum(nlls) / len(nlls):.3f}" if nlls else _MISSING,
        _cell(variant.mean, ".2f"),
        _MISSING if math.isnan(variant.deviation) else f"{variant.deviation:.2f}",
        "" if difference is None else _cell(difference, "+.2f"),
        verdict,
    )


def _cell(score: Estimate, style: str) -> str:
    interval = f" ± {score.half_width:.2f}" if _has_interval(score) else ""
    return f"{score.value:{style}}{interval}"
