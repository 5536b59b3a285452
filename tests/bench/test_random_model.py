"""Models with random weights and sentences for them."""

from pathlib import Path

import pytest
import torch

from nmt.bench.corpora import FIRST_ORDINARY_ID, LengthDistribution
from nmt.bench.model_specs import find_model_spec
from nmt.bench.random_model import numbered_word_sentences, numbered_word_tokenizers, write_random_model
from nmt.checkpoint import load_model
from nmt.errors import UserError

LENGTHS = LengthDistribution(src_mean=9.0, tgt_mean=9.0, deviation=0.5, correlation=0.9)


@pytest.mark.parametrize("vocab_size", [5, 40, 3_000])
def test_each_word_is_one_token(vocab_size: int) -> None:
    tokenizer = numbered_word_tokenizers(vocab_size).src
    assert tokenizer.vocab_size == vocab_size
    words = [f"w{number}" for number in range(vocab_size - FIRST_ORDINARY_ID)]
    ids = tokenizer.encode(" ".join(words))
    assert sorted(ids) == list(range(FIRST_ORDINARY_ID, vocab_size))
    assert tokenizer.decode(ids) == " ".join(words)


def test_sentences_are_repeatable_and_have_one_token_per_word() -> None:
    tokenizer = numbered_word_tokenizers(90).src
    sentences = numbered_word_sentences(50, LENGTHS, longest=12, vocab_size=90, seed=3)
    assert sentences == numbered_word_sentences(50, LENGTHS, longest=12, vocab_size=90, seed=3)
    lengths = [len(tokenizer.encode(sentence)) for sentence in sentences]
    assert lengths == [len(sentence.split(" ")) for sentence in sentences]
    assert max(lengths) == 12  # `longest`


def test_random_model_loads_and_is_reproducible(tmp_path: Path) -> None:
    overrides = ["model.d_model=16", "model.d_ff=8", "model.num_heads=2", "decode.beam_size=3"]
    recipe = find_model_spec("tiny", overrides).recipe
    write_random_model(tmp_path / "a", recipe, numbered_word_tokenizers(40))
    write_random_model(tmp_path / "b", recipe, numbered_word_tokenizers(40))
    one, again = (load_model(tmp_path / name, torch.device("cpu")) for name in "ab")
    assert one.metadata == again.metadata
    assert one.metadata.decode.beam_size == 3
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), again.model.parameters(), strict=True))


def test_vocabulary_needs_ordinary_tokens() -> None:
    with pytest.raises(UserError, match="must be at least 5, got 4"):
        numbered_word_tokenizers(4)
