"""`nmt compare`: significance tests between systems or runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.cli.arguments import check_inputs, file_path, require_plot
from nmt.cli.metric_options import MetricOptions, output_format, print_results
from nmt.errors import CommandError, UserError
from nmt.evaluate.hints import hint_at_forms
from nmt.evaluate.inputs import read_systems, warn_of_identical
from nmt.evaluate.result_tables import comparison_tables
from nmt.evaluate.significance import compare_systems
from nmt.evaluate.tables import Table
from nmt.experiments.run_comparison import ComparedRun, compare_runs, difference_table
from nmt.logs import progress, say, warn
from nmt.plots.curves import draw_runs
from nmt.text.lines import STANDARD_STREAM

_METRICS = "Comma-separated (default: bleu,chrf,ter; for runs, those of the baseline's recipe)."
_RESAMPLES = "Resamples of the paired bootstrap; 0 disables it and the intervals."


@dataclass(frozen=True, kw_only=True)
class Compare(MetricOptions):
    """Compare systems with a baseline by two paired tests: bootstrap and approximate randomization.

    Both use the samples of sacreBLEU's --paired-bs and --paired-ar, with the same scores and intervals. p is two-sided
    and counts ties with the observed difference; sacreBLEU's p is too small, especially if few sentences differ.
    The environment variable SACREBLEU_SEED (default: 12345) sets the seed, which the signatures include.

    nmt compare --ref news.de base.de big.de

    For run directories: compares their recipes, and their translations of the test sets that all of them have.

    nmt compare runs/base runs/big -o curves.png
    """

    baseline: Annotated[Path, typer.Argument(help="Translations of the baseline, or its run directory.")]
    others: Annotated[
        list[Path],
        typer.Argument(metavar="OTHER...", help="Translations of other systems, or their runs; - is standard input."),
    ]
    metrics: Annotated[str | None, typer.Option("-m", "--metrics", help=_METRICS)] = None
    resamples: Annotated[int, typer.Option(min=0, help=_RESAMPLES)] = 1000
    trials: Annotated[int, typer.Option(min=0, help="Trials of paired approximate randomization; 0 disables it.")] = (
        10_000
    )
    plot: Annotated[
        Path | None,
        typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="For runs: plot their curves to this file."),
    ] = None

    def run(self) -> None:
        """Compare runs or files."""
        output = output_format(self.output, self.as_json)
        compare = self._compare_runs if self.baseline.is_dir() else self._compare_files
        document, tables = compare([self.baseline, *self.others])
        print_results(document, tables, output)

    def _compare_files(self, paths: Sequence[Path]) -> tuple[dict[str, Any], list[Table]]:
        if self.plot is not None:
            raise CommandError("-o plots the curves of runs; leave out -o, or give run directories")
        self.check()
        missing = [str(path) for path in paths if path != STANDARD_STREAM and not path.exists()]
        if missing:
            raise UserError(
                f"{', '.join(missing)}: no such file or directory; give translations, or runs; check the path"
            )
        check_inputs([*paths, *(self.ref or [])])
        test = self.read_test_set()
        scorers = self.scorers(test)
        systems = read_systems(paths, test)
        hint_at_forms(systems, test, scorers)
        warn_of_identical(systems)
        comparisons = []
        with progress("comparing", len(scorers), "metrics") as bar:
            for scorer in scorers:
                comparisons.append(
                    compare_systems(systems, test.streams, scorer, resamples=self.resamples, trials=self.trials)
                )
                bar.advance(1)
        return {"comparisons": list(map(asdict, comparisons))}, comparison_tables(comparisons)

    def _compare_runs(self, paths: Sequence[Path]) -> tuple[dict[str, Any], list[Table]]:
        for name in ("ref", "test_set", "lang_pair", "lang", "tokenize", "lowercase", "chrf_lowercase"):
            if getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise CommandError(
                    f"{option} has no effect on runs, whose recipes set it; leave out {option}, or give files"
                )
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise CommandError(f"{path} is given twice; each run must be given once; leave one out")
        runs = [ComparedRun.read(path) for path in paths]
        names = None if self.metrics is None else self.names()
        if self.plot is not None:
            require_plot("-o", self.plot, [run.directory / "metrics.jsonl" for run in runs])
            draw_runs([(run.name, run.directory) for run in runs], self.plot)
        by_test = compare_runs(runs, names, resamples=self.resamples, trials=self.trials)
        if not by_test:
            warn("these runs have no test set in common; there are no scores to compare")
        options = difference_table(runs)
        if not options.rows:
            say("the recipes have the same options")
        tables = [options] if options.rows else []
        for test, comparisons in by_test.items():
            tables += [replace(table, title=f"{test}: {table.title}") for table in comparison_tables(comparisons)]
        document = {
            "options": [dict(zip(options.header, row, strict=True)) for row in options.rows],
            "tests": {test: list(map(asdict, comparisons)) for test, comparisons in by_test.items()},
        }
        return document, tables
