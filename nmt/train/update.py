"""One optimiser update: the gradient of the mean loss over all its target tokens, and one step along it."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nmt.data.loader import Update, empty_batch
from nmt.devices.precision import autocast, choose_precision, row_multiple, torch_dtype
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.loss import TrainingLoss
from nmt.train.optimizer import build_optimizer
from nmt.train.schedule import dropout_scale, learning_rate

# The buffers are constant tables, which need not be broadcast before each pass; torch 2.13 has renamed the option.
_IS_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_KEEP_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _IS_RENAMED else "broadcast_buffers": False}


@dataclass(frozen=True)
class UpdateResult:
    """What an update gave; tensors stay on the device, so that nothing waits for them.

    loss, nll:  sums over the target tokens of this process's micro-batches, in nats
    grad_norm:  length of the whole gradient, before clipping
    skipped:    1.0 where the gradient was not finite, so that weights and optimiser state are as before; else 0.0
    """

    loss: Tensor
    nll: Tensor
    grad_norm: Tensor
    skipped: Tensor


class Updater:
    """Makes updates: forward and backward over the micro-batches, exchange between processes, clipping, Adam."""

    def __init__(self, recipe: Recipe, world: World, loss: TrainingLoss) -> None:
        self.recipe = recipe
        self.world = world
        self.loss, self.model = loss, loss.model
        self.optimizer = build_optimizer(loss.model, recipe.train)
        self.precision = choose_precision(recipe.train.precision, world.device)
        self.loss_scaler = torch.amp.GradScaler(world.device.type, enabled=self.precision == "fp16")
        self._row_multiple = row_multiple(torch_dtype(self.precision), world.device)
        self._weights = [weight for weight in loss.model.parameters() if weight.requires_grad]
        self._wrapped: nn.Module = self._exchanging(loss) if world.size > 1 else loss

    @property
    def rate(self) -> float:
        """The learning rate of the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def __call__(self, update: Update, step: int) -> UpdateResult:
        """Make the update that takes the model to `step`."""
        self.optimizer.zero_grad(set_to_none=True)
        self.model.scale_dropout(dropout_scale(self.recipe.train, step))
        loss, nll = self._accumulate_gradient(update, step)
        self.loss_scaler.unscale_(self.optimizer)  # does nothing unless in fp16
        norm = self._clip_gradient()
        skipped = (~torch.isfinite(norm)).float()
        self._take_step(skipped, learning_rate(self.recipe.train, self.recipe.model.d_model, step))
        return UpdateResult(loss, nll, norm, skipped)

    def _accumulate_gradient(self, update: Update, step: int) -> tuple[Tensor, Tensor]:
        """Sum the gradient over the micro-batches; returns the sums of the loss and of the log-likelihood."""
        device = self.world.device
        loss_sum = nll_sum = torch.zeros((), dtype=torch.float64, device=device)
        for place, micro in enumerate(update.micro_batches):
            is_last = place == len(update.micro_batches) - 1
            batch = micro.batch.pad_to_multiple(self._row_multiple)
            torch.manual_seed(_stream_seed(self.recipe.seed, step, micro.number))
            with self._gradient_exchange(is_last):
                with autocast(self.precision, device):
                    loss, nll = self._wrapped(batch.to(device))
                # DDP divides by the number of processes; what is wanted is the mean over all tokens of the update.
                weight = self.world.size / update.tgt_tokens if micro.counts else 0.0
                if is_last:
                    self.world.count_synchronization()
                self.loss_scaler.scale(loss * weight).backward()
            if micro.counts:
                loss_sum, nll_sum = loss_sum + loss.detach(), nll_sum + nll.detach()
        return loss_sum, nll_sum

    def _exchanging(self, loss: TrainingLoss) -> DistributedDataParallel:
        """The loss, whose gradient the processes sum.

        With `static_graph` torch notes in the first pass which weights take part, and fails if that pass exchanges
        nothing, as the first of several micro-batches does not. So it has one before: a pair of empty sentences, whose
        gradient is dropped.
        """
        exchanging = DistributedDataParallel(loss, gradient_as_bucket_view=True, static_graph=True, **_KEEP_BUFFERS)
        with autocast(self.precision, self.world.device):
            value, _ = exchanging(empty_batch().to(self.world.device))
        self.world.count_synchronization()
        value.backward()
        self.optimizer.zero_grad(set_to_none=True)
        return exchanging

    def _gradient_exchange(self, is_last: bool) -> AbstractContextManager[object]:
        """Processes exchange gradients once per update, during the last backward pass."""
        if isinstance(self._wrapped, DistributedDataParallel) and not is_last:
            return self._wrapped.no_sync()
        return nullcontext()

    def _clip_gradient(self) -> Tensor:
        """Scale the gradient down to `clip_norm` where it is longer (0: never); returns its norm before that."""
        if self.recipe.train.clip_norm:
            return torch.nn.utils.clip_grad_norm_(self._weights, self.recipe.train.clip_norm)
        return torch.nn.utils.get_total_norm([weight.grad for weight in self._weights if weight.grad is not None])

    def _take_step(self, skipped: Tensor, rate: float) -> None:
        """One step of Adam, which the fused kernel itself leaves out where `skipped` is 1: the host need not know.

        Every process has the same summed gradient and so does the same.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # The two attributes by which torch.amp.GradScaler talks to a fused optimiser.
        self.optimizer.grad_scale, self.optimizer.found_inf = None, skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        self.loss_scaler.update()


def _stream_seed(seed: int, step: int, micro_batch: int) -> int:
    """The seed of one micro-batch's dropout: it depends on nothing else, least of all on the number of processes."""
    return int(np.random.SeedSequence([seed % (1 << 64), step, micro_batch]).generate_state(1, np.uint64)[0] >> 1)
