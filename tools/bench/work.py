"""The work that all systems do alike. Only the standard library is needed here, as in every environment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Shape:
    """A Transformer of the paper's kind: post-norm, ReLU, sinusoids, one matrix for all embeddings."""

    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    dropout: float = 0.1


@dataclass(frozen=True)
class Work:
    """What is to be done, and with what.

    folder:       made by `text.prepare_text`: text in pieces, ids and as it was
    vocab_size:   pieces, special ones included
    threads:      of all that a system does at the same time
    warm_up:      laps before the clock counts
    batch_tokens, updates: training: target tokens of an update, updates of a lap
    beam_size, batch_sentences, output_tokens, num_sentences: translation of the first sentences of the test set, each
                  into exactly so many tokens, an end token among them where a system writes one
    options:      further settings of one system, by its own names
    """

    task: Literal["train", "decode", "prepare"]
    folder: str
    vocab_size: int
    shape: Shape = Shape()
    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 2
    warm_up: int = 1
    batch_tokens: int = 2_048
    updates: int = 10
    label_smoothing: float = 0.1
    beam_size: int = 4
    batch_sentences: int = 32
    output_tokens: int = 16
    num_sentences: int = 256
    options: dict[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """A file of the folder."""
        return Path(self.folder) / name

    def ids(self, split: str, side: str) -> list[list[int]]:
        """Token ids of a split (`train`, `valid`, `test`) and side (`src`, `tgt`), without special tokens."""
        return [[int(token) for token in line.split()] for line in self._lines(f"{split}.{side}.ids")]

    def pieces(self, split: str, side: str) -> list[list[str]]:
        """The same as written pieces."""
        return [line.split(" ") for line in self._lines(f"{split}.{side}.pieces")]

    def text(self, split: str, side: str) -> list[str]:
        """The sentences as they were."""
        return self._lines(f"{split}.{side}.txt")

    def option(self, name: str, default: str) -> str:
        """A setting of this system."""
        return self.options.get(name, default)

    def with_settings(self, settings: dict[str, str]) -> Work:
        """Settings that are fields here change them, and the others are options of the system."""
        kinds = {entry.name: type(getattr(self, entry.name)) for entry in fields(self)}
        own = {name: kinds[name](value) for name, value in settings.items() if name in kinds}
        others = {name: value for name, value in settings.items() if name not in kinds}
        return replace(self, **own, options={**self.options, **others})

    def to_json(self) -> str:
        """As text, for a process in another environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Work:
        """The inverse of `to_json`."""
        tree: dict[str, Any] = json.loads(text)
        return cls(**{**tree, "shape": Shape(**tree["shape"])})

    def _lines(self, name: str) -> list[str]:
        return self.path(name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


def parse_contestant(text: str) -> tuple[str, dict[str, str]]:
    """`eole:precision=bf16,batch_tokens=4096` as name and settings; ValueError where it is something else."""
    name, _, rest = text.partition(":")
    settings = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: {part!r} must look like setting=value")
        settings[key] = value
    return name, settings
