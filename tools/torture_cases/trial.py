"""What a case is, and what one trial of it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torture_cases.workshop import Workshop


@dataclass(frozen=True)
class Trial:
    """One thing that was tried.

    problem: what went wrong; None when it passed
    run:     its folder, if it had one of its own; kept when something went wrong
    figures: what was measured, by name; the table shows the largest of all trials
    """

    name: str
    problem: str | None = None
    run: Path | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A group of trials.

    title:   what is done and when it passes, for people
    seconds: about how long the full case takes on two cores
    trials:  makes the trials; the flag asks for a few quick ones
    is_long: starts several processes with torchrun, each a new interpreter; quick runs leave it out
    """

    name: str
    title: str
    seconds: float
    trials: Callable[[Workshop, bool], Iterator[Trial]]
    is_long: bool = False


def first_problem(*problems: str | None) -> str | None:
    """The first of several answers that is not None."""
    return next((problem for problem in problems if problem), None)
