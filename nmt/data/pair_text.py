"""Text and origin of stored training pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from nmt.data.corpus import ReadOptions, read_pairs
from nmt.data.prepare import Prepared, tag_ids
from nmt.data.store import PairStore
from nmt.recipe import Recipe, UnicodeForm
from nmt.text.clean import Pair, normalize
from nmt.text.context import after_last, find_separators

TextForm = Callable[[str], str]


@dataclass(frozen=True)
class StoredPair:
    """A training pair as text.

    pair:   index in the token store
    corpus: index in `data.train`
    number: number in the corpus, from 1; None if unknown
    """

    pair: int
    corpus: int
    src: str
    tgt: str
    number: int | None = None


def decode_pairs(prepared: Prepared, recipe: Recipe, ids: Iterable[int]) -> list[StoredPair]:
    """Return stored training pairs as normalized text, without tags or context.

    recipe: the recipe of the corpus
    """
    store, tokenizers = PairStore(prepared.directory, "train"), prepared.tokenizers
    ends = list(accumulate(corpus["pairs"] for corpus in prepared.report["train"]["corpora"]))
    tags = tag_ids(recipe.data.train, tokenizers.src)
    separators = find_separators(tokenizers, recipe.data.context_options)
    pairs = []
    for pair in ids:
        (src, _), (tgt, _) = (side.gather(np.array([pair])) for side in (store.src, store.tgt))
        corpus = int(np.searchsorted(ends, pair, side="right"))
        if corpus in tags:
            src = src[1:]
        if recipe.data.reverse_target:
            tgt = tgt[::-1]
        if separators is not None:
            src = src[after_last(src.tolist(), separators.src) :]
            tgt = tgt[after_last(tgt.tolist(), separators.tgt) :]
        pairs.append(
            StoredPair(int(pair), corpus, tokenizers.src.decode(src.tolist()), tokenizers.tgt.decode(tgt.tolist()))
        )
    return pairs


def locate_pairs(prepared: Prepared, recipe: Recipe, pairs: Sequence[StoredPair]) -> list[StoredPair]:
    """Search the corpora for `pairs` and return the pairs with their numbers.

    A pair that occurs several times in a corpus gets the lowest number. Raises UserError if a corpus is unreadable.
    """
    data, tokenizers = recipe.data, prepared.tokenizers
    lowercases = tokenizers.tgt.lowercases()

    def folded(text: str) -> str:
        return text.replace("\u0130", "i").casefold() if lowercases else text  # the tokenizer lowercases dotted I to i

    def target_as_stored(text: str) -> str:
        return tokenizers.tgt.decode(tokenizers.tgt.encode(text))

    def source_as_stored(text: str, limit: int | None) -> str:
        return tokenizers.src.decode(tokenizers.src.encode(text)[:limit])

    # Encoding every target is slow. It is necessary if a tokenizer of another program normalizes further.
    forms: tuple[tuple[TextForm, TextForm], ...] = ((folded, folded), (str, target_as_stored))
    numbers: dict[StoredPair, int] = {}
    for index in sorted({pair.corpus for pair in pairs}):
        corpus = data.train[index]
        limit = data.max_tokens - (corpus.tag is not None) if data.long_sources == "truncate" else None
        for stored_form, read_form in forms:
            missing = [pair for pair in pairs if pair.corpus == index and pair not in numbers]
            if missing:
                keys = {pair: (pair.src, stored_form(pair.tgt)) for pair in missing}
                corpus_pairs = read_pairs(corpus, ReadOptions.from_recipe(recipe))
                source_form = partial(source_as_stored, limit=limit)
                first = _first_occurrences(corpus_pairs, keys.values(), data.unicode_form, source_form, read_form)
                numbers |= {pair: first[key] for pair, key in keys.items() if key in first}
    return [replace(pair, number=numbers.get(pair)) for pair in pairs]


def _first_occurrences(
    pairs: Iterable[Pair], wanted: Iterable[Pair], form: UnicodeForm, source_form: TextForm, target_form: TextForm
) -> dict[Pair, int]:
    """Return the number, from 1, of the first occurrence of each wanted pair that occurs in a corpus.

    form:                     normalization of the corpus
    source_form, target_form: applied to its normalized sides; to the source only if the target is wanted
    """
    missing = set(wanted)
    targets = {tgt for _, tgt in missing}
    numbers: dict[Pair, int] = {}
    for number, (src, tgt) in enumerate(pairs, start=1):
        tgt = target_form(normalize(tgt, form))
        if tgt in targets and (pair := (source_form(normalize(src, form)), tgt)) in missing:
            numbers[pair] = number
            missing.remove(pair)
            if not missing:
                break
    return numbers
