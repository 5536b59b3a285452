"""`nmt translate`: translate text, one output line per input line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from nmt.cli import translate_options as opt
from nmt.cli.arguments import Device, ModelArgument, languages, missing_option, require_at_most_one
from nmt.decode.text_translator import TextTranslator
from nmt.engines import (
    Engine,
    EngineChoice,
    choose_engine,
    load_translator,
    load_with_memory,
    model_settings,
    start_workers,
)
from nmt.export.capabilities import max_hypotheses
from nmt.keep.translator import PreservingTranslator, warn_of_unspaced_markup
from nmt.recipe import DecodeRecipe, UserError, ineffective_option, override_decode, require_choice
from nmt.recipe.toml import toml_value
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata, warn_of_run
from nmt.storage.run_folder import find_model
from nmt.streams.job import TranslationJob
from nmt.streams.output import Output, is_standard_output, require_distinct, require_not_input
from nmt.streams.part import Origin
from nmt.streams.records import DOCUMENT_FORMATS, Format, RecordReader, RecordWriter, choose_format, written_fields
from nmt.streams.source import Source
from nmt.streams.term_report import TermReport
from nmt.streams.workers import Load, LoadTranslator, WindowTranslator
from nmt.text.lines import STANDARD_STREAM

if TYPE_CHECKING:
    from nmt.decode.memory import MemoryTranslator


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
    named, (models, metadata) = _named(locals()), _find_models(given := [model, *(ensemble or ())])
    started, decode = monotonic(), _override_decode(metadata.decode, named, settings or (), models[1:])
    reader, out_format, keep = _make_reader(file, input_format, out, output_format, column, header, field, keep)
    source = Source.open(file, reader, invalid_utf8, prefixes, required, glossary, metadata.context)
    source, writer, options = _make_writer(source, out_format, decode, with_scores, distinct, keep, engine, metadata)
    output, report = _make_outputs(source, writer, out, glossary_report, memory, glossary, models, decode)
    load = partial(load_translator, models, device, options, processes or threads or 0, writer.shows_scores)
    choice = choose_engine(engine, precision, device, options, models, load, required=source.has_required(decode))
    origin, delay = _origin(models, decode, source, writer, choice, keep, glossary, report), _delay(source, max_delay)
    search = _make_search(memory, memory_limit, load, models, options, choice, writer, keep, source)
    job = TranslationJob(source, output, origin, report, search, window, delay, given, choice.note, started, memory)
    job.run(start_workers(choice.engine, device, processes, threads), resume=resume, restart=restart)


def _find_models(given: Sequence[Path]) -> tuple[list[Path], ModelMetadata]:
    """Find models once, because a run that is training saves newer checkpoints; also return the first metadata."""
    metadata = [*map(read_model_metadata, found := [*map(find_model, given)])]
    for one, own in zip(given, metadata, strict=True):
        warn_of_run(one, own)
    return found, metadata[0]


def _named(given: Mapping[str, Any]) -> dict[str, object]:
    """Return the command's own options by their names in the recipe, None if not given.

    given: the arguments of `translate`; raises BadParameter for mutually exclusive options and options without effect
    """
    for first, second in (("threads", "processes"), ("resume", "restart")):
        require_at_most_one({f"--{name}": given[name] not in (None, False) for name in (first, second)})
    has_terms = given["glossary"] or choose_format(given["file"], given["input_format"], "text") == "jsonl"
    by_set = {one.split("=")[0].strip().removeprefix("decode.") for one in given["settings"] or ()} & {"glossary_mode"}
    if (by_set or given["glossary_mode"]) and not has_terms:
        raise missing_option("--set glossary_mode" if by_set else "--glossary-mode", "--glossary")
    own = ("beam_size", "n_best", "batch_tokens", "tag", "length_penalty", "length_alpha", "shortlist", "fusion")
    named: dict[str, object] = {name: given[name] for name in (*own, "fusion_weight", "glossary_mode")}
    named |= {"sampling_seed": given["seed"], "alignments": given["with_alignments"] or None}
    return named | {"split_sentences": given["split_sentences"] or None}


def _load_keeping(
    load: Callable[[], TextTranslator | MemoryTranslator], keep: opt.Kinds, pair: tuple[str, str], entities: bool
) -> PreservingTranslator:
    """Load a translator that keeps items of these kinds. pair: languages; entities: whether & begins an entity"""
    return PreservingTranslator(load(), keep, pair, entities=entities)


def _make_outputs(
    source: Source,
    writer: RecordWriter,
    out: Path,
    report: Path | None,
    memory: Path | None,
    glossary: Path | None,
    models: Sequence[Path],
    decode: DecodeRecipe,
) -> tuple[Output, TermReport]:
    """Make the output and the report of glossary terms.

    Raises UserError for a file that would overwrite an input, and BadParameter if the report would be empty.
    """
    output = Output(out, writer.is_numbered, writer.header)
    directories = map(find_model, [*models, *([decode.fusion] if decode.fusion is not None else [])])
    inputs = (source.path, source.prefixes, source.required, glossary, decode.shortlist, *directories)
    for name, path in (files := output.written or {"-o": output.path}).items():
        require_not_input(name, path, (*inputs, memory))
    output.require_text()
    require_distinct(files | {"--memory": memory, "--glossary-report": report})
    if memory is not None:
        require_not_input("--memory", memory, inputs)
    if report is None:
        return output, TermReport(None, decode.glossary_mode, has_glossary=glossary is not None)
    if source.glossary is None and writer.reader.format != "jsonl":
        raise missing_option("--glossary-report", "--glossary")
    require_not_input("--glossary-report", report, (*inputs, memory))
    if report == STANDARD_STREAM or (output.path == STANDARD_STREAM and is_standard_output(report)):
        raise typer.BadParameter(f"--glossary-report {report} is standard output; it must be a file; name one")
    return output, TermReport(report, decode.glossary_mode, has_glossary=glossary is not None)


def _delay(source: Source, given: float | None) -> float:
    if given is not None and source.pipe is None:
        raise typer.BadParameter(f"--max-delay has no effect on {source.name}, which is a file; leave out --max-delay")
    return 0.1 if given is None else given


def _make_reader(
    file: Path,
    input_format: opt.InputFormat | None,
    out: Path,
    output_format: Format | None,
    column: str | None,
    header: bool,
    field: str | None,
    keep: opt.Kinds,
) -> tuple[RecordReader, Format, opt.Kinds]:
    """Make the reader of the input, and return it with the format of the output and the kinds to keep.

    File extensions determine the formats that are not given. Raises BadParameter for an option without effect.
    """
    in_format = choose_format(file, input_format, "text")
    out_format = choose_format(out, output_format, in_format)
    if in_format != out_format and (in_format in DOCUMENT_FORMATS or out_format in DOCUMENT_FORMATS):
        raise typer.BadParameter(
            f"{file} is read as {in_format} and {out} is written as {out_format}; a document keeps its "
            "format; change --input-format or --output-format"
        )
    if in_format in DOCUMENT_FORMATS:
        keep = opt.Kinds.parse(("markup", *keep))
    is_read = f"{file} is read as {in_format}"
    for option, is_given in (("--column", column is not None), ("--header", header)):
        if is_given and in_format != "tsv":
            remedy = f"leave out {option}, or use --input-format tsv if tabs separate its columns"
            raise typer.BadParameter(f"{option} is for TSV; {is_read}; {remedy}")
    has_field = in_format == "jsonl" or (in_format == "text" and out_format == "jsonl")
    if field is not None and not has_field:
        raise typer.BadParameter(
            f"--field is for JSON Lines; {is_read} and written as {out_format}; leave out --field, or use "
            "--input-format jsonl"
        )
    name_or_index = "0" if column is None else column
    index = int(name_or_index) if name_or_index.removeprefix("-").isdecimal() else name_or_index
    if isinstance(index, int) and index < 0:
        raise typer.BadParameter(f"--column is {column}; it must be a number from 0, or a name in the header")
    header = header or isinstance(index, str)
    reader = RecordReader(in_format, index, "text" if field is None else field, header, is_given=bool(input_format))
    return reader, out_format, keep


def _make_writer(
    source: Source,
    out_format: Format,
    decode: DecodeRecipe,
    with_scores: bool,
    distinct: bool | None,
    keep: opt.Kinds,
    engine: Engine,
    metadata: ModelMetadata,
) -> tuple[Source, RecordWriter, DecodeRecipe]:
    """Make the writer of the output and its search options; return them with the source, updated for the writer.

    Requests the whole beam to drop duplicates. Raises BadParameter for options that are ineffective or unsupported.
    """
    require_at_most_one({"--keep": bool(keep), "--with-alignments": decode.alignments})
    n_best = decode.n_best if decode.mbr_metric == "none" else 1
    if out_format in DOCUMENT_FORMATS and (with_scores or n_best > 1):
        option = "--with-scores" if with_scores else "--n-best"
        raise typer.BadParameter(f"{option} does not support {out_format}; a document has one translation")
    if distinct is not None and n_best == 1:
        option = "--distinct" if distinct else "--no-distinct"
        remedy = "add --n-best" if decode.mbr_metric == "none" else "set mbr_metric to 'none'"
        raise typer.BadParameter(f"{option} has no effect on one translation; {remedy}, or leave out {option}")
    if distinct is None:
        distinct = n_best > 1 and out_format != "jsonl" and not decode.sampling
    written = written_fields(n_best=n_best > 1, alignment=decode.alignments) if out_format == "jsonl" else ()
    reader = replace(source.reader, written=written)
    writer = RecordWriter(reader, out_format, n_best, with_scores, decode.alignments, distinct)
    if with_scores and (writer.is_numbered or out_format == "jsonl"):
        raise typer.BadParameter("--with-scores has no effect: this output has scores anyway; leave out --with-scores")
    if not writer.shows_scores:
        require_choice(decode, metadata.decode)
    needs_alignments = "markup" in keep and engine != "ctranslate2"
    changes: dict[str, Any] = {"n_best": max_hypotheses(decode)} if distinct and not decode.sampling else {}
    changes |= {"alignments": True} if needs_alignments else {}
    return replace(source, reader=reader), writer, decode.model_copy(update=changes)


def _origin(
    models: Sequence[Path],
    decode: DecodeRecipe,
    source: Source,
    writer: RecordWriter,
    choice: EngineChoice,
    keep: opt.Kinds,
    glossary: Path | None,
    report: TermReport,
) -> Origin:
    """Collect the settings that determine the output, besides its input."""
    settings, names = model_settings(models, decode, choice)
    settings |= decode.search_settings()
    if glossary is not None:
        settings["glossary"] = hashlib.sha256(glossary.read_bytes()).hexdigest()
        names[settings["glossary"]] = str(glossary)
    reader = source.reader
    settings |= {
        "input format": reader.format,
        "column": reader.column,
        "field": reader.field,
        "header": reader.header if reader.names is None else list(reader.names),
        "invalid-utf8": source.invalid_utf8,
        "output format": writer.format,
        "with-scores": writer.with_scores,
        "distinct": writer.distinct,
    }
    if keep:
        settings["keep"] = ",".join(keep)
    if report.path is not None:  # if added on resume, it would lack the first lines
        settings["glossary-report"] = str(report.path)
    return Origin(settings, names, source.description)


def _make_search(
    memory: Path | None,
    limit: int | None,
    load: Callable[[EngineChoice], TextTranslator],
    models: Sequence[Path],
    decode: DecodeRecipe,
    choice: EngineChoice,
    writer: RecordWriter,
    keep: opt.Kinds,
    source: Source,
) -> Load:
    """Return the function that loads the translator of windows, with a translation memory or kept items, if requested.

    Raises BadParameter for a limit without memory.
    """
    engine: Callable[[], TextTranslator | MemoryTranslator] = partial(load, choice)
    if memory is None and limit is not None:
        raise missing_option("--memory-limit", "--memory")
    if memory is not None:
        settings, _ = model_settings(models, decode, choice)
        settings |= decode.search_settings() | {"scores": writer.shows_scores}
        engine = partial(load_with_memory, memory, limit, settings, partial(load, choice))
    search: LoadTranslator = engine
    if keep:
        pair = languages(models[0])
        warn_of_unspaced_markup(keep, pair)
        search = partial(_load_keeping, engine, keep, pair, writer.format != "srt")
    return partial(WindowTranslator.load, search, writer, source.glossary)


def _override_decode(
    decode: DecodeRecipe, named: Mapping[str, object], settings: Sequence[str], ensemble: Sequence[Path]
) -> DecodeRecipe:
    """Override the search options of the model; raises BadParameter for an option given twice or without effect.

    named: values of the command's own options by recipe name, None if not given; settings: of --set

    The model's own `n_best` is used only for minimum Bayes risk decoding.
    """
    given = [*settings, *(f"{name}={toml_value(value)}" for name, value in named.items() if value is not None)]
    values = {name.strip(): value for name, _, value in (one.removeprefix("decode.").partition("=") for one in given)}
    for name, value in named.items():
        if value is not None and any(one.removeprefix("decode.").partition("=")[0].strip() == name for one in settings):
            raise typer.BadParameter(f"{name} is given both by --set and by its own option; leave out one of them")
    mbr_metric = values.get("mbr_metric", decode.mbr_metric).strip(" '\"") or "none"
    defaults = {"alignments": False} | ({"n_best": 1} if mbr_metric == "none" else {})
    resolved = override_decode(decode.model_copy(update=defaults), given)
    if resolved.mbr_metric != "none" and resolved.n_best == 1:
        raise UserError(
            f"decode.mbr_metric is {resolved.mbr_metric!r} and n_best is 1; n_best must be at least 2; give e.g. "
            "--n-best 32 with --set sampling=true, or --n-best 4"
        )
    if found := ineffective_option(values, resolved, has_ensemble=bool(ensemble), needs_alignments=resolved.alignments):
        raise typer.BadParameter(f"{found[1]}; add that, or leave out {found[0]}")
    return resolved
