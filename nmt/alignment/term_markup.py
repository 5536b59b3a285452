"""Term annotations in the training text, for glossaries (`train.glossary_markup`).

Terms are chosen after the text is prepared and aligned. Training then reads the token store `markup` in the directory
of the prepared corpus. Only its sources differ from the prepared ones: a fraction of them has marked terms.

A term is a word with a one-to-one alignment. A source word has at least three characters and a target word at least
four, which excludes most function words and needs no tagger. Adjacent words whose translations are adjacent, in the
same order, may be one term.

The translation in the markup is a base form, which the model learns to inflect (Bergmanis and Pinnis 2021,
"Facilitating Terminology Translation with Target Lemma Annotations"). They use a lemmatizer. Here the candidates
are the target words that share a stem with the target word in the sentence (`share_stem`) and are linked to the same
source word in a sample of up to 500,000 training pairs. The most frequent candidate is the base form.

The choice is random, but the same text, links and recipe always give the same terms.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.alignment.stored_pairs import PairReader, StoredCorpus, TokenLink, stored_corpora
from nmt.alignment.training import LINKS_FOLDER, identify_text, open_links, prepare_links
from nmt.data.fingerprint import text_identity
from nmt.data.prepare import Prepared
from nmt.data.store import PairStore, PairWriter, SideStore
from nmt.errors import UserError
from nmt.logs import counted, progress, say
from nmt.recipe import Recipe
from nmt.storage.checksums import require_undamaged, write_report
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import link_or_copy, new_directory, reporting_disk_errors
from nmt.text.term_markup import Mark, Span, TermMarkers, token_span
from nmt.text.tokenizer import Tokenizer, Tokenizers
from nmt.text.words import find_words, share_stem

MARKUP_FOLDER, _REPORT_FILE = "markup", "markup.json"

# Increment when the same text gives different markup.
_FORMAT = 2

_OPTION = "train.glossary_markup"
_MIN_SRC_CHARACTERS, _MIN_TGT_CHARACTERS = 3, 4
_MAX_TERMS = 3  # in a sentence
_EXTENSION_PROBABILITY = 0.5  # to add the next word to a term, if it is adjacent in the target too

# Maximum number of pairs in which forms are counted, spread evenly over the text; bounds time and memory.
_MAX_COUNTED_PAIRS = 500_000
_PAIRS_PER_CHUNK = 4096
# Separates this random stream from the other streams of the run.
_STREAM = 3


def prepare_alignments(prepared: Prepared, recipe: Recipe) -> None:
    """Update the links and the marked training text if the recipe needs them; raises the errors of `prepare_markup`."""
    if recipe.train.guided_alignment:
        prepare_links(prepared, recipe)
    if recipe.train.glossary_markup:
        prepare_markup(prepared, recipe)


def training_identity(report: dict[str, Any], directory: Path, recipe: Recipe) -> str:
    """Return the fingerprint of the prepared training text in `directory` and of its links and marked terms, if used.

    report: report of the preparation
    """
    identity = text_identity(report, recipe)
    folders = {LINKS_FOLDER: recipe.train.guided_alignment, MARKUP_FOLDER: recipe.train.glossary_markup > 0}
    for folder, is_used in folders.items():
        if is_used:
            digests = read_json_object(directory / folder / f"{folder}.json").get("sha256")
            identity = hashlib.sha256(f"{identity} {json.dumps(digests, sort_keys=True)}".encode()).hexdigest()
    return identity


def prepare_markup(prepared: Prepared, recipe: Recipe) -> None:
    """Update the marked training text; `recipe` must be the recipe of the prepared corpus.

    Identical text, links and recipe yield identical bytes. Raises UserError for tokenizers without markers, if no term
    is found, and in the cases of `prepare_links`.
    """
    TermMarkers.find(prepared.tokenizers, _OPTION)
    prepare_links(prepared, recipe)
    folder = prepared.directory / MARKUP_FOLDER
    made_from = _made_from(prepared, recipe)
    if read_json_object(folder / _REPORT_FILE).get("made_from") == made_from:
        return
    with reporting_disk_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with new_directory(folder) as new:
            num_pairs, num_terms = _write(prepared, recipe, new)
            if not num_terms:
                raise UserError(
                    "train.glossary_markup found no terms in the training text; expected aligned words separated by "
                    "spaces; add text, or set train.glossary_markup to 0"
                )
            for path in prepared.directory.glob("train.tgt.*.npy"):
                link_or_copy(path, new / path.name)
            write_report(new, _REPORT_FILE, {"made_from": made_from, "pairs": num_pairs, "terms": num_terms})
    total = prepared.report["train"]["pairs"]
    say(f"marked {counted(num_terms, 'term')} in {num_pairs:,} of {total:,} training pairs ({num_pairs / total:.1%})")


def open_markup(prepared: Prepared, recipe: Recipe) -> PairStore:
    """Open the marked training text; raise UserError if it is missing, damaged, or made from another text or recipe."""
    folder = prepared.directory / MARKUP_FOLDER
    report = read_json_object(folder / _REPORT_FILE)
    if report.get("made_from") != _made_from(prepared, recipe):
        raise UserError(f"{folder} has no marked terms for this text; {_OPTION} needs them; run `nmt prepare`")
    require_undamaged(folder, report["sha256"], _REPORT_FILE)
    return PairStore(folder, "train")


def _made_from(prepared: Prepared, recipe: Recipe) -> dict[str, Any]:
    _, links = open_links(prepared)
    options = {"share": recipe.train.glossary_markup, "seed": recipe.seed, "max_tokens": recipe.data.max_tokens}
    return {"format": _FORMAT, "aligned": identify_text(prepared), "links": links, **options}


def _write(prepared: Prepared, recipe: Recipe, directory: Path) -> tuple[int, int]:
    """Write the sources with marked terms; return the numbers of marked pairs and of terms."""
    text = _AlignedText(prepared, recipe)
    marker = _Marker(prepared.tokenizers, recipe, _count_forms(text))
    random = np.random.default_rng((recipe.seed % (1 << 64), _STREAM))
    is_chosen = random.random(len(text.store)) < recipe.train.glossary_markup
    num_pairs = num_terms = 0
    with (
        PairWriter(directory, "train", {"src": text.store.src.tokens.dtype}) as writer,
        progress("marking terms", len(text.store), "pairs") as bar,
    ):
        for corpus in text.corpora:
            for ids in _in_chunks(corpus.ids()):
                sources = _split(text.store.src, ids)
                for index, pair in text.read(corpus, ids[is_chosen[ids]]):
                    position = index - int(ids[0])
                    if marks := marker.choose(pair, index, len(sources[position])):
                        tag, source = np.split(sources[position], [int(corpus.tagged)])
                        marked = marker.markers.mark(source.tolist(), marks)
                        sources[position] = np.concatenate([tag, np.array(marked, dtype=tag.dtype)])
                        num_pairs, num_terms = num_pairs + 1, num_terms + len(marks)
                writer.append("src", np.concatenate(sources), np.array([len(source) for source in sources]))
                bar.advance(len(ids))
    return num_pairs, num_terms


def _in_chunks(ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    yield from (ids[start : start + _PAIRS_PER_CHUNK] for start in range(0, len(ids), _PAIRS_PER_CHUNK))


# --- Words and links --------------------------------------------------------------------------------------------------


class _Term(NamedTuple):
    """A source word and the target word linked to it.

    span:               tokens of the source word
    src_word, tgt_word: indices of both words in their sentences
    """

    source: str
    target: str
    span: Span
    src_word: int
    tgt_word: int


class _AlignedText:
    """The stored pairs with their links."""

    def __init__(self, prepared: Prepared, recipe: Recipe) -> None:
        self._reader = PairReader(prepared.directory, recipe.data.reverse_target)
        self._tokenizers = prepared.tokenizers
        self.store, self.corpora = self._reader.store, stored_corpora(prepared, recipe)
        self._links, _ = open_links(prepared)

    def read(self, corpus: StoredCorpus, ids: NDArray[np.int64]) -> Iterator[tuple[int, list[_Term]]]:
        """Yield the id and the one-to-one linked words of some pairs of a corpus, in source order."""
        if not len(ids):
            return
        links = _split(self._links, ids)
        for index, (src, tgt), packed in zip(ids.tolist(), self._reader.pairs(ids, corpus.tagged), links, strict=True):
            pair_links = self._reader.in_reading_order(packed, corpus.tagged, len(tgt))
            yield index, linked_words(self._tokenizers, src, tgt, pair_links)


def _split(side: SideStore, ids: NDArray[np.int64]) -> list[NDArray[Any]]:
    tokens, lengths = side.gather(ids)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def linked_words(
    tokenizers: Tokenizers, src: Sequence[int], tgt: Sequence[int], links: Sequence[TokenLink]
) -> list[_Term]:
    """Return the words of a pair with one-to-one alignments that may be terms, in source order.

    src, tgt: token ids in reading order; links: between them
    """
    src_words, tgt_words = _Words(tokenizers.src, src), _Words(tokenizers.tgt, tgt)
    targets_of, sources_of = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for src_token, tgt_token in links:
        for word in src_words.of_token(src_token):
            targets_of[word].update(tgt_words.of_token(tgt_token))
        for word in tgt_words.of_token(tgt_token):
            sources_of[word].update(src_words.of_token(src_token))
    linked = []
    for word, targets in sorted(targets_of.items()):
        if len(targets) != 1:
            continue
        (target,) = targets
        term = _Term(src_words.texts[word], tgt_words.texts[target], src_words.spans[word], word, target)
        is_content = _is_content(term.source, _MIN_SRC_CHARACTERS) and _is_content(term.target, _MIN_TGT_CHARACTERS)
        if is_content and len(sources_of[target]) == 1:
            linked.append(term)
    return linked


def _is_content(word: str, min_characters: int) -> bool:
    return len(word) >= min_characters and word[0].isalpha() and not any(map(str.isdigit, word))


class _Words:
    """The words of tokenized text; none if tokenizing the text again gives different tokens.

    texts, spans: text and tokens of each word
    """

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> None:
        text = tokenizer.decode(tokens)
        encoded, starts = tokenizer.encode_with_starts(text)
        words = find_words(text) if encoded == list(tokens) else []
        self.texts = [word.text for word in words]
        self.spans = [token_span(starts, (word.start, word.end)) for word in words]
        self._words_of_tokens: dict[int, list[int]] = defaultdict(list)
        for word, span in enumerate(self.spans):
            for token in range(*span):
                self._words_of_tokens[token].append(word)

    def of_token(self, token: int) -> list[int]:
        """Return the indices of the words that contain a token."""
        return self._words_of_tokens[token]


# --- Choice of terms --------------------------------------------------------------------------------------------------

_Forms = dict[str, Counter[str]]


def _count_forms(text: _AlignedText) -> _Forms:
    """For each lowercased source word, count the target words that are linked to it."""
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    fraction = min(1.0, _MAX_COUNTED_PAIRS / max(len(text.store), 1))
    with progress("counting forms of terms", round(len(text.store) * fraction), "pairs") as bar:
        for corpus in text.corpora:
            for chunk in _in_chunks(corpus.ids(fraction)):
                for _, pair in text.read(corpus, chunk):
                    for term in pair:
                        forms[term.source.casefold()][term.target] += 1
                bar.advance(len(chunk))
    return forms


class _Marker:
    """Chooses the terms of pairs, and their translations in the markup."""

    def __init__(self, tokenizers: Tokenizers, recipe: Recipe, forms: _Forms) -> None:
        self.markers = TermMarkers.find(tokenizers, _OPTION)
        self._tokenizer, self._forms = tokenizers.src, forms
        self._seed, self._max_tokens = recipe.seed % (1 << 64), recipe.data.max_tokens
        self._base_forms: dict[tuple[str, str], str] = {}

    def choose(self, pair: Sequence[_Term], index: int, num_tokens: int) -> list[Mark]:
        """Return the marks of a pair. index: its id; num_tokens: number of source tokens"""
        random = np.random.default_rng((self._seed, _STREAM, index))
        wanted = int(random.integers(1, _MAX_TERMS + 1))
        free = set(range(len(pair)))
        marks: list[Mark] = []
        for first in random.permutation(len(pair)).tolist():
            extends = random.random() < _EXTENSION_PROBABILITY  # sampled for skipped words too
            if first not in free or len(marks) == wanted:
                continue
            words = [first]
            if extends and first + 1 in free and _are_adjacent(pair[first], pair[first + 1]):
                words.append(first + 1)
            translation = self._tokenizer.encode(" ".join(self._base_form(pair[word]) for word in words))
            mark = Mark(pair[first].span[0], pair[words[-1]].span[1], translation)
            if num_tokens + mark.added <= self._max_tokens:
                marks.append(mark)
                free.difference_update(words)
                num_tokens += mark.added
        return sorted(marks)

    def _base_form(self, term: _Term) -> str:
        """Return the most frequent translation of the source word that shares a stem with the one in the sentence."""
        key = term.source.casefold(), term.target
        if key not in self._base_forms:
            counts = self._forms.get(key[0], Counter())
            related = [form for form in counts if share_stem(form, term.target)]
            self._base_forms[key] = min(related, key=lambda form: (-counts[form], form), default=term.target)
        return self._base_forms[key]


def _are_adjacent(first: _Term, second: _Term) -> bool:
    """Return whether two words are adjacent on both sides, in the same order."""
    return (second.src_word, second.tgt_word) == (first.src_word + 1, first.tgt_word + 1)
