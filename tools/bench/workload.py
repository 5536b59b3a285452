"""The workload that all systems run. Imports only the standard library, so it works in every system's environment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Shape:
    """Size of a Transformer as in Vaswani et al. 2017: post-norm, ReLU, sinusoids, three-way tied embeddings."""

    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    dropout: float = 0.1


@dataclass(frozen=True)
class Learning:
    """Settings of the task `learn`: rounds of training, with a validation after each; then the test set is translated.

    output: file of the translations without its extension: `.txt` for text, `.pieces` for pieces separated by spaces
    """

    rounds: int
    seed: int
    learning_rate: float
    warmup_steps: int
    output: str

    def rate(self, d_model: int, step: int) -> float:
        """Learning rate of an update, counted from 1 (Vaswani et al. 2017, equation 3, times `learning_rate`)."""
        return float(self.learning_rate * d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5))


@dataclass(frozen=True)
class Workload:
    """A task, its text and its settings.

    folder:       output of `text.prepare_text`: pieces, token ids and raw text
    vocab_size:   including special tokens
    threads:      total over the parallel workers of a system
    warm_up:      untimed rounds before the first timed one
    batch_tokens: training: target tokens per update
    updates:      training and learning: updates per round
    num_sentences: translation: number of sentences, from the start of the test set
    output_tokens: translation: length of every output, including EOS if the system generates it
    options:      settings of one system, under its own names
    learning:     settings of the task `learn`
    """

    task: Literal["train", "decode", "prepare", "learn"]
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
    learning: Learning | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA GPU."""
        return self.device.startswith("cuda")

    def path(self, name: str) -> Path:
        """Path of a file in the folder."""
        return Path(self.folder) / name

    def lines(self, name: str) -> list[str]:
        """Lines of a file in the folder."""
        return self.path(name).read_bytes().decode().removesuffix("\n").split("\n")  # a line may contain "\r"

    def ids(self, split: str, side: str) -> list[list[int]]:
        """Token ids of a split (`train`, `valid`, `test`) and side (`src`, `tgt`), without special tokens."""
        return [[int(token) for token in line.split()] for line in self.lines(f"{split}.{side}.ids")]

    def pieces(self, split: str, side: str) -> list[list[str]]:
        """The same sentences as SentencePiece pieces."""
        return [line.split(" ") if line else [] for line in self.lines(f"{split}.{side}.pieces")]

    def write_pieces(self, sentences: Iterable[Iterable[str]]) -> None:
        """Write the translations of the test set, as pieces."""
        assert self.learning is not None
        text = "".join(f"{' '.join(pieces)}\n" for pieces in sentences)
        Path(f"{self.learning.output}.pieces").write_text(text, encoding="utf-8")

    def with_settings(self, settings: dict[str, str]) -> Workload:
        """Override fields; settings that name no field become options of the system."""
        types = {entry.name: type(getattr(self, entry.name)) for entry in fields(self)}
        own = {name: types[name](value) for name, value in settings.items() if name in types}
        options = {name: value for name, value in settings.items() if name not in types}
        return replace(self, **own, options={**self.options, **options})

    def to_json(self) -> str:
        """Serialize for a process in another environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """Parse the output of `to_json`."""
        tree: dict[str, Any] = json.loads(text)
        learning = None if tree["learning"] is None else Learning(**tree["learning"])
        return cls(**{**tree, "shape": Shape(**tree["shape"]), "learning": learning})
