"""`nmt translate`: translate text, one output line per input line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import typer

from nmt.cli import translate_options as opt
from nmt.cli.arguments import Device, ModelArgument, missing_option, require_at_most_one
from nmt.engines import Engine, TranslatorRequest, choose_engine, load_window_translator, model_settings, start_workers
from nmt.errors import UserError
from nmt.export.capabilities import max_hypotheses
from nmt.keep.translator import warn_of_unspaced_markup
from nmt.recipe import (
    DecodeRecipe,
    SearchPrecision,
    ineffective_option,
    override_own_decode,
    overrides_by_name,
    require_length_penalty_effect,
)
from nmt.recipe.toml import toml_value
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata, warn_of_missing_tag, warn_of_run
from nmt.storage.run_folder import find_model
from nmt.streams.job import TranslationJob
from nmt.streams.output import Output
from nmt.streams.output_checks import is_standard_output, require_distinct, require_not_input
from nmt.streams.part import Origin
from nmt.streams.records import DOCUMENT_FORMATS, Format, RecordReader, RecordWriter, choose_format, written_fields
from nmt.streams.source import Source
from nmt.streams.term_report import TermReport
from nmt.text.lines import STANDARD_STREAM, InvalidUtf8


@dataclass(frozen=True)
class InputOptions:
    """The options of the input; None if not given."""

    file: Path
    given_format: opt.InputFormat | None
    column: str | None
    header: bool
    field: str | None
    invalid_utf8: InvalidUtf8
    prefixes: Path | None
    required: Path | None
    glossary: Path | None

    @property
    def format(self) -> Format:
        """The given format, or else that of the extension, or else text."""
        return choose_format(self.file, self.given_format, "text")

    @property
    def may_have_terms(self) -> bool:
        """Whether there is a glossary, or the format has glossary terms of each line."""
        return self.glossary is not None or self.format == "jsonl"


@dataclass(frozen=True)
class OutputOptions:
    """The options of the output; None if not given."""

    file: Path
    given_format: Format | None
    with_scores: bool
    distinct: bool | None
    keep: opt.Kinds
    glossary_report: Path | None
    resume: bool
    restart: bool


@dataclass(frozen=True)
class SearchArguments:
    """The models and the options of the search.

    models:   paths of the model and of the other models of its ensemble, as given by the user
    values:   values by name in the decode section, without those of --set
    settings: arguments of --set
    """

    models: Sequence[Path]
    values: Mapping[str, object]
    settings: Sequence[str]


@dataclass(frozen=True)
class SpeedOptions:
    """The options that determine how fast and where the search runs; None if not given."""

    window: int | None
    max_delay: float | None
    processes: int | None
    memory: Path | None
    memory_limit: int | None
    threads: int | None
    device: str
    precision: SearchPrecision
    engine: Engine


def translate(
    model: ModelArgument,
    file: opt.File = Path("-"),
    input_format: opt.FileFormat = None,
    column: opt.Column = None,
    header: opt.Header = False,
    field: opt.Field = None,
    invalid_utf8: opt.OnInvalidUtf8 = "error",
    prefixes: opt.Prefixes = None,
    required: opt.Required = None,
    glossary: opt.GlossaryFile = None,
    glossary_mode: opt.GlossaryModeOption = None,
    glossary_report: opt.GlossaryReport = None,
    out: opt.Out = Path("-"),
    output_format: opt.OutputFormat = None,
    with_scores: opt.WithScores = False,
    with_alignments: opt.WithAlignments = False,
    keep: opt.Keep = opt.Kinds(),  # noqa: B008 - an empty tuple
    resume: opt.Resume = False,
    restart: opt.Restart = False,
    beam_size: opt.BeamSize = None,
    length_penalty: opt.Penalty = None,
    length_alpha: opt.LengthAlpha = None,
    n_best: opt.NBest = None,
    distinct: opt.Distinct = None,
    tag: opt.Tag = None,
    split_sentences: opt.SplitSentences = False,
    ensemble: opt.Others = None,
    shortlist: opt.ShortlistFile = None,
    fusion: opt.FusionModel = None,
    fusion_weight: opt.FusionWeight = None,
    seed: opt.Seed = None,
    settings: opt.Settings = None,
    batch_tokens: opt.BatchTokens = None,
    window: opt.Window = None,
    max_delay: opt.MaxDelay = None,
    processes: opt.Processes = None,
    memory: opt.MemoryFile = None,
    memory_limit: opt.MemoryLimit = None,
    threads: opt.ThreadsOption = None,
    device: Device = "auto",
    precision: opt.PrecisionOption = "auto",
    engine: opt.EngineOption = "auto",
) -> None:
    """Translate text: one output line per input line, in the same order.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt translate MODEL FILE -o OUT
    """
    search = SearchArguments([model, *(ensemble or ())], _search_values(locals()), settings or ())
    inputs = InputOptions(file, input_format, column, header, field, invalid_utf8, prefixes, required, glossary)
    outputs = OutputOptions(out, output_format, with_scores, distinct, keep, glossary_report, resume, restart)
    speed = SpeedOptions(window, max_delay, processes, memory, memory_limit, threads, device, precision, engine)
    _translate(inputs, outputs, search, speed)


# Options whose names differ from those in the decode section.
_OPTIONS = {"sampling_seed": "--seed", "alignments": "--with-alignments"}


def _search_values(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the given search options among the arguments of `translate`, by their names in the decode section."""
    values = {name: value for name, value in arguments.items() if name in DecodeRecipe.model_fields}
    values |= {"sampling_seed": arguments["seed"], "alignments": arguments["with_alignments"]}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _translate(inputs: InputOptions, outputs: OutputOptions, search: SearchArguments, speed: SpeedOptions) -> None:
    """Check the options, open input and output, choose the engine, and run the job."""
    started = monotonic()
    _require_effect(inputs, outputs, search, speed)
    out_format = _choose_output_format(inputs, outputs)
    if inputs.format in DOCUMENT_FORMATS:
        outputs = replace(outputs, keep=opt.Kinds.parse(("markup", *outputs.keep)))

    models, metadata = _find_models(search.models)
    decode = _override_decode(metadata.decode, search)
    if inputs.format != "jsonl":  # whose lines may have their own tags
        warn_of_missing_tag(search.models[0], metadata, decode.tag)
    reader = _make_reader(inputs, out_format)
    source = Source.open(
        inputs.file, reader, inputs.invalid_utf8, inputs.prefixes, inputs.required, inputs.glossary, metadata.context
    )
    if speed.max_delay is not None and source.pipe is None:
        raise typer.BadParameter(f"--max-delay has no effect on {source.name}, which is a file; leave out --max-delay")
    writer = _make_writer(source.reader, out_format, outputs, decode)
    source = replace(source, reader=writer.reader)
    if not writer.shows_scores:
        require_length_penalty_effect(decode, metadata.decode)
    read = _files_read(inputs, models, decode)
    output = _make_output(outputs, writer, speed.memory, read)
    report = _make_report(inputs, outputs.glossary_report, output, decode.glossary_mode, [*read, speed.memory])

    options = _with_requirements(decode, writer, outputs.keep, speed.engine)
    num_batches = speed.processes or speed.threads or 0
    request = TranslatorRequest(
        models, options, speed.device, num_batches, writer.shows_scores, speed.memory, speed.memory_limit
    )
    choice = choose_engine(speed.engine, speed.precision, request, required=source.has_required(decode))
    if outputs.keep:
        warn_of_unspaced_markup(outputs.keep, (metadata.src_lang, metadata.tgt_lang))
    settings, names = model_settings(models, decode, choice)
    settings |= decode.search_settings() | _text_settings(inputs, outputs, writer)
    if inputs.glossary is not None:
        names[settings["glossary"]] = str(inputs.glossary)

    origin = Origin(settings, names, source.description)
    load = partial(load_window_translator, request, choice, outputs.keep, writer, source.glossary)
    max_delay = 0.1 if speed.max_delay is None else speed.max_delay  # seconds
    job = TranslationJob(
        source, output, origin, report, load, speed.window, max_delay, search.models, choice.note, started, speed.memory
    )
    workers = start_workers(choice.engine, speed.device, speed.processes, speed.threads)
    job.run(workers, resume=outputs.resume, restart=outputs.restart)


def _require_effect(inputs: InputOptions, outputs: OutputOptions, search: SearchArguments, speed: SpeedOptions) -> None:
    """Raise BadParameter for mutually exclusive options, and for options without effect."""
    require_at_most_one({"--threads": speed.threads is not None, "--processes": speed.processes is not None})
    require_at_most_one({"--resume": outputs.resume, "--restart": outputs.restart})
    if speed.memory is None and speed.memory_limit is not None:
        raise missing_option("--memory-limit", "--memory")
    if not inputs.may_have_terms and "glossary_mode" in overrides_by_name(search.settings):
        raise missing_option("--set glossary_mode", "--glossary")
    if not inputs.may_have_terms and "glossary_mode" in search.values:
        raise missing_option("--glossary-mode", "--glossary")


def _find_models(paths: Sequence[Path]) -> tuple[list[Path], ModelMetadata]:
    """Find models once, because a run that is training saves newer checkpoints; also return the first metadata."""
    models = [find_model(path) for path in paths]
    metadata = [read_model_metadata(model) for model in models]
    for path, model_metadata in zip(paths, metadata, strict=True):
        warn_of_run(path, model_metadata)
    return models, metadata[0]


def _override_decode(decode: DecodeRecipe, search: SearchArguments) -> DecodeRecipe:
    """Override the search options of the model; see `override_own_decode`.

    Raises BadParameter for an option given twice or without effect.
    """
    set_by_name = overrides_by_name(search.settings)
    for name in search.values:
        if name in set_by_name:
            raise typer.BadParameter(f"{name} is given both by --set and by its own option; leave out one of them")
    overrides = [*search.settings, *(f"{name}={toml_value(value)}" for name, value in search.values.items())]
    resolved = override_own_decode(decode, overrides)
    if resolved.mbr_metric != "none" and resolved.n_best == 1:
        raise UserError(
            f"decode.mbr_metric is {resolved.mbr_metric!r} and n_best is 1; n_best must be at least 2; give e.g. "
            "--n-best 32 with --set sampling=true, or --n-best 4"
        )
    has_ensemble = len(search.models) > 1
    names = overrides_by_name(overrides)
    ineffective = ineffective_option(names, resolved, has_ensemble=has_ensemble, needs_alignments=resolved.alignments)
    if ineffective is not None:
        option, problem = ineffective
        typed = option
        if option in search.values:
            typed = _OPTIONS.get(option, f"--{option.replace('_', '-')}")
        raise typer.BadParameter(f"{problem.replace(option, typed, 1)}; add that, or leave out {typed}")
    return resolved


def _choose_output_format(inputs: InputOptions, outputs: OutputOptions) -> Format:
    """Return the format of the output; raises BadParameter if a document would be converted."""
    in_format = inputs.format
    out_format = choose_format(outputs.file, outputs.given_format, in_format, inputs.file)
    if in_format != out_format and (in_format in DOCUMENT_FORMATS or out_format in DOCUMENT_FORMATS):
        raise typer.BadParameter(
            f"{inputs.file} is read as {in_format} and {outputs.file} is written as {out_format}; a document keeps its "
            "format; change --input-format or --output-format"
        )
    return out_format


def _make_reader(inputs: InputOptions, out_format: Format) -> RecordReader:
    """Make the reader of the input; raises BadParameter for an option without effect."""
    in_format = inputs.format
    is_read = f"{inputs.file} is read as {in_format}"
    for option, is_given in (("--column", inputs.column is not None), ("--header", inputs.header)):
        if is_given and in_format != "tsv":
            remedy = f"leave out {option}, or use --input-format tsv if tabs separate its columns"
            raise typer.BadParameter(f"{option} is for TSV; {is_read}; {remedy}")
    has_field = in_format == "jsonl" or (in_format == "text" and out_format == "jsonl")
    if inputs.field is not None and not has_field:
        raise typer.BadParameter(
            f"--field is for JSON Lines; {is_read} and written as {out_format}; leave out --field, or use "
            "--input-format jsonl"
        )
    name_or_index = "0" if inputs.column is None else inputs.column
    is_index = name_or_index.removeprefix("-").isdecimal()
    column = int(name_or_index) if is_index else name_or_index
    if isinstance(column, int) and column < 0:
        raise typer.BadParameter(f"--column is {name_or_index}; it must be a number from 0, or a name in the header")
    field = "text" if inputs.field is None else inputs.field
    header = inputs.header or not is_index
    return RecordReader(in_format, column, field, header, is_given=inputs.given_format is not None)


def _make_writer(
    reader: RecordReader, out_format: Format, outputs: OutputOptions, decode: DecodeRecipe
) -> RecordWriter:
    """Make the writer of the output, with a reader that knows the fields of the output.

    Raises BadParameter for options that are ineffective or unsupported.
    """
    n_best = decode.n_best if decode.mbr_metric == "none" else 1
    if out_format in DOCUMENT_FORMATS:
        options = {"--with-scores": outputs.with_scores, "--n-best": n_best > 1, "--with-alignments": decode.alignments}
        if unsupported := [option for option, is_given in options.items() if is_given]:
            raise typer.BadParameter(f"{unsupported[0]} does not support {out_format}, which holds only translations")
    require_at_most_one({"--keep": bool(outputs.keep), "--with-alignments": decode.alignments})
    distinct = outputs.distinct
    if distinct is None:
        distinct = n_best > 1 and out_format != "jsonl" and not decode.sampling
    elif n_best == 1:
        option = "--distinct" if distinct else "--no-distinct"
        remedy = "add --n-best" if decode.mbr_metric == "none" else "set mbr_metric to 'none'"
        raise typer.BadParameter(f"{option} has no effect on one translation; {remedy}, or leave out {option}")
    if out_format == "jsonl":
        reader = replace(reader, written=written_fields(n_best=n_best > 1, alignment=decode.alignments))
    writer = RecordWriter(reader, out_format, n_best, outputs.with_scores, decode.alignments, distinct)
    if outputs.with_scores and (writer.is_numbered or out_format == "jsonl"):
        raise typer.BadParameter("--with-scores has no effect: this output has scores anyway; leave out --with-scores")
    return writer


def _files_read(inputs: InputOptions, models: Sequence[Path], decode: DecodeRecipe) -> list[Path | None]:
    """Return the files and directories that must not be overwritten, because the command reads them."""
    directories = list(models)
    if decode.fusion is not None:
        directories.append(find_model(decode.fusion))
    return [inputs.file, inputs.prefixes, inputs.required, inputs.glossary, decode.shortlist, *directories]


def _make_output(
    outputs: OutputOptions, writer: RecordWriter, memory: Path | None, read: Sequence[Path | None]
) -> Output:
    """Make the output; raises UserError if it or the translation memory would overwrite one of the files `read`."""
    output = Output(outputs.file, writer.is_numbered, writer.header)
    for name, path in output.written.items():
        require_not_input(name, path, [*read, memory])
    output.require_text()
    require_distinct(output.written | {"--memory": memory, "--glossary-report": outputs.glossary_report})
    if memory is not None:
        require_not_input("--memory", memory, read)
    return output


def _make_report(
    inputs: InputOptions, path: Path | None, output: Output, glossary_mode: str, read: Sequence[Path | None]
) -> TermReport:
    """Make the report of glossary terms; `path` is None without a file.

    Raises BadParameter if the file would be empty or is standard output, and UserError if it is one of those `read`.
    """
    if path is not None:
        if not inputs.may_have_terms:
            raise missing_option("--glossary-report", "--glossary")
        require_not_input("--glossary-report", path, read)
        if path == STANDARD_STREAM or (output.path == STANDARD_STREAM and is_standard_output(path)):
            raise typer.BadParameter(f"--glossary-report {path} is standard output; it must be a file; name one")
    return TermReport(path, glossary_mode, has_glossary=inputs.glossary is not None)


def _text_settings(inputs: InputOptions, outputs: OutputOptions, writer: RecordWriter) -> dict[str, Any]:
    """Return the settings, besides those of the search, that determine the output."""
    settings: dict[str, Any] = {}
    if inputs.glossary is not None:
        settings["glossary"] = hashlib.sha256(inputs.glossary.read_bytes()).hexdigest()
    reader = writer.reader
    settings |= {
        "input format": reader.format,
        "column": reader.column,
        "field": reader.field,
        "header": reader.header if reader.names is None else list(reader.names),
        "invalid-utf8": inputs.invalid_utf8,
        "output format": writer.format,
        "with-scores": writer.with_scores,
        "distinct": writer.distinct,
    }
    if outputs.keep:
        settings["keep"] = ",".join(outputs.keep)
    if outputs.glossary_report is not None:  # a report that is added on resume would lack the first lines
        settings["glossary-report"] = str(outputs.glossary_report)
    return settings


def _with_requirements(decode: DecodeRecipe, writer: RecordWriter, keep: opt.Kinds, engine: Engine) -> DecodeRecipe:
    """Add what the output needs: the whole beam to drop duplicates, and word alignments to place markup."""
    changes: dict[str, Any] = {}
    if writer.distinct and not decode.sampling and decode.beam_groups == 1:  # the whole beam would not be diverse
        changes["n_best"] = max_hypotheses(decode)
    if "markup" in keep and engine != "ctranslate2":
        changes["alignments"] = True
    return decode.model_copy(update=changes)
