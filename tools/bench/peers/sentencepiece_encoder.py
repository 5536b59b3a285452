"""SentencePiece: its own multithreaded encoding, a reference for the speed of preparation."""

from __future__ import annotations

import sentencepiece

from bench.worker import Clock
from bench.workload import Workload


def prepare(workload: Workload, clock: Clock) -> None:
    """Encode both sides of the training text in memory."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(workload.path("tokenizer.model")))
    sides = [workload.lines(f"train.{side}.txt") for side in ("src", "tgt")]
    while True:
        ids = [processor.encode(lines, out_type=int, num_threads=workload.threads) for lines in sides]
        clock.end_round(sum(len(sentence) for side in ids for sentence in side))
