"""Label-smoothed cross-entropy of the output projection, computed without ever holding all logits."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmt.model.transformer import Transformer
from nmt.packed import Batch

# Logits of one chunk take about this much: small enough for a CPU's cache, large enough to keep a GPU busy.
CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 512 << 20}


class TrainingLoss(nn.Module):
    """A model together with its loss, so that one call of one module is one forward pass (which DDP relies on)."""

    def __init__(self, model: Transformer, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over the batch's target tokens, in nats: smoothed loss (with gradient) and negative log-likelihood."""
        hidden = self.model(batch.src, batch.tgt)
        return linear_cross_entropy(hidden, self.model.output_weight, batch.labels, self.label_smoothing)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of softmax(hidden weight^T) with smoothed labels, and the plain one, each summed over rows.

    hidden: (total, d_model), weight: (vocab, d_model), labels: (total,). The smoothed target puts `smoothing` evenly on
    all vocabulary entries, the gold one included, and the rest on the gold one (Szegedy et al. 2016; PyTorch's
    convention; fairseq spreads it over vocab - 1 entries, JoeyNMT over vocab - 2). Only the first has a gradient.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    sums = _LinearCrossEntropy.apply(hidden, weight, labels, smoothing)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


class _LinearCrossEntropy(torch.autograd.Function):
    """Forward pass and gradient together, chunk by chunk; each chunk's logits are dropped at once.

    With z = h W^T, s = sum(exp(z - max z)) and V entries, the loss of a row is
    log s + max z - (1 - eps) z_gold - eps mean(z), and its gradient in z is softmax(z) - (1 - eps) onehot - eps / V.
    Everything that is constant along the vocabulary is applied to h or W instead of to z.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        master_weight, weight = weight, weight.to(hidden.dtype)
        mean_weight = master_weight.mean(dim=0, dtype=torch.promote_types(master_weight.dtype, torch.float32))
        wide = mean_weight.dtype
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(master_weight, dtype=wide)
        loss = hidden.new_zeros((), dtype=wide)
        nll = hidden.new_zeros((), dtype=wide)
        rows = max(1, CHUNK_BYTES[hidden.device.type] // (4 * weight.shape[0]))
        for start in range(0, len(hidden), rows):
            h, gold = hidden[start : start + rows], labels[start : start + rows, None]
            z = (h @ weight.T).to(wide)  # (rows, vocab)
            z_gold = z.gather(1, gold)
            z_max = z.amax(dim=1, keepdim=True)
            exp = z.sub_(z_max).exp_()
            exp_sum = exp.sum(dim=1, keepdim=True)
            log_sum = exp_sum.log() + z_max
            z_mean = h.to(wide) @ mean_weight[:, None]
            nll += (log_sum - z_gold).sum()
            loss += (log_sum - (1 - smoothing) * z_gold - smoothing * z_mean).sum()
            if needs_grad:
                exp = exp.to(weight.dtype)
                expected_weight = (exp @ weight).to(wide) / exp_sum  # the softmax-weighted mean of rows of W
                gold_weight = master_weight[gold[:, 0]].to(wide)
                grad_hidden[start : start + rows] = (
                    expected_weight - (1 - smoothing) * gold_weight - smoothing * mean_weight
                )
                grad_weight += exp.T @ (h.to(wide) / exp_sum).to(exp.dtype)
        if needs_grad:
            wide_hidden = hidden.to(wide)
            grad_weight.index_add_(0, labels, wide_hidden, alpha=smoothing - 1)
            grad_weight -= wide_hidden.sum(dim=0) * (smoothing / weight.shape[0])
            ctx.save_for_backward(grad_hidden, grad_weight.to(master_weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss.to(grad_hidden.dtype), grad_weight * grad_loss, None, None
