"""Metrics of the updates since the last log line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.epoch_plan import Ids
from nmt.data.loader import Update
from nmt.processes.distributed import World
from nmt.train.update import UpdateResult


@dataclass(frozen=True)
class PendingUpdate:
    """An update that has not been synchronized: the host does not know whether it was skipped.

    name: for messages; skipped: 1.0 or 0.0, on the device
    """

    name: str
    sentence_ids: Ids
    tgt_tokens: int
    skipped: Tensor


class RunningMetrics:
    """Sums over updates, kept on the device to avoid synchronization. Losses of skipped updates do not count.

    tokens, seconds: of all updates, for the speed
    learned:         target tokens of the updates that were not skipped, the denominator of `loss` and `nll`
    grad_norm:       of the last update; None if an earlier session made it
    pending:         updates since the last synchronization
    """

    def __init__(self, initial: Mapping[str, float], world: World) -> None:
        """Continue from the `sums` of a checkpoint, or start at zero if `initial` is empty."""
        losses = initial if world.is_main else {}  # sums over all processes: count them once
        self.loss: Tensor | float = losses.get("loss", 0.0)
        self.nll: Tensor | float = losses.get("nll", 0.0)
        self.tokens = int(initial.get("tokens", 0))
        self.learned = int(initial.get("learned", self.tokens))
        self.seconds = initial.get("seconds", 0.0)
        self.grad_norm: Tensor | None = None
        self.pending: list[PendingUpdate] = []

    def add(self, update: Update, result: UpdateResult, step: int) -> None:
        """Add an update without synchronization. step: number of the update, from 1"""
        is_skipped = result.skipped.bool()
        self.loss = self.loss + result.loss.masked_fill(is_skipped, 0.0)
        self.nll = self.nll + result.nll.masked_fill(is_skipped, 0.0)
        self.grad_norm = result.grad_norm
        self.tokens += update.tgt_tokens
        name = f"update {step:,} ({update.index + 1:,} of epoch {update.epoch + 1:,})"
        self.pending.append(PendingUpdate(name, update.sentence_ids, update.tgt_tokens, result.skipped))

    def synchronize(self) -> list[tuple[PendingUpdate, bool]]:
        """Synchronize with the device; return the pending updates and whether each was skipped."""
        flags = torch.stack([update.skipped for update in self.pending]).tolist()
        updates = [(update, bool(flag)) for update, flag in zip(self.pending, flags, strict=True)]
        self.learned += sum(update.tgt_tokens for update, is_skipped in updates if not is_skipped)
        self.pending.clear()
        return updates

    def sums(self, world: World) -> dict[str, float]:
        """Return the sums over all processes, which must all call it with no update pending."""
        local_sums = torch.tensor([float(self.loss), float(self.nll)], dtype=torch.float64, device=world.device)
        loss, nll = world.sum(local_sums).tolist()
        return {"loss": loss, "nll": nll, "tokens": self.tokens, "learned": self.learned, "seconds": self.seconds}
