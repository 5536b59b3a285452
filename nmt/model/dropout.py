"""Dropout with a fast CPU kernel and a scalable probability."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Dropout in training mode, with a fraction of its full probability.

    p: full probability; scale: current fraction, see `Transformer.scale_dropout`
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        return dropout(x, self.current_p)

    @property
    def current_p(self) -> float:
        """Current probability of zeroing an element."""
        return self.p * self.scale if self.training else 0.0


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p).

    On a CPU, each random 64-bit integer is split into four, which is several times faster than one sample per element.
    `p` is rounded to a multiple of 2^-16, and the scale matches the rounded value.
    """
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped_levels = min(round(p * _LEVELS), _LEVELS - 1)  # the scale must be finite
    samples = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    mask = samples.view(torch.int16)[: x.numel()].view(x.shape).ge_(dropped_levels - _LEVELS // 2)  # 1 or 0
    scale = torch.tensor(_LEVELS / (_LEVELS - dropped_levels), dtype=x.dtype)
    if x.dtype.itemsize == mask.dtype.itemsize:
        return x * mask.mul_(scale.view(mask.dtype)).view(x.dtype)  # the bits of the scale, or of 0
    return x * mask.to(x.dtype).mul_(scale)
