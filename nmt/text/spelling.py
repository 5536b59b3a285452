"""The bytes that tokens spell."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, takewhile

_MAX_CACHED_TEXTS = 1_000


class Spelling:
    """The bytes that each token adds to a text."""

    def __init__(self, spelled: Sequence[bytes]) -> None:
        """spelled: bytes of each token, by id; empty for tokens that no text contains."""
        self._spelled = spelled
        self._tokens: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, text in enumerate(spelled):
            self._tokens[text].append(token)
        self._tokens.pop(b"", None)
        self._texts = sorted(self._tokens)
        self.agreeing = lru_cache(_MAX_CACHED_TEXTS)(self._agreeing)

    def rest(self, text: bytes, token: int) -> bytes:
        """Return the rest of `text` after a token in `agreeing(text)`."""
        return text[len(self._spelled[token]) :]

    def _agreeing(self, text: bytes) -> list[int]:
        """Return the tokens whose bytes begin with `text` or are a prefix of it."""
        following = islice(self._texts, bisect_left(self._texts, text), None)
        longer = takewhile(lambda other: other.startswith(text), following)
        shorter = (text[:end] for end in range(1, len(text)))
        return [token for other in (*longer, *shorter) for token in self._tokens.get(other, ())]
