"""Speed ratios with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmt.errors import UserError
from nmt.evaluate.student_t import half_width


@dataclass(frozen=True)
class Ratio:
    """A speed ratio with its confidence interval."""

    ratio: float
    low: float
    high: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the geometric mean of ours / theirs, with Student's 95% interval of the mean log ratio.

    The two measurements of a pair are made back to back, which cancels changes in machine speed. Raises UserError for
    fewer than two pairs.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise UserError(f"an interval needs at least two pairs of measurements, got {len(ours)} and {len(theirs)}")
    logs = np.log(np.asarray(ours, dtype=np.float64)) - np.log(np.asarray(theirs, dtype=np.float64))
    mean, half = float(logs.mean()), half_width(logs)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
