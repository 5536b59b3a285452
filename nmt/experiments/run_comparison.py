"""Runs side by side: what their recipes differ in, and their scores on the test sets that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.test_sets import TestSet, test_sets
from nmt.evaluate.metrics import make_scorer
from nmt.evaluate.significance import Comparison, compare_systems
from nmt.evaluate.tables import Table
from nmt.recipe import Recipe, UserError, load_saved_recipe
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizers

_UNSET = "-"
# Options that are different in all runs, and change nothing in them.
_OF_THE_RUN = {"name", "run_dir"}


@dataclass(frozen=True)
class ComparedRun:
    """A run directory, by the name that the user gives it, with its recipe."""

    name: str
    directory: Path
    recipe: Recipe

    @classmethod
    def read(cls, directory: Path) -> ComparedRun:
        """The run in a directory; UserError where there is none."""
        path = directory / "recipe.toml"
        if not path.is_file():
            raise UserError(f"{directory} is no run directory: it has no recipe.toml; give one that `nmt run` wrote")
        return cls(str(directory), directory, load_saved_recipe(path))


def difference_table(runs: Sequence[ComparedRun]) -> Table:
    """The options in which the recipes differ, a column for each run."""
    options = [dict(_flat(run.recipe.model_dump(mode="json"))) for run in runs]
    names = [name for name in dict.fromkeys(name for own in options for name in own) if name not in _OF_THE_RUN]
    rows = [(name, *(own.get(name, _UNSET) for own in options)) for name in names]
    return Table(
        title="options that differ",
        columns="l" * (1 + len(runs)),
        header=("option", *(run.name for run in runs)),
        rows=tuple(row for row in rows if len(set(row[1:])) > 1),
    )


def compare_runs(
    runs: Sequence[ComparedRun], metrics: Sequence[str] | None, *, resamples: int, trials: int
) -> dict[str, list[Comparison]]:
    """The scores of the runs on each test set that all have, by its name, with both paired tests; the first is the
    baseline. Empty where they share none.

    metrics: by default those of the first run's recipe
    """
    first = runs[0].recipe
    names = metrics or list(first.evaluate.metrics)
    found: dict[str, list[Comparison]] = {}
    for test in _shared_test_sets(runs).values():
        systems = {run.name: _translations(run, test) for run in runs}
        scorers = [
            make_scorer(
                name, tgt_lang=first.tgt_lang, tokenize=first.evaluate.tokenize, lowercase=_lowercases(runs, test.name)
            )
            for name in names
        ]
        found[test.name] = [
            compare_systems(systems, test.refs, scorer, resamples=resamples, trials=trials) for scorer in scorers
        ]
    return found


def _shared_test_sets(runs: Sequence[ComparedRun]) -> Mapping[str, TestSet]:
    """The test sets that all recipes name, and whose texts are the same."""
    names = set.intersection(*(set(run.recipe.data.test) for run in runs))
    sets = [test_sets(_with_tests(run.recipe, names)) for run in runs]
    return {
        name: test
        for name, test in sets[0].items()
        if all((other[name].src, other[name].refs) == (test.src, test.refs) for other in sets[1:])
    }


def _with_tests(recipe: Recipe, names: set[str]) -> Recipe:
    tests = {name: corpus for name, corpus in recipe.data.test.items() if name in names}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"test": tests})})


def _translations(run: ComparedRun, test: TestSet) -> list[str]:
    path = run.directory / "translations" / f"{test.name}.{run.recipe.tgt_lang}"
    if not path.is_file():
        raise UserError(f"{path} is missing; `nmt run` translates test sets at its end; complete that run first")
    return list(read_lines(path))


def _lowercases(runs: Sequence[ComparedRun], test: str) -> bool:
    """Whether models write lower case only; UserError where some do, since their scores then do not compare."""
    found = {Tokenizers.load(run.directory / "model").tgt.lowercases() for run in runs}
    if len(found) > 1:
        raise UserError(
            f"some of these models write lower case only, others do not; their scores on {test} do not compare; give "
            "their translations instead of the runs, with --lowercase"
        )
    return found.pop()


def _flat(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested options as text, by full name."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    is_leaf = not isinstance(tree, dict | list) or not tree
    if is_leaf:
        yield name, _UNSET if tree in (None, [], {}) else str(tree)
    for key, value in items:
        yield from _flat(value, f"{name}.{key}" if name else str(key))
