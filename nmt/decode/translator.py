"""The translator: lines of text in, lines of text out, one for one and in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from nmt.checkpoint import load_model
from nmt.data.clean import UnicodeForm, normalize
from nmt.data.packing import plan_in_order
from nmt.data.tokenizer import Tokenizers
from nmt.decode.bayes_risk import expected_utilities, relative_probabilities, sentence_utility
from nmt.decode.ensemble import Ensemble
from nmt.decode.options import SearchOptions
from nmt.decode.sampling import SamplingOptions, sample
from nmt.decode.search import Hypothesis, StepModel, beam_search
from nmt.distributed import choose_device
from nmt.packed import EOS_ID, PackedSequences
from nmt.precision import Precision, choose_precision
from nmt.recipe import DecodeRecipe, UserError

MAX_SENTENCE_TOKENS = 256
"""Longer lines are cut into pieces: a model translates badly what is longer than all that it has seen in training."""

# A batch counts a shorter sentence as this long, since each also costs `beam_size` rows of logits at every step.
_MIN_SENTENCE_COST = 16

# All that `str.splitlines`, or a reader of the output that uses something like it, takes for the end of a line.
_LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")

# Where a line may be cut, best first: behind a sentence, behind a clause, between words.
_CUTS = (
    re.compile(r"[.!?\u2026\u061f\u0964][^\w\s]*\s+|[\u3002\uff01\uff1f][^\w\s]*"),
    re.compile(r"[,;:\u2013\u2014\u060c]\s+|[\u3001\uff0c\uff1a\uff1b]"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True)
class Translation:
    """One translation of one line.

    text:     the translation, without any line break
    score:    log_prob / length penalty, or expected utility: translations of a line that were searched for are
              ordered by it
    log_prob: natural logarithm of its probability
    pieces:   its tokens in written form
    """

    text: str
    score: float
    log_prob: float
    pieces: list[str]


# The tokens of a sentence, and those that its translation must begin with.
Task = tuple[list[int], list[int]]

_NOTHING = Translation(text="", score=0.0, log_prob=0.0, pieces=[])


class Translator:
    """A model with all that stands between it and text.

    lines_cut: how many lines were too long so far and were translated in pieces
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
    ) -> None:
        """Translate with `model`, which lies on `device` and accepts sentences of `max_positions` tokens.

        It is None where a subclass searches in another way: see `_search`.
        """
        self.lines_cut = 0
        self._model = model
        self._tokenizers = tokenizers
        forbidden = [tokenizers.tgt.encode(normalize(phrase, unicode_form)) for phrase in decode.forbid]
        self._options = SearchOptions.from_recipe(decode, max_positions - 1, forbidden)
        self._sampling = SamplingOptions.from_recipe(decode) if decode.sampling else None
        self._utility = None if decode.bayes_risk == "none" else sentence_utility(decode.bayes_risk)
        self._batch_tokens = decode.batch_tokens
        self._max_tokens = min(MAX_SENTENCE_TOKENS, max_positions - 1)  # the end token needs a position too
        self._unicode_form = unicode_form
        self._device = device

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: Precision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Translator:
        """The translator of a model directory, a checkpoint or a run.

        device: as `train.device` of the recipe; precision: of the weights and all computation up to the logits, `auto`
        takes bf16 where it is native; decode: how to search, by default as the model's recipe says; ensemble: further
        models with the same tokenizers, which decide together with the first.
        Raises UserError where there is no such model or device, or where the tokenizers differ.
        """
        place = choose_device(device)
        dtype = torch.bfloat16 if choose_precision(precision, place) == "bf16" else torch.float32
        loaded = [load_model(Path(one), place) for one in (path, *ensemble)]
        first, facts = loaded[0], loaded[0].facts
        tokenizers = Tokenizers.load(first.directory)
        for other in loaded[1:]:
            if Tokenizers.load(other.directory).files() != tokenizers.files():
                raise UserError(
                    f"{other.directory} has other tokenizers than {first.directory}; models of an ensemble must share "
                    "them; train them with the same tokenizer (tokenizer.start_from)"
                )
        options = decode or facts.decode
        models = [one.model.to(dtype) for one in loaded]
        return cls(
            models[0] if len(models) == 1 else Ensemble(models, options.ensemble_mean),
            tokenizers,
            options,
            max_positions=min(model.recipe.max_positions for model in models),
            unicode_form=cast(UnicodeForm, facts.unicode_form),
            device=place,
        )

    @property
    def num_parameters(self) -> int:
        """Number of weights of the model, tied ones counted once."""
        members: list[object] = [*self._model.models] if isinstance(self._model, Ensemble) else [self._model]
        modules = [member for member in members if isinstance(member, nn.Module)]
        return sum(weight.numel() for module in modules for weight in module.parameters())

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """The best translation of each line, in order; "" for a line that holds nothing but space.

        prefixes: what each translation must begin with, as for one who types and wants the rest
        """
        n_best = 1 if self._utility is None else None  # which needs all of them to choose from
        return [translations[0].text for translations in self.translate_n_best(lines, n_best, prefixes)]

    def translate_n_best(
        self, lines: Sequence[str], n_best: int | None = None, prefixes: Sequence[str] | None = None
    ) -> list[list[Translation]]:
        """The `n_best` best translations of each line (by default as many as the recipe says), best first.

        Where there are fewer, the list is shorter, but never empty. Of a line that had to be cut, the i-th translation
        is made of the i-th of every piece, and its score is their mean; its first piece gets the prefix. Raises
        UserError when the model is damaged, and when the prefixes are not as many as the lines.
        """
        options = self._options if n_best is None else replace(self._options, n_best=n_best)
        pieces_of_lines = [self._encode(line) for line in lines]
        prefix_of_lines = self._encode_prefixes(prefixes, len(lines))
        tasks = [
            (tokens, prefix if place == 0 else [])
            for pieces, prefix in zip(pieces_of_lines, prefix_of_lines, strict=True)
            for place, tokens in enumerate(pieces)
        ]
        found = iter(self._search(tasks, options))
        return [self._order(_join([self._read(next(found)) for _ in pieces])) for pieces in pieces_of_lines]

    def stream(
        self, lines: Iterable[str], window: int, prefixes: Iterable[str] | None = None
    ) -> Iterator[list[Translation]]:
        """Translate endless input: `translate_n_best` of each line, in order, `window` lines in memory at a time.

        Lines of a window are sorted into batches together, so a wide one is faster; one of 1 answers line by line.
        """
        assert window > 0, "a window holds at least one line"
        source, given = iter(lines), iter(prefixes) if prefixes is not None else None
        while waiting := list(islice(source, window)):
            own = None if given is None else list(islice(given, len(waiting)))
            yield from self.translate_n_best(waiting, prefixes=own)

    def _encode(self, line: str) -> list[list[int]]:
        """The tokens of a line: none for an empty line, one list for most, several for one that must be cut."""
        encode, limit = self._tokenizers.src.encode, self._max_tokens
        text = normalize(line, self._unicode_form)
        tokens = encode(text)
        if len(tokens) <= limit:
            return [tokens] if tokens else []
        self.lines_cut += 1
        pieces = map(encode, cut_text(text, lambda part: len(encode(part)) <= limit))
        # A single character, spelled in bytes, can exceed the limit of a very small model.
        return [piece[:limit] for piece in pieces if piece]

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

    def _encode_prefixes(self, prefixes: Sequence[str] | None, num_lines: int) -> list[list[int]]:
        """The tokens that each translation must begin with, cut to what the model has positions for."""
        if prefixes is None:
            return [[] for _ in range(num_lines)]
        if len(prefixes) != num_lines:
            raise UserError(
                f"there are {len(prefixes)} prefixes for {num_lines} lines; there must be one for each, empty for none"
            )
        encode, form = self._tokenizers.tgt.encode, self._unicode_form
        return [encode(normalize(prefix, form))[: self._options.max_tokens] for prefix in prefixes]

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search in batches of about equal length, the longest first: if memory is too small, it shows at once."""
        lengths = np.array([len(sentence) for sentence, _ in tasks], dtype=np.int64)
        costs = np.maximum(lengths, _MIN_SENTENCE_COST - 1)  # the plan counts the end token
        found: dict[int, list[Hypothesis]] = {}
        for ids in reversed(plan_in_order(lengths, costs, micro_batch_tokens=self._batch_tokens)):
            hypotheses = self._search_batch([tasks[i] for i in ids], options)
            found.update(zip(ids.tolist(), hypotheses, strict=True))
        return [found[i] for i in range(len(tasks))]

    def _search_batch(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search one batch; where the GPU's memory is too small, its halves one after the other."""
        assert self._model is not None, "a translator without a model searches in its own way"
        src = PackedSequences.from_lists([[*sentence, EOS_ID] for sentence, _ in tasks]).to(self._device)
        try:
            prefixes = [prefix for _, prefix in tasks]
            if self._sampling is not None:
                return sample(self._model, src, options, self._sampling, prefixes)
            return beam_search(self._model, src, options, prefixes)
        except torch.OutOfMemoryError as error:
            if len(tasks) == 1:
                raise UserError(
                    "the GPU's memory is too small for one sentence; it must be free for this; "
                    "end what else runs on it, or lower decode.beam_size"
                ) from error
        half = len(tasks) // 2
        return self._search_batch(tasks[:half], options) + self._search_batch(tasks[half:], options)

    def _read(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        if not hypotheses:
            raise UserError(
                "no translation is possible; the rules must leave one, and the model's weights must be finite numbers; "
                "forbid less, or use another checkpoint"
            )
        tokenizer = self._tokenizers.tgt
        return [
            Translation(
                text=_LINE_BREAKS.sub(" ", tokenizer.decode(hypothesis.tokens)),
                score=hypothesis.score,
                log_prob=hypothesis.log_prob,
                pieces=tokenizer.pieces(hypothesis.tokens),
            )
            for hypothesis in hypotheses
        ]


def cut_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a line until every piece fits, each time as near to the middle as can be; nothing is left of an empty line.

    Cuts behind sentences are preferred to cuts behind clauses, these to cuts between words, and only a line that holds
    none of them is cut anywhere. A single character is a piece whether it fits or not.
    """
    text = text.strip()
    if len(text) <= 1 or fits(text):
        return [text] if text else []
    middle = len(text) // 2
    places: list[int] = []
    for pattern in _CUTS:
        places = places or [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
    place = min(places, key=lambda place: abs(place - middle), default=middle)
    return cut_text(text[:place], fits) + cut_text(text[place:], fits)


def _join(pieces: list[list[Translation]]) -> list[Translation]:
    """The translations of a line from those of its pieces; a piece that has fewer gives its last again."""
    if not pieces:
        return [_NOTHING]
    joined = []
    for rank in range(max(map(len, pieces))):
        parts = [translations[min(rank, len(translations) - 1)] for translations in pieces]
        joined.append(
            Translation(
                text=" ".join(part.text for part in parts if part.text),
                score=sum(part.score for part in parts) / len(parts),
                log_prob=sum(part.log_prob for part in parts),
                pieces=[piece for part in parts for piece in part.pieces],
            )
        )
    return joined
