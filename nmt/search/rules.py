"""What outputs must not hold: everything that search makes impossible before it chooses.

Each rule writes -inf over the log-probabilities of extensions by one token; what it leaves keeps its true value. Where
rules contradict each other, a prefix wins over everything, required phrases (`nmt.search.required`) over the longest
output, and the longest output over the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.search.forbidden import ForbiddenPhrases, forbidden_phrases
from nmt.search.limits import output_limits
from nmt.search.options import SearchOptions
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

_IMPOSSIBLE = float("-inf")

# What no output holds comes before all other token ids.
_FIRST_POSSIBLE = EOS_ID
assert {PAD_ID, UNK_ID, BOS_ID} == set(range(_FIRST_POSSIBLE))


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, on the host and, since nothing must wait for it, on the device as well.

    sentences, index: (batch,) which sentence of the search each row is
    lengths, counts:  (batch,) tokens of its outputs with the one that this step gives
    """

    sentences: Sequence[int]
    lengths: Sequence[int]
    index: Tensor
    counts: Tensor

    def on_host(self) -> Iterator[tuple[int, int]]:
        """Sentence and length of each row."""
        return zip(self.sentences, self.lengths, strict=True)


class Rules:
    """The rules of one search.

    limits:   (num_sentences,) tokens of the longest output of each sentence, the end token counted
    shortest: (num_sentences,) tokens of the shortest one, the end token not counted
    prefixes: (num_sentences,) what each output begins with
    """

    def __init__(
        self,
        options: SearchOptions,
        src_tokens: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
        required: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """src_tokens: (num_sentences,) tokens of each source, end token not counted; prefixes: tokens of each.

        required: the phrases that the output of each must hold, for which its limit may have to grow
        """
        self._options = options
        self._tables: _Tables | None = None
        self.prefixes = prefixes or [()] * len(src_tokens)
        self.limits, self.shortest = output_limits(options, src_tokens, self.prefixes, required)

    def apply(self, log_probs: Tensor, rows: Rows, outputs: Callable[[int], Tensor]) -> None:
        """Make impossible, in place, what must not be the next token of an output.

        log_probs: (batch, beam, vocab); rows: (batch,); outputs: gives the last so many tokens of every hypothesis,
        (batch, beam, n), with -1 where it has fewer
        """
        if self._tables is None:
            self._tables = _Tables.of(self, self._options, log_probs.device)
        tables, longest, n = self._tables, max(rows.lengths), self._options.no_repeat_ngram
        forced = self._forced_tokens(tables, rows)
        if forced is not None:
            of_prefixes = log_probs.gather(2, forced.clamp(min=PAD_ID).expand(-1, log_probs.shape[1], -1))

        log_probs[:, :, :_FIRST_POSSIBLE] = _IMPOSSIBLE
        self._limit_length(log_probs, tables, rows)
        if tables.words is not None:
            log_probs.index_fill_(2, tables.words, _IMPOSSIBLE)
        if 0 < n < longest:
            _forbid_repeated(log_probs, outputs(longest - 1), n)
        if tables.phrases is not None and longest > 1:
            tables.phrases.apply(log_probs, outputs(min(longest - 1, tables.phrases.most_before)))
        if forced is not None:
            is_forced = forced >= 0  # (batch, 1, 1)
            log_probs.masked_fill_(is_forced, _IMPOSSIBLE)
            # The others write once more that PAD_ID is impossible.
            log_probs.scatter_(
                2,
                forced.clamp(min=PAD_ID).expand_as(of_prefixes),
                of_prefixes.masked_fill_(~is_forced, _IMPOSSIBLE),
            )

    def _forced_tokens(self, tables: _Tables, rows: Rows) -> Tensor | None:
        """The next token of each prefix, -1 behind its end, (batch, 1, 1); None where all prefixes have ended."""
        if not any(length <= len(self.prefixes[sentence]) for sentence, length in rows.on_host()):
            return None
        assert tables.prefixes is not None
        places = (rows.counts - 1).clamp(max=tables.prefixes.shape[1] - 1)
        return tables.prefixes[rows.index, places][:, None, None]

    def _limit_length(self, log_probs: Tensor, tables: _Tables, rows: Rows) -> None:
        """An output cannot end before it is long enough, and at the limit it can only end."""
        if any(length <= self.shortest[sentence] for sentence, length in rows.on_host()):
            log_probs[:, :, EOS_ID].masked_fill_((rows.counts <= tables.shortest[rows.index])[:, None], _IMPOSSIBLE)
        if any(length == self.limits[sentence] for sentence, length in rows.on_host()):
            end = log_probs[:, :, EOS_ID].clone()
            log_probs.masked_fill_((rows.counts == tables.limits[rows.index])[:, None, None], _IMPOSSIBLE)
            log_probs[:, :, EOS_ID] = end


@dataclass(frozen=True)
class _Tables:
    """What the rules compare with on the device, made once for a search.

    limits, shortest: (num_sentences,) int64, see `Rules`
    prefixes:         (num_sentences, longest + 1) int64, -1 behind the end of each; None where all are empty
    words:            (count,) int64, forbidden tokens; None where there are none
    phrases:          forbidden sequences of several tokens; None where there are none
    """

    limits: Tensor
    shortest: Tensor
    prefixes: Tensor | None
    words: Tensor | None
    phrases: ForbiddenPhrases | None

    @classmethod
    def of(cls, rules: Rules, options: SearchOptions, device: torch.device) -> _Tables:
        """The tables of some rules."""
        width = 1 + max(map(len, rules.prefixes))
        padded = [[*prefix, *[-1] * (width - len(prefix))] for prefix in rules.prefixes]
        words = [sequence[0] for sequence in options.forbidden if len(sequence) == 1]
        phrases = tuple(sequence for sequence in options.forbidden if len(sequence) > 1)
        return cls(
            limits=to_device(rules.limits, device),
            shortest=to_device(rules.shortest, device),
            prefixes=to_device(np.array(padded, dtype=np.int64), device) if width > 1 else None,
            words=to_device(words, device) if words else None,
            phrases=forbidden_phrases(phrases, device) if phrases else None,
        )


def _forbid_repeated(log_probs: Tensor, outputs: Tensor, n: int) -> None:
    """Not a token that closes a sequence of `n` which the output holds already. outputs: (batch, beam, count >= n)."""
    seen = outputs.unfold(2, n, 1)  # (batch, beam, places, n)
    newest = outputs[:, :, outputs.shape[2] - n + 1 :]  # (batch, beam, n - 1)
    tokens = seen[..., -1]  # -1 before an output has begun
    is_repeated = (seen[..., :-1] == newest[:, :, None]).all(dim=3) & (tokens >= 0)
    # Where nothing repeats, PAD_ID stands for nothing: it is impossible already.
    log_probs.scatter_(2, tokens.where(is_repeated, PAD_ID), _IMPOSSIBLE)
