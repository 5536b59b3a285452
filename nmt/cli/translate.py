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
from nmt.cli.arguments import Device, Engine, ModelArgument, Precision
from nmt.data.corpus import decode_lines, read_lines
from nmt.decode.translator import Translation, Translator
from nmt.export.engine import CTranslate2Translator, EnginePrecision
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
    ensemble: Annotated[
        list[Path] | None, typer.Option(help="A further model that decides with the first; give it again for several.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other option of section decode: sampling=true, no_repeat_ngram=4, ..."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted call has left beside the output file.")
    ] = False,
    with_scores: Annotated[
        bool, typer.Option("--with-scores", help="Put the score and a tab before each line.")
    ] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Most source tokens decoded at a time.")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Lines read before the first answer.")] = None,
    device: Device = "auto",
    precision: Annotated[
        Precision, typer.Option(help="Arithmetic; auto takes bf16 where it is native. fp16, int8: engine ctranslate2.")
    ] = Precision.auto,
    engine: Annotated[
        Engine, typer.Option(help="ctranslate2 is faster; it needs the extra 'fast', and converts the model once.")
    ] = Engine.torch,
) -> None:
    """Translate text: one line out for every line in, in the same order, whatever the line."""
    named: dict[str, object] = {"beam_size": beam_size, "n_best": n_best, "batch_tokens": batch_tokens}
    named |= {"length_penalty": length_penalty, "length_alpha": length_alpha}
    decode = _with_changes(read_model_facts(find_model(model)).decode, named, settings or ())
    translator = _load(engine, model, device, precision.value, decode, ensemble or ())
    interactive = file == Path("-") and sys.stdin.isatty()
    count = None if file == Path("-") else sum(1 for _ in read_lines(file))
    beginnings = None if prefixes is None else _prefix_lines(prefixes, file, count)
    shown = decode.n_best if decode.bayes_risk == "none" else 1
    window = window or (TERMINAL_WINDOW if interactive else FILE_WINDOW)
    done = _lines_done(out, shown) if resume else 0
    lines, beginnings = islice(_input_lines(file), done, None), beginnings and islice(beginnings, done, None)
    with _output(out, append=done > 0) as stream, _translation_bar(count, interactive, done) as bar:
        for number, translations in enumerate(translator.stream(lines, window, beginnings), start=done + 1):
            stream.writelines(_output_lines(number, translations, shown, with_scores))
            if interactive or number % window == 0:
                stream.flush()
            bar.advance(1)
    if translator.lines_cut:
        say(f"{translator.lines_cut} lines were too long for the model and were translated in pieces")


def _load(
    engine: Engine,
    model: Path,
    device: str,
    precision: EnginePrecision,
    decode: DecodeRecipe,
    ensemble: Sequence[Path],
) -> Translator:
    """The translator that searches with an engine."""
    if engine is Engine.ctranslate2:
        return CTranslate2Translator.load(model, device, precision, decode, ensemble)
    if precision == "int8" or precision == "fp16":
        raise typer.BadParameter(f"--precision {precision} needs --engine ctranslate2; give that, or another precision")
    return Translator.load(model, device, precision, decode, ensemble)


def _with_changes(decode: DecodeRecipe, named: Mapping[str, object], settings: Sequence[str]) -> DecodeRecipe:
    """The model's own search options, one translation a line, with those of the command line in their place."""
    given = [f"{name}={value}" for name, value in named.items() if value is not None]
    return override_decode(decode.model_copy(update={"n_best": 1}), [*settings, *given])


def _input_lines(path: Path) -> Iterator[str]:
    """Lines of a file or of standard input, which end at a line feed and nowhere else."""
    return decode_lines(sys.stdin.buffer, "standard input") if path == Path("-") else read_lines(path)


def _prefix_lines(prefixes: Path, file: Path, num_lines: int | None) -> Iterator[str]:
    """The lines of a file of prefixes; UserError when they are known not to be as many as those of the text."""
    given = sum(1 for _ in read_lines(prefixes))
    if num_lines is not None and given != num_lines:
        raise UserError(
            f"{prefixes} has {given:,} lines and {file} has {num_lines:,}; each line needs its prefix, which may be "
            "empty; check both"
        )
    return read_lines(prefixes)


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
        return [f"{number}\t{translation.score:.4f}\t{translation.text}\n" for translation in translations]
    best = translations[0]
    return [f"{best.score:.4f}\t{best.text}\n" if with_scores else f"{best.text}\n"]
