"""Overrides of recipes and of decode options."""

import re
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import RecipeError
from nmt.recipe import (
    DecodeRecipe,
    SacrebleuCorpus,
    ToyCorpus,
    override_decode,
    override_own_decode,
    overrides_by_name,
    parse_recipe,
)
from tests.recipe.small_recipe import SMALL, message_for


@pytest.mark.parametrize("overrides", ["seed=1", [1], ("seed=1", None), iter(["seed=1"]), {"seed=1"}])
def test_overrides_must_be_a_list_of_strings(overrides: Any) -> None:
    with pytest.raises(TypeError, match=r"overrides must be a list of strings, such as \['train.max_steps"):
        parse_recipe(SMALL, overrides)


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
