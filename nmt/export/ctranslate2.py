"""Conversion to CTranslate2: weights as a TransformerSpec, and vocabularies as lists of pieces.

CTranslate2 supports pre-norm and post-norm, LayerNorm and RMSNorm, all tying modes and separate vocabularies. Position
encodings are exported, because those that CTranslate2 generates have different frequencies and start at position 1.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nmt.checkpoint import load_model
from nmt.export.packages import load_package
from nmt.export.representable import require_representable, unsupported_architecture
from nmt.model.layers import Embedding, FeedForward
from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.model.transformer import Transformer
from nmt.special_ids import BOS_ID, EOS_ID, UNK_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.text.tokenizer import Tokenizers

Quantization = Literal["float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"]

SUPPORTED = ("d_head", "num_encoder_heads", "norm", "positions", "max_distance")  # unlike Hugging Face
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH", "swiglu": "SWISH"}


def ctranslate2_files(
    model: Transformer, tokenizers: Tokenizers, quantization: Quantization, metadata: ModelMetadata | None = None
) -> dict[str, bytes]:
    """Return names and contents of the files of a CTranslate2 model directory, including the nmt tokenizers.

    metadata: given if other programs will load the export
    Raises UserError if CTranslate2 is not installed, or with all reasons why it cannot represent the model.
    """
    reasons = unsupported_architecture(model.recipe, metadata, SUPPORTED)
    require_representable("CTranslate2", reasons, "train with the defaults of these options")
    spec = _build_spec(model)
    spec.register_source_vocabulary(tokenizers.src.all_pieces)
    spec.register_target_vocabulary(tokenizers.tgt.all_pieces)
    unk, bos, eos = tokenizers.tgt.pieces([UNK_ID, BOS_ID, EOS_ID])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = unk, bos, eos
    spec.config.decoder_start_token = bos
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.encoder.layers[0].attention_residual.norm.eps
    spec.validate()
    spec.optimize(quantization=quantization)
    with TemporaryDirectory() as folder:
        spec.save(folder)
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return files | tokenizers.files()


def convert(model: Path, quantization: Quantization) -> dict[str, bytes]:
    """Verify and convert a model directory; return the files of a CTranslate2 model directory."""
    return ctranslate2_files(load_model(model, torch.device("cpu")).transformer, Tokenizers.load(model), quantization)


def _build_spec(model: Transformer) -> Any:
    """Build the TransformerSpec of a model, without vocabularies or configuration."""
    specs = load_package("ctranslate2", "specs")
    recipe = model.recipe
    options = {
        "pre_norm": recipe.norm_order == "pre",
        "activation": getattr(specs.Activation, _ACTIVATIONS[recipe.activation]),
        "ffn_glu": recipe.activation == "swiglu",
        "rms_norm": recipe.norm == "rms",
        "head_dim": recipe.head_width if recipe.d_head or recipe.num_encoder_heads else None,
        "rotary_dim": 0 if recipe.positions == "rotary" else None,  # 0: all features
        "rotary_interleave": False,
        "relative_position": recipe.positions == "relative",
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(recipe.num_encoder_layers, recipe.encoder_heads, **options),
        specs.TransformerDecoderSpec(recipe.num_decoder_layers, recipe.num_heads, **options),
    )
    _fill_embedding(spec.encoder, spec.encoder.embeddings[0], model.src_embedding)
    for layer_spec, encoder_layer in zip(spec.encoder.layer, model.encoder.layers, strict=True):
        _fill_self_attention(layer_spec.self_attention, encoder_layer.attention, encoder_layer.attention_residual.norm)
        _fill_feed_forward(layer_spec.ffn, encoder_layer.feed_forward, encoder_layer.feed_forward_residual.norm)
    _fill_embedding(spec.decoder, spec.decoder.embeddings, model.tgt_embedding)
    for layer_spec, layer in zip(spec.decoder.layer, model.decoder.layers, strict=True):
        _fill_self_attention(layer_spec.self_attention, layer.attention, layer.attention_residual.norm)
        _fill_cross_attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_residual.norm)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    if recipe.norm_order == "pre":
        _fill_norm(spec.encoder.layer_norm, model.encoder.norm)
        _fill_norm(spec.decoder.layer_norm, model.decoder.norm)
    spec.decoder.projection.weight = _array(model.output.weight)
    if model.output.bias is not None:
        spec.decoder.projection.bias = _array(model.output.bias)
    return spec


def _fill_embedding(stack: Any, spec: Any, embedding: Embedding) -> None:
    spec.weight = _array(embedding.weight)
    stack.scale_embeddings = embedding.scale
    if embedding.positions is not None:
        stack.position_encodings.encodings = _array(embedding.positions)


def _fill_self_attention(spec: Any, attention: SelfAttention, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear[0], attention.qkv)
    _fill_linear(spec.linear[1], attention.out)
    if attention.relative is not None:
        spec.relative_position_keys = _array(attention.relative.keys)
        spec.relative_position_values = _array(attention.relative.values)


def _fill_cross_attention(spec: Any, attention: CrossAttention, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear[0], attention.q)
    _fill_linear(spec.linear[1], attention.kv)
    _fill_linear(spec.linear[2], attention.out)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    if feed_forward.activation == "swiglu":
        _fill_linear(spec.linear_0, feed_forward.inner, chunk=0, chunks=2)
        _fill_linear(spec.linear_0_noact, feed_forward.inner, chunk=1, chunks=2)
    else:
        _fill_linear(spec.linear_0, feed_forward.inner)
    _fill_linear(spec.linear_1, feed_forward.outer)


def _fill_linear(spec: Any, layer: nn.Linear, chunk: int = 0, chunks: int = 1) -> None:
    """Copy a layer, or one of `chunks` equal blocks of its rows."""
    spec.weight = _array(layer.weight.chunk(chunks)[chunk])
    spec.bias = _array(layer.bias.chunk(chunks)[chunk])


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor | nn.Module) -> np.ndarray:
    """Copy a tensor, because quantization works in place."""
    assert isinstance(tensor, Tensor)
    return tensor.detach().to("cpu", torch.float32, copy=True).numpy()
