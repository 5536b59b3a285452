"""The loss of `loss.py` for a compiled step: always as many rows, and nothing in place that a tracer could stumble on.

The same arithmetic otherwise: forward pass and gradient together, chunk by chunk, so that never all logits are there at
once. Here the gradient in a chunk's logits is written down whole, since a compiler makes one pass over them of it.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt.special_ids import PAD_ID

# The vocabulary is padded to a multiple of this inside the computation, and so are the rows of a chunk: matrix products
# of other sizes do not use all of a tensor core.
VOCAB_MULTIPLE = 64
ROW_MULTIPLE = 64


def traced_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk_bytes: int
) -> tuple[Tensor, Tensor]:
    """`linear_cross_entropy` in which rows whose label is PAD_ID do not count; what torch.compile makes a graph of.

    hidden: (total, d_model), in the arithmetic of matrix products; weight: (vocab, d_model); labels: (total,);
    chunk_bytes: about so much memory do the logits of a chunk take, in float32
    """
    sums = _TracedCrossEntropy.apply(hidden, weight, labels, smoothing, chunk_bytes)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


class KnownGradients(torch.autograd.Function):
    """A loss whose forward pass keeps the gradients in `hidden` and `weight`, its first two inputs, for the backward.

    All that is left is to scale them by the gradient in the loss, the first of two results; no other input has one.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients in all inputs, None for those that have none."""
        grad_hidden, grad_weight = ctx.saved_tensors
        without = [None] * (len(ctx.needs_input_grad) - 2)
        return grad_hidden * grad_loss.to(grad_hidden.dtype), grad_weight * grad_loss, *without


class _TracedCrossEntropy(KnownGradients):
    """Forward pass and gradient together, chunk by chunk.

    With z = h W^T and V entries, the loss of a row is logsumexp(z) - (1 - eps) z_gold - eps mean(z), and its gradient
    in z is softmax(z) - (1 - eps) onehot - eps / V; both are 0 where the row does not count.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk_bytes: int
    ) -> tuple[Tensor, Tensor]:
        vocab = weight.shape[0]
        wide = torch.promote_types(weight.dtype, torch.float32)
        padded_weight = F.pad(weight.to(hidden.dtype), (0, 0, 0, -vocab % VOCAB_MULTIPLE))
        columns = torch.arange(padded_weight.shape[0], device=hidden.device)
        spread = (columns < vocab).to(wide) * (smoothing / vocab)
        loss = nll = torch.zeros((), dtype=wide, device=hidden.device)
        grad_weight = torch.zeros(padded_weight.shape, dtype=wide, device=hidden.device)
        grad_hidden = []
        rows = _rows_of_chunk(hidden.shape[0], padded_weight.shape[0], chunk_bytes)
        for h, gold in zip(hidden.split(rows), labels[:, None].split(rows), strict=True):
            counts = (gold != PAD_ID).to(wide)  # (rows, 1)
            z = (h @ padded_weight.T).to(wide)  # (rows, padded vocab); 0 where there is no entry
            z_mean = z.sum(dim=1, keepdim=True) / vocab
            z_gold = z.gather(1, gold)
            z = torch.where(columns < vocab, z, float("-inf"))
            log_sum = z.logsumexp(dim=1, keepdim=True)
            nll = nll + (counts * (log_sum - z_gold)).sum()
            loss = loss + (counts * (log_sum - (1 - smoothing) * z_gold - smoothing * z_mean)).sum()
            target = spread + (1 - smoothing) * (columns == gold).to(wide)
            grad = (counts * ((z - log_sum).exp() - target)).to(hidden.dtype)
            grad_hidden.append(grad @ padded_weight)
            grad_weight = grad_weight + (grad.T @ h).to(wide)
        ctx.save_for_backward(torch.cat(grad_hidden), grad_weight[:vocab].to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll


def _rows_of_chunk(total: int, vocab: int, chunk_bytes: int) -> int:
    """How many rows each chunk has, the last one perhaps fewer: as even as multiples allow."""
    most = max(1, chunk_bytes // (4 * vocab) // ROW_MULTIPLE) * ROW_MULTIPLE
    chunks = math.ceil(total / most)
    return math.ceil(total / chunks / ROW_MULTIPLE) * ROW_MULTIPLE
