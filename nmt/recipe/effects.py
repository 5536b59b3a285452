"""Options that have an effect only with others: a recipe that sets them alone is an error."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from nmt.recipe.corpora import (
    Corpus,
    HuggingFaceCorpus,
    Section,
    ToyCorpus,
    TreesCorpus,
    has_label,
    is_reserved,
    named_files,
)
from nmt.recipe.decoding import ineffective_option
from nmt.recipe.removed_characters import CONTROL, INVISIBLE

if TYPE_CHECKING:
    from nmt.recipe.classification import ClassificationRecipe
    from nmt.recipe.sections import Recipe, TokenizerRecipe, TrainRecipe


Options = TypeVar("Options")


@dataclass(frozen=True)
class _Need(Generic[Options]):
    """A condition without which some options have no effect.

    options:    names with their sections
    has_effect: whether a recipe meets the condition
    problem:    the message after `OPTION has no effect`, with a remedy
    """

    options: tuple[str, ...]
    has_effect: Callable[[Options], bool]
    problem: str


def _scores_bleu(recipe: Recipe) -> bool:
    """Return whether something is scored with `bleu`: tests, their labels, or the validation set."""
    has_labels = any(isinstance(test, ToyCorpus) or has_label(test) for test in recipe.data.test.values())
    return "bleu" in recipe.evaluate.metrics or recipe.train.validate_bleu_every > 0 or has_labels


def _has_dropout(recipe: Recipe) -> bool:
    model = recipe.model
    return max(model.dropout, model.attention_dropout, model.activation_dropout) > 0


def has_tree_vocabulary(recipe: Recipe) -> bool:
    """Return whether a new target vocabulary has a token for each bracket of trees."""
    return all(isinstance(corpus, TreesCorpus) for corpus in recipe.data.train) and not recipe.tokenizer.joint


def _samples_trees(recipe: Recipe) -> bool:
    """Return whether segmentations of trees would be sampled; a reused tokenizer is checked when it is loaded."""
    return recipe.train.subword_sampling_sides != "src" and has_tree_vocabulary(recipe) and not recipe.reuses_tokenizer


def _has_tree_tokens(recipe: Recipe) -> bool:
    """Return whether the target may be trees with one token per bracket, in reading order."""
    are_trees = has_tree_vocabulary(recipe) or recipe.reuses_tokenizer
    return are_trees and not recipe.data.reverse_target and not recipe.data.context


_TRAIN_NEEDS: tuple[_Need[TrainRecipe], ...] = (
    _Need(
        ("train.final_rate_ratio",),
        lambda train: train.schedule in ("cosine", "linear"),
        "on this schedule; set train.schedule to 'cosine' or 'linear'",
    ),
    _Need(
        ("train.plateau_factor", "train.plateau_patience"),
        lambda train: train.schedule == "plateau",
        "on this schedule; set train.schedule to 'plateau'",
    ),
    _Need(
        ("train.validate_bleu_sentences",),
        lambda train: train.validate_bleu_every > 0,
        "without validation BLEU; set train.validate_bleu_every",
    ),
    _Need(
        ("train.subword_sampling_sides",),
        lambda train: train.subword_sampling > 0,
        "without sampled segmentations; set train.subword_sampling",
    ),
    _Need(
        ("train.guided_alignment_weight",),
        lambda train: train.guided_alignment,
        "without guided alignment; set train.guided_alignment to true",
    ),
    _Need(
        ("train.average_count",),
        lambda train: train.average != "ema",
        "on the EMA; set train.average to 'last' or 'best'",
    ),
    _Need(
        ("train.start_optimizer",),
        lambda train: train.start_from is not None,
        "without a checkpoint; set train.start_from",
    ),
)

_COVERAGE_NEED: _Need[TokenizerRecipe] = _Need(
    ("tokenizer.character_coverage",),
    lambda tokenizer: tokenizer.algorithm != "byte",
    "on bytes, which cover all characters; set tokenizer.algorithm to 'bpe', 'unigram' or 'char'",
)

_NEEDS: tuple[_Need[Recipe], ...] = (
    _Need(
        ("data.context_sides",),
        lambda recipe: recipe.data.context > 0,
        "if data.context is 0; set data.context to 1 or more",
    ),
    _Need(
        ("data.temperature",),
        lambda recipe: len(recipe.data.train) > 1,
        "on a single training corpus; add another corpus",
    ),
    _Need(
        (
            *("data.max_length_ratio", "data.drop_identical", "data.long_sources", "train.subword_sampling_sides"),
            *("decode.alignments", "decode.shortlist", "decode.split_sentences", "decode.fusion"),
            *("decode.min_length_ratio", "decode.max_length_ratio"),
        ),
        lambda recipe: not recipe.is_language_model,
        "on a language model, which has no source; set src_lang",
    ),
    _Need(
        tuple(f"evaluate.{name}" for name in ("metrics", "tokenize", "resamples", "lead_sentences", "samples")),
        lambda recipe: not recipe.is_language_model,
        "on a language model, whose test sets are scored by likelihood; set src_lang",
    ),
    _Need(
        ("evaluate.tokenize",),
        _scores_bleu,
        "without metric 'bleu'; add 'bleu' to evaluate.metrics",
    ),
    _Need(
        ("train.subword_sampling",),
        lambda recipe: recipe.tokenizer.algorithm in ("bpe", "unigram") or recipe.reuses_tokenizer,
        "on characters or bytes; set tokenizer.algorithm to 'bpe' or 'unigram'",
    ),
    _Need(
        ("train.subword_sampling",),
        lambda recipe: not _samples_trees(recipe),
        "on trees, which have a token per bracket; set train.subword_sampling_sides to 'src'",
    ),
    _Need(
        ("tokenizer.training_pairs",),
        lambda recipe: (
            recipe.tokenizer.algorithm != "byte"
            or recipe.reuses_tokenizer
            or any(isinstance(corpus, TreesCorpus) for corpus in recipe.data.train)
        ),
        "on bytes, which need no training; set tokenizer.algorithm to 'bpe', 'unigram' or 'char'",
    ),
    _Need(
        ("decode.trees",),
        _has_tree_tokens,
        "on this text; it needs corpora of kind 'trees', tokenizer.joint = false, and neither data.reverse_target nor "
        "data.context; change these",
    ),
    _Need(
        ("train.rdrop", "train.dropout_ramp_steps"),
        _has_dropout,
        "without dropout; set model.dropout",
    ),
)


def require_effect(recipe: Recipe) -> None:
    """Raise ValueError for the first option that differs from its default and has no effect."""
    _require_tokenizer_effect(recipe)
    _require_root_effect(recipe)
    for index, corpus in enumerate(recipe.data.train):
        if corpus.weight != 1.0 and len(recipe.data.train) == 1:
            raise ValueError(
                f"data.train.{index}.weight has no effect on a single training corpus; add another corpus, or remove "
                f"data.train.{index}.weight"
            )
        is_aligned = recipe.train.guided_alignment or recipe.train.glossary_markup
        if corpus.alignment is not None and not is_aligned:
            raise ValueError(
                f"data.train.{index}.alignment has no effect without guided alignment or glossary markup; set "
                f"train.guided_alignment to true or train.glossary_markup, or remove data.train.{index}.alignment"
            )
    for name, corpus in recipe.data.corpora("train", "valid", "test").items():
        if corpus.src_lang is not None and recipe.is_language_model:
            raise ValueError(f"{name}.src_lang has no effect on a language model, which has no source; remove it")
    metrics = recipe.evaluate.metrics
    if not metrics:
        raise ValueError("evaluate.metrics is empty; it must name at least one metric, such as 'bleu'")
    if repeated := [name for name in metrics if metrics.count(name) > 1]:
        raise ValueError(f"evaluate.metrics names {repeated[0]!r} twice; remove one")
    if recipe.evaluate.resamples == 1:
        raise ValueError("evaluate.resamples is 1, which gives no interval; it must be 0 or at least 2; correct it")
    _require(_NEEDS, recipe, recipe)
    _require(_TRAIN_NEEDS, recipe.train, recipe)
    # `beam_size` is not checked: commands that override `sampling` use it.
    chosen = [name for name in _changed(recipe.decode) if name != "beam_size"]
    if found := ineffective_option(chosen, recipe.decode, has_ensemble=True, needs_alignments=True):
        name, problem = found
        raise ValueError(f"decode.{problem}; change that, or remove decode.{name}")


def require_known_tags(recipe: Recipe) -> None:
    """Raise ValueError for a tag of translations that the model will not have; a reused tokenizer may have others."""
    tags = {None, *recipe.tokenizer.user_symbols, *(corpus.tag for corpus in recipe.data.train)}
    used = {f"{name}.tag": corpus.tag for name, corpus in recipe.data.corpora("valid", "test").items()}
    for option, tag in ({"decode.tag": recipe.decode.tag} | used).items():
        if tag not in tags and not recipe.reuses_tokenizer:
            raise ValueError(
                f"{option} is {tag!r}; it must be the tag of a training corpus; add it to a corpus, or correct it"
            )


def _require_tokenizer_effect(recipe: Recipe | ClassificationRecipe) -> None:
    symbols = recipe.tokenizer.user_symbols
    for symbol in symbols:
        _require_normalized(symbol, recipe.data.unicode_form)
    if repeated := [symbol for symbol in symbols if symbols.count(symbol) > 1]:
        raise ValueError(f"tokenizer.user_symbols has {repeated[0]!r} twice; symbols must be distinct; remove one")
    if not getattr(recipe, "reuses_tokenizer", False):
        _require((_COVERAGE_NEED,), recipe.tokenizer, recipe)


def _require_root_effect(recipe: Recipe | ClassificationRecipe) -> None:
    data = recipe.data
    if data.root != Path() and not any(map(_has_relative_path, (*data.train, *data.valid, *data.test.values()))):
        raise ValueError(
            "data.root has no effect, because no corpus has a relative path; name files relative to it, or remove "
            "data.root"
        )


def _has_relative_path(corpus: Corpus) -> bool:
    paths = [path for path in (*named_files(corpus), corpus.alignment) if path is not None]
    if isinstance(corpus, HuggingFaceCorpus):
        paths.append(Path(corpus.dataset))
    return not all(map(Path.is_absolute, paths))


def _require_normalized(symbol: str, form: Literal["NFC", "NFKC", "none"]) -> None:
    """Raise ValueError for a user symbol that is reserved, or that never occurs in normalized, split text."""
    wrong = f"tokenizer.user_symbols has {symbol!r}"
    if is_reserved(symbol):
        raise ValueError(f"{wrong}, which is a special token or a byte token; choose another symbol")
    if symbol.split() != [symbol]:
        raise ValueError(f"{wrong}; a symbol must have characters and no white space; correct or remove the symbol")
    if found := re.search(f"[{INVISIBLE}{CONTROL}]", symbol):
        raise ValueError(f"{wrong}, but normalized text has no {found[0]!r}; remove this character")
    if form != "none" and (normal := unicodedata.normalize(form, symbol)) != symbol:
        raise ValueError(f"{wrong}, which data.unicode_form ({form}) changes to {normal!r}; write it in that form")


def require_training_effect(recipe: ClassificationRecipe) -> None:
    """Raise ValueError for the first option of data, tokenizer or training that has no effect; see `require_effect`."""
    _require_tokenizer_effect(recipe)
    _require_root_effect(recipe)
    _require(_TRAIN_NEEDS, recipe.train, recipe)


def _require(needs: tuple[_Need[Options], ...], options: Options, recipe: Section) -> None:
    for need in needs:
        if need.has_effect(options):
            continue
        for name in need.options:
            section, option = name.split(".")
            if option in _changed(getattr(recipe, section)):
                raise ValueError(f"{name} has no effect {need.problem}, or remove {name}")


def _changed(section: Any) -> Iterator[str]:
    """Yield the options that differ from their defaults; saved recipes have all options."""
    for name, field in type(section).model_fields.items():
        if getattr(section, name) != field.get_default(call_default_factory=True):
            yield name
