"""`nmt translate`: text in, text out, line by line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from nmt.cli.arguments import Device, Engine, ModelArgument, Precision
from nmt.cli.engines import Chosen, choose_engine, load_translator, start_team
from nmt.cli.translation_job import TranslationJob
from nmt.processes.parallel import num_cores
from nmt.recipe import CommandError, DecodeRecipe, UserError, override_decode
from nmt.storage.model_facts import read_model_facts
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import manifest_digest
from nmt.streams.output import Output
from nmt.streams.part import Origin
from nmt.streams.records import Format, Layout, RecordWriter
from nmt.streams.source import Source


class LengthPenalty(StrEnum):
    """Choices of --length-penalty."""

    gnmt = "gnmt"
    power = "power"
    none = "none"


class InputFormat(StrEnum):
    """Choices of --input-format."""

    text = "text"
    tsv = "tsv"
    jsonl = "jsonl"


class InvalidUtf8(StrEnum):
    """Choices of --invalid-utf8."""

    error = "error"
    replaced = "replace"


# --- Input and output -------------------------------------------------------------------------------------------------

_INPUT = "Text to translate, plain or compressed (.gz, .xz, .zst); - is standard input."
_INPUT_FORMAT = "Format of FILE. By default as its name ends (.tsv, .jsonl, .json, .txt), else one sentence a line."
_COLUMN = "TSV: column of the text, counted from 0, or its name in the header (default: 0)."
_HEADER = "TSV: the first line names the columns. A --column by name implies it."
_FIELD = "JSON Lines: field of the text; a dot steps into an object, unless a field has the whole name (default: text)."
_INVALID_UTF8 = "Bytes that are not UTF-8: stop at them, or put U+FFFD in their place."
_PREFIXES = "What each translation must begin with, line by line."
_REQUIRED = "Phrases that each translation must hold, line by line, with tabs between."
_OUT = "Where to write; - is standard output, and .gz at the end compresses."
_OUTPUT_FORMAT = (
    "By default as the output's name ends, else that of the input. tsv: the columns of the input and the translation "
    "as a further one. jsonl: the fields of the input and translation, score, log_prob, tokens, token_log_probs, and "
    "n_best; all of them null for a null text. moses: n-best lists as Moses writes them, with indices from 0."
)
_WITH_ALIGNMENTS = "Put a tab and the word alignment, as 0-0 1-2, behind each translation; in JSON Lines a field."
_RESUME = (
    "Continue OUT.part, which an interrupted call has left, if the same model, options and input made it. If OUT is "
    "finished, do nothing."
)
_RESTART = "Discard OUT.part, which an interrupted call has left, and start over."

File = Annotated[Path, typer.Argument(help=_INPUT)]
FileFormat = Annotated[InputFormat | None, typer.Option(help=_INPUT_FORMAT)]
Column = Annotated[str | None, typer.Option(help=_COLUMN)]
Header = Annotated[bool, typer.Option("--header", help=_HEADER)]
Field = Annotated[str | None, typer.Option(help=_FIELD)]
OnInvalidUtf8 = Annotated[InvalidUtf8, typer.Option(help=_INVALID_UTF8)]
Prefixes = Annotated[Path | None, typer.Option("--prefixes", help=_PREFIXES)]
Required = Annotated[Path | None, typer.Option("--required", help=_REQUIRED)]
Out = Annotated[Path, typer.Option("-o", "--out", help=_OUT)]
OutputFormat = Annotated[Format | None, typer.Option(help=_OUTPUT_FORMAT)]
WithScores = Annotated[bool, typer.Option("--with-scores", help="Put the score and a tab before each translation.")]
WithAlignments = Annotated[bool, typer.Option("--with-alignments", help=_WITH_ALIGNMENTS)]
Resume = Annotated[bool, typer.Option("--resume", help=_RESUME)]
Restart = Annotated[bool, typer.Option("--restart", help=_RESTART)]

# --- Search -----------------------------------------------------------------------------------------------------------

_DISTINCT = (
    "Of equal texts in an n-best list keep the best, and look for others in the whole beam; there may be fewer than N. "
    "By default in text and TSV, but not of samples."
)
_TAG = "Tag of a training corpus, such as <web>, to translate in its manner."
_ENSEMBLE = "A further model that decides with the first; give it again for several."
_SHORTLIST = "File of `nmt shortlist`: consider only what it lists, which is faster. An empty name: consider all."
_SET = "Any other option of section decode: sampling=true, no_repeat_ngram=4, 'bias.Dr. Smith=1', ..."

BeamSize = Annotated[
    int | None, typer.Option("-b", "--beam-size", min=1, help="Hypotheses kept at each step; 1 is greedy.")
]
Penalty = Annotated[LengthPenalty | None, typer.Option(help="Divisor of the log-probability.")]
LengthAlpha = Annotated[float | None, typer.Option(min=0.0, help="Exponent of the length penalty.")]
NBest = Annotated[int | None, typer.Option(min=1, help="Translations per line; as text: number, score and text.")]
Distinct = Annotated[bool | None, typer.Option("--distinct/--no-distinct", help=_DISTINCT)]
Tag = Annotated[str | None, typer.Option(help=_TAG)]
Others = Annotated[list[Path] | None, typer.Option("--ensemble", help=_ENSEMBLE)]
ShortlistFile = Annotated[str | None, typer.Option("--shortlist", metavar="FILE", help=_SHORTLIST)]
Seed = Annotated[int | None, typer.Option(help="Seed of samples, the same as --set sampling_seed=N.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help=_SET)]

# --- Work -------------------------------------------------------------------------------------------------------------

_THREADS = "Threads on a CPU (default: one for each core). Not with --processes, whose processes have one thread each."
_WINDOW = "Most lines translated together, more being faster; 1 answers line by line. By default from the size of FILE."
_MAX_DELAY = "At a pipe: seconds to wait for more lines to translate together (0.1); inf waits for a whole window."
_PROCESSES = (
    "Batches translated at a time: threads of CTranslate2, by default one for each core; processes of torch, of one "
)
_PROCESSES += "thread each, by default one with all cores. 0 is one for each core."
_PRECISION = (
    "Computation; auto is int8 (rounded weights) with CTranslate2 on a CPU, else bf16 where native, else fp32. Some "
    "translations depend on it."
)
_ENGINE = (
    "What searches. ctranslate2 converts the model once. auto takes it on a CPU, and torch where CTranslate2 fails or "
    "lacks an option, such as --with-alignments, which also changes what --precision auto means. stderr names both."
)

BatchTokens = Annotated[int | None, typer.Option(min=1, help="Most source tokens decoded at a time.")]
Window = Annotated[int | None, typer.Option(min=1, help=_WINDOW)]
MaxDelay = Annotated[float | None, typer.Option(min=0.0, help=_MAX_DELAY)]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help=_THREADS)]
Processes = Annotated[int | None, typer.Option(min=0, help=_PROCESSES)]
Arithmetic = Annotated[Precision, typer.Option(help=_PRECISION)]
EngineOption = Annotated[Engine, typer.Option("--engine", help=_ENGINE)]


def translate(
    model: ModelArgument,
    file: File = Path("-"),
    input_format: FileFormat = None,
    column: Column = None,
    header: Header = False,
    field: Field = None,
    invalid_utf8: OnInvalidUtf8 = InvalidUtf8.error,
    prefixes: Prefixes = None,
    required: Required = None,
    out: Out = Path("-"),
    output_format: OutputFormat = None,
    with_scores: WithScores = False,
    with_alignments: WithAlignments = False,
    resume: Resume = False,
    restart: Restart = False,
    beam_size: BeamSize = None,
    length_penalty: Penalty = None,
    length_alpha: LengthAlpha = None,
    n_best: NBest = None,
    distinct: Distinct = None,
    tag: Tag = None,
    ensemble: Others = None,
    shortlist: ShortlistFile = None,
    seed: Seed = None,
    settings: Settings = None,
    batch_tokens: BatchTokens = None,
    window: Window = None,
    max_delay: MaxDelay = None,
    processes: Processes = None,
    threads: ThreadsOption = None,
    device: Device = "auto",
    precision: Arithmetic = Precision.auto,
    engine: EngineOption = Engine.auto,
) -> None:
    """Translate text: one line out for every line in, in the same order, whatever the line.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt translate MODEL FILE -o OUT
    """
    started = monotonic()
    if threads is not None and processes is not None:
        raise typer.BadParameter("--threads and --processes are mutually exclusive; give one of them")
    named: dict[str, object] = {"beam_size": beam_size, "n_best": n_best, "batch_tokens": batch_tokens, "tag": tag}
    named["sampling_seed"] = seed
    named |= {"length_penalty": length_penalty, "length_alpha": length_alpha, "alignments": with_alignments or None}
    named["shortlist"] = None if shortlist is None else json.dumps(shortlist, ensure_ascii=False)  # as TOML has strings
    decode = _with_changes(read_model_facts(find_model(model)).decode, named, settings or (), ensemble or ())
    in_format = Format(input_format) if input_format else Format.of_file(file) or Format.text
    out_format = output_format or Format.of_file(out) or in_format
    layout = _layout(file, in_format, out_format, column, header, field)
    source = Source.open(file, layout, invalid_utf8.value, prefixes, required)
    writer, searched = _writer(source, out_format, decode, with_scores, distinct)
    models = [model, *(ensemble or ())]
    output = _output(out, writer, (file, prefixes, required, decode.shortlist), models, resume=resume, restart=restart)
    load = partial(load_translator, models, device, searched, processes or threads or 0, writer.shows_scores)
    chosen = choose_engine(engine, precision, device, searched, models, load, required=required is not None)
    origin = _origin(models, decode, source, writer, chosen)
    search, delay, names = partial(load, chosen), _max_delay(source, max_delay), " + ".join(map(str, models))
    job = TranslationJob(source, output, origin, writer, search, window, delay, names, chosen.note, started)
    job.run(start_team(chosen.engine, device, _num_processes(processes), threads), resume=resume, restart=restart)


def _output(
    out: Path,
    writer: RecordWriter,
    files: Iterable[Path | None],
    models: Sequence[Path],
    *,
    resume: bool,
    restart: bool,
) -> Output:
    """Where to write; UserError where that is an input, CommandError where it is to be both resumed and restarted."""
    if resume and restart:
        raise CommandError("--resume and --restart are mutually exclusive; give one of them")
    output = Output(out, writer.is_numbered, bool(writer.header))
    output.require_other_than((*files, *map(find_model, models)))
    return output


def _max_delay(source: Source, given: float | None) -> float:
    """Seconds that a line of a pipe waits for others; BadParameter where a file leaves the option without effect."""
    if given is not None and source.pipe is None:
        raise typer.BadParameter(f"--max-delay has no effect on {source.name}, which is a file; leave it out")
    return 0.1 if given is None else given


def _num_processes(given: int | None) -> int:
    """Processes of torch: one by default, since several threads of it share one model; 0 is one for each core."""
    return 1 if given is None else given or num_cores()


def _layout(
    file: Path, in_format: Format, out_format: Format, column: str | None, header: bool, field: str | None
) -> Layout:
    """Where the text stands; BadParameter for an option that would have no effect."""
    is_read = f"{file} is read as {in_format.value}"
    for option, given in (("--column", column is not None), ("--header", header)):
        if given and in_format is not Format.tsv:
            raise typer.BadParameter(f"{option} is of TSV input; {is_read}; leave it out, or give --input-format tsv")
    has_field = in_format is Format.jsonl or (in_format is Format.text and out_format is Format.jsonl)
    if field is not None and not has_field:
        raise typer.BadParameter(
            f"--field is of JSON Lines; {is_read} and written as {out_format.value}; leave it out, or give "
            "--input-format jsonl"
        )
    position = column if column is None or not column.lstrip("-").isdecimal() else int(column)
    if isinstance(position, int) and position < 0:
        raise typer.BadParameter(f"--column is {column}; it must be a number from 0 or a name of the header")
    return Layout(in_format, position or 0, field or "text", header or isinstance(position, str))


def _writer(
    source: Source, out_format: Format, decode: DecodeRecipe, with_scores: bool, distinct: bool | None
) -> tuple[RecordWriter, DecodeRecipe]:
    """What writes the translations, and the options of their search; BadParameter where --distinct has no effect.

    Where equal texts are left out, more must be found than is shown. Samples, and objects that show the tokens, may
    hold a text twice by default.
    """
    shown = decode.n_best if decode.bayes_risk == "none" else 1
    if distinct is not None and shown == 1:
        option = "--distinct" if distinct else "--no-distinct"
        raise typer.BadParameter(f"{option} has no effect on one translation a line; add --n-best, or leave it out")
    if distinct is None:
        distinct = shown > 1 and out_format is not Format.jsonl and not decode.sampling
    writer = RecordWriter(source.layout, out_format, shown, with_scores, decode.alignments, distinct)
    all_of_beam = distinct and not decode.sampling
    return writer, decode.model_copy(update={"n_best": decode.beam_size}) if all_of_beam else decode


def _origin(
    models: Sequence[Path],
    decode: DecodeRecipe,
    source: Source,
    writer: RecordWriter,
    chosen: Chosen,
) -> Origin:
    """What decides what the output holds, besides its input.

    Left out is what changes translations by rounding alone: how many lines are translated together, by which processes
    and on which device.
    """
    digests = [manifest_digest(find_model(model)) for model in models]
    names = {digest: str(model) for digest, model in zip(digests, models, strict=True)}
    facts: dict[str, Any] = {"model": digests[0], "ensemble": digests[1:]}
    if decode.shortlist is not None and decode.shortlist.is_file():
        facts["shortlist"] = hashlib.sha256(decode.shortlist.read_bytes()).hexdigest()
        names[facts["shortlist"]] = str(decode.shortlist)
    options = decode.model_dump(mode="json", exclude={"batch_tokens", "shortlist"})
    facts |= {f"decode.{name}": value for name, value in options.items()}
    facts |= {"engine": chosen.engine.value, "precision": chosen.precision.value}
    layout = source.layout
    facts |= {"input format": layout.format.value, "column": layout.column, "field": layout.field}
    facts |= {"header": layout.header, "invalid-utf8": source.invalid_utf8}
    facts |= {"output format": writer.format.value, "with-scores": writer.with_scores, "distinct": writer.distinct}
    return Origin(facts, names, source.name)


def _with_changes(
    decode: DecodeRecipe, named: Mapping[str, object], settings: Sequence[str], ensemble: Sequence[Path]
) -> DecodeRecipe:
    """The model's own search options with those of the command line in their place.

    One translation a line, unless several are searched for or drawn to choose the best of them.
    """
    given = [
        *settings,
        *(f"{name}={'true' if value is True else value}" for name, value in named.items() if value is not None),
    ]
    chosen_names = dict(one.removeprefix("decode.").split("=", 1) for one in given if "=" in one)
    for name, value in named.items():
        if value is not None and any(one.removeprefix("decode.").partition("=")[0] == name for one in settings):
            raise typer.BadParameter(f"{name} is given by --set and by an option of its own; leave one of them out")
    risk = chosen_names.get("bayes_risk", decode.bayes_risk).strip("'\"")
    own = {"alignments": False} | ({"n_best": 1} if risk == "none" else {})
    chosen = override_decode(decode.model_copy(update=own), given)
    for name in chosen_names:
        if name.startswith("alignment_") and not chosen.alignments:
            raise typer.BadParameter(f"{name} has no effect without --with-alignments; add that, or leave it out")
        for option, has_effect, needed in (
            ("length_alpha", chosen.length_penalty != "none", "another length_penalty than 'none'"),
            ("diversity_strength", chosen.num_groups > 1, "num_groups"),
            ("sampling_seed", chosen.sampling, "sampling=true"),
            ("ensemble_mean", bool(ensemble), "--ensemble"),
        ):
            if name == option and not has_effect:
                raise typer.BadParameter(f"{name} has no effect without {needed}; add that, or leave it out")
    if chosen.bayes_risk != "none" and chosen.n_best == 1:
        raise UserError(
            f"decode.bayes_risk is {chosen.bayes_risk!r}, but n_best is 1, which leaves nothing to choose from; it "
            "must be at least 2; give e.g. --n-best 32 with --set sampling=true, or --n-best 5"
        )
    return chosen
