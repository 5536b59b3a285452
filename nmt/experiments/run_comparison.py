"""Comparison of runs: options that differ, and scores on common test sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.test_sets import TestSet, test_sets
from nmt.errors import UserError
from nmt.evaluate.hints import hint_at_lowercase_output, warn_of_case
from nmt.evaluate.inputs import warn_of_identical
from nmt.evaluate.metrics import check_aligned, make_scorer, scoring_options
from nmt.evaluate.significance import Comparison, compare_systems
from nmt.evaluate.tables import Table
from nmt.evaluate.translated import (
    context_digest,
    has_other_output,
    is_changed,
    output_name,
    references_digest,
    text_digest,
)
from nmt.logs import warn
from nmt.recipe import Recipe, load_saved_recipe, parse_saved_recipe
from nmt.storage.run_folder import read_json_object, require_run
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizers

_UNSET = "-"
# Options that identify a run and do not affect its results.
_IDENTITY_OPTIONS = {"name", "run_dir"}
_RESOURCE_OPTIONS = {"train.threads", "data.workers"}  # they affect results only by rounding


@dataclass(frozen=True)
class ComparedRun:
    """A run, named by its directory as given by the user; `recipe` is the one used for its translations."""

    name: str
    directory: Path
    recipe: Recipe

    @classmethod
    def read(cls, directory: Path) -> ComparedRun:
        """Read a run directory; raises UserError if it is not one. Warns if its options differ from its report's."""
        path = directory / "recipe.toml"
        if not path.is_file():
            raise UserError(
                f"{directory} is not a run directory: it has no recipe.toml, which `nmt run` writes; compare "
                "only runs, or only files of translations"
            )
        require_run(directory)
        recipe = load_saved_recipe(path)
        report = read_json_object(directory / "report.json")
        try:
            reported = parse_saved_recipe(report["recipe"])
            step = report["training"]["steps"]
        except (ValueError, KeyError, TypeError):  # no report, or one of an earlier version
            return cls(str(directory), directory, recipe)
        now = _options(recipe)
        then = _options(reported)
        changed = [name for name in now | then if now.get(name) != then.get(name)]
        changed = [name for name in changed if name not in _IDENTITY_OPTIONS | _RESOURCE_OPTIONS]
        if changed:
            warn(
                f"{directory} was trained with different options after its test sets were translated "
                f"({', '.join(changed)}); options and scores are those of its report, at step {step:,}; "
                "`nmt run` updates them"
            )
        return cls(str(directory), directory, reported)


def difference_table(runs: Sequence[ComparedRun]) -> Table:
    """List the options in which the recipes differ, with a column per run."""
    options = [_options(run.recipe) for run in runs]
    names = dict.fromkeys(name for run_options in options for name in run_options if name not in _IDENTITY_OPTIONS)
    rows = [(name, *(run_options.get(name, _UNSET) for run_options in options)) for name in names]
    return Table(
        title="options that differ",
        columns="l" * (1 + len(runs)),
        header=("option", *(run.name for run in runs)),
        rows=tuple(row for row in rows if len(set(row[1:])) > 1),
    )


def compare_runs(
    runs: Sequence[ComparedRun], metrics: Sequence[str] | None, *, resamples: int, trials: int
) -> dict[str, list[Comparison]]:
    """Compare runs with the first one on each common test set, by both paired tests.

    metrics: None selects those of the first run's recipe

    Raises UserError for a language model, whose runs have no translations.
    """
    if models := [run.name for run in runs if run.recipe.is_language_model]:
        raise UserError(
            f"{models[0]} is the run of a language model, which has no translations to compare; compare the "
            "perplexities in the reports"
        )
    first = runs[0].recipe
    comparisons: dict[str, list[Comparison]] = {}
    for tests in _common_test_sets(runs):
        for compared, own in zip(runs, tests, strict=True):
            _require_same_context(compared, own)
        test = tests[0]
        systems = {run.name: read_translations(run.recipe, run.directory, test) for run in runs}
        warn_of_identical(systems, f"{test.name}: ")
        lowercase = _lowercases(runs, test.name)
        options = scoring_options(first, lowercase, test.name)
        names = metrics or first.evaluate.metrics
        scorers = [make_scorer(name, **options) for name in names]
        for run, lines in systems.items():
            hint_at_lowercase_output(f"data.test.{test.name} by {run}", lines, test.refs, names, **options)
        if lowercase:
            warn_of_case(f"data.test.{test.name}", test.refs, scorers, "--metrics")
        comparisons[test.name] = [
            compare_systems(systems, test.refs, scorer, resamples=resamples, trials=trials) for scorer in scorers
        ]
    return comparisons


def read_translations(recipe: Recipe, directory: Path, test: TestSet) -> list[str]:
    """Read the translations of a test set from a run directory."""
    path = directory / "translations" / output_name(recipe, test.name)
    if not path.is_file():
        raise UserError(f"{path} is missing; `nmt run` writes it after training; complete that run first")
    lines = list(read_lines(path))
    if is_changed(directory, test.name, "source", text_digest(test.src)):
        raise UserError(
            f"data.test.{test.name} has changed since {path} was written; restore the test set, or run `nmt run` "
            "again, which translates it"
        )
    if has_other_output(directory, test.name, path):
        raise UserError(
            f"{path} has changed since the report of {directory} was written; run `nmt run` again, which translates "
            "the test set, or compare files with --ref"
        )
    check_aligned({str(path): lines, f"data.test.{test.name}": test.src})
    if is_changed(directory, test.name, "references", references_digest(test.refs)):
        warn(
            f"the references of data.test.{test.name} have changed since the report of {directory}, whose scores are "
            "those of the old ones; `nmt run` updates them"
        )
    return lines


def _require_same_context(run: ComparedRun, test: TestSet) -> None:
    """Raise UserError if the documents of a test set are not those with which a run translated it."""
    if is_changed(run.directory, test.name, "context", context_digest(test.previous)):
        raise UserError(
            f"the documents of data.test.{test.name} have changed since {run.directory} translated it with their "
            "context; restore the test set, or run `nmt run` again, which translates it"
        )


def _common_test_sets(runs: Sequence[ComparedRun]) -> list[list[TestSet]]:
    """Return the test sets that all recipes name, with the same text: for each, as read by each run.

    Their context differs between runs if `data.context` does.
    """
    names = set.intersection(*(set(run.recipe.data.test) for run in runs))
    first, *others = [test_sets(_select_test_sets(run.recipe, names)) for run in runs]
    common = []
    for name, test in first.items():
        if all((tests[name].src, tests[name].refs) == (test.src, test.refs) for tests in others):
            common.append([test, *(tests[name] for tests in others)])
        else:
            warn(f"data.test.{name} is left out: its text is not the same in all runs")
    return common


def _select_test_sets(recipe: Recipe, names: set[str]) -> Recipe:
    tests = {name: corpus for name, corpus in recipe.data.test.items() if name in names}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"test": tests})})


def _lowercases(runs: Sequence[ComparedRun], test: str) -> bool:
    """Return whether the models write lowercase text; raises UserError if only some do."""
    lowercases = [Tokenizers.load(run.directory / "model").tgt.lowercases() for run in runs]
    if any(lowercases) and not all(lowercases):
        raise UserError(
            f"only some of these models write lowercase text, so their scores on {test} are not comparable; compare "
            "their translations with --lowercase instead"
        )
    return all(lowercases)


def _options(recipe: Recipe) -> dict[str, str]:
    """Return all options that apply to the architecture by dotted name, with values as text."""
    return dict(_flatten(recipe.model_dump(mode="json", exclude={"model": recipe.model.ineffective_options}), ""))


def _flatten(tree: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield dotted names and values, as text, of nested options. prefix: begins each name"""
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}{key}.")
    else:
        yield prefix.removesuffix("."), _UNSET if tree in (None, {}) else str(tree)
