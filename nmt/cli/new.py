"""`nmt new`: write a recipe for a parallel corpus, with a model size that fits it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import file_path, require_new_file
from nmt.logs import say, warn
from nmt.recipe import CommandError, UserError, parse_recipe
from nmt.recipe.starter import starter_recipe
from nmt.storage.sealed import write_file
from nmt.text.lines import read_lines, read_plain_text, require_lines, require_same_length

_CHARACTERS_PER_TOKEN = 4  # roughly, in European languages with the vocabularies of `nmt.recipe.starter`


def new(
    src_lang: Annotated[str, typer.Argument(metavar="SRC", help="Source language, such as en.")],
    tgt_lang: Annotated[str, typer.Argument(metavar="TGT", help="Target language, such as de.")],
    src: Annotated[Path | None, typer.Option(help="Training text: source sentences, one per line.")] = None,
    tgt: Annotated[Path | None, typer.Option(help="Training text: their translations, line by line.")] = None,
    tsv: Annotated[Path | None, typer.Option(help="Alternative: a tab-separated file of both.")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="Validation text, disjoint from the training text.")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="Its translations.")] = None,
    valid_tsv: Annotated[Path | None, typer.Option(help="Alternative: a tab-separated file of both.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="New file (default: SRC-TGT.toml)."),
    ] = None,
) -> None:
    """Write a recipe for your text. The number of pairs selects the model: tiny, small or base (Vaswani et al. 2017).

    nmt new en de --src train.en --tgt train.de --valid-src valid.en --valid-tgt valid.de -o mine.toml
    """
    path = require_new_file(out or Path(f"{src_lang}-{tgt_lang}.toml"))
    train, valid = _Text.given("", src, tgt, tsv), _Text.given("valid-", valid_src, valid_tgt, valid_tsv)
    (pairs, *counts), _ = train.count(), valid.count()
    recipe = starter_recipe(path.stem, (src_lang, tgt_lang), train.corpus(), valid.corpus(), pairs, *counts)
    parse_recipe(recipe.text, where=str(path))
    write_file(path, recipe.text.encode())
    if {path.resolve() for path in train.files} & {path.resolve() for path in valid.files}:
        warn("the validation text is also training text; it must be disjoint to show overfitting; hold out some text")
    say(f"{pairs:,} pairs: {recipe.size} model; next: nmt run {shlex.quote(str(path))}")
    typer.echo(path)


@dataclass(frozen=True)
class _Text:
    """Parallel text: two line-aligned files, or one file with two columns."""

    files: tuple[Path, ...]

    @classmethod
    def given(cls, prefix: str, src: Path | None, tgt: Path | None, tsv: Path | None) -> _Text:
        """Return the text that the options name; raises CommandError unless it is `src` and `tgt`, or `tsv`."""
        if src is not None and tgt is not None and tsv is None:
            if src.resolve() == tgt.resolve():
                raise CommandError(f"--{prefix}src and --{prefix}tgt are the same file, {src}; correct one of them")
            return cls((src, tgt))
        if tsv is not None and src is None and tgt is None:
            return cls((tsv,))
        raise CommandError(f"nmt new needs --{prefix}src and --{prefix}tgt, or --{prefix}tsv; give one or the other")

    def corpus(self) -> dict[str, str]:
        """Return the options of the corpus in a recipe."""
        if len(self.files) == 1:
            return {"kind": "tsv", "path": str(self.files[0])}
        return {"kind": "text", "src": str(self.files[0]), "tgt": str(self.files[1])}

    def count(self) -> tuple[int, int, int]:
        """Count pairs, target tokens (estimated) and characters; raises UserError if empty or of unequal length."""
        counts, alphabet, has_columns = [], set[str](), len(self.files) == 1
        for path in self.files:
            lines = characters = columns = 0
            for line in (read_lines if has_columns else read_plain_text)(path):
                fields = line.split("\t") if has_columns else [line]
                lines, characters, columns = lines + 1, characters + len(fields[:2][-1]), max(columns, len(fields))
                alphabet.update(*fields[:2])
                if has_columns and line.strip() and len(fields) < 2:
                    raise UserError(f"{path}, line {lines} has no tab; expected two columns; correct the line")
            counts.append((lines, characters))
            if columns > 2:
                say(f"{path} has {columns} columns; the recipe uses the first two, see src_column and tgt_column")
        (pairs, _), (others, characters) = counts[0], counts[-1]
        require_same_length(self.files[0], pairs, self.files[-1], others)
        require_lines(self.files[0], pairs)
        return pairs, characters // _CHARACTERS_PER_TOKEN, len(alphabet)
