"""Document context: previous sentences before a source and its translation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nmt.decode.task import Previous, Task
from nmt.errors import UserError
from nmt.recipe import SEPARATOR, Context, DecodeRecipe, UnicodeForm
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions, length_penalty
from nmt.special_ids import UNK_ID
from nmt.text.clean import normalize
from nmt.text.context import after_last, find_separators
from nmt.text.sentences import split_sentences
from nmt.text.tokenizer import Tokenizers


class ContextEncoder:
    """Adds context to search tasks and removes it from the results."""

    def __init__(self, context: Context, tokenizers: Tokenizers, unicode_form: UnicodeForm) -> None:
        """Raise UserError if the tokenizers have no separator."""
        self.context = context
        self._tokenizers, self._form = tokenizers, unicode_form
        self._separators = find_separators(tokenizers, context)
        self.tgt_separator = None if self._separators is None else self._separators.tgt

    def require_supported(self, decode: DecodeRecipe) -> None:
        """Raise UserError for length ratios, which would count the context as part of the source, and annotations."""
        if self.context.size and (decode.min_length_ratio or decode.max_length_ratio is not None):
            name = "min" if decode.min_length_ratio else "max"
            raise UserError(
                f"decode.{name}_length_ratio does not support a model with context; replace it with "
                f"decode.{name}_tokens, or remove decode.{name}_length_ratio"
            )
        if self.context.size and decode.glossary_mode == "annotate":
            raise UserError(
                "decode.glossary_mode 'annotate' does not support models with context; set it to 'constrain'"
            )

    def add(
        self, tasks: Sequence[Task], previous: Sequence[Previous], limit: int, *, split: bool = False
    ) -> list[Task]:
        """Prepend the previous sentences of a line to the tasks of its parts.

        Without target context, a part also gets the parts before it. If they exceed the limit, the oldest are dropped.
        As in training, sentences without text on either side are left out.

        limit: maximum number of source tokens, and of target tokens; the translation of a sentence is expected to have
               at most twice as many tokens as the sentence, or as many as its prefix
        split: whether the previous lines are split into sentences

        Raises UserError for previous sentences of the wrong type, a prefix with a separator, or context for a model
        trained without it.
        """
        if self._separators is None:
            if previous:
                raise UserError(
                    "the model translates without context; omit the context, or train a model with data.context"
                )
            return list(tasks)
        sentences = [sentence for line in previous for sentence in self._sentences(line, split)]
        encoded = [self._encode(sentence) for sentence in sentences[-self.context.size :] if self._has_text(sentence)]
        separator = self._separators.src
        tasks_with_context = []
        for task in tasks:
            if self.tgt_separator in task.prefix:
                raise UserError(f"the prefix contains {SEPARATOR}, which ends the context of this model; remove it")
            sentence = _without(separator, task.sentence)
            expected_tgt_len = max(2 * len(sentence), len(task.prefix))
            src, tgt = _newest_that_fit(encoded[-self.context.size :], limit - len(sentence), limit - expected_tgt_len)
            tasks_with_context.append(task._replace(sentence=src + sentence, prefix=tgt + task.prefix))
            if not self.context.has_target:
                encoded.append(([*sentence, separator], []))
        return tasks_with_context

    def _sentences(self, previous: Previous, split: bool) -> list[Previous]:
        if isinstance(previous, str) == self.context.has_target:
            expected = "pairs of a sentence and its translation" if self.context.has_target else "sentences"
            raise UserError(f"the context of this model must have {expected}; got {previous!r:.60}; correct it")
        if split and isinstance(previous, str):
            return list(split_sentences(normalize(previous, self._form)))
        return [previous]

    def _has_text(self, previous: Previous) -> bool:
        """Return whether a previous sentence, and its translation if it has one, have text."""
        sides = (previous,) if isinstance(previous, str) else previous
        return all(normalize(side, self._form) for side in sides)

    def _encode(self, previous: Previous) -> tuple[list[int], list[int]]:
        """Return the tokens of a previous sentence and of its translation, with separators."""
        assert self._separators is not None
        src, tgt = (previous, "") if isinstance(previous, str) else previous
        separators = self._separators
        ids = _without(separators.src, self._tokenizers.src.encode(normalize(src, self._form)))
        if separators.tgt is None:
            return [*ids, separators.src], []
        tgt_ids = _without(separators.tgt, self._tokenizers.tgt.encode(normalize(tgt, self._form)))
        return [*ids, separators.src], [*tgt_ids, separators.tgt]

    def without_previous(
        self, on_tokens: Callable[[list[int]], None] | None, tasks: Sequence[Task]
    ) -> Callable[[list[int]], None] | None:
        """Return a callback that omits the previous translations from the output of a single task."""
        if on_tokens is None or self.tgt_separator is None or len(tasks) != 1:
            return on_tokens
        start = after_last(tasks[0].prefix, self.tgt_separator)

        def on_own_tokens(tokens: list[int]) -> None:
            if len(tokens) > start:
                on_tokens(tokens[start:])

        return on_own_tokens

    def search_options(self, options: SearchOptions) -> SearchOptions:
        """Return options that keep the whole beam if `remove` reranks it without previous translations."""
        is_reranked = self.tgt_separator is not None and options.beam_groups == 1
        return replace(options, n_best=options.beam_size) if is_reranked else options

    def remove(
        self, hypotheses: Sequence[Hypothesis], options: SearchOptions, *, sorts: bool = True
    ) -> list[Hypothesis]:
        """Remove the previous translations from outputs, rescore the outputs, and sort them; samples stay in order."""
        if self.tgt_separator is None:
            return list(hypotheses)
        removed = [self._remove(hypothesis, options) for hypothesis in hypotheses]
        return sorted(removed, key=lambda hypothesis: -hypothesis.score) if sorts else removed

    def _remove(self, hypothesis: Hypothesis, options: SearchOptions) -> Hypothesis:
        start = after_last(hypothesis.tokens, self.tgt_separator)
        if not start:
            return hypothesis
        tokens = hypothesis.tokens[start:]
        log_probs = hypothesis.token_log_probs[start:]
        log_prob = sum(log_probs)
        name, alpha = options.length_penalty, options.length_alpha
        bias = hypothesis.score * length_penalty(len(hypothesis.tokens) + 1, name, alpha) - hypothesis.log_prob
        score = (log_prob + bias) / length_penalty(len(tokens) + 1, name, alpha)
        return replace(hypothesis, tokens=tokens, score=score, log_prob=log_prob, token_log_probs=log_probs)


def _without(separator: int, tokens: Sequence[int]) -> list[int]:
    """Return the tokens of a text; a separator in it becomes the unknown token."""
    return [UNK_ID if token == separator else token for token in tokens]


def _newest_that_fit(
    previous: Sequence[tuple[list[int], list[int]]], max_src_len: int, max_tgt_len: int
) -> tuple[list[int], list[int]]:
    """Concatenate the newest previous sentences that fit these lengths, and their translations."""
    src: list[int] = []
    tgt: list[int] = []
    for previous_src, previous_tgt in reversed(previous):
        if len(previous_src) + len(src) > max_src_len:
            break
        if previous_tgt and len(previous_tgt) + len(tgt) > max_tgt_len:
            break
        src, tgt = previous_src + src, previous_tgt + tgt
    return src, tgt
