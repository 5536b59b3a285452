"""The recipe sections of corpora, one per kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, assert_never, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nmt.recipe.documentation import DocumentedType

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
FieldName = Annotated[str, Field(min_length=1)]
UnicodeForm = Literal["NFC", "NFKC", "none"]
LANGUAGE_PATTERN = r"^[a-z]{2,3}$"
TAG_PATTERN = r"^<[^\s<>]+>$"
_RESERVED_PIECES = {"<pad>", "<unk>", "<s>", "</s>"}


def _require_filled(path: Any) -> Any:
    """Reject an empty path, which pydantic would read as the current directory."""
    if path == "":
        raise PydanticCustomError("empty_path", "the path is empty")
    return path


FilledPath = Annotated[Path, BeforeValidator(_require_filled)]
"""A path of a recipe: "." is the current directory, and "" is an error."""

NO_LANGUAGE = "zxx"
"""ISO 639-2 code of "no linguistic content": the source language of a language model, whose sources are empty."""


class Section(BaseModel, metaclass=DocumentedType):
    """A frozen group of options that rejects unknown names and expands ~/ in paths."""

    # `defer_build`: translation needs the validators of only two sections, and building all of them is slow.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise a one-line AttributeError; pydantic's error spans several lines."""
        section = type(self).__name__
        raise AttributeError(
            f"{section}.{name} cannot be assigned; options are frozen; create another {section}, or load the recipe "
            "with overrides"
        )

    def changed_options(self) -> list[str]:
        """Return the options that differ from their defaults, set or not: saved recipes have all options."""
        return list(self.model_dump(exclude_defaults=True))

    @model_validator(mode="before")
    @classmethod
    def _reject_bool_as_number(cls, options: Any) -> Any:
        """Convert a bool to text where a number is expected, because pydantic would accept true as 1."""
        if not isinstance(options, dict):
            return options
        numeric = [name for name in options if cls._is_number(name)]
        return {**options, **{name: _bools_as_text(options[name]) for name in numeric}}

    @model_validator(mode="before")
    @classmethod
    def _expand_home(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options
        fields = [name for name, field in cls.model_fields.items() if Path in _plain_types(field.annotation)]
        return {**options, **{name: _expanded(options[name]) for name in fields if name in options}}

    @classmethod
    def _is_number(cls, name: str) -> bool:
        """Return whether an option, or each item of one, is a number."""
        if name not in cls.model_fields:
            return False
        types = list(_plain_types(cls.model_fields[name].annotation))
        return bool not in types and (int in types or float in types)


def _bools_as_text(value: Any) -> Any:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return {key: _bools_as_text(item) for key, item in value.items()}
        case list() | tuple():
            return [_bools_as_text(item) for item in value]
        case _:
            return value


def _expanded(path: Any) -> Any:
    """Return a path, or each of a list of paths, with the home directory for ~; return other values unchanged."""
    match path:
        case str() if path == "~" or path.startswith("~/"):
            return str(Path(path).expanduser())
        case list() | tuple():
            return [_expanded(one) for one in path]
        case _:
            return path


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types in a union or annotation, such as int in `Annotated[int, Gt(0)] | None`."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _plain_types(part)


def is_reserved(piece: str) -> bool:
    """Return whether SentencePiece reserves a piece: a special token or a byte token."""
    return piece in _RESERVED_PIECES or re.fullmatch("<0x[0-9A-F]{2}>", piece) is not None


def _not_reserved(tag: str | None) -> str | None:
    if tag is not None and is_reserved(tag):
        raise ValueError(f"{tag!r} is a special token or a byte token; choose another name")
    return tag


class Languages(Protocol):
    """The languages of a recipe."""

    @property
    def src_lang(self) -> str:
        """The source language."""

    @property
    def tgt_lang(self) -> str:
        """The target language."""


class CorpusOptions(Section):
    """Options of corpora of every kind."""

    tag: Annotated[str | None, AfterValidator(_not_reserved)] = Field(default=None, pattern=TAG_PATTERN)
    """Token prepended to each source sentence to identify the corpus, domain or target language, such as `<web>`. A
    validation or test set uses a tag of the training corpora. Without one, its loss is computed without a tag, and it
    is translated with `decode.tag`."""
    src_lang: str | None = Field(default=None, pattern=LANGUAGE_PATTERN)
    """Source language of this corpus, ISO 639 code; by default that of the recipe."""
    tgt_lang: str | None = Field(default=None, pattern=LANGUAGE_PATTERN)
    """Target language; by default that of the recipe. Selects the rules of cleaning and of test set scores."""
    weight: PositiveFloat = 1.0
    """Sampling weight of a training corpus. An epoch has as many pairs as all corpora together, distributed in
    proportion to weight times size: with weights 4 and 1, corpora of equal size are sampled 1.6 and 0.4 times per
    epoch. The tokenizer is trained on the same mix. See `data.temperature`."""
    alignment: FilledPath | None = None
    """Word alignments of a training corpus for `train.guided_alignment` and `train.glossary_markup`: a file in Pharaoh
    format (`0-0 1-2`) with a line for each pair. Words are separated by any white space, including no-break spaces,
    which some aligners treat as letters. By default, a statistical aligner computes the alignments."""

    @property
    def references(self) -> tuple[Path, ...]:
        """The reference files of a corpus of text or SGM files; none for .xml."""
        tgt: Path | tuple[Path, ...] | None = getattr(self, "tgt", None)
        if tgt is None:
            return ()
        return tgt if isinstance(tgt, tuple) else (tgt,)

    def languages(self, recipe: Languages) -> tuple[str, str]:
        """Return the source and the target language; those of the recipe unless the corpus has its own."""
        return self.src_lang or recipe.src_lang, self.tgt_lang or recipe.tgt_lang


ReferenceFiles = FilledPath | Annotated[tuple[FilledPath, ...], Field(min_length=1)]


class TextCorpus(CorpusOptions):
    """Two aligned text files, one sentence per line, plain or compressed (.gz, .bz2, .xz, .zst)."""

    kind: Literal["text"] = "text"
    src: FilledPath
    """File of source sentences."""
    tgt: ReferenceFiles
    """File of target sentences, aligned with `src`; for a test set also a list of reference files."""


class TsvCorpus(CorpusOptions):
    """A tab-separated file with source and target columns."""

    kind: Literal["tsv"] = "tsv"
    path: FilledPath
    """The file, plain or compressed."""
    src_column: NonNegativeInt | str = 0
    """Source column: an index from 0, or a name, which makes the first line a header."""
    tgt_column: NonNegativeInt | str = 1
    """Target column, specified like `src_column`."""
    label_column: NonNegativeInt | str | None = None
    """Column of the labels in a test set, specified like `src_column`; see `label_field` of a JSON Lines file."""
    document_column: NonNegativeInt | str | None = None
    """Column that identifies the document of each pair, specified like `src_column`, for `data.context`."""

    @property
    def has_header(self) -> bool:
        """Whether the first line is a header."""
        columns = (self.src_column, self.tgt_column, self.label_column, self.document_column)
        return any(isinstance(column, str) for column in columns)


class SgmCorpus(CorpusOptions):
    """A WMT test set: SGM files of source and reference, or one XML file of both. If the XML file has several
    references, the first is used."""

    kind: Literal["sgm"] = "sgm"
    src: FilledPath
    """The .sgm file of the source, or the .xml file."""
    tgt: ReferenceFiles | None = None
    """The .sgm file of the reference, or a list of such files; not for .xml."""


class TmxCorpus(CorpusOptions):
    """A translation memory in TMX. `src_lang` and `tgt_lang` select its languages; of several regions in a unit, such
    as "en-US" and "en-GB", the first counts. Inline codes are removed. Units without text in both languages are
    skipped."""

    kind: Literal["tmx"] = "tmx"
    path: FilledPath
    """The file, plain or compressed."""
    src_locale: FieldName | None = None
    """Language code of the source in the file, such as `pt-BR` or `zh-Hant`: units without it are skipped. By default
    `src_lang` in any region."""
    tgt_locale: FieldName | None = None
    """Language code of the target in the file, likewise."""


class ParquetCorpus(CorpusOptions):
    """A Parquet file; a dot addresses a nested field (`translation.en`), unless a column has the full name."""

    kind: Literal["parquet"] = "parquet"
    path: FilledPath
    """The file."""
    src_field: str
    """Source field."""
    tgt_field: str
    """Target field."""
    label_field: FieldName | None = None
    """Field of the labels in a test set; see `label_field` of a JSON Lines file."""
    document_field: FieldName | None = None
    """Field that identifies the document of each pair, for `data.context`."""


class JsonLinesCorpus(CorpusOptions):
    """A JSON Lines file, plain or compressed; a dot addresses a nested field, unless a field has the full name."""

    kind: Literal["jsonl"] = "jsonl"
    path: FilledPath
    """The file."""
    src_field: str
    """Source field."""
    tgt_field: str
    """Target field."""
    label_field: FieldName | None = None
    """Field of the labels in a test set, separated by spaces, such as `news long`. The report has scores by label."""
    document_field: FieldName | None = None
    """Field that identifies the document of each pair, for `data.context`."""


class HuggingFaceCorpus(CorpusOptions):
    """A Hugging Face dataset, streamed from the Hub or a local directory."""

    kind: Literal["huggingface"] = "huggingface"
    dataset: str
    """Name on the Hub (`wmt/wmt14`) or a local directory."""
    config: str | None = None
    """Configuration of the dataset (`de-en`)."""
    split: str = "train"
    """Split of the dataset; slices, such as `train[:100]`, are not supported."""
    revision: str | None = None
    """Commit, tag or branch on the Hub. Pin a commit: whenever a tag or branch changes, the text is prepared again."""
    src_field: str | None = None
    """Source field; by default `translation.<src_lang>`."""
    tgt_field: str | None = None
    """Target field; by default `translation.<tgt_lang>`."""
    label_field: FieldName | None = None
    """Field of the labels in a test set; see `label_field` of a JSON Lines file."""
    document_field: FieldName | None = None
    """Field that identifies the document of each pair, for `data.context`."""


class SacrebleuCorpus(CorpusOptions):
    """A test set of sacreBLEU, which downloads it if necessary."""

    kind: Literal["sacrebleu"] = "sacrebleu"
    test_set: str
    """Name such as `wmt14/full`."""


class TreesCorpus(CorpusOptions):
    """Constituency trees for parsing as translation (Vinyals et al. 2015; Vaswani et al. 2017, section 6.3): the source
    is the words, the target the labeled brackets. Use metric `bracket-f1`."""

    kind: Literal["trees"] = "trees"
    path: FilledPath
    """A file of trees in Penn Treebank format, such as `(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps))))`, plain or
    compressed."""


class MonolingualCorpus(CorpusOptions):
    """Text without a source, one sentence per line, for language models (`src_lang = "zxx"`)."""

    kind: Literal["monolingual"] = "monolingual"
    path: FilledPath
    """A file of sentences in the target language, plain or compressed."""


class ToyCorpus(CorpusOptions):
    """The built-in toy corpus: labeled pairs generated by a small English-German grammar."""

    kind: Literal["toy"] = "toy"
    split: Literal["train", "valid", "test", "nested"] = "train"
    """`test` has word combinations that are not in `train`; `nested` has deeper clauses than `train`."""
    pairs: PositiveInt = 100_000
    """Number of distinct pairs."""
    seed: int = 1
    """Seed of the generator."""
    documents: bool = False
    """Documents of two sentences. `it` in the second refers to a noun in the first; German needs its gender. Not with
    `nested`."""


Corpus = Annotated[
    TextCorpus
    | TsvCorpus
    | SgmCorpus
    | TmxCorpus
    | ParquetCorpus
    | JsonLinesCorpus
    | HuggingFaceCorpus
    | SacrebleuCorpus
    | TreesCorpus
    | MonolingualCorpus
    | ToyCorpus,
    Field(discriminator="kind"),
]


def named_files(corpus: Corpus) -> tuple[Path, ...]:
    """Return the paths of the files of a corpus as the recipe names them; none for datasets and built-in text."""
    match corpus:
        case TextCorpus() | SgmCorpus():
            return corpus.src, *corpus.references
        case TsvCorpus() | TmxCorpus() | ParquetCorpus() | JsonLinesCorpus() | TreesCorpus() | MonolingualCorpus():
            return (corpus.path,)
        case HuggingFaceCorpus() | SacrebleuCorpus() | ToyCorpus():
            return ()
        case _:
            assert_never(corpus)


def directions(corpora: Iterable[Corpus], recipe: Languages) -> tuple[str, ...]:
    """Return the languages of corpora, such as "en to fr", each once."""
    return tuple(dict.fromkeys(" to ".join(corpus.languages(recipe)) for corpus in corpora))


def directions_by_tag(corpora: Sequence[Corpus], recipe: Languages) -> dict[str, str]:
    """Return languages such as "en to fr, de to fr" by tag if all corpora have a tag, otherwise {}."""
    tags = dict.fromkeys(corpus.tag for corpus in corpora)
    return {
        tag: ", ".join(directions([corpus for corpus in corpora if corpus.tag == tag], recipe))
        for tag in tags
        if tag is not None and None not in tags
    }


def has_label(corpus: Corpus) -> bool:
    """Return whether a corpus has labels apart from source and target."""
    return any(getattr(corpus, option, None) is not None for option in ("label_column", "label_field"))


# A file name has at most 255 bytes. The language and `write_file` need some of them.
_MAX_NAME_BYTES = 220


def _are_file_names(sets: dict[str, Corpus]) -> dict[str, Corpus]:
    for name in sets:
        if not name or "/" in name:
            raise ValueError(
                f"data.test has a set {name!r}; a name must be a file name without '/', because its translations are "
                "written to a file of this name; rename it"
            )
        if (length := len(name.encode())) > _MAX_NAME_BYTES:
            raise ValueError(
                f"data.test has a set whose name has {length} bytes; its translations are written to a file of this "
                f"name, which must have at most {_MAX_NAME_BYTES}; rename it"
            )
    return sets


TestSets = Annotated[dict[str, Corpus], AfterValidator(_are_file_names)]

# Corpus sections by `kind`.
CORPUS_KINDS: dict[str, type[Section]] = {
    member.model_fields["kind"].default: member for member in get_args(get_args(Corpus)[0])
}
