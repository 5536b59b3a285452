"""`nmt compare`: is one system better than another, or was it luck?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import require_one_reader
from nmt.cli.scored_text import (
    ChrfLowercaseOption,
    Counting,
    Format,
    FormatOption,
    LangOption,
    LangPairOption,
    LowercaseOption,
    MetricsOption,
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
from nmt.logs import progress, warn
from nmt.text.lines import input_name


def compare(
    baseline: Annotated[Path, typer.Argument(help="Translations by the system that the others are compared with.")],
    others: Annotated[
        list[Path], typer.Argument(metavar="OTHER...", help="Translations by other systems; - is standard input.")
    ],
    ref: RefOption = None,
    test_set: TestSetOption = None,
    lang_pair: LangPairOption = None,
    metrics: MetricsOption = "bleu,chrf,ter",
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
    output: FormatOption = Format.text,
) -> None:
    """Compare systems with a baseline by two paired tests: bootstrap and approximate randomization.

    The bootstrap equals sacreBLEU's --paired-bs to the digit. Randomization makes the trials of --paired-ar, but also
    counts those that differ exactly as much as the systems. Without these, p is far too small where few sentences
    differ. The seed is that of the environment variable SACREBLEU_SEED (12345), and stands in the signatures.

    nmt compare --ref news.de base.de big.de
    """
    counting = Counting(metrics, lang, tokenize, lowercase, chrf_lowercase)
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
