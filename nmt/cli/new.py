"""`nmt new`: write a recipe for a parallel corpus, with a model size that fits it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from nmt.cli.arguments import file_path
from nmt.data.corpus import ReadOptions, read_pairs
from nmt.errors import CommandError, UserError
from nmt.logs import say, warn
from nmt.recipe import Corpus, parse_recipe
from nmt.recipe.corpora import CORPUS_KINDS, LANGUAGE_PATTERN
from nmt.recipe.starter import starter_recipe
from nmt.storage.sealed import write_file
from nmt.streams.output_checks import require_new_file
from nmt.text.format_warnings import is_header, read_plain_text
from nmt.text.languages import SHORT_CODES
from nmt.text.lines import read_lines, require_lines, require_same_length, uncompressed_extension

_FILE = "One file with both sides instead: TSV, .tmx, .jsonl or .parquet."
_FIELDS = (
    "Fields of .jsonl and .parquet files (default: the language codes), or columns of TSV: names in the first line, or "
    "numbers from 0 (default: source and target, src and tgt, or the language codes; without a header the first two)."
)
_KINDS = {".tmx": "tmx", ".json": "jsonl", ".jsonl": "jsonl", ".parquet": "parquet"}
_WITH_FIELDS = ("jsonl", "parquet")

# Approximate, with the vocabularies of `nmt.recipe.starter`; the first is for European languages.
_CHARACTERS_PER_TOKEN = 4.0
_CHARACTERS_PER_TOKEN_OF = {"ja": 1.5, "ko": 2.0, "zh": 1.5, **dict.fromkeys(("km", "lo", "my", "th"), 3.0)}
_POSSIBLE_NAME = re.compile(r"[^\W\d][\w-]*")  # of a column: one word without punctuation


def _language(code: str) -> str:
    """Return a language code; raises BadParameter, before the text is read, unless it is an ISO 639 code."""
    if not re.fullmatch(LANGUAGE_PATTERN, code):
        raise typer.BadParameter(
            f"{code!r} is not an ISO 639 code; it must be two or three lowercase letters without region, such as de"
        )
    return code


def new(
    src_lang: Annotated[str, typer.Argument(parser=_language, metavar="SRC", help="Source language, such as en.")],
    tgt_lang: Annotated[str, typer.Argument(parser=_language, metavar="TGT", help="Target language, such as de.")],
    src: Annotated[Path | None, typer.Option(help="Training text: source sentences, one per line.")] = None,
    tgt: Annotated[Path | None, typer.Option(help="Training text: their translations, line by line.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "--tsv", help=_FILE)] = None,
    valid_src: Annotated[Path | None, typer.Option(help="Validation set, disjoint from the training text.")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="Its translations.")] = None,
    valid_file: Annotated[Path | None, typer.Option("--valid-file", "--valid-tsv", help=_FILE)] = None,
    fields: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SRC TGT", help=_FIELDS),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="New file (default: SRC-TGT.toml)."),
    ] = None,
) -> None:
    """Write a recipe for your text. The number of pairs selects the model: tiny, small or base (Vaswani et al. 2017).

    nmt new en de --src train.en --tgt train.de --valid-src valid.en --valid-tgt valid.de -o mine.toml
    """
    path = require_new_file(out or Path(f"{src_lang}-{tgt_lang}.toml"))
    languages = (src_lang, tgt_lang)
    train = _Text.from_options("", src, tgt, file, languages, fields)
    valid = _Text.from_options("valid-", valid_src, valid_tgt, valid_file, languages, fields)
    if fields is not None and not any(text.corpus["kind"] in ("tsv", *_WITH_FIELDS) for text in (train, valid)):
        raise typer.BadParameter("--fields has no effect without a TSV, .jsonl or .parquet file; leave it out")
    pairs, characters, alphabet = train.count(languages)
    valid.count(languages)  # checks the text
    language = SHORT_CODES.get(tgt_lang, tgt_lang)
    tokens = int(characters / _CHARACTERS_PER_TOKEN_OF.get(language, _CHARACTERS_PER_TOKEN))
    recipe, size = starter_recipe(path.stem, languages, train.corpus, valid.corpus, pairs, tokens, alphabet)
    parse_recipe(recipe, where=str(path))
    write_file(path, recipe.encode())
    if {path.resolve() for path in train.files} & {path.resolve() for path in valid.files}:
        warn("the validation set is also training text; it must be disjoint to show overfitting; hold out some text")
    say(f"{pairs:,} pairs: {size} model; next: nmt run {shlex.quote(str(path))}")
    typer.echo(path)


@dataclass(frozen=True)
class _Text:
    """Parallel text: two line-aligned files, or one file of both sides. corpus: its options in a recipe"""

    files: tuple[Path, ...]
    corpus: dict[str, str | int]

    @classmethod
    def from_options(
        cls,
        prefix: str,
        src: Path | None,
        tgt: Path | None,
        file: Path | None,
        languages: tuple[str, str],
        fields: tuple[str, str] | None,
    ) -> _Text:
        """Return the text that the options name; raises CommandError unless it is `src` and `tgt`, or `file`."""
        if src is not None and tgt is not None and file is None:
            if src.resolve() == tgt.resolve():
                raise CommandError(f"--{prefix}src and --{prefix}tgt are the same file, {src}; correct one of them")
            return cls((src, tgt), {"kind": "text", "src": str(src), "tgt": str(tgt)})
        if file is not None and src is None and tgt is None:
            kind = _KINDS.get(uncompressed_extension(file), "tsv")
            corpus: dict[str, str | int] = {"kind": kind, "path": str(file)}
            if kind in _WITH_FIELDS:
                corpus["src_field"], corpus["tgt_field"] = fields or languages
            elif kind == "tsv" and (columns := _columns(file, languages) if fields is None else fields):
                corpus["src_column"], corpus["tgt_column"] = (int(x) if x.isdecimal() else x for x in columns)
            return cls((file,), corpus)
        raise CommandError(f"nmt new needs --{prefix}src and --{prefix}tgt, or --{prefix}file; give one or the other")

    def count(self, languages: tuple[str, str]) -> tuple[int, int, int]:
        """Count pairs, target characters and distinct characters; raises UserError if empty or misaligned."""
        num_lines, alphabet = [], set[str]()
        for path in self.files:
            lines = characters = 0
            for texts in self._read(path, languages):
                lines += 1
                characters += len(texts[-1])
                alphabet.update(*texts)
            num_lines.append(lines)
        require_same_length(self.files[0], num_lines[0], self.files[-1], num_lines[-1])
        require_lines(self.files[0], num_lines[0])
        return num_lines[0], characters, len(alphabet)

    def _read(self, path: Path, languages: tuple[str, str]) -> Iterator[Sequence[str]]:
        """Yield each line of one side, in a list, or each pair of both."""
        if len(self.files) == 2:
            return ([line] for line in read_plain_text(path))
        corpus = cast("Corpus", CORPUS_KINDS[str(self.corpus["kind"])].model_validate(self.corpus))
        return read_pairs(corpus, ReadOptions(Path(), *languages))


def _columns(path: Path, languages: tuple[str, str]) -> list[str] | None:
    """Return the names of the source and target columns of a TSV file; None if its first line is not a header.

    Raises UserError for a header without exactly one such name for each side.
    """
    cells = next(read_lines(path), "").removesuffix("\r").split("\t")
    if not any(is_header(cell, [*cells[:i], *cells[i + 1 :]]) for i, cell in enumerate(cells)):
        if all(map(_POSSIBLE_NAME.fullmatch, cells)):
            say(
                f"the first line of {path} counts as text, not as a header: {', '.join(map(repr, cells))}; if it names "
                "the columns, add --fields SRC TGT with two of these names"
            )
        if len(cells) > 2:
            say(f"{path} has {len(cells)} columns; the recipe uses the first two; --fields selects others")
        return None
    names = (("source", "src", languages[0]), ("target", "tgt", languages[1]))
    columns = [[cell for cell in cells if cell.strip().strip('"').lower() in side] for side in names]
    if any(len(found) != 1 for found in columns):
        raise UserError(
            f"{path} has a header: {', '.join(map(repr, cells))}; the columns of source and target are unknown; add "
            "--fields SRC TGT, with names, or with numbers from 0 if the first line is text"
        )
    return [found[0] for found in columns]
