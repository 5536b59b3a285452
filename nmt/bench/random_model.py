"""Models with random weights, and sentences for them, to measure search without training."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import sentencepiece
import torch

from nmt.bench.corpora import FIRST_ORDINARY_ID, LengthDistribution, require_ordinary_tokens, sample_tokens
from nmt.checkpoint import model_files, model_tensors
from nmt.models import build_model
from nmt.recipe import Recipe
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizer, Tokenizers


def write_random_model(directory: Path, recipe: Recipe, tokenizers: Tokenizers) -> None:
    """Write a freshly initialized model of the recipe to a new directory."""
    src, tgt = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, src, tgt)
    metadata = ModelMetadata(
        src_lang=recipe.src_lang,
        tgt_lang=recipe.tgt_lang,
        src_vocab_size=src,
        tgt_vocab_size=tgt,
        unicode_form=recipe.data.unicode_form,
        decode=recipe.decode,
        origin={"random": recipe.seed},
        max_tokens=recipe.data.max_tokens,
    )
    write_directory(directory, model_files(model.recipe, model_tensors(model), tokenizers.files(), metadata))


def numbered_word_tokenizers(vocab_size: int) -> Tokenizers:
    """Make tokenizers whose ordinary tokens are the words w0, w1, ..., as in `numbered_word_sentences`."""
    require_ordinary_tokens(vocab_size)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(_word, range(vocab_size - FIRST_ORDINARY_ID)),
        model_writer=model,
        model_type="word",
        vocab_size=vocab_size,
        character_coverage=1.0,
        normalization_rule_name="identity",
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        minloglevel=2,
    )
    joint = Tokenizer(model.getvalue(), Path("numbers.model"))
    return Tokenizers(joint, joint)


def numbered_word_sentences(
    num: int, lengths: LengthDistribution, longest: int, vocab_size: int, seed: int
) -> list[str]:
    """Generate random sentences for `numbered_word_tokenizers`, with the source lengths of a distribution."""
    random = np.random.Generator(np.random.PCG64(seed))
    src_lengths, _ = lengths.sample(num, longest, random)
    ids = sample_tokens(int(src_lengths.sum()), vocab_size, random) - FIRST_ORDINARY_ID
    return [" ".join(map(_word, part)) for part in np.split(ids, np.cumsum(src_lengths)[:-1])]


def _word(number: int) -> str:
    return f"w{number}"
