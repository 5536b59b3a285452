"""Options that differ between runs."""

from pathlib import Path

from nmt.experiments.run_comparison import ComparedRun, difference_table
from nmt.recipe import parse_recipe
from tests.recipes import small_recipe


def test_options_without_effect_on_an_architecture_are_absent() -> None:
    data = 'train = [{ kind = "toy" }]\nvalid = [{ kind = "toy", split = "valid" }]'
    gru_options = [f"model.{option}=" for option in ("d_ff", "num_heads")] + ["model.architecture=gru"]
    transformer = parse_recipe(small_recipe(data))
    gru = parse_recipe(small_recipe(data), gru_options)
    table = difference_table([ComparedRun(name, Path(), recipe) for name, recipe in (("a", transformer), ("b", gru))])
    rows = {option: values for option, *values in table.rows}
    assert rows["model.architecture"] == ["transformer", "gru"]
    assert rows["model.d_ff"] == ["32", "-"]
    assert rows["model.attention"] == ["-", "additive"]
    assert "model.max_distance" not in rows
