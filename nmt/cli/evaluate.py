"""`nmt evaluate`: score translations against references."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import require_at_most_one, require_one_reader
from nmt.cli.metric_options import (
    ChrfLowercaseOption,
    Format,
    LangOption,
    LangPairOption,
    LowercaseOption,
    MetricOptions,
    MetricsOption,
    RefOption,
    TestSet,
    TestSetOption,
    TokenizeOption,
    hint_at_case,
    print_results,
    read_systems,
    read_test_set,
)
from nmt.evaluate.breakdown import WordScore, count_words, length_classes, read_word_counts, score_words
from nmt.evaluate.comet import comet_scores
from nmt.evaluate.differences import Difference, largest_differences
from nmt.evaluate.metrics import GroupScore, Score, Scorer, bleu_tokenizer, score_groups
from nmt.evaluate.result_tables import Evaluation
from nmt.logs import say
from nmt.recipe import UserError
from nmt.text.lines import input_name, read_lines

Hypotheses = Annotated[
    list[Path], typer.Argument(metavar="HYP...", help="Translations, one file per system; - is standard input.")
]
Confidence = Annotated[
    bool, typer.Option("--confidence", help="Add 95 % bootstrap intervals; SACREBLEU_SEED sets the seed.")
]
Resamples = Annotated[int | None, typer.Option(min=2, help="Resamples of --confidence (default: 1000).")]
Src = Annotated[Path | None, typer.Option(help="Source sentences; --test-set includes them.")]
ByLength = Annotated[
    bool, typer.Option("--by-length", help="Add scores by length of the source sentence; needs --src.")
]
TrainTgt = Annotated[
    list[Path] | None,
    typer.Option(help="Target side of the training text: add the F-measure of words by training frequency."),
]
WordCounts = Annotated[
    Path | None, typer.Option(help="Training frequencies of words, as lines of WORD COUNT in the tokenization of bleu.")
]
Differences = Annotated[
    int, typer.Option(min=0, help="For two systems: show the N sentences on which each is most ahead.")
]
Comet = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="Add COMET, computed by this comet-score program; needs --src.")
]
OutputFormat = Annotated[
    Format | None,
    typer.Option("-f", "--format", help="text, markdown or latex; json has full precision."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the scores by system as JSON; with a breakdown, same as --format json.")
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
    comet: Comet = None,
    output: OutputFormat = None,
    as_json: AsJson = False,
) -> None:
    """Score translations: one line per system, and the signature of each metric.

    nmt evaluate --ref news.de base.de big.de --lang de --metrics bleu,chrf,bleu-compound-split --confidence
    """
    require_at_most_one({"--json": as_json, "--format": output is not None})
    if resamples is not None and not confidence:
        raise typer.BadParameter("--resamples has no effect without --confidence; add that, or leave it out")
    counting = MetricOptions(metrics, lang, tokenize, lowercase, chrf_lowercase)
    counting.check(counts_words=bool(train_tgt or word_counts), compares_lines=by_length or differences > 0)
    require_one_reader([*hypotheses, *(ref or []), src, *(train_tgt or []), word_counts])
    text = read_test_set(ref, src, test_set, lang_pair)
    for option, is_given in (("--by-length", by_length), ("--comet", comet is not None)):
        if is_given and text.source is None:
            raise UserError(f"{option} needs the source sentences; give --src FILE")
    asked = _Evaluation(read_systems(hypotheses, text), text, counting, counting.scorers(text))
    hint_at_case(asked.systems, text, asked.scorers)
    if differences and len(asked.systems) != 2:
        raise UserError(f"--differences compares two systems, got {len(asked.systems)}; give two files")
    scores = asked.scores((resamples or 1000) if confidence else 0, comet)
    by_source = asked.by_length() if by_length else {}
    by_frequency, words = asked.by_frequency(train_tgt or [], word_counts) if train_tgt or word_counts else ({}, "")
    ahead, behind = asked.differences(differences) if differences else (None, None)
    _echo(Evaluation(scores, by_source, by_frequency, words, ahead, behind), output, as_json)


def _echo(evaluation: Evaluation, output: Format | None, as_json: bool) -> None:
    document = evaluation.document()
    if as_json and len(document) == 1:
        typer.echo(json.dumps(document["systems"], indent=1, ensure_ascii=False))
    else:
        print_results(document, evaluation.tables(), output or (Format.json if as_json else Format.text))


@dataclass(frozen=True)
class _Evaluation:
    """Systems, by file name, and their metrics."""

    systems: Mapping[str, Sequence[str]]
    text: TestSet
    counting: MetricOptions
    scorers: Sequence[Scorer]

    def scores(self, resamples: int, comet: str | None) -> dict[str, list[Score]]:
        """Score the whole test set, with COMET last."""
        by_comet: dict[str, Score] = {}
        if comet is not None:
            say(f"scoring {len(self.systems)} x {len(self._source):,} sentences with {comet}")
            by_comet = comet_scores(comet, self.systems, self._source, self.text.streams[0])
        return {
            name: [
                *(scorer.score(lines, self.text.streams, resamples=resamples) for scorer in self.scorers),
                *([by_comet[name]] if by_comet else []),
            ]
            for name, lines in self.systems.items()
        }

    def by_length(self) -> dict[str, list[GroupScore]]:
        """Score by length of the source sentence."""
        classes, ignores_case = length_classes(self._source), self.counting.ignores_case
        return {
            name: score_groups(lines, self.text.streams, classes, self.scorers, lowercase=ignores_case)
            for name, lines in self.systems.items()
        }

    def by_frequency(
        self, train_tgt: Sequence[Path], word_counts: Path | None
    ) -> tuple[dict[str, list[WordScore]], str]:
        """Score words by training frequency, from text, counts or both; also returns a description of words."""
        words, meaning = bleu_tokenizer(
            tgt_lang=self.counting.language(self.text),
            tokenize=self.counting.tokenize,
            lowercase=self.counting.lowercase,
        )
        frequencies = count_words(chain.from_iterable(read_lines(path, allow_pipe=True) for path in train_tgt), words)
        if word_counts is not None:
            frequencies += read_word_counts(read_lines(word_counts, allow_pipe=True), input_name(word_counts))
        if not frequencies:
            names = ", ".join(map(str, [*train_tgt, *([word_counts] if word_counts else [])]))
            raise UserError(f"{names} has no words; it must be training text; check the file")
        reference = self.text.streams[0]
        return {
            name: score_words(lines, reference, frequencies, words) for name, lines in self.systems.items()
        }, meaning

    def differences(self, number: int) -> tuple[list[Difference], list[Difference]]:
        """Return the sentences on which the first of two systems is most ahead, and most behind."""
        first, second = self.systems.values()
        streams, ignores_case = self.text.streams, self.counting.ignores_case
        return largest_differences(first, second, streams, self.text.source, number, lowercase=ignores_case)

    @property
    def _source(self) -> list[str]:
        assert self.text.source is not None, "checked by the command"
        return self.text.source
