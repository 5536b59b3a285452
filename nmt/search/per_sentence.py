"""Selection and concatenation of state that has one entry per sentence of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device


@dataclass
class PerSentence:
    """Base of dataclasses whose tensors, arrays and lists have one entry per sentence; other fields are shared."""

    def select(self, rows: Sequence[int], index: Tensor) -> Self:
        """Select sentences, in this order. index: `rows` on the device, (selected,) int64."""

        def pick(value: Any) -> Any:
            match value:
                case Tensor():
                    return value[index]
                case np.ndarray():
                    return value[rows]
                case list():
                    return [value[row] for row in rows]
                case PerSentence():
                    return value.select(rows, index)
                case _:
                    return value

        return replace(self, **{field.name: pick(getattr(self, field.name)) for field in fields(self)})

    def concat(self, other: Self) -> Self:
        """Append the sentences of `other`."""

        def join(value: Any, more: Any) -> Any:
            match value:
                case Tensor():
                    return torch.cat([value, more])
                case np.ndarray():
                    return np.concatenate([value, more])
                case list():
                    return value + more
                case PerSentence():
                    return value.concat(more)
                case _:
                    return value

        return replace(
            self, **{field.name: join(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        )


@dataclass
class ActiveSentences(PerSentence):
    """Sentences in the batch. The host keeps its own copy to avoid synchronization.

    ids, device_ids:         (batch,) index of each sentence in the search
    lengths, device_lengths: (batch,) output tokens, including the token of the current step
    """

    ids: list[int]
    lengths: list[int]
    device_ids: Tensor
    device_lengths: Tensor

    @classmethod
    def start(cls, ids: list[int], device: torch.device) -> ActiveSentences:
        """Sentences before their first step."""
        device_ids = to_device(ids, device)
        return cls(ids, [0] * len(ids), device_ids, torch.zeros_like(device_ids))

    def advance(self) -> None:
        """Begin the next step."""
        self.lengths = [length + 1 for length in self.lengths]
        self.device_lengths = self.device_lengths + 1

    def on_host(self) -> Iterator[tuple[int, int]]:
        """Yield index and length of each sentence."""
        return zip(self.ids, self.lengths, strict=True)


def split_rows(is_done: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Return the finished rows of a batch and the active ones."""
    rows = range(len(is_done))
    return [row for row in rows if is_done[row]], [row for row in rows if not is_done[row]]
