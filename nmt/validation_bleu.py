"""BLEU on the validation set during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.data.prepare import Prepared
from nmt.data.test_sets import TestSet, reference_context
from nmt.decode.translator import Translator
from nmt.evaluate.metrics import score_corpus, scoring_options
from nmt.evaluate.report import choose_samples
from nmt.evaluate.tables import escape_markdown, markdown_rows
from nmt.models import TranslationModel
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.data import TranslateValidation, ValidationBleu

# Sentences per rank between two checks for a stop signal. A GPU translates more sentences at a time than a CPU, but
# fewer than without training, which needs the memory.
_WINDOW = {"cpu": 32, "cuda": 128}
_BATCH_TOKENS = 2_048
_SAMPLES = 5


def validation_translator(recipe: Recipe, prepared: Prepared, world: World) -> TranslateValidation | None:
    """Return a function that translates and scores validation sentences; None if the recipe measures no BLEU."""
    if not recipe.train.validate_bleu_every:
        return None
    sentences = _choose_sentences(recipe, prepared.valid_set())

    def translate(model: TranslationModel, check_stop: Callable[[], None]) -> ValidationBleu | None:
        translator, tags = _translator_of(model, recipe, prepared, world), dict.fromkeys(sentences.tags)
        by_tag = {tag: translator if tag is None else translator.with_constraints(tag) for tag in tags}
        translations: list[str] = []
        window = _WINDOW[world.device.type] * world.size
        for first in range(0, len(sentences.src), window):
            check_stop()
            part = range(first + world.rank, min(first + window, len(sentences.src)), world.size)
            translations += sentences.translate(part, by_tag)
        shards = world.gather_text(translations)
        if shards is None:
            return None
        lines = [""] * len(sentences.src)
        for rank, shard in enumerate(shards):
            lines[rank :: len(shards)] = shard
        return sentences.score(lines, scoring_options(recipe, prepared.tokenizers.tgt.lowercases()))

    return translate


@dataclass(frozen=True)
class _Sentences:
    """Validation sentences with their references, tags (None for no tag) and context (None without context)."""

    src: list[str]
    ref: list[str]
    tags: list[str | None]
    context: list[list[str | tuple[str, str]]] | None

    def translate(self, indices: Sequence[int], by_tag: Mapping[str | None, Translator]) -> list[str]:
        """Translate the sentences with these indices, all of a tag together. by_tag: a translator for each tag"""
        translations: dict[int, str] = {}
        for tag in dict.fromkeys(self.tags[index] for index in indices):
            group = [index for index in indices if self.tags[index] == tag]
            context = None if self.context is None else [self.context[index] for index in group]
            found = by_tag[tag].translate([self.src[index] for index in group], context=context)
            translations |= zip(group, found, strict=True)
        return [translations[index] for index in indices]

    def score(self, translations: Sequence[str], options: Mapping[str, Any]) -> ValidationBleu:
        """Score the translations of all sentences, and select samples. options: see `scoring_options`"""
        (bleu,) = score_corpus(translations, [self.ref], ["bleu"], **options)
        rows = [
            [escape_markdown(text) for text in (sample.src, sample.translation, sample.ref)]
            for sample in choose_samples(self.src, self.ref, translations, _SAMPLES)
        ]
        return ValidationBleu(bleu.value, "\n".join(markdown_rows(["source", "translation", "reference"], rows)))


def _choose_sentences(recipe: Recipe, valid: TestSet) -> _Sentences:
    """Choose the first sentences or, if corpora have tags, sentences spread evenly over all corpora."""
    total, number = len(valid.src), min(len(valid.src), recipe.train.validate_bleu_sentences)
    chosen = range(number) if valid.tags is None else [index * total // number for index in range(number)]
    context = None if valid.previous is None else reference_context(valid, recipe.data.context_options)
    return _Sentences(
        src=[valid.src[index] for index in chosen],
        ref=[valid.ref[index] for index in chosen],
        tags=[None if valid.tags is None else valid.tags[index] or None for index in chosen],
        context=None if context is None else [context[index] for index in chosen],
    )


def _translator_of(model: TranslationModel, recipe: Recipe, prepared: Prepared, world: World) -> Translator:
    decode = recipe.decode
    if decode.batch_tokens == "auto":  # training needs the memory of the GPU
        decode = decode.model_copy(update={"batch_tokens": _BATCH_TOKENS})
    return Translator(
        model,
        prepared.tokenizers,
        decode,
        max_positions=recipe.model.max_positions,
        unicode_form=recipe.data.unicode_form,
        device=world.device,
        reverse_target=recipe.data.reverse_target,
        max_tokens=recipe.data.max_tokens,
        context=recipe.data.context_options,
    )
