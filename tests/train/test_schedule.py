"""Schedules, compared with the paper and with their formulas."""

import math

import pytest

from nmt.recipe import TrainRecipe
from nmt.train.schedule import dropout_scale, learning_rate, schedule_problems


def recipe(**changes: object) -> TrainRecipe:
    return TrainRecipe.model_validate(changes)


def test_the_papers_schedule_peaks_at_warmup_with_the_papers_rate() -> None:
    base = recipe()
    rates = {step: learning_rate(base, 512, step) for step in (1, 100, 3_999, 4_000, 4_001, 16_000, 100_000)}
    for step, rate in rates.items():
        assert rate == pytest.approx(512**-0.5 * min(step**-0.5, step * 4_000**-1.5), rel=1e-12)
    assert max(rates, key=rates.__getitem__) == 4_000
    assert rates[4_000] == pytest.approx(7.0e-4, rel=2e-3)
    assert rates[16_000] == pytest.approx(rates[4_000] / 2, rel=1e-12)


@pytest.mark.parametrize("warmup", [1, 20])
def test_noam_with_a_short_warmup(warmup: int) -> None:
    """With `d_model` 1, the inverse-square-root schedule of Sockeye."""
    for step in range(1, 11):
        expected = min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(recipe(warmup_steps=warmup), 1, step) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["inverse-sqrt", "cosine", "linear", "constant", "plateau"])
def test_every_other_schedule_warms_up_linearly_to_its_peak(name: str) -> None:
    train = recipe(schedule=name, learning_rate=0.003, warmup_steps=10, max_steps=110)
    assert [learning_rate(train, 512, step) for step in range(1, 11)] == pytest.approx(
        [0.003 * step / 10 for step in range(1, 11)]
    )


def test_values_of_decays() -> None:
    def rate(name: str, step: int, **more: object) -> float:
        return learning_rate(
            recipe(schedule=name, learning_rate=1.0, warmup_steps=10, max_steps=110, **more), 512, step
        )

    assert rate("inverse-sqrt", 40) == pytest.approx(math.sqrt(10 / 40))
    assert rate("linear", 60) == pytest.approx(0.5)
    assert rate("cosine", 60) == pytest.approx(0.5)
    assert rate("cosine", 35) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert rate("linear", 110) == rate("cosine", 110) == pytest.approx(0.0, abs=1e-12)
    for name in ("linear", "cosine"):
        assert [rate(name, step, final_rate_ratio=0.2) for step in (10, 60, 110)] == pytest.approx([1.0, 0.6, 0.2])
    assert rate("linear", 500) == pytest.approx(0.0, abs=1e-12)
    assert rate("constant", 110) == 1.0


def test_no_warmup_starts_at_the_peak() -> None:
    assert learning_rate(recipe(schedule="linear", learning_rate=1.0, warmup_steps=0, max_steps=11), 8, 1) == 1.0


def test_dropout_scale() -> None:
    assert [dropout_scale(recipe(), step) for step in (1, 2, 100_000)] == [1.0, 1.0, 1.0]
    ramp = recipe(dropout_ramp_steps=8)
    scales = [dropout_scale(ramp, step) for step in range(1, 11)]
    assert scales == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0]
    uneven = [dropout_scale(recipe(dropout_ramp_steps=3), step) for step in range(1, 5)]
    assert uneven == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse-sqrt", "noam", "constant", "plateau"])
def test_a_restarted_schedule_is_that_of_two_runs(schedule: str) -> None:
    options = {"schedule": schedule, "warmup_steps": 10, "learning_rate": 0.005}
    whole = recipe(**options, max_steps=300, schedule_start=100)
    first, second = recipe(**options, max_steps=100), recipe(**options, max_steps=200)
    assert [learning_rate(whole, 64, step) for step in range(1, 301)] == [
        *(learning_rate(first, 64, step) for step in range(1, 101)),
        *(learning_rate(second, 64, step) for step in range(1, 201)),
    ]


def test_a_warm_up_that_outlasts_training_is_a_warning() -> None:
    assert not list(
        schedule_problems(recipe(warmup_steps=100, max_steps=100, validate_every=100, validate_bleu_every=100), 100)
    )
    expected = "train.warmup_steps is 1,001, but the schedule has 1,000 updates; the learning rate does not"
    (problem,) = schedule_problems(recipe(warmup_steps=1_001, max_steps=1_000), 1_000)
    assert problem.startswith(expected)
    restarted = recipe(warmup_steps=100, max_steps=150, schedule_start=100)
    assert "the schedule has 50 updates" in next(schedule_problems(restarted, 150))
    assert "the schedule has 60 updates" in next(schedule_problems(restarted, 60)), "training ends before the restart"


def test_training_that_ends_before_the_first_validation_bleu_is_a_warning() -> None:
    never = recipe(warmup_steps=1, max_steps=12, validate_every=100, validate_bleu_every=100)
    (problem,) = schedule_problems(never, 12)
    assert not list(schedule_problems(never.model_copy(update={"best_metric": "bleu"}), 12)), "the last update has BLEU"
    assert problem == (
        "train.validate_bleu_every is 100, but training ends after 12 updates, without validation BLEU; lower it"
    )


def test_a_patience_that_training_never_reaches_is_a_warning() -> None:
    options = {"warmup_steps": 1, "validate_every": 10, "patience": 9}
    assert not list(schedule_problems(recipe(**options, max_steps=101), 101))
    (problem,) = schedule_problems(recipe(**options, max_steps=100), 100)
    assert problem == (
        "train.patience is 9, which can end training after 100 updates at the earliest, but there are 100; lower "
        "patience or train.validate_every"
    )


def test_a_decay_that_outlasts_training_is_a_warning() -> None:
    expected = (
        "the learning rate decays until update 1,000 (train.max_steps), but training ends after about 80 "
        "updates (train.max_epochs), at a high rate; set max_steps to about 80"
    )
    for schedule, problems in (("cosine", [expected]), ("linear", [expected]), ("inverse-sqrt", []), ("noam", [])):
        options = recipe(schedule=schedule, learning_rate=0.01, warmup_steps=80, max_steps=1_000)
        assert list(schedule_problems(options, 80)) == problems
        assert list(schedule_problems(options, 900)) == []
