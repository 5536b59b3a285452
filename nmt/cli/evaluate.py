"""`nmt evaluate`: score translations against references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import check_inputs, missing_option
from nmt.cli.metric_options import MetricOptions, output_format, print_results
from nmt.errors import CommandError
from nmt.evaluate.breakdown import length_classes, score_words, training_frequencies
from nmt.evaluate.comet import comet_scores
from nmt.evaluate.differences import largest_differences
from nmt.evaluate.hints import hint_at_forms, hint_at_training_text_form
from nmt.evaluate.inputs import ReferenceSet, read_systems
from nmt.evaluate.metrics import Score, Scorer, score_groups
from nmt.evaluate.result_tables import Evaluation
from nmt.logs import say
from nmt.storage.sealed import write_file
from nmt.streams.output_checks import require_output
from nmt.text.words import has_spaces

_CONFIDENCE = "Add 95% bootstrap intervals; SACREBLEU_SEED sets the seed."
_SRC = "Sources for --by-length, --differences and --comet; otherwise only checked against the other files."
_BY_LENGTH = "Add scores by length of the source sentence; needs --src or --test-set."
_TRAIN_TGT = "Target side of the training text: add the F-measure of words by training frequency."
_DIFFERENCES = "For two systems: show the N sentences where each exceeds the other most in chrF2."
_SENTENCE_LEVEL = "Write the scores of each sentence to this TSV file."
_COMET = "Add COMET, computed by this comet-score program; needs sources."


@dataclass(frozen=True, kw_only=True)
class Evaluate(MetricOptions):
    """Score translations: one line per system, and the signature of each metric.

    nmt evaluate --ref news.de base.de big.de --lang de --metrics bleu,chrf,bleu-compound-split --confidence
    """

    hypotheses: Annotated[
        list[Path], typer.Argument(metavar="HYP...", help="Translations, one file per system; - is standard input.")
    ]
    confidence: Annotated[bool, typer.Option("--confidence", help=_CONFIDENCE)] = False
    resamples: Annotated[int | None, typer.Option(min=2, help="Resamples of --confidence (default: 1000).")] = None
    src: Annotated[Path | None, typer.Option(help=_SRC)] = None
    by_length: Annotated[bool, typer.Option("--by-length", help=_BY_LENGTH)] = False
    train_tgt: Annotated[list[Path] | None, typer.Option(help=_TRAIN_TGT)] = None
    differences: Annotated[int, typer.Option(min=0, help=_DIFFERENCES)] = 0
    sentence_level: Annotated[
        Path | None, typer.Option("-sl", "--sentence-level", metavar="FILE", help=_SENTENCE_LEVEL)
    ] = None
    comet: Annotated[str | None, typer.Option(metavar="COMMAND", help=_COMET)] = None

    def run(self) -> None:
        """Check the options, read the files, and print the results."""
        chosen_format = output_format(self.output, self.as_json)
        if self.resamples is not None and not self.confidence:
            raise missing_option("--resamples", "--confidence")
        self.check(counts_words=bool(self.train_tgt), compares_lines=self.by_length or self.differences > 0)
        check_inputs(inputs := [*self.hypotheses, *(self.ref or []), self.src, *(self.train_tgt or [])])
        require_output("--sentence-level", self.sentence_level, inputs, b"system\tline\t")
        test = self.read_test_set(self.src)
        for option, is_given in (("--by-length", self.by_length), ("--comet", self.comet is not None)):
            if is_given and test.source is None:
                raise CommandError(f"{option} needs the source sentences; use --src FILE")
        scorers = self.scorers(test)
        systems = read_systems(self.hypotheses, test)
        hint_at_forms(systems, test, scorers, self._case_sensitive_results())
        if self.differences and len(systems) != 2:
            raise CommandError(f"--differences compares two systems, got {len(systems)}; give two files")
        results = self._evaluate(systems, test, scorers)
        if self.sentence_level is not None:
            table, signatures = _score_sentences(systems, test.streams, scorers)
            write_file(self.sentence_level, table.encode())
            say(f"wrote {self.sentence_level}; signatures: {', '.join(signatures)}")
        print_results(results.document(), results.tables(), chosen_format)

    def _case_sensitive_results(self) -> list[str]:
        """Return the names of the case-sensitive results, besides those of metrics."""
        ignores_case = self.lowercase or self.chrf_lowercase
        is_sensitive = {
            "exact matches": self.by_length and not ignores_case,
            "--differences": self.differences > 0 and not ignores_case,
            "F-measure of words": bool(self.train_tgt) and not self.lowercase,
        }
        return [name for name, is_included in is_sensitive.items() if is_included]

    def _evaluate(
        self, systems: Mapping[str, Sequence[str]], test: ReferenceSet, scorers: Sequence[Scorer]
    ) -> Evaluation:
        ignores_case = self.lowercase or self.chrf_lowercase
        results = Evaluation(self._score(systems, test, scorers))
        if self.by_length and test.source is not None:
            if not has_spaces(test.source):
                say("hint: the source has no spaces between words, so --by-length counts whole clauses as words")
            classes = length_classes(test.source)
            results.by_length = {
                name: score_groups(lines, test.streams, classes, scorers, lowercase=ignores_case)
                for name, lines in systems.items()
            }
        if self.train_tgt:
            words, results.words = self.words(test)
            frequencies = training_frequencies(self.train_tgt, words)
            hint_at_training_text_form(frequencies, test, words)
            results.by_frequency = {
                name: score_words(lines, test.first_references, frequencies, words) for name, lines in systems.items()
            }
        if self.differences:
            first, second = systems.values()
            results.ahead, results.behind = largest_differences(
                first, second, test.streams, test.source, self.differences, lowercase=ignores_case
            )
            if not results.ahead and not results.behind:
                metric = "lowercased chrF2" if ignores_case else "chrF2"
                say(f"--differences: all sentences of the two systems have equal {metric}")
        return results

    def _score(
        self, systems: Mapping[str, Sequence[str]], test: ReferenceSet, scorers: Sequence[Scorer]
    ) -> dict[str, list[Score]]:
        """Score the whole test set with each metric, and with COMET last."""
        by_comet: dict[str, Score] = {}
        if self.comet is not None and test.source is not None:
            say(f"scoring {len(systems)} x {len(test.source):,} sentences with {self.comet}")
            by_comet = comet_scores(self.comet, systems, test.source, test.first_references)
        resamples = (self.resamples or 1000) if self.confidence else 0
        scores = {}
        for name, lines in systems.items():
            scores[name] = [scorer.score(lines, test.streams, resamples=resamples) for scorer in scorers]
            if by_comet:
                scores[name].append(by_comet[name])
        return scores


def _score_sentences(
    systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]], scorers: Sequence[Scorer]
) -> tuple[str, tuple[str, ...]]:
    """Return the scores of each sentence as TSV with a header, and the signatures of the metrics."""
    lines = ["\t".join(["system", "line", *(scorer.name for scorer in scorers)])]
    signatures: tuple[str, ...] = ()
    for name, hypotheses in systems.items():
        columns, signatures = zip(*(scorer.score_sentences(hypotheses, references) for scorer in scorers), strict=True)
        for number, row in enumerate(zip(*columns, strict=True), start=1):
            lines.append("\t".join([name, str(number), *(f"{score:.4f}" for score in row)]))
    return "\n".join(lines) + "\n", signatures
