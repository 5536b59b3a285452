"""Quartiles against the standard library."""

import statistics

import pytest

from nmt.bench.statistics import Spread


def test_spread_equals_the_standard_library() -> None:
    samples = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    spread = Spread.of(samples)
    assert (spread.lower_quartile, spread.median, spread.upper_quartile) == pytest.approx((lower, median, upper))
    assert (spread.least, spread.most, spread.samples) == (1.0, 9.0, tuple(samples))
    assert Spread.of([2.0]).lower_quartile == 2.0
