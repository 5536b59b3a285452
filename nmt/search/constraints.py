"""Hard constraints on outputs: prefix, length, negative lexical constraints, repeated n-grams, trees.

Each constraint sets the log-probability of some extensions to -inf; all others keep their true value. If constraints
conflict, a prefix overrides all others except trees; required phrases (`nmt.search.required`) override the maximum
length except `max_tokens` and `max_own_tokens`; and the maximum length overrides the minimum length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from nmt.devices.transfer import pad_rows, to_device
from nmt.packing.packed import PackedSequences
from nmt.search.forbidden import ForbiddenProgress
from nmt.search.limits import Requirement, output_limits
from nmt.search.options import SearchOptions
from nmt.search.per_sentence import ActiveSentences
from nmt.search.trees import TreeProgress
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

ANY_TOKEN = -1
"""In prefixes: a token that is not forced, but counts toward the maximum length."""


# All lower ids are special tokens, which no output contains.
_FIRST_POSSIBLE = EOS_ID
assert {PAD_ID, UNK_ID, BOS_ID} == set(range(_FIRST_POSSIBLE))


class Constraints:
    """The constraints of one search.

    limits, device_limits: (num_sentences,) maximum length of each output, EOS included
    """

    def __init__(
        self,
        options: SearchOptions,
        src: PackedSequences,
        prefixes: Sequence[Sequence[int]] | None,
        required: Sequence[Sequence[Requirement]] | None = None,
    ) -> None:
        """src: source sentences that end with EOS; prefixes, required: see `beam_search`."""
        device = src.tokens.device
        self._no_repeat_ngram, self._separator = options.no_repeat_ngram, options.separator
        self._prefixes = prefixes or [()] * src.num_sentences
        src_tokens = [size - 1 for size in src.sizes.tolist()]
        self.limits, self._min_lengths = output_limits(options, src_tokens, self._prefixes, required)
        self.device_limits = to_device(self.limits, device)
        self._device_min_lengths = to_device(self._min_lengths, device)
        self._device_prefixes = pad_rows([[*prefix, ANY_TOKEN] for prefix in self._prefixes], ANY_TOKEN, device)
        tokens = [sequence[0] for sequence in options.forbidden if len(sequence) == 1]
        self._forbidden_tokens = to_device(tokens, device) if tokens else None

    def apply(
        self,
        log_probs: Tensor,
        sentences: ActiveSentences,
        outputs: Callable[[int], Tensor],
        forbidden: ForbiddenProgress | None,
        trees: TreeProgress | None = None,
    ) -> None:
        """Make tokens that violate a constraint impossible, in place.

        log_probs: (batch, beam, vocab); outputs: function that returns the last n tokens of every hypothesis,
        (batch, beam, n), with -1 before the first; forbidden: progress through the forbidden phrases, if there are any;
        trees: progress of trees, if outputs are trees
        """
        if trees is not None:
            trees.apply(log_probs)  # first, because a prefix must begin a tree, but may violate the other constraints
        forced = self._forced_tokens(sentences)
        if forced is not None:
            forced_log_probs = log_probs.gather(2, forced.clamp(min=PAD_ID).expand(-1, log_probs.shape[1], -1))

        log_probs[:, :, :_FIRST_POSSIBLE] = -math.inf
        self._limit_length(log_probs, sentences)
        if self._forbidden_tokens is not None:
            log_probs.index_fill_(2, self._forbidden_tokens, -math.inf)
        longest, n = max(sentences.lengths), self._no_repeat_ngram
        if 0 < n < longest:
            _forbid_repeated(log_probs, self._without_context(outputs(longest - 1)), n)
        if forbidden is not None:
            forbidden.apply(log_probs)
        if forced is not None:
            is_forced = forced >= 0  # (batch, 1, 1)
            log_probs.masked_fill_(is_forced, -math.inf)
            # Sentences without a forced token write -inf to PAD_ID once more.
            log_probs.scatter_(
                2,
                forced.clamp(min=PAD_ID).expand_as(forced_log_probs),
                forced_log_probs.masked_fill_(~is_forced, -math.inf),
            )

    def _forced_tokens(self, sentences: ActiveSentences) -> Tensor | None:
        """Return the next token of each prefix, -1 after its end, (batch, 1, 1); None if all prefixes have ended."""
        if not any(length <= len(self._prefixes[i]) for i, length in sentences.on_host()):
            return None
        positions = (sentences.device_lengths - 1).clamp(max=self._device_prefixes.shape[1] - 1)
        return self._device_prefixes[sentences.device_ids, positions][:, None, None]

    def _without_context(self, outputs: Tensor) -> Tensor:
        """Replace previous translations and their separators in (batch, beam, count) with -1."""
        if self._separator is None:
            return outputs
        is_context = (outputs == self._separator).flip(2).cumsum(2).flip(2) > 0
        return outputs.masked_fill(is_context, -1)

    def _limit_length(self, log_probs: Tensor, sentences: ActiveSentences) -> None:
        """Forbid EOS before the minimum length and all but EOS at the maximum length."""
        ids, lengths = sentences.device_ids, sentences.device_lengths
        if any(length <= self._min_lengths[i] for i, length in sentences.on_host()):
            log_probs[:, :, EOS_ID].masked_fill_((lengths <= self._device_min_lengths[ids])[:, None], -math.inf)
        if any(length == self.limits[i] for i, length in sentences.on_host()):
            end = log_probs[:, :, EOS_ID].clone()
            log_probs.masked_fill_((lengths == self.device_limits[ids])[:, None, None], -math.inf)
            log_probs[:, :, EOS_ID] = end


def _forbid_repeated(log_probs: Tensor, outputs: Tensor, n: int) -> None:
    """Forbid tokens that complete an n-gram which the output already contains. outputs: (batch, beam, count >= n)."""
    ngrams = outputs.unfold(2, n, 1)  # (batch, beam, count - n + 1, n)
    context = outputs[:, :, outputs.shape[2] - n + 1 :]  # (batch, beam, n - 1)
    last = ngrams[..., -1]  # -1 before the first token
    is_repeated = (ngrams[..., :-1] == context[:, :, None]).all(dim=3) & (last >= 0)
    # Tokens that are not repeated are replaced with PAD_ID, which is already impossible.
    log_probs.scatter_(2, last.where(is_repeated, PAD_ID), -math.inf)
