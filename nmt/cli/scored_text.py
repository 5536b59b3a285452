"""What `nmt evaluate` and `nmt compare` share: their options, and reading the texts that they score."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer

from nmt.data.corpus import sacrebleu_files
from nmt.evaluate.metrics import Scorer, make_scorer
from nmt.evaluate.moses import LANGUAGES
from nmt.evaluate.tables import Table, format_tables
from nmt.logs import say, warn
from nmt.recipe import UserError
from nmt.recipe.sections import LANGUAGE_PATTERN
from nmt.text.lines import input_name, read_lines

RefOption = Annotated[
    list[Path] | None, typer.Option("--ref", help="Reference translations; give it again for several references.")
]
TestSetOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--test-set",
        help="Instead of --ref, a test set by sacreBLEU's name, such as wmt14/full; needs --lang-pair.",
    ),
]
LangPairOption = Annotated[
    str | None, typer.Option("-l", "--lang-pair", help="Languages of --test-set, such as en-de.")
]
MetricsOption = Annotated[
    str,
    typer.Option(
        "-m",
        "--metrics",
        help="Comma-separated: bleu, chrf, chrf++, ter are sacreBLEU's; bleu-tokenized, bleu-tokenized-lc, "
        "bleu-compound-split are what older papers give instead, and never comparable with the others.",
    ),
]
LangOption = Annotated[
    str | None, typer.Option(help="Target language, for tokenizers that depend on it; --lang-pair gives it too.")
]
TokenizeOption = Annotated[
    str | None,
    typer.Option(
        "-tok",
        "--tokenize",
        help="sacreBLEU's tokenizer for bleu: 13a, intl, char, none, ...; by default its own choice for the language, "
        "which is 13a for most.",
    ),
]
LowercaseOption = Annotated[
    bool, typer.Option("-lc", "--lowercase", help="Ignore case in bleu, as sacreBLEU's -lc does.")
]
ChrfLowercaseOption = Annotated[
    bool,
    typer.Option("--chrf-lowercase", help="Ignore case in chrf and chrf++, as sacreBLEU's option of that name does."),
]


class Format(StrEnum):
    """Choices of --format."""

    text = "text"
    json = "json"
    markdown = "markdown"
    latex = "latex"


FormatOption = Annotated[
    Format,
    typer.Option("-f", "--format", help="How to print; markdown and latex for papers, json for everything in full."),
]


@dataclass(frozen=True)
class ScoredText:
    """A test set: each reference (by the name that errors give it) and, where it is known, the source."""

    references: dict[str, list[str]]
    reference_files: tuple[Path, ...]
    source: list[str] | None
    tgt_lang: str | None

    @property
    def streams(self) -> list[list[str]]:
        """The references alone."""
        return list(self.references.values())


def read_scored_text(
    ref: Sequence[Path] | None, src: Path | None, test_set: str | None, lang_pair: str | None
) -> ScoredText:
    """The test set that the options name; UserError where they do not fit together or the sides do not match."""
    if bool(ref) == (test_set is not None):
        raise UserError(
            "there must be --ref FILE or --test-set NAME, and not both; give one of them to say what is right"
        )
    if lang_pair is not None and test_set is None:
        raise typer.BadParameter("--lang-pair has no effect without --test-set; add that, or leave it out")
    tgt_lang = None
    if test_set is not None:
        if lang_pair is None:
            raise UserError(f"--test-set {test_set} needs its languages; give --lang-pair, such as --lang-pair en-de")
        source_file, ref = sacrebleu_files(test_set, lang_pair)
        src, tgt_lang = src or source_file, lang_pair.partition("-")[2]
    files = tuple(ref or ())
    if same := [path for path in files if files.count(path) > 1]:
        raise UserError(f"--ref {same[0]} is given twice; each reference must be another file; take one away")
    references = {input_name(path): list(read_lines(path, once=True)) for path in files}
    source = None if src is None else list(read_lines(src, once=True))
    for path, lines in [*references.items(), *([(input_name(src), source)] if src and source is not None else [])]:
        _check_line_counts(next(iter(references.items())), (path, lines))
    return ScoredText(references, files, source, tgt_lang)


def read_systems(files: Sequence[Path], text: ScoredText) -> dict[str, list[str]]:
    """The translations of each system, by file name; UserError where they cannot be those of this test set.

    A file that says nothing, or word for word what the reference or the source says, is worth a warning.
    """
    systems: dict[str, list[str]] = {}
    for path in files:
        system = input_name(path)
        if system in systems:
            raise UserError(f"{path} is given twice; each system must have a file of its own; take one away")
        lines = list(read_lines(path, once=True))
        if any(path.resolve() == reference.resolve() for reference in text.reference_files):
            raise UserError(f"{path} is both a translation and the reference; they must be two files; correct --ref")
        _check_line_counts(next(iter(text.references.items())), (system, lines))
        if not any(line.strip() for line in lines):
            warn(f"every line of {system} is empty; is it the right file?")
        known = {**text.references, **({"the source": text.source} if text.source is not None else {})}
        for name, others in known.items():
            if lines == others:
                warn(f"every line of {system} is equal to {name}; is it the right file?")
        systems[system] = lines
    return systems


@dataclass(frozen=True)
class Counting:
    """The metrics, comma-separated, and the options that say how they count."""

    metrics: str
    lang: str | None
    tokenize: str | None
    lowercase: bool
    chrf_lowercase: bool

    @property
    def ignores_case(self) -> bool:
        """Whether sentences that differ in case alone are taken for equal."""
        return self.lowercase or self.chrf_lowercase

    def check(self, *, counts_words: bool = False, compares_lines: bool = False) -> None:
        """Raise BadParameter for an option that would have no effect.

        counts_words: whether words as those of bleu are counted; compares_lines: whether single sentences are compared
        """
        names = self._names()
        has_words, has_chrf = "bleu" in names or counts_words, not {"chrf", "chrf++"}.isdisjoint(names)
        for option, metric, is_given, has_effect in (
            ("--tokenize", "bleu", self.tokenize is not None, has_words),
            ("--lowercase", "bleu", self.lowercase, has_words or compares_lines),
            ("--chrf-lowercase", "chrf or chrf++", self.chrf_lowercase, has_chrf or compares_lines),
        ):
            if is_given and not has_effect:
                raise typer.BadParameter(
                    f"{option} has no effect on {', '.join(names)}; it is for {metric}; leave it out, or add {metric} "
                    "to --metrics"
                )
        if self.lang is None or self.lang in LANGUAGES:
            return
        if not re.fullmatch(LANGUAGE_PATTERN, self.lang):
            raise typer.BadParameter(f"--lang is {self.lang!r}; it must be an ISO 639 code such as de")
        warn(f"no tokenizer has rules for {self.lang}; those for most languages are used")

    def language(self, text: ScoredText) -> str:
        """The target language, whose rules are those of English where it is not known."""
        return self.lang or text.tgt_lang or "en"

    def scorers(self, text: ScoredText) -> list[Scorer]:
        """One for each metric; UserError for an unknown one or a missing language."""
        names = self._names()
        for name in names:
            if (self.lang or text.tgt_lang) is None and name.startswith(("bleu-tokenized", "bleu-compound")):
                raise UserError(
                    f"{name} has rules for each language; it must know the target language; give --lang, such as "
                    "--lang de"
                )
        return [
            make_scorer(
                name,
                tgt_lang=self.language(text),
                tokenize=self.tokenize,
                lowercase=self.chrf_lowercase if name.startswith("chrf") else self.lowercase,
            )
            for name in names
        ]

    def _names(self) -> list[str]:
        names = list(dict.fromkeys(name.strip() for name in self.metrics.split(",") if name.strip()))
        if not names:
            raise UserError("--metrics names none; it must be a list such as bleu,chrf,ter; give at least one")
        return names


def hint_at_case(systems: Mapping[str, Sequence[str]], text: ScoredText, scorers: Sequence[Scorer]) -> None:
    """Say which systems write all in lower case, where a reference does not and a metric counts that as wrong."""
    minding = [scorer.name for scorer in scorers if scorer.is_case_sensitive]
    if not minding or not any(_has_upper_case(stream) for stream in text.streams):
        return
    for name, lines in systems.items():
        if not _has_upper_case(lines) and any(line != line.upper() for line in lines):
            say(
                f"hint: {name} has no upper-case letters and the reference has; {', '.join(minding)} count these "
                "words as wrong; to ignore case, give --lowercase (bleu), --chrf-lowercase (chrf, chrf++) or --metrics "
                "bleu-tokenized-lc"
            )


def _has_upper_case(lines: Sequence[str]) -> bool:
    return any(line != line.lower() for line in lines)


def echo_found(document: Mapping[str, Any], tables: Sequence[Table], output: Format) -> None:
    """Print what was found, as the `document` or as the `tables`."""
    match output:
        case Format.json:
            typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
        case Format.text:
            typer.echo(format_tables(tables, "text"), nl=False)
        case Format.markdown:
            typer.echo(format_tables(tables, "markdown"), nl=False)
        case Format.latex:
            typer.echo(format_tables(tables, "latex"), nl=False)
        case _:
            assert_never(output)


def _check_line_counts(reference: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]]) -> None:
    (first, first_lines), (name, lines) = reference, other
    if not lines:
        raise UserError(f"{name} is empty; it must hold one sentence a line; check the file")
    if len(lines) != len(first_lines):
        raise UserError(
            f"{name} has {len(lines):,} lines and {first} has {len(first_lines):,}; they must match line by line; "
            "check that both belong to the same test set"
        )
