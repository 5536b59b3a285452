"""What is wanted of nmt's speed, each goal with the figure that decides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# ratio: of tokens per second, ours to theirs, in turns on one machine. The others are figures of nmt alone.
Unit = Literal["ratio", "share", "minutes"]


@dataclass(frozen=True)
class Goal:
    """One goal: its name, what it asks for, and the figure that is at least (of minutes: at most) wanted."""

    name: str
    text: str
    unit: Unit
    wanted: float

    def is_reached(self, value: float) -> bool:
        """Whether a figure is good enough."""
        return value <= self.wanted if self.unit == "minutes" else value >= self.wanted


GOALS = (
    Goal("train-cpu-eole-bf16", "base on Multi30k, CPU: eole in bf16", "ratio", 2.0),
    Goal("train-cpu-fp32", "base on Multi30k, CPU: our fastest against the best fp32 peer", "ratio", 4.0),
    Goal("train-cpu-linear", "base on Multi30k, CPU: share of the measured F.linear rate", "share", 0.60),
    Goal("train-gpu-big", "big, WMT14 lengths, H200 bf16: share of the F.linear rate (0.28 M/s)", "share", 0.45),
    Goal("train-gpu-base", "base, WMT14 lengths, H200 bf16: share of the F.linear rate (0.74 M/s)", "share", 0.35),
    Goal("train-gpu-rows", "rows that are tokens, not padding", "share", 0.99),
    Goal("train-gpu-eole", "H200 bf16: eole", "ratio", 1.5),
    Goal("train-gpu-transformers", "H200 bf16: transformers", "ratio", 1.5),
    Goal("decode-cpu-fp32", "CPU, beam 4: CTranslate2, both in fp32", "ratio", 1.0),
    Goal("decode-cpu-bf16", "CPU, beam 4: ours in bf16 against CTranslate2 in fp32", "ratio", 1.6),
    Goal("decode-cpu-fastest", "CPU, beam 4: our fastest setting against CTranslate2's (int8)", "ratio", 1.0),
    Goal("decode-cpu-transformers-fp32", "CPU, beam 4: transformers generate, both in fp32", "ratio", 4.0),
    Goal("decode-cpu-transformers-bf16", "CPU, beam 4: transformers generate, both in bf16", "ratio", 4.0),
    Goal("decode-gpu-batch32", "GPU, beam 4, batch 32: CTranslate2 in float16", "ratio", 1.5),
    Goal("decode-gpu-best", "GPU, beam 4, best batch of each: CTranslate2 in float16", "ratio", 2.0),
    Goal("decode-gpu-latency", "GPU, beam 4, one sentence at a time: CTranslate2 in float16", "ratio", 1.0),
    Goal("prepare-sentencepiece", "preparation against SentencePiece's own multithreaded encoding", "ratio", 0.9),
    Goal("multi30k-41", "Multi30k En-De to 41.0 tokenised lower-case BLEU on 2 cores", "minutes", 30.0),
    Goal("quickstart", "tools/quickstart after installation", "minutes", 3.0),
)
BY_NAME = {goal.name: goal for goal in GOALS}
