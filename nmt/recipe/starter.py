"""Recipes for new users: a model size that fits the number of training pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nmt.recipe.toml import toml_value

# Minimum pairs of each size; IWSLT14 has 160,000 and WMT14 4.5 million.
_SMALL_PAIRS, _BASE_PAIRS = 100_000, 1_000_000
_EPOCHS, _MIN_STEPS = 34, 1_000  # of the smallest model
# 256 byte tokens, special tokens, and some merges.
_MIN_OTHER_TOKENS = 320

_HEAD = """\
# {src_lang} to {tgt_lang}, made by `nmt new` for {pairs:,} pairs. `nmt config FILE` prints all options.
name = {name}
src_lang = {src}
tgt_lang = {tgt}

[data]
train = [{train}]
valid = [{valid}]

# Test sets that `nmt run` translates and scores at the end, with paths like those above:
# [data.test]
# news = {{ kind = "text", src = "news.{src_lang}", tgt = "news.{tgt_lang}" }}

"""

_TINY = """\
[tokenizer]
vocab_size = {vocab_size}  # a larger vocabulary would have many rare tokens in a small corpus

[model]  # tiny, for fewer than 100,000 pairs, as in recipe multi30k-en-de-wide
num_encoder_layers = 4
num_decoder_layers = 2  # depth helps more in the encoder (Kasai et al. 2021)
d_model = 256
d_ff = 512
num_heads = 4
dropout = 0.3  # small corpora are easy to overfit
norm_order = "pre"  # stable at a high learning rate

[train]
max_steps = {max_steps}  # {epochs}
batch_tokens = 2_048  # small batches, many updates
micro_batch_tokens = 2_048
schedule = "cosine"  # decays to 0
learning_rate = 2e-3
warmup_steps = {warmup_steps}
clip_norm = 1.0  # for the high learning rate
validate_every = {validate_every}
save_every = {save_every}  # the last five, which are averaged, must be close to each other
"""

_SMALL = """\
[tokenizer]
vocab_size = {vocab_size:_}  # {reason}

[model]  # small, for 100,000 to 1,000,000 pairs: fairseq's sizes for IWSLT14, as in recipe iwslt14-de-en
d_model = 512
d_ff = 1_024
num_heads = 4
dropout = 0.3

[train]
max_steps = 60_000
batch_tokens = 4_096
micro_batch_tokens = 4_096
optimizer = "adamw"
weight_decay = 1e-4
schedule = "inverse-sqrt"
learning_rate = 5e-4
warmup_steps = 4_000
validate_every = 1_000  # at every checkpoint
save_every = 1_000
"""

_BASE = """\
[tokenizer]
vocab_size = {vocab_size:_}  # {reason}

[model]  # base, for 1,000,000 pairs or more: the paper's base model, as in recipe wmt14-en-de-base
d_model = 512
d_ff = 2_048
num_heads = 8
dropout = 0.1

[train]
max_steps = 100_000  # as in the paper
batch_tokens = 25_000  # as in the paper
micro_batch_tokens = "auto"  # the largest that fits in memory
warmup_steps = 4_000
validate_every = 1_250  # at every checkpoint
save_every = 1_250
"""


# Name, minimum pairs, options, vocabulary size and its reason.
_LARGER_SIZES = (
    ("base", _BASE_PAIRS, _BASE, 32_000, "similar to the paper's"),
    ("small", _SMALL_PAIRS, _SMALL, 10_000, "fairseq's setting for IWSLT14"),
)


def starter_recipe(
    name: str,
    languages: tuple[str, str],
    train: Mapping[str, str | int],
    valid: Mapping[str, str | int],
    pairs: int,
    tokens: int,
    alphabet: int,
) -> tuple[str, str]:
    """Return a recipe for a corpus, with comments that explain the choices, and the name of its model size.

    name:         of the recipe; invalid characters are replaced
    languages:    source and target
    train, valid: options of the corpora
    tokens:       number of tokens on the target side
    alphabet:     number of distinct characters on both sides
    """
    src, tgt = languages
    size, body = _size(pairs, tokens, alphabet)
    head = _HEAD.format(
        src_lang=src,
        tgt_lang=tgt,
        pairs=pairs,
        name=toml_value(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or f"{src}-{tgt}"),
        src=toml_value(src),
        tgt=toml_value(tgt),
        train=toml_value(train),
        valid=toml_value(valid),
    )
    return head + body, size


def _size(pairs: int, tokens: int, alphabet: int) -> tuple[str, str]:
    """Return the name and the options of the model size for a corpus; tokens: on the target side."""
    for name, least, text, vocab_size, reason in _LARGER_SIZES:
        if pairs >= least:
            if vocab_size < 2 * alphabet:
                vocab_size, reason = 2 * alphabet, "twice the number of distinct characters"
            return name, text.format(vocab_size=vocab_size, reason=reason)
    steps = max(_MIN_STEPS, _EPOCHS * tokens // 2_048)
    epochs = f"about {round(steps * 2_048 / max(tokens, 1)):,} epochs"
    if steps == _MIN_STEPS:
        epochs += ", because a model needs about 1,000 updates; fewer may be better for so little text"
    vocab_size = min(6_000, max(400, tokens // 50))  # SentencePiece rejects sizes too large for the text
    vocab_size = max(vocab_size, alphabet + _MIN_OTHER_TOKENS)
    save_every = min(150, steps // 500 * 10 + 10)  # the last five are within an eighth of the updates
    return "tiny", _TINY.format(
        max_steps=steps,
        epochs=epochs,
        warmup_steps=min(600, steps // 10),
        vocab_size=vocab_size,
        save_every=save_every,
        validate_every=2 * save_every,
    )
