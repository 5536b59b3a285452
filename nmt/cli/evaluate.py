"""`nmt evaluate`: scores of translations against references."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nmt.data.corpus import read_lines
from nmt.evaluate.metrics import Score, score_corpus
from nmt.recipe import UserError


def evaluate(
    hypotheses: Annotated[list[Path], typer.Argument(metavar="HYP...", help="Translations, one file per system.")],
    ref: Annotated[list[Path], typer.Option("--ref", help="Reference translations; give it again for several.")],
    metrics: Annotated[
        str, typer.Option(help="Comma-separated: bleu, chrf, chrf++, ter, bleu-tokenized-lc, ...")
    ] = "bleu,chrf,ter",
    lang: Annotated[str, typer.Option(help="Target language, for tokenizers that depend on it.")] = "en",
    tokenize: Annotated[str, typer.Option(help="sacreBLEU's tokenizer for BLEU: 13a, intl, char, none, ...")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with full precision.")] = False,
) -> None:
    """Score translations against references by sacreBLEU, each figure with its full signature."""
    references = [list(read_lines(path)) for path in ref]
    for path, lines in zip(ref, references, strict=True):
        _check_line_counts(ref[0], references[0], path, lines)
    results: dict[str, list[Score]] = {}
    for path in hypotheses:
        lines = list(read_lines(path))
        _check_line_counts(ref[0], references[0], path, lines)
        names = [name.strip() for name in metrics.split(",")]
        results[str(path)] = score_corpus(
            lines, references, names, tgt_lang=lang, tokenize=tokenize, lowercase=lowercase
        )
    if as_json:
        typer.echo(
            json.dumps({name: [asdict(score) for score in scores] for name, scores in results.items()}, indent=1)
        )
        return
    for name, scores in results.items():
        for found in scores:
            typer.echo(f"{name}\t{found.name}\t{found.value:.2f}\t{found.signature}")


def _check_line_counts(first: Path, first_lines: Sequence[str], path: Path, lines: Sequence[str]) -> None:
    if not lines:
        raise UserError(f"{path} is empty; it must hold one sentence a line; check the file")
    if len(lines) != len(first_lines):
        raise UserError(
            f"{path} has {len(lines):,} lines and {first} has {len(first_lines):,}; they must match line by line; "
            "check that both belong to the same test set"
        )
