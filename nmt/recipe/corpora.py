"""Where sentence pairs come from: one section for each kind of corpus."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.fields import FieldInfo

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
TAG_PATTERN = r"^<[^\s<>]+>$"
# What SentencePiece calls the special tokens.
_RESERVED_PIECES = {"<pad>", "<unk>", "<s>", "</s>"}


class Section(BaseModel):
    """A frozen group of options; unknown names are refused."""

    # Validators are built at their first use: a command that translates needs those of two of the many sections.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, use_attribute_docstrings=True)

    summary: ClassVar[str] = ""
    """What the section is; its `__doc__` goes on with every option, for `help()`."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Put the documentation of the options into that of the class: Python keeps no text under an attribute."""
        cls.summary = cleandoc(cls.__doc__ or "")
        cls.__doc__ = "\n\n".join([cls.summary, *map(_documented, cls.model_fields, cls.model_fields.values())])

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, options: Any) -> Any:
        """Leave `true` to be refused as text where a number must stand; pydantic itself would take it for 1."""
        if not isinstance(options, dict):
            return options
        wrong = {name: str(value).lower() for name, value in options.items() if cls._misplaces(name, value)}
        return {**options, **wrong}

    @classmethod
    def _misplaces(cls, name: str, value: Any) -> bool:
        """Whether a value is true or false where a number must stand."""
        if not isinstance(value, bool) or name not in cls.model_fields:
            return False
        types = list(_plain_types(cls.model_fields[name].annotation))
        return bool not in types and (int in types or float in types)


def _documented(name: str, field: FieldInfo) -> str:
    """An option with its default, and indented below what it means."""
    default = "" if field.is_required() or field.default_factory else f" = {field.default!r}"
    return f"{name}{default}\n" + indent(field.description or "", "    ")


def _plain_types(annotation: Any) -> Iterator[Any]:
    """What a type is made of, without unions and conditions: of `Annotated[int, Gt(0)] | None`, among others, int."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _plain_types(part)


def _not_reserved(tag: str | None) -> str | None:
    if tag in _RESERVED_PIECES:
        raise ValueError(f"{tag!r} is a piece of every vocabulary already; choose another name")
    return tag


class TrainingShare(Section):
    """What every kind of corpus can say of its part in training; it has no meaning for development and test text."""

    weight: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """An epoch shows its pairs in proportion to weight times size, and as many pairs in all as there are. Of two
    corpora of one size with weights 4 and 1, it shows each pair of the first 1.6 times, of the other 0.4 times; a
    tokenizer is trained on pairs in the same proportion. See `data.temperature`."""
    tag: Annotated[str | None, AfterValidator(_not_reserved)] = Field(default=None, pattern=TAG_PATTERN)
    """A token such as `<web>` put before each source sentence, so that the model can tell the corpora apart."""


# One file, or several for a test set with several references.
ReferenceFiles = Path | Annotated[tuple[Path, ...], Field(min_length=1)]


def _as_references(tgt: Path | tuple[Path, ...] | None) -> tuple[Path, ...]:
    if tgt is None:
        return ()
    return tgt if isinstance(tgt, tuple) else (tgt,)


class TextCorpus(TrainingShare):
    """Two aligned text files, one sentence a line, plain or compressed (.gz, .xz, .zst)."""

    kind: Literal["text"] = "text"
    src: Path
    """File of source sentences."""
    tgt: ReferenceFiles
    """File of target sentences, line by line the translation of `src`; of a test set also a list of such files, each a
    reference."""

    @property
    def references(self) -> tuple[Path, ...]:
        """The files that `tgt` names."""
        return _as_references(self.tgt)


class TsvCorpus(TrainingShare):
    """One tab-separated file with source and target in two columns."""

    kind: Literal["tsv"] = "tsv"
    path: Path
    """The file, plain or compressed."""
    src_column: NonNegativeInt | str = 0
    """Column of the source sentence: a number counted from 0, or a name in the first line, which then is a header."""
    tgt_column: NonNegativeInt | str = 1
    """Column of the target sentence, likewise."""
    label_column: NonNegativeInt | str | None = None
    """Column of a test sentence's labels, likewise; see `label_field` of a JSON Lines file."""

    @property
    def has_header(self) -> bool:
        """Whether the first line holds names of columns and not a pair."""
        return any(isinstance(column, str) for column in (self.src_column, self.tgt_column, self.label_column))


class SgmCorpus(TrainingShare):
    """A WMT test set: a pair of SGM files (source, reference), or one XML file that holds both."""

    kind: Literal["sgm"] = "sgm"
    src: Path
    """The source .sgm file, or the one .xml file."""
    tgt: ReferenceFiles | None = None
    """The reference .sgm file, or a list of them; left out for .xml."""

    @property
    def references(self) -> tuple[Path, ...]:
        """The files that `tgt` names; none where the references are in the file `src`."""
        return _as_references(self.tgt)


class ParquetCorpus(TrainingShare):
    """A Parquet file; a dot in a field name steps into a nested record (`translation.en`)."""

    kind: Literal["parquet"] = "parquet"
    path: Path
    """The file."""
    src_field: str
    """Name of the source field."""
    tgt_field: str
    """Name of the target field."""
    label_field: str | None = None
    """Name of the field of a test sentence's labels; see `label_field` of a JSON Lines file."""


class JsonLinesCorpus(TrainingShare):
    """A JSON Lines file, plain or compressed; a dot in a field name steps into a nested object."""

    kind: Literal["jsonl"] = "jsonl"
    path: Path
    """The file."""
    src_field: str
    """Name of the source field."""
    tgt_field: str
    """Name of the target field."""
    label_field: str | None = None
    """Name of the field of a test sentence's labels: text in which spaces separate them, such as `news long`. The
    report also scores the sentences of each label."""


class HuggingFaceCorpus(TrainingShare):
    """A Hugging Face dataset, streamed from the hub or from a local folder of the same layout."""

    kind: Literal["huggingface"] = "huggingface"
    dataset: str
    """Name on the hub (`wmt/wmt14`) or a local folder."""
    config: str | None = None
    """Configuration of the dataset (`de-en`)."""
    split: str = "train"
    """Split of the dataset."""
    revision: str | None = None
    """Commit, tag or branch of the dataset on the hub. Give a commit: the newest version may change between runs."""
    src_field: str | None = None
    """Field of the source sentence; by default `translation.<src_lang>`."""
    tgt_field: str | None = None
    """Field of the target sentence; by default `translation.<tgt_lang>`."""
    label_field: str | None = None
    """Field of a test sentence's labels; see `label_field` of a JSON Lines file."""


class SacrebleuCorpus(TrainingShare):
    """A test set known to sacreBLEU by name, downloaded by it when it is not cached yet."""

    kind: Literal["sacrebleu"] = "sacrebleu"
    test_set: str
    """Name such as `wmt14/full`."""


class TreesCorpus(TrainingShare):
    """Constituency trees, one a line, for parsing as translation (Vinyals et al. 2015; paper, section 6.3): the source
    is the words, the target the brackets with their labels. Score them with metric `bracket-f1`."""

    kind: Literal["trees"] = "trees"
    path: Path
    """A file of trees in the form of the Penn Treebank, such as `(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps))))`,
    plain or compressed."""


class ToyCorpus(TrainingShare):
    """The built-in toy corpus: labeled pairs made by a small English-German grammar; needs no file at all."""

    kind: Literal["toy"] = "toy"
    split: Literal["train", "valid", "test", "nested"] = "train"
    """`test` holds word combinations that `train` never shows; `nested` nests clauses deeper than `train` does."""
    pairs: PositiveInt = 100_000
    """How many distinct pairs."""
    seed: int = 1
    """Seed of the generator."""


Corpus = Annotated[
    TextCorpus
    | TsvCorpus
    | SgmCorpus
    | ParquetCorpus
    | JsonLinesCorpus
    | HuggingFaceCorpus
    | SacrebleuCorpus
    | TreesCorpus
    | ToyCorpus,
    Field(discriminator="kind"),
]

# The sections by the `kind` that a recipe writes.
CORPUS_KINDS: dict[str, type[Section]] = {
    member.model_fields["kind"].default: member for member in get_args(get_args(Corpus)[0])
}
