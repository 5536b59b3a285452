"""Translation with CTranslate2's beam search, without torch.

CTranslate2 stops a search as nmt does with `decode.stop` "first" or "patience", so it finds the same translations as
nmt, up to rounding. Five differences need care:

Scores   CTranslate2 excludes a prefix from its scores, and renormalizes over the tokens that are not suppressed. If
         exact scores are needed, its score_batch rescores the outputs in one pass: true log-probabilities that include
         EOS and a prefix. If more hypotheses end than it returns, it drops those with the lowest scores of its own;
         with a prefix, a longer search therefore returns all, and `_until_stop` selects those that nmt finds.
Penalty  CTranslate2 only has n^alpha. For the GNMT penalty it searches with the closest n^alpha and returns
         `beam_size` hypotheses, which are then ranked by the GNMT penalty. For n-best lists, a longer search returns
         all, as with a prefix. For a single translation it would only cost time: the best is hardly ever dropped.
Limits   A call has one maximum length for all its sentences. Sentences with different limits are searched separately,
         because a longer search may also find a different output within the limit.
EOS      At the limit, CTranslate2 returns hypotheses without EOS, and ranks them with those that end. nmt forces them
         to end, with the true log-probability of EOS. In greedy search, EOS replaces the token at the limit. In beam
         search, `_end_at_limit` finds the hypotheses that nmt finds.
Padding  Attention over a padded source is rounded differently, which int8 amplifies. Therefore all sentences of a batch
         have equal lengths, and int8 results hardly ever depend on the batch. The rounding of fp32 matmuls depends on
         the batch size. Therefore outputs are rescored one by one on a CPU, and only near ties can change a
         translation.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from nmt.decode.arguments import require_count, require_list, require_options, require_precision
from nmt.decode.task import Task
from nmt.decode.text_translator import TextTranslator
from nmt.errors import UserError
from nmt.export.batches import Batch, BatchQueue, TokenReporter, poll, split_batches
from nmt.export.cache import Conversion, open_conversion
from nmt.export.capabilities import (
    COMPUTE_TYPES,
    EngineDevice,
    enable_avx512,
    engine_errors,
    length_exponent,
    max_hypotheses,
    require_supported,
    resolve_precision,
    search_patience,
    select_device,
)
from nmt.export.packages import load_package
from nmt.processes.cores import cores_per_process
from nmt.recipe import DecodeRecipe, SearchPrecision
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import max_output_length, output_limits
from nmt.search.options import SearchOptions, length_penalty
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers

_BATCH_TOKENS, _GREEDY_BATCH_TOKENS = 256, 512
"""Default number of source tokens per batch on a CPU; smaller than for torch, because steps have less overhead."""
_GPU_BATCH_TOKENS = 8_192

_NO_REQUIRED = (
    "CTranslate2 does not support the required phrases or glossary of this line; use --engine torch, or remove the "
    "phrases and the glossary"
)
_NO_PARTIAL_WORDS = "--engine ctranslate2 does not support prefixes that end within a word; use --engine torch"

# With this exponent of the length penalty, CTranslate2 ranks the longest hypotheses last. Scores of 10,000 tokens fit
# into float32.
_LONGEST_LAST = -8.0

# CTranslate2 excludes tokens by a log-probability of -1e10. If fewer tokens than its beam are left, it outputs them.
_EXCLUDED = -1e9

_MAX_POSTED_BATCHES = 3  # per translator


class CTranslate2Engine:
    """A loaded CTranslate2 model that takes token ids; several threads may call it at once.

    num_translators: number of batches decoded in parallel
    on_gpu:          whether it runs on a GPU
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
                os.fsencode(directory),  # a str must be valid UTF-8
                device=device.kind,
                device_index=device.index,
                compute_type=compute_type,
                inter_threads=translators,
                intra_threads=1,
                max_queued_batches=-1,  # a full queue would block and delay signals; `BatchQueue` limits it instead
            )
        self.num_translators = translators
        self.on_gpu = device.kind != "cpu"
        # Sums of integers are exact. Those of floats depend on the number of sentences in a batch.
        self._scores_alone = device.kind == "cpu" and compute_type != "int8"
        self._queue = BatchQueue(_MAX_POSTED_BATCHES * translators)
        self._src_pieces = tokenizers.src.all_pieces
        self._tgt_pieces = tokenizers.tgt.all_pieces
        self._tgt_ids = {piece: token for token, piece in enumerate(self._tgt_pieces)}

    def start_search(
        self,
        tasks: Sequence[Task],
        options: SearchOptions,
        batch_tokens: int,
        *,
        scores: bool,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Callable[[], list[list[Hypothesis]]]:
        """Start a search, and return a function that waits for the `n_best` translations of each source, best first.

        scores: False if scores are not used; they may then be CTranslate2's own, without token log-probabilities, and 0
                in greedy search
        on_tokens: receives the token ids of the output so far, for one task and a beam of 1
        """
        prefixes = [task.prefix[: max_output_length(options, task.prefix)] for task in tasks]
        tasks = [task._replace(prefix=prefix) for task, prefix in zip(tasks, prefixes, strict=True)]
        limits, minimums = output_limits(options, [len(task.sentence) for task in tasks], prefixes)
        bounds = dict(enumerate(zip(limits, minimums, strict=True)))
        callback = {}
        reporter = TokenReporter(on_tokens, self._tgt_ids)
        if on_tokens is not None and options.beam_size == len(tasks) == 1:
            callback = {"callback": reporter.report}
        batches = self._start(tasks, bounds, options, batch_tokens, callback)

        def finish() -> list[list[Hypothesis]]:
            try:
                outputs = self._collect(batches)
            finally:
                reporter.release()
            longer = [i for i, prefix in enumerate(prefixes) if _needs_longer_search(options, bool(prefix))]
            outputs |= {i: _until_stop(outputs[i], options) for i in longer}
            at_limit = {i: found for i, found in outputs.items() if not all(output.has_eos for output in found)}
            outputs |= self._end_at_limit(tasks, at_limit, bounds, options, batch_tokens)
            suppresses = options.forbidden or options.no_repeat_ngram or options.min_tokens or options.min_length_ratio
            if scores or suppresses or any(prefixes):
                outputs = self._rescore(tasks, outputs, batch_tokens)
            elif options.beam_size > 1:
                outputs |= self._rescore(tasks, {i: outputs[i] for i in at_limit}, batch_tokens)
            return [_rank(outputs[i], options) for i in range(len(tasks))]

        return finish

    def next_tokens(self, task: Task, count: int) -> list[int]:
        """Return the `count` most probable tokens after the prefix of a task, UNK and EOS excluded, best first."""
        with engine_errors():
            (result,) = self._translator.translate_batch(
                [[self._src_pieces[token] for token in task.sentence]],
                target_prefix=[[self._tgt_pieces[token] for token in task.prefix]],
                beam_size=1,
                num_hypotheses=min(count, len(self._tgt_pieces) - 2),  # all tokens except UNK and EOS
                return_alternatives=True,
                max_decoding_length=len(task.prefix) + 1,
                min_decoding_length=len(task.prefix) + 1,
                max_input_length=0,
                disable_unk=True,
            )
        return [self._tgt_ids[hypothesis[len(task.prefix)]] for hypothesis in result.hypotheses]

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_tokens: int) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens and EOS; pairs have no special tokens."""
        pending: dict[int, Any] = {}
        with engine_errors():
            for indices in split_batches([(len(src), len(tgt)) for src, tgt in pairs], batch_tokens):
                sources = [[self._src_pieces[token] for token in pairs[i][0]] for i in indices]
                targets = [[self._tgt_pieces[token] for token in pairs[i][1]] for i in indices]
                results = self._translator.score_batch(sources, targets, max_input_length=0, asynchronous=True)
                pending.update(zip(indices, results, strict=True))
            poll(lambda: all(result.done() for result in pending.values()))
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
            rescored[i].append(_Output(output.tokens, math.fsum(log_probs), log_probs, has_eos=True))
        return rescored

    def _arguments(self, options: SearchOptions, longest: int, shortest: int) -> dict[str, Any]:
        """Return the arguments of translate_batch. longest: maximum output length including EOS"""
        returns_all = options.length_penalty == "gnmt"
        return search_arguments(options, self._tgt_pieces) | {
            "num_hypotheses": max_hypotheses(options) if returns_all else min(options.n_best, max_hypotheses(options)),
            "max_input_length": 0,
            "max_decoding_length": longest,
            "min_decoding_length": shortest,
            "return_scores": options.beam_size > 1,  # greedy search is faster without; `_rescore` computes them if used
            "asynchronous": True,
        }

    def _start(
        self,
        tasks: Sequence[Task],
        bounds: Mapping[int, tuple[int, int]],
        options: SearchOptions,
        batch_tokens: int,
        arguments: dict[str, Any],
    ) -> list[Batch]:
        """Start the searches of some tasks.

        bounds: maximum (EOS included) and minimum (EOS excluded) length of the outputs, by index of the task
        arguments: of translate_batch, in addition to those of `options`
        """
        groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for i, (longest, shortest) in bounds.items():
            groups[longest, shortest, bool(tasks[i].prefix)].append(i)
        started = []
        for (longest, shortest, has_prefix), indices in groups.items():
            searched = self._arguments(options, longest, shortest)
            if _needs_longer_search(options, has_prefix):
                searched |= _longer_search(options) | {"length_penalty": _LONGEST_LAST}
            searched |= arguments
            lengths = [(len(tasks[i].sentence), len(tasks[i].prefix)) for i in indices]
            batches = [
                self._batch(tasks, [indices[position] for position in positions], searched)
                for positions in split_batches(lengths, batch_tokens)
            ]
            self._queue.add(batches)
            started += batches
        return started

    def _batch(self, tasks: Sequence[Task], indices: list[int], arguments: dict[str, Any]) -> Batch:
        """Return a batch of these tasks, of which either all or none have a prefix."""
        sources = [[self._src_pieces[token] for token in tasks[i].sentence] for i in indices]
        prefixes = [[self._tgt_pieces[token] for token in tasks[i].prefix] for i in indices]
        target_prefix = prefixes if any(prefixes) else None
        post = partial(self._translator.translate_batch, sources, target_prefix=target_prefix, **arguments)
        return Batch(indices, post, arguments["length_penalty"])

    def _collect(self, batches: Sequence[Batch]) -> dict[int, list[_Output]]:
        """Wait for the outputs of each task, by index."""
        outputs = {}
        try:
            for batch in batches:
                self._queue.wait(batch)
                with engine_errors():
                    for i, result in zip(batch.indices, batch.results, strict=True):
                        outputs[i] = self._outputs(result.result(), batch.length_exponent)
        except BaseException:  # such as KeyboardInterrupt; later calls would wait for the other batches
            self._queue.cancel(set(batches))
            raise
        return outputs

    def _end_at_limit(
        self,
        tasks: Sequence[Task],
        outputs: Mapping[int, list[_Output]],
        bounds: Mapping[int, tuple[int, int]],
        options: SearchOptions,
        batch_tokens: int,
    ) -> dict[int, list[_Output]]:
        """Return the outputs that nmt finds for tasks whose search reached the limit; all of them have EOS.

        A second search, which stops one position earlier, returns the hypotheses that are alive there, and all that
        have ended by then. If one ends at exactly this position, some with a lower log-probability are missing:
        CTranslate2 returns the best `beam_size` extensions, and nmt keeps the best `beam_size` that do not end.

        outputs: of the first search; the new ones have no valid log-probability
        """
        ended: dict[int, list[_Output]] = {}
        earlier: dict[int, tuple[int, int]] = {}
        for i, found in outputs.items():
            longest, shortest = bounds[i]
            if options.beam_size == 1 or longest - 1 <= len(tasks[i].prefix):
                ended[i] = [found[0]._replace(tokens=found[0].tokens[: longest - 1])]
            else:
                earlier[i] = (longest - 1, shortest)
        # The first search finished too few hypotheses to stop; up to `beam_size` more may be alive.
        batches = self._start(tasks, earlier, options, batch_tokens, _longer_search(options))
        return ended | self._collect(batches)

    def _outputs(self, result: Any, exponent: float) -> list[_Output]:
        """Convert the distinct possible hypotheses of one task. In greedy search, 0 stands for their scores."""
        outputs: dict[tuple[int, ...], _Output] = {}
        for hypothesis, score in zip(result.hypotheses, result.scores or [0.0], strict=True):
            tokens = [self._tgt_ids[piece] for piece in hypothesis]
            has_eos = tokens[-1:] == [EOS_ID]
            output = tokens[:-1] if has_eos else tokens
            log_prob = score * len(tokens) ** exponent
            if log_prob > _EXCLUDED:
                outputs.setdefault(tuple(output), _Output(output, log_prob, [], has_eos))
        return list(outputs.values())


class _Output(NamedTuple):
    """A hypothesis of CTranslate2.

    tokens:          without EOS
    token_log_probs: empty if unknown
    has_eos:         whether EOS follows
    """

    tokens: list[int]
    log_prob: float
    token_log_probs: list[float]
    has_eos: bool


def search_arguments(options: SearchOptions, tgt_pieces: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of translate_batch that do not depend on the input. tgt_pieces: the target vocabulary"""
    suppressed = [(PAD_ID,), (BOS_ID,), *options.forbidden]
    return {
        "beam_size": options.beam_size,
        "patience": search_patience(options),
        "length_penalty": length_exponent(options),
        "no_repeat_ngram_size": options.no_repeat_ngram,
        "disable_unk": True,
        "suppress_sequences": [[tgt_pieces[token] for token in sequence] for sequence in suppressed],
        "return_end_token": True,  # then EOS counts for the length penalty, as in nmt
    }


def _needs_longer_search(options: SearchOptions, has_prefix: bool) -> bool:
    """Return whether CTranslate2 may drop hypotheses that nmt returns, because the two score them differently."""
    differ = has_prefix or (options.n_best > 1 and options.length_penalty == "gnmt" and options.length_alpha > 0)
    return differ and options.beam_size > 1


def _longer_search(options: SearchOptions) -> dict[str, Any]:
    """Return arguments of a longer search, which returns all hypotheses that nmt finds: up to `beam_size` more."""
    patience = search_patience(options) + 1
    return {"patience": patience, "num_hypotheses": int(options.beam_size * patience)}


def _until_stop(outputs: list[_Output], options: SearchOptions) -> list[_Output]:
    """Return the outputs that have ended when nmt stops the search; all of them if it does not stop."""
    assert options.max_finished is not None, "CTranslate2 does not support `stop` 'exact'"
    lengths = sorted(len(output.tokens) for output in outputs if output.has_eos)
    if len(lengths) < options.max_finished:
        return outputs
    stop = lengths[options.max_finished - 1]
    return [output for output in outputs if output.has_eos and len(output.tokens) <= stop]


def _rank(outputs: Sequence[_Output], options: SearchOptions) -> list[Hypothesis]:
    """Return the `n_best` best outputs with a finite log-probability, best first."""
    hypotheses = []
    for tokens, log_prob, token_log_probs, _ in outputs:
        penalty = length_penalty(len(tokens) + 1, options.length_penalty, options.length_alpha)
        hypotheses.append(Hypothesis(tokens, log_prob / penalty, log_prob, token_log_probs))
    finite = [hypothesis for hypothesis in hypotheses if math.isfinite(hypothesis.log_prob)]
    return sorted(finite, key=lambda hypothesis: -hypothesis.score)[: options.n_best]


class CTranslate2Translator(TextTranslator):
    """A translator that searches with CTranslate2."""

    def __init__(
        self,
        engine: CTranslate2Engine,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        conversion: Conversion,
        *,
        scores: bool,
    ) -> None:
        """Translate with the engine of a conversion. scores: compute exact scores; without them, translation is faster

        Raises UserError with all search options that CTranslate2 does not support.
        """
        metadata = conversion.metadata
        self._engine = engine
        self._shows_scores = scores
        self.max_threads = 2 * engine.num_translators  # half of them prepare the next batches
        super().__init__(
            tokenizers,
            decode,
            max_positions=conversion.recipe.max_positions,
            unicode_form=metadata.unicode_form,
            reverse_target=metadata.reverse_target,
            max_tokens=metadata.max_tokens,
            context=metadata.context,
        )
        self.longest_source = metadata.longest_source

    def _set_decode(self, decode: DecodeRecipe) -> None:
        require_supported(decode)
        if decode.no_repeat_ngram and self.context.has_target:
            raise UserError(
                "CTranslate2 does not support no_repeat_ngram for models that get previous translations, whose n-grams "
                "it would block; use --engine torch"
            )
        super()._set_decode(decode)
        self._scores = self._shows_scores or decode.mbr_metric != "none"
        auto = _BATCH_TOKENS if decode.beam_size > 1 else _GREEDY_BATCH_TOKENS
        if self._engine.on_gpu:
            auto = _GPU_BATCH_TOKENS
        self._batch_tokens = auto if decode.batch_tokens == "auto" else decode.batch_tokens

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
        require_precision(precision)
        require_list("ensemble", ensemble, "paths")
        engine_device = select_device(device)
        metadata = read_model_metadata(find_model(Path(path)))
        if metadata.is_language_model:
            raise UserError(f"{path} is a language model; --engine ctranslate2 only translates; use --engine torch")
        options = metadata.decode
        if decode is not None:
            options = require_options(decode).over(options, has_ensemble=bool(ensemble))
        require_supported(options, precision, engine_device, ensemble)
        precision = resolve_precision(precision, engine_device)
        translators = translators or (1 if engine_device.kind == "cuda" else cores_per_process())
        require_count("translators", translators)
        with open_conversion(Path(path), "int8" if precision == "int8" else "float32") as conversion:
            tokenizers = Tokenizers.load(conversion.model, conversion.metadata.tgt_lang)
            compute_type = COMPUTE_TYPES[precision]
            engine = CTranslate2Engine(conversion.directory, tokenizers, engine_device, compute_type, translators)
            return cls(engine, tokenizers, options, conversion, scores=scores)

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
