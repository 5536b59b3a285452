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
from nmt.decode.search import Hypothesis, SearchOptions, StepModel, beam_search
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
    score:    log_prob / length penalty: translations of a line are ordered by it
    log_prob: natural logarithm of its probability
    pieces:   its tokens in written form
    """

    text: str
    score: float
    log_prob: float
    pieces: list[str]


_NOTHING = Translation(text="", score=0.0, log_prob=0.0, pieces=[])


class Translator:
    """A model with all that stands between it and text.

    lines_cut: how many lines were too long so far and were translated in pieces
    """

    def __init__(
        self,
        model: StepModel[Any],
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        device: torch.device,
    ) -> None:
        """Translate with `model`, which lies on `device` and accepts sentences of `max_positions` tokens."""
        self.lines_cut = 0
        self._model = model
        self._tokenizers = tokenizers
        self._options = SearchOptions.from_recipe(decode, max_tokens=max_positions - 1)
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
    ) -> Translator:
        """The translator of a model directory, a checkpoint or a run.

        device: as `train.device` of the recipe; precision: of the weights and all computation up to the logits, `auto`
        takes bf16 where it is native; decode: how to search, by default as the model's recipe says.
        Raises UserError where there is no such model or device.
        """
        place = choose_device(device)
        loaded = load_model(Path(path), place)
        return cls(
            loaded.model.to(torch.bfloat16 if choose_precision(precision, place) == "bf16" else torch.float32),
            Tokenizers.load(loaded.directory),
            decode or loaded.facts.decode,
            max_positions=loaded.model.recipe.max_positions,
            unicode_form=cast(UnicodeForm, loaded.facts.unicode_form),
            device=place,
        )

    @property
    def num_parameters(self) -> int:
        """Number of weights of the model, tied ones counted once."""
        return sum(weight.numel() for weight in self._model.parameters()) if isinstance(self._model, nn.Module) else 0

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line, in order; "" for a line that holds nothing but space."""
        return [translations[0].text for translations in self.translate_n_best(lines, n_best=1)]

    def translate_n_best(self, lines: Sequence[str], n_best: int | None = None) -> list[list[Translation]]:
        """The `n_best` best translations of each line (by default as many as the recipe says), best first.

        Where there are fewer, the list is shorter, but never empty. Of a line that had to be cut, the i-th translation
        is made of the i-th of every piece, and its score is their mean. Raises UserError when the model is damaged.
        """
        options = self._options if n_best is None else replace(self._options, n_best=n_best)
        pieces_of_lines = [self._encode(line) for line in lines]
        found = iter(self._search([tokens for pieces in pieces_of_lines for tokens in pieces], options))
        return [_join([self._read(next(found)) for _ in pieces]) for pieces in pieces_of_lines]

    def stream(self, lines: Iterable[str], window: int) -> Iterator[list[Translation]]:
        """Translate endless input: `translate_n_best` of each line, in order, `window` lines in memory at a time.

        Lines of a window are sorted into batches together, so a wide one is faster; one of 1 answers line by line.
        """
        assert window > 0, "a window holds at least one line"
        source = iter(lines)
        while waiting := list(islice(source, window)):
            yield from self.translate_n_best(waiting)

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

    def _search(self, sentences: Sequence[list[int]], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search in batches of about equal length, the longest first: if memory is too small, it shows at once."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        costs = np.maximum(lengths, _MIN_SENTENCE_COST - 1)  # the plan counts the end token
        found: dict[int, list[Hypothesis]] = {}
        for ids in reversed(plan_in_order(lengths, costs, micro_batch_tokens=self._batch_tokens)):
            hypotheses = self._search_batch([sentences[i] for i in ids], options)
            found.update(zip(ids.tolist(), hypotheses, strict=True))
        return [found[i] for i in range(len(sentences))]

    def _search_batch(self, sentences: Sequence[list[int]], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search one batch; where the GPU's memory is too small, its halves one after the other."""
        src = PackedSequences.from_lists([[*sentence, EOS_ID] for sentence in sentences]).to(self._device)
        try:
            return beam_search(self._model, src, options)
        except torch.OutOfMemoryError as error:
            if len(sentences) == 1:
                raise UserError(
                    "the GPU's memory is too small for one sentence; it must be free for this; "
                    "end what else runs on it, or lower decode.beam_size"
                ) from error
        half = len(sentences) // 2
        return self._search_batch(sentences[:half], options) + self._search_batch(sentences[half:], options)

    def _read(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        if not hypotheses:
            raise UserError(
                "the model gives no probability to any translation; its weights must be finite numbers; "
                "use another checkpoint"
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
