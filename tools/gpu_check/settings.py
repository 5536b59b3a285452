"""Settings shared by all stages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

NO_GPU = "no GPU"


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    device: `cuda`, or `cpu` for a dry run
    small:  tiny sizes; speeds are then meaningless
    out:    output folder
    data:   folder of raw parallel text (train.en, train.de, val.en, ...) for speed comparisons; "": the toy corpus
    """

    device: str
    small: bool
    out: str
    data: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    def pick(self, real: T, small: T) -> T:
        """Select one of two sizes."""
        return small if self.small else real

    def folder(self, name: str) -> Path:
        """Return a subfolder of the output folder, created if missing."""
        path = Path(self.out) / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def to_json(self) -> str:
        """Serialize for a stage's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Parse the output of `to_json`."""
        return cls(**json.loads(text))
