"""Recipes of models that are small enough to train in a test."""

SMALL_MODEL = """
[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
max_positions = 64
"""


def small_recipe(
    data: str,
    train: str = "",
    *,
    name: str = "small",
    top: str = "",
    vocab_size: int = 400,
    max_tokens: int = 60,
    max_positions: int = 64,
) -> str:
    """Return a recipe without test sets, for one CPU thread.

    data, train: lines of these sections
    top: lines above all sections
    """
    return f"""
name = "{name}"
src_lang = "en"
tgt_lang = "de"
{top}
[data]
workers = 1
max_tokens = {max_tokens}
{data}
[tokenizer]
vocab_size = {vocab_size}
{SMALL_MODEL.replace("= 64", f"= {max_positions}")}
[train]
device = "cpu"
threads = 1
{train}
"""
