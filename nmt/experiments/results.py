"""The scores of an experiment: a table for each test set, with what seeds and sentences leave uncertain."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nmt.data.test_sets import TestSet, test_sets
from nmt.evaluate.metrics import Scorer, check_aligned, make_scorer
from nmt.evaluate.tables import Table
from nmt.experiments.intervals import Estimate, RunScores, estimate, score_runs
from nmt.experiments.launch import is_complete
from nmt.experiments.sweep import Run
from nmt.recipe import Recipe, UserError
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizers

NOTES = (
    "Mean and difference with half of their 95 % intervals over seeds and test sentences together "
    "(Student's t, degrees of freedom by Satterthwaite; 1,000 bootstrap resamples of sentences).",
    "Shown: the interval of the difference to the first variant leaves out zero. Intervals are not corrected for the "
    "number of comparisons.",
)
RESAMPLES = 1000
_NO_FIGURE = "-"


@dataclass(frozen=True)
class VariantResult:
    """What the complete runs of a variant reached on one test set.

    valid_nll: per token, of each run, by seed; None where a run has none
    scores:    of each run, by seed
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
    """The results of all variants on one test set by one metric, the baseline first."""

    __test__ = False  # Not for pytest to collect.

    test: str
    metric: str
    signature: str
    variants: tuple[VariantResult, ...]


def read_results(runs: Sequence[Run], metric: str | None = None) -> list[TestResult]:
    """The results of the runs that are complete, on each test set; empty where there are no test sets.

    metric: by default the first one of the recipe that sacreBLEU counts. Raises UserError where no run is complete, and
    where variants have other test sets.
    """
    complete: dict[str, list[Run]] = {}
    for run in runs:
        if is_complete(run):
            complete.setdefault(run.variant, []).append(run)
    if not complete:
        raise UserError("no run is complete; there must be one to show results; wait, or give the command again")
    recipes = [run.recipe for run in runs]
    if len({json.dumps(_tests(recipe), sort_keys=True) for recipe in recipes}) > 1:
        raise UserError("variants have different test sets; scores compare on the same ones only; take data.test out")
    return [_of_test(test, complete, metric) for test in test_sets(recipes[0]).values()]


def result_tables(results: Sequence[TestResult]) -> list[Table]:
    """The results as tables, one for each test set."""
    header = ("variant", "weights", "runs", "validation nll", "mean", "deviation", "difference", "")
    return [
        Table(
            title=f"{result.test}: {result.metric}",
            columns="lrrrrrrl",
            header=header,
            rows=tuple(_row(variant) for variant in result.variants),
            signatures=((result.metric, result.signature),),
            notes=NOTES if result is results[-1] else (),
        )
        for result in results
    ]


def as_document(results: Sequence[TestResult]) -> dict[str, Any]:
    """The results as JSON values; what is unknown is null."""
    document: dict[str, Any] = json.loads(json.dumps([asdict(result) for result in results]), parse_constant=_no_number)
    return {"tests": document}


def _no_number(_: str) -> None:
    """What stands in JSON for figures that are not there, such as the deviation of one run."""


def _of_test(test: TestSet, complete: Mapping[str, Sequence[Run]], metric: str | None) -> TestResult:
    scorer: Scorer | None = None
    baseline: RunScores | None = None
    found: list[VariantResult] = []
    signature = ""
    for name, runs in complete.items():
        scorer = _scorer(runs[0].recipe, metric)
        lines = [_translations(run, test) for run in runs]
        signature = scorer.score(lines[0], test.refs).signature
        scores = score_runs(scorer, lines, test.refs, RESAMPLES)
        found.append(_variant(name, runs, scores, baseline))
        baseline = baseline or scores
    assert scorer is not None
    return TestResult(test.name, scorer.name, signature, tuple(found))


def _variant(name: str, runs: Sequence[Run], scores: RunScores, baseline: RunScores | None) -> VariantResult:
    reports = [json.loads((run.recipe.directory / "report.json").read_text(encoding="utf-8")) for run in runs]
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


def _translations(run: Run, test: TestSet) -> list[str]:
    path = run.recipe.directory / "translations" / f"{test.name}.{run.recipe.tgt_lang}"
    lines = list(read_lines(path))
    check_aligned({str(path): lines, f"data.test.{test.name}": test.src})
    return lines


def _scorer(recipe: Recipe, metric: str | None) -> Scorer:
    """The scorer of a metric with the options with which the run's report is scored."""
    name = metric or recipe.evaluate.metrics[0]
    lowercase = Tokenizers.load(recipe.directory / "model").tgt.lowercases()
    return make_scorer(name, tgt_lang=recipe.tgt_lang, tokenize=recipe.evaluate.tokenize, lowercase=lowercase)


def _tests(recipe: Recipe) -> dict[str, Any]:
    return {name: corpus.model_dump(mode="json") for name, corpus in recipe.data.test.items()}


def _row(variant: VariantResult) -> tuple[str, ...]:
    known = [nll for nll in variant.valid_nll if nll is not None]
    return (
        variant.name,
        f"{variant.parameters:,}",
        str(len(variant.seeds)),
        f"{sum(known) / len(known):.3f}" if known else _NO_FIGURE,
        _cell(variant.mean),
        _NO_FIGURE if math.isnan(variant.deviation) else f"{variant.deviation:.2f}",
        "" if variant.difference is None else _cell(variant.difference, signed=True),
        _verdict(variant.difference),
    )


def _cell(found: Estimate, *, signed: bool = False) -> str:
    value = f"{found.value:+.2f}" if signed else f"{found.value:.2f}"
    return value if math.isnan(found.half_width) else f"{value} ± {found.half_width:.2f}"


def _verdict(difference: Estimate | None) -> str:
    if difference is None:
        return ""
    return "shown" if difference.is_shown else "not shown"
