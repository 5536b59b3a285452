"""`nmt translate`: text in, text out, line by line."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from nmt.checkpoint import read_model_facts
from nmt.cli.arguments import Device, ModelArgument, Precision
from nmt.data.corpus import decode_lines, read_lines
from nmt.decode.translator import Translation, Translator
from nmt.decode.words import format_links
from nmt.layout import find_model
from nmt.logs import ProgressBar, progress, say
from nmt.recipe import DecodeRecipe, UserError, override_decode

# Lines in memory at a time: from a terminal each line is answered at once, from elsewhere batches are made.
TERMINAL_WINDOW, FILE_WINDOW = 1, 2_048


class LengthPenalty(StrEnum):
    """Choices of --length-penalty."""

    gnmt = "gnmt"
    power = "power"
    none = "none"


def translate(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(help="Text to translate, one sentence a line; - is standard input.")] = Path(
        "-"
    ),
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Where to write; - is standard output, and .gz at the end compresses.")
    ] = Path("-"),
    beam_size: Annotated[int | None, typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy.")] = None,
    length_penalty: Annotated[LengthPenalty | None, typer.Option(help="Divisor of the log-probability.")] = None,
    length_alpha: Annotated[float | None, typer.Option(min=0.0, help="Exponent of the length penalty.")] = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Translations per line: as number, score, text with tabs.")
    ] = None,
    prefixes: Annotated[
        Path | None, typer.Option("--prefixes", help="What each translation must begin with, line by line.")
    ] = None,
    required: Annotated[
        Path | None, typer.Option("--required", help="Phrases that it must hold, line by line, with tabs between.")
    ] = None,
    ensemble: Annotated[
        list[Path] | None, typer.Option(help="A further model that decides with the first; give it again for several.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other option of section decode: sampling=true, no_repeat_ngram=4, ..."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what an interrupted call has left.")] = False,
    with_scores: Annotated[
        bool, typer.Option("--with-scores", help="Put the score and a tab before each line.")
    ] = False,
    with_alignments: Annotated[
        bool, typer.Option("--with-alignments", help="Put a tab and the word alignment, as 0-0 1-2, behind each line.")
    ] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Most source tokens decoded at a time.")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Lines read before the first answer.")] = None,
    device: Device = "auto",
    precision: Annotated[
        Precision, typer.Option(help="Arithmetic; auto takes bf16 where it is native.")
    ] = Precision.auto,
) -> None:
    """Translate text: one line out for every line in, in the same order, whatever the line."""
    named: dict[str, object] = {"beam_size": beam_size, "n_best": n_best, "batch_tokens": batch_tokens}
    named |= {"length_penalty": length_penalty, "length_alpha": length_alpha}
    named["alignments"] = "true" if with_alignments else None
    decode = _with_changes(read_model_facts(find_model(model)).decode, named, settings or ())
    translator = Translator.load(model, device, precision.value, decode, ensemble or ())
    interactive = file == Path("-") and sys.stdin.isatty()
    count = None if file == Path("-") else sum(1 for _ in read_lines(file))
    shown = decode.n_best if decode.bayes_risk == "none" else 1
    window = window or (TERMINAL_WINDOW if interactive else FILE_WINDOW)
    done = _lines_done(out, shown) if resume else 0
    beginnings = None if prefixes is None else _lines_beside(prefixes, file, count, done)
    phrases = None if required is None else _phrases(_lines_beside(required, file, count, done))
    lines = islice(_input_lines(file), done, None)
    with _output(out, append=done > 0) as stream, _translation_bar(count, interactive, done) as bar:
        for number, translations in enumerate(translator.stream(lines, window, beginnings, phrases), start=done + 1):
            stream.writelines(_output_lines(number, translations, shown, with_scores))
            if interactive or number % window == 0:
                stream.flush()
            bar.advance(1)
    if translator.lines_cut:
        say(f"{translator.lines_cut} lines were too long for the model and were translated in pieces")


def _with_changes(decode: DecodeRecipe, named: Mapping[str, object], settings: Sequence[str]) -> DecodeRecipe:
    """The model's own search options, one translation a line, with those of the command line in their place."""
    given = [f"{name}={value}" for name, value in named.items() if value is not None]
    return override_decode(decode.model_copy(update={"n_best": 1, "alignments": False}), [*settings, *given])


def _input_lines(path: Path) -> Iterator[str]:
    """Lines of a file or of standard input, which end at a line feed and nowhere else."""
    return decode_lines(sys.stdin.buffer, "standard input") if path == Path("-") else read_lines(path)


def _lines_beside(path: Path, file: Path, num_lines: int | None, done: int) -> Iterator[str]:
    """The lines of a file of prefixes or phrases from number `done` on; UserError when known not to fit the text's."""
    given = sum(1 for _ in read_lines(path))
    if num_lines is not None and given != num_lines:
        raise UserError(
            f"{path} has {given:,} lines and {file} has {num_lines:,}; each line of the text needs one, which may be "
            "empty; check both"
        )
    return islice(read_lines(path), done, None)


def _phrases(lines: Iterator[str]) -> Iterator[list[str]]:
    """What stands between the tabs of each line."""
    return ([phrase for phrase in line.split("\t") if phrase.strip()] for line in lines)


@contextmanager
def _output(path: Path, append: bool) -> Iterator[TextIO]:
    """Standard output, or a file that takes its name when it is complete; one that ends in .gz is compressed.

    With `append`, what was written to the unfinished file before stays.
    """
    if path == Path("-"):
        with open(sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as stream:
            yield stream
        return
    unfinished = _unfinished(path)
    try:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(unfinished, "at" if append else "wt", encoding="utf-8", newline="\n") as stream:
            yield cast(TextIO, stream)
        unfinished.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose a place that can be written to") from error


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _lines_done(out: Path, n_best: int) -> int:
    """How many lines an interrupted call has translated; its file is cut behind the last one that is surely whole."""
    if out == Path("-") or out.suffix == ".gz":
        raise UserError(f"--resume cannot go on with {out}; the output must be a plain file; name one by -o")
    if not _unfinished(out).exists():
        return 0
    whole = [line + b"\n" for line in _unfinished(out).read_bytes().split(b"\n")[:-1]]
    done = len(whole)
    if n_best > 1 and whole:  # of the last line there may be more translations to come
        numbers = [int(line.partition(b"\t")[0]) for line in whole]
        whole, done = whole[: numbers.index(numbers[-1])], numbers[-1] - 1
    os.truncate(_unfinished(out), sum(map(len, whole)))
    return done


@contextmanager
def _translation_bar(count: int | None, interactive: bool, done: int) -> Iterator[ProgressBar]:
    """Progress on stderr, but not between the lines of a person who types."""
    if interactive:
        yield ProgressBar.silent()
    else:
        with progress("translating", count, "lines", done=done) as bar:
            yield bar


def _output_lines(number: int, translations: Sequence[Translation], n_best: int, with_scores: bool) -> list[str]:
    if n_best > 1:
        return [f"{number}\t{translation.score:.4f}\t{_text(translation)}\n" for translation in translations]
    best = translations[0]
    return [f"{best.score:.4f}\t{_text(best)}\n" if with_scores else f"{_text(best)}\n"]


def _text(translation: Translation) -> str:
    """The translation, and behind a tab its alignment where it was asked for."""
    links = translation.alignment
    return translation.text if links is None else f"{translation.text}\t{format_links(links)}"
