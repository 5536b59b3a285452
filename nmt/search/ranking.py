"""Ranking of the extensions of a beam, scores of finished hypotheses and upper bounds of live ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.search.beam import Beam, Extensions
from nmt.search.options import SearchOptions, length_penalty

# Block size of `top_indices`.
_BLOCK = 64


class Ranker:
    """Ranking of hypotheses by log-probability, bias, diversity penalty, required phrases and length penalty."""

    def __init__(self, options: SearchOptions, max_length: int, device: torch.device) -> None:
        """max_length: longest output of the search, EOS included."""
        self._num_groups, self._diversity = options.beam_groups, options.diversity_penalty
        # Indexed by length. The last entry is for `upper_bound`, which looks one token ahead.
        lengths = [*range(max_length + 1), max_length]
        penalties = [length_penalty(n, options.length_penalty, options.length_alpha) for n in lengths]
        self._penalty = to_device(penalties, device)

    def best_extensions(self, beam: Beam, log_probs: Tensor) -> Extensions:
        """Return the best 2 * width extensions of each group of `width` hypotheses, (batch, groups, count).

        Greedy search (a width of 1) takes the single best. Groups choose in turn. The rank of a token is lowered by
        `diversity_penalty` for each live hypothesis of an earlier group that it extends at this step: the Hamming
        diversity of Vijayakumar et al. 2018. Log-probabilities do not change.

        log_probs: (batch, beam, vocab) of the next token; EOS becomes impossible before all required phrases are met
        """
        if beam.required is not None:
            beam.required.forbid_end(log_probs)
        rank = log_probs if beam.bias is None else beam.bias.apply(log_probs)
        if self._num_groups == 1:
            best = _best_of_group(beam, slice(0, log_probs.shape[1]), log_probs, rank)
            return Extensions(*(part[:, None] for part in best))
        batch, beam_size, vocab = log_probs.shape
        width = beam_size // self._num_groups
        counts = log_probs.new_zeros(batch, vocab)  # hypotheses of earlier groups that each token extends
        groups: list[Extensions] = []
        for first in range(0, beam_size, width):
            group = slice(first, first + width)
            group_rank = rank[:, group]
            if groups:
                live = groups[-1].live(width)
                counts.scatter_add_(1, live.tokens, (live.log_probs > -math.inf).to(counts.dtype))
                group_rank = group_rank - self._diversity * counts[:, None]
            groups.append(_best_of_group(beam, group, log_probs[:, group], group_rank))
        return Extensions(*(torch.stack(parts, dim=1) for parts in zip(*groups, strict=True)))

    def scores(self, beam: Beam, best: Extensions) -> Tensor:
        """Score of each extension if it ends, (batch, groups, count)."""
        totals = best.log_probs
        if beam.bias is not None:
            totals = totals + beam.bias.earned.gather(1, best.parents.flatten(1)).view_as(totals)
        return totals / self._penalty[beam.sentences.device_lengths][:, None, None]

    def upper_bound(self, beam: Beam) -> Tensor:
        """Score that no live hypothesis of each group can exceed, (batch, groups).

        Log-probability never increases, and bias adds at most the unmet gains. A negative total gains most from the
        largest length penalty, at the limit; a positive one from the smallest, at the next token. Rounding preserves
        order, so this also holds for rounded values.
        """
        at_limit = self._penalty[beam.limits][:, None]
        if beam.bias is None:
            return self._max_by_group(beam.log_prob) / at_limit
        totals = self._max_by_group(beam.log_prob + beam.bias.max_total())
        at_next = self._penalty[beam.sentences.device_lengths + 1][:, None]
        return torch.where(totals > 0, totals / at_next, totals / at_limit)

    def _max_by_group(self, values: Tensor) -> Tensor:
        """(batch, beam) -> (batch, groups)."""
        return values.view(len(values), self._num_groups, -1).amax(dim=2)


def _best_of_group(beam: Beam, group: slice, token_log_probs: Tensor, token_rank: Tensor) -> Extensions:
    """Return the best extensions of one group, (batch, count).

    group: slice of the beam; token_log_probs: (batch, width, vocab) of the next token; token_rank: the same with
    bias and diversity penalty
    """
    width, vocab = token_log_probs.shape[1:]
    count = 2 * width if width > 1 else 1
    log_prob = beam.log_prob[:, group]
    parent_rank = log_prob if beam.bias is None else log_prob + beam.bias.earned[:, group]
    # An extension is numbered by parent * vocab + token. topk does not define the order of equal values: candidates
    # are sorted by number here, and the stable sort below preserves that order.
    if beam.required is None:
        candidates = top_indices(token_rank, parent_rank, count).sort().values  # (batch, count)
    else:
        no_offsets = parent_rank.new_zeros(parent_rank.numel(), 1)
        best_tokens = top_indices(token_rank.flatten(0, 1)[:, None], no_offsets, count)
        tokens = beam.required.add_candidates(best_tokens.unflatten(0, parent_rank.shape))  # (batch, width, per_parent)
        candidates = (tokens + vocab * torch.arange(width, device=tokens.device)[:, None]).flatten(1).sort().values
    parents, tokens = candidates // vocab, candidates % vocab
    token_log_probs = token_log_probs.flatten(1).gather(1, candidates)
    if beam.required is not None:
        token_log_probs[:, 1:].masked_fill_(candidates[:, 1:] == candidates[:, :-1], -math.inf)  # duplicates
    log_probs = log_prob.gather(1, parents) + token_log_probs
    rank = parent_rank.gather(1, parents) + token_rank.flatten(1).gather(1, candidates)
    order = rank.masked_fill_(log_probs == -math.inf, -math.inf).argsort(dim=1, descending=True, stable=True)
    parents += group.start
    if beam.required is not None:
        capacity = beam.limits - 1 - beam.sentences.device_lengths
        is_possible = (log_probs > -math.inf).gather(1, order)
        allocated = beam.required.allocate(parents.gather(1, order), tokens.gather(1, order), is_possible, capacity)
        order = order.gather(1, allocated)
    best = order[:, :count]
    return Extensions(*(part.gather(1, best) for part in (log_probs, parents, tokens, token_log_probs)))


def top_indices(values: Tensor, offsets: Tensor, count: int) -> Tensor:
    """Indices of the `count` highest values + offsets of each row, in no particular order.

    On a CPU, topk copies each row element by element. Only the blocks with the highest maxima, which contain the
    highest values, are therefore read twice.

    values: (rows, parts, size); offsets: (rows, parts). Returns (rows, at most count) int64, each part * size + index.
    """
    parts, size = values.shape[1:]
    blocks, device = size // _BLOCK, values.device
    starts = size * torch.arange(parts, device=device)[:, None]
    if device.type != "cpu" or parts * blocks < 4 * count:
        indices = (starts + values.topk(min(count, size)).indices).flatten(1)
    else:
        by_block = values[..., : blocks * _BLOCK].unflatten(-1, (blocks, _BLOCK))
        best = (by_block.amax(dim=-1) + offsets[..., None]).flatten(1).topk(count).indices
        first = best // blocks * size + best % blocks * _BLOCK
        in_blocks = (first[..., None] + torch.arange(_BLOCK)).flatten(1)
        rest = starts + torch.arange(blocks * _BLOCK, size)
        indices = torch.cat([in_blocks, rest.flatten().expand(len(values), -1)], dim=1)
    sums = values.flatten(1).gather(1, indices) + offsets.gather(1, indices // size)
    return indices.gather(1, sums.topk(min(count, sums.shape[1])).indices)
