"""Label-smoothed cross-entropy of the output projection, and R-Drop, computed without ever holding all logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.devices.precision import row_multiple
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch
from nmt.train.traced_loss import KnownGradients, traced_cross_entropy

# Logits of one chunk take about this much in float32: few enough chunks, to each of which all output weights are added
# once, and little enough memory. Of those, so much is worked on at a time: what stays in a core's cache from one
# operation to the next, or all.
CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
_SLICE_BYTES = {"cpu": 3 << 19, "cuda": 512 << 20}


class TrainingLoss(nn.Module):
    """A model together with its loss, so that one call of one module is one forward pass (which DDP relies on).

    With `rdrop`, and in training mode only, each sentence is there twice, with other dropout; see `linear_rdrop`.
    """

    def __init__(self, model: Transformer, label_smoothing: float, rdrop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.rdrop = rdrop
        self._compiled: Callable[[Batch], tuple[Tensor, Tensor]] | None = None

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over the batch's target tokens, in nats: loss (with gradient) and negative log-likelihood."""
        if self._compiled is not None and self.training:
            return self._compiled(batch)
        labels, smoothing = batch.labels[: batch.tgt_tokens], self.label_smoothing
        if self.rdrop and self.training:
            both: Tensor = self.model(batch.src.repeated(), batch.tgt.repeated())
            passes = both.unflatten(0, (2, -1))[:, : len(labels)]  # (2, total, d_model)
            return linear_rdrop(*self._output_layer(passes), labels, smoothing, self.rdrop)
        hidden: Tensor = self.model(batch.src, batch.tgt)
        return linear_cross_entropy(*self._output_layer(hidden[: len(labels)]), labels, smoothing)

    def compile_whole(self, backend: str = "inductor") -> None:
        """Make one graph of model and loss, for training on batches of one shape; other modes stay as they are.

        A break of the graph is an error, and a batch of another shape means another compilation. Not for R-Drop; and
        the model's attention must need nothing of the host, as `varlen` and `masked` do not.
        """
        assert not self.rdrop, "the loss of R-Drop is not written for this"
        self._compiled = torch.compile(self._of_fixed_shape, fullgraph=True, dynamic=False, backend=backend)

    def _of_fixed_shape(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same as `forward` without R-Drop, by operations whose shapes do not depend on how much is padding."""
        labels = batch.labels
        hidden, weight = self._output_layer(self.model(batch.src, batch.tgt)[: len(labels)])
        chunk_bytes = CHUNK_BYTES[hidden.device.type]
        return traced_cross_entropy(_autocast(hidden), weight, labels, self.label_smoothing, chunk_bytes)

    def _output_layer(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and weights whose products are the logits: a bias is the weight of one more feature, which is 1."""
        weight, bias = self.model.output.weight, self.model.output.bias
        if bias is None:
            return hidden, weight
        return F.pad(hidden, (0, 1), value=1.0), torch.cat([weight, bias[:, None]], dim=1)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of softmax(hidden weight^T) with smoothed labels, and the plain one, each summed over rows.

    hidden: (total, d_model), weight: (vocab, d_model), labels: (total,). The smoothed target puts `smoothing` evenly on
    all vocabulary entries, the gold one included, and the rest on the gold one (Szegedy et al. 2016; PyTorch's
    convention; fairseq spreads it over vocab - 1 entries, JoeyNMT over vocab - 2). Only the first has a gradient.
    """
    if not torch.is_grad_enabled():  # autograd functions are asked for gradients all the same
        hidden, weight = hidden.detach(), weight.detach()
    sums = _LinearCrossEntropy.apply(_autocast(hidden), weight, labels, smoothing)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


def linear_rdrop(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, rdrop: float
) -> tuple[Tensor, Tensor]:
    """R-Drop's loss of two passes (Liang et al. 2021, section 2.1), and the mean of their plain ones, summed over rows.

    hidden: (2, total, d_model), weight: (vocab, d_model), labels: (total,). With p and q what the passes predict for a
    row, and CE the smoothed cross-entropy of `linear_cross_entropy`, the loss of the row is
    (CE(p) + CE(q)) / 2 + rdrop / 4 (KL(p || q) + KL(q || p)). The paper, and the code released with it for translation,
    have twice that, CE(p) + CE(q) + alpha / 2 (KL(p || q) + KL(q || p)): so `rdrop` is their alpha, and the loss keeps
    the scale of one cross-entropy per token. Only the first has a gradient.
    """
    sums = _LinearRDrop.apply(_autocast(hidden), weight, labels, smoothing, rdrop)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


def _autocast(hidden: Tensor) -> Tensor:
    """In the arithmetic that matrix products use here, which then holds for all of the loss."""
    kind = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden


class _LinearCrossEntropy(KnownGradients):
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
        product, wide_product = torch.empty_like(weight), torch.empty_like(grad_weight)
        loss = hidden.new_zeros((), dtype=wide)
        nll = hidden.new_zeros((), dtype=wide)
        for start, h, gold, logits in _chunks(hidden, labels, len(weight)):
            n = len(gold)
            torch.mm(h, weight.T, out=logits)
            z_gold = logits[:n].gather(1, gold).to(wide)
            exp_sum, z_max = _exponentiate(logits[:n], wide)
            log_sum = exp_sum.log() + z_max
            z_mean = (h[:n].to(wide) * mean_weight).sum(dim=1, keepdim=True)  # autocast would round a matrix product
            nll += (log_sum - z_gold).sum()
            loss += (log_sum - (1 - smoothing) * z_gold - smoothing * z_mean).sum()
            if needs_grad:
                expected_weight = (logits @ weight)[:n].to(wide) / exp_sum  # the softmax-weighted mean of rows of W
                gold_weight = master_weight[gold[:, 0]].to(wide)
                grad_hidden[start : start + n] = (
                    expected_weight - (1 - smoothing) * gold_weight - smoothing * mean_weight
                )
                h = h.clone()
                h[:n] /= exp_sum
                grad_weight += wide_product.copy_(torch.mm(logits.T, h, out=product))
        if needs_grad:
            wide_hidden = hidden.to(wide)
            grad_weight.index_add_(0, labels, wide_hidden, alpha=smoothing - 1)
            grad_weight -= wide_hidden.sum(dim=0) * (smoothing / weight.shape[0])
            ctx.save_for_backward(grad_hidden, grad_weight.to(master_weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll


def _chunks(
    hidden: Tensor, labels: Tensor, vocab: int, together: int = 1
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Cut the rows; gives of each chunk its first row, the rows, their labels (n, 1), and room for their logits.

    The rows may be followed by a few zeros, to be of a number that suits products; the room is (with these, vocab). It
    is the same memory for all chunks: on a CPU, fresh memory costs more than the arithmetic. So many rows as are
    `together` come into the same chunk.
    """
    multiple = math.lcm(row_multiple(hidden.dtype, hidden.device), together)
    most = CHUNK_BYTES[hidden.device.type] // (4 * vocab)
    rows = min(max(1, most // multiple) * multiple, math.ceil(len(hidden) / multiple) * multiple)
    room = hidden.new_empty(rows, vocab)
    for start in range(0, len(hidden), rows):
        gold = labels[start : start + rows, None]
        h = hidden[start : start + rows]
        if missing := -len(h) % multiple:
            h = F.pad(h, (0, 0, 0, missing))
        yield start, h, gold, room[: len(h)]


def _exponentiate(logits: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Put exp(z - max z) in the place of the logits z, (n, vocab); returns their sums and the maxima, (n, 1) `wide`."""
    n, vocab = logits.shape
    exp_sum, z_max = logits.new_empty(2, n, 1, dtype=wide)
    rows = min(n, max(1, _SLICE_BYTES[logits.device.type] // (4 * vocab)))
    room = None if logits.dtype == wide else logits.new_empty(rows, vocab, dtype=wide)
    for narrow, largest, total in zip(logits.split(rows), z_max.split(rows), exp_sum.split(rows), strict=True):
        z = narrow if room is None else room[: len(narrow)].copy_(narrow)
        torch.amax(z, dim=1, keepdim=True, out=largest)
        torch.sum(z.sub_(largest).exp_(), dim=1, keepdim=True, out=total)
        if z is not narrow:
            narrow.copy_(z)
    return exp_sum, z_max


class _LinearRDrop(KnownGradients):
    """Forward pass and gradient together, chunk by chunk; a row's two passes lie beside each other."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, rdrop: float
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        master_weight, weight = weight, weight.to(hidden.dtype)
        wide = torch.promote_types(master_weight.dtype, torch.float32)
        hidden = hidden.transpose(0, 1).flatten(0, 1)  # (2 * total, d_model)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(master_weight, dtype=wide)
        loss = hidden.new_zeros((), dtype=wide)
        nll = hidden.new_zeros((), dtype=wide)
        # So many that all that is made of them stays in a cache: six tensors of a row's logits.
        pairs_in_slice = max(1, _SLICE_BYTES[hidden.device.type] // (6 * 4 * len(weight)))
        for start, h, gold, logits in _chunks(hidden, labels.repeat_interleave(2), len(weight), together=2):
            n = len(gold)
            torch.mm(h, weight.T, out=logits)
            slices = (rows.unflatten(0, (-1, 2)).split(pairs_in_slice) for rows in (logits[:n], gold))
            for z, labels_of_z in zip(*slices, strict=True):
                slice_loss, slice_nll = _rdrop_gradient(z, labels_of_z, smoothing, rdrop / 4, wide)
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


def _rdrop_gradient(
    logits: Tensor, gold: Tensor, smoothing: float, pull: float, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Put the gradient of R-Drop's loss in the place of the logits, (n, 2, vocab); returns the loss and the plain one.

    gold: (n, 2, 1). With d = log p - log q, the gradient of KL(p || q) + KL(q || p) = sum((p - q) d) in the logits of
    p is p (1 + d - KL(p || q)) - q, and the same with p and q exchanged in those of q.
    """
    log_p = torch.log_softmax(logits.to(wide), dim=2)
    p = log_p.exp()
    log_ratio = log_p[:, :1] - log_p[:, 1:]  # of the first pass to the second
    sign = torch.arange(1, -2, -2, dtype=wide, device=logits.device)[:, None]  # 1 and -1
    divergence = (p * log_ratio).sum(dim=2, keepdim=True) * sign  # KL(p || q) and KL(q || p)
    log_gold = log_p.gather(2, gold).sum()
    loss = -((1 - smoothing) * log_gold + smoothing * log_p.mean(dim=2).sum()) / 2 + pull * divergence.sum()
    grad = torch.addcmul(0.5 + pull - pull * divergence, log_ratio, pull * sign, out=log_p)
    grad.mul_(p).sub_(p.flip(1), alpha=pull).sub_(smoothing / (2 * logits.shape[2]))
    grad.scatter_add_(2, gold, grad.new_full((), (smoothing - 1) / 2).expand_as(gold))
    logits.copy_(grad)
    return loss, -log_gold / 2
