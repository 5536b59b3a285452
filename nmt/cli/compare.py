"""`nmt compare`: is one system better than another, or was it luck?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import require_one_reader, require_output
from nmt.cli.scored_text import (
    ChrfLowercaseOption,
    Counting,
    Format,
    FormatOption,
    LangOption,
    LangPairOption,
    LowercaseOption,
    RefOption,
    TestSetOption,
    TokenizeOption,
    echo_found,
    hint_at_case,
    read_scored_text,
    read_systems,
)
from nmt.evaluate.result_tables import comparison_tables
from nmt.evaluate.significance import compare_systems
from nmt.experiments.run_comparison import ComparedRun, compare_runs, difference_table
from nmt.logs import progress, warn
from nmt.plots.curves import draw_runs
from nmt.recipe import CommandError
from nmt.text.lines import input_name

CompareMetrics = Annotated[
    str | None,
    typer.Option("-m", "--metrics", help="Comma-separated, as those of evaluate (bleu,chrf,ter; of runs, their own)."),
]


def compare(
    baseline: Annotated[Path, typer.Argument(help="Translations by the baseline, or its run.")],
    others: Annotated[
        list[Path], typer.Argument(metavar="OTHER...", help="Translations by others, or runs; - is standard input.")
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
        int, typer.Option(min=0, help="Resamples of the paired bootstrap; 0 leaves it out, and the intervals.")
    ] = 1000,
    trials: Annotated[
        int, typer.Option(min=0, help="Trials of the paired approximate randomization; 0 leaves it out.")
    ] = 10_000,
    picture: Annotated[Path | None, typer.Option("-o", "--out", help="Of runs: a picture of their curves.")] = None,
    output: FormatOption = Format.text,
) -> None:
    """Compare systems with a baseline by two paired tests: bootstrap and approximate randomization.

    The bootstrap equals sacreBLEU's --paired-bs to the digit. Randomization makes the trials of --paired-ar, but also
    counts those that differ exactly as much as the systems. Without these, p is far too small where few sentences
    differ. The seed is that of the environment variable SACREBLEU_SEED (12345), and stands in the signatures.

    nmt compare --ref news.de base.de big.de

    Of runs, it shows what their recipes differ in, and compares their translations of the test sets that all have.

    nmt compare runs/base runs/big -o curves.png
    """
    if baseline.is_dir():
        options: dict[str, object] = {"--ref": ref, "--test-set": test_set, "--lang-pair": lang_pair, "--lang": lang}
        options |= {"--tokenize": tokenize, "--lowercase": lowercase, "--chrf-lowercase": chrf_lowercase}
        if given := [name for name, value in options.items() if value]:
            raise CommandError(f"{given[0]} has no effect on runs, whose recipes say it; leave it out, or give files")
        _compare_runs([baseline, *others], metrics, resamples, trials, picture, output)
        return
    if picture is not None:
        raise CommandError("-o is for the curves of runs; leave it out, or give run directories")
    counting = Counting(metrics or "bleu,chrf,ter", lang, tokenize, lowercase, chrf_lowercase)
    counting.check()
    require_one_reader([baseline, *others, *(ref or [])])
    text = read_scored_text(ref, None, test_set, lang_pair)
    scorers = counting.scorers(text)
    systems = read_systems([baseline, *others], text)
    hint_at_case(systems, text, scorers)
    for name, lines in list(systems.items())[1:]:
        if lines == systems[input_name(baseline)]:
            warn(f"{name} says word for word what the baseline says; its p-values mean nothing")
    comparisons = []
    with progress("comparing", len(scorers), "metrics") as bar:
        for scorer in scorers:
            comparisons.append(compare_systems(systems, text.streams, scorer, resamples=resamples, trials=trials))
            bar.advance(1)
    document = {"comparisons": [asdict(comparison) for comparison in comparisons]}
    echo_found(document, comparison_tables(comparisons), output)


def _compare_runs(
    paths: Sequence[Path], metrics: str | None, resamples: int, trials: int, picture: Path | None, output: Format
) -> None:
    if repeated := [path for place, path in enumerate(paths) if path in paths[:place]]:
        raise CommandError(f"{repeated[0]} is given twice; a run differs from others only; leave it out once")
    runs = [ComparedRun.read(path) for path in paths]
    names = None if metrics is None else [name.strip() for name in metrics.split(",")]
    if picture is not None:
        require_output("-o", picture, [run.directory / "metrics.jsonl" for run in runs])
        draw_runs([(run.name, run.directory) for run in runs], picture)
    found = compare_runs(runs, names, resamples=resamples, trials=trials)
    if not found:
        warn("these runs have no test set in common; there are no scores to compare")
    options = difference_table(runs)
    tables = [options]
    for test, comparisons in found.items():
        tables += [replace(table, title=f"{test}: {table.title}") for table in comparison_tables(comparisons)]
    document = {
        "options": [dict(zip(options.header, row, strict=True)) for row in options.rows],
        "tests": {test: [asdict(comparison) for comparison in comparisons] for test, comparisons in found.items()},
    }
    echo_found(document, tables, output)
