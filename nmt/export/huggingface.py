"""Conversion to Hugging Face transformers, without importing it.

Marian    post-norm models, with any tying and joint or separate vocabularies
Pegasus   pre-norm models with three-way tied embeddings: Marian with different norm positions. (M2M100 is pre-norm too,
          but its position encodings have different frequencies.)

Both use Marian's tokenizer: unchanged SentencePiece models, and a JSON file that maps pieces to token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from nmt.export.ctranslate2 import SUPPORTED
from nmt.export.generation import forbidden_tokens, to_generation_config
from nmt.export.marian_vocabulary import marian_name
from nmt.export.representable import require_representable, unsupported_architecture
from nmt.model.layers import sinusoids
from nmt.model.transformer import Transformer
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.text.tokenizer import Tokenizer, Tokenizers

TEXT_OPTIONS = "nmt"
"""Entry of config.json for `nmt import`, which other programs ignore."""


def huggingface_files(
    model: Transformer, tokenizers: Tokenizers, metadata: ModelMetadata
) -> tuple[dict[str, bytes], list[str]]:
    """Return names and contents of the files of a Hugging Face model directory, and the lost search options.

    Raises UserError with all reasons why transformers cannot represent the model.
    """
    _check_architecture(model.recipe, metadata)
    forbidden = forbidden_tokens(tokenizers, metadata)
    generation, lost = to_generation_config(metadata.decode, model.recipe.max_positions, metadata.max_tokens, forbidden)
    tensors = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in _tensors(model)}
    return {
        "config.json": _json(_config(model) | {TEXT_OPTIONS: _text_options(metadata)}),
        "generation_config.json": _json(generation),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        **_tokenizer_files(tokenizers, metadata, model.recipe.max_positions),
    }, lost


def _check_architecture(recipe: ModelRecipe, metadata: ModelMetadata) -> None:
    reasons = unsupported_architecture(recipe, metadata)
    if recipe.activation == "swiglu":
        reasons.append("model.activation is 'swiglu'")
    if recipe.norm_order == "pre" and recipe.tied_embeddings != "three-way":
        reasons.append(
            "model.norm_order is 'pre' (Pegasus), which requires three-way tied embeddings, but "
            f"model.tied_embeddings is {recipe.tied_embeddings!r}"
        )
    advice = "train with the defaults of these options"
    if not unsupported_architecture(recipe, metadata, SUPPORTED):
        advice = "these options must have their defaults; export to ctranslate2 instead"
    require_representable("Hugging Face", reasons, advice)


def _text_options(metadata: ModelMetadata) -> dict[str, Any]:
    """Return the text options of training, the model's own tag, and its glossary mode unless that is the default."""
    mode = metadata.decode.glossary_mode
    return {
        "unicode_form": metadata.unicode_form,
        "max_tokens": metadata.max_tokens,
        "longest_source": metadata.longest_source,
        "context": metadata.context._asdict(),
        "tags": metadata.tags,
        "trained_directions": list(metadata.trained_directions),
        "tag": metadata.decode.tag,
        **({} if mode == "constrain" else {"glossary_mode": mode}),
    }


def _json(tree: object) -> bytes:
    return (json.dumps(tree, ensure_ascii=False, indent=2) + "\n").encode()


def _config(model: Transformer) -> dict[str, Any]:
    recipe = model.recipe
    is_post = recipe.norm_order == "post"
    config: dict[str, Any] = {
        "architectures": ["MarianMTModel" if is_post else "PegasusForConditionalGeneration"],
        "model_type": "marian" if is_post else "pegasus",
        "is_encoder_decoder": True,
        "d_model": recipe.d_model,
        "encoder_layers": recipe.num_encoder_layers,
        "decoder_layers": recipe.num_decoder_layers,
        "num_hidden_layers": recipe.num_encoder_layers,
        "encoder_attention_heads": recipe.num_heads,
        "decoder_attention_heads": recipe.num_heads,
        "encoder_ffn_dim": recipe.d_ff,
        "decoder_ffn_dim": recipe.d_ff,
        "activation_function": recipe.activation,
        "dropout": recipe.dropout,
        "attention_dropout": recipe.attention_dropout,
        "activation_dropout": recipe.activation_dropout,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "init_std": recipe.d_model**-0.5,
        "max_position_embeddings": recipe.max_positions,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": not is_post,
        "normalize_embedding": False,
        "add_final_layer_norm": not is_post,
        "vocab_size": model.src_embedding.weight.shape[0],
        "tie_word_embeddings": recipe.tied_embeddings != "none",
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": EOS_ID,
        "use_cache": True,
        "dtype": "float32",
    }
    if is_post:
        config["decoder_vocab_size"] = model.tgt_embedding.weight.shape[0]
        config["share_encoder_decoder_embeddings"] = recipe.tied_embeddings == "three-way"
    return config


# --- Weights ----------------------------------------------------------------------------------------------------------


def _tensors(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights with their names in transformers."""
    if model.recipe.tied_embeddings == "three-way":
        yield "model.shared.weight", model.tgt_embedding.weight
    else:
        yield "model.encoder.embed_tokens.weight", model.src_embedding.weight
        yield "model.decoder.embed_tokens.weight", model.tgt_embedding.weight
    if model.recipe.tied_embeddings == "none":
        yield "lm_head.weight", model.output.weight
    if model.output.bias is not None:
        yield "final_logits_bias", model.output.bias.unsqueeze(0)
    else:
        yield "final_logits_bias", torch.zeros(1, model.output.weight.shape[0])
    for name, parameter in model.named_parameters():
        if name.startswith(("encoder.", "decoder.")):
            names = marian_names(name)
            yield from zip(names, parameter.chunk(len(names)), strict=True)
    if model.recipe.norm_order == "pre":
        # Pegasus computes these itself, but reports them as missing if the file lacks them.
        for stack in ("encoder", "decoder"):
            yield f"model.{stack}.embed_positions.weight", sinusoids(model.recipe.max_positions, model.recipe.d_model)


_MODULES = {
    "attention": "self_attn",
    "attention_residual.norm": "self_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
_PROJECTIONS = {"qkv": ("q", "k", "v"), "q": ("q",), "kv": ("k", "v"), "out": ("out",)}


def marian_names(name: str) -> list[str]:
    """Map a parameter of a layer or of the final norm to Marian's names; nmt concatenates q, k and v along the rows."""
    stack, kind, *rest = name.split(".")
    if kind == "norm":  # the final norm of a pre-norm stack
        return [f"model.{stack}.layer_norm.{rest[0]}"]
    number, *module, leaf = rest
    prefix = f"model.{stack}.layers.{number}"
    if module[-1] in _PROJECTIONS:
        attention = _MODULES[".".join(module[:-1])]
        return [f"{prefix}.{attention}.{projection}_proj.{leaf}" for projection in _PROJECTIONS[module[-1]]]
    return [f"{prefix}.{_MODULES['.'.join(module)]}.{leaf}"]


# --- Tokenizer --------------------------------------------------------------------------------------------------------


def _tokenizer_files(tokenizers: Tokenizers, metadata: ModelMetadata, max_positions: int) -> dict[str, bytes]:
    """Return the files of a Marian tokenizer with nmt's token ids."""
    pad, unk, bos, eos = tokenizers.src.pieces([PAD_ID, UNK_ID, BOS_ID, EOS_ID])
    config = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": metadata.src_lang,
        "target_lang": metadata.tgt_lang,
        "pad_token": pad,
        "unk_token": unk,
        "bos_token": bos,
        "eos_token": eos,
        "model_max_length": max_positions,
        "separate_vocabs": not tokenizers.joint,
        "split_special_tokens": True,  # special tokens in text are plain text
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "tokenizer_config.json": _json(config),
        "source.spm": tokenizers.src.model,
        "target.spm": tokenizers.tgt.model,
        "vocab.json": _json(_vocabulary(tokenizers.src)),
    }
    if not tokenizers.joint:
        files["target_vocab.json"] = _json(_vocabulary(tokenizers.tgt))
    return files


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    return {marian_name(piece): token for token, piece in enumerate(tokenizer.all_pieces)}
