"""Quantiles of Student's t distribution, and confidence intervals of means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Beyond these degrees of freedom, t and normal quantiles agree to five digits.
_NORMAL_DEGREES = 1e5


@cache
def student_t_quantile(confidence: float, degrees: float) -> float:
    """Return the t for which [-t, t] has probability `confidence`, for `degrees` >= 1 degrees of freedom.

    With t = sqrt(degrees) tan(angle), the density is proportional to cos(angle)^(degrees - 1), which is integrated
    numerically.
    """
    if degrees > _NORMAL_DEGREES:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    # The density is concentrated near 0 for many degrees of freedom.
    limit = min(math.pi / 2, 40 / math.sqrt(degrees)) if degrees > 100 else math.pi / 2
    angles = np.linspace(0.0, limit, 5_001)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp(confidence, mass / mass[-1], angles))
    return math.sqrt(degrees) * math.tan(angle)


def half_width(samples: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the half width of the 95% confidence interval of the mean of two or more independent samples."""
    deviation = float(np.std(samples, ddof=1))
    return student_t_quantile(0.95, len(samples) - 1) * deviation / math.sqrt(len(samples))
