"""BLEU on the validation set during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nmt.data.prepare import Prepared
from nmt.data.test_sets import reference_context
from nmt.decode.translator import Translator
from nmt.evaluate.inputs import scoring_options
from nmt.evaluate.metrics import score_corpus
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
    """Return a function that translates and scores validation sentences; None if the recipe measures no BLEU.

    Uses the first sentences or, if corpora have tags, sentences spread evenly over all corpora.
    """
    if not recipe.train.validate_bleu_every:
        return None
    valid = prepared.valid_set()
    chosen = _chosen(len(valid.src), recipe.train.validate_bleu_sentences, spread=valid.tags is not None)
    src, ref = ([side[index] for index in chosen] for side in (valid.src, valid.ref))
    tags = [None if valid.tags is None else valid.tags[index] or None for index in chosen]
    context = None
    if valid.previous is not None:
        all_context = reference_context(valid, recipe.data.context_options)
        context = [all_context[index] for index in chosen]

    def translate(model: TranslationModel, check_stop: Callable[[], None]) -> ValidationBleu | None:
        translator = _translator_of(model, recipe, prepared, world)
        by_tag = {tag: translator if tag is None else translator.with_constraints(tag) for tag in tags}
        translations: list[str] = []
        window = _WINDOW[world.device.type] * world.size
        for first in range(0, len(src), window):
            check_stop()
            part = range(first + world.rank, min(first + window, len(src)), world.size)
            found: dict[int, str] = {}
            for tag in dict.fromkeys(tags[index] for index in part):
                group = [index for index in part if tags[index] == tag]
                lines = [src[index] for index in group]
                previous = None if context is None else [context[index] for index in group]
                found |= zip(group, by_tag[tag].translate(lines, context=previous), strict=True)
            translations += [found[index] for index in part]
        shards = world.gather_text(translations)
        if shards is None:
            return None
        lines = [""] * len(src)
        for rank, shard in enumerate(shards):
            lines[rank :: len(shards)] = shard
        (bleu,) = score_corpus(lines, [ref], ["bleu"], **scoring_options(recipe, prepared.tokenizers.tgt.lowercases()))
        rows = [
            [escape_markdown(text) for text in (sample.src, sample.translation, sample.ref)]
            for sample in choose_samples(src, ref, lines, _SAMPLES)
        ]
        return ValidationBleu(bleu.value, "\n".join(markdown_rows(["source", "translation", "reference"], rows)))

    return translate


def _chosen(num_sentences: int, limit: int, *, spread: bool) -> Sequence[int]:
    """Return the indices of the first sentences, or of sentences that are spread evenly over all corpora."""
    number = min(num_sentences, limit)
    return [index * num_sentences // number for index in range(number)] if spread else range(number)


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
