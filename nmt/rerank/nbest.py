"""The n best translations of a text as a file: number of the line, score and translation, with tabs between them.

Lines count from 1, as everywhere in this program; in lists of Moses they count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nmt.recipe import UserError


@dataclass(frozen=True)
class Candidate:
    """One translation of a line, with the score that it came with; higher is better."""

    text: str
    score: float


def read_n_best(lines: Iterable[str], where: str) -> list[list[Candidate]]:
    """The candidates of each line of the text, in the order of the file, as `nmt translate --n-best` writes them.

    Further columns, such as alignments, are left out. Raises UserError, with `where` as the name of the file, for a
    line of another form, and where the numbers do not count from 1 without a gap.
    """
    lists: list[list[Candidate]] = []
    for place, line in enumerate(lines, start=1):
        number, score, text = _columns(line, f"{where}, line {place},")
        if place == 1 and number == 0:
            raise UserError(f"{where} counts from 0, as Moses does; lists of nmt count from 1; add 1 to each number")
        if number == len(lists) + 1:
            lists.append([])
        elif number != len(lists) or not lists:
            expected = f"{len(lists)} or {len(lists) + 1}" if lists else "1"
            raise UserError(
                f"{where}, line {place}, is of sentence {number}; it must be of {expected}; "
                "keep the order in which the translations were written"
            )
        lists[-1].append(Candidate(text, score))
    return lists


def write_n_best(number: int, candidates: Iterable[Candidate]) -> list[str]:
    """The lines of the candidates of line `number`, without line ends."""
    return [f"{number}\t{candidate.score:.4f}\t{candidate.text}" for candidate in candidates]


def _columns(line: str, where: str) -> tuple[int, float, str]:
    columns = line.split("\t")
    if " ||| " in line and len(columns) == 1:
        raise UserError(
            f"{where} is of Moses' form; it must be number, score and text with tabs between them, counted from 1; "
            "write it by nmt translate --n-best"
        )
    try:
        number, score, text = int(columns[0]), float(columns[1]), columns[2]
    except (ValueError, IndexError):
        number, score, text = 0, math.nan, ""
    if not math.isfinite(score):
        raise UserError(
            f"{where} is no translation with its score; it must be number, score and text with tabs between them; "
            "write it by nmt translate --n-best"
        )
    return number, score, text
