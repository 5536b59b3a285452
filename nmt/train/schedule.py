"""Learning rate and dropout as pure functions of the update number."""

from __future__ import annotations

import math
from typing import assert_never

from nmt.recipe import TrainRecipe

# Levels of dropout before the full one: few, since what is compiled is compiled for each.
_DROPOUT_LEVELS = 4


def learning_rate(recipe: TrainRecipe, d_model: int, step: int) -> float:
    """The rate of update `step`, counted from 1.

    `noam` is Vaswani et al. 2017, equation 3, times `learning_rate`; the others warm up linearly to `learning_rate`
    and then decay: `inverse-sqrt` as sqrt(warmup / step); `cosine` and `linear` to `final_rate_ratio` at `max_steps`.
    Behind `schedule_start` updates are counted from there.
    """
    warmup = max(recipe.warmup_steps, 1)
    if step > recipe.schedule_start:
        step -= recipe.schedule_start
    if recipe.schedule == "noam":
        return recipe.learning_rate / math.sqrt(d_model) * min(1 / math.sqrt(step), step / (warmup * math.sqrt(warmup)))
    if step < warmup:
        return recipe.learning_rate * step / warmup
    match recipe.schedule:
        case "inverse-sqrt":
            return recipe.learning_rate * math.sqrt(warmup / step)
        case "cosine":
            return recipe.learning_rate * _between(
                recipe, (1 + math.cos(math.pi * _progress(recipe, warmup, step))) / 2
            )
        case "linear":
            return recipe.learning_rate * _between(recipe, 1 - _progress(recipe, warmup, step))
        case "constant":
            return recipe.learning_rate
        case _:
            assert_never(recipe.schedule)


def dropout_scale(recipe: TrainRecipe, step: int) -> float:
    """How much of its full probability dropout has at update `step`, counted from 1: from 0 to 1, by quarters.

    A model that has learned little fits too little, and dropout holds it back (Liu et al. 2023, "Dropout Reduces
    Underfitting"); it is wanted once the model begins to learn by heart (Morerio et al. 2017, "Curriculum Dropout").
    """
    if step > recipe.dropout_ramp_steps:
        return 1.0
    return (step - 1) * _DROPOUT_LEVELS // recipe.dropout_ramp_steps / _DROPOUT_LEVELS


def _progress(recipe: TrainRecipe, warmup: int, step: int) -> float:
    """Share of the way from the end of warm-up to the last update."""
    return min(1.0, (step - warmup) / max(1, recipe.max_steps - recipe.schedule_start - warmup))


def _between(recipe: TrainRecipe, share: float) -> float:
    """From the final ratio at share 0 to 1 at share 1."""
    return recipe.final_rate_ratio + (1 - recipe.final_rate_ratio) * share
