"""The loss of `loss.py` for torch.compile: constant shapes, and no in-place operations.

The gradient of the logits of a chunk is written as one expression, which a compiler fuses into one pass.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt.special_ids import PAD_ID

# Tensor cores need these multiples for full speed: the vocabulary is padded, and all chunks but the last have a
# multiple of `ROW_MULTIPLE` rows.
VOCAB_MULTIPLE = 64
ROW_MULTIPLE = 64


def compilable_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk_bytes: int
) -> tuple[Tensor, Tensor]:
    """Compute `linear_cross_entropy`, ignoring rows whose label is PAD_ID.

    Args:
        hidden: (total, d_model), in the dtype of matmuls
        weight: (vocab, d_model)
        labels: (total,)
        chunk_bytes: approximate size of the float32 logits of a chunk
    """
    sums = _CompilableCrossEntropy.apply(hidden, weight, labels, smoothing, chunk_bytes)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


class PrecomputedGradients(torch.autograd.Function):
    """A loss whose forward pass saves the gradients of its first two inputs; the backward pass only scales them.

    The results are the loss and the negative log-likelihood, which has no gradient.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs."""
        grad_hidden, grad_weight = ctx.saved_tensors
        no_grads = [None] * (len(ctx.needs_input_grad) - 2)
        return grad_hidden * grad_loss.to(grad_hidden.dtype), grad_weight * grad_loss, *no_grads


class _CompilableCrossEntropy(PrecomputedGradients):
    """Forward pass and gradient, chunk by chunk.

    With z = h W^T and V entries, the loss of a row is logsumexp(z) - (1 - eps) z_gold - eps mean(z), and its gradient
    with respect to z is softmax(z) - (1 - eps) onehot - eps / V; both are 0 for padding.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk_bytes: int
    ) -> tuple[Tensor, Tensor]:
        vocab = weight.shape[0]
        acc_dtype = torch.promote_types(weight.dtype, torch.float32)
        padded_weight = F.pad(weight.to(hidden.dtype), (0, 0, 0, -vocab % VOCAB_MULTIPLE))
        columns = torch.arange(padded_weight.shape[0], device=hidden.device)
        loss = nll = torch.zeros((), dtype=acc_dtype, device=hidden.device)
        grad_weight = torch.zeros(padded_weight.shape, dtype=acc_dtype, device=hidden.device)
        grad_hidden = []
        rows = _rows_per_chunk(hidden.shape[0], padded_weight.shape[0], chunk_bytes)
        for h, gold in zip(hidden.split(rows), labels[:, None].split(rows), strict=True):
            counts = (gold != PAD_ID).to(acc_dtype)  # (rows, 1)
            z = (h @ padded_weight.T).to(acc_dtype)  # (rows, padded vocab); 0 in the padding
            z_mean = z.sum(dim=1, keepdim=True) / vocab
            z_gold = z.gather(1, gold)
            z = torch.where(columns < vocab, z, float("-inf"))
            log_sum = z.logsumexp(dim=1, keepdim=True)
            nll = nll + (counts * (log_sum - z_gold)).sum()
            loss = loss + (counts * (log_sum - (1 - smoothing) * z_gold - smoothing * z_mean)).sum()
            target = smoothing / vocab + (1 - smoothing) * (columns == gold).to(acc_dtype)
            grad = (counts * ((z - log_sum).exp() - target)).to(hidden.dtype)
            grad_hidden.append(grad @ padded_weight)
            grad_weight = grad_weight + (grad.T @ h).to(acc_dtype)
        ctx.save_for_backward(torch.cat(grad_hidden), grad_weight[:vocab].to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll


def _rows_per_chunk(total: int, vocab: int, chunk_bytes: int) -> int:
    """Return the rows per chunk for chunks of nearly equal size."""
    max_rows = max(1, chunk_bytes // (4 * vocab) // ROW_MULTIPLE) * ROW_MULTIPLE
    chunks = math.ceil(total / max_rows)
    return math.ceil(total / chunks / ROW_MULTIPLE) * ROW_MULTIPLE
