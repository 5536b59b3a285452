"""Conversion between search options and generation configurations."""

from pathlib import Path

import pytest

from nmt.export.generation import from_generation_config, to_generation_config
from nmt.recipe import DecodeRecipe, UserError

SPECIAL = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 3,
    "suppress_tokens": [0, 1, 2],
}


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
    assert lost == []
    assert from_generation_config(config) == DecodeRecipe(
        beam_size=5, length_penalty="power", length_alpha=0.7, no_repeat_ngram=4, min_tokens=3
    )


@pytest.mark.parametrize("decode", [{"length_penalty": "none"}, {"length_penalty": "gnmt", "length_alpha": 0.0}])
def test_no_length_penalty_is_exponent_zero(decode: dict[str, object]) -> None:
    config, lost = to_generation_config(DecodeRecipe.model_validate(decode), 1024, 256, [])
    assert (config["length_penalty"], config["max_length"], lost) == (0.0, 308, [])


def test_lost_options_are_named() -> None:
    decode = DecodeRecipe(
        sampling=True, top_k=5, min_p=0.1, mbr_metric="chrf", max_length_ratio=2.0, shortlist=Path("list")
    )
    config, lost = to_generation_config(decode, 100, 256, [])
    assert (config["do_sample"], config["num_beams"], config["top_k"], config["min_p"]) == (True, 1, 5, 0.1)
    assert config["length_penalty"] == 0.6  # the closest
    assert [name.split()[0] for name in lost] == [
        "length",
        "the",
        "minimum",
        "decode.max_length_ratio",
        "decode.shortlist",
    ]


def test_an_invalid_configuration_is_one_line() -> None:
    with pytest.raises(
        UserError,
        match=r"^the generation configuration is not valid "
        r"\(beam_size = 'many'; it must be a whole number\); correct it$",
    ):
        from_generation_config({"num_beams": "many"})
