"""Learning rate range test (Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3).

The rate rises exponentially from update to update, until the loss diverges. Rates at which the loss falls steeply are
good peak rates; at rates where the loss rises, training would diverge.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from nmt.data.prepare import Prepared
from nmt.logs import progress, warnings_only
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.trainer import build_trainer

# Losses are averaged with weights that decay exponentially with the distance in updates, to 1/e at this fraction of all
# updates. A mean then covers the same range of rates for every number of updates.
_SMOOTHED_FRACTION = 0.05
# Stop when the mean of the latest losses exceeds its minimum by this factor.
_DIVERGED = 1.5


@dataclass(frozen=True)
class RatePoint:
    """One update of the test.

    loss:     mean loss of the update in nats per target token, with label smoothing
    smoothed: mean of the losses around this update, exponentially weighted
    """

    learning_rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class RateRange:
    """Result of the test.

    steepest: rate at which the smoothed loss falls fastest with respect to log(rate)
    lowest:   rate with the lowest smoothed loss; higher rates diverge or no longer improve
    diverged: whether the loss diverged
    """

    points: tuple[RatePoint, ...]
    steepest: float
    lowest: float
    diverged: bool


def run_range_test(
    recipe: Recipe, prepared: Prepared, world: World, lowest: float, highest: float, updates: int
) -> RateRange:
    """Train with rates from `lowest` to `highest`, in a temporary directory and without the schedule of the recipe."""
    train = recipe.train.model_copy(update={"dropout_ramp_steps": 0, "subword_sampling": 0.0})
    losses: list[float] = []
    decay, total, weight, lowest_mean = _decay(updates), 0.0, 0.0, math.inf
    diverged = False
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe.model_copy(update={"run_dir": Path(folder), "train": train})
        with warnings_only():
            trainer = build_trainer(recipe, prepared, world)
        trainer.loss.train()
        rates = range_rates(lowest, highest, updates)
        trainer.updater.schedule = lambda step: rates[step - 1]
        with trainer.batches() as batches, progress("testing rates", updates, "updates") as bar:
            for _ in rates:
                update = next(batches)
                result = trainer.update(update)
                loss = float(world.sum(result.loss)) / update.tgt_tokens
                # In fp16, the first updates are skipped until the loss scale is low enough.
                if not math.isfinite(loss) or (bool(result.skipped) and trainer.updater.precision != "fp16"):
                    diverged = True
                    break
                losses.append(loss)
                bar.advance(1)
                total, weight = decay * total + loss, decay * weight + 1.0
                mean = total / weight
                lowest_mean = min(lowest_mean, mean)
                if mean > _DIVERGED * lowest_mean:
                    diverged = True
                    break
    smoothed = smooth(losses, updates)
    points = [RatePoint(*values) for values in zip(rates[: len(losses)], losses, smoothed, strict=True)]
    return summarize_range(points, diverged)


def smooth(losses: Sequence[float], updates: int) -> list[float]:
    """Return centered means of the losses, which do not lag behind. updates: planned number of updates

    A loss above the first one counts as the first: after a jump, it would raise the means before the jump.
    """
    factor, losses = _decay(updates), [min(loss, losses[0]) for loss in losses]

    def sums(values: Sequence[float]) -> list[float]:
        return list(accumulate(values, lambda total, value: factor * total + value))

    def sums_around(values: Sequence[float]) -> list[float]:
        sides = zip(sums(values), sums(values[::-1])[::-1], values, strict=True)
        return [before + after - value for before, after, value in sides]

    return [total / weight for total, weight in zip(sums_around(losses), sums_around([1.0] * len(losses)), strict=True)]


def _decay(updates: int) -> float:
    """Return the ratio of the weights of two consecutive losses in a mean."""
    return math.exp(-1 / (_SMOOTHED_FRACTION * updates))


def range_rates(lowest: float, highest: float, updates: int) -> list[float]:
    """Return rates in geometric progression, `(updates,)`."""
    return [lowest * (highest / lowest) ** (index / (updates - 1)) for index in range(updates)]


def summarize_range(points: Sequence[RatePoint], diverged: bool) -> RateRange:
    """Find the steepest descent before the minimum, and the minimum."""
    losses = [point.smoothed for point in points]
    minimum = min(range(len(losses)), key=losses.__getitem__, default=0)
    # Differences over a window, because the smoothed loss is still noisy.
    window = max(1, len(points) // 20)
    falls = {index: losses[index - window] - losses[index + window] for index in range(window, minimum - window + 1)}
    steepest = max(falls, key=falls.__getitem__, default=minimum)
    rates = [point.learning_rate for point in points] or [math.nan]
    return RateRange(tuple(points), rates[steepest], rates[minimum], diverged)
