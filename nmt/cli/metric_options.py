"""Options of metrics and test sets, and the output of results, for `nmt evaluate`, `nmt compare` and others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmt.cli.arguments import missing_option, require_at_most_one
from nmt.errors import CommandError
from nmt.evaluate.inputs import ReferenceSet
from nmt.evaluate.metrics import Scorer, bleu_tokenizer, make_scorer
from nmt.evaluate.moses import LANGUAGES
from nmt.evaluate.tables import Table, format_tables
from nmt.logs import is_first_rank, warn
from nmt.recipe.corpora import LANGUAGE_PATTERN
from nmt.storage.finite import finite
from nmt.text.languages import SHORT_CODES
from nmt.text.sacrebleu_sets import sacrebleu_files

Format = Literal["text", "json", "markdown", "latex"]
FormatOption = Annotated[
    Format | None, typer.Option("-f", "--format", help="Output format (default: text); json has full precision.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Same as --format json.")]


def output_format(output: Format | None, as_json: bool) -> Format:
    """Return the format that `FormatOption` and `--json` select; raises BadParameter if both are given."""
    require_at_most_one({"--json": as_json, "--format": output is not None})
    return output or ("json" if as_json else "text")


_DEFAULT_METRICS = "bleu,chrf,ter"
_METRICS = (
    f"Comma-separated (default: {_DEFAULT_METRICS}). sacreBLEU's: bleu, chrf, chrf++, ter. As in older papers, not "
    "comparable with bleu: bleu-tokenized, bleu-tokenized-lc, bleu-compound-split. For summaries: rouge-1, rouge-2, "
    "rouge-l, rouge-lsum. For trees: bracket-f1."
)
_TEST_SET = "sacreBLEU test set, such as wmt14/full, in place of --ref; needs --lang-pair."
_LANG = "Target language, for tokenizers of bleu, bleu-* and ter; --lang-pair implies it."
_TOKENIZE = "sacreBLEU tokenizer for bleu: 13a, intl, char, none, ... (default: by language, mostly 13a)."
_CHRF_LOWERCASE = "Ignore case in chrf and chrf++, like sacreBLEU's --chrf-lowercase."
_WITH_RULES = ("bleu-tokenized", "bleu-compound")  # metrics with rules for each language


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """References, metrics and format of the results; None if not given."""

    ref: Annotated[
        list[Path] | None, typer.Option(help="Reference translations; repeatable for several references.")
    ] = None
    test_set: Annotated[str | None, typer.Option("-t", "--test-set", help=_TEST_SET)] = None
    lang_pair: Annotated[
        str | None, typer.Option("-l", "--lang-pair", help="Languages of --test-set, such as en-de.")
    ] = None
    metrics: Annotated[str | None, typer.Option("-m", "--metrics", help=_METRICS)] = None
    lang: Annotated[str | None, typer.Option(help=_LANG)] = None
    tokenize: Annotated[str | None, typer.Option("-tok", "--tokenize", help=_TOKENIZE)] = None
    lowercase: Annotated[
        bool, typer.Option("-lc", "--lowercase", help="Ignore case in bleu, like sacreBLEU's -lc.")
    ] = False
    chrf_lowercase: Annotated[bool, typer.Option("--chrf-lowercase", help=_CHRF_LOWERCASE)] = False
    output: FormatOption = None
    as_json: JsonOption = False

    def read_test_set(self, src: Path | None = None) -> ReferenceSet:
        """Read the references; raises CommandError for inconsistent options, UserError if line counts differ.

        Warns of empty lines. src: file of the source; None selects that of the sacreBLEU test set, if any
        """
        if bool(self.ref) == (self.test_set is not None):
            raise CommandError("the reference is missing or ambiguous; give either --ref FILE or --test-set NAME")
        if self.test_set is None:
            if self.lang_pair is not None:
                raise missing_option("--lang-pair", "--test-set")
            return ReferenceSet.read(self.ref or (), src, None)
        if self.lang_pair is None:
            raise CommandError(
                f"--test-set {self.test_set} needs its languages; use --lang-pair, such as --lang-pair en-de"
            )
        source, references = sacrebleu_files(self.test_set, self.lang_pair)
        return ReferenceSet.read(references, src or source, self.lang_pair.partition("-")[2])

    def check(self, *, counts_words: bool = False, compares_lines: bool = False) -> None:
        """Raise BadParameter for an option without effect and an invalid --lang; warn of a language without rules.

        counts_words: whether words are counted in the tokenization of bleu; compares_lines: whether sentences are
        compared individually
        """
        names = self.names()
        uses_words = "bleu" in names or counts_words
        uses_chrf = "chrf" in names or "chrf++" in names
        for option, metric, is_given, has_effect in (
            ("--tokenize", "bleu", self.tokenize is not None, uses_words),
            ("--lowercase", "bleu", self.lowercase, uses_words or compares_lines),
            ("--chrf-lowercase", "chrf or chrf++", self.chrf_lowercase, uses_chrf or compares_lines),
        ):
            if is_given and not has_effect:
                raise typer.BadParameter(
                    f"{option} has no effect on {', '.join(names)}; leave out {option}, or add {metric} to --metrics"
                )
        if self.lang is None or self.lang in LANGUAGES or SHORT_CODES.get(self.lang) in LANGUAGES:
            return
        if not re.fullmatch(LANGUAGE_PATTERN, self.lang):
            raise typer.BadParameter(f"--lang is {self.lang!r}; it must be an ISO 639 code without region, such as de")
        if any(name.startswith(_WITH_RULES) for name in names):
            warn(f"the tokenizers have no rules for {self.lang}; generic rules are used")

    def language(self, text: ReferenceSet) -> str:
        """Return the target language, English if unknown."""
        return self.lang or text.tgt_lang or "en"

    def scorers(self, text: ReferenceSet) -> list[Scorer]:
        """Create the scorers; raises CommandError for an unknown metric or a missing language."""
        names = self.names()
        for name in names:
            if (self.lang or text.tgt_lang) is None and name.startswith(_WITH_RULES):
                raise CommandError(f"{name} needs the target language; use --lang, such as --lang de")
        return [
            make_scorer(
                name,
                tgt_lang=self.language(text),
                tokenize=self.tokenize,
                lowercase=self.chrf_lowercase if name.startswith("chrf") else self.lowercase,
            )
            for name in names
        ]

    def words(self, text: ReferenceSet) -> tuple[Callable[[str], list[str]], str]:
        """Return the tokenizer of bleu and a description of its tokens."""
        return bleu_tokenizer(tgt_lang=self.language(text), tokenize=self.tokenize, lowercase=self.lowercase)

    def names(self) -> list[str]:
        """Return the metrics, each once; raises CommandError if there are none."""
        metrics = _DEFAULT_METRICS if self.metrics is None else self.metrics
        names = list(dict.fromkeys(name.strip() for name in metrics.split(",") if name.strip()))
        if not names:
            raise CommandError("--metrics is empty; it must be a list such as bleu,chrf,ter; name at least one metric")
        return names


def print_results(document: Mapping[str, Any], tables: Sequence[Table], output: Format) -> None:
    """Print results, as JSON (with null for NaN and infinity) or as tables; under torchrun, only on rank 0."""
    if "TORCHELASTIC_RUN_ID" in os.environ and not is_first_rank():
        return
    if output == "json":
        typer.echo(json.dumps(finite(document), indent=1, ensure_ascii=False))
    else:
        typer.echo(format_tables(tables, output), nl=False)
