"""Conversion between search options and generation configurations."""

from dataclasses import replace
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.export.generation import forbidden_tokens, from_generation_config, to_generation_config
from nmt.export.usage import ctranslate2_usage, lost_by_ctranslate2
from nmt.recipe import DecodeRecipe
from nmt.storage.model_metadata import read_model_metadata
from nmt.text.tokenizer import Tokenizers
from tests.export.conftest import MakeModel

SPECIAL = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 3,
    "suppress_tokens": [0, 1, 2],
}

EXTRA_TOKENS = "decode.max_extra_tokens (replaced by the limit of the longest input, {}; the example applies it)"
END_OF_LONGEST = "the log-probability of EOS at the maximum length (replaced by 0, so these outputs may differ)"


def test_supported_options_round_trip() -> None:
    decode = DecodeRecipe(
        beam_size=5,
        length_penalty="power",
        length_alpha=0.7,
        n_best=2,
        min_tokens=3,
        no_repeat_ngram=4,
        max_extra_tokens=10,
    )
    config, lost = to_generation_config(decode, 200, 256, [[7], [8, 9], []])
    assert config == SPECIAL | {
        "num_beams": 5,
        "early_stopping": True,
        "max_length": 200,
        "length_penalty": 0.7,
        "num_return_sequences": 2,
        "min_new_tokens": 3,
        "no_repeat_ngram_size": 4,
        "bad_words_ids": [[7], [8, 9]],
    }
    assert lost == [END_OF_LONGEST, EXTRA_TOKENS.format(200)]
    assert from_generation_config(config, 200) == DecodeRecipe(
        beam_size=5, length_penalty="power", length_alpha=0.7, no_repeat_ngram=4, min_tokens=3
    )


@pytest.mark.parametrize("decode", [{"length_penalty": "none"}, {"length_penalty": "gnmt", "length_alpha": 0.0}])
def test_no_length_penalty_is_exponent_zero(decode: dict[str, object]) -> None:
    config, lost = to_generation_config(DecodeRecipe.model_validate(decode), 1024, 256, [])
    assert (config["length_penalty"], config["max_length"]) == (0.0, 308)
    assert lost == [END_OF_LONGEST, EXTRA_TOKENS.format(308)]


def test_the_gnmt_length_penalty_is_replaced_by_a_similar_power() -> None:
    config, lost = to_generation_config(DecodeRecipe(length_penalty="gnmt", length_alpha=0.6), 1024, 256, [])
    assert config["length_penalty"] == 0.48
    assert "length penalty gnmt, ((5+n)/6)^0.6 (replaced by n^0.48)" in lost


def test_lost_options_are_named() -> None:
    decode = DecodeRecipe(
        sampling=True, top_k=5, min_p=0.1, mbr_metric="chrf", max_length_ratio=2.0, shortlist=Path("list")
    )
    config, lost = to_generation_config(decode, 100, 256, [])
    assert (config["do_sample"], config["num_beams"], config["top_k"], config["min_p"]) == (True, 1, 5, 0.1)
    assert config["length_penalty"] == 0.48
    assert [name.split()[0] for name in lost] == [
        "length",
        "the",
        "minimum",
        "the",
        "decode.max_extra_tokens",
        "decode.max_length_ratio",
        "decode.shortlist",
    ]


@pytest.mark.parametrize(
    ("max_tokens", "max_length", "notes"),
    [
        (5, 7, []),  # max_tokens limits every source, so max_extra_tokens has no effect
        (305, 307, [EXTRA_TOKENS.format(307)]),
        (306, 308, [EXTRA_TOKENS.format(308)]),
        (400, 308, [EXTRA_TOKENS.format(308)]),
    ],
)
def test_the_maximum_length_includes_max_tokens(max_tokens: int, max_length: int, notes: list[str]) -> None:
    config, lost = to_generation_config(
        DecodeRecipe(max_tokens=max_tokens, length_penalty="power", length_alpha=0.6), 1024, 256, []
    )
    assert config["max_length"] == max_length  # with BOS and EOS
    assert lost == [END_OF_LONGEST, *notes]


# A value of each option, with the options that it needs.
EACH: dict[str, dict[str, object]] = {
    "beam_size": {"beam_size": 5},
    "length_penalty": {"length_penalty": "none"},
    "length_alpha": {"length_alpha": 0.3},
    "stop": {"stop": "exact"},
    "patience": {"stop": "patience", "patience": 2.0},
    "beam_groups": {"beam_groups": 2},
    "diversity_penalty": {"beam_groups": 2, "diversity_penalty": 0.1},
    "max_extra_tokens": {"max_extra_tokens": 9},
    "max_length_ratio": {"max_length_ratio": 1.5},
    "max_tokens": {"max_tokens": 9},
    "min_tokens": {"min_tokens": 2},
    "min_length_ratio": {"min_length_ratio": 0.5},
    "no_repeat_ngram": {"no_repeat_ngram": 3},
    "forbid": {"forbid": ["Hund"]},
    "require": {"require": ["Hund"]},
    "bias": {"bias": {"Hund": 1.0}},
    "n_best": {"n_best": 3},
    "tag": {"tag": "<term-end>"},
    "long_lines": {"long_lines": "truncate"},
    "split_sentences": {"split_sentences": True},
    "mbr_metric": {"n_best": 3, "mbr_metric": "chrf"},
    "sampling": {"sampling": True},
    "sampling_seed": {"sampling": True, "sampling_seed": 2},
    "temperature": {"sampling": True, "temperature": 0.5},
    "top_k": {"sampling": True, "top_k": 5},
    "top_p": {"sampling": True, "top_p": 0.5},
    "min_p": {"sampling": True, "min_p": 0.5},
    "alignments": {"alignments": True},
    "alignment_layer": {"alignment_layer": 0},
    "alignment_heads": {"alignment_heads": [0]},
    "alignment_at": {"alignment_at": "input"},
    "trees": {"trees": True},
    "shortlist": {"shortlist": "list"},
    "fusion": {"fusion": "lm"},
    "fusion_weight": {"fusion": "lm", "fusion_weight": 0.5},
}
# Options that depend on another option: if that option is lost, only it is named, as one of these notes.
DEPENDENT = {
    "diversity_penalty": {"decode.beam_groups"},
    "sampling_seed": {"decode.sampling", "the sampling seed"},
    "temperature": {"decode.sampling"},
    "top_k": {"decode.sampling"},
    "top_p": {"decode.sampling"},
    "min_p": {"decode.sampling"},
    "fusion_weight": {"decode.fusion"},
}
# Options without effect on one model, or on its translations.
IGNORED = {"glossary_mode", "ensemble_mean", "batch_tokens"}


def test_each_option_is_converted_or_named(make_model: MakeModel) -> None:
    assert EACH.keys() | IGNORED == DecodeRecipe.model_fields.keys()
    model = make_model(marks_terms=True)
    metadata, tokenizers = read_model_metadata(model), Tokenizers.load(model)

    def exports(options: dict[str, object]) -> tuple[tuple[object, list[str]], tuple[object, list[str]]]:
        decode = DecodeRecipe.model_validate(options)
        changed = replace(metadata, decode=decode)
        usage = ctranslate2_usage(changed, tokenizers, Path("out"), None, 1024)
        forbidden = forbidden_tokens(tokenizers, changed)
        return to_generation_config(decode, 1024, 256, forbidden), (usage, lost_by_ctranslate2(decode))

    for name, options in EACH.items():
        base = {key: value for key, value in options.items() if key != name}
        for (own, named), (default, named_for_default) in zip(exports(options), exports(base), strict=True):
            is_named = named != named_for_default or not DEPENDENT.get(name, set()).isdisjoint(named)
            assert own != default or is_named, name


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("num_beams", "many", "num_beams = 'many'; it must be an integer"),
        ("length_penalty", -1.0, "length_penalty = -1.0; it must be greater than or equal to 0"),
    ],
)
def test_the_error_of_an_invalid_configuration_is_one_line(name: str, value: object, problem: str) -> None:
    with pytest.raises(UserError) as error:
        from_generation_config({name: value}, 512)
    assert str(error.value) == f"nmt does not support the generation configuration ({problem}); correct it"


@pytest.mark.parametrize(
    ("config", "max_tokens"),
    [
        ({}, None),
        ({"max_length": 512}, None),
        ({"max_length": 511}, 509),  # without BOS and EOS
        ({"max_length": 511, "max_new_tokens": 20}, 19),  # without EOS
    ],
)
def test_the_maximum_length_is_imported(config: dict[str, int], max_tokens: int | None) -> None:
    assert from_generation_config(config, 512).max_tokens == max_tokens


@pytest.mark.parametrize("name", ["max_length", "max_new_tokens"])
def test_an_invalid_maximum_length_is_an_error(name: str) -> None:
    for value in ("x", 1):
        with pytest.raises(UserError, match=rf"{name} = .*; it must be (an integer|greater than 0)\)"):
            from_generation_config({name: value}, 512)
