"""Models by published name, recipe and directory."""

from pathlib import Path

import pytest

from nmt.bench.model_specs import find_model_spec
from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.errors import RecipeError, UserError
from nmt.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["base", "big"])
def test_models_of_the_paper_equal_the_wmt14_recipes(name: str) -> None:
    spec, recipe = find_model_spec(name), load_recipe(ROOT / f"recipes/wmt14-en-de-{name}.toml")
    assert spec.recipe.model == recipe.model
    assert spec.recipe.train.batch_tokens == recipe.train.batch_tokens
    assert spec.src_vocab_size == spec.tgt_vocab_size == recipe.tokenizer.vocab_size


def test_tiny_is_the_model_of_wu_et_al() -> None:
    model = find_model_spec("tiny").recipe.model
    assert (model.num_encoder_layers, model.num_decoder_layers, model.d_model, model.d_ff, model.num_heads) == (
        (4, 4, 128, 256, 4)
    )


def test_options_and_vocabulary_can_be_overridden() -> None:
    spec = find_model_spec("base", ["train.precision=bf16", "model.num_decoder_layers=2"], vocab_size=8_000)
    assert spec.recipe.train.precision == "bf16"
    assert spec.recipe.model.num_decoder_layers == 2
    assert (spec.src_vocab_size, spec.tgt_vocab_size) == (8_000, 8_000)
    with pytest.raises(RecipeError, match=r"unknown option 'train.presicion'; did you mean 'precision'"):
        find_model_spec("base", ["train.presicion=bf16"])


def test_recipe_and_model_directory_are_used_unchanged(tmp_path: Path) -> None:
    path = ROOT / "recipes/multi30k-en-de.toml"
    spec = find_model_spec(str(path), ["train.max_steps=7"])
    assert spec.recipe == load_recipe(path, ["train.max_steps=7"])
    assert spec.tgt_vocab_size == spec.recipe.tokenizer.vocab_size
    in_bytes = find_model_spec(str(path), ["tokenizer.algorithm=byte"])
    assert (in_bytes.src_vocab_size, in_bytes.tgt_vocab_size) == (261, 261)
    overrides = ["model.d_model=16", "model.d_ff=8", "model.num_heads=2", "model.activation=swish"]
    overrides += ["model.max_positions=64", "data.max_tokens=20"]
    recipe = find_model_spec("tiny", overrides).recipe
    write_random_model(tmp_path / "model", recipe, numbered_word_tokenizers(40))
    found = find_model_spec(str(tmp_path / "model"))
    assert found.recipe.model == recipe.model
    assert (found.src_vocab_size, found.tgt_vocab_size, found.recipe.data.max_tokens) == (40, 40, 20)


@pytest.mark.slow
def test_the_directory_of_a_language_model_loads_as_a_language_model(tmp_path: Path) -> None:
    recipe = find_model_spec("tiny", ["model.d_model=16", "model.d_ff=8", "model.num_heads=2"]).recipe
    for language in ("zxx", "en"):
        write_random_model(
            tmp_path / language, recipe.model_copy(update={"src_lang": language}), numbered_word_tokenizers(40)
        )
        assert find_model_spec(str(tmp_path / language)).recipe.is_language_model == (language == "zxx")


def test_fine_tuning_recipe_has_the_architecture_of_its_initial_model(tmp_path: Path) -> None:
    initial = find_model_spec("tiny", ["model.d_model=16", "model.d_ff=8", "model.num_heads=2"]).recipe
    write_random_model(tmp_path / "initial", initial, numbered_word_tokenizers(40))
    path = tmp_path / "tuned.toml"
    corpora = 'data = { train = [{ kind = "toy" }], valid = [{ kind = "toy" }] }'
    path.write_text(f'name = "tuned"\nsrc_lang = "en"\ntgt_lang = "de"\n{corpora}\n')
    found = find_model_spec(str(path), [f"train.start_from={tmp_path / 'initial'}"])
    assert (found.recipe.model, found.tgt_vocab_size) == (initial.model, 40)


def test_packaged_recipes_are_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_recipe(ROOT / "recipes/multi30k-en-de.toml", ["train.max_steps=7"])
    assert find_model_spec("multi30k-en-de", ["train.max_steps=7"]).recipe == expected
    monkeypatch.chdir(tmp_path)
    (tmp_path / "multi30k-en-de").mkdir()
    with pytest.raises(UserError, match="has no model"):
        find_model_spec("multi30k-en-de")


def test_unknown_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown model 'huge'; it must be tiny, base, big, a recipe"):
        find_model_spec("huge")
    with pytest.raises(UserError, match="has no model"):
        find_model_spec(str(tmp_path))
