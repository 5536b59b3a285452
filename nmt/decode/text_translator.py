"""From lines of text to tokens and back, around a search: strings go in, and as many come out, in the same order.

Nothing here needs torch: `nmt.decode.translator` searches with our models, `nmt.export.engine` with CTranslate2.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple, Self

from nmt.decode.translation import Translation, join_ranks
from nmt.recipe import DecodeRecipe, UserError
from nmt.search.hypothesis import Hypothesis, in_order_of_reading
from nmt.search.limits import tokens_to_hold
from nmt.search.options import SearchOptions
from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS
from nmt.text.clean import UnicodeForm, normalize
from nmt.text.splitting import Part, Phrase, assign_phrases, split_line
from nmt.text.tokenizer import Tokenizers

# All that `str.splitlines`, or a reader of the output that uses something like it, takes for the end of a line, and
# the end of a column.
_BREAKS = re.compile("[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


class Task(NamedTuple):
    """The tokens of a sentence, those that its translation begins with, and those of the phrases that it must hold."""

    sentence: list[int]
    prefix: list[int]
    required: list[list[int]]


class TextTranslator(ABC):
    """All that stands between text and a search for token ids.

    Any string is accepted. It is normalised to one line first, so that line breaks inside it become spaces; nothing but
    white space gives an empty translation without asking the model; and a line too long for the model is cut at
    sentence ends and its parts are translated each for itself. What a line gets does not depend on its neighbours, but
    for rounding. Use a translator from one thread at a time.

    lines_cut: how many lines were too long so far and were translated in pieces
    """

    _shows_scores = True

    def __init__(
        self,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        reverse_target: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """Translate with a model that accepts sentences of `max_positions` tokens.

        max_tokens: the longest sentence that it has seen in training; longer lines are cut, since a model translates
        badly what is longer than all that it has seen
        reverse_target: whether it writes from right to left; text comes out in the order of reading all the same
        Raises UserError when `decode` asks for a tag that the source tokenizer does not know.
        """
        self.lines_cut = 0
        self._tokenizers = tokenizers
        self._unicode_form = unicode_form
        self._reverse_target = reverse_target
        self._max_positions = max_positions
        self._max_tokens = min(max_tokens, max_positions - 1)  # the end token needs a position too
        self._set_decode(decode)

    def with_decode(self, decode: DecodeRecipe, *, scores: bool = True) -> Self:
        """A translator with the same model that searches by other options.

        scores: whether those of translations are used; texts alone may take less time
        Raises UserError as the constructor does.
        """
        other = copy(self)
        other._shows_scores = scores
        other._set_decode(decode)
        return other

    def _set_decode(self, decode: DecodeRecipe) -> None:
        """Search as `decode` says. All that depends on it is set here."""
        forbidden = [self._encode_phrase(phrase) for phrase in decode.forbid]
        bias = [(self._encode_phrase(phrase), value) for phrase, value in decode.bias.items()]
        self._options = SearchOptions.from_recipe(decode, self._max_positions - 1, forbidden, bias)
        self._require = decode.require
        self._samples = decode.sampling
        self._aligns = decode.alignments
        # Imported where it is needed: it imports sacreBLEU, which takes longer than a short text to translate.
        self._risk: Any = None if decode.bayes_risk == "none" else import_module("nmt.decode.bayes_risk")
        self._utility = None if self._risk is None else self._risk.sentence_utility(decode.bayes_risk)
        self._tag = [] if decode.tag is None else [self._tokenizers.src.tag_id(decode.tag)]

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
        return self.start_translation(lines, n_best, prefixes, required)()

    def start_translation(
        self,
        lines: Sequence[str],
        n_best: int | None = None,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
    ) -> Callable[[], list[list[Translation]]]:
        """Begin a translation, and return what waits for its end and gives the results of `translate_n_best`.

        A program that searches in threads of its own then has the next lines before it is done with these.
        """
        for name, given in (("lines", lines), ("prefixes", prefixes), ("required", required)):
            _require_list(name, given)
        for phrases in required or ():
            _require_list("the phrases of a line", phrases)
        options = self._options if n_best is None else replace(self._options, n_best=n_best)
        of_one = replace(options, n_best=1)
        parts_of_lines = [self._cut(line) for line in lines]
        constraints = zip(
            self._encode_prefixes(prefixes, len(lines)), self._encode_required(required, len(lines)), strict=True
        )
        tasks = [
            task
            for parts, constraint in zip(parts_of_lines, constraints, strict=True)
            for task in self._tasks(parts, *constraint, of_one)
        ]
        finish_search = self._start_search(tasks, options)

        def finish() -> list[list[Translation]]:
            found = finish_search()
            read = iter(self._align(lines, parts_of_lines, found, [self._read(hypotheses) for hypotheses in found]))
            return [self._order(self._join([next(read) for _ in parts])) for parts in parts_of_lines]

        return finish

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
        for name, value in (("lines", lines), ("prefixes", prefixes), ("required", required)):
            _require_list(name, value)
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
        return split_line(text, self._tokenizers.src.encode, limit)

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
        if self._aligns:
            return joined
        return [one if one.alignment is None else replace(one, alignment=None) for one in joined]

    def _order(self, translations: list[Translation]) -> list[Translation]:
        """Best first: as they are, or by expected utility, which then is their score."""
        if self._utility is None:
            return translations
        weights = [1.0] * len(translations)
        if not self._samples:
            weights = self._risk.relative_probabilities([translation.log_prob for translation in translations])
        utilities = self._risk.expected_utilities(
            [translation.text for translation in translations], weights, self._utility
        )
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
        most = self._options.max_tokens
        return [self._encode_phrase(prefix)[:most] if prefix else [] for prefix in prefixes]

    def _encode_required(self, required: Sequence[Sequence[str]] | None, num_lines: int) -> list[list[list[int]]]:
        """The tokens of the phrases that each translation must hold, those that all must hold among them."""
        if required is None:
            required = [()] * num_lines
        if len(required) != num_lines:
            raise UserError(
                f"there are required phrases for {len(required)} lines, but {num_lines} lines; each line needs a list, "
                "empty for none; check both"
            )
        if self._samples and any(required):
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

    @abstractmethod
    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """The `n_best` best hypotheses of each task, best first, in the order of reading."""

    def _start_search(self, tasks: Sequence[Task], options: SearchOptions) -> Callable[[], list[list[Hypothesis]]]:
        """Begin `_search`, where it is done in threads of its own; here it waits to be asked for its results."""
        return lambda: self._search(tasks, options)

    def _align(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[list[Part]],
        found: Sequence[list[Hypothesis]],
        read: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """The translations of each part of the lines with their links, where these are asked for."""
        return list(read)

    def _as_read(self, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis in the order of reading, whatever the model's."""
        if not self._reverse_target:
            return hypothesis
        log_probs = in_order_of_reading(hypothesis.token_log_probs)
        return replace(hypothesis, tokens=hypothesis.tokens[::-1], token_log_probs=log_probs)

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
