"""The command line. Results go to stdout, everything else to stderr.

Exit status: 0 fine, 1 the work failed, 2 the command line or the recipe is wrong, 143 or 130 stopped by a signal after
saving.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from nmt import pipeline
from nmt.checkpoint import read_model_facts
from nmt.data.corpus import decode_lines, read_lines
from nmt.decode.scoring import Scorer
from nmt.decode.translator import Translation, Translator
from nmt.evaluate.metrics import Score, score_corpus
from nmt.layout import find_model
from nmt.logs import ProgressBar, console, progress, say
from nmt.recipe import DecodeRecipe, RecipeError, UserError, describe_recipe, load_recipe, override_decode
from nmt.train.signals import Stopped
from nmt.watch import JobEnded

app = typer.Typer(
    help="The encoder-decoder Transformer for machine translation: train, translate, score.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Lines in memory at a time: from a terminal each line is answered at once, from elsewhere batches are made.
TERMINAL_WINDOW, FILE_WINDOW = 1, 2_048
SCORING_WINDOW = 64

RecipeArgument = Annotated[Path, typer.Argument(help="A recipe: one TOML file, such as recipes/quickstart.toml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options that replace the recipe's: section.key=value, e.g. train.max_steps=99."),
]
ModelArgument = Annotated[Path, typer.Argument(help="A model directory, a checkpoint, or a run directory.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]


class Precision(StrEnum):
    """Choices of --precision."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class LengthPenalty(StrEnum):
    """Choices of --length-penalty."""

    gnmt = "gnmt"
    power = "power"
    none = "none"


# --- Recipes: from text to a scored model ---------------------------------------------------------------------------


@app.command()
def run(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Prepare, train, average, translate the test sets, score them and report; skips what is up to date.

    An interrupted run goes on where it stopped when the same command is given again. On several GPUs:
    torchrun --nproc-per-node 8 -m nmt run RECIPE
    """
    pipeline.run(load_recipe(recipe, overrides or ()))


@app.command()
def prepare(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Clean the corpora, train the subword tokenizer, and write the token store."""
    pipeline.prepare(load_recipe(recipe, overrides or ()))


@app.command()
def train(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Train, going on from the newest checkpoint of the run; prepares the corpora first if need be.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt train RECIPE
    """
    pipeline.train(load_recipe(recipe, overrides or ()))


@app.command()
def average(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    last: Annotated[int | None, typer.Option(min=1, help="Average this many newest checkpoints (default: 5).")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Average this many best-validated checkpoints.")] = None,
    ema: Annotated[bool, typer.Option("--ema", help="Take the moving average that training kept (ema_decay).")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="New model directory (default: in RUN).")] = None,
) -> None:
    """Average the weights of several checkpoints of a run into one model directory."""
    if sum([last is not None, best is not None, ema]) > 1:
        raise typer.BadParameter("--last, --best and --ema exclude each other; give one")
    kind: pipeline.AverageKind = "ema" if ema else "best" if best else "last"
    count = 1 if ema else best or last or 5
    target = out or run_dir / ("average-ema" if ema else f"average-{kind}-{count}")
    chosen = pipeline.average(run_dir, target, kind, count)
    say(f"averaged {', '.join(directory.name for directory in chosen)}")
    typer.echo(target)


@app.command()
def config(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Print the resolved recipe, each option with its documentation."""
    typer.echo(describe_recipe(load_recipe(recipe, overrides or ())), nl=False)


# --- Translating and scoring ----------------------------------------------------------------------------------------


@app.command()
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
        Precision, typer.Option(help="Arithmetic; auto takes bf16 where it is native.")
    ] = Precision.auto,
) -> None:
    """Translate text: one line out for every line in, in the same order, whatever the line."""
    named: dict[str, object] = {"beam_size": beam_size, "n_best": n_best, "batch_tokens": batch_tokens}
    named |= {"length_penalty": length_penalty, "length_alpha": length_alpha}
    decode = _with_changes(read_model_facts(find_model(model)).decode, named, settings or ())
    translator = Translator.load(model, device, precision.value, decode, ensemble or ())
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


@app.command()
def score(
    model: ModelArgument,
    src: Annotated[Path, typer.Argument(help="Source sentences, one a line.")],
    tgt: Annotated[Path, typer.Argument(help="Their translations, one a line.")],
    per_token: Annotated[
        bool, typer.Option("--per-token", help="After a tab also each token with its own, as TOKEN:LOG_PROB.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Print the log-probability (natural logarithm) of each given translation, one a line.

    The perplexity of all of them, end tokens counted, goes to stderr.
    """
    sources, targets = list(read_lines(src)), list(read_lines(tgt))
    if len(sources) != len(targets):
        raise UserError(
            f"{src} has {len(sources):,} lines and {tgt} has {len(targets):,}; they must match line by line; check both"
        )
    scorer = Scorer.load(model, device)
    log_prob, tokens = 0.0, 0
    with progress("scoring", len(sources), "pairs") as bar:
        for start in range(0, len(sources), SCORING_WINDOW):
            window = slice(start, start + SCORING_WINDOW)
            for pair in scorer.score(sources[window], targets[window], first_line=start + 1):
                log_prob, tokens = log_prob + pair.log_prob, tokens + len(pair.token_log_probs)
                details = zip(pair.pieces, pair.token_log_probs, strict=True)
                columns = " ".join(f"{piece}:{value:.4f}" for piece, value in details)
                typer.echo(f"{pair.log_prob:.4f}" + (f"\t{columns}" if per_token else ""))
                bar.advance(1)
    if tokens:
        perplexity = math.exp(min(-log_prob / tokens, 700.0))
        say(f"{len(sources):,} pairs, {tokens:,} tokens: log-probability {log_prob:.2f}, perplexity {perplexity:.4f}")


@app.command()
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


# --- What the commands share ----------------------------------------------------------------------------------------


def main() -> None:
    """Run the command line and exit; every error that a user can cause is one line on stderr."""
    try:
        app()
    except RecipeError as error:  # the same in every process that torchrun started; one of them says it
        sys.exit(_fail(str(error), 2) if os.environ.get("RANK", "0") == "0" else 2)
    except JobEnded:  # one of the processes has said why
        sys.exit(1)
    except UserError as error:
        sys.exit(_fail(str(error), 1))
    except Stopped as stopped:
        say(str(stopped))
        sys.exit(stopped.status)
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted", 130))
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str, status: int) -> int:
    console.print(f"nmt: {' '.join(message.split())}", markup=False)
    return status


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


def _check_line_counts(first: Path, first_lines: Sequence[str], path: Path, lines: Sequence[str]) -> None:
    if not lines:
        raise UserError(f"{path} is empty; it must hold one sentence a line; check the file")
    if len(lines) != len(first_lines):
        raise UserError(
            f"{path} has {len(lines):,} lines and {first} has {len(first_lines):,}; they must match line by line; "
            "check that both belong to the same test set"
        )
