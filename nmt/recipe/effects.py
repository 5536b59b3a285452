"""Options that have an effect only with others: a recipe that sets them alone is an error."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.recipe.corpora import (
    Corpus,
    HuggingFaceCorpus,
    ToyCorpus,
    TreesCorpus,
    UnicodeForm,
    has_label,
    is_reserved,
    named_files,
)
from nmt.recipe.decoding import ineffective_option
from nmt.recipe.model import DROPOUT_OPTIONS
from nmt.recipe.removed_characters import CONTROL, INVISIBLE

if TYPE_CHECKING:
    from nmt.recipe.classification import ClassificationRecipe
    from nmt.recipe.sections import Recipe


def _scores_bleu(recipe: Recipe) -> bool:
    """Return whether something is scored with `bleu`: tests, their labels, or the validation set."""
    has_labels = any(isinstance(test, ToyCorpus) or has_label(test) for test in recipe.data.test.values())
    return "bleu" in recipe.evaluate.metrics or recipe.train.validate_bleu_every > 0 or has_labels


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


def _reject(recipe: Recipe | ClassificationRecipe, options: str, problem: str) -> None:
    """Raise ValueError for the first option without effect that differs from its default.

    options: names with their sections, separated by spaces
    problem: the message after `OPTION has no effect`, with a remedy
    """
    for name in options.split():
        section, option = name.split(".")
        if option in getattr(recipe, section).changed_options():
            raise ValueError(f"{name} has no effect {problem}, or remove {name} (on the command line: {name}=)")


def _require_train_effect(recipe: Recipe | ClassificationRecipe) -> None:
    train, reject = recipe.train, partial(_reject, recipe)
    if train.schedule not in ("cosine", "linear"):
        reject("train.final_rate_ratio", "on this schedule; set train.schedule to 'cosine' or 'linear'")
    if train.schedule != "plateau":
        reject("train.plateau_factor train.plateau_patience", "on this schedule; set train.schedule to 'plateau'")
    if not train.validate_bleu_every:
        reject("train.validate_bleu_sentences", "without validation BLEU; set train.validate_bleu_every")
    if not train.subword_sampling:
        reject("train.subword_sampling_sides", "without sampled segmentations; set train.subword_sampling")
    if not train.guided_alignment:
        reject("train.guided_alignment_weight", "without guided alignment; set train.guided_alignment to true")
    if train.average == "ema":
        reject("train.average_count", "on the EMA; set train.average to 'last' or 'best'")
    if train.start_from is None:
        reject("train.start_optimizer", "without a checkpoint; set train.start_from")


def _require_translation_effect(recipe: Recipe) -> None:
    reject, model = partial(_reject, recipe), recipe.model
    algorithm, reuses_tokenizer = recipe.tokenizer.algorithm, recipe.reuses_tokenizer
    if not recipe.data.context:
        reject("data.context_sides", "if data.context is 0; set data.context to 1 or more")
    if len(recipe.data.train) == 1:
        reject("data.temperature", "on a single training corpus; add another corpus")
    if recipe.is_language_model:
        reject(
            "data.max_length_ratio data.drop_identical data.long_sources train.subword_sampling_sides "
            "decode.alignments decode.shortlist decode.split_sentences decode.fusion decode.min_length_ratio "
            "decode.max_length_ratio",
            "on a language model, which has no source; set src_lang",
        )
        reject(
            "evaluate.metrics evaluate.tokenize evaluate.resamples evaluate.lead_sentences evaluate.samples",
            "on a language model, whose test sets are scored by likelihood; set src_lang",
        )
    if not _scores_bleu(recipe):
        reject("evaluate.tokenize", "without metric 'bleu'; add 'bleu' to evaluate.metrics")
    if algorithm not in ("bpe", "unigram") and not reuses_tokenizer:
        reject("train.subword_sampling", "on characters or bytes; set tokenizer.algorithm to 'bpe' or 'unigram'")
    if _samples_trees(recipe):
        on_trees = "on trees, which have a token per bracket; set train.subword_sampling_sides to 'src'"
        reject("train.subword_sampling", on_trees)
    has_trees = any(isinstance(corpus, TreesCorpus) for corpus in recipe.data.train)
    if algorithm == "byte" and not reuses_tokenizer and not has_trees:
        on_bytes = "on bytes, which need no training; set tokenizer.algorithm to 'bpe', 'unigram' or 'char'"
        reject("tokenizer.training_pairs", on_bytes)
    if not _has_tree_tokens(recipe):
        reject(
            "decode.trees",
            "on this text; it needs corpora of kind 'trees', tokenizer.joint = false, and neither data.reverse_target "
            "nor data.context; change these",
        )
    if not any(getattr(model, option) for option in DROPOUT_OPTIONS):
        reject("train.rdrop train.dropout_ramp_steps", "without dropout; set model.dropout")


def require_effect(recipe: Recipe) -> None:
    """Raise ValueError for the first option that differs from its default and has no effect."""
    _require_tokenizer_effect(recipe)
    _require_root_effect(recipe)
    _require_corpora_effect(recipe)
    _require_evaluation_effect(recipe)
    _require_translation_effect(recipe)
    _require_train_effect(recipe)
    _require_decode_effect(recipe)


def _require_corpora_effect(recipe: Recipe) -> None:
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


def _require_evaluation_effect(recipe: Recipe) -> None:
    metrics = recipe.evaluate.metrics
    if not metrics:
        raise ValueError("evaluate.metrics is empty; it must name at least one metric, such as 'bleu'")
    if repeated := [name for name in metrics if metrics.count(name) > 1]:
        raise ValueError(f"evaluate.metrics names {repeated[0]!r} twice; remove one")
    if recipe.evaluate.resamples == 1:
        raise ValueError("evaluate.resamples is 1, which gives no interval; it must be 0 or at least 2; correct it")


def _require_decode_effect(recipe: Recipe) -> None:
    # `beam_size` is not checked: commands that override `sampling` use it.
    chosen = [name for name in recipe.decode.changed_options() if name != "beam_size"]
    if found := ineffective_option(chosen, recipe.decode, has_ensemble=True, needs_alignments=True):
        name, problem = found
        raise ValueError(f"decode.{problem}; change that, or remove decode.{name}")


def _require_tokenizer_effect(recipe: Recipe | ClassificationRecipe) -> None:
    symbols = recipe.tokenizer.user_symbols
    for symbol in symbols:
        _require_normalized(symbol, recipe.data.unicode_form)
    if repeated := [symbol for symbol in symbols if symbols.count(symbol) > 1]:
        raise ValueError(f"tokenizer.user_symbols has {repeated[0]!r} twice; symbols must be distinct; remove one")
    if recipe.tokenizer.algorithm == "byte" and not getattr(recipe, "reuses_tokenizer", False):
        on_bytes = "on bytes, which cover all characters; set tokenizer.algorithm to 'bpe', 'unigram' or 'char'"
        _reject(recipe, "tokenizer.character_coverage", on_bytes)


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


def _require_normalized(symbol: str, form: UnicodeForm) -> None:
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
    _require_train_effect(recipe)
