"""The translator: lines of text in, lines of text out, one for one and in order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import torch

from nmt.allocator import keep_freed_memory
from nmt.checkpoint import load_model
from nmt.data.clean import UnicodeForm, normalize
from nmt.data.tokenizer import Tokenizers
from nmt.decode.alignment import AttendingModel, ChosenAttention, WordAligner
from nmt.decode.batches import Batching, batches, choose_batch_tokens, crowds
from nmt.decode.bayes_risk import expected_utilities, relative_probabilities, sentence_utility
from nmt.decode.captured import CapturedModel
from nmt.decode.cutting import Part, Phrase, assign_phrases, cut_line
from nmt.decode.ensemble import Ensemble, is_open
from nmt.decode.options import SearchOptions
from nmt.decode.required import tokens_to_hold
from nmt.decode.restricted import restrict
from nmt.decode.sampling import SamplingOptions, sample
from nmt.decode.scoring import in_order_of_reading
from nmt.decode.search import Hypothesis, StepModel, beam_search
from nmt.decode.shortlist import Shortlist
from nmt.decode.translation import Translation, join_ranks
from nmt.distributed import choose_device
from nmt.model.quantized import QuantizedLinear
from nmt.model.transformer import Transformer
from nmt.packed import PackedSequences
from nmt.precision import SearchPrecision, choose_precision, torch_dtype
from nmt.recipe import DecodeRecipe, UserError
from nmt.special_ids import EOS_ID
from nmt.storage.model_facts import USUAL_MAX_TOKENS
from nmt.transfer import to_device

# All that `str.splitlines`, or a reader of the output that uses something like it, takes for the end of a line, and
# the end of a column.
_BREAKS = re.compile("[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


class Task(NamedTuple):
    """The tokens of a sentence, those that its translation begins with, and those of the phrases that it must hold."""

    sentence: list[int]
    prefix: list[int]
    required: list[list[int]]


class Translator:
    """A model with all that stands between it and text: strings go in, and as many come out, in the same order.

        translator = Translator.load("runs/mine")
        translator.translate(["Good morning!", "How are you?"])          # a list of two strings
        translator.translate_n_best(["Good morning!"], n_best=3)[0]      # three of `Translation`: text, score, ...
        for (best,) in translator.stream(open_file, window=500): ...     # endless input, little memory

    Any string is accepted. It is normalised to one line first, so that line breaks inside it become spaces; nothing but
    white space gives an empty translation without asking the model; and a line too long for the model is cut at
    sentence ends and its parts are translated each for itself. What a line gets does not depend on its neighbours, but
    for the rounding of float32. Use a translator from one thread at a time.

    lines_cut:      how many lines were too long so far and were translated in pieces
    num_parameters: number of weights of the models that were loaded, tied ones counted once
    """

    def __init__(
        self,
        model: StepModel[Any] | None,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        device: torch.device,
        reverse_target: bool = False,
        max_tokens: int = USUAL_MAX_TOKENS,
    ) -> None:
        """Translate with `model`, which lies on `device` and accepts sentences of `max_positions` tokens.

        max_tokens: the longest sentence that it has seen in training; longer lines are cut, since a model translates
        badly what is longer than all that it has seen
        The model is None where a subclass searches in another way: see `_search`.
        reverse_target: whether it writes from right to left; text comes out in the order of reading all the same
        Raises UserError when `decode` asks for a tag that the source tokenizer does not know, or for a shortlist that
        cannot be read or is of other tokenizers. To translate with a model on disk, use `load`.
        """
        self.lines_cut = 0
        self.num_parameters = 0
        self._model = model
        self._tokenizers = tokenizers
        self._unicode_form = unicode_form
        self._reverse_target = reverse_target
        forbidden = [self._encode_phrase(phrase) for phrase in decode.forbid]
        bias = [(self._encode_phrase(phrase), value) for phrase, value in decode.bias.items()]
        self._options = SearchOptions.from_recipe(decode, max_positions - 1, forbidden, bias)
        self._preferred = sorted({token for phrase, value in bias if value > 0 for token in phrase})
        self._require = decode.require
        self._shortlist = None if decode.shortlist is None else Shortlist.load(decode.shortlist, tokenizers)
        self._sampling = SamplingOptions.from_recipe(decode) if decode.sampling else None
        self._utility = None if decode.bayes_risk == "none" else sentence_utility(decode.bayes_risk)
        members = model.models if isinstance(model, Ensemble) else [model]
        known = (one.recipe for one in members if isinstance(one, Transformer | CapturedModel))
        sized = [(recipe, tokenizers.tgt.vocab_size) for recipe in known]
        self._batching = Batching(choose_batch_tokens(decode, device, sized), device)
        self._tag = [] if decode.tag is None else [tokenizers.src.tag_id(decode.tag)]
        self._max_tokens = min(max_tokens, max_positions - 1)  # the end token needs a position too
        self._device = device
        self._aligner = self._make_aligner(decode) if decode.alignments else None

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: SearchPrecision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Translator:
        """The translator of a model directory, a checkpoint or a run.

        path:      as on the command line: a directory with `model.toml`, or a run, whose averaged model is taken
        device:    `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`
        precision: of the weights and all computation up to the logits: `fp32`, `bf16`, `fp16`, or `auto`, which takes
                   bf16 where it is native; `int8`, on a CPU, for products of 8-bit integers and all else in fp32
        decode:    how to search, e.g. `DecodeRecipe(beam_size=8, n_best=3, tag="<web>")`; options that are not given
                   are those of the model's own recipe. Their documentation is printed by `nmt config`
        ensemble:  further models with the same tokenizers, which decide together with the first

        Raises UserError, in one line that says what to do, where there is no such model or device, where a file of the
        model is damaged, or where the tokenizers differ; ValueError for a precision that is none of these.
        """
        if precision not in get_args(SearchPrecision):
            raise ValueError(f"precision must be one of {', '.join(get_args(SearchPrecision))}, got {precision!r}")
        place = choose_device(device)
        loaded = [load_model(Path(one), place) for one in (path, *ensemble)]
        first, facts = loaded[0], loaded[0].facts
        tokenizers = Tokenizers.load(first.directory)
        for other in loaded[1:]:
            if Tokenizers.load(other.directory).files() != tokenizers.files():
                raise UserError(
                    f"{other.directory} has other tokenizers than {first.directory}; models of an ensemble must share "
                    "them; train them with the same tokenizer (tokenizer.start_from)"
                )
            if other.facts.reverse_target != facts.reverse_target:
                raise UserError(
                    f"{other.directory} and {first.directory} write in opposite directions; models of an ensemble must "
                    "write in the same; let one rerank what the other writes (nmt rerank)"
                )
        options = facts.decode if decode is None else decode.over(facts.decode)
        num_parameters = sum(one.model.num_parameters() for one in loaded)
        models = [_lay_out(one.model, precision, place) for one in loaded]
        # On a GPU starting the kernels of a step takes longer than the step itself: see `nmt.decode.captured`.
        steppers: list[StepModel[Any]] = [CapturedModel(model) if place.type == "cuda" else model for model in models]
        translator = cls(
            steppers[0] if len(steppers) == 1 else Ensemble(steppers, options.ensemble_mean),
            tokenizers,
            options,
            max_positions=min(model.recipe.max_positions for model in models),
            unicode_form=cast(UnicodeForm, facts.unicode_form),
            device=place,
            reverse_target=facts.reverse_target,
            max_tokens=min(one.facts.max_tokens for one in loaded),
        )
        translator.num_parameters = num_parameters
        if place.type == "cpu":
            keep_freed_memory()
        return translator

    @property
    def lowercases(self) -> bool:
        """Whether translations are in lower case, whatever the model has read."""
        return self._tokenizers.tgt.lowercases()

    def translate(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
    ) -> list[str]:
        """The best translation of each line, in order; "" for a line that holds nothing but space.

        lines:    as many as memory allows; all of them are sorted into batches together. For more, use `stream`
        prefixes: what each translation must begin with, as for one who types and wants the rest; as many as lines,
                  with "" for none
        required: words and phrases that each must hold, such as the terms of a glossary, besides those that the recipe
                  requires of all

        Raises UserError as `translate_n_best` does.
        """
        n_best = 1 if self._utility is None else None  # which needs all of them to choose from
        return [translations[0].text for translations in self.translate_n_best(lines, n_best, prefixes, required)]

    def translate_n_best(
        self,
        lines: Sequence[str],
        n_best: int | None = None,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Translation]]:
        """The `n_best` best translations of each line (by default as many as the recipe says), best first.

        Where there are fewer, the list is shorter, but never empty. Of a line that had to be cut, the i-th translation
        is made of the i-th of every part, and its score is their mean. The first part gets the prefix, and each
        required phrase goes to the part that `assign_phrases` chooses. What is forbidden, preferred or avoided is so in
        every part by itself. Raises UserError when `n_best` exceeds the beam, when the rules leave no translation or
        the model is damaged, when no translation can hold what is required, and when prefixes or required phrases are
        not as many as the lines.
        """
        for name, given in (("lines", lines), ("prefixes", prefixes), ("required", required)):
            _require_list(name, given)
        options = self._options if n_best is None else replace(self._options, n_best=n_best)
        parts_of_lines = [self._cut(line) for line in lines]
        wishes = zip(
            self._encode_prefixes(prefixes, len(lines)), self._encode_required(required, len(lines)), strict=True
        )
        tasks = [
            task
            for parts, wish in zip(parts_of_lines, wishes, strict=True)
            for task in self._tasks(parts, *wish, replace(options, n_best=1))
        ]
        found = self._search(tasks, options)
        read = iter(self._align(lines, parts_of_lines, found, [self._read(hypotheses) for hypotheses in found]))
        return [self._order(self._join([next(read) for _ in parts])) for parts in parts_of_lines]

    def stream(
        self,
        lines: Iterable[str],
        window: int,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
    ) -> Iterator[list[Translation]]:
        """Translate endless input: `translate_n_best` of each line, in order, `window` lines in memory at a time.

        Nothing is read before the first answer is asked for, and no further than the window of the answer that is.
        Lines of a window are sorted into batches together, so a wide one is faster; one of 1 answers line by line.
        """
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        _require_list("lines", lines)
        source = iter(lines)
        given = None if prefixes is None else iter(prefixes)
        held = None if required is None else iter(required)
        while waiting := list(islice(source, window)):
            own = None if given is None else list(islice(given, len(waiting)))
            phrases = None if held is None else list(islice(held, len(waiting)))
            yield from self.translate_n_best(waiting, prefixes=own, required=phrases)

    def _cut(self, line: str) -> list[Part]:
        """The parts of a line: none of an empty line, one of most, several of one that is too long."""
        text, limit = normalize(line, self._unicode_form), self._max_tokens - len(self._tag)
        tokens = self._tokenizers.src.encode(text)
        if len(tokens) <= limit:
            return [Part(text, 0, tokens)] if tokens else []
        self.lines_cut += 1
        return cut_line(text, self._tokenizers.src.encode, limit)

    def _tasks(
        self, parts: Sequence[Part], prefix: list[int], required: list[list[int]], options: SearchOptions
    ) -> list[Task]:
        """What is searched for a line. options: for one translation, by which phrases are assigned to parts."""
        tasks = [Task(part.tokens, prefix if place == 0 else [], []) for place, part in enumerate(parts)]
        phrases = [tuple(phrase) for phrase in required if phrase]
        if len(tasks) < 2 or not phrases:
            return [task._replace(required=required) for task in tasks]

        def search(pairs: list[tuple[int, Phrase]]) -> list[float]:
            found = self._search([tasks[place]._replace(required=[[*phrase]]) for place, phrase in pairs], options)
            return [best[0].log_prob if best else -math.inf for best in found]

        free = [best[0] if best else Hypothesis([], 0.0, -math.inf, []) for best in self._search(tasks, options)]
        outputs = [tuple(one.tokens[::-1] if self._reverse_target else one.tokens) for one in free]
        assigned = assign_phrases(phrases, outputs, [one.log_prob for one in free], search)
        return [task._replace(required=[[*one] for one in own]) for task, own in zip(tasks, assigned, strict=True)]

    def _join(self, parts: Sequence[list[Translation]]) -> list[Translation]:
        """The translations of a line from those of its parts."""
        joined = join_ranks(parts)
        return joined if self._aligner is not None else [replace(one, alignment=None) for one in joined]

    def _order(self, translations: list[Translation]) -> list[Translation]:
        """Best first: as they are, or by expected utility, which then is their score."""
        if self._utility is None:
            return translations
        weights = [1.0] * len(translations)
        if self._sampling is None:
            weights = relative_probabilities([translation.log_prob for translation in translations])
        utilities = expected_utilities([translation.text for translation in translations], weights, self._utility)
        scored = [replace(one, score=utility) for one, utility in zip(translations, utilities, strict=True)]
        return sorted(scored, key=lambda translation: -translation.score)

    def _encode_phrase(self, phrase: str) -> list[int]:
        """The tokens of a part of an output, in the order in which the model writes them."""
        tokens = self._tokenizers.tgt.encode(normalize(phrase, self._unicode_form))
        return tokens[::-1] if self._reverse_target else tokens

    def _encode_prefixes(self, prefixes: Sequence[str] | None, num_lines: int) -> list[list[int]]:
        """The tokens that each translation must begin with, cut to what the model has positions for."""
        if prefixes is None:
            return [[] for _ in range(num_lines)]
        if self._reverse_target and any(prefixes):
            raise UserError(
                "the model writes from right to left; only one that begins at the beginning can be given prefixes; "
                "leave them out, or use another model"
            )
        if len(prefixes) != num_lines:
            raise UserError(
                f"there are {len(prefixes)} prefixes for {num_lines} lines; there must be one for each, empty for none"
            )
        return [self._encode_phrase(prefix)[: self._options.max_tokens] for prefix in prefixes]

    def _encode_required(self, required: Sequence[Sequence[str]] | None, num_lines: int) -> list[list[list[int]]]:
        """The tokens of the phrases that each translation must hold, those that all must hold among them."""
        if required is None:
            required = [()] * num_lines
        if len(required) != num_lines:
            raise UserError(
                f"there are required phrases for {len(required)} lines, but {num_lines} lines; each line needs a list, "
                "empty for none; check both"
            )
        if self._sampling is not None and any(required):
            raise UserError(
                "phrases are required, but translations are drawn at random; only a search can see to them; "
                "set decode.sampling to false"
            )
        most = self._options.max_tokens
        encoded = [[self._encode_phrase(phrase) for phrase in (*self._require, *phrases)] for phrases in required]
        for phrases, tokens in zip(required, encoded, strict=True):
            if most is not None and tokens_to_hold(tokens) > most:
                shown = ", ".join(repr(phrase) for phrase in (*self._require, *phrases))
                raise UserError(
                    f"the required phrases {shown} have {tokens_to_hold(tokens)} tokens together; the model writes at "
                    f"most {most}; require less of this line"
                )
        return encoded

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search sentences of about equal length together; see `nmt.decode.batches`."""
        lengths = [len(self._tag) + len(task.sentence) + 1 for task in tasks]
        all_may_join = self._sampling is None and self._shortlist is None and is_open(self._model)

        def search(ids: list[int], rows: int, found: dict[int, list[Hypothesis]]) -> None:
            finished: dict[int, list[Hypothesis]] = {}
            try:
                self._search_batch([tasks[i] for i in ids], options, rows, finished)
            finally:
                found |= {ids[place]: [self._as_read(one) for one in own] for place, own in finished.items()}

        return self._batching.run(crowds if all_may_join else batches, lengths, search)

    def _search_batch(
        self, tasks: Sequence[Task], options: SearchOptions, rows: int, finished: dict[int, list[Hypothesis]]
    ) -> None:
        """Search some sentences, `rows` at a time; `finished` gets the hypotheses of each by its number."""
        model = self._model_for(tasks)
        src = PackedSequences.from_lists([[*self._tag, *task.sentence, EOS_ID] for task in tasks]).to(self._device)
        prefixes = [task.prefix for task in tasks]
        if self._sampling is not None:
            found = sample(model, src, options, self._sampling, prefixes, finished)
        else:
            found = beam_search(model, src, options, prefixes, [task.required for task in tasks], rows, finished)
        finished.update(enumerate(found))

    def _model_for(self, tasks: Sequence[Task]) -> StepModel[Any]:
        """The model; with a shortlist, restricted to the candidates of these sentences."""
        assert self._model is not None, "a translator without a model searches in its own way"
        if self._shortlist is None:
            return self._model
        needed = [chain(task.prefix, *task.required, self._preferred) for task in tasks]
        candidates = self._shortlist.candidates([task.sentence for task in tasks], needed)
        return restrict(self._model, to_device(candidates, self._device))

    def _as_read(self, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis in the order of reading, whatever the model's."""
        if not self._reverse_target:
            return hypothesis
        log_probs = in_order_of_reading(hypothesis.token_log_probs)
        return replace(hypothesis, tokens=hypothesis.tokens[::-1], token_log_probs=log_probs)

    def _make_aligner(self, decode: DecodeRecipe) -> WordAligner:
        """What aligns words by the attention of the model, or of the first of an ensemble."""
        model = self._model.models[0] if isinstance(self._model, Ensemble) else self._model
        attending = cast(AttendingModel, model)
        return WordAligner(
            attending,
            self._tokenizers,
            ChosenAttention.from_recipe(decode, attending.recipe),
            unicode_form=self._unicode_form,
            device=self._device,
            batch_tokens=self._batching.tokens,
            tag=self._tag,
            reverse_target=self._reverse_target,
        )

    def _align(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[list[Part]],
        found: Sequence[list[Hypothesis]],
        read: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """The translations of each part of the lines with their links, where these are asked for."""
        if self._aligner is None:
            return list(read)
        outputs = [
            [(hypothesis.tokens, translation.text) for hypothesis, translation in zip(*both, strict=True)]
            for both in zip(found, read, strict=True)
        ]
        links = self._aligner.align_parts(lines, parts_of_lines, outputs)
        return [
            [replace(translation, alignment=own) for translation, own in zip(*both, strict=True)]
            for both in zip(read, links, strict=True)
        ]

    def _read(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        if not hypotheses:
            raise UserError(
                "no translation is possible; the rules must leave one, and the model must compute finite numbers (fp16 "
                "overflows above 65,504); forbid less, or use another precision or checkpoint"
            )
        tokenizer = self._tokenizers.tgt
        return [
            Translation(
                text=_BREAKS.sub(" ", tokenizer.decode(hypothesis.tokens)),
                score=hypothesis.score,
                log_prob=hypothesis.log_prob,
                pieces=tokenizer.pieces(hypothesis.tokens),
                token_log_probs=hypothesis.token_log_probs,
            )
            for hypothesis in hypotheses
        ]


def _require_list(name: str, given: object) -> None:
    """Raise TypeError for one string where several are to be given: its letters would be taken for them."""
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{name} must be a list of strings, got {type(given).__name__}; put it into a list")


def _lay_out(model: Transformer, precision: SearchPrecision, device: torch.device) -> Transformer:
    """The model as search multiplies its weights fastest; UserError where the device has no such arithmetic."""
    if precision == "int8":
        model.freeze(QuantizedLinear)
    else:
        model.to(torch_dtype(choose_precision(precision, device))).freeze()
    return model
