"""The options of `nmt translate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from nmt.cli.arguments import MAX_THREADS, Device, ModelArgument, file_path, named_file
from nmt.engines import Engine
from nmt.keep.items import Kind
from nmt.recipe import GlossaryMode, SearchPrecision
from nmt.recipe.decoding import LengthPenalty
from nmt.streams.records import DOCUMENT_FORMATS, Format, choose_format
from nmt.text.lines import InvalidUtf8

InputFormat = Literal["text", "tsv", "jsonl", "html", "srt"]


class Kinds(tuple[Kind, ...]):
    """Value of --keep."""

    @classmethod
    def parse(cls, given: str) -> Kinds:
        """Parse a comma-separated list; raises BadParameter for an empty list or an unknown kind."""
        names = [name.strip() for name in given.split(",") if name.strip()]
        if not names:
            raise typer.BadParameter(f"the list is empty; give at least one of {', '.join(get_args(Kind))}")
        for name in names:
            if name not in get_args(Kind):
                raise typer.BadParameter(f"{name!r} is unknown; it must be one of {', '.join(get_args(Kind))}")
        return cls(kind for kind in get_args(Kind) if kind in names)


# --- Input and output -------------------------------------------------------------------------------------------------

_INPUT = "Text to translate, plain or compressed (.gz, .bz2, .xz, .zst); - is standard input."
_INPUT_FORMAT = (
    "Format of FILE (default: by its extension, else one sentence per line). html: a web page; srt: subtitles. Their "
    "layout and tags are kept, see --keep."
)
_COLUMN = "TSV: column of the text, from 0, or its name in the header (default: 0)."
_HEADER = "TSV: the first line names the columns. Implied by --column NAME."
_FIELD = "JSON Lines: field of the text; a dot addresses a nested field, as in page.text (default: text)."
_INVALID_UTF8 = "For bytes that are not UTF-8: stop with an error, or insert U+FFFD."
_PREFIXES = "File of target prefixes, one per input line; each translation starts with its prefix."
_REQUIRED = (
    "File of phrases that translations must contain; one line per input line, phrases separated by tabs, and "
    "alternatives by |."
)
_GLOSSARY = (
    "TSV file of terms: source term, translation (alternatives and inflected forms separated by |), and optionally yes "
    "(case-sensitive) or no, and a note. By default, a translation must contain a translation of each term in its line."
)
_GLOSSARY_MODE = (
    "constrain: each translation must contain a form of each term; annotate: terms are written into the source, and "
    "the model inflects them (default: annotate for models trained with train.glossary_markup)."
)
_GLOSSARY_REPORT = "TSV file of glossary terms in each line: used or missed. A summary is printed to stderr."
_OUT = "Output file, compressed if its name ends in .gz; - is standard output."
_OUTPUT_FORMAT = (
    "Default: by the extension of the output, else the format of the input. tsv: the input columns and the "
    "translation. jsonl: the input fields and translation, score, log_prob, tokens, token_log_probs and n_best, all "
    "null for a null text. moses: n-best lists as Moses writes them, with indices from 0. html, srt: only for "
    "input of the same format."
)
_WITH_ALIGNMENTS = "Add the word alignment after a tab, as 0-0 1-2; in JSON Lines as a field."
_KEEP = (
    "Comma-separated kinds of text that translations must contain: markup (HTML or XML tags, around the aligned "
    "words), numbers (as the target language writes them: 1,234.5 is 1.234,5 in German), urls, emails, "
    "placeholders ({name}, %s, %(x)d). If a translation lacks one, the line is translated again or in parts."
)
_RESUME = (
    "Continue OUT.part of an interrupted command; model, options and translated lines must be unchanged. Does nothing "
    "if OUT is complete."
)
_RESTART = "Discard OUT.part of an interrupted command and start over."

# --- Search -----------------------------------------------------------------------------------------------------------

_DISTINCT = (
    "Keep only the best of n-best translations with equal text, and fill up from the rest of the beam; there may be "
    "fewer than N. Default except in JSON Lines and for samples."
)
_TAG = "Tag of a training corpus, such as <web>: selects that domain."
_SENTENCES = "Split each line into sentences and translate them separately, for lines that are paragraphs."
_ENSEMBLE = "Add a model to the ensemble; repeatable."
_SHORTLIST = 'File made by `nmt shortlist`: restrict the target vocabulary, for speed. "" disables it.'
_FUSION = 'Language model for shallow fusion: search for log p(y|x) + W log p_lm(y). "" disables it.'
_SET = "Any other option of the decode section: sampling=true, no_repeat_ngram=4, 'bias.Dr. Smith=1', ... Repeatable."

# --- Speed ------------------------------------------------------------------------------------------------------------

_THREADS = "CPU threads (default: one per core). Mutually exclusive with --processes."
_WINDOW = "Lines translated together; more is faster, 1 translates line by line (default: by engine and input)."
_MAX_DELAY = "For a pipe: seconds to wait for further lines of a window (default: 0.1); inf waits for a full window."
_PROCESSES = (
    "Batches translated in parallel; 0 is one per core on a CPU, one on a GPU. With CTranslate2: threads (default: 0). "
    "With torch: processes of one thread each (default: one per core for large files, else one process with all cores)."
)
_MEMORY = (
    "Reuse translations in this SQLite file, and add new ones. Lines that it contains for the same model and options "
    "are not translated again. Several commands may share it."
)
_MEMORY_LIMIT = "Maximum number of translations in --memory; the least recently used are removed (default: 1,000,000)."
_PRECISION = (
    "Compute type. auto: int8 (quantized weights) with CTranslate2 on a CPU, else bf16 if native, else fp32. Affects "
    "some translations."
)
_ENGINE = (
    "Decoding engine; ctranslate2 converts the model once. auto: ctranslate2 on a CPU, or torch if CTranslate2 fails "
    "or lacks an option, such as --with-alignments. stderr names the engine and precision."
)

MemoryFile = Annotated[Path | None, typer.Option("--memory", parser=named_file, metavar="FILE", help=_MEMORY)]
MemoryLimit = Annotated[int | None, typer.Option(min=1, help=_MEMORY_LIMIT)]
SplitSentences = Annotated[bool, typer.Option("--split-sentences", help=_SENTENCES)]


@dataclass(frozen=True)
class TranslateOptions:
    """The arguments of `nmt translate`; None if not given."""

    model: ModelArgument
    file: Annotated[Path, typer.Argument(help=_INPUT)] = Path("-")
    input_format: Annotated[InputFormat | None, typer.Option(help=_INPUT_FORMAT)] = None
    column: Annotated[str | None, typer.Option(help=_COLUMN)] = None
    header: Annotated[bool, typer.Option("--header", help=_HEADER)] = False
    field: Annotated[str | None, typer.Option(help=_FIELD)] = None
    invalid_utf8: Annotated[InvalidUtf8, typer.Option(help=_INVALID_UTF8)] = "error"
    prefixes: Annotated[Path | None, typer.Option(parser=named_file, metavar="FILE", help=_PREFIXES)] = None
    required: Annotated[Path | None, typer.Option(parser=named_file, metavar="FILE", help=_REQUIRED)] = None
    glossary: Annotated[Path | None, typer.Option(parser=named_file, metavar="FILE", help=_GLOSSARY)] = None
    glossary_mode: Annotated[GlossaryMode | None, typer.Option(help=_GLOSSARY_MODE)] = None
    glossary_report: Annotated[Path | None, typer.Option(parser=file_path, metavar="FILE", help=_GLOSSARY_REPORT)] = (
        None
    )
    out: Annotated[Path, typer.Option("-o", "--out", parser=file_path, metavar="PATH", help=_OUT)] = Path("-")
    output_format: Annotated[Format | None, typer.Option(help=_OUTPUT_FORMAT)] = None
    with_scores: Annotated[
        bool, typer.Option("--with-scores", help="Write the score and a tab before each translation.")
    ] = False
    with_alignments: Annotated[bool, typer.Option("--with-alignments", help=_WITH_ALIGNMENTS)] = False
    keep: Annotated[Kinds | None, typer.Option(parser=Kinds.parse, metavar="KIND,...", help=_KEEP)] = None
    resume: Annotated[bool, typer.Option("--resume", help=_RESUME)] = False
    restart: Annotated[bool, typer.Option("--restart", help=_RESTART)] = False
    beam_size: Annotated[
        int | None, typer.Option("-b", "--beam-size", min=1, help="Hypotheses kept at each step; 1 is greedy.")
    ] = None
    length_penalty: Annotated[LengthPenalty | None, typer.Option(help="Divisor of the log-probability.")] = None
    length_alpha: Annotated[float | None, typer.Option(min=0.0, help="Exponent of the length penalty.")] = None
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Translations per line; text output: number, score, text.")
    ] = None
    distinct: Annotated[bool | None, typer.Option("--distinct/--no-distinct", help=_DISTINCT)] = None
    tag: Annotated[str | None, typer.Option(help=_TAG)] = None
    split_sentences: SplitSentences = False
    ensemble: Annotated[list[Path] | None, typer.Option(help=_ENSEMBLE)] = None
    shortlist: Annotated[str | None, typer.Option(metavar="FILE", help=_SHORTLIST)] = None
    fusion: Annotated[str | None, typer.Option(metavar="MODEL", help=_FUSION)] = None
    fusion_weight: Annotated[
        float | None, typer.Option(min=0.0, metavar="W", help="Fusion weight (default: the model's).")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Sampling seed; same as --set sampling_seed=N.")] = None
    settings: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum source tokens per batch.")] = None
    window: Annotated[int | None, typer.Option(min=1, help=_WINDOW)] = None
    max_delay: Annotated[float | None, typer.Option(min=0.0, help=_MAX_DELAY)] = None
    processes: Annotated[int | None, typer.Option(min=0, max=MAX_THREADS, help=_PROCESSES)] = None
    memory: MemoryFile = None
    memory_limit: MemoryLimit = None
    threads: Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help=_THREADS)] = None
    device: Device = "auto"
    precision: Annotated[SearchPrecision, typer.Option(help=_PRECISION)] = "auto"
    engine: Annotated[Engine, typer.Option(help=_ENGINE)] = "auto"

    @property
    def in_format(self) -> Format:
        """The given input format, or else that of the extension, or else text."""
        return choose_format(self.file, self.input_format, "text")

    @property
    def may_have_terms(self) -> bool:
        """Whether there is a glossary, or the format has glossary terms of each line."""
        return self.glossary is not None or self.in_format == "jsonl"

    @property
    def kinds(self) -> Kinds:
        """The kinds of text that translations must contain; they always keep the markup of documents."""
        kinds = self.keep or Kinds()
        return Kinds(dict.fromkeys(("markup", *kinds))) if self.in_format in DOCUMENT_FORMATS else kinds
