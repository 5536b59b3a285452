"""Negative log-likelihood of the validation set, for the learning curve of any system that computes with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_BATCH_SENTENCES = 64

TokenLogProbs = Callable[[Tensor, Tensor], Tensor]
"""From source tokens (batch, src_len) and target tokens (batch, tgt_len) with BOS, both padded, to the log-probability
of each target token after the first, (batch, tgt_len - 1)."""


@torch.no_grad()
def mean_nll(
    src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], log_probs: TokenLogProbs, *, pad: int, device: str
) -> float:
    """Return the mean negative log-likelihood per target token, EOS included, in nats.

    src, tgt: token ids with the system's special tokens: the source with or without EOS, the target with BOS and EOS
    """
    order = sorted(range(len(tgt)), key=lambda i: len(tgt[i]))
    total, tokens = 0.0, 0
    for start in range(0, len(order), _BATCH_SENTENCES):
        batch = order[start : start + _BATCH_SENTENCES]
        sources, targets = (
            pad_sequence([torch.tensor(side[i]) for i in batch], batch_first=True, padding_value=pad).to(device)
            for side in (src, tgt)
        )
        predicted = targets[:, 1:] != pad
        total -= float(log_probs(sources, targets).double()[predicted].sum())
        tokens += int(predicted.sum())
    return total / tokens
