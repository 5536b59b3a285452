"""Noise for parallel text, to train a classifier that finds noise (most kinds as in Khayrallah and Koehn 2018)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import assert_never

from nmt.recipe import Noise
from nmt.text.clean import Pair

TRANSLATION = "translation"
"""Label of pairs without noise."""

_MIN_WORDS = 4  # in a shorter target, shuffling or truncation is undetectable
_ENDS = ".!?\u061f\u06d4\u0964\u104b\u17d4"


def with_noise(pairs: Sequence[Pair], kinds: Sequence[Noise], seed: int) -> Iterator[tuple[Pair, str]]:
    """Yield each pair with label `translation`, then with noise of a random kind and the kind as label.

    A pair has no noisy version if noise of the chosen kind would be undetectable: a target of fewer than four
    words is not shuffled or truncated, a shuffle must change the order, a target in the wrong language must differ from
    the translation, and a misaligned pair must differ on both sides. The same arguments give the same result.
    """
    chooser = random.Random(seed)
    for pair in pairs:
        yield pair, TRANSLATION
        kind = chooser.choice(kinds)
        noisy = _add_noise(pair, kind, pairs, chooser)
        if noisy is not None:
            yield noisy, kind


def _add_noise(pair: Pair, kind: Noise, pairs: Sequence[Pair], chooser: random.Random) -> Pair | None:
    """Return the pair with another target; None if it does not permit this kind of noise."""
    src, tgt = pair
    words = tgt.split()
    match kind:
        case "shuffled":
            shuffled = chooser.sample(words, len(words))
            return (src, " ".join(shuffled)) if len(words) >= _MIN_WORDS and shuffled != words else None
        case "truncated":
            if len(words) < _MIN_WORDS:
                return None
            rest = words[: chooser.randint(len(words) // 4, 3 * len(words) // 4)]
            # Missing final punctuation must not be the only sign of truncation: half of the texts keep it.
            end = words[-1][-1] if words[-1][-1] in _ENDS and chooser.random() < 0.5 else ""
            return src, " ".join(rest) + end
        case "wrong-language":
            # The source itself, as in untranslated text, or another sentence of its language.
            wrong = src if chooser.random() < 0.5 else chooser.choice(pairs)[0]
            return (src, wrong) if wrong != tgt else None
        case "misaligned":
            other = chooser.choice(pairs)
            return None if other[1] == tgt or other[0] == src else (src, other[1])
        case _:
            assert_never(kind)
