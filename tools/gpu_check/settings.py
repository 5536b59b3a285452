"""What all stages are told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

NO_GPU = "no GPU"


@dataclass(frozen=True)
class Settings:
    """How the stages run.

    device: `cuda`, or `cpu` for a dry run
    small:  tiny sizes; figures then say nothing about speed
    out:    folder of state, logs, results and the table
    data:   folder of raw parallel text (train.en, train.de, val.en, ...) for the contests; "" takes the built-in corpus
    """

    device: str
    small: bool
    out: str
    data: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU to check."""
        return self.device != "cpu"

    def pick(self, real: T, small: T) -> T:
        """One of two sizes."""
        return small if self.small else real

    def folder(self, name: str) -> Path:
        """A folder of the output folder, made if need be."""
        path = Path(self.out) / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def to_json(self) -> str:
        """As text, for a stage's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))
