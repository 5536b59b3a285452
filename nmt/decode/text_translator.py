"""Translation of text, independent of the decoding engine: splitting, constraints, joining, MBR.

`nmt.decode.translator` searches with PyTorch, `nmt.export.engine` with CTranslate2. This module does not import torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import Any, Never, Self

from nmt.decode.arguments import (
    PerLine,
    require_count,
    require_list,
    require_options,
    require_strings,
    translator_inputs,
)
from nmt.decode.context import ContextEncoder
from nmt.decode.glossary import Glossary, Required
from nmt.decode.line_encoder import RIGHT_TO_LEFT, LineEncoder
from nmt.decode.task import Previous, Task, TranslatorInput
from nmt.decode.translation import Attention, Translation, join_ranks, without_breaks
from nmt.errors import NoTranslationError, UserError
from nmt.recipe import Context, DecodeRecipe, UnicodeForm
from nmt.search.hypothesis import Hypothesis, in_reading_order
from nmt.search.limits import distinct_requirements, num_required_tokens
from nmt.search.options import SearchOptions
from nmt.text.spelling import Spelling
from nmt.text.splitting import Alternatives, Part, as_lists, assign_phrases
from nmt.text.tokenizer import Tokenizers


class TextTranslator(ABC):
    """Translate text with a search for token ids, which subclasses provide.

    Any string is a line: normalization replaces its line breaks with spaces. The translation of white space is
    empty. A line too long for the model is split, at sentence ends if possible, into parts that are translated
    separately, or truncated (`decode.long_lines`). Apart from rounding, lines do not affect each other's translation.

    max_threads:  number of threads that may translate at the same time
    lines_split:  number of lines split or truncated so far because they were too long
    lines_longer: number of lines so far that were not split, but were longer than any training sentence
    lines_reused: number of lines reused so far; 0 without a translation memory
    require:      phrases that every translation contains
    forbid:       phrases that no translation contains
    """

    max_threads: int = 1
    lines_split = lines_longer = lines_reused = 0
    longest_source: int | None = None  # see `ModelMetadata`

    _has_ensemble = False
    _shows_scores = _allows_digits = True
    _on_tokens: Callable[[list[int]], None] | None = None

    def __init__(
        self,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        reverse_target: bool,
        max_tokens: int,
        context: Context,
    ) -> None:
        """Raises UserError for options of `decode` that the model or its tokenizers do not support.

        max_positions:  maximum sentence length of the model, EOS included
        max_tokens:     maximum sentence length in training; longer lines are split, because quality drops beyond it
        reverse_target: whether the model decodes from right to left; texts are always in reading order
        """
        self._tokenizers, self._unicode_form = tokenizers, unicode_form
        self._reverse_target, self._max_positions = reverse_target, max_positions
        self._max_tokens = min(max_tokens, max_positions - 1)  # EOS needs a position too
        self._context = ContextEncoder(context, tokenizers, unicode_form)
        self._set_decode(decode)

    def __copy__(self) -> Self:
        """Return a translator with the same model."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> Never:
        """Raise TypeError for pickle and deepcopy, which cannot copy prepacked weights."""
        raise TypeError(
            f"a {type(self).__name__} can be neither pickled nor deep-copied; load one in each process; with_decode "
            "returns one with other options"
        )

    def with_decode(self, decode: DecodeRecipe, *, scores: bool = True) -> Self:
        """Return a translator with the same model and changed options; options not set in `decode` are kept.

        Raises UserError as the constructor does, and ValueError for inconsistent options or options without effect.

        scores: whether scores of translations are needed; without them some engines are faster
        """
        other = copy(self)
        other._shows_scores = scores
        other._set_decode(require_options(decode).over(self._decode, has_ensemble=self._has_ensemble))
        return other

    def with_callback(self, on_text: Callable[[str], None]) -> Self:
        """Return a translator that streams its output: the callback gets the text so far after each step.

        Only for a beam of 1 and a single line that is not split. The callback may run in another thread.
        """
        other = copy(self)
        step = -1 if self._reverse_target else 1
        other._on_tokens = lambda tokens: on_text(without_breaks(self._tokenizers.tgt.decode(tokens[::step])))
        return other

    def with_constraints(
        self, tag: str | None, forbidden: Sequence[str] = (), *, digits: bool = True, requires: bool = True
    ) -> Self:
        """Return a translator with other constraints.

        tag:       None keeps the tag
        forbidden: added to `forbid`
        digits:    False forbids digits in translations
        requires:  False drops `decode.require`
        """
        require_list("forbidden", forbidden)
        changes = {"tag": self._decode.tag if tag is None else tag, "forbid": (*self._decode.forbid, *forbidden)}
        if not requires:
            changes["require"] = ()
        other = copy(self)
        other._allows_digits &= digits
        return other.with_decode(self._decode.model_copy(update=changes), scores=self._shows_scores)

    def _set_decode(self, decode: DecodeRecipe) -> None:
        """Set everything that depends on `decode`."""
        require_options(decode)
        self._decode = decode
        self.require, self.forbid = decode.require, decode.forbid
        self._context.require_supported(decode)
        self._encoder = LineEncoder(
            self._tokenizers,
            decode,
            self._context,
            unicode_form=self._unicode_form,
            max_positions=self._max_positions,
            max_tokens=self._max_tokens,
            reverse_target=self._reverse_target,
            allows_digits=self._allows_digits,
        )
        self._tag = self._encoder.tag
        # Imported lazily: importing sacreBLEU takes longer than translating a short text.
        self._mbr: Any = None if decode.mbr_metric == "none" else import_module("nmt.decode.mbr")

    @property
    def _options(self) -> SearchOptions:
        return self._encoder.options

    @property
    def splits_sentences(self) -> bool:
        """Whether the sentences of a line are translated separately."""
        return self._decode.split_sentences

    @property
    def context(self) -> Context:
        """The document context that the model uses."""
        return self._context.context

    @property
    def lowercases(self) -> bool:
        """True if translations are always lowercase."""
        return self._tokenizers.tgt.lowercases()

    def translate(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[Required]] | None = None,
        *,
        glossary: Glossary | Sequence[Glossary | None] | None = None,
        context: Sequence[Sequence[Previous]] | None = None,
    ) -> list[str]:
        """Return the best translation of each line, in order; "" for a line of white space.

        Raises UserError as `translate_n_best` does.

        lines:    batched together by length; for more lines than fit in memory, use `stream`
        prefixes: text that each translation begins with, such as a user's input to complete; "" for none
        required: words and phrases that each translation contains, in addition to the recipe's; a tuple lists
                  alternatives, such as inflected forms
        glossary: for all lines, or one for each line, see `decode.glossary_mode`; terms that would exceed the maximum
                  length are left out
        context:  previous sentences of each line, see `nmt.decode.context`
        """
        n_best_lists = self.translate_n_best(lines, 1, prefixes, required, glossary=glossary, context=context)
        return [translations[0].text for translations in n_best_lists]

    def translate_n_best(
        self,
        lines: Sequence[str],
        n_best: int | None = None,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[Required]] | None = None,
        *,
        glossary: Glossary | Sequence[Glossary | None] | None = None,
        partial_word: bool = False,
        context: Sequence[Sequence[Previous]] | None = None,
    ) -> list[list[Translation]]:
        """Return the `n_best` best translations of each line, or as many samples; the default is that of the recipe.

        A list may be shorter, but is never empty. The i-th translation of a split line concatenates the i-th ones of
        its parts, and its score is their mean. The first part gets the prefix; `assign_phrases` assigns required
        phrases to parts; each part gets the glossary terms in its source; all other constraints apply to each part.

        partial_word: whether the last word of a prefix may be incomplete; a prefix with a space at its end is complete

        Raises UserError if `n_best` exceeds the beam size, if no translation satisfies the constraints, if the model
        returns NaN, or if an argument does not have one item per line, and TypeError for an argument of the wrong type.
        """
        inputs = translator_inputs(lines, prefixes, required, glossary, context)
        return self.translate_inputs(inputs, n_best, partial_word=partial_word)

    def translate_inputs(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None, *, partial_word: bool = False
    ) -> list[list[Translation]]:
        """Return the results of `translate_n_best`."""
        return self.start_translation(inputs, n_best, partial_word=partial_word)()

    def start_translation(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None, *, partial_word: bool = False
    ) -> Callable[[], list[list[Translation]]]:
        """Start a translation and return a function that waits for the results of `translate_n_best`.

        An engine with its own threads can then receive the next lines before these lines are done.
        """
        if self._on_tokens is not None and self._options.beam_size > 1:
            raise UserError(f"with_callback needs greedy search, got beam_size {self._options.beam_size}; set it to 1")
        if n_best is not None:
            require_count("n_best", n_best)
        num_translations = num_candidates = n_best or self._options.n_best
        if self._mbr is not None:  # MBR needs the recipe's candidates
            num_candidates = max(num_translations, self._options.n_best)
        options = self._search_options(num_candidates)
        parts_of_lines = [self._split(item.text) for item in inputs]
        tasks = [
            task
            for item, parts in zip(inputs, parts_of_lines, strict=True)
            for task in self._tasks(item, parts, partial_word=partial_word)
        ]
        finish_search = self._start_search(tasks, options)

        def finish() -> list[list[Translation]]:
            outputs = [hypotheses[:num_candidates] for hypotheses in finish_search()]
            translations = [self._translations(hypotheses) for hypotheses in outputs]
            aligned = iter(self._align([item.text for item in inputs], parts_of_lines, outputs, translations))
            return [self._combine(list(islice(aligned, len(parts))))[:num_translations] for parts in parts_of_lines]

        return finish

    def fits_beam(self, item: TranslatorInput) -> bool:
        """Return whether the beam has more slots than the required phrases and glossary terms of a line have tokens.

        With fewer, other words are often missing. Raises UserError if no output can contain all of them.
        """
        options, required = self._options, list(item.required)
        if item.glossary is not None and self._decode.glossary_mode == "constrain":
            required += item.glossary.required(item.text)
        return num_required_tokens(self._encoder.required(required)) < options.beam_size // options.beam_groups

    @property
    def unsupported(self) -> dict[str, str]:
        """Names of request fields of `nmt serve` that this engine or model does not support, with the reasons."""
        reasons: dict[str, str] = {}
        if self._reverse_target:
            reasons = dict.fromkeys(("prefix", "partial_word", "alternatives"), RIGHT_TO_LEFT)
        if self._decode.sampling:
            names = ["required", "preferred"]
            if self._decode.glossary_mode != "annotate":
                names.append("glossary")
            reasons |= dict.fromkeys(names, "it needs a search, and this model samples")
        return reasons

    def alternatives(
        self,
        line: str,
        prefix: str,
        count: int,
        required: Sequence[Required] = (),
        *,
        glossary: Glossary | None = None,
        partial_word: bool = False,
        context: Sequence[Previous] = (),
    ) -> list[Translation]:
        """Return the best translation for each of the `count` most probable tokens after a prefix.

        The most probable token comes first. Translations with the same text count once. Raises UserError if no
        translation satisfies the constraints, or if the model decodes from right to left.

        prefix: beginning of the translation
        count:  maximum number of translations
        required, glossary, context: as in `translate`, for this line
        """
        require_strings("line and prefix", [line, prefix])
        (item,) = translator_inputs([line], [prefix], [required], glossary, [context])
        require_count("count", count)
        if self._reverse_target:
            raise UserError(f"{RIGHT_TO_LEFT}; use such a model for alternatives")
        parts = self._split(line)
        if not parts:
            return self.translate_n_best([line], 1)[0]
        first, *others = self._tasks(item, parts, partial_word=partial_word)
        branches = [
            first._replace(prefix=[*first.prefix, token], partial=self._spelling.rest(first.partial, token))
            for token in self._next_tokens(first, count)
        ]
        outputs = [hypotheses[:1] for hypotheses in self._search([*branches, *others], self._search_options(1))]
        # Without any, `_translations` raises NoTranslationError for the empty list.
        branch_outputs = [hypotheses for hypotheses in outputs[: len(branches)] if hypotheses] or [[]]
        outputs = [*branch_outputs, *outputs[len(branches) :]]
        parts_of_outputs = [[parts[0]] for _ in branch_outputs] + [[part] for part in parts[1:]]
        translations = [self._translations(hypotheses) for hypotheses in outputs]
        aligned = self._align([line] * len(outputs), parts_of_outputs, outputs, translations)
        rest_of_line = aligned[len(branch_outputs) :]
        distinct: dict[str, Translation] = {}
        for beginning in aligned[: len(branch_outputs)]:
            (joined,) = join_ranks([beginning, *rest_of_line])  # no choice by MBR
            distinct.setdefault(joined.text, joined)
        return list(distinct.values())

    def attention(self, line: str, translation: Translation) -> Attention:
        """Return the attention weights for a translation of a line; raises UserError if the engine has none."""
        raise UserError("this engine has no attention weights; they need torch; use --engine torch")

    def stream(
        self,
        lines: Iterable[str],
        window: int,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[Required]] | None = None,
        *,
        glossary: Glossary | None = None,
    ) -> Iterator[list[Translation]]:
        """Translate a stream: yield `translate_n_best` of each line, in order, with `window` lines in memory at a time.

        Input is read lazily, one window at a time. The lines of a window are batched together by length, so larger
        windows are faster; a window of 1 responds line by line. Raises UserError for surplus prefixes or phrases.
        """
        require_count("window", window)
        require_list("lines", lines)
        if glossary is not None and not isinstance(glossary, Glossary):
            raise TypeError(f"glossary must be one Glossary for all lines, got {type(glossary).__name__}")
        line_iterator = iter(lines)
        prefix_iterator = PerLine("prefixes", prefixes)
        required_iterator = PerLine("required", required, "lists of phrases")
        while batch := list(islice(line_iterator, window)):
            batch_prefixes, batch_required = prefix_iterator.take(len(batch)), required_iterator.take(len(batch))
            yield from self.translate_n_best(batch, None, batch_prefixes, batch_required, glossary=glossary)
        prefix_iterator.require_end()
        required_iterator.require_end()

    def batch_key(self, line: str) -> int | None:
        """Return a key (the length) that all lines of a batch must share; None if any lines can share a batch."""
        return None

    def count_long(self, lines: Iterable[str]) -> None:
        """Count lines in `lines_split` and `lines_longer`, without translating them."""
        for line in lines:
            self._split(line)

    def _search_options(self, n_best: int) -> SearchOptions:
        """Return the options of a search for at least the `n_best` best hypotheses, or for as many samples."""
        if self._decode.sampling:
            return replace(self._options, n_best=n_best, beam_size=n_best)
        return self._context.search_options(replace(self._options, n_best=n_best))

    def _split(self, line: str) -> list[Part]:
        """Return the parts of a line, see `LineEncoder.split`, and count it if it is long."""
        parts, length = self._encoder.split(line)
        if length > self._encoder.max_tokens:
            self.lines_split += 1
        elif length > (self.longest_source or self._max_tokens) - len(self._tag):
            self.lines_longer += 1
        return parts

    def _tasks(self, item: TranslatorInput, parts: Sequence[Part], *, partial_word: bool) -> list[Task]:
        """Return the tasks of a line; run searches to assign its required phrases to its parts."""
        if not parts:  # the constraints of a line without text are ignored, even those that no output could satisfy
            return []
        tasks = self._encoder.tasks(item, parts, partial_word=partial_word)
        tasks = self._assign(tasks, self._encoder.required(item.required))
        return tasks if item.glossary is None else self._encoder.add_terms(tasks, parts, item.glossary)

    def _assign(self, tasks: list[Task], required: list[list[list[int]]]) -> list[Task]:
        """Assign the required phrases of a line to the tasks of its parts."""
        phrases = distinct_requirements(required)
        if len(tasks) < 2 or not phrases:
            return [task._replace(required=required) for task in tasks]
        options = self._search_options(1)

        def search(pairs: list[tuple[int, Alternatives]]) -> list[float]:
            constrained = [tasks[i]._replace(required=as_lists([forms])) for i, forms in pairs]
            return [best[0].log_prob if best else -math.inf for best in self._search(constrained, options)]

        outputs: list[tuple[int, ...]] = []
        log_probs: list[float] = []
        for hypotheses in self._search(tasks, options):
            best = hypotheses[0] if hypotheses else Hypothesis([], 0.0, -math.inf, [])
            outputs.append(tuple(best.tokens[::-1] if self._reverse_target else best.tokens))
            log_probs.append(best.log_prob)
        assigned = assign_phrases(phrases, outputs, log_probs, search)
        return [task._replace(required=as_lists(part)) for task, part in zip(tasks, assigned, strict=True)]

    def _combine(self, parts: Sequence[list[Translation]]) -> list[Translation]:
        """Join the translations of the parts of a line, best first; MBR replaces scores with utilities."""
        translations = join_ranks(parts)
        if not self._decode.alignments and not parts:  # an empty line has an empty alignment
            translations = [replace(translation, alignment=None) for translation in translations]
        if self._mbr is None:
            return translations
        return list(self._mbr.rank(translations, self._decode.mbr_metric, are_samples=self._decode.sampling))

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self._tokenizers.tgt.spelled())

    @abstractmethod
    def _next_tokens(self, task: Task, count: int) -> list[int]:
        """Return the `count` most probable tokens after the prefix of a task, EOS excluded, best first."""

    @abstractmethod
    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Return the `n_best` best hypotheses of each task, best first, in reading order."""

    def _start_search(self, tasks: Sequence[Task], options: SearchOptions) -> Callable[[], list[list[Hypothesis]]]:
        """Return a function that waits for `_search` results; engines with their own threads start the search here."""
        return lambda: self._search(tasks, options)

    def _align(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[list[Part]],
        outputs: Sequence[list[Hypothesis]],
        translations: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """Return the translations of each part with their alignments, if requested."""
        return list(translations)

    def _in_reading_order(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Restore the reading order of a right-to-left model; remove previous translations."""
        if not self._reverse_target:
            return self._context.remove(hypotheses, self._options, sorts=not self._decode.sampling)
        return [
            replace(output, tokens=output.tokens[::-1], token_log_probs=in_reading_order(output.token_log_probs))
            for output in hypotheses
        ]

    def _translations(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        if not hypotheses:
            raise NoTranslationError(
                "no translation is possible; the constraints exclude every output, or the model returns NaN (training "
                "diverged, or fp16 overflows above 65,504); relax the constraints, use another precision or "
                "checkpoint, or train with a lower train.learning_rate"
            )
        tokenizer = self._tokenizers.tgt
        return [
            Translation(
                text=without_breaks(tokenizer.decode(hypothesis.tokens)),
                score=hypothesis.score,
                log_prob=hypothesis.log_prob,
                pieces=tokenizer.pieces(hypothesis.tokens),
                token_log_probs=hypothesis.token_log_probs,
            )
            for hypothesis in hypotheses
        ]
