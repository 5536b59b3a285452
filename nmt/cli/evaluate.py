"""`nmt evaluate`: scores of translations against references."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.scored_text import (
    ChrfLowercaseOption,
    Format,
    LangOption,
    LangPairOption,
    LowercaseOption,
    MetricsOption,
    RefOption,
    ScoredText,
    TestSetOption,
    TokenizeOption,
    echo_found,
    hint_at_case,
    make_scorers,
    read_scored_text,
    read_systems,
)
from nmt.data.lines import read_lines
from nmt.evaluate.breakdown import WordScore, count_words, length_classes, read_word_counts, score_words
from nmt.evaluate.comet import comet_scores
from nmt.evaluate.differences import widest_differences
from nmt.evaluate.findings import Findings
from nmt.evaluate.metrics import GroupScore, Score, Scorer, bleu_words, score_groups
from nmt.logs import say
from nmt.recipe import UserError

Systems = Mapping[str, Sequence[str]]


def evaluate(
    hypotheses: Annotated[list[Path], typer.Argument(metavar="HYP...", help="Translations, one file per system.")],
    ref: RefOption = None,
    test_set: TestSetOption = None,
    lang_pair: LangPairOption = None,
    metrics: MetricsOption = "bleu,chrf,ter",
    lang: LangOption = None,
    tokenize: TokenizeOption = None,
    lowercase: LowercaseOption = False,
    chrf_lowercase: ChrfLowercaseOption = False,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Add 95 % intervals by bootstrap, seeded by SACREBLEU_SEED.")
    ] = False,
    resamples: Annotated[int, typer.Option(min=2, help="Resamples of --confidence.")] = 1000,
    src: Annotated[Path | None, typer.Option(help="Source sentences; --test-set brings its own.")] = None,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Add the scores by length of the source sentence; needs --src.")
    ] = False,
    train_tgt: Annotated[
        list[Path] | None,
        typer.Option(help="Target side of the training text: add the F-measure of words by how often it has them."),
    ] = None,
    word_counts: Annotated[
        Path | None, typer.Option(help="The same from lines of WORD COUNT, with words as bleu counts them.")
    ] = None,
    differences: Annotated[
        int, typer.Option(min=0, help="Of two systems, show so many sentences on which each is most ahead.")
    ] = 0,
    comet: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Add COMET by this comet-score program; needs --src.")
    ] = None,
    output: Annotated[
        Format | None, typer.Option("--format", help="text, markdown or latex; json for everything in full precision.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The scores by system as JSON; with a breakdown, the same as --format json.")
    ] = False,
) -> None:
    """Score translations: one line for each system, and the signature of each figure.

    nmt evaluate --ref news.de base.de big.de --lang de --metrics bleu,chrf,bleu-compound-split --confidence
    """
    if as_json and output is not None:
        raise typer.BadParameter("--json and --format are mutually exclusive; give one of them")
    text = read_scored_text(ref, src, test_set, lang_pair)
    scorers = make_scorers(metrics, lang, text, tokenize, lowercase=lowercase, chrf_lowercase=chrf_lowercase)
    systems = read_systems(hypotheses, text)
    hint_at_case(systems, text, scorers)
    _require_two(systems, differences)
    findings = Findings(_score(systems, text, scorers, resamples if confidence else 0, comet))
    ignores_case = lowercase or chrf_lowercase
    if by_length:
        findings = replace(findings, by_length=_by_length(systems, text, scorers, ignores_case))
    if train_tgt or word_counts:
        words, meaning = bleu_words(tgt_lang=lang or text.tgt_lang or "en", tokenize=tokenize, lowercase=lowercase)
        by_frequency = _by_frequency(systems, text, _frequencies(train_tgt or [], word_counts, words), words)
        findings = replace(findings, by_frequency=by_frequency, words=meaning)
    if differences:
        findings = _with_differences(findings, systems, text, differences, ignores_case)
    _echo(findings, output, as_json)


def _echo(findings: Findings, output: Format | None, as_json: bool) -> None:
    document = findings.document()
    if as_json and len(document) == 1:
        typer.echo(json.dumps(document["systems"], indent=1, ensure_ascii=False))
    else:
        echo_found(document, findings.tables(), output or (Format.json if as_json else Format.text))


def _require_two(systems: Systems, differences: int) -> None:
    if differences and len(systems) != 2:
        raise UserError(f"--differences is about two systems; there are {len(systems)}; give two files")


def _with_differences(
    findings: Findings, systems: Systems, text: ScoredText, number: int, ignores_case: bool
) -> Findings:
    first, second = systems.values()
    ahead, behind = widest_differences(first, second, text.streams, text.source, number, lowercase=ignores_case)
    return replace(findings, ahead=ahead, behind=behind)


def _score(
    systems: Systems, text: ScoredText, scorers: Sequence[Scorer], resamples: int, comet: str | None
) -> dict[str, list[Score]]:
    by_comet: dict[str, Score] = {}
    if comet is not None:
        source = _source(text, "--comet")
        say(f"scoring {len(systems)} x {len(source):,} sentences by {comet}")
        by_comet = comet_scores(comet, systems, source, text.streams[0])
    return {
        name: [
            *(scorer.score(lines, text.streams, resamples=resamples) for scorer in scorers),
            *([by_comet[name]] if by_comet else []),
        ]
        for name, lines in systems.items()
    }


def _by_length(
    systems: Systems, text: ScoredText, scorers: Sequence[Scorer], ignores_case: bool
) -> dict[str, list[GroupScore]]:
    classes = length_classes(_source(text, "--by-length"))
    return {
        name: score_groups(lines, text.streams, classes, scorers, lowercase=ignores_case)
        for name, lines in systems.items()
    }


def _by_frequency(
    systems: Systems, text: ScoredText, frequencies: Counter[str], words: Callable[[str], list[str]]
) -> dict[str, list[WordScore]]:
    return {name: score_words(lines, text.streams[0], frequencies, words) for name, lines in systems.items()}


def _frequencies(
    train_tgt: Sequence[Path], word_counts: Path | None, words: Callable[[str], list[str]]
) -> Counter[str]:
    """How often training has each word, from its text, from counts, or from both."""
    counts = count_words(chain.from_iterable(map(read_lines, train_tgt)), words)
    if word_counts is not None:
        counts += read_word_counts(read_lines(word_counts), str(word_counts))
    return counts


def _source(text: ScoredText, option: str) -> list[str]:
    if text.source is None:
        raise UserError(f"{option} needs the source sentences, line by line beside the reference; give --src FILE")
    return text.source
