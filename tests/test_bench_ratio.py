"""Intervals of speed ratios: values computed by hand, and coverage."""

import math

import numpy as np
import pytest
from bench.ratio import paired_ratio

from nmt.errors import UserError

T_QUANTILE = 4.3027  # 0.975 quantile of Student's t with 2 degrees of freedom


def test_ratio_equals_the_hand_computed_one() -> None:
    logs = [0.1, 0.3, 0.2]  # mean 0.2, standard deviation 0.1
    ratio = paired_ratio([10 * math.exp(log) for log in logs], [10.0, 10.0, 10.0])
    half = T_QUANTILE * 0.1 / math.sqrt(3)
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx(
        (math.exp(0.2), math.exp(0.2 - half), math.exp(0.2 + half)), rel=1e-4
    )


def test_interval_ignores_load_common_to_a_pair() -> None:
    load = [1.0, 0.3, 0.8, 0.5, 0.9]
    ratio = paired_ratio([2 * value for value in load], load)
    assert (ratio.low, ratio.high) == pytest.approx((2.0, 2.0))


def test_interval_has_its_nominal_coverage() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    noise = rng.normal(0.0, 0.1, (4_000, 5))
    covered = 0
    for row in noise:
        ratio = paired_ratio((1.3 * np.exp(row)).tolist(), [1.0] * 5)
        covered += ratio.low <= 1.3 <= ratio.high
    assert covered / len(noise) == pytest.approx(0.95, abs=0.012)


def test_fewer_than_two_pairs_are_an_error() -> None:
    with pytest.raises(UserError, match="at least two pairs"):
        paired_ratio([1.0], [2.0])
    with pytest.raises(UserError, match="at least two pairs"):
        paired_ratio([1.0, 2.0, 3.0], [2.0, 2.0])
