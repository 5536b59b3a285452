"""Token sequences of pairs with context: previous sentences, each followed by the separator, then the current one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from nmt.data.store import Sentences
from nmt.special_ids import UNK_ID
from nmt.text.context import CLEAN_BREAK, Separators


def encode_joined(
    encode: Callable[[Sequence[str]], Sentences], texts: Sequence[str], separator: int | None
) -> Sentences:
    """Encode texts whose sentences are separated by CLEAN_BREAK; if `separator` is None, each text is one sentence.

    A separator that occurs in the text becomes the unknown token.
    """
    if separator is None or not texts:
        return encode(texts)
    sentences = [text.split(CLEAN_BREAK) for text in texts]
    counts = np.fromiter(map(len, sentences), np.int64, len(sentences))
    encoded = encode(list(chain.from_iterable(sentences)))
    tokens = np.where(encoded.tokens == separator, UNK_ID, encoded.tokens).astype(encoded.tokens.dtype)
    last = np.cumsum(counts) - 1
    is_context = np.ones(len(encoded.lengths), dtype=np.int32)
    is_context[last] = 0
    ends = np.cumsum(encoded.lengths)[is_context > 0]
    first = last - counts + 1
    return Sentences(
        np.insert(tokens, ends, separator),
        np.add.reduceat(encoded.lengths + is_context, first, dtype=np.int32),
        np.add.reduceat(encoded.words, first, dtype=np.int32),
    )


def fit_context(
    src: Sentences, tgt: Sentences, separators: Separators, max_src: int, max_tgt: int
) -> tuple[Sentences, Sentences]:
    """Drop the oldest context sentences of pairs that exceed the limits, the same number on each side that has context.

    If the current sentence alone is too long, all context is dropped and the sentence is kept.
    """
    dropped = np.zeros((2, len(src.lengths)), np.int64)
    src_ends, tgt_ends = np.cumsum(src.lengths), np.cumsum(tgt.lengths)
    for i in np.flatnonzero((src.lengths > max_src) | (tgt.lengths > max_tgt)):
        src_tokens = src.tokens[src_ends[i] - src.lengths[i] : src_ends[i]]
        tgt_tokens = tgt.tokens[tgt_ends[i] - tgt.lengths[i] : tgt_ends[i]]
        src_starts = [0, *(np.flatnonzero(src_tokens == separators.src) + 1)]
        tgt_starts = [0] * len(src_starts)
        if separators.tgt is not None:
            tgt_starts = [0, *(np.flatnonzero(tgt_tokens == separators.tgt) + 1)]
        for starts in zip(src_starts, tgt_starts, strict=True):
            dropped[:, i] = starts
            if len(src_tokens) - starts[0] <= max_src and len(tgt_tokens) - starts[1] <= max_tgt:
                break
    return src.drop_first(dropped[0]), tgt.drop_first(dropped[1])
