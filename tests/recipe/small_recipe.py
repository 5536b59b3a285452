"""A recipe with only the required options, and its error messages."""

import pytest

from nmt.errors import RecipeError, UserError
from nmt.recipe import parse_recipe

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


def message_for(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, overrides)
    assert isinstance(error.value, UserError)
    message = str(error.value)
    assert "\n" not in message
    return message
