"""SentencePiece: its own encoding of all text by several threads, what preparation can at best be as fast as."""

from __future__ import annotations

import sentencepiece

from bench.work import Work
from bench.worker import Clock


def prepare(work: Work, clock: Clock) -> None:
    """Both sides of the training text, which lies in memory, into token ids, which stay there."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(work.path("tokenizer.model")))
    sides = [work.text("train", side) for side in ("src", "tgt")]
    while True:
        found = [processor.encode(lines, out_type=int, num_threads=work.threads) for lines in sides]
        clock.lap(sum(len(ids) for side in found for ids in side))
