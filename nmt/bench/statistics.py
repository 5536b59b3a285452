"""What several measurements say: their middle and spread, and whether one thing is faster than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from nmt.recipe import UserError

# Steps of the numerical integral of Student's density: exact to seven digits, more than a confidence interval needs.
_STEPS = 200_000


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing: all of them, and their order statistics (quartiles interpolated linearly)."""

    samples: tuple[float, ...]
    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of at least one measurement."""
        assert samples, "nothing was measured"
        least, lower, median, upper, most = (float(q) for q in np.quantile(samples, (0.0, 0.25, 0.5, 0.75, 1.0)))
        return cls(tuple(map(float, samples)), median, lower, upper, least, most)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one thing is as another, with a confidence interval from `low` to `high`."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1; only then is one of the two faster."""
        return self.low > 1 or self.high < 1


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95) -> Ratio:
    """The geometric mean of ours / theirs, measured in turn, and Student's interval around the mean of its logarithm.

    Pair i was measured right after one another, so what slows the machine for a while slows both. Raises UserError for
    fewer than two pairs, of which nothing can be said.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise UserError(
            f"{len(ours)} and {len(theirs)} measurements; there must be at least two pairs; measure several rounds"
        )
    logs = np.log(np.asarray(ours, dtype=np.float64)) - np.log(np.asarray(theirs, dtype=np.float64))
    half = student_quantile(confidence, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    mean = float(logs.mean())
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@cache
def student_quantile(confidence: float, degrees: int) -> float:
    """The t within which the share `confidence` of Student's distribution lies, on both sides of 0.

    With t = sqrt(degrees) tan(angle), its density becomes cos(angle)^(degrees - 1), which is integrated numerically.
    """
    angles = np.linspace(0.0, math.pi / 2, _STEPS + 1)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(float(np.interp(confidence, mass / mass[-1], angles)))
