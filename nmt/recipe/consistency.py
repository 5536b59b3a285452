"""Checks that the sections of a recipe fit together. All raise ValueError for the first options that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.recipe.corpora import NO_LANGUAGE, MonolingualCorpus
from nmt.recipe.term_markers import TERM_MARKERS

if TYPE_CHECKING:
    from nmt.recipe.sections import Recipe


def require_markup_support(recipe: Recipe) -> None:
    """Check the options that glossary markup affects."""
    if recipe.decode.glossary_mode == "annotate" and not recipe.train.glossary_markup and not recipe.reuses_tokenizer:
        raise ValueError(
            "decode.glossary_mode is 'annotate', which needs a model trained with marked terms; set "
            "train.glossary_markup to 0.1, or glossary_mode to 'constrain'"
        )
    if not recipe.train.glossary_markup:
        return
    if recipe.train.guided_alignment or recipe.train.subword_sampling:
        other = "guided_alignment" if recipe.train.guided_alignment else "subword_sampling"
        raise ValueError(
            f"train.glossary_markup adds tokens to the source, which train.{other} does not support; set one of "
            "them to 0 or false"
        )
    if recipe.is_language_model:
        raise ValueError("train.glossary_markup needs a source; a language model has none; set it to 0")
    if recipe.data.context:
        raise ValueError(
            "train.glossary_markup marks terms of single sentences, and data.context adds other sentences; set one "
            "of them to 0"
        )
    if not recipe.tokenizer.joint and not recipe.reuses_tokenizer:
        raise ValueError(
            "train.glossary_markup writes target words in the source, which needs one tokenizer for both "
            "languages; set tokenizer.joint to true"
        )
    for index, corpus in enumerate(recipe.data.train):
        if corpus.tag in TERM_MARKERS:
            raise ValueError(
                f"data.train.{index}.tag is {corpus.tag!r}, which train.glossary_markup uses; choose another tag"
            )


def require_fitting_sections(recipe: Recipe) -> None:
    """Check the other options that depend on options of another section."""
    is_three_way = recipe.model.tied_embeddings == "three-way" and _is_known(recipe, "tied_embeddings")
    if is_three_way and not recipe.tokenizer.joint:
        raise ValueError(
            "tokenizer.joint is false, but three-way tied embeddings need one vocabulary; "
            "set tokenizer.joint to true or model.tied_embeddings to 'decoder'"
        )
    if recipe.train.guided_alignment and recipe.data.context:
        raise ValueError(
            "train.guided_alignment aligns single sentences, and data.context adds other sentences; set only one"
        )
    if recipe.model.architecture == "gru":
        _require_gru_support(recipe)
    _require_alignment_heads(recipe)
    if (recipe.data.long_sources == "truncate") != (recipe.decode.long_lines == "truncate"):
        raise ValueError(
            f"data.long_sources is {recipe.data.long_sources!r} and decode.long_lines is "
            f"{recipe.decode.long_lines!r}; a model must be used as it was trained; set both to 'truncate', or neither"
        )
    _require_known_tags(recipe)
    _require_sources(recipe)
    if recipe.is_language_model:
        _require_language_model_support(recipe)
    _require_capacity(recipe)


def _is_known(recipe: Recipe, option: str) -> bool:
    """Return whether an option of the model section is final: without a value, it is that of the initial model."""
    return recipe.train.start_from is None or option in recipe.model.model_fields_set


def _require_gru_support(recipe: Recipe) -> None:
    """Check the options of training that the GRU model does not support."""
    if recipe.train.compile:
        raise ValueError(
            "train.compile is true; architecture 'gru' runs in torch's own kernels, which are not compiled; set "
            "train.compile to false"
        )
    if recipe.train.shapes == "fixed":
        raise ValueError("train.shapes is 'fixed', which architecture 'gru' does not support; set it to 'auto'")


def _require_alignment_heads(recipe: Recipe) -> None:
    """Check that the model has the layer and the heads of alignments."""
    layers, heads = recipe.model.cross_attentions
    layer = recipe.decode.alignment_layer
    if layer is not None and layer >= layers and _is_known(recipe, "num_decoder_layers"):
        raise ValueError(
            f"decode.alignment_layer is {layer}; the decoder has layers 0 to {layers - 1}; choose one of them"
        )
    wrong = [head for head in recipe.decode.alignment_heads if head >= heads]
    if wrong and _is_known(recipe, "num_heads"):
        raise ValueError(
            f"decode.alignment_heads names head {wrong[0]}; layers have heads 0 to {heads - 1}; choose from these"
        )


def _require_known_tags(recipe: Recipe) -> None:
    """Check that the model will have the tags of translations; a reused tokenizer may have others."""
    tags = {None, *recipe.tokenizer.user_symbols, *recipe.data.tags}
    used = {f"{name}.tag": corpus.tag for name, corpus in recipe.data.corpora("valid", "test").items()}
    for option, tag in ({"decode.tag": recipe.decode.tag} | used).items():
        if tag not in tags and not recipe.reuses_tokenizer:
            raise ValueError(
                f"{option} is {tag!r}; it must be the tag of a training corpus; add it to a corpus, or correct it"
            )


def _require_sources(recipe: Recipe) -> None:
    """Check that the corpora have sources, or that those of a language model have none."""
    for name, corpus in recipe.data.corpora("train", "valid", "test").items():
        has_source = not isinstance(corpus, MonolingualCorpus)
        if not has_source and not recipe.is_language_model:
            raise ValueError(
                f"{name} has no source, but src_lang is {recipe.src_lang!r}; a language model has none; set "
                f"src_lang to {NO_LANGUAGE!r}, or give pairs"
            )
        if has_source and recipe.is_language_model:
            raise ValueError(
                f"{name} has kind {corpus.kind!r}, but src_lang is {NO_LANGUAGE!r}; a language model has no "
                "source; give corpora of kind 'monolingual', or correct src_lang"
            )


def _require_language_model_support(recipe: Recipe) -> None:
    """Check the options that a language model does not support."""
    if not recipe.tokenizer.joint and not recipe.reuses_tokenizer:
        raise ValueError("tokenizer.joint is false; a language model has one language; set tokenizer.joint to true")
    if recipe.data.context:
        raise ValueError("data.context needs a source; a language model has none; set it to 0")
    if recipe.train.guided_alignment:
        raise ValueError("train.guided_alignment needs a source; a language model has none; set it to false")
    if recipe.train.validate_bleu_every:
        raise ValueError("train.validate_bleu_every needs translations; a language model has none; set it to 0")


def _require_capacity(recipe: Recipe) -> None:
    """Check that the longest sentence of the training text fits the model, its alignment links and a micro-batch."""
    max_tokens = recipe.data.max_tokens
    if max_tokens + 1 > recipe.model.max_positions and _is_known(recipe, "max_positions"):
        raise ValueError(
            f"data.max_tokens is {max_tokens}; the model also needs a position for EOS; "
            f"set model.max_positions to {max_tokens + 1} or more"
        )
    if (recipe.train.guided_alignment or recipe.train.glossary_markup) and max_tokens > 65_535:
        option = "guided_alignment" if recipe.train.guided_alignment else "glossary_markup"
        raise ValueError(f"data.max_tokens is {max_tokens}; it must be at most 65535 with train.{option}; lower it")
    if recipe.train.micro_batch_tokens != "auto" and max_tokens + 1 > recipe.train.micro_batch_tokens:
        raise ValueError(
            f"train.micro_batch_tokens is {recipe.train.micro_batch_tokens}; the longest sentence must fit; "
            f"set train.micro_batch_tokens to {max_tokens + 1} or more, or lower data.max_tokens"
        )
