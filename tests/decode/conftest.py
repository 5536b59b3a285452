"""A tokenizer for the lines of `tests.decode.copy_model`."""

import pytest

from nmt.recipe import TokenizerRecipe
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.decode.copy_model import text_lines


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    tokenizer = train_tokenizer(text_lines(300), TokenizerRecipe(vocab_size=320), path)
    return Tokenizers(tokenizer, tokenizer)
