"""Options and kinds of corpora that were renamed or removed."""

import re
from pathlib import Path

import pytest

from nmt.errors import RecipeError
from nmt.recipe import DecodeRecipe, dump_recipe, load_recipe, load_saved_recipe, override_decode, parse_recipe
from tests.recipe.small_recipe import SMALL, message_for

RENAMED = [
    ("train.recompute", "true", "train.activation_checkpointing", True),
    ("decode.num_groups", "2", "decode.beam_groups", 2),
    ("decode.diversity_strength", "0.75", "decode.diversity_penalty", 0.75),
    ("decode.bayes_risk", '"chrf"', "decode.mbr_metric", "chrf"),
    ("decode.alignment_place", '"input"', "decode.alignment_at", "input"),
]


@pytest.mark.parametrize(("old", "value", "new", "expected"), RENAMED)
def test_renamed_options_load_from_saved_recipes_and_are_errors_elsewhere(
    old: str, value: str, new: str, expected: object, tmp_path: Path
) -> None:
    section, key = old.split(".")
    path = tmp_path / "recipe.toml"
    path.write_text(f"{SMALL}[{section}]\n{key} = {value}\n")
    options = getattr(load_saved_recipe(path), section)
    assert getattr(options, new.removeprefix(f"{section}.")) == expected
    message = f"unknown option '{old}'; it is now '{new}'; use that name"
    assert message_for(path.read_text()) == f"recipe: {message}"
    assert message_for(SMALL, f"{old}={value}") == message
    if section == "decode":
        with pytest.raises(RecipeError, match=f"^{re.escape(message)}$"):
            override_decode(DecodeRecipe(), [f"{key}={value}"])


def test_corpora_of_a_renamed_kind_load_from_saved_recipes_and_are_errors_elsewhere(tmp_path: Path) -> None:
    current = SMALL + '[data.test.held_out]\nkind = "toy"\nsplit = "test"\n'
    former = current.replace('"toy"', '"embedded"')
    path = tmp_path / "recipe.toml"
    path.write_text(former)
    assert load_saved_recipe(path) == parse_recipe(current)
    assert "kind is 'embedded', which no longer exists; use 'toy'" in message_for(former)
    for damaged in ("[data]\ntrain = 3", '[data]\ntrain = ["embedded"]', "[data]\ntest = 3", "data = 3"):
        path.write_text(damaged)
        with pytest.raises(RecipeError, match=r"^[^\n]*;[^\n]*;[^\n]*$"):
            load_saved_recipe(path)


def test_removed_options_load_from_saved_recipes_and_are_errors_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for value in ("0.0", "0.2"):
        path.write_text(dump_recipe(parse_recipe(SMALL)).replace("[decode]", f"[decode]\ncoverage_penalty = {value}"))
        assert load_saved_recipe(path) == parse_recipe(SMALL)
        with pytest.raises(RecipeError, match="the coverage penalty was removed"):
            load_recipe(path)
    for damaged in ("decode = 3", "name = ", "[decode]\nx = 1"):
        path.write_text(damaged)
        with pytest.raises(RecipeError, match=r"^[^\n]*;[^\n]*;[^\n]*$"):
            load_saved_recipe(path)
