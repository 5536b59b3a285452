"""Translating with CTranslate2: its beam search in place of ours, behind the same translator; no torch is needed.

CTranslate2 ends the search for a sentence as `decode.stop` "first" and "patience" say, so both programs look at the
same hypotheses and find the same translations, rounding aside. Four things need care:

Scores   CTranslate2 leaves a prefix out of its scores, and shares the probability of what an output must not hold out
         among the other tokens. Where scores are asked for, or decide, CTranslate2 scores what it has found once more,
         in one pass over the whole of it: true log-probabilities, the end token and a prefix counted.
Penalty  It has n^alpha alone. For the paper's penalty it searches with the n^alpha that is closest, and gives all that
         it has found; these are ranked by the paper's.
Limits   A call has one longest output for all its sentences. Outputs that exceed the limit of their own sentence are
         searched again with that limit.
Ends     A hypothesis at the limit ends there without its end token.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple, cast, get_args

from nmt.decode.text_translator import Task, TextTranslator
from nmt.export.cache import StoredAs, open_conversion
from nmt.export.offers import (
    EnginePrecision,
    Place,
    choose_compute_type,
    choose_place,
    engine_failure,
    refuse_options,
)
from nmt.export.packages import load_package
from nmt.processes.parallel import num_cores
from nmt.recipe import DecodeRecipe, UserError
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import output_limits
from nmt.search.options import SearchOptions, length_penalty
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.storage.model_facts import USUAL_MAX_TOKENS, read_model_facts
from nmt.storage.run_folder import find_model
from nmt.text.clean import UnicodeForm
from nmt.text.tokenizer import Tokenizers

BATCH_TOKENS = 384
"""Source tokens that CTranslate2 decodes at a time by default; fewer than ours: its steps cost less to start."""

# An exponent of 0 would make CTranslate2 stop at the first end of its best hypothesis. n to the power of this is 1.
NO_PENALTY = 1e-12
# n^(0.8 alpha) follows ((5 + n) / 6)^alpha within a few percent for outputs of 10 to 100 tokens, but for a factor.
_GNMT_EXPONENT = 0.8
# Limits that are further from the source than this are hardly ever reached, so sentences need not be grouped by them.
_FAR_LIMIT = 20

# Seconds between two looks at whether CTranslate2 has finished.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.005
# Batches that CTranslate2 has at a time, for each translator.
_BATCHES_POSTED = 3


class CTranslate2Engine:
    """A model that CTranslate2 has loaded, with vocabularies to speak to it in token ids."""

    def __init__(
        self, directory: Path, tokenizers: Tokenizers, place: Place, compute_type: str, translators: int = 1
    ) -> None:
        """Load the CTranslate2 model in `directory`; raises UserError when it cannot be loaded.

        translators: batches decoded at a time, by one thread each; they share the weights
        """
        try:
            self._translator = load_package("ctranslate2").Translator(
                str(directory),
                device=place.kind,
                device_index=place.number,
                compute_type=compute_type,
                inter_threads=translators,
                intra_threads=1,
                max_queued_batches=-1,  # see `_post`, which does not wait where no signal reaches it
            )
        except (RuntimeError, ValueError) as error:
            raise engine_failure(error) from error
        self._posted_at_a_time = _BATCHES_POSTED * translators
        self._waiting: deque[_Batch] = deque()
        self._posted: deque[_Batch] = deque()
        self._src_pieces = tokenizers.src.pieces(range(tokenizers.src.vocab_size))
        self._tgt_pieces = tokenizers.tgt.pieces(range(tokenizers.tgt.vocab_size))
        self._tgt_ids = {piece: token for token, piece in enumerate(self._tgt_pieces)}

    def search(
        self, tasks: Sequence[Task], options: SearchOptions, batch_tokens: int, *, scores: bool = True
    ) -> list[list[Hypothesis]]:
        """The `n_best` best translations that CTranslate2 finds of each source, best first.

        scores: whether those of the results matter; else they may be CTranslate2's own, and there are none of tokens
        """
        return self.start_search(tasks, options, batch_tokens, scores=scores)()

    def start_search(
        self, tasks: Sequence[Task], options: SearchOptions, batch_tokens: int, *, scores: bool = True
    ) -> Callable[[], list[list[Hypothesis]]]:
        """Begin a search, and return what waits for its end and gives its results; see `search`."""
        prefixes = [task.prefix for task in tasks]
        limits, shortest = output_limits(options, [len(task.sentence) for task in tasks], prefixes)
        is_far = options.max_length_ratio == math.inf and options.max_extra_tokens >= _FAR_LIMIT
        groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for i, prefix in enumerate(prefixes):
            groups[0 if is_far else limits[i], shortest[i], bool(prefix)].append(i)
        longest = [max(limits[i] for i in group) for group in groups.values()]
        begun = [
            self._start([tasks[i] for i in group], options, (most, least), batch_tokens)
            for (_, least, _), group, most in zip(groups, groups.values(), longest, strict=True)
        ]

        def finish() -> list[list[Hypothesis]]:
            found: dict[int, list[_Output]] = {}
            for group, pending in zip(groups.values(), begun, strict=True):
                found.update(zip(group, self._finish(pending, options), strict=True))
            limited = [i for i, outputs in found.items() if any(_is_limited(one, limits[i]) for one in outputs)]
            again = [
                self._start([tasks[i]], options, (limits[i], shortest[i]), batch_tokens, whole_beam=True)
                for i in limited
            ]
            for i, pending in zip(limited, again, strict=True):
                (found[i],) = self._finish(pending, options)
            rules = options.forbidden or options.no_repeat_ngram or options.min_tokens or options.min_length_ratio
            self._score(tasks, found, found if scores or rules or any(prefixes) else limited, batch_tokens)
            return [_best(found[i], options) for i in range(len(tasks))]

        return finish

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_tokens: int) -> list[list[float]]:
        """Log-probabilities of each target's tokens and of its end token; source and target without special tokens."""
        if not pairs:
            return []
        sources = [[self._src_pieces[token] for token in src] for src, _ in pairs]
        targets = [[self._tgt_pieces[token] for token in tgt] for _, tgt in pairs]
        try:
            results = _wait_for(
                self._translator.score_batch(
                    sources,
                    targets,
                    max_batch_size=batch_tokens,
                    batch_type="tokens",
                    max_input_length=0,
                    asynchronous=True,
                )
            )
        except (RuntimeError, ValueError) as error:
            raise engine_failure(error) from error
        return [list(result.log_probs) for result in results]

    def _score(
        self, tasks: Sequence[Task], found: dict[int, list[_Output]], chosen: Iterable[int], batch_tokens: int
    ) -> None:
        """Give the outputs of the chosen tasks their true log-probabilities."""
        numbers = list(chosen)
        scored = iter(self.score([(tasks[i].sentence, one.tokens) for i in numbers for one in found[i]], batch_tokens))
        for i in numbers:
            log_probs = [next(scored) for _ in found[i]]
            found[i] = [
                one._replace(log_prob=math.fsum(own), token_log_probs=own)
                for one, own in zip(found[i], log_probs, strict=True)
            ]

    def _start(
        self,
        tasks: Sequence[Task],
        options: SearchOptions,
        lengths: tuple[int, int],
        batch_tokens: int,
        *,
        whole_beam: bool = False,
    ) -> _Pending:
        """Begin to translate sources with the same longest (end token counted) and shortest output.

        whole_beam: whether all hypotheses are wanted that have ended
        """
        (most, least), has_prefix = lengths, bool(tasks[0].prefix)
        never = [[piece] for piece in (self._tgt_pieces[PAD_ID], self._tgt_pieces[BOS_ID])]
        forbidden = [[self._tgt_pieces[token] for token in sequence] for sequence in options.forbidden]
        wants_all = whole_beam or has_prefix or options.length_penalty == "gnmt"
        arguments = {
            "beam_size": options.beam_size,
            "patience": options.patience if options.stop == "patience" and options.beam_size > 1 else 1.0,
            "num_hypotheses": most_hypotheses(options) if wants_all else options.n_best,
            "length_penalty": _exponent(options),
            "no_repeat_ngram_size": options.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": never + forbidden,
            "max_input_length": 0,
            "max_decoding_length": most,
            "min_decoding_length": least,
            "return_end_token": True,  # so that it counts as a token of the length, as in ours
            "return_scores": True,
            "asynchronous": True,
        }
        batches = []
        for numbers in _batches([len(task.sentence) + 1 for task in tasks], batch_tokens):
            sources = [[self._src_pieces[token] for token in tasks[i].sentence] for i in numbers]
            prefixes = [[self._tgt_pieces[token] for token in tasks[i].prefix] for i in numbers] if has_prefix else None
            post = partial(self._translator.translate_batch, sources, target_prefix=prefixes, **arguments)
            batches.append(_Batch(numbers, post))
        self._waiting.extend(batches)
        self._post()
        return _Pending(len(tasks), most, batches)

    def _post(self) -> None:
        """Give CTranslate2 further batches, but so few that it ends soon where nobody wants the results any more."""
        while self._posted and all(one.done() for one in self._posted[0].results):
            self._posted.popleft()
        while self._waiting and len(self._posted) < self._posted_at_a_time:
            batch = self._waiting.popleft()
            try:
                batch.results = batch.post()
            except (RuntimeError, ValueError) as error:
                raise engine_failure(error) from error
            self._posted.append(batch)

    def _finish(self, pending: _Pending, options: SearchOptions) -> list[list[_Output]]:
        """What was found for each source. Python handles signals between its own instructions only, so it polls."""
        pause = _SHORTEST_PAUSE
        outputs: list[list[_Output]] = [[]] * pending.num_tasks
        exponent = _exponent(options)
        for batch in pending.batches:
            while not (batch.results and all(one.done() for one in batch.results)):
                self._post()
                sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            self._post()
            try:
                for i, one in zip(batch.numbers, batch.results, strict=True):
                    outputs[i] = self._outputs(one.result(), pending.most, exponent)
            except (RuntimeError, ValueError) as error:
                raise engine_failure(error) from error
        return outputs

    def _outputs(self, result: Any, most: int, exponent: float) -> list[_Output]:
        """What is found for one source, each output once; one that was stopped at the longest length ends there."""
        outputs: dict[tuple[int, ...], _Output] = {}
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
            tokens = [self._tgt_ids[piece] for piece in hypothesis]
            ended = tokens[:-1] if tokens[-1:] == [EOS_ID] else tokens[: most - 1]
            has_ended = len(ended) < len(tokens)
            outputs.setdefault(tuple(ended), _Output(ended, score * len(tokens) ** exponent, [], has_ended))
        return list(outputs.values())


@dataclass
class _Batch:
    """Sources that are decoded together: their numbers, what posts them, and the results as soon as they are posted."""

    numbers: list[int]
    post: Callable[[], list[Any]]
    results: list[Any] = field(default_factory=list)


class _Pending(NamedTuple):
    """A search that was begun: its number of sources, its longest output, and its batches."""

    num_tasks: int
    most: int
    batches: list[_Batch]


class _Output(NamedTuple):
    """What CTranslate2 has found.

    tokens: without the end token; log_prob: their logarithmic probability; token_log_probs: of each, where known
    has_ended: whether it has an end token, and did not just come to the limit
    """

    tokens: list[int]
    log_prob: float
    token_log_probs: list[float]
    has_ended: bool


def _is_limited(output: _Output, limit: int) -> bool:
    """Whether the limit of the sentence, end token counted, would have changed the search."""
    return not output.has_ended or len(output.tokens) >= limit


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The numbers of sentences that are decoded together, the longest first; padded, they have `batch_tokens`."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def most_hypotheses(options: SearchOptions) -> int:
    """How many hypotheses CTranslate2 gives at most: with a patience below 1, fewer than the beam holds."""
    patience = options.patience if options.stop == "patience" else 1.0
    return max(1, min(options.beam_size, int(options.beam_size * patience)))


def _exponent(options: SearchOptions) -> float:
    """That of the length penalty with which CTranslate2 searches."""
    if options.length_penalty == "none" or not options.length_alpha:
        return NO_PENALTY
    return options.length_alpha * (_GNMT_EXPONENT if options.length_penalty == "gnmt" else 1.0)


def _best(outputs: Sequence[_Output], options: SearchOptions) -> list[Hypothesis]:
    """The best of what was found, best first."""
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
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        reverse_target: bool = False,
        max_tokens: int = USUAL_MAX_TOKENS,
        scores: bool = True,
    ) -> None:
        """scores: whether those of translations are used, which then are exact; texts alone take less time.

        Raises UserError that names all search options which CTranslate2 does not have.
        """
        self._engine, self._shows_scores = engine, scores
        super().__init__(
            tokenizers,
            decode,
            max_positions=max_positions,
            unicode_form=unicode_form,
            reverse_target=reverse_target,
            max_tokens=max_tokens,
        )

    def _set_decode(self, decode: DecodeRecipe) -> None:
        refuse_options(decode)
        super()._set_decode(decode)
        self._scores = self._shows_scores or decode.bayes_risk != "none"
        self._batch_tokens = BATCH_TOKENS if decode.batch_tokens == "auto" else decode.batch_tokens

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: EnginePrecision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
        *,
        translators: int = 0,
        scores: bool = True,
    ) -> CTranslate2Translator:
        """As `Translator.load`; the model is converted once, and the conversion kept inside its directory.

        precision:   `auto` is int8 on a CPU, and on a GPU bf16 where it computes that, else fp32. int8 rounds weights
        translators: batches decoded at a time; 0 takes one for each core of a CPU, and one on a GPU
        Raises UserError where CTranslate2 is missing, and for options that it does not have, all of them at once;
        ValueError for a precision that is none of these.
        """
        if precision not in get_args(EnginePrecision):
            raise ValueError(f"precision must be one of {', '.join(get_args(EnginePrecision))}, got {precision!r}")
        place = choose_place(device)
        own = read_model_facts(find_model(Path(path))).decode
        options = own if decode is None else decode.over(own)
        refuse_options(options, precision, place, ensemble)
        compute_type = choose_compute_type(precision, place)
        stored_as: StoredAs = "int8" if compute_type == "int8" else "float32"
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        count = translators or (max(1, num_cores() // processes) if place.kind == "cpu" else 1)
        with open_conversion(Path(path), stored_as) as conversion:
            tokenizers = Tokenizers.load(conversion.model)
            return cls(
                CTranslate2Engine(conversion.directory, tokenizers, place, compute_type, count),
                tokenizers,
                options,
                max_positions=conversion.recipe.max_positions,
                unicode_form=cast(UnicodeForm, conversion.facts.unicode_form),
                reverse_target=conversion.facts.reverse_target,
                max_tokens=conversion.facts.max_tokens,
                scores=scores,
            )

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        return self._start_search(tasks, options)()

    def _start_search(self, tasks: Sequence[Task], options: SearchOptions) -> Callable[[], list[list[Hypothesis]]]:
        """Leave all to CTranslate2, which makes its own batches."""
        if any(task.required for task in tasks):
            raise UserError("--engine ctranslate2 has no required phrases; leave them out, or use --engine torch")
        tagged = [task._replace(sentence=[*self._tag, *task.sentence]) for task in tasks]
        finish = self._engine.start_search(tagged, options, self._batch_tokens, scores=self._scores)
        return lambda: [[self._as_read(hypothesis) for hypothesis in hypotheses] for hypotheses in finish()]


def _wait_for(pending: Sequence[Any]) -> list[Any]:
    """The results of asynchronous calls. Python handles signals only between instructions of its own, so it polls."""
    pause = _SHORTEST_PAUSE
    for one in pending:
        while not one.done():
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    return [one.result() for one in pending]
