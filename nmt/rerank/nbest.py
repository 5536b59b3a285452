"""N-best lists as text: line number, score and translation, separated by tabs.

Lines are numbered from 1, as in all commands. Moses numbers them from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nmt.errors import UserError


@dataclass(frozen=True)
class Candidate:
    """One translation of a line and its score; higher is better."""

    text: str
    score: float


def read_n_best(lines: Iterable[str], where: str) -> list[list[Candidate]]:
    """Parse the output of `nmt translate --n-best`; return the candidates of each line, in file order.

    Further columns, such as alignments, and carriage returns at the ends of lines are ignored. Raises UserError for a
    malformed line and for line numbers that are not consecutive from 1.

    where: name of the file in error messages
    """
    lists: list[list[Candidate]] = []
    for row, line in enumerate(lines, start=1):
        number, score, text = _columns(line, f"{where}, line {row}")
        if row == 1 and number == 0:
            raise UserError(f"{where} numbers lines from 0, as Moses does; expected 1; add 1 to each number")
        if number == len(lists) + 1:
            lists.append([])
        elif number != len(lists):
            expected = f"{len(lists)} or {len(lists) + 1}" if lists else "1"
            raise UserError(
                f"{where}, line {row}, has number {number}; expected {expected}; keep the order of the translations"
            )
        lists[-1].append(Candidate(text, score))
    return lists


def write_n_best(number: int, candidates: Iterable[Candidate]) -> list[str]:
    """Format the candidates of line `number`, without line endings."""
    return [f"{number}\t{candidate.score:z.4f}\t{candidate.text}" for candidate in candidates]


def _columns(line: str, where: str) -> tuple[int, float, str]:
    columns = line.removesuffix("\r").split("\t")
    command = "nmt translate --n-best N --output-format text"
    expected = f"expected number, score and text, separated by tabs; create it with {command}"
    if " ||| " in line and len(columns) == 1:
        raise UserError(f"{where}, is in Moses format; {expected}")
    try:
        number, score, text = int(columns[0]), float(columns[1]), columns[2]
        if math.isfinite(score):
            return number, score, text
    except (ValueError, IndexError):
        pass
    raise UserError(f"{where}, is malformed; {expected}")
