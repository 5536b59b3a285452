"""Learning rate and dropout schedules, as pure functions of the update number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from nmt.logs import counted
from nmt.recipe import TrainRecipe

# Number of increases in dropout from 0 to its full value: few, because the training step is compiled for each level.
_DROPOUT_INCREASES = 4
_MIN_DECAYED = 0.9  # fraction of a schedule after which its rate is low


def learning_rate(recipe: TrainRecipe, d_model: int, step: int) -> float:
    """Return the learning rate of update `step`, counted from 1.

    `noam` is equation 3 of Vaswani et al. 2017 times `learning_rate`. The others warm up linearly to `learning_rate`.
    Then `inverse-sqrt` decays as sqrt(warmup / step), and `cosine` and `linear` decay to `final_rate_ratio` times
    `learning_rate` at `max_steps`. `constant` and `plateau` stay constant here; `TrainState.rate_factor` has the
    reductions of `plateau`. At `schedule_start` one schedule ends and another starts, which counts its own updates.
    """
    warmup = max(recipe.warmup_steps, 1)
    last = recipe.schedule_start
    if step > recipe.schedule_start:
        step -= recipe.schedule_start
        last = recipe.max_steps - recipe.schedule_start
    if recipe.schedule == "noam":
        return recipe.learning_rate / math.sqrt(d_model) * min(1 / math.sqrt(step), step / (warmup * math.sqrt(warmup)))
    if step < warmup:
        return recipe.learning_rate * step / warmup
    progress = min(1.0, (step - warmup) / max(1, last - warmup))
    final = recipe.final_rate_ratio
    match recipe.schedule:
        case "inverse-sqrt":
            return recipe.learning_rate * math.sqrt(warmup / step)
        case "cosine":
            return recipe.learning_rate * (final + (1 - final) * ((1 + math.cos(math.pi * progress)) / 2))
        case "linear":
            return recipe.learning_rate * (final + (1 - final) * (1 - progress))
        case "constant" | "plateau":
            return recipe.learning_rate
        case _:
            assert_never(recipe.schedule)


def schedule_problems(recipe: TrainRecipe, last: int) -> Iterator[str]:
    """Yield warnings about options that have no effect, or only in part, if training ends at update `last`."""
    updates = last - recipe.schedule_start if last > recipe.schedule_start else last
    if recipe.warmup_steps > updates:
        yield (
            f"train.warmup_steps is {recipe.warmup_steps:,}, but the schedule has {counted(updates, 'update')}; the "
            "learning rate does not reach its peak; lower warmup_steps"
        )
    elif recipe.schedule in ("cosine", "linear") and last < _MIN_DECAYED * recipe.max_steps:
        yield (
            f"the learning rate decays until update {recipe.max_steps:,} (train.max_steps), but training ends after "
            f"about {last:,} updates (train.max_epochs), at a high rate; set max_steps to about {last}"
        )
    if recipe.validate_bleu_every > last and recipe.best_metric != "bleu":
        yield (
            f"train.validate_bleu_every is {recipe.validate_bleu_every:,}, but training ends after {last:,} updates, "
            "without validation BLEU; lower it"
        )
    # The first validation is an improvement.
    if recipe.patience > 0 and (first := (recipe.patience + 1) * recipe.validate_every) >= last:
        yield (
            f"train.patience is {recipe.patience:,}, which can end training after {first:,} updates at the earliest, "
            f"but there are {last:,}; lower patience or train.validate_every"
        )


def dropout_scale(recipe: TrainRecipe, step: int) -> float:
    """Return the fraction of the dropout probability at update `step`, counted from 1: 0 to 1 in quarters.

    Early in training there is no overfitting to prevent (Morerio et al. 2017, "Curriculum Dropout"; compare the late
    dropout of Liu et al. 2023, "Dropout Reduces Underfitting").
    """
    if step > recipe.dropout_ramp_steps:
        return 1.0
    return (step - 1) * _DROPOUT_INCREASES // recipe.dropout_ramp_steps / _DROPOUT_INCREASES
