"""Recipes: loading and writing."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.errors import RecipeError
from nmt.recipe import (
    DecodeRecipe,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    ParquetCorpus,
    Recipe,
    SacrebleuCorpus,
    SgmCorpus,
    TextCorpus,
    ToyCorpus,
    TsvCorpus,
    describe_recipe,
    dump_choices,
    dump_recipe,
    load_any_recipe,
    load_classification_recipe,
    load_recipe,
    parse_recipe,
)
from tests.recipe.small_recipe import SMALL

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))

# Every kind of translation corpus, optional options, and strings that need escapes in TOML.
FULL = (
    SMALL
    + r"""
[[data.train]]
kind = "text"
src = "a \"b\".en"
tgt = 'c\d.de.xz'
[[data.train]]
kind = "tsv"
path = "pairs.tsv"
src_column = 3
[[data.train]]
kind = "parquet"
path = "p.parquet"
src_field = "translation.en"
tgt_field = "translation.de"
[[data.train]]
kind = "jsonl"
path = "p.jsonl.gz"
src_field = "en"
tgt_field = "de"
[[data.train]]
kind = "huggingface"
dataset = "wmt/wmt14"
config = "de-en"
[data.test."news 1.2"]
kind = "sgm"
src = "n.sgm"
tgt = "r.sgm"
[data.test.several]
kind = "text"
src = "n.en"
tgt = ["r 0.de", "r1.de"]
[data.test.newstest]
kind = "sacrebleu"
test_set = "wmt14/full"
[tokenizer]
user_symbols = ["<2de>", "ä|\"'\\"]
[evaluate]
tokenize = "intl"
[train]
max_minutes = 12.5
max_epochs = 3
adam_betas = [0.8, 0.95]
learning_rate = 1e-7
"""
)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_packaged_recipes_load_and_have_the_name_of_their_file(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.data.test, "a recipe without a test set reports nothing"


def test_packaged_recipes_exist() -> None:
    pairs = {f"wmt14-en-{lang}-{size}" for lang in ("de", "fr") for size in ("base", "big")}
    others = {"quickstart", "multi30k-en-de", "multi30k-en-fr", "tatoeba-en-de", "tatoeba-en-lm", "iwslt14-de-en"}
    others |= {"general-en-de", "general-en-fr"}
    assert pairs | others <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("text", [SMALL, FULL, *(path.read_text(encoding="utf-8") for path in RECIPES)])
@pytest.mark.parametrize("write", [dump_recipe, dump_choices, describe_recipe])
def test_a_written_recipe_parses_to_the_same_recipe(text: str, write: Callable[[Recipe], str]) -> None:
    recipe = parse_recipe(text)
    written = write(recipe)
    again = parse_recipe(written)
    assert again == recipe
    assert write(again) == written


def test_the_kind_of_a_corpus_selects_its_section() -> None:
    data = parse_recipe(FULL).data
    kinds = [ToyCorpus, TextCorpus, TsvCorpus, ParquetCorpus, JsonLinesCorpus, HuggingFaceCorpus]
    assert [type(corpus) for corpus in data.train] == kinds
    assert [type(corpus) for corpus in data.test.values()] == [SgmCorpus, TextCorpus, SacrebleuCorpus]
    assert data.train[1] == TextCorpus(src=Path('a "b".en'), tgt=Path("c\\d.de.xz"))
    assert list(data.test) == ["news 1.2", "several", "newstest"]


def test_dump_recipe_includes_defaults() -> None:
    tree = tomllib.loads(dump_recipe(parse_recipe(SMALL)))
    assert tree["train"]["warmup_steps"] == 4_000
    assert tree["model"]["tied_embeddings"] == "three-way"
    assert set(tree) == {*Recipe.model_fields} - {"run_dir"}  # TOML cannot represent None


def test_dump_choices_omits_defaults() -> None:
    tree = tomllib.loads(dump_choices(parse_recipe(SMALL, ["model.d_ff=99", "decode.beam_size=4"])))
    assert tree["model"] == {"d_ff": 99}
    assert "decode" not in tree  # 4 is the default


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.glossary_markup=0.1", "decode.glossary_mode=constrain"],
        ["train.glossary_markup=0.1"],
        ["train.guided_alignment=true"],
        ["model.num_encoder_heads=4"],
    ],
)
def test_dumped_choices_restore_the_recipe(overrides: list[str]) -> None:
    recipe = parse_recipe(SMALL, overrides)
    assert parse_recipe(dump_choices(recipe)) == recipe


def test_dumped_choices_of_fine_tuning_do_not_depend_on_the_start_model() -> None:
    recipe = parse_recipe(SMALL, ["train.start_from=runs/a", "model.dropout=0.1"])  # the initial model may have another
    assert "dropout" in parse_recipe(dump_choices(recipe)).model.model_fields_set


def test_defaults_are_the_papers_base_model() -> None:
    recipe = parse_recipe(SMALL)
    paper = {
        "model": {"num_encoder_layers": 6, "num_decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8}
        | {"dropout": 0.1, "attention_dropout": 0.0, "activation": "relu", "norm_order": "post"},
        "train": {"max_steps": 100_000, "batch_tokens": 25_000, "label_smoothing": 0.1, "average_count": 5}
        | {
            "adam_betas": (0.9, 0.98),
            "adam_epsilon": 1e-9,
            "schedule": "noam",
            "learning_rate": 1,
            "warmup_steps": 4_000,
        },
        "decode": {"beam_size": 4, "length_penalty": "gnmt", "length_alpha": 0.6, "max_extra_tokens": 50},
    }
    for section, options_of_paper in paper.items():
        defaults = getattr(recipe, section).model_dump()
        assert {name: defaults[name] for name in options_of_paper} == options_of_paper


def test_a_byte_order_mark_and_windows_line_endings_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_recipe(path) == parse_recipe(SMALL)


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.stem.startswith("wmt14")], ids=lambda path: path.stem
)
def test_commented_corpora_of_local_files_are_valid(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    before, hub, rest = re.split(r"(?m)^(?=\[\[data\.train\]\]|# To use local files)", text, maxsplit=2)
    assert "huggingface" in hub
    offered = re.sub(r"(?m)^#( (?=\[|\w+ = )|$)", "", rest)
    corpora = parse_recipe(before + offered).data.train
    assert len(corpora) == (3 if "-de-" in path.stem else 5)
    assert all(isinstance(corpus, TextCorpus) for corpus in corpora)
    assert parse_recipe(before + offered).data.root == Path("data/wmt14")


def test_run_dir_sets_the_directories_of_a_run() -> None:
    assert parse_recipe(SMALL).directory == Path("runs/small")
    assert parse_recipe(SMALL, ["run_dir=elsewhere"]).data_directory == Path("elsewhere/data")


def test_a_leading_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "data.test.t={kind='text',src='~/a',tgt=['~/b','c']}"
    recipe = parse_recipe(SMALL, ["run_dir=~/runs/a", "data.root=~", "train.start_from=b/~", text])
    assert (recipe.directory, recipe.data.root) == (tmp_path / "runs" / "a", tmp_path)
    assert recipe.train.start_from == Path("b/~")
    test = recipe.data.test["t"]
    assert isinstance(test, TextCorpus)
    assert (test.src, test.references) == (tmp_path / "a", (tmp_path / "b", Path("c")))
    assert TextCorpus(src="~/a", tgt=("~/b", "c")) == test  # a tuple, as in Python


def test_d_head_sets_the_head_width() -> None:
    default = parse_recipe(SMALL).model
    assert default.head_width == 512 // 8  # d_model // num_heads
    assert parse_recipe(SMALL, ["model.d_head=64"]).model == default
    assert parse_recipe(SMALL, ["model.d_head=20", "model.num_heads=7"]).model.head_width == 20


def test_recipes_are_frozen() -> None:
    recipe = parse_recipe(SMALL)
    options = [(recipe, "seed"), (recipe.train, "max_steps"), (recipe.data, "none"), (DecodeRecipe(), "tag")]
    for section, name in options:
        with pytest.raises(AttributeError, match=f"^{type(section).__name__}.{name} cannot be assigned; .*overrides$"):
            setattr(section, name, 1)


@pytest.mark.parametrize("name", ["quickstart", Path("quickstart")])
def test_recipes_that_come_with_nmt_are_loaded_by_name(
    name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_recipe(name, ["train.max_steps=3"]).train.max_steps == 3
    (tmp_path / "quickstart").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_recipe(name).name == "quickstart"


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    missing, broken, latin = tmp_path / "none.toml", tmp_path / "broken.toml", tmp_path / "latin.toml"
    broken.write_text("[train\n")
    latin.write_bytes('name = "ä"'.encode("latin-1"))
    with pytest.raises(
        RecipeError, match=r"^cannot read recipe .*none\.toml: No such file or directory; give a TOML file"
    ):
        load_recipe(missing)
    with pytest.raises(RecipeError, match=r"^cannot read recipe .*: Is a directory; give a TOML file"):
        load_recipe(tmp_path)
    with pytest.raises(RecipeError, match=r"broken\.toml is not valid TOML: .*\(at line 1, column 7\); fix that line$"):
        load_recipe(broken)
    with pytest.raises(RecipeError, match=r"latin\.toml is not UTF-8 text; save it as UTF-8$"):
        load_recipe(latin)


def test_the_error_for_the_directory_of_a_run_names_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(RecipeError, match=re.escape(f"Is a directory; give {tmp_path / 'recipe.toml'}, or a name")):
        load_recipe(tmp_path)


def test_load_any_recipe_recognizes_a_classifier_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "topics.toml"
    path.write_text('name = "topics"\n[data]\ntrain = [{ kind = "tsv", path = "t" }]\n')
    assert load_any_recipe(path) == load_classification_recipe(path)
    with pytest.raises(RecipeError, match=r"option 'tgt_lang' is missing"):
        load_any_recipe(path, ["src_lang=en"])


def test_load_any_recipe_loads_translation_recipes(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    assert load_any_recipe(path) == parse_recipe(SMALL)
