"""Stored pairs and their corpora, for the statistical aligner."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.alignment.pair_chunks import Ids, read_pairs
from nmt.data.corpus import alignment_file
from nmt.data.prepare import Prepared
from nmt.data.store import PairStore
from nmt.recipe import Corpus, Recipe

TokenLink = tuple[int, int]


@dataclass(frozen=True)
class StoredCorpus:
    """Pairs `start` to `stop` of the token store; their sources start with a tag if `tagged`.

    file: word alignments; None if the statistical aligner aligns the pairs
    """

    corpus: Corpus
    start: int
    stop: int
    file: Path | None

    @property
    def tagged(self) -> bool:
        """Whether the first token of a source is a tag."""
        return self.corpus.tag is not None

    def ids(self, fraction: float = 1.0) -> NDArray[np.int64]:
        """Return the ids of a fraction of the pairs, evenly spaced."""
        count = self.stop - self.start
        size = math.ceil(count * fraction)
        return self.start + np.arange(size) * count // max(size, 1)


def stored_corpora(prepared: Prepared, recipe: Recipe) -> list[StoredCorpus]:
    """Return the training corpora of a recipe with their stored pairs."""
    ends = accumulate((corpus["pairs"] for corpus in prepared.report["train"]["corpora"]), initial=0)
    return [
        StoredCorpus(corpus, start, stop, alignment_file(corpus, recipe.data.root))
        for corpus, (start, stop) in zip(recipe.data.train, pairwise(ends), strict=True)
    ]


class PairReader:
    """Reads stored pairs in reading order, without tags."""

    def __init__(self, directory: Path, reverse_target: bool) -> None:
        self.store = PairStore(directory, "train")
        self._reverse_target = reverse_target

    def pairs(self, ids: Ids, tagged: bool) -> list[tuple[list[int], list[int]]]:
        """Return the token ids of some pairs of a corpus."""
        pairs = read_pairs(self.store, ids, reverse_target=self._reverse_target)
        return [(src[1:], tgt) for src, tgt in pairs] if tagged else pairs

    def as_stored(self, links: Iterable[TokenLink], tagged: bool, tgt_len: int) -> set[TokenLink]:
        """Return links between stored tokens, given those between tokens in reading order."""
        if self._reverse_target:
            links = ((source, tgt_len - 1 - target) for source, target in links)
        return {(source + int(tagged), target) for source, target in links}

    def in_reading_order(self, links: Ids, tagged: bool, tgt_len: int) -> list[TokenLink]:
        """Undo `as_stored`. links: packed, see `nmt.data.loader.pack_links`"""
        links = links.astype(np.int64)
        sources, targets = (links >> 16) - int(tagged), links & 0xFFFF
        targets = tgt_len - 1 - targets if self._reverse_target else targets
        return list(zip(sources.tolist(), targets.tolist(), strict=True))
