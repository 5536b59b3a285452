"""Code shared by the training benchmarks of other systems. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.worker import Clock
from bench.workload import Workload

NEVER = 10**9  # interval, in updates, of validation, checkpoints and logging


def check_precision(
    workload: Workload, system: str, cpu: Sequence[str] = ("fp32",), cuda: Sequence[str] = ("fp32", "fp16")
) -> None:
    """Exit with a message if a system cannot train in the workload's precision."""
    supported = cuda if workload.on_gpu else cpu
    if workload.precision not in supported:
        raise SystemExit(
            f"{system} cannot train in {workload.precision} on {workload.device}; "
            f"precision must be one of {', '.join(supported)}; set precision={supported[0]}"
        )


def write_vocabulary(workload: Workload, path: Path) -> Path:
    """Write pieces with counts, one per line, without special tokens, which these systems add themselves."""
    path.write_text("".join(f"{piece}\t1\n" for piece in workload.lines("vocab.txt")[4:]), encoding="utf-8")
    return path


def sorted_batch_size(workload: Workload) -> int:
    """`padded_batch_size` for eole and OpenNMT-py.

    Both sort by source, then by target length, and count the longer side of a pair, the target with BOS and EOS.
    """
    pairs = sorted(pair_lengths(workload))
    lengths = [max(src, tgt + 2) for src, tgt in pairs]
    return padded_batch_size(lengths, [tgt + 1 for _, tgt in pairs], workload.batch_tokens)


def pair_lengths(workload: Workload) -> list[tuple[int, int]]:
    """Source and target tokens of every training pair, without special tokens."""
    return list(zip(map(len, workload.pieces("train", "src")), map(len, workload.pieces("train", "tgt")), strict=True))


def padded_batch_size(lengths: Sequence[int], target_tokens: Sequence[int], mean: int) -> int:
    """Find the limit on padded batch size (sentences times longest) that gives `mean` target tokens per batch.

    lengths:       of each sentence as the system counts it, in batching order
    target_tokens: of each sentence
    """
    size = mean
    for _ in range(4):
        batches, count, longest = 1, 0, 0
        for length in lengths:
            count, longest = count + 1, max(longest, length)
            if count > 1 and count * longest > size:
                batches, count, longest = batches + 1, 1, length
        size = round(size * mean * batches / sum(target_tokens))
    return size


def count_steps(
    step: Callable[[Any, Any], Any], tokens_of: Callable[[Any], int], updates: int, clock: Clock
) -> Callable[[Any, Any], Any]:
    """Wrap a trainer's step to end a round every `updates` steps, when the next step starts.

    Work of the trainer between two steps is therefore part of the round of the first.
    """
    steps = tokens = 0

    def counted(trainer: Any, batch: Any) -> Any:
        nonlocal steps, tokens
        if steps == updates:
            clock.end_round(tokens)
            steps = tokens = 0
        steps, tokens = steps + 1, tokens + tokens_of(batch)
        return step(trainer, batch)

    return counted
