"""Translation with CTranslate2's beam search, without torch.

CTranslate2 stops a search as nmt does with `decode.stop` "first" or "patience", so it finds the same translations as
nmt, up to rounding. Five differences need care:

Scores   CTranslate2 excludes a prefix from its scores, and renormalizes over the tokens that are not suppressed. If
         exact scores are needed, its score_batch rescores the outputs in one pass: true log-probabilities that include
         EOS and a prefix.
Penalty  CTranslate2 only has n^alpha. For the GNMT penalty it searches with the closest n^alpha and returns all
         hypotheses, which are then ranked by the GNMT penalty.
Limits   A call has one maximum length for all its sentences. Sentences with different limits are searched separately,
         because a longer search may also find a different output within the limit.
EOS      A hypothesis that reaches the limit has no EOS. Its last token, at the position of EOS, is removed. Exact
         scores include EOS instead.
Padding  Attention over a padded source is rounded differently, which int8 amplifies. Therefore all sentences of a batch
         have equal lengths, and int8 results hardly ever depend on the batch. The rounding of fp32 matmuls depends on
         the batch size. Therefore outputs are rescored one by one on a CPU, and only near ties can change a
         translation.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Any, NamedTuple, Self, cast, get_args

from nmt.decode.arguments import require_count, require_list, require_options
from nmt.decode.task import Task
from nmt.decode.text_translator import TextTranslator
from nmt.export.cache import open_conversion
from nmt.export.capabilities import (
    EngineDevice,
    default_translators,
    enable_avx512,
    engine_errors,
    length_exponent,
    max_hypotheses,
    require_supported,
    select_compute_type,
    select_device,
)
from nmt.export.packages import load_package
from nmt.recipe import NO_CONTEXT, Context, DecodeRecipe, SearchPrecision, UserError
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import max_output_length, output_limits
from nmt.search.options import SearchOptions, length_penalty
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS, read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.clean import UnicodeForm, normalize
from nmt.text.tokenizer import Tokenizers

BATCH_TOKENS = 256
"""Default number of source tokens per batch; smaller than for torch, because steps have less overhead."""

_NO_REQUIRED = (
    "CTranslate2 does not support the required phrases or glossary of this line; use --engine torch, or remove the "
    "phrases and the glossary"
)
_NO_PARTIAL_WORDS = "--engine ctranslate2 does not support prefixes within a word; use --engine torch"

_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.0002, 0.001
_MAX_POSTED_BATCHES = 3  # per translator


class CTranslate2Engine:
    """A loaded CTranslate2 model that takes token ids; several threads may call it at once.

    num_translators: number of batches decoded in parallel
    """

    def __init__(
        self, directory: Path, tokenizers: Tokenizers, device: EngineDevice, compute_type: str, translators: int = 1
    ) -> None:
        """Load the CTranslate2 model in `directory`; raises UserError if that fails.

        translators: number of batches decoded in parallel, each by one thread; they share the weights
        """
        enable_avx512()
        with engine_errors():
            self._translator = load_package("ctranslate2").Translator(
                str(directory),
                device=device.kind,
                device_index=device.index,
                compute_type=compute_type,
                inter_threads=translators,
                intra_threads=1,
                max_queued_batches=-1,  # a full queue would block and delay signals; `_post` limits it instead
            )
        self.num_translators = translators
        # Sums of integers are exact. Those of floats depend on the number of sentences in a batch.
        self._scores_alone = device.kind == "cpu" and compute_type != "int8"
        self._lock = Lock()
        self._max_posted = _MAX_POSTED_BATCHES * translators
        self._waiting: deque[_Batch] = deque()
        self._posted: list[_Batch] = []
        self._src_pieces = tokenizers.src.pieces(range(tokenizers.src.vocab_size))
        self._tgt_pieces = tokenizers.tgt.pieces(range(tokenizers.tgt.vocab_size))
        self._tgt_ids = {piece: token for token, piece in enumerate(self._tgt_pieces)}

    def search(
        self, tasks: Sequence[Task], options: SearchOptions, batch_tokens: int, *, scores: bool = True
    ) -> list[list[Hypothesis]]:
        """Return the `n_best` best translations of each source, best first.

        scores: False if scores are not used; they may then be CTranslate2's own, without token log-probabilities
        """
        return self.start_search(tasks, options, batch_tokens, scores=scores)()

    def start_search(
        self,
        tasks: Sequence[Task],
        options: SearchOptions,
        batch_tokens: int,
        *,
        scores: bool = True,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Callable[[], list[list[Hypothesis]]]:
        """Start a search like `search`, and return a function that waits for its results.

        on_tokens: receives the token ids of the output so far, for one task and a beam of 1
        """
        prefixes = [task.prefix[: max_output_length(options, task.prefix)] for task in tasks]
        tasks = [task._replace(prefix=prefix) for task, prefix in zip(tasks, prefixes, strict=True)]
        limits, minimums = output_limits(options, [len(task.sentence) for task in tasks], prefixes)
        groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for i, prefix in enumerate(prefixes):
            groups[limits[i], minimums[i], bool(prefix)].append(i)
        searches = []
        for (longest, shortest, has_prefix), indices in groups.items():
            arguments = self._arguments(options, longest, shortest, all_hypotheses=has_prefix)
            if on_tokens is not None and options.beam_size == len(tasks) == 1:
                arguments["callback"] = self._reporter(on_tokens)
            searches.append(self._start([tasks[i] for i in indices], arguments, batch_tokens))

        def finish() -> list[list[Hypothesis]]:
            outputs: dict[int, list[_Output]] = {}
            try:
                for indices, search in zip(groups.values(), searches, strict=True):
                    outputs.update(zip(indices, self._finish(search, options), strict=True))
            except BaseException:  # such as KeyboardInterrupt; later calls would wait for the other batches
                self._cancel({batch for search in searches for batch in search.batches})
                raise
            suppresses = options.forbidden or options.no_repeat_ngram or options.min_tokens or options.min_length_ratio
            if scores or suppresses or any(prefixes):
                outputs = self._rescore(tasks, outputs, batch_tokens)
            return [_rank(outputs[i], options) for i in range(len(tasks))]

        return finish

    def next_tokens(self, task: Task, count: int) -> list[int]:
        """Return the `count` most probable tokens after the prefix of a task, EOS excluded, best first."""
        with engine_errors():
            (result,) = self._translator.translate_batch(
                [[self._src_pieces[token] for token in task.sentence]],
                target_prefix=[[self._tgt_pieces[token] for token in task.prefix]],
                beam_size=1,
                num_hypotheses=count,
                return_alternatives=True,
                max_decoding_length=len(task.prefix) + 1,
                min_decoding_length=len(task.prefix) + 1,
                max_input_length=0,
                disable_unk=True,
            )
        return [self._tgt_ids[hypothesis[len(task.prefix)]] for hypothesis in result.hypotheses]

    def _reporter(self, on_tokens: Callable[[list[int]], None]) -> Callable[[Any], bool]:
        """Return a callback for CTranslate2, which calls it for each token, including those of the prefix."""
        tokens: list[int] = []

        def report(step: Any) -> bool:
            if step.token_id != EOS_ID:
                tokens.append(self._tgt_ids[step.token])
                on_tokens(tokens)
            return False  # do not stop

        return report

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_tokens: int) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens and EOS; pairs have no special tokens."""
        pending: dict[int, Any] = {}
        with engine_errors():
            for indices in _split_batches([(len(src), len(tgt)) for src, tgt in pairs], batch_tokens):
                sources = [[self._src_pieces[token] for token in pairs[i][0]] for i in indices]
                targets = [[self._tgt_pieces[token] for token in pairs[i][1]] for i in indices]
                results = self._translator.score_batch(sources, targets, max_input_length=0, asynchronous=True)
                pending.update(zip(indices, results, strict=True))
            _poll(lambda: all(result.done() for result in pending.values()))
            return [list(pending[i].result().log_probs) for i in range(len(pairs))]

    def _rescore(
        self, tasks: Sequence[Task], outputs: Mapping[int, list[_Output]], batch_tokens: int
    ) -> dict[int, list[_Output]]:
        """Return the outputs of each task with true log-probabilities, which do not depend on the batch on a CPU."""
        candidates = [(i, output) for i, task_outputs in outputs.items() for output in task_outputs]
        pairs = [(tasks[i].sentence, output.tokens) for i, output in candidates]
        rescored: dict[int, list[_Output]] = {i: [] for i in outputs}
        scores = self.score(pairs, 0 if self._scores_alone else batch_tokens)
        for (i, output), log_probs in zip(candidates, scores, strict=True):
            rescored[i].append(_Output(output.tokens, math.fsum(log_probs), log_probs))
        return rescored

    def _arguments(self, options: SearchOptions, longest: int, shortest: int, all_hypotheses: bool) -> dict[str, Any]:
        """Return the arguments of translate_batch. longest: maximum output length including EOS"""
        returns_all = all_hypotheses or options.length_penalty == "gnmt"
        return search_arguments(options, self._tgt_pieces) | {
            "num_hypotheses": max_hypotheses(options) if returns_all else options.n_best,
            "max_input_length": 0,
            "max_decoding_length": longest,
            "min_decoding_length": shortest,
            "return_scores": True,
            "asynchronous": True,
        }

    def _start(self, tasks: Sequence[Task], arguments: dict[str, Any], batch_tokens: int) -> _Search:
        """Start translating tasks; either all or none have a prefix."""
        batches = []
        lengths = [(len(task.sentence), len(task.prefix)) for task in tasks]
        for indices in _split_batches(lengths, batch_tokens):
            sources = [[self._src_pieces[token] for token in tasks[i].sentence] for i in indices]
            prefixes = [[self._tgt_pieces[token] for token in tasks[i].prefix] for i in indices]
            post = partial(
                self._translator.translate_batch,
                sources,
                target_prefix=prefixes if any(prefixes) else None,
                **arguments,
            )
            batches.append(_Batch(indices, post))
        self._waiting.extend(batches)
        self._post()
        return _Search(len(tasks), arguments["max_decoding_length"], batches)

    def _post(self) -> None:
        """Pass further batches to CTranslate2: only a few, because posted batches cannot be canceled."""
        with self._lock:
            self._posted = [batch for batch in self._posted if not batch.is_done]
            while self._waiting and len(self._posted) < self._max_posted:
                batch = self._waiting.popleft()
                try:
                    batch.results = batch.post()
                except (RuntimeError, ValueError) as error:  # for the thread that waits for this batch
                    failed: Future[Any] = Future()
                    failed.set_exception(error)
                    batch.results = [failed] * len(batch.indices)
                self._posted.append(batch)

    def _cancel(self, batches: set[_Batch]) -> None:
        """Remove batches that have not been passed to CTranslate2."""
        with self._lock:
            self._waiting = deque(batch for batch in self._waiting if batch not in batches)

    def _finish(self, search: _Search, options: SearchOptions) -> list[list[_Output]]:
        """Wait for the outputs of each source."""
        outputs: list[list[_Output]] = [[]] * search.num_tasks
        exponent = length_exponent(options)
        for batch in search.batches:
            _poll(partial(self._advance, batch))
            with engine_errors():
                for i, result in zip(batch.indices, batch.results, strict=True):
                    outputs[i] = self._outputs(result.result(), search.longest, exponent)
        return outputs

    def _advance(self, batch: _Batch) -> bool:
        """Post further batches, and return whether this one is done. No other thread reads a batch that is done."""
        self._post()
        with self._lock:
            return bool(batch.results) and batch not in self._posted

    def _outputs(self, result: Any, longest: int, exponent: float) -> list[_Output]:
        """Convert the distinct hypotheses of one source; those without EOS are truncated to leave a position for it."""
        outputs: dict[tuple[int, ...], _Output] = {}
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
            tokens = [self._tgt_ids[piece] for piece in hypothesis]
            output = tokens[:-1] if tokens[-1:] == [EOS_ID] else tokens[: longest - 1]
            outputs.setdefault(tuple(output), _Output(output, score * len(tokens) ** exponent, []))
        return list(outputs.values())


@dataclass(eq=False)
class _Batch:
    """Sources that are decoded together: their indices, the call that posts them, and then its results."""

    indices: list[int]
    post: Callable[[], list[Any]]
    results: list[Any] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return bool(self.results) and all(result.done() for result in self.results)


class _Search(NamedTuple):
    """A running search with a common maximum output length."""

    num_tasks: int
    longest: int
    batches: list[_Batch]


class _Output(NamedTuple):
    """A hypothesis of CTranslate2.

    tokens:          without EOS
    token_log_probs: empty if unknown
    """

    tokens: list[int]
    log_prob: float
    token_log_probs: list[float]


def _split_batches(lengths: Sequence[tuple[int, int]], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of batches of equal lengths and at most `batch_tokens` source tokens, longest sentences first.

    lengths: of source and target (or its prefix), without EOS
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        longest = lengths[batch[0]] if batch else (0, 0)
        is_full = (len(batch) + 1) * (longest[0] + 1) > batch_tokens
        if batch and (is_full or lengths[i] != longest):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def search_arguments(options: SearchOptions, tgt_pieces: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of translate_batch that do not depend on the input. tgt_pieces: the target vocabulary"""
    suppressed = [(PAD_ID,), (BOS_ID,), *options.forbidden]
    return {
        "beam_size": options.beam_size,
        "patience": options.patience if options.stop == "patience" and options.beam_size > 1 else 1.0,
        "length_penalty": length_exponent(options),
        "no_repeat_ngram_size": options.no_repeat_ngram,
        "disable_unk": True,
        "suppress_sequences": [[tgt_pieces[token] for token in sequence] for sequence in suppressed],
        "return_end_token": True,  # then EOS counts for the length penalty, as in nmt
    }


def _rank(outputs: Sequence[_Output], options: SearchOptions) -> list[Hypothesis]:
    """Return the `n_best` best outputs, best first."""
    hypotheses = []
    for tokens, log_prob, token_log_probs in outputs:
        penalty = length_penalty(len(tokens) + 1, options.length_penalty, options.length_alpha)
        hypotheses.append(Hypothesis(tokens, log_prob / penalty, log_prob, token_log_probs))
    finite = [hypothesis for hypothesis in hypotheses if math.isfinite(hypothesis.log_prob)]
    return sorted(finite, key=lambda hypothesis: -hypothesis.score)[: options.n_best]


def _poll(is_done: Callable[[], bool]) -> None:
    """Poll at short intervals, because Python handles signals only between bytecode instructions."""
    interval = _MIN_POLL_SECONDS
    while not is_done():
        sleep(interval)
        interval = min(2 * interval, _MAX_POLL_SECONDS)


class CTranslate2Translator(TextTranslator):
    """A translator that searches with CTranslate2."""

    def __init__(
        self,
        engine: CTranslate2Engine,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        reverse_target: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        context: Context = NO_CONTEXT,
        scores: bool = True,
    ) -> None:
        """Translate with an engine. scores: compute exact scores; without them, translation is faster

        Raises UserError with all search options that CTranslate2 does not support.
        """
        self._engine = engine
        self._shows_scores = scores
        self.max_threads = 2 * engine.num_translators  # half of them prepare the next batches
        super().__init__(
            tokenizers,
            decode,
            max_positions=max_positions,
            unicode_form=unicode_form,
            reverse_target=reverse_target,
            max_tokens=max_tokens,
            context=context,
        )

    def _set_decode(self, decode: DecodeRecipe) -> None:
        require_supported(decode)
        if decode.no_repeat_ngram and self.context.has_target:
            raise UserError(
                "CTranslate2 does not support no_repeat_ngram for models with previous translations, whose n-grams it "
                "would block; use --engine torch"
            )
        super()._set_decode(decode)
        self._scores = self._shows_scores or decode.mbr_metric != "none"
        self._batch_tokens = BATCH_TOKENS if decode.batch_tokens == "auto" else decode.batch_tokens

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: SearchPrecision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
        *,
        translators: int = 0,
        scores: bool = True,
    ) -> Self:
        """Load a model like `Translator.load`. Its conversion is cached inside its directory.

        precision:   `auto` is int8 on a CPU; on a GPU, bf16 if supported, else fp32
        translators: number of batches decoded in parallel; 0 means one per core on a CPU, and one on a GPU
        Raises UserError if CTranslate2 is not installed, or with all options that it does not support; ValueError for
        an unknown precision or a negative number of translators.
        """
        if precision not in get_args(SearchPrecision):
            raise ValueError(f"precision must be one of {', '.join(get_args(SearchPrecision))}, got {precision!r}")
        require_list("ensemble", ensemble, "paths")
        engine_device = select_device(device)
        metadata = read_model_metadata(find_model(Path(path)))
        if metadata.is_language_model:
            raise UserError(f"{path} is a language model; CTranslate2 only supports translation; use --engine torch")
        options = metadata.decode
        if decode is not None:
            options = require_options(decode).over(options, has_ensemble=bool(ensemble))
        require_supported(options, precision, engine_device, ensemble)
        compute_type = select_compute_type(precision, engine_device)
        translators = translators or default_translators(engine_device)
        require_count("translators", translators)
        with open_conversion(Path(path), "int8" if compute_type == "int8" else "float32") as conversion:
            tokenizers = Tokenizers.load(conversion.model, conversion.metadata.tgt_lang)
            translator = cls(
                CTranslate2Engine(conversion.directory, tokenizers, engine_device, compute_type, translators),
                tokenizers,
                options,
                max_positions=conversion.recipe.max_positions,
                unicode_form=cast(UnicodeForm, conversion.metadata.unicode_form),
                reverse_target=conversion.metadata.reverse_target,
                max_tokens=conversion.metadata.max_tokens,
                context=conversion.metadata.context,
                scores=scores,
            )
            translator.longest_source = conversion.metadata.longest_source
            return translator

    def batch_key(self, line: str) -> int | None:
        """See `TextTranslator.batch_key`."""
        return len(self._tokenizers.src.encode(normalize(line, self._unicode_form)))

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        return self._start_search(tasks, options)()

    @property
    def unsupported(self) -> dict[str, str]:
        """See `TextTranslator.unsupported`."""
        names = ["required", "preferred", "partial_word", "alignments", "attention"]
        if self._decode.glossary_mode != "annotate":
            names.append("glossary")
        return super().unsupported | dict.fromkeys(names, "CTranslate2 does not support it; use --engine torch")

    def _next_tokens(self, task: Task, count: int) -> list[int]:
        """See `TextTranslator._next_tokens`."""
        if task.partial:
            raise UserError(_NO_PARTIAL_WORDS)
        forbidden = {PAD_ID, BOS_ID, *self._options.forbidden_after(task.prefix)}
        tagged = task._replace(sentence=[*self._tag, *task.sentence])
        tokens = self._engine.next_tokens(tagged, count + len(forbidden))
        return [token for token in tokens if token not in forbidden][:count]

    def _start_search(self, tasks: Sequence[Task], options: SearchOptions) -> Callable[[], list[list[Hypothesis]]]:
        """Start a search of all tasks, which CTranslate2 batches itself."""
        if any(task.required for task in tasks):
            raise UserError(_NO_REQUIRED)
        if any(task.partial for task in tasks):
            raise UserError(_NO_PARTIAL_WORDS)
        tasks = [task._replace(sentence=[*self._tag, *task.sentence]) for task in tasks]
        on_tokens = self._context.without_previous(self._on_tokens, tasks)
        finish = self._engine.start_search(tasks, options, self._batch_tokens, scores=self._scores, on_tokens=on_tokens)
        return lambda: [self._in_reading_order(hypotheses) for hypotheses in finish()]
