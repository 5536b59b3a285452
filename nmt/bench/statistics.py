"""Statistics of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Repeated measurements with their order statistics; quartiles are linearly interpolated."""

    samples: tuple[float, ...]
    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarize at least one measurement."""
        assert samples, "no measurements"
        least, lower, median, upper, most = (float(q) for q in np.quantile(samples, (0.0, 0.25, 0.5, 0.75, 1.0)))
        return cls(tuple(map(float, samples)), median, lower, upper, least, most)
