"""What the updates between two lines of metrics gave."""

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
    """An update of which the host does not know yet whether it was skipped.

    place: what to call it; skipped: 1.0 or 0.0, on the device
    """

    place: str
    sentence_ids: Ids
    tgt_tokens: int
    skipped: Tensor


class RunningMetrics:
    """Sums over updates; they stay on the device, so that nothing waits for them. Skipped updates have no part in them.

    tokens, seconds: of all updates, as measures of speed
    learned:         target tokens of the updates that were not skipped, to which `loss` and `nll` belong
    unsettled:       updates since the host last waited for the device
    """

    def __init__(self, begun: Mapping[str, float], world: World) -> None:
        """Continue from what `sums` gave at the last checkpoint, which is empty or for one process to hold."""
        self.loss: Tensor | float = begun.get("loss", 0.0) if world.is_main else 0.0
        self.nll: Tensor | float = begun.get("nll", 0.0) if world.is_main else 0.0
        self.tokens = int(begun.get("tokens", 0))
        self.learned = int(begun.get("learned", self.tokens))
        self.seconds = begun.get("seconds", 0.0)
        self.grad_norm: Tensor | float = 0.0
        self.unsettled: list[PendingUpdate] = []

    def add(self, update: Update, result: UpdateResult) -> None:
        """Add one more update, without waiting for it."""
        is_skipped = result.skipped.bool()
        self.loss = self.loss + result.loss.masked_fill(is_skipped, 0.0)
        self.nll = self.nll + result.nll.masked_fill(is_skipped, 0.0)
        self.grad_norm = result.grad_norm
        self.tokens += update.tgt_tokens
        place = f"epoch {update.epoch}, update {update.index}"
        self.unsettled.append(PendingUpdate(place, update.sentence_ids, update.tgt_tokens, result.skipped))

    def settle(self) -> list[tuple[PendingUpdate, bool]]:
        """Wait for the device; returns the updates since the last call, and whether each was skipped."""
        skipped = torch.stack([update.skipped for update in self.unsettled]).tolist()  # waits for the device
        settled = [(update, bool(flag)) for update, flag in zip(self.unsettled, skipped, strict=True)]
        self.learned += sum(update.tgt_tokens for update, is_skipped in settled if not is_skipped)
        self.unsettled.clear()
        return settled

    def sums(self, world: World) -> dict[str, float]:
        """The sums over all processes; all of them must ask, and no update may be unsettled."""
        both = torch.tensor([float(self.loss), float(self.nll)], dtype=torch.float64, device=world.device)
        loss, nll = world.sum(both).tolist()
        return {"loss": loss, "nll": nll, "tokens": self.tokens, "learned": self.learned, "seconds": self.seconds}
