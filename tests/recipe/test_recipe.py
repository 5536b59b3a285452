"""Recipes: loading, overrides, writing, error messages and documentation."""

import pydoc
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nmt import recipe as recipe_package
from nmt.errors import RecipeError, UserError
from nmt.recipe import (
    DecodeRecipe,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    ModelRecipe,
    ParquetCorpus,
    Recipe,
    SacrebleuCorpus,
    Section,
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
    load_saved_recipe,
    override_decode,
    override_own_decode,
    overrides_by_name,
    parse_recipe,
)
from nmt.recipe.corpora import CORPUS_KINDS, CorpusOptions
from nmt.recipe.documentation import option_documentation
from nmt.recipe.reference import option_reference

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))
SECTIONS = [item for item in vars(recipe_package).values() if isinstance(item, type) and issubclass(item, Section)]

SMALL = """\
name = "small"
src_lang = "en"
tgt_lang = "de"

[[data.train]]
kind = "toy"

[[data.valid]]
kind = "toy"
split = "valid"
"""

RATIO = "data.max_length_ratio=2"

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


def message_for(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, overrides)
    assert isinstance(error.value, UserError)
    message = str(error.value)
    assert "\n" not in message
    return message


# --- Reading and writing ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["wmt14/full", "../x", ""])
def test_the_name_of_a_test_set_must_be_a_file_name(name: str) -> None:
    text = SMALL + f'[data.test."{name}"]\nkind = "toy"\n'
    assert f"data.test has a set {name!r}; a name must be a file name without '/'" in message_for(text)


def test_the_name_of_a_test_set_fits_a_file_name() -> None:
    longest = "ä" * 110
    assert list(parse_recipe(SMALL + f'[data.test."{longest}"]\nkind = "toy"\n').data.test) == [longest]
    expected = "data.test has a set whose name has 221 bytes; its translations are written to a file of this name"
    assert expected in message_for(SMALL + f'[data.test."{longest}x"]\nkind = "toy"\n')


@pytest.mark.parametrize("overrides", ["seed=1", [1], ("seed=1", None), iter(["seed=1"]), {"seed=1"}])
def test_overrides_must_be_a_list_of_strings(overrides: Any) -> None:
    with pytest.raises(TypeError, match=r"overrides must be a list of strings, such as \['train.max_steps"):
        parse_recipe(SMALL, overrides)


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


def test_d_head_sets_the_head_width() -> None:
    default = parse_recipe(SMALL).model
    assert default.head_width == 512 // 8  # d_model // num_heads
    assert parse_recipe(SMALL, ["model.d_head=64"]).model == default
    assert parse_recipe(SMALL, ["model.d_head=20", "model.num_heads=7"]).model.head_width == 20


@pytest.mark.parametrize(
    ("section", "options", "expected"),
    [
        (DecodeRecipe, {"beam_size": 0}, "beam_size = 0; it must be greater than 0"),
        (DecodeRecipe, {"beam_size": 100_000}, "beam_size = 100000; it must be less than or equal to 5000"),
        (DecodeRecipe, {"n_best": 100_000, "sampling": True}, "n_best = 100000; it must be less than or equal to 5000"),
        (DecodeRecipe, {"bean_size": 4}, "unknown option 'bean_size'; did you mean 'beam_size'?"),
        (
            DecodeRecipe,
            {"n_best": 9, "beam_size": 4},
            "decode.n_best is 9; it must be at most decode.beam_size (4); increase beam_size",
        ),
        (ModelRecipe, {"d_model": "wide"}, "d_model = 'wide'; it must be an integer"),
        (TextCorpus, {"src": 1, "tgt": "x"}, "src = 1; it must be "),
    ],
)
def test_sections_in_python_have_one_line_errors(
    section: type[Section], options: dict[str, object], expected: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        section(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tag", ["<s>", "<0x41>"])
def test_a_tag_that_is_a_special_token_names_its_option(tag: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"data.train.0.tag: {tag!r} is a special token or a byte token")):
        parse_recipe(SMALL, [f"data.train=[{{kind='toy', tag='{tag}'}}]"])


def test_recipes_are_frozen() -> None:
    recipe = parse_recipe(SMALL)
    options = [(recipe, "seed"), (recipe.train, "max_steps"), (recipe.data, "none"), (DecodeRecipe(), "tag")]
    for section, name in options:
        with pytest.raises(AttributeError, match=f"^{type(section).__name__}.{name} cannot be assigned; .*overrides$"):
            setattr(section, name, 1)


# --- Overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.max_steps=7", 7),
        ("train.max_steps = 7", 7),
        ("train.max_steps=1_000", 1000),
        ("train.learning_rate=5e-4", 5e-4),
        ("train.learning_rate=2", 2.0),
        ("train.compile=true", True),
        ("data.drop_duplicates=false", False),
        ("train.schedule=inverse-sqrt", "inverse-sqrt"),
        ('train.schedule="cosine"', "cosine"),
        ("train.device=cuda:0", "cuda:0"),
        ("train.adam_betas=[0.8, 0.9]", (0.8, 0.9)),
        ("train.max_minutes=2.5", 2.5),
        ("run_dir=some folder/x", Path("some folder/x")),
        ("run_dir = some folder/x ", Path("some folder/x")),
        ("train.start_from=../elsewhere", Path("../elsewhere")),
        ("decode.shortlist=some list", Path("some list")),
        ("decode.shortlist=", None),
        ('evaluate.metrics=["chrf++", "ter"]', ("chrf++", "ter")),
        ("tgt_lang=fr", "fr"),
        ('data.valid=[{kind = "sacrebleu", test_set = "wmt13"}]', (SacrebleuCorpus(test_set="wmt13"),)),
        ('data.test.new={kind = "toy", pairs = 5}', {"new": ToyCorpus(pairs=5)}),
    ],
)
def test_override_values_have_the_type_of_their_option(override: str, expected: object) -> None:
    value: object = parse_recipe(SMALL, [override])
    for name in override.partition("=")[0].strip().replace("data.test.new", "data.test").split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("override", "phrase"),
    [
        ("bias.bicycle=1", "bicycle"),
        ("decode.bias.bicycle = 1", "bicycle"),
        ("bias.Dr. Smith=1", "Dr. Smith"),
        ('bias."Dr. Smith"=1', "Dr. Smith"),
        ("bias.'Dr. \"S.\"' = 1", 'Dr. "S."'),
        ("bias.E=mc2=1", "E=mc2"),
        ('bias." = "=1', " = "),
    ],
)
def test_an_override_sets_the_bias_of_one_phrase(override: str, phrase: str) -> None:
    before = DecodeRecipe(bias={"a": 2.0})
    assert override_decode(before, [override]).bias == {"a": 2.0, phrase: 1.0}
    whole = override if override.startswith("decode.") else f"decode.{override}"
    assert parse_recipe(SMALL, [whole]).decode.bias == {phrase: 1.0}


EXTENDED = (
    SMALL
    + """
[train]
max_minutes = 2.0
max_steps = 7
[decode.bias]
a = 1.0
b = 2.0
"""
)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.max_minutes=", None),
        ("train.max_steps= ", 100_000),
        ("run_dir=", None),
        ("train.start_from=", None),
        ("decode.bias=", {}),
        ("decode.tag=", None),
    ],
)
def test_an_empty_override_restores_the_default(override: str, expected: object) -> None:
    value: object = parse_recipe(EXTENDED, [override])
    for name in override.partition("=")[0].split("."):
        value = getattr(value, name)
    assert value == expected


def test_an_empty_override_removes_one_entry() -> None:
    assert parse_recipe(EXTENDED, ["decode.bias.a="]).decode.bias == {"b": 2.0}
    assert override_decode(DecodeRecipe(beam_size=9), ["beam_size="]).beam_size == 4


def test_overrides_add_missing_sections() -> None:
    recipe = parse_recipe(SMALL, ["seed=3", "decode.beam_size=9"])
    assert (recipe.seed, recipe.decode.beam_size) == (3, 9)


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        (["seed=3", "train.max_steps=5", "seed = 3"], "seed"),
        (["train.max_steps=5", "train.max_steps=6"], "train.max_steps"),
        (["decode.bias.a b=1", "decode.bias.'a b'=2"], "decode.bias.a b"),
    ],
)
def test_repeated_override_is_an_error(overrides: list[str], option: str) -> None:
    expected = f"override {overrides[-1]!r}: {option} is given twice; remove one"
    assert message_for(SMALL, *overrides) == expected
    if option.startswith("decode."):
        with pytest.raises(RecipeError, match="is given twice"):
            override_decode(DecodeRecipe(), [overrides[0], overrides[-1].removeprefix("decode.")])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.max_steps", "override 'train.max_steps' has no value; it must have the form train.max_steps=1000"),
        ("=5", "override '=5' has no name; it must have the form train.max_steps=1000"),
        ("run_dir=m\udcff", "override 'run_dir=m\udcff' is not UTF-8, in which recipes are saved; rename the file or "),
        ("name.x=5", "override 'name.x=5': 'name' is not a section; run `nmt config` to see the options"),
        ("data.train.0.weight=2", "override 'data.train.0.weight=2': 'train' is a list; an override cannot change one"),
        ("train.max_step=", "unknown option 'train.max_step'; did you mean 'max_steps'?"),
        ("data.test.nosuch=", "data.test.nosuch = ''; it must be a table"),
        ("src_lang=", "option 'src_lang' is missing; set it"),
        ("train.max_step=5", "unknown option 'train.max_step'; did you mean 'max_steps'?"),
        ("train.lr=1", "unknown option 'train.lr'; did you mean 'learning_rate'?"),
        ("lr=1", "unknown option 'lr'; did you mean 'train.learning_rate'?"),
        ("max_steps=1", "unknown option 'max_steps'; did you mean 'train.max_steps'?"),
        ("train.beam_size=1", "unknown option 'train.beam_size'; did you mean 'decode.beam_size'?"),
        ("data.test.t={kind='text',lr=1}", "option 'data.test.t.src' is missing"),
        ("train.max_steps=many", "train.max_steps = 'many'; it must be an integer"),
        ("train.max_steps=1.5", "train.max_steps = 1.5; it must be an integer"),
        ("train.compile=maybe", "train.compile = 'maybe'; it must be true or false"),
        ("train.learning_rate=[]", "train.learning_rate = []; it must be a number"),
        ("data.root=7", "data.root = 7; it must be text in quotes"),
        ("train.average_count=true", "train.average_count = 'true'; it must be an integer"),
        ("train.learning_rate=false", "train.learning_rate = 'false'; it must be a number"),
        ("train.micro_batch_tokens=true", "train.micro_batch_tokens = 'true'; it must be an integer or "),
        ("train.micro_batch_tokens=-4", "train.micro_batch_tokens = -4; it must be greater than 0 or 'auto'"),
        ("train.threads=2_000", "train.threads = 2000; it must be less than or equal to 1024"),
        ("data.workers=2_000", "data.workers = 2000; it must be less than or equal to 1024"),
        ("train.freeze=encoder", "train.freeze = 'encoder'; it must be a list in brackets"),
        ("train.adam_betas=[0.9,0.9,0.9]", "train.adam_betas = [0.9, 0.9, 0.9]; it must have at most 2 items"),
        ("seed=9223372036854775808", "seed = 9223372036854775808; it must be less than 9223372036854775808"),
        ("train=3", "train = 3; it must be a section of options"),
        ("decode.bias=3", "decode.bias = 3; it must be a table such as { name = value }"),
        ("decode.bias.a=true", "decode.bias.a = 'true'; it must be a number"),
        ("decode.alignment_heads=[true]", "decode.alignment_heads.0 = 'true'; it must be an integer"),
        ("decode.bias={a='x'}", "decode.bias.a = 'x'; it must be a number"),
        ("decode.bias.Dr. Smith=x", "decode.bias.Dr. Smith = 'x'; it must be a number"),
        ('decode.bias."Dr. Smith"=x', "decode.bias.Dr. Smith = 'x'; it must be a number"),
        ("decode.bias.Dr. Smith", "override 'decode.bias.Dr. Smith' has no value; it must have the form"),
        ('decode.bias."Dr. =1', "override 'decode.bias.\"Dr. =1': \"Dr. is not a quoted string of TOML"),
        (" =1", "override ' =1' has no name; it must have the form train.max_steps=1000"),
        (
            "data.test.x={kind='jsonl', path='a', src_field='e', tgt_field='d', label_field=''}",
            "data.test.x.label_field = ''; it must have at least 1 character",
        ),
        ("data.train=[]", "data.train = []; it must have 1 or more items"),
        ('run_dir=""', "run_dir = ''; it must be a path that is not empty"),
        ('train.start_from=""', "train.start_from = ''; it must be a path that is not empty"),
        ("data.train=[{kind='text',src='',tgt='b'}]", "data.train.0.src = ''; it must be a path that is not empty"),
        ('name="a/b"', "name = 'a/b'; it must be letters, digits, '.', '_' and '-', starting"),
        ("tgt_lang=zh-CN", "tgt_lang = 'zh-CN'; it must be an ISO 639 code of two or three lowercase letters without"),
        (
            'data.train=[{kind="text",src="a",tgt="b",tag="web"}]',
            "data.train.0.tag = 'web'; it must be a word in angle",
        ),
    ],
)
def test_invalid_overrides_are_errors(override: str, message: str) -> None:
    assert message_for(SMALL, override).startswith(message)


def test_an_override_that_replaces_earlier_ones_is_an_error() -> None:
    expected = "override 'train={max_epochs=2}' replaces train.max_steps, which comes before it; give train first"
    assert message_for(SMALL, "train.max_steps=5", "train={max_epochs=2}") == expected
    train = parse_recipe(SMALL, ["train={max_epochs=2}", "train.max_steps=5"]).train
    assert (train.max_epochs, train.max_steps) == (2, 5)


def test_overrides_may_name_phrases_that_begin_with_each_other() -> None:
    bias = {"Dr. Smith": 2.0, "Dr": 1.0}
    assert parse_recipe(SMALL, [f"decode.bias.{phrase}={value}" for phrase, value in bias.items()]).decode.bias == bias
    expected = "override 'decode.bias={a=1}' replaces decode.bias.Dr. Smith, which comes before it; give decode.bias"
    assert message_for(SMALL, "decode.bias.Dr. Smith=1", "decode.bias={a=1}").startswith(expected)


def test_consequences_of_another_error_are_not_reported() -> None:
    expected = "data.train.0 = 3; it must be a table such as { name = value }"
    assert message_for(SMALL, "data.train=[3]") == expected  # no second error for the empty list


def test_only_errors_in_the_recipe_name_it() -> None:
    wrong = SMALL + "[train]\nmax_step = 1"
    assert message_for(wrong, "seed=x", "decode.lr=1", "train.batch_tokens=1") == (
        "seed = 'x'; it must be an integer | unknown option 'decode.lr'; did you mean 'train.learning_rate'? "
        "| recipe: unknown option 'train.max_step'; did you mean 'max_steps'?"
    )


def test_errors_that_overrides_cause_elsewhere_do_not_name_the_recipe() -> None:
    test = '[data.test.news]\nkind = "text"\nsrc = "a"\ntgt = "b"\n'
    assert message_for(SMALL + test, "data.test.news.kind=tsv").startswith("option 'data.test.news.path' is missing;")
    assert message_for(SMALL, "evaluate.lowercase=true").endswith("did you mean 'tokenizer.lowercase'?")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("decode.x=1", "unknown option 'decode.x'; known options: beam_size, length_penalty,"),
        (
            "coverage_penalty=0.2",
            "unknown option 'decode.coverage_penalty'; the coverage penalty was removed because it lowers BLEU; remove",
        ),
        ("decode.beam_siz=1", "unknown option 'decode.beam_siz'; did you mean 'beam_size'?"),
        ("beam_siz=1", "unknown option 'decode.beam_siz'; did you mean 'beam_size'?"),
        ("sampling", "override 'sampling' has no value; it must have the form beam_size=8"),
        ("beam_size.x=1", "override 'beam_size.x=1': 'beam_size' is not a section;"),
        ("n_best=5", "decode.n_best is 5; it must be at most decode.beam_size (4); increase beam_size"),
    ],
)
def test_invalid_overrides_of_decode_are_errors(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"^{re.escape(message)}"):
        override_decode(DecodeRecipe(), [override])


@pytest.mark.parametrize("override", ["beam_size=9", "decode.beam_size=9", " decode.beam_size = 9"])
def test_override_decode_accepts_names_with_and_without_section(override: str) -> None:
    before = DecodeRecipe(n_best=2)
    assert override_decode(before, [override]) == before.model_copy(update={"beam_size": 9})
    assert overrides_by_name([override]).keys() == {"beam_size"}


@pytest.mark.parametrize(
    ("override", "n_best"), [("mbr_metric=none", 1), ("mbr_metric=", 1), ("mbr_metric='bleu'", 3), ("n_best=2", 2)]
)
def test_own_n_best_is_only_the_number_of_candidates_for_mbr(override: str, n_best: int) -> None:
    own = DecodeRecipe(mbr_metric="chrf", n_best=3, alignments=True)
    decode = override_own_decode(own, [override])
    assert (decode.n_best, decode.alignments) == (n_best, False)


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


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("[trian]\nmax_steps = 1", "recipe: unknown option 'trian'; did you mean 'train'?"),
        ("[train]\nmax_step = 1", "recipe: unknown option 'train.max_step'; did you mean 'max_steps'?"),
        ("[model]\nxyzzy = 1", "recipe: unknown option 'model.xyzzy'; known options: architecture, d_model, d_ff,"),
        (
            "[data.test.t]\nkind = 'text'\nsrc = 'a'\ntgt = 'b'\nsource = 'c'",
            "recipe: unknown option 'data.test.t.source'; did you mean 'src'?",
        ),
        ("[data.test.t]\nkind = 'text'\nsrc = 'a'", "recipe: option 'data.test.t.tgt' is missing; set it"),
        (
            "[data.test.t]\nkind = 'txt'",
            "recipe: data.test.t.kind is 'txt'; it must be one of text, tsv, sgm, tmx, parquet, jsonl, hugging",
        ),
        (
            "[data.test.t]\nkind = 'embedded'",
            "recipe: data.test.t.kind is 'embedded', which no longer exists; use 'toy'",
        ),
        ("[data.test.t]\nkind = ['text']", "recipe: data.test.t.kind is ['text']; it must be one of text, tsv,"),
        (
            "[data.test.t]\nkind = 'text'\nsrc = 'a'\ntgt = 3",
            "recipe: data.test.t.tgt = 3; it must be text in quotes or a list in brackets",
        ),
        (
            "[data.test.t]\nkind = 'text'\nsrc = 'a'\ntgt = []",
            "recipe: data.test.t.tgt = []; it must be text in quotes or have 1 or more items",
        ),
        (
            "[evaluate]\ntokenize = 'mecab'",
            "recipe: evaluate.tokenize = 'mecab'; it must be '13a', 'intl', 'zh', 'ja-mecab', 'ko-mecab',",
        ),
        ("[[data.valid]]\npath = 'x'", "recipe: data.valid.1.kind is None; it must be one of text, tsv,"),
        (
            "[model]\nactivation = 'rule'",
            "recipe: model.activation = 'rule'; it must be 'relu', 'gelu', 'swish' or 'swiglu'",
        ),
        ("[model]\ndropout = 1.0", "recipe: model.dropout = 1.0; it must be less than 1"),
        ("[train]\nmax_steps = 0", "recipe: train.max_steps = 0; it must be greater than 0"),
        ("[train]\nlearning_rate = inf", "recipe: train.learning_rate = inf; it must be a finite number"),
        ("[train]\nadam_betas = [0.9]", "recipe: option 'train.adam_betas.1' is missing; set it"),
    ],
)
def test_errors_name_file_and_option(addition: str, message: str) -> None:
    assert message_for(SMALL + addition).startswith(message)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.num_heads=7"], "model.d_model is 512; it must be a multiple of model.num_heads (7); try 504"),
        (["model.num_heads=1000"], "model.d_model is 512; it must be a multiple of model.num_heads (1000); try 1000"),
        (
            ["model.max_distance=4"],
            "model.max_distance has no effect on sinusoidal positions; set model.positions to 'relative', or "
            "remove model.max_distance",
        ),
        (
            ["model.architecture=gru", "model.num_heads=4"],
            "model.num_heads has no effect on architecture 'gru'; set model.architecture to 'transformer', or "
            "remove model.num_heads",
        ),
        (
            ["model.attention=multiplicative"],
            "model.attention has no effect on architecture 'transformer'; set model.architecture to 'gru', or "
            "remove model.attention",
        ),
        (["model.architecture=gru", "model.d_model=9"], "model.d_model is 9; it must be even, half for each direction"),
        (
            ["model.architecture=gru", "train.compile=true"],
            "train.compile is true; architecture 'gru' runs in torch's own kernels, which are not compiled; set "
            "train.compile to false",
        ),
        (
            ["model.architecture=gru", "train.shapes=fixed"],
            "train.shapes is 'fixed', which architecture 'gru' does not support; set it to 'auto'",
        ),
        (
            ["model.architecture=gru", "decode.alignment_layer=1"],
            "decode.alignment_layer is 1; the decoder has layers 0 to 0; choose one of them",
        ),
        (
            ["model.positions=rotary", "model.d_head=5"],
            "model.positions is 'rotary', but the head dimension is 5; it must be even, because features are rotated "
            "in pairs; set model.d_head to 6",
        ),
        (["model.d_model=33", "model.num_heads=1"], "model.d_model is 33; it must be even, half sine and half cosine"),
        (
            ["model.num_decoder_layers=2", "decode.alignment_layer=9"],
            "decode.alignment_layer is 9; the decoder has layers 0 to 1; choose one of them",
        ),
        (
            ["decode.alignment_heads=[0, 8]"],
            "decode.alignment_heads names head 8; layers have heads 0 to 7; choose from these",
        ),
        (
            ["decode.alignment_heads=[0, 1, 0]"],
            "decode.alignment_heads names head 0 twice; a head counts once; remove one",
        ),
        (
            ["train.final_rate_ratio=0.1"],
            "train.final_rate_ratio has no effect on this schedule; set train.schedule to",
        ),
        (["train.plateau_patience=5"], "train.plateau_patience has no effect on this schedule; set train.schedule to"),
        (
            ["train.validate_bleu_sentences=100"],
            "train.validate_bleu_sentences has no effect without validation BLEU; set train.validate_bleu_every, or",
        ),
        (
            ["train.subword_sampling_sides=src"],
            "train.subword_sampling_sides has no effect without sampled segmentations; set train.subword_sampling, or",
        ),
        (
            ["train.subword_sampling=0.1", "tokenizer.algorithm=char"],
            "train.subword_sampling has no effect on characters or bytes; set tokenizer.algorithm to 'bpe' or",
        ),
        (
            ["train.subword_sampling=0.1", "tokenizer.joint=false", "data.train=[{kind='trees', path='a.mrg'}]"],
            "train.subword_sampling has no effect on trees, which have a token per bracket; set train.subword_",
        ),
        (
            ["tokenizer.algorithm=byte", "tokenizer.character_coverage=0.99"],
            "tokenizer.character_coverage has no effect on bytes, which cover all characters; set tokenizer.algorithm",
        ),
        (
            ["tokenizer.algorithm=byte", "tokenizer.training_pairs=10"],
            "tokenizer.training_pairs has no effect on bytes, which need no training; set tokenizer.algorithm to",
        ),
        (
            ["train.average=ema", "train.ema_decay=0.9", "train.average_count=3"],
            "train.average_count has no effect on the EMA;",
        ),
        (["train.start_optimizer=kept"], "train.start_optimizer has no effect without a checkpoint; set train.start_f"),
        (
            ["train.rdrop=5", "model.dropout=0"],
            "train.rdrop has no effect without dropout; set model.dropout, or remove train.rdrop",
        ),
        (
            ["data.temperature=5"],
            "data.temperature has no effect on a single training corpus; add another corpus, or remove data.temp",
        ),
        (["data.root=new"], "data.root has no effect, because no corpus has a relative path; name files relative"),
        (
            ["data.root=new", "data.train=[{kind='text', src='/data/a', tgt='/data/b'}]"],
            "data.root has no effect, because no corpus has a relative path;",
        ),
        (
            ["data.train=[{kind='toy', weight=2.0}]"],
            "data.train.0.weight has no effect on a single training corpus; add another corpus, or remove "
            "data.train.0.weight",
        ),
        (
            ["data.train=[{kind='toy', alignment='links'}]"],
            "data.train.0.alignment has no effect without guided alignment or glossary markup; set",
        ),
        (
            ["evaluate.metrics=['chrf']", "evaluate.tokenize=intl"],
            "evaluate.tokenize has no effect without metric 'bleu'; add 'bleu' to evaluate.metrics, or remove "
            "evaluate.tokenize",
        ),
        (["evaluate.metrics=[]"], "evaluate.metrics is empty; it must name at least one metric, such as 'bleu'"),
        (
            ["tokenizer.user_symbols=['<web>', 'New York']"],
            "tokenizer.user_symbols has 'New York'; a symbol must have characters and no white space; correct or",
        ),
        (
            ["tokenizer.user_symbols=['x\u200by']"],
            r"tokenizer.user_symbols has 'x\u200by', but normalized text has no '\u200b'; remove this character",
        ),
        *(
            (
                [f"tokenizer.user_symbols=['{symbol}']"],
                f"tokenizer.user_symbols has {symbol!r}, which is a special token",
            )
            for symbol in ("<pad>", "</s>", "<0xAB>")
        ),
        (["tokenizer.user_symbols=['a', 'b', 'a']"], "tokenizer.user_symbols has 'a' twice; symbols must be distinct;"),
        (["tokenizer.user_symbols=['']"], "tokenizer.user_symbols has ''; a symbol must have characters and no white"),
        (
            ["tokenizer.user_symbols=['\u2460']", "data.unicode_form=NFKC"],
            "tokenizer.user_symbols has '\u2460', which data.unicode_form (NFKC) changes to '1'; write it in that form",
        ),
        (["evaluate.metrics=['ter', 'bleu', 'ter']"], "evaluate.metrics names 'ter' twice; remove one"),
        (["evaluate.resamples=1"], "evaluate.resamples is 1, which gives no interval; it must be 0 or at least 2"),
        (["decode.mbr_metric=chrf"], "decode.mbr_metric has no effect without n_best above 1; change that, or remove"),
        (["decode.beam_size=1", "decode.stop=exact"], "decode.stop has no effect without a beam (beam_size above 1);"),
        (["decode.diversity_penalty=1"], "decode.diversity_penalty has no effect without beam_groups above 1; change"),
        (["decode.sampling_seed=3"], "decode.sampling_seed has no effect without sampling=true; change that"),
        (
            [
                "src_lang=zxx",
                *(f"data.{split}=[{{kind='monolingual', path='a'}}]" for split in ("train", "valid")),
                RATIO,
            ],
            "data.max_length_ratio has no effect on a language model, which has no source; set src_lang, or "
            "remove data.max_length_ratio",
        ),
        (
            [
                "src_lang=zxx",
                *(f"data.{split}=[{{kind='monolingual', path='a'}}]" for split in ("train", "valid")),
                "decode.split_sentences=true",
            ],
            "decode.split_sentences has no effect on a language model, which has no source; set src_lang, or",
        ),
        (["train.weight_decay=0.1"], "train.weight_decay needs decoupled decay; set train.optimizer to 'adamw'"),
        (
            ["data.valid=[{kind='toy', split='valid', weight=2.0}]"],
            "data.valid.0.weight has no effect; only training corpora use it; remove data.valid.0.weight",
        ),
        (
            ["data.test={news={kind='toy', split='test', tag='<web>'}}"],
            "data.test.news.tag is '<web>'; it must be the tag of a training corpus; add it to a corpus, or correct it",
        ),
        (
            ["data.valid=[{kind='tsv', path='a', label_column=2}]"],
            "data.valid.0.label_column has no effect; only test sets have labels; remove data.valid.0.label_column",
        ),
        (
            ["data.train=[{kind='jsonl', path='a', src_field='en', tgt_field='de', label_field='domain'}]"],
            "data.train.0.label_field has no effect; only test sets have labels; remove data.train.0.label_field",
        ),
        (
            ["data.valid=[{kind='text', src='a', tgt=['b']}]"],
            "data.valid.0.tgt is a list of 1; only test sets have several references; give one file",
        ),
        (
            ["data.train=[{kind='sgm', src='a', tgt=['b', 'c']}]"],
            "data.train.0.tgt is a list of 2; only test sets have several references; give one file",
        ),
        (
            ["decode.temperature=0.5"],
            "decode.temperature has no effect on beam search; set decode.sampling to true",
        ),
        (["decode.top_k=5"], "decode.top_k has no effect on beam search"),
        (["decode.top_p=0.5"], "decode.top_p has no effect on beam search"),
        (["decode.sampling=true", "decode.temperature=1e-300"], "decode.temperature = 1e-300; it must be greater than"),
        (["decode.sampling=true", "decode.temperature=1e300"], "decode.temperature = 1e+300; it must be less than"),
        (["decode.min_p=0.5"], "decode.min_p has no effect on beam search"),
        (["train.schedule_start=100_000"], "train.schedule_start is 100000; it must be less than train.max_steps"),
        (["train.warmup_steps=0"], "train.warmup_steps is 0, but the noam schedule divides by it; it must be"),
        (["train.validate_bleu_every=1500"], "train.validate_bleu_every is 1500; it must be a multiple of"),
        (["train.best_metric=bleu"], "train.best_metric is 'bleu'; it needs BLEU at every validation;"),
        (
            ["train.average_count=6"],
            "train.average_count is 6; it must be at most train.keep_last (5); set train.keep_last to 6",
        ),
        (["decode.n_best=5"], "decode.n_best is 5; it must be at most decode.beam_size (4); increase beam_size"),
        (["decode.tag=<web>"], "decode.tag is '<web>'; it must be the tag of a training corpus;"),
        (["tokenizer.joint=false"], "tokenizer.joint is false, but three-way tied embeddings need one vocabulary;"),
        (
            ["model.max_positions=256"],
            "data.max_tokens is 256; the model also needs a position for EOS; set",
        ),
        (
            ["train.micro_batch_tokens=256"],
            "train.micro_batch_tokens is 256; the longest sentence must fit; set train.micro_batch_tokens to 257",
        ),
    ],
)
def test_inconsistent_options_are_errors(overrides: list[str], message: str) -> None:
    assert message_for(SMALL, *overrides).startswith(message)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.num_heads=7", "model.d_model=504"],
        ["model.num_heads=1000", "model.d_model=1000"],
        ["train.weight_decay=0.1", "train.optimizer=adamw"],
        ["train.warmup_steps=0", "train.schedule=inverse-sqrt"],
        ["train.final_rate_ratio=0.1", "train.schedule=linear"],
        ["train.validate_bleu_sentences=100", "train.validate_bleu_every=1000"],
        ["train.subword_sampling_sides=src", "train.subword_sampling=0.1"],
        ["data.temperature=5", "data.train=[{kind='toy'}, {kind='toy', weight=2.0}]"],
        ["evaluate.metrics=['chrf']", "evaluate.tokenize=intl", "train.validate_bleu_every=1000"],
        ["decode.mbr_metric=chrf", "decode.n_best=4"],
        ["train.best_metric=bleu", "train.validate_bleu_every=1000"],
        ["train.average_count=6", "train.keep_last=6"],
        ["tokenizer.joint=false", "model.tied_embeddings=decoder"],
        ["decode.tag=<web>", "tokenizer.user_symbols=['<web>']"],
        ["decode.tag=<web>", "train.start_from=model"],  # its tokenizer may have the tag
        ["model.max_positions=257"],
        ["train.micro_batch_tokens=257"],
    ],
)
def test_remedies_in_error_messages_work(overrides: list[str]) -> None:
    parse_recipe(SMALL, overrides)


def test_all_errors_are_reported_at_once() -> None:
    message = message_for(SMALL, "train.max_step=1", "decode.n_best=10", "seed=x")
    assert message.count(" | ") == 2


@pytest.mark.parametrize("name", ["name", "src_lang", "tgt_lang"])
def test_a_missing_option_is_named(name: str) -> None:
    text, removed = re.subn(rf"(?m)^{name} = .*\n", "", SMALL)
    assert removed == 1
    assert message_for(text).startswith(f"recipe: option '{name}' is missing")


def test_a_missing_section_is_named() -> None:
    without_data, _, _ = SMALL.partition("[[data.train]]")
    assert message_for(without_data).startswith("recipe: section [data] is missing; every recipe needs one")


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


# --- Documentation ----------------------------------------------------------------------------------------------------


def test_all_sections_are_exported() -> None:
    types_of_options = [field.annotation for field in Recipe.model_fields.values()]
    sections_of_recipe = [one for one in types_of_options if isinstance(one, type) and issubclass(one, Section)]
    assert {Section, Recipe, *sections_of_recipe, *CORPUS_KINDS.values()} <= set(SECTIONS)
    assert len(SECTIONS) == 21  # including two for classifiers


@pytest.mark.parametrize("section", [section for section in SECTIONS if section is not Section])
def test_every_section_and_option_is_documented(section: type[Section]) -> None:
    assert section.__doc__
    assert section.__doc__ != Section.__doc__
    # `kind` and the sections are documented by their classes.
    undocumented = [name for name, text in option_documentation(section).items() if not text]
    assert set(undocumented) <= {"kind", "data", "tokenizer", "model", "train", "decode", "evaluate"}


def option_names(tree: dict[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and name != "test":
            yield from option_names(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def documented_names(text: str) -> Iterator[str]:
    """Yield the options below a comment, with their section."""
    section = above = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif above.startswith("# "):
            yield section + line.removeprefix("# ").split(" =")[0]
        above = line


def test_describe_recipe_documents_every_option() -> None:
    text = describe_recipe(parse_recipe(SMALL))
    assert set(option_names(tomllib.loads(dump_recipe(parse_recipe(SMALL))))) <= set(documented_names(text))
    for unset in ("run_dir", "max_minutes", "max_epochs"):
        assert f"# {unset} =" in text.splitlines()


def test_describe_recipe_of_a_classifier_has_the_options_that_it_uses(tmp_path: Path) -> None:
    path = tmp_path / "topics.toml"
    path.write_text(
        'name = "topics"\n[data]\nlabels = ["sport", "news"]\ntrain = [{ kind = "tsv", path = "t" }]\n'
        "[train]\nmicro_batch_tokens = 300\n"
    )
    recipe = load_any_recipe(path, ["seed=3"])
    text = describe_recipe(recipe)
    assert 'labels = ["sport", "news"]' in text
    assert "num_decoder_layers" not in text and "[decode]" not in text
    path.write_text(text)
    assert load_any_recipe(path) == recipe == load_classification_recipe(path)


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


def test_describe_recipe_lists_choices() -> None:
    text = describe_recipe(parse_recipe(SMALL))
    assert "One of: relu, gelu, swish, swiglu." in text
    assert (
        "Any of: bleu, chrf, chrf++, ter, bleu-tokenized, bleu-tokenized-lc, bleu-compound-split, bracket-f1, "
        "rouge-1, rouge-2, rouge-l, rouge-lsum." in text
    )
    reference = option_reference()
    assert "One of: `relu`, `gelu`, `swish`, `swiglu`." in reference
    assert "Any of: `bleu`, `chrf`, `chrf++`, `ter`, `bleu-tokenized`" in reference


def test_describe_recipe_documents_every_kind_of_corpus() -> None:
    text = describe_recipe(parse_recipe(SMALL))
    for kind, section in CORPUS_KINDS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f'#   kind = "{kind}":')]
        own = section.model_fields.keys() - {"kind", *CorpusOptions.model_fields}
        assert all(re.search(rf"[ ,]{name}\b", line) for name in own), line
    assert '#   kind = "tsv": path*, src_column = 0, tgt_column = 1, label_column, document_column\n' in text
    assert "#   Corpora of every kind: tag, src_lang, tgt_lang, weight = 1.0, alignment\n" in text


@pytest.mark.slow
def test_validators_are_built_lazily() -> None:
    """Building the validators of all sections takes longer than translating a line."""
    shown = "print([one.__pydantic_complete__ for one in (r.DecodeRecipe, r.Recipe)])"
    program = f"import nmt.recipe as r; r.DecodeRecipe(); {shown}"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[True, False]\n"


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_python_help_documents_every_option(section: type[Section]) -> None:
    lines = pydoc.plain(pydoc.render_doc(section)).splitlines()
    text = " ".join(" ".join(line.strip(" |") for line in lines).split())
    assert " ".join(section.summary.split()) in text
    for name, documentation in option_documentation(section).items():
        meaning = " ".join(documentation.split())
        assert re.search(rf"(?<= ){name}( = .*?)? {re.escape(meaning)}", text), name


def test_python_help_has_defaults_and_describe_recipe_does_not_repeat_options() -> None:
    assert "beam_size = 4\n    Hypotheses kept at each step; 1 is greedy search." in (DecodeRecipe.__doc__ or "")
    assert describe_recipe(parse_recipe(SMALL)).count("Hypotheses kept at each step") == 1


def test_an_option_without_effect_may_have_its_default_or_be_saved(tmp_path: Path) -> None:
    parse_recipe(SMALL, ["train.validate_bleu_sentences=500", "data.temperature=1", "decode.sampling_seed=1"])
    recipe = parse_recipe(SMALL)
    train = recipe.train.model_copy(update={"validate_bleu_sentences": 100})  # as an earlier version accepted it
    saved = tmp_path / "recipe.toml"
    saved.write_text(dump_recipe(recipe.model_copy(update={"train": train})), encoding="utf-8")
    assert load_saved_recipe(saved).train == train
    with pytest.raises(RecipeError, match="validate_bleu_sentences has no effect"):
        load_recipe(saved)


MBR_OF_SAMPLES = {"sampling": True, "n_best": 4, "mbr_metric": "chrf"}


@pytest.mark.parametrize(
    ("own", "given", "message"),
    [
        ({}, {"sampling_seed": 3}, "sampling_seed has no effect without sampling=true; change that, or remove"),
        ({}, {"sampling": True, "beam_size": 8}, "beam_size has no effect without a search (sampling=false)"),
        ({"length_penalty": "none"}, {"length_alpha": 1.0}, "length_alpha has no effect without a length_penalty"),
        (
            MBR_OF_SAMPLES,
            {"length_alpha": 0.2},
            "length_alpha has no effect without a length_penalty other than 'none', and",
        ),
        (
            MBR_OF_SAMPLES,
            {"length_penalty": "none"},
            "length_penalty has no effect without a search (sampling=false) or",
        ),
        ({"beam_size": 1}, {"stop": "exact"}, "stop has no effect without a beam (beam_size above 1)"),
        ({"beam_size": 1}, {"stop": "patience", "patience": 6.0}, "patience has no effect without a beam"),
        ({}, {"diversity_penalty": 1.0}, "diversity_penalty has no effect without beam_groups"),
        ({}, {"mbr_metric": "bleu"}, "mbr_metric has no effect without n_best"),
        ({"mbr_metric": "bleu", "n_best": 4}, {"n_best": 1}, "n_best is 1 and decode.mbr_metric is 'bleu'"),
        ({"mbr_metric": "bleu", "n_best": 4}, {"beam_size": 2}, "n_best is 4; it must be at most decode.beam_size (2)"),
        (
            {"n_best": 4},
            {"stop": "patience", "patience": 0.25},
            "n_best is 4; it must be at most decode.beam_size * decode.patience (1); increase patience or beam_size",
        ),
        ({}, {"fusion_weight": 0.5}, "fusion_weight has no effect without fusion"),
        ({}, {"ensemble_mean": "log"}, "ensemble_mean has no effect without an ensemble"),
        ({}, {"alignment_layer": 0}, "alignment_layer has no effect without alignments"),
    ],
)
def test_options_that_override_those_of_a_model_must_have_an_effect(
    own: dict[str, object], given: dict[str, object], message: str
) -> None:
    options = DecodeRecipe.model_validate(given)
    with pytest.raises(ValueError, match=re.escape(f"decode.{message}")):
        options.over(DecodeRecipe.model_validate(own))
    options.all_given().over(DecodeRecipe.model_validate(own))  # complete options are those of a checked recipe


def test_options_of_a_model_give_others_their_effect() -> None:
    own = DecodeRecipe(beam_groups=2, length_penalty="power", alignments=True)
    merged = DecodeRecipe(diversity_penalty=1.0, length_alpha=1.0, alignment_layer=0).over(own)
    assert (merged.beam_groups, merged.diversity_penalty, merged.length_alpha) == (2, 1.0, 1.0)
    DecodeRecipe(ensemble_mean="log").over(own, has_ensemble=True)


@pytest.mark.parametrize(
    ("own", "given"),
    [
        ({"beam_size": 8}, {"n_best": 6}),
        ({"beam_size": 9}, {"beam_groups": 3}),
        ({"sampling": True}, {"temperature": 0.5}),
        ({"sampling": True}, {"n_best": 9}),
        ({"stop": "patience", "patience": 2.0}, {"patience": 3.0}),
    ],
)
def test_options_that_override_those_of_a_model_need_not_fit_the_defaults(
    own: dict[str, object], given: dict[str, object]
) -> None:
    options = DecodeRecipe.model_validate(given)
    assert options.over(DecodeRecipe.model_validate(own)).model_dump(include={*own, *given}) == own | given
    with pytest.raises(ValueError, match=r"^decode\.\w+ (is|has no effect) [^\n]*$"):
        options.over(DecodeRecipe())
    with pytest.raises(RecipeError, match=r"decode\.\w+ (is|has no effect)"):
        parse_recipe(SMALL, [f"decode.{name}={value}" for name, value in given.items()])


def test_options_must_fit_those_of_the_model() -> None:
    with pytest.raises(ValueError, match=r"decode.n_best is 9; it must be at most decode.beam_size \(8\)"):
        DecodeRecipe(n_best=9).over(DecodeRecipe(beam_size=8))


def test_one_head_is_described_in_the_singular() -> None:
    assert "1 head, " in ModelRecipe(num_heads=1).description
    assert "8 heads, " in ModelRecipe().description
