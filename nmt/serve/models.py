"""The models of a server, and what can be asked of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.recipe import DecodeRecipe, UserError, explain
from nmt.serve.batching import Batcher

if TYPE_CHECKING:  # it imports torch, which takes seconds; most servers score nothing
    from nmt.decode.scoring import Scorer, TextScore

# Searches that are kept to be used again; each takes little memory beside the model.
_KEPT_SEARCHES = 32


@dataclass(frozen=True)
class Search:
    """What the lines of a batch share. All other options are those of the model.

    scores: whether scores are wanted, and not texts alone
    """

    n_best: int = 1
    tag: str | None = None
    forbid: tuple[str, ...] = ()
    alignments: bool = False
    scores: bool = False


class Line(NamedTuple):
    """A line to translate, what its translation begins with, and phrases that it must hold."""

    text: str
    prefix: str = ""
    required: tuple[str, ...] = ()


class Pair(NamedTuple):
    """A source with a translation to score, and its number in the request."""

    source: str
    target: str
    number: int


@dataclass(frozen=True)
class Batching:
    """Most lines of a batch, most lines in the queue, and seconds that the first line waits for others."""

    most_lines: int = 64
    most_waiting: int = 4_096
    max_delay: float = 0.005


class ServedModel:
    """A model with its queue and its worker thread, which alone calls the model.

    languages: source and target; about: the engine and its precision
    batcher:   takes lines in the group of their `Search`, and pairs to score in the group None
    """

    def __init__(
        self,
        name: str,
        languages: tuple[str, str],
        decode: DecodeRecipe,
        translator: TextTranslator,
        load_scorer: Callable[[], Scorer],
        batching: Batching,
        about: str,
    ) -> None:
        """Serve a translator whose options are `decode`. load_scorer: called when scores are first asked for"""
        self.name, self.languages, self.decode, self.about = name, languages, decode, about
        self._translator = translator
        self._scorer = lru_cache(1)(load_scorer)
        self._searching = lru_cache(_KEPT_SEARCHES)(self._make_searching)
        self.batcher = Batcher(
            self._work,
            most_items=batching.most_lines,
            most_waiting=batching.most_waiting,
            max_delay=batching.max_delay,
        )

    def _work(self, search: Search | None, items: list[Any]) -> Sequence[object]:
        return self._score(items) if search is None else self._translate(search, items)

    def _translate(self, search: Search, lines: Sequence[Line]) -> list[list[Translation]]:
        found = self._searching(search).translate_n_best(
            [line.text for line in lines],
            prefixes=[line.prefix for line in lines],
            required=[line.required for line in lines],
        )
        return [translations[: search.n_best] for translations in found]

    def _make_searching(self, search: Search) -> TextTranslator:
        """The translator of a search, which shares the model with all others."""
        given = {
            "n_best": max(search.n_best, self.decode.n_best),
            "tag": self.decode.tag if search.tag is None else search.tag,
            "forbid": (*self.decode.forbid, *search.forbid),
            "alignments": search.alignments,
        }
        try:
            decode = DecodeRecipe.model_validate(self.decode.model_dump() | given)
        except ValidationError as error:
            raise UserError(explain(error)) from error
        return self._translator.with_decode(decode, scores=search.scores or search.n_best > 1)

    def _score(self, pairs: Sequence[Pair]) -> list[TextScore]:
        scorer = self._scorer()
        for pair in pairs:
            if not scorer.fits(pair.source, pair.target):
                raise UserError(f"pair {pair.number} has more tokens than the model holds; split its sentences")
        return scorer.score([pair.source for pair in pairs], [pair.target for pair in pairs])
