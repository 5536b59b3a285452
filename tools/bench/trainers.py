"""What the trainers of other systems are fed and watched with alike. Only the standard library is needed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.work import Work
from bench.worker import Clock

NEVER = 10**9  # updates between validations, checkpoints and the like


def refuse_other_precisions(work: Work, able: Sequence[str], system: str) -> None:
    """End the program, with a word why, where a system cannot train in the precision of the work."""
    if work.precision not in able:
        raise SystemExit(
            f"{system} cannot train in {work.precision} on {work.device}; "
            f"it must be one of {', '.join(able)}; give it precision={able[0]}"
        )


def write_vocabulary(work: Work, path: Path) -> Path:
    """Pieces with counts, one a line, for systems that put special tokens of their own before them."""
    pieces = work.path("vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    path.write_text("".join(f"{piece}\t1\n" for piece in pieces[4:]), encoding="utf-8")
    return path


def sorted_size(work: Work) -> int:
    """`padded_size` for eole and OpenNMT-py.

    They sort by source, then by target length, and count the longer side of a pair, the target with begin and end.
    """
    pairs = sorted(pair_lengths(work))
    return padded_size([max(src, tgt + 2) for src, tgt in pairs], [tgt + 1 for _, tgt in pairs], work.batch_tokens)


def pair_lengths(work: Work) -> list[tuple[int, int]]:
    """Pieces of source and target of every training pair, without special tokens."""
    return list(zip(map(len, work.pieces("train", "src")), map(len, work.pieces("train", "tgt")), strict=True))


def padded_size(rows: Sequence[int], counted: Sequence[int], wanted: int) -> int:
    """The limit on sentences times the longest of a batch, with which it has about `wanted` of the counted tokens.

    rows:    how long each sentence is to the system, in the order in which it puts them into batches
    counted: how many target tokens each of them has indeed
    """
    size = wanted
    for _ in range(4):
        batches, held, longest = 1, 0, 0
        for row in rows:
            held, longest = held + 1, max(longest, row)
            if held > 1 and held * longest > size:
                batches, held, longest = batches + 1, 1, row
        size = round(size * wanted * batches / sum(counted))
    return size


def counted_steps(
    step: Callable[[Any, Any], Any], tokens_of: Callable[[Any], int], updates: int, clock: Clock
) -> Callable[[Any, Any], Any]:
    """A trainer's step on a batch, made to end a lap after so many of them: when the next one begins.

    So all that the trainer does between two steps belongs to the first of them.
    """
    done = tokens = 0

    def counted(trainer: Any, batch: Any) -> Any:
        nonlocal done, tokens
        if done == updates:
            clock.lap(tokens)
            done = tokens = 0
        done, tokens = done + 1, tokens + tokens_of(batch)
        return step(trainer, batch)

    return counted
