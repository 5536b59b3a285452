"""One optimizer update: the gradient of the mean loss over all target tokens of the update, then one step of Adam."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nmt.data.loader import Update, empty_batch
from nmt.devices.precision import autocast, choose_precision, row_multiple, torch_dtype
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.loss import TrainingLoss
from nmt.train.optimizer import build_optimizer
from nmt.train.schedule import dropout_scale, learning_rate

# Buffers are constant tables: do not broadcast them before each pass. torch 2.13 renamed the option.
_HAS_NEW_NAME = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_NO_BUFFER_SYNC: dict[str, Any] = {"forward_sync_buffers" if _HAS_NEW_NAME else "broadcast_buffers": False}


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of one update. Tensors stay on the device to avoid synchronization.

    loss, nll: sums over the target tokens of this process, in nats
    grad_norm: norm of the whole gradient before clipping
    skipped:   1.0 if the gradient was not finite and parameters and optimizer state are unchanged, else 0.0
    """

    loss: Tensor
    nll: Tensor
    grad_norm: Tensor
    skipped: Tensor


class Updater:
    """Performs updates: forward and backward over the micro-batches, all-reduce, gradient clipping, Adam.

    schedule:     learning rate of each update, counted from 1
    row_multiple: both sides of a micro-batch are padded to a multiple of this number of tokens, if possible
    """

    def __init__(self, recipe: Recipe, world: World, loss: TrainingLoss) -> None:
        self.recipe = recipe
        self.world = world
        self.loss, self.model = loss, loss.model
        self.optimizer = build_optimizer(loss.model, recipe.train)
        self.schedule: Callable[[int], float] = partial(learning_rate, recipe.train, loss.model.recipe.d_model)
        self.precision = choose_precision(recipe.train.precision, world.device)
        self.loss_scaler = torch.amp.GradScaler(world.device.type, enabled=self.precision == "fp16")
        self.row_multiple = row_multiple(torch_dtype(self.precision), world.device)
        self._parameters = [parameter for parameter in loss.model.parameters() if parameter.requires_grad]
        self._ddp = self._wrap_ddp() if world.size > 1 else None

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def __call__(self, update: Update, step: int) -> UpdateResult:
        """Perform update number `step`, counted from 1."""
        self.model.scale_dropout(dropout_scale(self.recipe.train, step))
        self.optimizer.zero_grad()
        loss, nll = self._accumulate_gradients(update, step)
        self.loss_scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # no-op unless fp16; reads only `param_groups`
        grad_norm = self._clip_gradients()
        skipped = (~torch.isfinite(grad_norm)).float()  # the same on every process: gradients are all-reduced
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(step)
        self.optimizer.step(skip=skipped)
        self.loss_scaler.update()
        return UpdateResult(loss, nll, grad_norm, skipped)

    def _accumulate_gradients(self, update: Update, step: int) -> tuple[Tensor, Tensor]:
        """Run forward and backward on every micro-batch; return the sums of loss and negative log-likelihood."""
        device, forward = self.world.device, self._ddp or self.loss
        loss_sum = nll_sum = torch.zeros((), dtype=torch.float64, device=device)
        for index, micro in enumerate(update.micro_batches):
            is_last = index == len(update.micro_batches) - 1
            batch = micro.batch.pad_to_multiple(self.row_multiple)
            torch.manual_seed(dropout_seed(self.recipe.seed, step, micro.number))
            # DDP all-reduces gradients once per update, during the last backward pass.
            with nullcontext() if self._ddp is None or is_last else self._ddp.no_sync():
                with autocast(self.precision, device):
                    loss, nll = forward(batch.to(device))
                if is_last:
                    self.world.count_synchronization()
                # DDP divides by the world size; the target is the mean over all tokens of the update.
                weight = 0.0 if micro.is_empty else self.world.size / update.tgt_tokens
                self.loss_scaler.scale(loss * weight).backward()
            if not micro.is_empty:
                loss_sum, nll_sum = loss_sum + loss.detach(), nll_sum + nll.detach()
        return loss_sum, nll_sum

    def _wrap_ddp(self) -> DistributedDataParallel:
        """Wrap the loss in DDP.

        With `static_graph`, DDP records the parameters in its first backward pass, which must all-reduce; the first of
        several micro-batches does not. Therefore run one pass on a pair of empty sentences and drop its gradient.
        """
        ddp = DistributedDataParallel(self.loss, gradient_as_bucket_view=True, static_graph=True, **_NO_BUFFER_SYNC)
        with autocast(self.precision, self.world.device):
            loss, _ = ddp(empty_batch().to(self.world.device))
        self.world.count_synchronization()
        loss.backward()
        self.optimizer.zero_grad()
        return ddp

    def _clip_gradients(self) -> Tensor:
        """Clip the gradient norm to `clip_norm` (0: no clipping); return the norm before clipping."""
        if self.recipe.train.clip_norm:
            return torch.nn.utils.clip_grad_norm_(self._parameters, self.recipe.train.clip_norm)
        return torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Return the dropout seed of a micro-batch, which does not depend on the world size."""
    return int(np.random.SeedSequence([seed % (1 << 64), step, micro_batch]).generate_state(1, np.uint64)[0] >> 1)
