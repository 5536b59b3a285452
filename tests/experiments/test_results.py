"""Tables of the results of a sweep."""

import math

import pytest

from nmt.experiments.intervals import Estimate
from nmt.experiments.results import TestResult, VariantResult, result_tables


@pytest.mark.parametrize(
    ("half_width", "verdict"), [(math.nan, ""), (0.5, "significant"), (2.0, "significant"), (2.5, "not significant")]
)
def test_significance_is_unknown_without_an_interval(half_width: float, verdict: str) -> None:
    mean, difference = Estimate(30.0, half_width), Estimate(2.1, half_width)
    variants = tuple(
        VariantResult(name, 1_000, (1,), (None,), (30.0,), math.nan, mean, found)
        for name, found in (("base", None), ("other", difference))
    )
    (table,) = result_tables([TestResult("news", "bleu", "BLEU|...", variants)])
    assert [row[-1] for row in table.rows] == ["", verdict]


def test_the_title_says_that_lower_is_better() -> None:
    titles = [table.title for table in result_tables([TestResult("news", name, "", ()) for name in ("bleu", "ter")])]
    assert titles == ["news: bleu", "news: ter (lower is better)"]
