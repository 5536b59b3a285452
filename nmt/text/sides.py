"""Detection of a text whose source and target are swapped."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]

# With a BPE vocabulary, swapped English-German or English-French text gains 1 to 4 nats, and correct text -1 to -4.
_MIN_GAIN = 0.5
_MIN_TOKENS = 500
_MAX_TOKENS = 1_000_000


def are_swapped(text: tuple[Ids, Ids], train: tuple[Ids, Ids]) -> bool:
    """Return whether each side of a text resembles the opposite side of the training text.

    A side resembles the opposite side if its tokens have a higher unigram log-probability there, by more than 0.5 nats
    on average. Short texts and closely related languages provide too little evidence.

    text, train: token ids of the source and of the target, in one vocabulary
    """
    if min(map(len, text)) < _MIN_TOKENS:
        return False
    sample = [ids[:: len(ids) // _MAX_TOKENS + 1].astype(np.int64) for ids in train]
    size = 1 + max(int(ids.max()) for ids in (*text, *sample))
    # Unigram log-probabilities with add-one smoothing, `(vocab_size,)`.
    src, tgt = (np.log((np.bincount(ids, minlength=size) + 1) / (len(ids) + size)) for ids in sample)
    gain = tgt - src
    return bool(gain[text[0]].mean() > _MIN_GAIN and -gain[text[1]].mean() > _MIN_GAIN)
