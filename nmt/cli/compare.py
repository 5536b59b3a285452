"""`nmt compare`: significance tests between systems or runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import check_inputs, file_path, require_plot
from nmt.cli.metric_options import (
    ChrfLowercaseOption,
    Format,
    FormatOption,
    JsonOption,
    LangOption,
    LangPairOption,
    LowercaseOption,
    MetricOptions,
    RefOption,
    TestSetOption,
    TokenizeOption,
    output_format,
    print_results,
    read_test_set,
)
from nmt.errors import CommandError, UserError
from nmt.evaluate.inputs import hint_at_forms, read_systems, warn_of_identical
from nmt.evaluate.result_tables import comparison_tables
from nmt.evaluate.significance import compare_systems
from nmt.experiments.run_comparison import ComparedRun, compare_runs, difference_table
from nmt.logs import progress, say, warn
from nmt.plots.curves import draw_runs
from nmt.text.lines import STANDARD_STREAM

CompareMetrics = Annotated[
    str | None,
    typer.Option(
        "-m", "--metrics", help="Comma-separated (default: bleu,chrf,ter; for runs, those of the baseline's recipe)."
    ),
]
PlotFile = Annotated[
    Path | None,
    typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="For runs: plot their curves to this file."),
]


def compare(
    baseline: Annotated[Path, typer.Argument(help="Translations of the baseline, or its run directory.")],
    others: Annotated[
        list[Path],
        typer.Argument(metavar="OTHER...", help="Translations of other systems, or their runs; - is standard input."),
    ],
    ref: RefOption = None,
    test_set: TestSetOption = None,
    lang_pair: LangPairOption = None,
    metrics: CompareMetrics = None,
    lang: LangOption = None,
    tokenize: TokenizeOption = None,
    lowercase: LowercaseOption = False,
    chrf_lowercase: ChrfLowercaseOption = False,
    resamples: Annotated[
        int, typer.Option(min=0, help="Resamples of the paired bootstrap; 0 disables it and the intervals.")
    ] = 1000,
    trials: Annotated[
        int, typer.Option(min=0, help="Trials of paired approximate randomization; 0 disables it.")
    ] = 10_000,
    plot: PlotFile = None,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare systems with a baseline by two paired tests: bootstrap and approximate randomization.

    Both use the samples of sacreBLEU's --paired-bs and --paired-ar, with the same scores and intervals. p is two-sided
    and counts ties with the observed difference; sacreBLEU's p is too small, especially if few sentences differ.
    The environment variable SACREBLEU_SEED (default: 12345) sets the seed, which the signatures include.

    nmt compare --ref news.de base.de big.de

    For run directories: compares their recipes, and their translations of the test sets that all of them have.

    nmt compare runs/base runs/big -o curves.png
    """
    output = output_format(output, as_json)
    if baseline.is_dir():
        _reject_options_of_files({"--ref": ref, "--test-set": test_set, "--lang-pair": lang_pair, "--lang": lang})
        _reject_options_of_files({"--tokenize": tokenize, "--lowercase": lowercase, "--chrf-lowercase": chrf_lowercase})
        _compare_runs([baseline, *others], metrics, resamples, trials, plot, output)
        return
    if plot is not None:
        raise CommandError("-o plots the curves of runs; leave out -o, or give run directories")
    options = MetricOptions(metrics or "bleu,chrf,ter", lang, tokenize, lowercase, chrf_lowercase)
    options.check()
    _require_files([baseline, *others], ref or [])
    test = read_test_set(ref, None, test_set, lang_pair)
    scorers = options.scorers(test)
    systems = read_systems([baseline, *others], test)
    hint_at_forms(systems, test, scorers)
    warn_of_identical(systems)
    comparisons = []
    with progress("comparing", len(scorers), "metrics") as bar:
        for scorer in scorers:
            comparisons.append(compare_systems(systems, test.streams, scorer, resamples=resamples, trials=trials))
            bar.advance(1)
    document = {"comparisons": [asdict(comparison) for comparison in comparisons]}
    print_results(document, comparison_tables(comparisons), output)


def _reject_options_of_files(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise CommandError(f"{name} has no effect on runs, whose recipes set it; leave out {name}, or give files")


def _require_files(systems: Sequence[Path], references: Sequence[Path]) -> None:
    """Raise UserError for systems that do not exist, and for standard input given twice."""
    missing = [str(path) for path in systems if path != STANDARD_STREAM and not path.exists()]
    if missing:
        raise UserError(f"{', '.join(missing)}: no such file or directory; give translations, or runs; check the path")
    check_inputs([*systems, *references])


def _compare_runs(
    paths: Sequence[Path], metrics: str | None, resamples: int, trials: int, plot: Path | None, output: Format
) -> None:
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise CommandError(f"{path} is given twice; each run must be given once; leave one out")
    runs = [ComparedRun.read(path) for path in paths]
    names = None if metrics is None else MetricOptions(metrics).names()
    if plot is not None:
        require_plot("-o", plot, [run.directory / "metrics.jsonl" for run in runs])
        draw_runs([(run.name, run.directory) for run in runs], plot)
    by_test = compare_runs(runs, names, resamples=resamples, trials=trials)
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
        "tests": {test: [asdict(comparison) for comparison in comparisons] for test, comparisons in by_test.items()},
    }
    print_results(document, tables, output)
