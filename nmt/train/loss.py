"""Label-smoothed cross-entropy of the output projection, and R-Drop, without materializing all logits.

Forward pass and gradient are computed together, in chunks of rows. In torch 2.13 and later,
`torch.nn.functional.linear_cross_entropy` does the same, but does not return the plain negative log-likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.devices.precision import row_multiple
from nmt.models import TranslationModel
from nmt.packing.packed import Batch
from nmt.recipe import Recipe
from nmt.train.compiled_loss import PrecomputedGradients, compilable_cross_entropy
from nmt.train.guidance import Guidance

# Float32 logits of one chunk. Each chunk updates the gradient of all output weights, so use few chunks.
CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
# Float32 logits processed at a time within a chunk: on a CPU, as many as fit in the cache of a core.
_SLICE_BYTES = {"cpu": 3 << 19, "cuda": 512 << 20}


class TrainingLoss(nn.Module):
    """A model and its loss in one module: DDP expects one forward call per backward pass.

    With `rdrop`, in training mode, every sentence passes through the model twice, with different dropout; see
    `linear_rdrop`. With `guidance`, in training mode, the loss includes that of guided alignment.
    """

    def __init__(
        self, model: TranslationModel, label_smoothing: float, rdrop: float = 0.0, guidance: Guidance | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.rdrop = rdrop
        self.guidance = guidance
        self._compiled: Callable[[Batch], tuple[Tensor, Tensor]] | None = None

    @classmethod
    def from_recipe(cls, model: TranslationModel, recipe: Recipe) -> TrainingLoss:
        """Build the loss of a recipe; raises UserError for guided alignment of an unknown head."""
        return cls(model, recipe.train.label_smoothing, recipe.train.rdrop, Guidance.from_recipe(recipe))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return loss and negative log-likelihood, summed over target tokens, in nats; only the loss has a gradient."""
        if self._compiled is not None and self.training:
            return self._compiled(batch)
        labels, smoothing = batch.labels[: batch.tgt_tokens], self.label_smoothing
        if self.rdrop and self.training:
            hidden, alignment_loss = self._decode(batch.repeated())
            hidden = hidden.unflatten(0, (2, -1))[:, : len(labels)]  # (2, total, d_model)
            loss, nll = linear_rdrop(*self._output_layer(hidden), labels, smoothing, self.rdrop)
        else:
            hidden, alignment_loss = self._decode(batch)  # (total, d_model)
            loss, nll = linear_cross_entropy(*self._output_layer(hidden[: len(labels)]), labels, smoothing)
        return loss if alignment_loss is None else loss + alignment_loss, nll

    def _decode(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the decoder output (tgt.total, d_model), and the loss of guided alignment; None without it."""
        if self.guidance is None or not self.training:
            return self.model(batch.src, batch.tgt), None
        return self.guidance.forward(self.model, batch.src, batch.tgt, batch.links)

    def compile_step(self, backend: str = "inductor") -> None:
        """Compile model and loss as one graph for training on batches of one shape; evaluation is not compiled.

        A graph break is an error; a new shape causes recompilation. Requires an attention kernel that needs no sentence
        lengths on the host (`varlen`, `masked`), no R-Drop and no guided alignment.
        """
        assert not self.rdrop, "the loss of R-Drop cannot be compiled"
        assert self.guidance is None, "the number of links varies"
        self._compiled = torch.compile(self._compilable_forward, fullgraph=True, dynamic=False, backend=backend)

    def _compilable_forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute `forward` without R-Drop, with operations whose shapes do not depend on the amount of padding."""
        labels = batch.labels
        hidden, weight = self._output_layer(self.model(batch.src, batch.tgt)[: len(labels)])
        chunk_bytes = CHUNK_BYTES[hidden.device.type]
        return compilable_cross_entropy(_autocast(hidden), weight, labels, self.label_smoothing, chunk_bytes)

    def _output_layer(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and weight of the output projection; a bias becomes the weight of a constant input of 1."""
        weight, bias = self.model.output.weight, self.model.output.bias
        if bias is None:
            return hidden, weight
        return F.pad(hidden, (0, 1), value=1.0), torch.cat([weight, bias[:, None]], dim=1)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return label-smoothed and plain cross-entropy of softmax(hidden weight^T), summed over rows.

    The target distribution spreads `smoothing` over all vocabulary entries, gold included (Szegedy et al. 2016;
    PyTorch's convention; fairseq spreads it over vocab - 1 entries, JoeyNMT over vocab - 2). Only the first result has
    a gradient.

    Args:
        hidden: (total, d_model)
        weight: (vocab, d_model)
        labels: (total,)
    """
    if not torch.is_grad_enabled():  # autograd functions compute gradients even under no_grad
        hidden, weight = hidden.detach(), weight.detach()
    sums = _LinearCrossEntropy.apply(_autocast(hidden), weight, labels, smoothing)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


def linear_rdrop(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, rdrop: float
) -> tuple[Tensor, Tensor]:
    """Return the R-Drop loss of two passes (Liang et al. 2021, section 2.1) and their mean plain cross-entropy.

    For predictions p and q of the two passes, and the smoothed cross-entropy CE, the loss of a row is
    (CE(p) + CE(q)) / 2 + rdrop / 4 (KL(p || q) + KL(q || p)). The paper has twice that, with `rdrop` as alpha; halving
    keeps the scale of one cross-entropy per token. Both results are sums over rows. Only the first has a gradient.

    Args:
        hidden: (2, total, d_model)
        weight: (vocab, d_model)
        labels: (total,)
    """
    sums = _LinearRDrop.apply(_autocast(hidden), weight, labels, smoothing, rdrop)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


def _autocast(hidden: Tensor) -> Tensor:
    """Cast to the autocast dtype, in which the loss then computes all matmuls."""
    kind = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden


class _LinearCrossEntropy(PrecomputedGradients):
    """Forward pass and gradient, chunk by chunk; all chunks share one logits buffer.

    With z = h W^T, s = sum(exp(z - max z)) and V entries, the loss of a row is
    log s + max z - (1 - eps) z_gold - eps mean(z), and its gradient with respect to z is
    softmax(z) - (1 - eps) onehot - eps / V.

    Terms that are constant over the vocabulary are applied to h or W instead of z.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        master_weight, weight = weight, weight.to(hidden.dtype)
        acc_dtype = torch.promote_types(master_weight.dtype, torch.float32)
        mean_weight = master_weight.mean(dim=0, dtype=acc_dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(master_weight, dtype=acc_dtype)
        chunk_grad, chunk_grad_acc = torch.empty_like(weight), torch.empty_like(grad_weight)
        loss = hidden.new_zeros((), dtype=acc_dtype)
        nll = hidden.new_zeros((), dtype=acc_dtype)
        for start, h, gold, logits in _chunks(hidden, labels, len(weight)):
            n = len(gold)
            torch.mm(h, weight.T, out=logits)  # (rows, vocab)
            z_gold = logits[:n].gather(1, gold).to(acc_dtype)
            exp_sum, z_max = _exp_(logits[:n], acc_dtype)
            log_sum = exp_sum.log() + z_max
            z_mean = (h[:n].to(acc_dtype) * mean_weight).sum(dim=1, keepdim=True)  # autocast would round a matmul
            nll += (log_sum - z_gold).sum()
            loss += (log_sum - (1 - smoothing) * z_gold - smoothing * z_mean).sum()
            if needs_grad:
                expected_weight = (logits @ weight)[:n].to(acc_dtype) / exp_sum  # mean of rows of W under the softmax
                gold_weight = master_weight[gold[:, 0]].to(acc_dtype)
                grad_hidden[start : start + n] = (
                    expected_weight - (1 - smoothing) * gold_weight - smoothing * mean_weight
                )
                h = h.clone()
                h[:n] /= exp_sum
                grad_weight += chunk_grad_acc.copy_(torch.mm(logits.T, h, out=chunk_grad))
        if needs_grad:
            hidden = hidden.to(acc_dtype)
            grad_weight.index_add_(0, labels, hidden, alpha=smoothing - 1)
            grad_weight -= hidden.sum(dim=0) * (smoothing / len(weight))
            ctx.save_for_backward(grad_hidden, grad_weight.to(master_weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll


def _chunks(hidden: Tensor, labels: Tensor, vocab: int, group: int = 1) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield first row, rows, labels (n, 1) and a logits buffer (rows, vocab) of each chunk.

    The n rows are zero-padded to a row count that suits matmuls. All chunks share one buffer: on a CPU, mapping and
    clearing the pages of a new one would take time. A chunk has a multiple of `group` rows.
    """
    multiple = math.lcm(row_multiple(hidden.dtype, hidden.device), group)
    max_rows = CHUNK_BYTES[hidden.device.type] // (4 * vocab)
    rows = min(max(1, max_rows // multiple) * multiple, math.ceil(len(hidden) / multiple) * multiple)
    logits = hidden.new_empty(rows, vocab)
    for start in range(0, len(hidden), rows):
        gold = labels[start : start + rows, None]
        h = hidden[start : start + rows]
        if missing := -len(h) % multiple:
            h = F.pad(h, (0, 0, 0, missing))
        yield start, h, gold, logits[: len(h)]


def _exp_(logits: Tensor, acc_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Replace logits z (n, vocab) with exp(z - max z); return the sums and the maxima, (n, 1) in `acc_dtype`."""
    n, vocab = logits.shape
    exp_sum, z_max = logits.new_empty(2, n, 1, dtype=acc_dtype)
    rows = min(n, max(1, _SLICE_BYTES[logits.device.type] // (4 * vocab)))
    buffer = None if logits.dtype == acc_dtype else logits.new_empty(rows, vocab, dtype=acc_dtype)
    for part, part_max, part_sum in zip(logits.split(rows), z_max.split(rows), exp_sum.split(rows), strict=True):
        z = part if buffer is None else buffer[: len(part)].copy_(part)
        torch.amax(z, dim=1, keepdim=True, out=part_max)
        torch.sum(z.sub_(part_max).exp_(), dim=1, keepdim=True, out=part_sum)
        if z is not part:
            part.copy_(z)
    return exp_sum, z_max


class _LinearRDrop(PrecomputedGradients):
    """Forward pass and gradient, chunk by chunk; the two passes of a row are adjacent."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, rdrop: float
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        master_weight, weight = weight, weight.to(hidden.dtype)
        acc_dtype = torch.promote_types(master_weight.dtype, torch.float32)
        hidden = hidden.transpose(0, 1).flatten(0, 1)  # (2 * total, d_model)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(master_weight, dtype=acc_dtype)
        loss = hidden.new_zeros((), dtype=acc_dtype)
        nll = hidden.new_zeros((), dtype=acc_dtype)
        # `_rdrop_grad_` holds about three float32 tensors as large as its logits, with two rows for each pair, which
        # should fit in the cache.
        pairs = max(1, _SLICE_BYTES[hidden.device.type] // (6 * 4 * len(weight)))
        for start, h, gold, logits in _chunks(hidden, labels.repeat_interleave(2), len(weight), group=2):
            n = len(gold)
            torch.mm(h, weight.T, out=logits)
            logit_slices = logits[:n].unflatten(0, (-1, 2)).split(pairs)  # each (pairs, 2, vocab)
            label_slices = gold.unflatten(0, (-1, 2)).split(pairs)
            for z, z_labels in zip(logit_slices, label_slices, strict=True):
                slice_loss, slice_nll = _rdrop_grad_(z, z_labels, smoothing, rdrop / 4, acc_dtype)
                loss += slice_loss
                nll += slice_nll
            if needs_grad:
                grad_hidden[start : start + n] = (logits @ weight)[:n]
                grad_weight += logits.T @ h
        if needs_grad:
            grad_hidden = grad_hidden.unflatten(0, (-1, 2)).transpose(0, 1)  # (2, total, d_model)
            ctx.save_for_backward(grad_hidden, grad_weight.to(master_weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll


def _rdrop_grad_(
    logits: Tensor, gold: Tensor, smoothing: float, kl_weight: float, acc_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Replace logits (n, 2, vocab) with the gradient of the R-Drop loss; return loss and plain cross-entropy.

    gold: (n, 2, 1). With d = log p - log q, the gradient of KL(p || q) + KL(q || p) = sum((p - q) d) with respect to
    the logits of p is p (1 + d - KL(p || q)) - q, and for those of q the same with p and q exchanged.
    """
    log_p = torch.log_softmax(logits.to(acc_dtype), dim=2)
    p = log_p.exp()
    log_ratio = log_p[:, :1] - log_p[:, 1:]  # (n, 1, vocab), first pass to second
    sign = torch.arange(1, -2, -2, dtype=acc_dtype, device=logits.device)[:, None]  # (2, 1): 1 and -1
    kl = (p * log_ratio).sum(dim=2, keepdim=True) * sign  # KL(p || q) and KL(q || p)
    log_gold = log_p.gather(2, gold).sum()
    loss = -((1 - smoothing) * log_gold + smoothing * log_p.mean(dim=2).sum()) / 2 + kl_weight * kl.sum()
    grad = torch.addcmul(0.5 + kl_weight - kl_weight * kl, log_ratio, kl_weight * sign, out=log_p)
    grad.mul_(p).sub_(p.flip(1), alpha=kl_weight).sub_(smoothing / (2 * logits.shape[2]))
    grad.scatter_add_(2, gold, grad.new_full((), (smoothing - 1) / 2).expand_as(gold))
    logits.copy_(grad)
    return loss, -log_gold / 2
