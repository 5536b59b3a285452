"""The pairs of several corpora, one corpus after the other, in chunks of one each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nmt.data.chunks import in_chunks
from nmt.data.corpus import Pair, read_pairs
from nmt.recipe import Corpus, Recipe

Look = Callable[[int, Sequence[Pair]], None]
"""Is shown the place of a corpus and the next pairs of it."""


def read_chunks(
    corpora: Sequence[Corpus], recipe: Recipe, look: Look | None = None
) -> Iterator[tuple[int, list[Pair]]]:
    """Each chunk with the place of its corpus, after `look` was shown it; raises UserError as `read_pairs` does."""
    for place, corpus in enumerate(corpora):
        for chunk in in_chunks(read_pairs(corpus, recipe.data, recipe.src_lang, recipe.tgt_lang)):
            if look is not None:
                look(place, chunk)
            yield place, chunk
