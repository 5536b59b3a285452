"""Translate lines and preserve their markup and items.

A line is translated without its tags. If items are missing or added, the line is translated again: with the missing
items as required phrases if the engine supports them and the beam is large enough, and without digits if the line has
none. If this also fails, the line is split at its items, and the text between them is translated separately, without
digits. Tags are then inserted by word alignment. If the wrapped translator splits lines into sentences, the first
fallback for a line without required phrases is to translate it sentence by sentence, each with these fallbacks, and to
insert the tags into the joined translations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from itertools import chain, pairwise
from operator import or_
from typing import TYPE_CHECKING

from nmt.decode.glossary import Glossary, Required, forms_of
from nmt.decode.task import Previous, TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation, join_parts, join_ranks, without_breaks
from nmt.errors import MemoryFileError, UserError
from nmt.keep.items import Item, ItemGrammar, is_newly_joined
from nmt.keep.links import link_equal_words, statistical_links
from nmt.keep.markup import Links, MarkedText, apply_edits, word_spans
from nmt.keep.segments import Segment, split_at_items, without_added_stop
from nmt.logs import counted
from nmt.recipe import Context
from nmt.text.clean import normalize
from nmt.text.languages import WITHOUT_SPACES
from nmt.text.sentences import split_sentences
from nmt.text.splitting import contains_phrase
from nmt.text.words import has_digits

if TYPE_CHECKING:
    from nmt.decode.memory import MemoryTranslator

Finish = Callable[[], list[list[Translation]]]


@dataclass(frozen=True)
class Fallbacks:
    """Numbers of lines for which the first translation did not preserve all items, by the fallback that preserved them.

    A line of several sentences may have several fallbacks.

    searched: a second search: sentence by sentence, with required phrases, or without digits
    split:    splitting at the items
    copied:   leaving the line untranslated, which includes lines with too many open elements
    unmet:    lines of `split` and `copied` that lack their prefix or a required phrase, or have a forbidden one
    """

    searched: int = 0
    split: int = 0
    copied: int = 0
    unmet: int = 0

    def __add__(self, other: Fallbacks) -> Fallbacks:
        return Fallbacks(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __or__(self, other: Fallbacks) -> Fallbacks:
        return Fallbacks(*map(max, zip(astuple(self), astuple(other), strict=True)))

    def describe(self) -> str:
        """Return a message with the counts."""
        counts = {
            "translated again": self.searched,
            "split at the items": self.split,
            "not translated": self.copied,
        }
        used = [f"{counted(count, 'line')} {how}" for how, count in counts.items() if count]
        return f"kept all items; {', '.join(used) or 'no line was translated twice'}"

    def describe_unmet(self) -> str:
        """Return a message about `unmet`."""
        lacks, has = ("lacks its", "has") if self.unmet == 1 else ("lack their", "have")
        return (
            f"{counted(self.unmet, 'line')} {lacks} prefix or a required phrase, or {has} a forbidden one, because "
            "--keep takes precedence; check the output, or keep fewer kinds"
        )


def unspaced_markup(kinds: Collection[str], languages: tuple[str, str]) -> str:
    """Describe the problem if markup is kept in a language without spaces; "" if there is none."""
    unspaced = WITHOUT_SPACES.intersection(languages) if "markup" in kinds else ()
    if not unspaced:
        return ""
    names = " and ".join(sorted(unspaced))
    return f"text in {names} has no spaces between words, so a tag may enclose more text than in the source"


@dataclass(eq=False)
class _Line:
    """A parsed line, its items, and the input of its first translation.

    grammar:     finds the items of the line and its translation
    requested:   items of its prefix, required phrases and glossary terms, which the translation may also have
    is_sentence: whether it is a sentence of a line, whose translation keeps its alignment
    first_word:  index of the first word of a sentence in its line
    kept:        translations that have its items, with its tags
    fallbacks:   those that it needed
    """

    marked: MarkedText
    grammar: ItemGrammar
    items: list[Item]
    plain: TranslatorInput
    requested: list[Item]
    is_sentence: bool = False
    first_word: int = 0
    kept: list[Translation] = field(default_factory=list)
    fallbacks: Fallbacks = Fallbacks()

    def kept_in_line(self) -> list[Translation]:
        """Return the translations of a sentence with links to the words of its line."""
        return [
            replace(kept, alignment=kept.alignment and [(self.first_word + src, tgt) for src, tgt in kept.alignment])
            for kept in self.kept
        ]


class PreservingTranslator:
    """Wraps a translator and preserves markup and items.

    kinds:     the kinds of items that are preserved
    fallbacks: number of lines that needed each fallback
    lines_split, lines_longer, lines_reused: see `TextTranslator`; second searches of a line are not counted
    """

    def __init__(
        self,
        translator: TextTranslator | MemoryTranslator,
        kinds: Collection[str],
        languages: tuple[str, str],
        *,
        is_subtitle: bool = False,
        aligns_jointly: bool = True,
    ) -> None:
        """To keep markup, the translator should output alignments.

        languages:      ISO 639 codes of source and target, which determine the number format
        is_subtitle:    see `MarkedText.parse`
        aligns_jointly: whether a statistical aligner learns from all lines of a call, or from each line separately
        """
        self.kinds, self.fallbacks = kinds, Fallbacks()
        self.lines_split = self.lines_longer = self.lines_reused = 0
        self._translator = translator
        self._grammar = ItemGrammar(kinds, *languages)
        self._keeps_markup = "markup" in kinds
        self._keeps_numbers = "numbers" in kinds
        self._is_subtitle = is_subtitle
        self._aligns_jointly = aligns_jointly
        self._variants: dict[tuple[bool, bool], TextTranslator | MemoryTranslator] = {(True, True): translator}

    @property
    def context(self) -> Context:
        """See `TextTranslator`."""
        return self._translator.context

    def with_constraints(self, tag: str | None, forbidden: Sequence[str]) -> PreservingTranslator:
        """See `TextTranslator.with_constraints`."""
        other = copy(self)
        other.fallbacks = Fallbacks()
        other._translator = self._translator.with_constraints(tag, forbidden)
        other._variants = {(True, True): other._translator}
        return other

    def take_fallbacks(self) -> Fallbacks:
        """Return and reset `fallbacks`."""
        taken, self.fallbacks = self.fallbacks, Fallbacks()
        return taken

    def own_glossary(self, glossary: Glossary | None, line: str) -> Glossary | None:
        """Return a glossary whose terms do not match within the items of a line."""
        return None if glossary is None else glossary.outside(self._grammar.with_fixed(self._parse(line).fixed).spans)

    def without_tags(self, text: str) -> str:
        """Return a line or its translation as the wrapped translator reads or writes it."""
        return self._parse(text).text

    def _plain_phrase(self, required: Required) -> Required:
        """Return a required phrase, or its alternatives, without tags; a phrase that consists of tags stays."""
        if isinstance(required, str):
            plain = self.without_tags(required)
            return plain if plain.strip() else required
        return tuple(str(self._plain_phrase(form)) for form in required)

    def start_translation(self, inputs: Sequence[TranslatorInput]) -> Finish:
        """See `TextTranslator.start_translation`; fallbacks run when the returned function is called.

        Pieces and scores are those of the text without tags. A line that is split at its items is translated without
        context.
        """
        lines = [self._read(item) for item in inputs]
        first = self._translator
        split, longer, reused = first.lines_split, first.lines_longer, first.lines_reused
        finish_first = first.start_translation([line.plain for line in lines])
        self.lines_split += first.lines_split - split
        self.lines_longer += first.lines_longer - longer
        self.lines_reused += first.lines_reused - reused

        def finish() -> list[list[Translation]]:
            self._preserve(lines, finish_first())
            too_deep = Fallbacks(copied=sum(line.marked.too_deep for line in lines))
            self.fallbacks += sum((line.fallbacks for line in lines), too_deep)
            return [line.kept for line in lines]

        return finish

    def _preserve(self, lines: Sequence[_Line], n_best_lists: Sequence[Sequence[Translation]]) -> None:
        """Keep translations of each line; those in `n_best_lists` if they have its items."""
        self._keep(lines, n_best_lists)
        self._translate_sentences([line for line in lines if not line.kept])
        self._search_again(
            [(line, best.text) for line, (best, *_) in zip(lines, n_best_lists, strict=True) if not line.kept]
        )
        self._split([line for line in lines if not line.kept])

    def _read(self, item: TranslatorInput) -> _Line:
        marked = self._parse(item.text)
        context = tuple(map(self._plain, item.context))
        grammar = self._grammar.with_fixed(marked.fixed)
        glossary = item.glossary and item.glossary.outside(grammar.spans)
        required = tuple(map(self._plain_phrase, item.required))
        prefix = self.without_tags(item.prefix)
        plain = TranslatorInput(marked.text, prefix, required, context, glossary)
        requested = grammar.find_target(self._requested(plain, self._translator.require))
        return _Line(marked, grammar, grammar.find_source(marked.text), plain, requested)

    def _requested(self, item: TranslatorInput, require: Sequence[Required]) -> str:
        """Return the texts that a translation must or may contain, one per line. require: phrases of all inputs"""
        terms = [] if item.glossary is None else item.glossary.required(item.text)
        phrases = (*require, *item.required, *terms)
        return "\n".join([item.prefix, *(form for phrase in phrases for form in forms_of(phrase))])

    def _parse(self, text: str) -> MarkedText:
        return (
            MarkedText.parse(text, is_subtitle=self._is_subtitle)
            if self._keeps_markup
            else MarkedText(without_breaks(text))
        )

    def _plain(self, previous: Previous) -> Previous:
        """Return a previous sentence, or both sides of a pair, without tags."""
        if isinstance(previous, str):
            return self.without_tags(previous)
        return self.without_tags(previous[0]), self.without_tags(previous[1])

    def _keep(
        self, lines: Sequence[_Line], n_best_lists: Sequence[Sequence[Translation]], *, allow_joined: bool = True
    ) -> None:
        """Keep the translations that have the items of their line, with its tags. allow_joined: see `_insert`"""
        pairs = [
            (line, translation) for line, n_best in zip(lines, n_best_lists, strict=True) for translation in n_best
        ]
        for (line, translation), links in zip(pairs, self._links(pairs), strict=True):
            text = self._insert(line, translation.text, links, allow_joined=allow_joined)
            if text is not None:
                line.kept.append(translation if line.is_sentence else replace(translation, text=text, alignment=None))

    def _links(self, pairs: Sequence[tuple[_Line, Translation]]) -> Sequence[Links]:
        """Return the word links of each pair: the engine's, or those of an aligner trained on these pairs."""
        if not any(line.marked.elements for line, _ in pairs):
            return [()] * len(pairs)
        if all(translation.alignment is not None for _, translation in pairs):
            return [translation.alignment or () for _, translation in pairs]
        texts = [(line.marked.text, translation.text) for line, translation in pairs]
        if self._aligns_jointly:
            return [sorted(links) for links in statistical_links(texts)]
        return [sorted(links) for pair in texts for links in statistical_links([pair])]

    def _insert(self, line: _Line, translation: str, links: Links, *, allow_joined: bool) -> str | None:
        """Return a translation with the tags of its line and items in their written form; None if items differ.

        allow_joined: whether an item may be newly joined to letters, such as a required phrase inside a word
        """
        pairing = line.grammar.pair(line.items, line.grammar.find_target(translation))
        text = line.marked.text
        if not allow_joined and any(is_newly_joined(pair[0], text, pair[1], translation) for pair in pairing.pairs):
            return None
        pairs = sorted(pairing.pairs, key=lambda pair: pair[1].start)
        edits = [(target.start, target.end, line.grammar.written(source)) for source, target in pairs]
        if not line.grammar.holds(line.items, apply_edits(translation, edits)[0], line.requested):
            return None
        if line.marked.elements:
            links = link_equal_words(line.marked.text, translation, links, pairs)
        return line.marked.insert(translation, links, edits)

    def _translate_sentences(self, lines: Sequence[_Line]) -> None:
        """Translate the sentences of these lines as lines, and join them."""
        sentences = {line: parts for line in lines if (parts := self._sentences(line))}
        all_parts = list(chain(*sentences.values()))
        if not all_parts:
            return
        self._preserve(all_parts, self._translator.translate_inputs([part.plain for part in all_parts]))
        joined = [join_ranks([part.kept_in_line() for part in parts]) for parts in sentences.values()]
        self._keep(list(sentences), joined)
        for line, parts in sentences.items():
            if line.kept:
                line.fallbacks = reduce(or_, (part.fallbacks for part in parts), Fallbacks(searched=1))

    def _sentences(self, line: _Line) -> list[_Line]:
        """Return the sentences of a line; none if there is only one, or if required phrases apply to the whole line.

        None also for a sentence, and if the wrapped translator does not split lines.
        """
        translator, text = self._translator, line.marked.text
        if not translator.splits_sentences or line.is_sentence or translator.require or line.plain.required:
            return []
        starts: list[int] = []
        end = 0
        for sentence in split_sentences(text):
            start = text.index(sentence, end)
            end = start + len(sentence)
            if not any(item.start < start < item.end for item in line.items):
                starts.append(start)
        words = [start for start, _ in word_spans(text)]
        sentences: list[_Line] = []
        for start, end in pairwise([*starts, len(text)] if len(starts) > 1 else []):
            own = [item for item in line.items if start <= item.start < end]
            items = [item._replace(start=item.start - start, end=item.end - start) for item in own]
            plain = line.plain._replace(text=text[start:end].rstrip())
            if sentences:
                plain = plain._replace(prefix="")
            if self.context.size and not self.context.has_target:
                plain = plain._replace(context=(*plain.context, *(sentence.plain.text for sentence in sentences)))
            requested = line.grammar.find_target(self._requested(plain, ()))
            first_word = bisect_right(words, start) - 1
            sentences.append(_Line(MarkedText(plain.text), line.grammar, items, plain, requested, True, first_word))
        return sentences

    def _search_again(self, translated: Sequence[tuple[_Line, str]]) -> None:
        """Repeat the search for lines; require items that their first translation lacks."""
        inputs: dict[_Line, TranslatorInput] = {}
        for line, translation in translated:
            pairing = line.grammar.pair(line.items, line.grammar.find_target(translation))
            missing = tuple(map(line.grammar.written, pairing.missing))
            item = line.plain._replace(required=(*line.plain.required, *missing))
            if missing and not self._can_require(item):
                missing, item = (), line.plain
            adds_numbers = any(extra.kind == "numbers" for extra in pairing.extra)
            if missing or (adds_numbers and not self._may_have_digits(item, self._translator.require)):
                inputs[line] = item
        self._keep(list(inputs), self._search_possible(list(inputs.values())), allow_joined=False)
        for line in inputs:
            if line.kept:
                line.fallbacks |= Fallbacks(searched=1)

    def _can_require(self, item: TranslatorInput) -> bool:
        """Return whether the engine supports required phrases and the beam is large enough for those of an input."""
        try:
            return "required" not in self._translator.unsupported and self._translator.fits_beam(item)
        except UserError:  # the phrases are too long for any output
            return False

    def _search_possible(self, inputs: Sequence[TranslatorInput]) -> list[list[Translation]]:
        """Translate inputs; those without an output that contains all required phrases get no translations."""
        try:
            return self._search(inputs)
        except MemoryFileError:
            raise
        except UserError:
            if len(inputs) == 1:
                return [[]]
            half = len(inputs) // 2
            return self._search_possible(inputs[:half]) + self._search_possible(inputs[half:])

    def _search(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None, *, requires: bool = True
    ) -> list[list[Translation]]:
        """Translate inputs; if numbers are kept, those without digits get translations without digits.

        requires: whether translations must contain the phrases of the wrapped translator
        """
        require = self._translator.require if requires else ()
        results: dict[int, list[Translation]] = {}
        for digits in (True, False):
            indices = [i for i, item in enumerate(inputs) if self._may_have_digits(item, require) is digits]
            if indices:
                translator = self._variant(digits=digits, requires=requires)
                results |= zip(indices, translator.translate_inputs([inputs[i] for i in indices], n_best), strict=True)
        return [results[i] for i in range(len(inputs))]

    def _may_have_digits(self, item: TranslatorInput, require: Sequence[Required]) -> bool:
        """Return whether a translation may have digits: if input or phrases have some, or numbers are not kept."""
        return not self._keeps_numbers or has_digits(item.text + self._requested(item, require))

    def _variant(self, *, digits: bool, requires: bool) -> TextTranslator | MemoryTranslator:
        requires = requires or not self._translator.require  # the same without required phrases
        if (digits, requires) not in self._variants:
            self._variants[digits, requires] = self._translator.with_constraints(None, digits=digits, requires=requires)
        return self._variants[digits, requires]

    def _split(self, lines: Sequence[_Line]) -> None:
        """Translate the text between the items of these lines."""
        segments = {line: split_at_items(line.marked.text, line.items) for line in lines}
        inputs = [item for line, own in segments.items() for item in self._inputs_of_segments(line, own)]
        results = iter(self._search(inputs, 1, requires=False))
        for line, own in segments.items():
            translations = [next(results)[0] for segment in own if segment.is_translated]
            joined, line.fallbacks = self._join_segments(line, own, translations)
            line.kept = [joined]
            if not self._meets_constraints(line, joined.text):
                line.fallbacks |= Fallbacks(unmet=1)

    def _inputs_of_segments(self, line: _Line, segments: Sequence[Segment]) -> list[TranslatorInput]:
        """Return an input for each text to translate.

        The first has the prefix of the line, and its required phrases except those that are items.
        """
        texts = [segment.text for segment in segments if segment.is_translated]
        inputs = [TranslatorInput(text, glossary=line.plain.glossary) for text in texts]
        if inputs:
            written = set(map(line.grammar.written, line.items))
            phrases = (*self._translator.require, *line.plain.required)
            required = tuple(phrase for phrase in phrases if written.isdisjoint(forms_of(phrase)))
            inputs[0] = line.plain._replace(text=texts[0], context=(), required=required)
        return inputs

    def _meets_constraints(self, line: _Line, translation: str) -> bool:
        """Return whether a translation has the prefix and required phrases, and none of the forbidden ones."""
        text = self.without_tags(translation)
        folded = _folded(text)
        has_required = all(
            any(_folded(form) in folded for form in forms_of(phrase))
            for phrase in (*self._translator.require, *line.plain.required)
        )
        has_forbidden = any(contains_phrase(text, phrase) for phrase in self._translator.forbid)
        return folded.startswith(_folded(line.plain.prefix)) and has_required and not has_forbidden

    def _join_segments(
        self, line: _Line, segments: Sequence[Segment], translations: Sequence[Translation]
    ) -> tuple[Translation, Fallbacks]:
        """Join the segments of a line; if items differ, drop those in translations; if that fails, copy the line."""
        merged = join_parts(translations)
        for removes_items in (False, True):
            text, links = self._joined_text(line, segments, translations, removes_items=removes_items)
            inserted = self._insert(line, text, links, allow_joined=False)
            if inserted is not None:
                own_links = list(links) if line.is_sentence else None
                return replace(merged, text=inserted, alignment=own_links), Fallbacks(split=1)
        edits = [(item.start, item.end, line.grammar.written(item)) for item in line.items]
        links = [(word, word) for word in range(len(word_spans(line.marked.text)))]
        text = line.marked.insert(line.marked.text, links, edits)
        return replace(merged, text=text, alignment=links if line.is_sentence else None), Fallbacks(copied=1)

    def _joined_text(
        self,
        line: _Line,
        segments: Sequence[Segment],
        translations: Sequence[Translation],
        *,
        removes_items: bool,
    ) -> tuple[str, Links]:
        """Return the text of all segments and its word links to the line.

        removes_items: whether items in translations are removed, other than requested ones
        """
        requested = {(item.kind, item.text) for item in line.requested}
        results = iter(translations)
        text = ""
        joined: list[tuple[Segment, int, Links]] = []
        for segment in segments:
            links: Links = [(0, 0)]
            if segment.is_translated:
                translation = without_added_stop(next(results), segment.text)
                items = line.grammar.find_target(translation.text) if removes_items else []
                removed = [item for item in items if (item.kind, item.text) not in requested]
                output, _ = apply_edits(translation.text, [(item.start, item.end, "") for item in removed])
                links = () if removed else translation.alignment or ()
            else:
                output = line.grammar.written(segment.item) if segment.item else segment.text
            joined.append((segment, len(text), links))
            text += output
        src_starts = [start for start, _ in word_spans(line.marked.text)]
        tgt_starts = [start for start, _ in word_spans(text)]
        return text.strip(), [
            (bisect_right(src_starts, segment.start) - 1 + source, bisect_right(tgt_starts, start) - 1 + target)
            for segment, start, links in joined
            for source, target in links
        ]


def _folded(text: str) -> str:
    """Return a text with case, spaces and compatibility characters normalized."""
    return " ".join(normalize(text, "NFKC").casefold().split())
