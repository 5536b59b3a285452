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

    def conflict(self) -> str | None:
        """Return an error message if the output folder has results of another device, size or data."""
        if not self._record.exists():
            return None
        earlier, own = json.loads(self._record.read_text(encoding="utf-8")), self._choices()
        shown = ", ".join(f"{name} {earlier.get(name)!r}" for name in own if earlier.get(name) != own[name])
        return f"{self.out} has results with {shown}; use another --out, or remove the folder" if shown else None

    def record(self) -> None:
        """Store the device, size and data of the results in the output folder."""
        self._record.write_text(json.dumps(self._choices()) + "\n", encoding="utf-8")

    @property
    def _record(self) -> Path:
        return Path(self.out) / "settings.json"

    def _choices(self) -> dict[str, object]:
        return {"device": self.device, "small": self.small, "data": self.data}

    def to_json(self) -> str:
        """Serialize for a stage's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Parse the output of `to_json`."""
        return cls(**json.loads(text))
