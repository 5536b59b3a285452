"""Served models and the requests that their worker threads process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from nmt.decode.glossary import Glossary, Required
from nmt.decode.memory import MemoryTranslator
from nmt.decode.task import Previous, TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.errors import CommandError, UserError
from nmt.keep.translator import PreservingTranslator, unspaced_markup
from nmt.recipe import NO_LANGUAGE, DecodeRecipe, explain, ineffective_option, overrides_by_name
from nmt.serve.batching import Batcher, BatchingOptions
from nmt.serve.log import log_warning
from nmt.serve.memory import ServedMemory

if TYPE_CHECKING:  # imports torch, which takes seconds; most servers do not need it
    from nmt.decode.scoring import TextScore, TextScorer

_MAX_CACHED_TRANSLATORS = 32  # each needs little memory besides the shared model


@dataclass(frozen=True)
class RequestOptions:
    """Search options of a request, added to those of the model. Lines with equal options may share batches.

    beam_size, length_alpha: None for the values of the model
    partial_word:  whether prefixes may end within a word
    alternatives:  whether the n_best translations differ in the first token after the prefix
    keep:          kinds to keep, see `PreservingTranslator`; excludes partial_word, alternatives, alignments and
                   stream_tokens
    is_subtitle:   see `MarkedText.parse`
    stream_tokens: whether the search, greedy or for a single sample, reports the text so far to `Line.on_text`
    """

    n_best: int = 1
    beam_size: int | None = None
    length_alpha: float | None = None
    tag: str | None = None
    forbid: tuple[str, ...] = ()
    bias: tuple[tuple[str, float], ...] = ()
    partial_word: bool = False
    alternatives: bool = False
    keep: tuple[str, ...] = ()
    is_subtitle: bool = False
    stream_tokens: bool = False
    alignments: bool = False
    scores: bool = False

    @property
    def needs_scores(self) -> bool:
        """Whether the search must return scores; without them some engines are faster."""
        return self.scores or self.n_best > 1


class Line(NamedTuple):
    """A line to translate, with the prefix of its translation.

    required: phrases that the translation must contain
    context:  previous sentences of its document, see `nmt.decode.context`
    glossary: terms to annotate or require
    on_text:  called with the output so far, in the worker thread or a thread of the engine
    """

    text: str
    prefix: str = ""
    required: tuple[Required, ...] = ()
    context: tuple[Previous, ...] = ()
    on_text: Callable[[str], None] = lambda text: None
    glossary: Glossary | None = None


class Pair(NamedTuple):
    """A source and a translation to score; `number` counts the pairs of a request from 1."""

    source: str
    target: str
    number: int


class AttentionRequest(NamedTuple):
    """A line and a translation whose attention is requested, and the options of the translation."""

    line: str
    translation: Translation
    options: RequestOptions


class ModelUnavailableError(Exception):
    """The scorer of a model cannot be loaded, for example because its files have changed."""


class ServedModel:
    """A model, its queue, and its worker threads. No other thread calls the model.

    languages:   source and target
    description: engine and precision
    batcher:     lines are grouped by RequestOptions and batch key, Pairs and AttentionRequests by their class
    translator:  with the options of the model
    memory:      translations of earlier requests; not used for partial words, alternatives or streamed tokens
    """

    def __init__(
        self,
        name: str,
        languages: tuple[str, str],
        decode: DecodeRecipe,
        translator: TextTranslator,
        load_scorer: Callable[[], TextScorer],
        batching: BatchingOptions,
        description: str,
        memory: ServedMemory | None = None,
    ) -> None:
        """Serve a translator. decode: its options; load_scorer: called at the first request for scores"""
        self.name, self.description = name, description
        self.languages, self.decode, self.memory = languages, decode, memory
        self.translator = translator
        self._scorer = lru_cache(1)(load_scorer)
        self._translator_for = lru_cache(_MAX_CACHED_TRANSLATORS)(self._make_translator)
        self._with_memory_for = lru_cache(_MAX_CACHED_TRANSLATORS)(self._add_memory)
        self._torch_lock = Lock()
        self._reported: set[str] = set()
        self.batcher = Batcher(self._process, batching, translator.max_threads)

    @property
    def unsupported(self) -> dict[str, str]:
        """Fields of requests that the engine or the model does not support, with the reason."""
        return self.translator.unsupported

    def require_aligner(self) -> None:
        """Raise UserError if the model lacks the layer or the heads for alignments."""
        self._translator_for(RequestOptions(alignments=True))

    def submit(
        self, options: RequestOptions, lines: Sequence[Line], client: Hashable = None
    ) -> list[Future[list[list[Translation]]]]:
        """Queue lines; a one-line request shares batches only with others of equal `TextTranslator.batch_key`.

        Lines with alternatives or streamed tokens are translated one by one: each needs searches of its own.
        """
        key = self.translator.batch_key(lines[0].text) if len(lines) == 1 else None
        batchable = not (options.alternatives or options.stream_tokens)
        return self.batcher.submit((options, key), lines, client, batchable=batchable)

    def _process(
        self, group: tuple[RequestOptions, int | None] | type[Pair | AttentionRequest], items: list[Any]
    ) -> Sequence[object]:
        if group is Pair:
            with self._torch_lock:
                return self._score(items)
        if group is AttentionRequest:
            with self._torch_lock:
                return [self._translator_for(item.options).attention(item.line, item.translation) for item in items]
        assert isinstance(group, tuple)
        return self._translate(group[0], items)

    def _translate(self, options: RequestOptions, lines: Sequence[Line]) -> list[list[Translation]]:
        translator = self._translator_for(options)
        inputs = [TranslatorInput(line.text, line.prefix, line.required, line.context, line.glossary) for line in lines]
        if options.alternatives:
            n_best_lists = [self._alternatives(translator, options, lines[0])]
        elif options.stream_tokens or options.partial_word:
            if options.stream_tokens:
                translator = translator.with_callback(lines[0].on_text)
            n_best_lists = translator.translate_inputs(inputs, partial_word=options.partial_word)
        elif options.keep:
            n_best_lists = self._translate_preserving(options, inputs)
        else:
            n_best_lists = self._with_memory_for(options).translate_inputs(inputs)
        self._report_long_lines(translator)
        return [translations[: options.n_best] for translations in n_best_lists]

    def _alternatives(self, translator: TextTranslator, options: RequestOptions, line: Line) -> list[Translation]:
        return translator.alternatives(
            line.text,
            line.prefix,
            options.n_best,
            line.required,
            glossary=line.glossary,
            partial_word=options.partial_word,
            context=line.context,
        )

    def _translate_preserving(
        self, options: RequestOptions, inputs: Sequence[TranslatorInput]
    ) -> list[list[Translation]]:
        """Translate inputs, preserve the kinds of `options.keep`, and warn about fallbacks."""
        wrapped = self._with_memory_for(options)
        translator = PreservingTranslator(
            wrapped, options.keep, self.languages, is_subtitle=options.is_subtitle, aligns_jointly=False
        )
        n_best_lists = translator.start_translation(inputs)()
        problem = unspaced_markup(options.keep, self.languages)
        if problem and any("<" in item.text for item in inputs):
            self._report(f"translated with its tags; {problem}")
        if translator.fallbacks.copied:
            self._report("not translated, because its translation would lack items or tags")
        if translator.fallbacks.unmet:
            problem = "translated without its prefix or a required phrase, or with a forbidden one"
            self._report(f"{problem}, because of keep")
        return n_best_lists

    def _report_long_lines(self, translator: TextTranslator) -> None:
        """Warn about the first line that is too long for the model, or longer than any training sentence."""
        hint = "; if sentences are missing, send each as a line, or use --split-sentences"
        if self.decode.split_sentences or self.decode.trees:
            hint = ""
        if translator.lines_split > self.translator.lines_split:
            result = "truncated" if self.decode.long_lines == "truncate" else f"translated in parts{hint}"
            self._report(f"too long for the model and was {result}")
        if translator.lines_longer > self.translator.lines_longer:
            self._report(f"longer than any sentence of the training text; check the translation{hint}")

    def _report(self, problem: str) -> None:
        """Warn about the first line with a problem."""
        if problem not in self._reported:
            self._reported.add(problem)
            log_warning(f"a line for {self.name} was {problem}; later ones are not reported")

    def _add_memory(self, options: RequestOptions) -> TextTranslator | MemoryTranslator:
        """Return the translator for these options, with the memory if there is one."""
        translator = self._translator_for(options)
        if self.memory is None:
            return translator
        settings = {
            **self.memory.settings,
            **self._decode_of(options).search_settings(),
            "scores": options.needs_scores,
        }
        return MemoryTranslator(translator, self.memory, settings)

    def _make_translator(self, options: RequestOptions) -> TextTranslator:
        return self.translator.with_decode(self._decode_of(options), scores=options.needs_scores)

    def _decode_of(self, options: RequestOptions) -> DecodeRecipe:
        """Return the options of the model with those of a request; raises UserError if they are inconsistent."""
        changes = {
            "n_best": max(1 if options.alternatives else options.n_best, self.decode.n_best),
            "beam_size": options.beam_size or self.decode.beam_size,
            "length_alpha": self.decode.length_alpha if options.length_alpha is None else options.length_alpha,
            "tag": self.decode.tag if options.tag is None else options.tag,
            "forbid": (*self.decode.forbid, *options.forbid),
            "bias": self.decode.bias | dict(options.bias),
            "alignments": options.alignments or ("markup" in options.keep and "alignments" not in self.unsupported),
        }
        try:
            decode = DecodeRecipe.model_validate(self.decode.model_dump() | changes)
        except ValidationError as error:
            problem = explain(error).replace("decode.bias", "preferred").replace("decode.", "")  # names of fields
            raise UserError(problem) from error
        changed = [name for name in ("beam_size", "length_alpha") if changes[name] != getattr(self.decode, name)]
        ineffective = ineffective_option(changed, decode, has_ensemble=False, needs_alignments=True)
        if ineffective:
            name, problem = ineffective
            raise UserError(f"{problem}; the server's options do not provide this; leave out {name}")
        return decode

    def _score(self, pairs: Sequence[Pair]) -> list[TextScore]:
        try:
            scorer = self._scorer()
        except (UserError, OSError) as error:  # not the client's fault
            raise ModelUnavailableError(f"the scores of {self.name} are unavailable: {error}") from error
        for pair in pairs:
            if scorer.is_language_model and pair.source.strip():
                problem = f"pair {pair.number} has a source, which {self.name} ignores, because it is a language model"
                raise UserError(f"{problem}; send an empty source")
            if not scorer.fits(pair.source, pair.target):
                raise UserError(f"pair {pair.number} exceeds the model's maximum length; split it into sentences")
        return scorer.score([pair.source for pair in pairs], [pair.target for pair in pairs])


def require_aligners(models: Sequence[ServedModel], settings: Sequence[str]) -> None:
    """Raise CommandError if an alignment option has no effect on any model, and UserError if one is invalid.

    settings: values of `--set`
    """
    options = [name for name in overrides_by_name(settings) if name.startswith("alignment_")]
    if not options:
        return
    aligning = [
        model for model in models if "alignments" not in model.unsupported and model.languages[0] != NO_LANGUAGE
    ]
    for model in aligning:
        model.require_aligner()
    if not aligning:
        needs_torch = any(model.languages[0] != NO_LANGUAGE for model in models)
        reason = "which CTranslate2 does not support" if needs_torch else "which language models do not have"
        remedy = "use --engine torch, or leave out" if needs_torch else "leave out"
        raise CommandError(f"--set {options[0]} has no effect without alignments, {reason}; {remedy} {options[0]}")
