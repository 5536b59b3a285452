"""Decode options that override those of a model."""

import re

import pytest

from nmt.errors import RecipeError
from nmt.recipe import DecodeRecipe, parse_recipe
from tests.recipe.small_recipe import SMALL

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
