"""Extensions of hypotheses by one token, and which of them are the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nmt.search.required import Required
from nmt.special_ids import EOS_ID

_IMPOSSIBLE = float("-inf")

# Entries of the vocabulary that `highest` looks at together.
_BLOCK = 64


@dataclass(frozen=True)
class Extensions:
    """Extensions of each row's hypotheses by one token, the best first; all (rows, count).

    log_probs:       of the whole, float32
    parents:         place in the row of the hypothesis that is extended
    tokens:          the new token
    token_log_probs: of the new token, float32
    """

    log_probs: Tensor
    parents: Tensor
    tokens: Tensor
    token_log_probs: Tensor

    def living(self, width: int) -> Extensions:
        """The best `width` of those that do not end; where there are fewer, ended ones as impossible fill the rest."""
        ending = self.tokens == EOS_ID
        places = ending.int().argsort(dim=1, stable=True)[:, :width]
        return Extensions(
            log_probs=self.log_probs.masked_fill(ending, _IMPOSSIBLE).gather(1, places),
            parents=self.parents.gather(1, places),
            tokens=self.tokens.gather(1, places),
            token_log_probs=self.token_log_probs.gather(1, places),
        )


def best_extensions(
    log_prob: Tensor,
    next_log_probs: Tensor,
    earned: Tensor | None = None,
    rated: Tensor | None = None,
    required: Required | None = None,
    lengths: Tensor | None = None,
) -> Extensions:
    """The best 2 * width extensions of each row's hypotheses, or the single best of a row of one.

    They rank by log-probability, or by log_prob + earned + rated where that is given, and where phrases are required as
    `Required.allot` says. log_prob and earned: (rows, width); next_log_probs and rated: (rows, width, vocab); lengths:
    (rows,) tokens of the extensions, which only required phrases ask for.
    """
    _, width, vocab = next_log_probs.shape
    count = 2 * width if width > 1 else 1
    # What is not among the best of its own parent cannot be among the best of all. As topk leaves the order of equals
    # open, they are put in the order of their ids first, which the stable sort then preserves.
    rated = next_log_probs if rated is None else rated
    tokens = highest(rated, min(count, vocab))
    if required is not None:
        tokens = required.with_wanted(tokens)
    tokens = tokens.sort().values  # (rows, width, per_parent)
    token_log_probs = next_log_probs.gather(2, tokens)
    if required is not None:
        token_log_probs[:, :, 1:].masked_fill_(tokens[:, :, 1:] == tokens[:, :, :-1], _IMPOSSIBLE)
    log_probs = (log_prob[:, :, None] + token_log_probs).flatten(1)  # (rows, width * per_parent)
    merits = log_prob if earned is None else log_prob + earned
    ranks = (merits[:, :, None] + rated.gather(2, tokens)).flatten(1)
    ranks = ranks.masked_fill_(log_probs == _IMPOSSIBLE, _IMPOSSIBLE)
    order = ranks.argsort(dim=1, descending=True, stable=True)
    per_parent, flat_tokens = tokens.shape[2], tokens.flatten(1)
    if required is not None:
        assert lengths is not None
        is_possible = log_probs.gather(1, order) > _IMPOSSIBLE
        allotted = required.allot(order // per_parent, flat_tokens.gather(1, order), is_possible, lengths)
        order = order.gather(1, allotted)
    best = order[:, :count]
    return Extensions(
        log_probs=log_probs.gather(1, best),
        parents=best // per_parent,
        tokens=flat_tokens.gather(1, best),
        token_log_probs=token_log_probs.flatten(1).gather(1, best),
    )


def highest(values: Tensor, count: int) -> Tensor:
    """Where the `count` highest of each row stand, in no order: (..., vocab) -> (..., count) int64.

    On a CPU topk copies a row number by number. So it is given the blocks with the highest numbers only, which hold
    the highest of all; that takes half the time for 8,000 entries, and a quarter for 37,000.
    """
    blocks = values.shape[-1] // _BLOCK
    if values.device.type != "cpu" or blocks < 4 * count:
        return values.topk(count).indices
    in_blocks = values[..., : blocks * _BLOCK].unflatten(-1, (blocks, _BLOCK))
    best_blocks = in_blocks.amax(dim=-1).topk(count).indices
    places = (best_blocks[..., None] * _BLOCK + torch.arange(_BLOCK)).flatten(-2)
    rest = torch.arange(blocks * _BLOCK, values.shape[-1]).expand(*values.shape[:-1], -1)
    places = torch.cat([places, rest], dim=-1)
    return places.gather(-1, values.gather(-1, places).topk(count).indices)


def best_of_groups(
    log_prob: Tensor,
    next_log_probs: Tensor,
    groups: int,
    strength: float,
    earned: Tensor | None,
    rated: Tensor | None,
    required: Required | None,
    lengths: Tensor,
) -> Extensions:
    """`best_extensions` of each group, where the groups of a sentence choose one after the other, unlike each other.

    A token ranks lower by `strength` for each hypothesis that an earlier group continues with it at this step: the
    Hamming diversity of Vijayakumar et al. 2018. It decides this one choice; log-probabilities stay what they are. Rows
    are the groups of the first sentence, then those of the second, and so on.
    """
    _, width, vocab = next_log_probs.shape
    taken = next_log_probs.new_zeros(len(next_log_probs) // groups, vocab)  # by how many hypotheses so far
    found = []
    for group in range(groups):
        rows = slice(group, None, groups)
        own = (next_log_probs if rated is None else rated)[rows] - strength * taken[:, None]
        best = best_extensions(
            log_prob[rows],
            next_log_probs[rows],
            None if earned is None else earned[rows],
            own,
            None if required is None else required.of(rows),
            lengths[rows],
        )
        living = best.living(width)
        taken.scatter_add_(1, living.tokens, (living.log_probs > _IMPOSSIBLE).to(taken.dtype))
        found.append(best)
    return _interleaved(found)


def _interleaved(groups: Sequence[Extensions]) -> Extensions:
    """The rows of several groups, those of one sentence beside each other."""
    return Extensions(
        **{
            field.name: torch.stack([getattr(group, field.name) for group in groups], dim=1).flatten(0, 1)
            for field in fields(Extensions)
        }
    )
