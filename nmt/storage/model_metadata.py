"""`model.toml`: architecture and metadata of a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, NonNegativeInt, PositiveInt

from nmt.errors import UserError
from nmt.logs import is_first_rank, warn
from nmt.recipe import (
    NO_CONTEXT,
    NO_LANGUAGE,
    Context,
    ContextSides,
    ContextSize,
    DecodeRecipe,
    ModelRecipe,
    Section,
    UnicodeForm,
)
from nmt.recipe.decoding import FinalDecodeRecipe
from nmt.storage.description import FORMAT, read_description
from nmt.storage.run_folder import (
    MODEL,
    checkpoint_step,
    find_model,
    list_checkpoints,
    read_json_object,
    warn_of_divergence,
)

DEFAULT_MAX_TOKENS = 256
"""`max_tokens` of models without the entry: the default of `data.max_tokens`."""


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata of a model.

    origin:         source of the weights, such as `{"recipe": ..., "seed": ..., "averaged": [...]}`
    reverse_target: whether target tokens are in reverse order
    max_tokens:     maximum length of training sentences in tokens, including a tag
    longest_source: length in tokens of the longest source sentence in the training text of this model and of its
                    initial model; None if unknown
    tags:           languages, such as "en to fr", by tag if all training sentences had one; {} otherwise, or if unknown
    trained_directions: languages of the training text; () if unknown
    context:        number and sides of the previous sentences that are prepended to each sentence
    """

    src_lang: str
    tgt_lang: str
    src_vocab_size: int
    tgt_vocab_size: int
    unicode_form: UnicodeForm
    decode: DecodeRecipe
    origin: dict[str, Any] = field(default_factory=dict)
    reverse_target: bool = False
    max_tokens: int = DEFAULT_MAX_TOKENS
    context: Context = NO_CONTEXT
    longest_source: int | None = None
    tags: dict[str, str] = field(default_factory=dict)
    trained_directions: tuple[str, ...] = ()

    @property
    def is_language_model(self) -> bool:
        """Whether the model has no source."""
        return self.src_lang == NO_LANGUAGE

    @property
    def directions(self) -> list[str]:
        """The languages of the training text, such as "en to de"."""
        return list(self.trained_directions) or [f"{self.src_lang} to {self.tgt_lang}"]

    def max_source_tokens(self, tag: Sequence[int]) -> int | None:
        """Return the length to which sources are truncated, without the tag; None if they are not truncated."""
        return self.max_tokens - len(tag) if self.decode.long_lines == "truncate" else None


def require_kind(directory: Path, metadata: ModelMetadata, *, language_model: bool) -> None:
    """Raise UserError unless a model is a language model, or a translation model if `language_model` is False."""
    if metadata.is_language_model != language_model:
        expected = "language" if language_model else "translation"
        found = "translation" if language_model else "language"
        raise UserError(f"{directory} is a {found} model; it must be a {expected} model; choose another one")


def read_model_metadata(directory: Path) -> ModelMetadata:
    """Read the metadata of a model; raises as `read_description` does."""
    return read_model_toml(directory / "model.toml")[1]


def longest_source_of(run: Path, start: Path | None) -> int | None:
    """Return `longest_source` of a run's newest readable checkpoint, or else of its initial model.

    Returns None if none of them is readable, and 0 for a new run without an initial model.
    """
    candidates = list_checkpoints(run)[::-1]
    if start is not None:
        candidates.append(start)
    for directory in candidates:
        with suppress(UserError):
            return read_model_metadata(find_model(directory)).longest_source
    return None if candidates else 0


def read_model_recipe(directory: Path) -> ModelRecipe:
    """Read the architecture of a model; raises as `read_description` does."""
    return read_model_toml(directory / "model.toml")[0]


def require_transformer(recipe: ModelRecipe, directory: Path, remedy: str = "choose another model") -> None:
    """Raise UserError, which ends with `remedy`, unless the model in `directory` is a Transformer."""
    if recipe.architecture != "transformer":
        raise UserError(f"{directory} is a GRU model; it must be a Transformer; {remedy}")


def model_toml(model_recipe: ModelRecipe, metadata: ModelMetadata) -> str:
    """Return the text of `model.toml`."""
    tree: dict[str, Any] = {
        "format": FORMAT,
        "languages": {"src": metadata.src_lang, "tgt": metadata.tgt_lang},
        "vocabulary": {"src": metadata.src_vocab_size, "tgt": metadata.tgt_vocab_size},
        "text": {
            "unicode_form": metadata.unicode_form,
            "reverse_target": metadata.reverse_target,
            "max_tokens": metadata.max_tokens,
        },
        "context": metadata.context._asdict(),
        "model": model_recipe.model_dump(mode="json", exclude_none=True),
        "decode": metadata.decode.model_dump(mode="json", exclude_none=True),
        "origin": metadata.origin,
    }
    if metadata.tags:
        tree["tags"] = metadata.tags
    if metadata.trained_directions:
        tree["languages"]["directions"] = list(metadata.trained_directions)
    if metadata.longest_source is not None:
        tree["text"]["longest_source"] = metadata.longest_source
    return tomli_w.dumps(tree)


def read_model_toml(path: Path) -> tuple[ModelRecipe, ModelMetadata]:
    """Read a `model.toml`; raises as `read_description` does."""
    description = read_description(path, _Description)
    languages, vocabulary, text = description.languages, description.vocabulary, description.text
    metadata = ModelMetadata(
        src_lang=languages.src,
        tgt_lang=languages.tgt,
        src_vocab_size=vocabulary.src,
        tgt_vocab_size=vocabulary.tgt,
        unicode_form=text.unicode_form,
        decode=description.decode,
        origin=description.origin.model_dump(mode="json", exclude_unset=True),
        reverse_target=text.reverse_target,
        max_tokens=text.max_tokens,
        context=Context(description.context.size, description.context.sides),
        longest_source=text.longest_source,
        tags=description.tags,
        trained_directions=languages.directions,
    )
    return description.model, metadata


class _Table(Section, extra="ignore"):
    """A table of `model.toml`, in which later versions may have further keys."""


class _Languages(_Table):
    src: str
    tgt: str
    directions: tuple[str, ...] = ()


class _Vocabulary(_Table):
    src: PositiveInt
    tgt: PositiveInt


class _Text(_Table):
    unicode_form: UnicodeForm
    reverse_target: bool = False  # absent from older models, like all options with a default
    max_tokens: PositiveInt = DEFAULT_MAX_TOKENS
    longest_source: NonNegativeInt | None = None


class _Context(_Table):
    size: ContextSize = 0
    sides: ContextSides = "source"


class _Origin(_Table, extra="allow"):
    """The keys that nmt reads, and any others."""

    step: NonNegativeInt = 0
    averaged: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    moving_average: str = ""


class _Description(_Table):
    """`model.toml` without its format number."""

    languages: _Languages
    vocabulary: _Vocabulary
    text: _Text
    context: _Context = _Context()
    model: ModelRecipe
    decode: FinalDecodeRecipe
    origin: _Origin
    tags: dict[str, str] = Field(default_factory=dict)


def warn_of_missing_tag(path: Path, metadata: ModelMetadata, tag: str | None, *, has_option: bool = True) -> None:
    """Warn if all training sentences of a model had a tag and none is set. has_option: whether the command has --tag"""
    if metadata.tags and tag is None and is_first_rank():
        tags = ", ".join(f"{name} ({languages})" for name, languages in metadata.tags.items())
        advice = "set one with --tag (nmt serve: --set tag=TAG)"
        if not has_option:
            advice = "set one in the model: rerun `nmt run` with decode.tag=TAG"
        warn(f"{path} was trained with a tag before every source sentence, and none is set; {advice}: {tags}")


def warn_of_run(run: Path, metadata: ModelMetadata) -> None:
    """Warn if the run of a model diverged, or if it continued after `nmt run` averaged its model."""
    warn_of_divergence(run)
    report, checkpoints = read_json_object(run / "report.json"), list_checkpoints(run)
    if report and checkpoints and (run / "model" / MODEL).is_file():
        # The step of an average of the best checkpoints may be earlier; the report has the step of averaging.
        averaged = max(report.get("training", {}).get("steps") or 0, metadata.origin.get("step") or 0)
        newest = checkpoint_step(checkpoints[-1])
        if newest > averaged and is_first_rank():
            warn(
                f"{run / 'model'} was averaged at step {averaged:,}, but the run has a checkpoint of step {newest:,}; "
                f"update it with `nmt run`, or use the output of `nmt average {run}`"
            )
