"""Text and origin of stored training pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    data, form = recipe.data, recipe.data.unicode_form
    tokenizer = prepared.tokenizers.src
    tags = tag_ids(data.train, tokenizer)
    lowercases = prepared.tokenizers.tgt.lowercases()

    def target(text: str) -> str:
        return text.replace("\u0130", "i").casefold() if lowercases else text  # the tokenizer lowercases dotted I to i

    numbers: dict[tuple[int, Pair], int] = {}
    for index in sorted({pair.corpus for pair in pairs}):
        limit = data.max_tokens - (index in tags) if data.long_sources == "truncate" else None
        missing = {(pair.src, target(pair.tgt)) for pair in pairs if pair.corpus == index}
        targets = {tgt for _, tgt in missing}
        corpus_pairs = read_pairs(data.train[index], ReadOptions.from_recipe(recipe))
        for number, (src, tgt) in enumerate(corpus_pairs, start=1):
            tgt = target(normalize(tgt, form))
            if tgt not in targets:
                continue
            text = tokenizer.decode(tokenizer.encode(normalize(src, form))[:limit]), tgt  # as stored
            if text in missing:
                missing.remove(text)
                numbers[index, text] = number
            if not missing:
                break
    return [replace(pair, number=numbers.get((pair.corpus, (pair.src, target(pair.tgt))))) for pair in pairs]
