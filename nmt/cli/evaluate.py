"""`nmt evaluate`: score translations against references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import check_inputs, missing_option
from nmt.cli.metric_options import (
    ChrfLowercaseOption,
    FormatOption,
    JsonOption,
    LangOption,
    LangPairOption,
    LowercaseOption,
    MetricOptions,
    MetricsOption,
    RefOption,
    TestSetOption,
    TokenizeOption,
    output_format,
    print_results,
    read_test_set,
)
from nmt.errors import CommandError
from nmt.evaluate.breakdown import training_frequencies
from nmt.evaluate.inputs import ReferenceSet, hint_at_forms, hint_at_training_text_form, read_systems
from nmt.evaluate.result_tables import Evaluation
from nmt.evaluate.systems import EvaluatedSystems
from nmt.logs import say
from nmt.storage.sealed import write_file
from nmt.streams.output_checks import require_output

Hypotheses = Annotated[
    list[Path], typer.Argument(metavar="HYP...", help="Translations, one file per system; - is standard input.")
]
Confidence = Annotated[
    bool, typer.Option("--confidence", help="Add 95% bootstrap intervals; SACREBLEU_SEED sets the seed.")
]
Resamples = Annotated[int | None, typer.Option(min=2, help="Resamples of --confidence (default: 1000).")]
Src = Annotated[
    Path | None, typer.Option(help="Sources for --by-length, --differences, --comet; else only their count is checked.")
]
ByLength = Annotated[
    bool, typer.Option("--by-length", help="Add scores by length of the source sentence; needs --src or --test-set.")
]
TrainTgt = Annotated[
    list[Path] | None,
    typer.Option(help="Target side of the training text: add the F-measure of words by training frequency."),
]
WordCounts = Annotated[
    Path | None, typer.Option(help="Training frequencies: WORD COUNT lines, tokenized as for bleu; counts are summed.")
]
Differences = Annotated[
    int, typer.Option(min=0, help="For two systems: show the N sentences where each exceeds the other most in chrF2.")
]
SentenceLevel = Annotated[
    Path | None,
    typer.Option("-sl", "--sentence-level", metavar="FILE", help="Write the scores of each sentence to this TSV file."),
]
Comet = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="Add COMET, computed by this comet-score program; needs sources.")
]


def evaluate(
    hypotheses: Hypotheses,
    ref: RefOption = None,
    test_set: TestSetOption = None,
    lang_pair: LangPairOption = None,
    metrics: MetricsOption = "bleu,chrf,ter",
    lang: LangOption = None,
    tokenize: TokenizeOption = None,
    lowercase: LowercaseOption = False,
    chrf_lowercase: ChrfLowercaseOption = False,
    confidence: Confidence = False,
    resamples: Resamples = None,
    src: Src = None,
    by_length: ByLength = False,
    train_tgt: TrainTgt = None,
    word_counts: WordCounts = None,
    differences: Differences = 0,
    sentence_level: SentenceLevel = None,
    comet: Comet = None,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score translations: one line per system, and the signature of each metric.

    nmt evaluate --ref news.de base.de big.de --lang de --metrics bleu,chrf,bleu-compound-split --confidence
    """
    chosen_format = output_format(output, as_json)
    if resamples is not None and not confidence:
        raise missing_option("--resamples", "--confidence")
    options = MetricOptions(metrics, lang, tokenize, lowercase, chrf_lowercase)
    counts_words = bool(train_tgt or word_counts)
    options.check(counts_words=counts_words, compares_lines=by_length or differences > 0)
    check_inputs(inputs := [*hypotheses, *(ref or []), src, *(train_tgt or []), word_counts])
    require_output("--sentence-level", sentence_level, inputs, b"system\tline\t")
    test = read_test_set(ref, src, test_set, lang_pair)
    for option, is_given in (("--by-length", by_length), ("--comet", comet is not None)):
        if is_given and test.source is None:
            raise CommandError(f"{option} needs the source sentences; use --src FILE")
    scorers = options.scorers(test)
    systems = read_systems(hypotheses, test)
    evaluated = EvaluatedSystems(systems, test.streams, test.source, scorers, lowercase or chrf_lowercase)
    sections = {"exact matches": by_length, "--differences": differences > 0}
    case_sensitive = [] if evaluated.ignores_case else [name for name, is_given in sections.items() if is_given]
    if counts_words and not lowercase:
        case_sensitive.append("F-measure of words")
    hint_at_forms(systems, test, scorers, case_sensitive)
    if differences and len(systems) != 2:
        raise CommandError(f"--differences compares two systems, got {len(systems)}; give two files")
    scores = evaluated.scores((resamples or 1000) if confidence else 0, comet)
    results = Evaluation(scores, by_length=evaluated.by_length() if by_length else {})
    if counts_words:
        results = _add_word_scores(results, evaluated, options, test, train_tgt or [], word_counts)
    if differences:
        results = _add_differences(results, evaluated, differences)
    if sentence_level is not None:
        _write_sentence_scores(sentence_level, evaluated)
    print_results(results.document(), results.tables(), chosen_format)


def _add_word_scores(
    results: Evaluation,
    evaluated: EvaluatedSystems,
    options: MetricOptions,
    test: ReferenceSet,
    train_tgt: Sequence[Path],
    word_counts: Path | None,
) -> Evaluation:
    words, description = options.words(test)
    frequencies = training_frequencies(train_tgt, word_counts, words, lowercase=options.lowercase)
    hint_at_training_text_form(frequencies, test, words)
    return replace(results, by_frequency=evaluated.by_frequency(frequencies, words), words=description)


def _write_sentence_scores(path: Path, evaluated: EvaluatedSystems) -> None:
    table, signatures = evaluated.by_sentence()
    write_file(path, table.encode())
    say(f"wrote {path}; signatures: {', '.join(signatures)}")


def _add_differences(results: Evaluation, evaluated: EvaluatedSystems, count: int) -> Evaluation:
    ahead, behind = evaluated.differences(count)
    if not ahead and not behind:
        metric = "lowercased chrF2" if evaluated.ignores_case else "chrF2"
        say(f"--differences: all sentences of the two systems have equal {metric}")
    return replace(results, ahead=ahead, behind=behind)
