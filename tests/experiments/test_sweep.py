"""Runs of a sweep, from options and from files."""

from pathlib import Path

import pytest

from nmt.cli.arguments import find_recipe
from nmt.errors import RecipeError
from nmt.experiments.sweep import is_sweep, load_sweep, make_sweep
from nmt.recipe import load_recipe
from nmt.recipe.packaged import packaged_recipes

RECIPE = """
name = "tiny"
src_lang = "en"
tgt_lang = "de"
seed = 7
[data]
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 20 }]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return tmp_path / "tiny.toml"


def test_all_combinations_run_with_each_seed_in_turn(recipe: Path, tmp_path: Path) -> None:
    sweep = make_sweep(recipe, 2, ["train.max_steps=9"], ["model.num_heads=2,4"])
    runs = sweep.runs(tmp_path)
    assert [(run.number, run.name) for run in runs] == [
        (1, "num_heads=2, seed 7"),
        (2, "num_heads=4, seed 7"),
        (3, "num_heads=2, seed 8"),
        (4, "num_heads=4, seed 8"),
    ]
    assert [run.recipe.model.num_heads for run in runs] == [2, 4, 2, 4]
    assert {run.recipe.train.max_steps for run in runs} == {9}
    assert runs[3].recipe.directory == tmp_path / "num_heads=4" / "seed-8"
    grid = make_sweep(recipe, 1, (), ["model.num_heads=2,4", "model.d_ff=64, 128"])
    assert list(grid.variants) == [
        "num_heads=2 d_ff=64",
        "num_heads=2 d_ff=128",
        "num_heads=4 d_ff=64",
        "num_heads=4 d_ff=128",
    ]


def test_an_empty_first_value_stands_for_the_default(recipe: Path, tmp_path: Path) -> None:
    runs = make_sweep(recipe, 1, ("model.d_head=4",), ["train.max_minutes=,5"]).runs(tmp_path)
    assert {run.variant: run.recipe.train.max_minutes for run in runs} == {
        "max_minutes=default": None,
        "max_minutes=5": 5,
    }
    for text in ("model.d_head=", "model.d_head=8,"):
        with pytest.raises(RecipeError, match="it must be KEY=A,B with different values"):
            make_sweep(recipe, 1, (), [text])


def test_recipe_without_variants_is_repeated(recipe: Path, tmp_path: Path) -> None:
    runs = make_sweep(recipe, 3, (), ()).runs(tmp_path)
    assert [run.name for run in runs] == ["tiny, seed 7", "tiny, seed 8", "tiny, seed 9"]


def test_commas_in_brackets_and_quotes_do_not_separate_values(recipe: Path) -> None:
    sweep = make_sweep(recipe, 1, (), ["evaluate.metrics=['bleu', 'chrf'],['ter']", "name='a,b',c"])
    first, *_, last = sweep.variants.values()
    assert first == ("evaluate.metrics=['bleu', 'chrf']", "name='a,b'")
    assert last == ("evaluate.metrics=['ter']", "name=c")
    sweep = make_sweep(recipe, 1, (), ["train={max_steps=2, adam_betas=[0.9, 0.9]},{max_steps=3, save_every=1}"])
    first, last = sweep.variants.values()
    assert first == ("train={max_steps=2, adam_betas=[0.9, 0.9]}",)
    assert last == ("train={max_steps=3, save_every=1}",)


@pytest.mark.parametrize(
    ("varied", "reason"),
    [
        (["model.num_heads"], "--vary model.num_heads: it must be KEY=A,B"),
        (["=1,2"], "--vary =1,2: it must be KEY=A,B"),
        (["seed=1,,2"], "it must be KEY=A,B with different values"),
        (["seed=1,1"], "it must be KEY=A,B with different values"),
        (["seed=1", "seed=2"], "--vary seed is given twice; give all its values at once"),
    ],
)
def test_malformed_vary_options_are_an_error(recipe: Path, varied: list[str], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        make_sweep(recipe, 1, (), varied)


def test_error_of_a_variant_has_its_name(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"variant num_head=4: .*did you mean .*num_heads"):
        make_sweep(recipe, 1, (), ["model.num_head=4"]).runs(tmp_path)
    with pytest.raises(RecipeError, match=r"variant num_heads=7: .*must be"):
        make_sweep(recipe, 1, (), ["model.num_heads=8,7"]).runs(tmp_path)
    with pytest.raises(RecipeError, match=r"^unknown option 'model.num_head'"):
        make_sweep(recipe, 1, ("model.num_head=4",), ()).runs(tmp_path)


def test_seeds_start_at_an_override_and_run_dir_is_rejected(recipe: Path, tmp_path: Path) -> None:
    runs = make_sweep(recipe, 2, ("seed = 3", "train.max_steps=5"), ()).runs(tmp_path / "out")
    assert [run.recipe.seed for run in runs] == [3, 4]
    assert [run.recipe.directory.name for run in runs] == ["seed-3", "seed-4"]
    assert runs[0].overrides == ("train.max_steps=5", "seed=3", f"run_dir={tmp_path / 'out' / 'tiny' / 'seed-3'}")
    for overrides, varied in ((("run_dir=x",), []), ((), ["run_dir=x,y"])):
        with pytest.raises(RecipeError, match=r"run_dir cannot be set; .* choose the parent directory with -o"):
            make_sweep(recipe, 1, overrides, varied).runs(tmp_path)


def test_variants_with_equal_options_are_an_error(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"variants dropout=0.1 and dropout=1e-1 have the same options; correct or"):
        make_sweep(recipe, 1, (), ["model.dropout=0.1,1e-1"]).runs(tmp_path)
    with pytest.raises(RecipeError, match="variants name=a and name=b have the same options"):
        make_sweep(recipe, 1, (), ["name=a,b"]).runs(tmp_path)


@pytest.mark.parametrize("name", ["table3-wmt14", "table3-multi30k"])
def test_packaged_recipes_change_the_options_of_table_3(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(packaged_recipes("sweeps")[name], find_recipe, 1, ())
    runs = {run.variant: run.recipe for run in sweep.runs(tmp_path)}
    base = runs["base"].model
    assert {"base", "A", "B", "C", "D", "E", "big"} <= {label.split()[0] for label in runs}
    for label, recipe in runs.items():
        model = recipe.model
        if label.startswith("A"):
            assert model.num_heads * model.head_width == base.d_model  # same FLOPs
            assert model.num_heads != base.num_heads
        elif label.startswith("B"):
            assert model.head_width < base.head_width and model.num_heads == base.num_heads
        elif label.startswith("C d_model"):
            assert model.head_width * base.d_model == base.head_width * model.d_model
    assert len({recipe.model_dump_json(exclude={"run_dir"}) for recipe in runs.values()}) == len(runs)


SWEEP = """
recipe = "tiny.toml"
seeds = 2
overrides = ["model.d_ff=64", "train.max_steps=5"]
[variants]
base = []
"B: 2 heads" = ["model.num_heads=2", "train.max_steps=8"]
"""


def test_a_sweep_file_sets_variants_seeds_and_overrides(recipe: Path, tmp_path: Path) -> None:
    path = recipe.with_name("sweep.toml")
    path.write_text(SWEEP)
    assert is_sweep(path) and not is_sweep(recipe) and not is_sweep(tmp_path / "nothing.toml")
    with pytest.raises(RecipeError, match=r"sweep.toml is a sweep; it must be a recipe; use nmt repeat$"):
        load_recipe(path, ["model.d_ff=128"])
    runs = load_sweep(path, Path, None, ["model.d_ff=128"]).runs(tmp_path / "out")
    assert [run.name for run in runs] == [
        "base, seed 7",
        "B: 2 heads, seed 7",
        "base, seed 8",
        "B: 2 heads, seed 8",
    ]
    assert runs[1].recipe.directory == tmp_path / "out" / "B-2-heads" / "seed-7"
    assert {run.recipe.model.d_ff for run in runs} == {128}  # the command line takes precedence over the file
    assert [run.recipe.train.max_steps for run in runs] == [5, 8, 5, 8]  # a variant takes precedence over both
    assert len(load_sweep(path, Path, 1, ()).runs(tmp_path)) == 2


def test_a_variant_with_its_own_seed_is_rejected(recipe: Path, tmp_path: Path) -> None:
    path = recipe.with_name("sweep.toml")
    path.write_text('recipe = "tiny.toml"\n[variants]\nbase = []\nx = ["seed = 5"]\n')
    with pytest.raises(RecipeError, match=r"^variant x sets seed; all variants have the same seeds; remove it"):
        load_sweep(path, Path, None, ()).runs(tmp_path / "out")


def test_an_override_that_variants_replace_is_reported(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recipe.with_name("sweep.toml")
    path.write_text(SWEEP)
    load_sweep(path, Path, None, ["train.max_steps=3"])
    warning = "train.max_steps=3 does not apply to variants that set train.max_steps themselves: B: 2 heads"
    assert warning in capsys.readouterr().err
    path.write_text(SWEEP.replace("base = []", 'base = ["train.max_steps=7"]'))
    with pytest.raises(RecipeError, match=r"^train.max_steps=3 has no effect, because every variant sets train.max_s"):
        load_sweep(path, Path, None, ["train.max_steps=3"])
    with pytest.raises(RecipeError, match=r"^model.d_ff=9 has no effect, because every variant sets model.d_ff; leave"):
        make_sweep(recipe, 1, ["model.d_ff=9"], ["model.d_ff=2,4"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('recipe = "tiny.toml"\n[variants]\n', "variants = {}; "),
        ('recipe = "tiny.toml"\nseed = 1\n[variants]\nbase = []\n', "unknown option 'seed'; did you mean 'seeds'"),
        ('recipe = "tiny.toml"\nseeds = 0\n[variants]\nbase = []\n', "seeds = 0; it must be greater than 0; "),
        ("[variants]\nbase = []\n", "option 'recipe' is missing; "),
        ('recipe = "tiny.toml"\n[variant]\nbase = []\n', ".*option 'variants' is missing; "),
        (
            'recipe = "tiny.toml"\n[variants]\nbase = "model.d_ff=64"\n',
            "variants.base = 'model.d_ff=64'; it must be a valid list; ",
        ),
    ],
)
def test_malformed_sweep_file_is_an_error(recipe: Path, text: str, reason: str) -> None:
    path = recipe.with_name("sweep.toml")
    path.write_text(text)
    assert is_sweep(path)
    with pytest.raises(RecipeError, match=rf"sweep\.toml: {reason}.*a sweep has recipe, seeds, overrides"):
        load_sweep(path, Path, None, ())


def test_variant_names_must_have_different_directory_names(recipe: Path, tmp_path: Path) -> None:
    path = recipe.with_name("sweep.toml")
    path.write_text('recipe = "tiny.toml"\n[variants]\n"a b" = []\n"A-B" = []\n')
    with pytest.raises(RecipeError, match="map to the same directory name; rename one"):
        load_sweep(path, Path, None, ()).runs(tmp_path)
