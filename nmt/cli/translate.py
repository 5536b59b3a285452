"""`nmt translate`: translate text, one output line per input line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import typer

from nmt.cli.arguments import missing_option, require_at_most_one
from nmt.cli.translate_options import TranslateOptions
from nmt.engines import (
    TranslatorRequest,
    choose_engine,
    load_window_translator,
    model_settings,
    resolve_fusion,
    start_workers,
)
from nmt.errors import UserError
from nmt.export.capabilities import max_hypotheses
from nmt.keep.translator import unspaced_markup
from nmt.logs import warn
from nmt.recipe import (
    Context,
    DecodeRecipe,
    ineffective_option,
    override_own_decode,
    overrides_by_name,
    require_length_penalty_effect,
)
from nmt.recipe.toml import toml_value
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata, warn_of_missing_tag, warn_of_run
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import file_sha256
from nmt.streams.job import TranslationJob
from nmt.streams.output import Output
from nmt.streams.output_checks import is_standard_output, require_distinct, require_not_input
from nmt.streams.part import Origin
from nmt.streams.records import DOCUMENT_FORMATS, Format, RecordReader, RecordWriter, choose_format
from nmt.streams.source import Source
from nmt.streams.term_report import TermReport
from nmt.text.lines import STANDARD_STREAM


@dataclass(frozen=True)
class Translate(TranslateOptions):
    """Translate text: one output line per input line, in the same order.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt translate MODEL FILE -o OUT
    """

    def run(self) -> None:
        """Check the options, open input and output, choose the engine, and run the job."""
        started = monotonic()
        search = _search_values(self)
        _require_effect(self, search)
        out_format = _choose_output_format(self)

        paths = [self.model, *(self.ensemble or ())]
        models, metadata = _find_models(paths)
        _require_translation(self, metadata)
        decode = resolve_fusion(_override_decode(metadata.decode, self, search))
        if self.in_format != "jsonl":  # whose lines may have their own tags
            warn_of_missing_tag(self.model, metadata, decode.tag)
        reader = _make_reader(self, out_format, metadata.context)
        source = Source.open(self.file, reader, self.invalid_utf8, self.prefixes, self.required, self.glossary)
        if self.max_delay is not None and source.pipe is None:
            raise typer.BadParameter(
                f"--max-delay has no effect on {source.name}, which is a file; leave out --max-delay"
            )
        writer = _make_writer(source.reader, out_format, self, decode)
        source = replace(source, reader=replace(source.reader, written=writer.written))
        if not writer.shows_scores:
            require_length_penalty_effect(decode, metadata.decode)
        read = _files_read(self, models, decode)
        output = _make_output(self, writer, read)
        report = _make_report(self, output, decode.glossary_mode, [*read, self.memory])

        needed = _with_requirements(decode, writer, self)
        num_batches = self.processes or self.threads or 0
        request = TranslatorRequest(
            models, needed, self.device, num_batches, writer.shows_scores, self.memory, self.memory_limit
        )
        required = source.has_required(decode)
        source.require_supported(decode, metadata, required=required)
        choice = choose_engine(self.engine, self.precision, request, required=required)
        if problem := unspaced_markup(self.kinds, (metadata.src_lang, metadata.tgt_lang)):
            warn(f"{problem}; --keep markup places tags only at spaces")
        settings, names = model_settings(models, decode, choice)
        settings |= decode.search_settings() | _text_settings(self, writer)
        if self.glossary is not None:
            names[settings["glossary"]] = str(self.glossary)

        origin = Origin(settings, names, source.description)
        load = partial(load_window_translator, request, choice, self.kinds, writer, source.glossary)
        delay = 0.1 if self.max_delay is None else self.max_delay  # seconds
        job = TranslationJob(
            source, output, origin, report, load, self.window, delay, paths, metadata, choice.note, started, self.memory
        )
        workers = start_workers(choice.engine, self.device, self.processes, self.threads)
        job.run(workers, resume=self.resume, restart=self.restart)


# Options whose names differ from those in the decode section.
_OPTIONS = {"sampling_seed": "--seed", "alignments": "--with-alignments"}


def _search_values(options: TranslateOptions) -> dict[str, object]:
    """Return the given search options, without those of --set, by their names in the decode section."""
    values = {name: value for name, value in vars(options).items() if name in DecodeRecipe.model_fields}
    values |= {"sampling_seed": options.seed, "alignments": options.with_alignments}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _require_effect(options: TranslateOptions, search: Mapping[str, object]) -> None:
    """Raise BadParameter for mutually exclusive options, and for options without effect."""
    require_at_most_one({"--threads": options.threads is not None, "--processes": options.processes is not None})
    require_at_most_one({"--resume": options.resume, "--restart": options.restart})
    if options.memory is None and options.memory_limit is not None:
        raise missing_option("--memory-limit", "--memory")
    if not options.may_have_terms and "glossary_mode" in overrides_by_name(options.settings or ()):
        raise missing_option("--set glossary_mode", "--glossary")
    if not options.may_have_terms and "glossary_mode" in search:
        raise missing_option("--glossary-mode", "--glossary")


def _find_models(paths: Sequence[Path]) -> tuple[list[Path], ModelMetadata]:
    """Find models once, because a run that is training saves newer checkpoints; also return the first metadata."""
    models = [find_model(path) for path in paths]
    metadata = [read_model_metadata(model) for model in models]
    for path, model_metadata in zip(paths, metadata, strict=True):
        warn_of_run(path, model_metadata)
    return models, metadata[0]


def _require_translation(options: TranslateOptions, metadata: ModelMetadata) -> None:
    """Raise UserError if a language model, which continues lines, should keep items or the layout of a document."""
    if not (options.kinds and metadata.is_language_model):
        return
    given, remedy = "--keep", "leave out --keep"
    if options.in_format in DOCUMENT_FORMATS:
        given, remedy = f"{options.in_format} input", "use --input-format text"
    raise UserError(f"{given} is for translation; {options.model} is a language model; {remedy}")


def _override_decode(decode: DecodeRecipe, options: TranslateOptions, search: Mapping[str, object]) -> DecodeRecipe:
    """Override the search options of the model; see `override_own_decode`.

    Raises BadParameter for an option given twice or without effect.
    """
    settings = options.settings or ()
    set_by_name = overrides_by_name(settings)
    for name in search:
        if name in set_by_name:
            raise typer.BadParameter(f"{name} is given both by --set and by its own option; leave out one of them")
    overrides = [*settings, *(f"{name}={toml_value(value)}" for name, value in search.items())]
    resolved = override_own_decode(decode, overrides)
    if resolved.mbr_metric != "none" and resolved.n_best == 1:
        raise UserError(
            f"decode.mbr_metric is {resolved.mbr_metric!r} and n_best is 1; n_best must be at least 2; give e.g. "
            "--n-best 32 with --set sampling=true, or --n-best 4"
        )
    ineffective = ineffective_option(
        overrides_by_name(overrides),
        resolved,
        has_ensemble=bool(options.ensemble),
        needs_alignments=resolved.alignments or _aligns_markup(options),
    )
    if ineffective is not None:
        option, problem = ineffective
        typed = option
        if option in search:
            typed = _OPTIONS.get(option, f"--{option.replace('_', '-')}")
        raise typer.BadParameter(f"{problem.replace(option, typed, 1)}; add that, or leave out {typed}")
    return resolved


def _choose_output_format(options: TranslateOptions) -> Format:
    """Return the format of the output; raises BadParameter if a document would be converted."""
    in_format = options.in_format
    out_format = choose_format(options.out, options.output_format, in_format, options.file)
    if in_format != out_format and (in_format in DOCUMENT_FORMATS or out_format in DOCUMENT_FORMATS):
        raise typer.BadParameter(
            f"{options.file} is read as {in_format} and {options.out} is written as {out_format}; a document keeps its "
            "format; change --input-format or --output-format"
        )
    return out_format


def _make_reader(options: TranslateOptions, out_format: Format, context: Context) -> RecordReader:
    """Make the reader of the input; raises BadParameter for an option without effect."""
    in_format = options.in_format
    is_read = f"{options.file} is read as {in_format}"
    for option, is_given in (("--column", options.column is not None), ("--header", options.header)):
        if is_given and in_format != "tsv":
            remedy = f"leave out {option}, or use --input-format tsv if tabs separate its columns"
            raise typer.BadParameter(f"{option} is for TSV; {is_read}; {remedy}")
    has_field = in_format == "jsonl" or (in_format == "text" and out_format == "jsonl")
    if options.field is not None and not has_field:
        raise typer.BadParameter(
            f"--field is for JSON Lines; {is_read} and written as {out_format}; leave out --field, or use "
            "--input-format jsonl"
        )
    name_or_index = "0" if options.column is None else options.column
    is_index = name_or_index.removeprefix("-").isdecimal()
    column = int(name_or_index) if is_index else name_or_index
    if isinstance(column, int) and column < 0:
        raise typer.BadParameter(f"--column is {name_or_index}; it must be a number from 0, or a name in the header")
    field = "text" if options.field is None else options.field
    header = options.header or not is_index
    is_given = options.input_format is not None
    return RecordReader(in_format, column, field, header, context=context, is_given=is_given)


def _make_writer(
    reader: RecordReader, out_format: Format, options: TranslateOptions, decode: DecodeRecipe
) -> RecordWriter:
    """Make the writer of the output; raises BadParameter for options that are ineffective or unsupported."""
    n_best = decode.n_best if decode.mbr_metric == "none" else 1
    if out_format in DOCUMENT_FORMATS:
        given = {"--with-scores": options.with_scores, "--n-best": n_best > 1, "--with-alignments": decode.alignments}
        if unsupported := [option for option, is_given in given.items() if is_given]:
            raise typer.BadParameter(f"{unsupported[0]} does not support {out_format}, which holds only translations")
    require_at_most_one({"--keep": bool(options.kinds), "--with-alignments": decode.alignments})
    distinct = options.distinct
    if distinct is None:
        distinct = n_best > 1 and out_format != "jsonl" and not decode.sampling
    elif n_best == 1:
        option = "--distinct" if distinct else "--no-distinct"
        remedy = "add --n-best" if decode.mbr_metric == "none" else "set mbr_metric to 'none'"
        raise typer.BadParameter(f"{option} has no effect on one translation; {remedy}, or leave out {option}")
    writer = RecordWriter(reader, out_format, n_best, options.with_scores, decode.alignments, distinct)
    if options.with_scores and (writer.is_numbered or out_format == "jsonl"):
        raise typer.BadParameter("--with-scores has no effect: this output has scores anyway; leave out --with-scores")
    return writer


def _files_read(options: TranslateOptions, models: Sequence[Path], decode: DecodeRecipe) -> list[Path | None]:
    """Return the files and directories that must not be overwritten, because the command reads them."""
    directories = list(models)
    if decode.fusion is not None:
        directories.append(decode.fusion)
    return [options.file, options.prefixes, options.required, options.glossary, decode.shortlist, *directories]


def _make_output(options: TranslateOptions, writer: RecordWriter, read: Sequence[Path | None]) -> Output:
    """Make the output; raises UserError if it or the translation memory would overwrite one of the files `read`."""
    output = Output(options.out, writer.is_numbered, writer.header)
    for name, path in output.written.items():
        require_not_input(name, path, [*read, options.memory])
    output.require_text()
    require_distinct(output.written | {"--memory": options.memory, "--glossary-report": options.glossary_report})
    if options.memory is not None:
        require_not_input("--memory", options.memory, read)
    return output


def _make_report(
    options: TranslateOptions, output: Output, glossary_mode: str, read: Sequence[Path | None]
) -> TermReport:
    """Make the report of glossary terms.

    Raises BadParameter if the file would be empty or is standard output, and UserError if it is one of those `read`.
    """
    path = options.glossary_report
    if path is not None:
        if not options.may_have_terms:
            raise missing_option("--glossary-report", "--glossary")
        require_not_input("--glossary-report", path, read)
        if path == STANDARD_STREAM or (output.path == STANDARD_STREAM and is_standard_output(path)):
            raise typer.BadParameter(f"--glossary-report {path} is standard output; it must be a file; name one")
    return TermReport(path, glossary_mode, has_glossary=options.glossary is not None)


def _text_settings(options: TranslateOptions, writer: RecordWriter) -> dict[str, Any]:
    """Return the settings, besides those of the search, that determine the output."""
    settings: dict[str, Any] = {}
    if options.glossary is not None:
        settings["glossary"] = file_sha256(options.glossary)
    reader = writer.reader
    settings |= {
        "input format": reader.format,
        "column": reader.column,
        "field": reader.field,
        "header": reader.header if reader.names is None else list(reader.names),
        "invalid-utf8": options.invalid_utf8,
        "output format": writer.format,
        "with-scores": writer.with_scores,
        "distinct": writer.distinct,
    }
    if options.kinds:
        settings["keep"] = ",".join(options.kinds)
    if options.glossary_report is not None:  # a report that is added on resume would lack the first lines
        settings["glossary-report"] = str(options.glossary_report)
    return settings


def _with_requirements(decode: DecodeRecipe, writer: RecordWriter, options: TranslateOptions) -> DecodeRecipe:
    """Add what the output needs: the whole beam to drop duplicates, and word alignments to place markup."""
    changes: dict[str, Any] = {}
    if writer.distinct and not decode.sampling and decode.beam_groups == 1:  # the whole beam would not be diverse
        changes["n_best"] = max_hypotheses(decode)
    if _aligns_markup(options):
        changes["alignments"] = True
    return decode.model_copy(update=changes)


def _aligns_markup(options: TranslateOptions) -> bool:
    """Return whether word alignments place the markup; CTranslate2 has none."""
    return "markup" in options.kinds and options.engine != "ctranslate2"
