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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any, Literal, NamedTuple, cast, get_args

from nmt.data.clean import UnicodeForm
from nmt.data.parallel import num_cores
from nmt.data.tokenizer import Tokenizers
from nmt.decode.hypothesis import Hypothesis
from nmt.decode.limits import output_limits
from nmt.decode.options import SearchOptions, length_penalty
from nmt.decode.text_translator import Task, TextTranslator
from nmt.export.cache import StoredAs, find_conversion
from nmt.export.packages import load_package
from nmt.layout import find_model
from nmt.recipe import DecodeRecipe, UserError
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.storage.model_facts import USUAL_MAX_TOKENS, read_model_facts

EnginePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

BATCH_TOKENS = 384
"""Source tokens that CTranslate2 decodes at a time by default; fewer than ours: its steps cost less to start."""

_COMPUTE_TYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}

# An exponent of 0 would make CTranslate2 stop at the first end of its best hypothesis. n to the power of this is 1.
_NO_PENALTY = 1e-12
# n^(0.8 alpha) follows ((5 + n) / 6)^alpha within a few percent for outputs of 10 to 100 tokens, but for a factor.
_GNMT_EXPONENT = 0.8
# Limits that are further from the source than this are hardly ever reached, so sentences need not be grouped by them.
_FAR_LIMIT = 20

# Seconds between two looks at whether CTranslate2 has finished.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01


class Place(NamedTuple):
    """A device as CTranslate2 names it."""

    kind: Literal["cpu", "cuda"]
    number: int = 0


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
                max_queued_batches=-1,  # without limit, else a call waits for its place where no signal reaches it
            )
        except (RuntimeError, ValueError) as error:
            raise _failure(error) from error
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
            again = {}
            for group, most, pending in zip(groups.values(), longest, begun, strict=True):
                for i, outputs in zip(group, self._finish(pending, most, options), strict=True):
                    found[i] = outputs
                    if limits[i] < most and any(len(output.tokens) >= limits[i] for output in outputs):
                        again[i] = self._start([tasks[i]], options, (limits[i], shortest[i]), batch_tokens)
            for i, pending in again.items():
                (found[i],) = self._finish(pending, limits[i], options)
            rules = options.forbidden or options.no_repeat_ngram or options.min_tokens or options.min_length_ratio
            if scores or rules or any(prefixes):
                self._score(tasks, found, batch_tokens)
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
            raise _failure(error) from error
        return [list(result.log_probs) for result in results]

    def _score(self, tasks: Sequence[Task], found: dict[int, list[_Output]], batch_tokens: int) -> None:
        """Give all outputs their true log-probabilities."""
        pairs = [(tasks[i].sentence, output.tokens) for i, outputs in found.items() for output in outputs]
        scored = iter(self.score(pairs, batch_tokens))
        for i, outputs in found.items():
            log_probs = [next(scored) for _ in outputs]
            found[i] = [_Output(one.tokens, math.fsum(own), own) for one, own in zip(outputs, log_probs, strict=True)]

    def _start(
        self, tasks: Sequence[Task], options: SearchOptions, lengths: tuple[int, int], batch_tokens: int
    ) -> list[Any]:
        """Begin to translate sources with the same longest (end token counted) and shortest output."""
        (most, least), has_prefix = lengths, bool(tasks[0].prefix)
        never = [[piece] for piece in (self._tgt_pieces[PAD_ID], self._tgt_pieces[BOS_ID])]
        forbidden = [[self._tgt_pieces[token] for token in sequence] for sequence in options.forbidden]
        ranks_otherwise = has_prefix or options.length_penalty == "gnmt"
        try:
            pending: list[Any] = self._translator.translate_batch(
                [[self._src_pieces[token] for token in task.sentence] for task in tasks],
                target_prefix=[[self._tgt_pieces[t] for t in task.prefix] for task in tasks] if has_prefix else None,
                beam_size=options.beam_size,
                patience=options.patience if options.stop == "patience" and options.beam_size > 1 else 1.0,
                num_hypotheses=options.beam_size if ranks_otherwise else options.n_best,
                length_penalty=_exponent(options),
                no_repeat_ngram_size=options.no_repeat_ngram,
                disable_unk=True,
                suppress_sequences=never + forbidden,
                max_input_length=0,
                max_decoding_length=most,
                min_decoding_length=least,
                return_end_token=True,  # so that it counts as a token of the length, as in ours
                return_scores=True,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                asynchronous=True,
            )
        except (RuntimeError, ValueError) as error:
            raise _failure(error) from error
        return pending

    def _finish(self, pending: Sequence[Any], most: int, options: SearchOptions) -> list[list[_Output]]:
        """What was found for each source; most: the longest output that `pending` was begun with."""
        try:
            results = _wait_for(pending)
        except (RuntimeError, ValueError) as error:
            raise _failure(error) from error
        exponent = _exponent(options)
        return [self._outputs(result, most, exponent) for result in results]

    def _outputs(self, result: Any, most: int, exponent: float) -> list[_Output]:
        """What is found for one source, each output once; one that was stopped at the longest length ends there."""
        outputs: dict[tuple[int, ...], float] = {}
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
            tokens = [self._tgt_ids[piece] for piece in hypothesis]
            ended = tokens[:-1] if tokens[-1:] == [EOS_ID] else tokens[: most - 1]
            outputs.setdefault(tuple(ended), score * len(tokens) ** exponent)
        return [_Output(list(tokens), log_prob, []) for tokens, log_prob in outputs.items()]


class _Output(NamedTuple):
    """What CTranslate2 has found: tokens without the end token, their log-probability, and that of each if known."""

    tokens: list[int]
    log_prob: float
    token_log_probs: list[float]


def _exponent(options: SearchOptions) -> float:
    """That of the length penalty with which CTranslate2 searches."""
    if options.length_penalty == "none" or not options.length_alpha:
        return _NO_PENALTY
    return options.length_alpha * (_GNMT_EXPONENT if options.length_penalty == "gnmt" else 1.0)


def _best(outputs: Sequence[_Output], options: SearchOptions) -> list[Hypothesis]:
    """The best of what was found, best first."""
    hypotheses = []
    for tokens, log_prob, token_log_probs in outputs:
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
        refuse_options(decode)
        super().__init__(
            tokenizers,
            decode,
            max_positions=max_positions,
            unicode_form=unicode_form,
            reverse_target=reverse_target,
            max_tokens=max_tokens,
        )
        self._engine, self._scores = engine, scores or decode.bayes_risk != "none"
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
        conversion = find_conversion(Path(path), stored_as)
        tokenizers = Tokenizers.load(conversion.model)
        count = translators or (num_cores() if place.kind == "cpu" else 1)
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


def choose_place(device: str) -> Place:
    """What `auto`, `cpu`, `cuda` or `cuda:N` means to CTranslate2; UserError for anything else."""
    name, _, index = device.partition(":")
    if name == "auto":
        return Place("cuda" if load_package("ctranslate2").get_cuda_device_count() else "cpu")
    if (name == "cpu" and not index) or (name == "cuda" and (index or "0").isdigit()):
        return Place("cuda" if name == "cuda" else "cpu", int(index or 0))
    raise UserError(f"device {device!r} is unknown; it must be auto, cpu, cuda or cuda:N; correct it")


def refuse_options(
    decode: DecodeRecipe,
    precision: EnginePrecision = "auto",
    place: Place | None = None,
    ensemble: Sequence[str | Path] = (),
) -> None:
    """Raise UserError that names all that CTranslate2 does not have, if there is anything; without place, anywhere."""
    if problems := missing_options(decode, precision, place, ensemble):
        raise UserError(f"--engine ctranslate2 has no {'; no '.join(problems)}; change that, or use --engine torch")


def missing_options(
    decode: DecodeRecipe,
    precision: EnginePrecision = "auto",
    place: Place | None = None,
    ensemble: Sequence[str | Path] = (),
) -> list[str]:
    """What CTranslate2 does not have of what is asked for, in words."""
    asked_for = {
        "decode.stop 'exact' (it ends a search by the number of ended hypotheses)": decode.stop == "exact",
        "sampling (its samples depend on more than seed and line)": decode.sampling,
        "groups of the beam": decode.num_groups > 1,
        "bias of words": bool(decode.bias),
        "required phrases": bool(decode.require),
        "shortlist (decode.shortlist, --shortlist)": decode.shortlist is not None,
        "alignments (they are read from our attention)": decode.alignments,
        "ensemble (it holds one model)": bool(ensemble),
    }
    missing = [name for name, is_asked_for in asked_for.items() if is_asked_for]
    if place is not None and choose_compute_type(precision, place) not in _supported_types(place):
        possible = [own for own, name in _COMPUTE_TYPES.items() if name in _supported_types(place)]
        missing.append(f"precision {precision} (on this {place.kind} it has {', '.join(possible)})")
    return missing


def choose_compute_type(precision: EnginePrecision, place: Place) -> str:
    """CTranslate2's name of a precision, whether or not it has it on the device."""
    if precision != "auto":
        return _COMPUTE_TYPES[precision]
    if place.kind == "cpu":
        return "int8"
    return "bfloat16" if "bfloat16" in _supported_types(place) else "float32"


def _supported_types(place: Place) -> set[str]:
    supported: set[str] = load_package("ctranslate2").get_supported_compute_types(place.kind, place.number)
    return supported


def _wait_for(pending: Sequence[Any]) -> list[Any]:
    """The results of asynchronous calls. Python handles signals only between instructions of its own, so it polls."""
    pause = _SHORTEST_PAUSE
    for one in pending:
        while not one.done():
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    return [one.result() for one in pending]


def _failure(error: Exception) -> UserError:
    detail = " ".join(str(error).split())
    return UserError(f"CTranslate2 failed: {detail}; the model and its options must fit it; try --engine torch")
