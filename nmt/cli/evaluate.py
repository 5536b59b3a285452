"""`nmt evaluate`: score translations against references."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import check_inputs, missing_option
from nmt.cli.metric_options import MetricOptions, output_format, print_results
from nmt.errors import CommandError
from nmt.evaluate.breakdown import training_frequencies
from nmt.evaluate.inputs import ReferenceSet, hint_at_forms, hint_at_training_text_form, read_systems
from nmt.evaluate.result_tables import Evaluation
from nmt.evaluate.systems import EvaluatedSystems
from nmt.logs import say
from nmt.storage.sealed import write_file
from nmt.streams.output_checks import require_output

_CONFIDENCE = "Add 95% bootstrap intervals; SACREBLEU_SEED sets the seed."
_SRC = "Sources for --by-length, --differences, --comet; else only their count is checked."
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
        counts_words = bool(self.train_tgt)
        self.check(counts_words=counts_words, compares_lines=self.by_length or self.differences > 0)
        check_inputs(inputs := [*self.hypotheses, *(self.ref or []), self.src, *(self.train_tgt or [])])
        require_output("--sentence-level", self.sentence_level, inputs, b"system\tline\t")
        test = self.read_test_set(self.src)
        for option, is_given in (("--by-length", self.by_length), ("--comet", self.comet is not None)):
            if is_given and test.source is None:
                raise CommandError(f"{option} needs the source sentences; use --src FILE")
        scorers = self.scorers(test)
        systems = read_systems(self.hypotheses, test)
        ignores_case = self.lowercase or self.chrf_lowercase
        sections = {"exact matches": self.by_length, "--differences": self.differences > 0}
        case_sensitive = [] if ignores_case else [name for name, is_given in sections.items() if is_given]
        if counts_words and not self.lowercase:
            case_sensitive.append("F-measure of words")
        hint_at_forms(systems, test, scorers, case_sensitive)
        if self.differences and len(systems) != 2:
            raise CommandError(f"--differences compares two systems, got {len(systems)}; give two files")
        evaluated = EvaluatedSystems(systems, test.streams, test.source, scorers, ignores_case)
        results = self._evaluate(evaluated, test)
        if self.sentence_level is not None:
            table, signatures = evaluated.by_sentence()
            write_file(self.sentence_level, table.encode())
            say(f"wrote {self.sentence_level}; signatures: {', '.join(signatures)}")
        print_results(results.document(), results.tables(), chosen_format)

    def _evaluate(self, evaluated: EvaluatedSystems, test: ReferenceSet) -> Evaluation:
        scores = evaluated.scores((self.resamples or 1000) if self.confidence else 0, self.comet)
        results = Evaluation(scores, by_length=evaluated.by_length() if self.by_length else {})
        if self.train_tgt:
            words, description = self.words(test)
            frequencies = training_frequencies(self.train_tgt, words)
            hint_at_training_text_form(frequencies, test, words)
            results = replace(results, by_frequency=evaluated.by_frequency(frequencies, words), words=description)
        if self.differences:
            ahead, behind = evaluated.differences(self.differences)
            if not ahead and not behind:
                metric = "lowercased chrF2" if evaluated.ignores_case else "chrF2"
                say(f"--differences: all sentences of the two systems have equal {metric}")
            results = replace(results, ahead=ahead, behind=behind)
        return results
