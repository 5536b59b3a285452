"""Text and origin of stored training pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from nmt.data.corpus import ReadOptions, read_pairs
from nmt.data.prepare import Prepared, tag_ids
from nmt.data.store import PairStore
from nmt.recipe import Recipe
from nmt.text.clean import Pair, normalize
from nmt.text.context import after_last, find_separators


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
    data, tokenizer = recipe.data, prepared.tokenizers.tgt
    lowercases = tokenizer.lowercases()

    def folded(text: str) -> str:
        return text.replace("\u0130", "i").casefold() if lowercases else text  # the tokenizer lowercases dotted I to i

    def as_stored(text: str) -> str:
        return tokenizer.decode(tokenizer.encode(text))

    def search(index: int, missing: set[Pair], target: Callable[[str], str]) -> Iterator[tuple[Pair, int]]:
        limit = data.max_tokens - (data.train[index].tag is not None) if data.long_sources == "truncate" else None
        src_tokenizer, targets = prepared.tokenizers.src, {tgt for _, tgt in missing}
        corpus_pairs = read_pairs(data.train[index], ReadOptions.from_recipe(recipe))
        for number, (src, tgt) in enumerate(corpus_pairs, start=1):
            tgt = target(normalize(tgt, data.unicode_form))
            if tgt not in targets:
                continue
            ids = src_tokenizer.encode(normalize(src, data.unicode_form))[:limit]
            pair = src_tokenizer.decode(ids), tgt
            if pair in missing:
                missing.remove(pair)
                yield pair, number
            if not missing:
                return

    # Encoding every target is slow. It is necessary if a tokenizer of another program normalizes further.
    forms: tuple[tuple[Callable[[str], str], Callable[[str], str]], ...] = ((folded, folded), (str, as_stored))
    numbers: dict[StoredPair, int] = {}
    for index in sorted({pair.corpus for pair in pairs}):
        chosen = [pair for pair in pairs if pair.corpus == index]
        for wanted_form, read_form in forms:
            keys = {pair: (pair.src, wanted_form(pair.tgt)) for pair in chosen if pair not in numbers}
            found = dict(search(index, set(keys.values()), read_form)) if keys else {}
            numbers |= {pair: found[key] for pair, key in keys.items() if key in found}
    return [replace(pair, number=numbers.get(pair)) for pair in pairs]
