"""Quantiles of Student's t against published tables."""

import math
from statistics import NormalDist

import pytest

from nmt.evaluate.student_t import student_t_quantile


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.95, 10, 2.2281),
        (0.95, 30, 2.0423),
        (0.95, 1000, 1.9623),
        (0.95, 1e6, 1.9600),
        (0.95, math.inf, 1.9600),
        (0.99, 5, 4.0321),
    ],
)
def test_quantiles_equal_published_tables(confidence: float, degrees: float, t: float) -> None:
    assert student_t_quantile(confidence, degrees) == pytest.approx(t, abs=1e-4)


def test_many_degrees_approach_the_normal_distribution() -> None:
    assert student_t_quantile(0.9, 99_999) == pytest.approx(NormalDist().inv_cdf(0.95), abs=1e-4)
