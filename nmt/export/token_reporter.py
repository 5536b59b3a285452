"""The callback that CTranslate2 calls for each token of a greedy search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nmt.special_ids import EOS_ID


class TokenReporter:
    """Calls a function with the token ids of an output so far.

    A thread of CTranslate2 keeps its callback for a moment after the results are available. If it released the last
    reference to the translator, which the function may have, the translator would wait for this thread in this thread,
    and the process would abort. Therefore the reporter forgets the function.
    """

    def __init__(self, on_tokens: Callable[[list[int]], None] | None, ids: Mapping[str, int]) -> None:
        self._on_tokens, self._ids = on_tokens, ids
        self._tokens: list[int] = []

    def report(self, step: Any) -> bool:
        """CTranslate2 calls this for each token, including those of the prefix; return whether to stop the search."""
        on_tokens = self._on_tokens
        if on_tokens is not None and step.token_id != EOS_ID:
            self._tokens.append(self._ids[step.token])
            on_tokens(self._tokens)
        return on_tokens is None

    def release(self) -> None:
        """Forget the function, and stop a search that is still running."""
        self._on_tokens = None
