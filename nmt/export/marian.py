"""A Marian model in Hugging Face's format becomes a model directory of nmt that translates the same.

What differs is put right in the weights, so that nothing else of nmt need know of it:

Numbers     Our special tokens have fixed numbers, so rows of the embeddings are moved, and the SentencePiece models get
            their pieces in our order.
Begin       Marian's decoder begins with the padding token: our begin token gets its row, and our padding token, for
            which nothing is left, a row that is never probable.
Vocabulary  The source side keeps the pieces of `source.spm`; one that `vocab.json` does not number becomes, as there,
            the unknown token's embedding. The target side has all that `vocab.json` numbers.
Bias        `final_logits_bias` is our output bias.
Scale       Where embeddings are not to be scaled by sqrt(d_model), they are divided by it here.

A model that nmt exported comes back as it was, also a pre-norm one, for which nmt takes Pegasus' form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from nmt.checkpoint import model_files, read_tensors
from nmt.export.generation import from_generation_config
from nmt.export.marian_vocabulary import Side, read_sides
from nmt.model.layers import sinusoids
from nmt.model.transformer import Transformer
from nmt.recipe import ModelRecipe, UserError, explain
from nmt.storage.model_facts import ModelFacts
from nmt.storage.sealed import require_new, write_directory

# A logit that far below all others has no probability in float32, and a finite loss in training.
_NEVER_LOGIT = -100.0

_ACTIVATIONS: Mapping[str, Literal["relu", "gelu", "swish"]] = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "silu": "swish",
}

Config = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """What an import gives: weights by our names, and all that goes with them into a model directory."""

    recipe: ModelRecipe
    tensors: dict[str, Tensor]
    tokenizer_files: dict[str, bytes]
    facts: ModelFacts


def import_marian(source: Path, out: Path, src_lang: str | None = None, tgt_lang: str | None = None) -> Imported:
    """Write the Marian model in the directory `source` as the model directory `out`.

    Raises UserError for a directory that is no such model, with all the reasons, and where `out` exists.
    """
    require_new(out)
    imported = read_marian(source, src_lang, tgt_lang)
    write_directory(out, model_files(imported.recipe, imported.tensors, imported.tokenizer_files, imported.facts))
    return imported


def read_marian(source: Path, src_lang: str | None = None, tgt_lang: str | None = None) -> Imported:
    """The Marian model in a directory, in our terms; see `import_marian`."""
    _require_files(source)
    config = read_json(source / "config.json")
    _refuse_what_does_not_fit(source, config)
    weights = read_tensors(source / "model.safetensors")
    src, tgt = read_sides(source, config)
    tensors, recipe = _convert(weights, config, src, tgt)
    _check_positions(source, weights, recipe)
    generation = source / "generation_config.json"
    named = read_json(source / "tokenizer_config.json") if (source / "tokenizer_config.json").exists() else {}
    facts = ModelFacts(
        src_lang=src_lang or str(named.get("source_lang") or "und"),
        tgt_lang=tgt_lang or str(named.get("target_lang") or "und"),
        src_vocab_size=len(src.rows),
        tgt_vocab_size=len(tgt.rows),
        unicode_form="NFC" if src.is_ours else "none",
        decode=from_generation_config(read_json(generation) if generation.exists() else config),
        origin={"imported": source.resolve().name},
    )
    files = (
        {"tokenizer.model": src.subword_model}
        if src.subword_model == tgt.subword_model
        else {"tokenizer.src.model": src.subword_model, "tokenizer.tgt.model": tgt.subword_model}
    )
    return Imported(recipe, tensors, files, facts)


def read_json(path: Path) -> Config:
    """A JSON file that holds an object; UserError where it does not."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"{path} is not readable JSON ({detail}); it must be as it was made; copy it again") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no JSON object; it must be as it was made; copy it again")
    return tree


def _require_files(source: Path) -> None:
    needed = ("config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json")
    missing = [name for name in needed if not (source / name).is_file()]
    if "model.safetensors" in missing and (source / "pytorch_model.bin").exists():
        raise UserError(
            f"{source} holds its weights as pytorch_model.bin, a pickle, which can run code when it is read; they must "
            "be in model.safetensors; get that file of the model, or make it where you trust the pickle: "
            "AutoModelForSeq2SeqLM.from_pretrained(OLD).save_pretrained(NEW)"
        )
    if missing:
        what = "does not exist" if not source.is_dir() else f"lacks {', '.join(missing)}"
        raise UserError(f"{source} {what}; it must be a Marian model in Hugging Face's format; download all its files")


_REQUIRED = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "encoder_attention_heads", "vocab_size")


def _refuse_what_does_not_fit(source: Path, config: Config) -> None:
    """UserError with all reasons for which our model cannot be this one."""
    kind = config.get("model_type")
    reasons = [f"{name} is missing" for name in _REQUIRED if not isinstance(config.get(name), int)]
    if kind not in ("marian", "pegasus"):
        reasons.append(f"model_type is {kind!r}, not 'marian'")
    for one, other in (("encoder_ffn_dim", "decoder_ffn_dim"), ("encoder_attention_heads", "decoder_attention_heads")):
        if config.get(one) != config.get(other):
            reasons.append(f"{one} is {config.get(one)} and {other} {config.get(other)}, which must be equal")
    if config.get("activation_function", "gelu") not in _ACTIVATIONS:
        reasons.append(f"activation_function is {config['activation_function']!r}, none of {', '.join(_ACTIVATIONS)}")
    unwanted = {"normalize_embedding": False, "static_position_embeddings": True}
    if kind == "marian":
        unwanted |= {"normalize_before": False, "add_final_layer_norm": False}
    reasons += [
        f"{name} is {config[name]!r}, not {wanted}"
        for name, wanted in unwanted.items()
        if config.get(name, wanted) != wanted
    ]
    if reasons:
        raise UserError(f"{source} cannot be imported: {'; '.join(reasons)}; take another model")


# --- Weights ----------------------------------------------------------------------------------------------------------


def _convert(
    weights: Mapping[str, Tensor], config: Config, src: Side, tgt: Side
) -> tuple[dict[str, Tensor], ModelRecipe]:
    shared = weights.get("model.shared.weight")
    src_table = _first(weights, "model.encoder.embed_tokens.weight", "model.shared.weight")
    tgt_table = _first(weights, "model.decoder.embed_tokens.weight", "model.shared.weight", "lm_head.weight")
    tied = bool(config.get("tie_word_embeddings", True))
    out_table = tgt_table if tied else _first(weights, "lm_head.weight")
    if shared is not None and config.get("share_encoder_decoder_embeddings", True):
        src_table = tgt_table = shared
        out_table = shared if tied else out_table
    is_scaled = bool(config.get("scale_embedding", False))
    is_one = src_table is tgt_table and src.rows == tgt.rows
    tying: Literal["three-way", "decoder", "none"] = "none"
    if tied and is_scaled:
        tying = "three-way" if is_one else "decoder"
    bias = weights.get("final_logits_bias", torch.zeros(1, len(out_table))).flatten().float()
    bias = _rows(bias, tgt.rows, missing=_NEVER_LOGIT)
    has_bias = bool(bias.any())
    recipe = _recipe(config, tying, has_bias)

    factor = 1.0 if is_scaled else 1 / math.sqrt(recipe.d_model)
    tensors = {
        "src_embedding.weight": _rows(src_table.float() * factor, src.rows),
        "tgt_embedding.weight": _rows(tgt_table.float() * factor, tgt.rows),
        "output.weight": _rows(out_table.float(), tgt.rows),
        "output.bias": bias,
    }
    with torch.device("meta"):
        names = dict(Transformer(recipe, len(src.rows), len(tgt.rows)).named_parameters())
    own = {
        name: tensors[name]
        if name in tensors
        else torch.cat([_first(weights, foreign).float() for foreign in _foreign_names(name)])
        for name in names
    }
    wrong = [f"{name} is {tuple(own[name].shape)}" for name, like in names.items() if own[name].shape != like.shape]
    if wrong:
        raise UserError(f"the weights are not what config.json says: {'; '.join(wrong)}; download the model again")
    return {name: tensor.contiguous() for name, tensor in own.items()}, recipe


def _recipe(config: Config, tying: Literal["three-way", "decoder", "none"], has_bias: bool) -> ModelRecipe:
    """The architecture in our terms; UserError where it makes none."""
    try:
        return ModelRecipe(
            d_model=config["d_model"],
            d_ff=config["encoder_ffn_dim"],
            num_heads=config["encoder_attention_heads"],
            num_encoder_layers=config["encoder_layers"],
            num_decoder_layers=config["decoder_layers"],
            dropout=config.get("dropout", 0.1),
            attention_dropout=config.get("attention_dropout", 0.0),
            activation_dropout=config.get("activation_dropout", 0.0),
            activation=_ACTIVATIONS[config.get("activation_function", "gelu")],
            norm_order="pre" if config["model_type"] == "pegasus" else "post",
            tied_embeddings=tying,
            output_bias=has_bias,
            max_positions=config.get("max_position_embeddings", 1024),
        )
    except ValidationError as error:
        wrong = f"config.json makes no sense here ({explain(error)})"
        raise UserError(f"{wrong}; it must describe the weights; mend it") from error


def _first(weights: Mapping[str, Tensor], *names: str) -> Tensor:
    for name in names:
        if name in weights:
            return weights[name]
    raise UserError(f"model.safetensors lacks {' and '.join(names)}; it must hold a whole model; download it again")


def _rows(table: Tensor, rows: list[int | None], missing: float = 0.0) -> Tensor:
    """Rows of a table in another order; one that is None is filled with `missing`."""
    if max(row for row in rows if row is not None) >= len(table):
        raise UserError(
            f"vocab.json numbers up to {max(row for row in rows if row is not None)}, but the weights have "
            f"{len(table)} rows; they must belong together; download the model again"
        )
    chosen = table[torch.tensor([row or 0 for row in rows])]
    chosen[torch.tensor([row is None for row in rows])] = missing
    return chosen


_PARTS = {
    "attention": "self_attn",
    "attention_residual.norm": "self_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
_PROJECTIONS = {"qkv": ("q", "k", "v"), "q": ("q",), "kv": ("k", "v"), "out": ("out",)}


def _foreign_names(name: str) -> list[str]:
    """What transformers calls the weights that are one of ours, such as `encoder.layers.0.attention.qkv.bias`."""
    stack, kind, *rest = name.split(".")
    if kind == "norm":  # that closes a pre-norm stack
        return [f"model.{stack}.layer_norm.{rest[0]}"]
    number, *part, leaf = rest
    if part[-1] in _PROJECTIONS:
        attention = f"model.{stack}.layers.{number}.{_PARTS['.'.join(part[:-1])]}"
        return [f"{attention}.{projection}_proj.{leaf}" for projection in _PROJECTIONS[part[-1]]]
    return [f"model.{stack}.layers.{number}.{_PARTS['.'.join(part)]}.{leaf}"]


def _check_positions(source: Path, weights: Mapping[str, Tensor], recipe: ModelRecipe) -> None:
    """UserError where the weights hold position encodings that are not ours."""
    for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
        if name not in weights:
            continue
        own = sinusoids(recipe.max_positions, recipe.d_model)
        if weights[name].shape != own.shape or not torch.allclose(weights[name].float(), own, atol=1e-4):
            raise UserError(
                f"{source} cannot be imported: {name} are not the sinusoids of Vaswani et al. 2017; take another model"
            )
