"""Import of Marian models in Hugging Face's format.

All differences are resolved in the weights and tokenizers:

Token ids   nmt has fixed ids for special tokens: embedding rows and SentencePiece pieces are reordered.
BOS         Marian's decoder starts with the padding token: BOS gets its row, and PAD a row of probability 0. If it
            starts with EOS, both get its row, and BOS has probability 0.
Vocabulary  The source side keeps the pieces of `source.spm`; those that `vocab.json` lacks get the embedding of the
            unknown token, as in transformers. The target side has all pieces of `vocab.json`.
Bias        `final_logits_bias` becomes the output bias.
Scale       nmt scales embeddings by sqrt(d_model): unscaled embeddings are divided by it.

Importing an export of nmt with a bpe or unigram tokenizer restores the model exactly, including pre-norm models, which
are exported as Pegasus.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from nmt.checkpoint import model_files, read_tensors
from nmt.errors import CommandError, UserError, message_of
from nmt.export.generation import from_generation_config, ignored_options
from nmt.export.huggingface import TEXT_OPTIONS, marian_names
from nmt.export.marian_vocabulary import Side, read_sides
from nmt.logs import say, warn
from nmt.model.layers import sinusoids
from nmt.models import build_uninitialized
from nmt.recipe import SEPARATOR, TERM_MARKERS, Context, GlossaryMode, ModelRecipe, Section, UnicodeForm
from nmt.recipe.corpora import LANGUAGE_PATTERN
from nmt.special_ids import BOS_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import require_new, write_directory
from nmt.text.subword_file import read_pieces

_MASKED_LOGIT = -100.0  # probability 0 in float32, but a finite loss in training

# Tensors that are read under one of several names, or only checked.
_TABLES = re.compile(
    r"model\.(shared|(encoder|decoder)\.embed_(tokens|positions))\.weight|lm_head\.weight|final_logits_bias"
)

_ACTIVATIONS: Mapping[str, Literal["relu", "gelu", "swish"]]
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}

Config = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """The contents of a model directory: recipe, weights, tokenizers and metadata."""

    recipe: ModelRecipe
    tensors: dict[str, Tensor]
    tokenizer_files: dict[str, bytes]
    metadata: ModelMetadata


def import_marian(source: Path, out: Path, src_lang: str | None = None, tgt_lang: str | None = None) -> Imported:
    """Convert the Marian model in `source` to the model directory `out`.

    Raises UserError with all reasons why the model is not supported, for an invalid language, or if `out` exists.
    """
    require_new(out)
    for option, language in {"--src-lang": src_lang, "--tgt-lang": tgt_lang}.items():
        if language is not None and not re.fullmatch(LANGUAGE_PATTERN, language):
            raise CommandError(f"{option} is {language!r}; it must be an ISO 639 code such as de; correct it")
    imported = read_marian(source, src_lang, tgt_lang)
    write_directory(out, model_files(imported.recipe, imported.tensors, imported.tokenizer_files, imported.metadata))
    return imported


def read_marian(source: Path, src_lang: str | None = None, tgt_lang: str | None = None) -> Imported:
    """Convert a Marian model without writing it; see `import_marian`."""
    _require_files(source)
    config = _read_json(source / "config.json")
    _check_config(source, config)
    weights = read_tensors(source / "model.safetensors")
    _check_values(weights)
    src, tgt = read_sides(source, config)
    tensors, recipe = _convert(weights, config, src, tgt)
    _check_positions(source, weights, recipe)
    generation = _read_optional(source / "generation_config.json", default=config)
    markup = [i for i, piece in enumerate(read_pieces(tgt.subword_model)) if piece.text in (*TERM_MARKERS, SEPARATOR)]
    for option in ignored_options(generation, markup if tgt.is_nmt else ()):
        warn(f"{source} has {option} = {generation[option]}, which nmt does not read; translations may differ")
    decode = from_generation_config(generation, recipe.max_positions)
    if decode.beam_size > 1 and not generation.get("early_stopping"):
        say(
            "early_stopping is not set, so transformers searches longer than nmt; nmt translate --set stop=exact also "
            "searches longer, but is slower"
        )
    text = _text_options(source, config, is_nmt=src.is_nmt)
    decode = decode.model_copy(update={name: text.pop(name) for name in ("tag", "glossary_mode") if name in text})
    tokenizer_config = _read_optional(source / "tokenizer_config.json", default={})
    metadata = ModelMetadata(
        src_lang=src_lang or _language(tokenizer_config, "source_lang", "--src-lang"),
        tgt_lang=tgt_lang or _language(tokenizer_config, "target_lang", "--tgt-lang"),
        src_vocab_size=len(src.rows),
        tgt_vocab_size=len(tgt.rows),
        decode=decode,
        origin={"imported": source.resolve().name},
        **text,
    )
    if src.subword_model == tgt.subword_model:
        files = {"tokenizer.model": src.subword_model}
    else:
        files = {"tokenizer.src.model": src.subword_model, "tokenizer.tgt.model": tgt.subword_model}
    return Imported(recipe, tensors, files, metadata)


class _TextOptions(Section, extra="ignore"):
    """The entry of an nmt export in config.json. Later versions may have further keys; earlier ones have fewer."""

    unicode_form: UnicodeForm
    max_tokens: PositiveInt
    longest_source: NonNegativeInt | None
    context: Context
    tags: dict[str, str] = Field(default_factory=dict)
    trained_directions: tuple[str, ...] = ()
    tag: str | None = None
    glossary_mode: GlossaryMode = "constrain"


def _text_options(source: Path, config: Config, *, is_nmt: bool) -> dict[str, Any]:
    """Return the text options that an nmt export records, or else their defaults. Raises UserError."""
    exported = config.get(TEXT_OPTIONS)
    if exported is None:  # another program, or an earlier version of nmt
        return {"unicode_form": "NFC" if is_nmt else "none"}
    try:
        return dict(_TextOptions.model_validate(exported))
    except ValidationError as error:
        wrong = f"{source / 'config.json'} has an invalid entry {TEXT_OPTIONS!r}"
        raise UserError(f"{wrong}; export the model again") from error


def _language(config: Config, name: str, option: str) -> str:
    """Return a language of a tokenizer configuration, or `und` if unknown; warn of an invalid one."""
    language = str(config.get(name) or "und")
    if re.fullmatch(LANGUAGE_PATTERN, language):
        return language
    warn(f"tokenizer_config.json has {name} = {language!r}, which is not an ISO 639 code; add {option}")
    return "und"


def _read_json(path: Path) -> Config:
    """Read a JSON object from a file. Raises UserError."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not readable JSON ({message_of(error)}); it must be a JSON object; download it again"
        ) from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a JSON object; it must be one; download it again")
    return tree


def _read_optional(path: Path, default: Config) -> Config:
    return _read_json(path) if path.exists() else default


def _require_files(source: Path) -> None:
    needed = ("config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json")
    missing = [name for name in needed if not (source / name).is_file()]
    kind = _read_json(source / "config.json").get("model_type") if "config.json" not in missing else None
    is_other = kind not in (None, *_MODEL_TYPES)
    if not is_other and "model.safetensors" in missing and (source / "pytorch_model.bin").exists():
        raise UserError(
            f"{source} has only pytorch_model.bin, a pickle, which can run code; the weights must be in "
            "model.safetensors; download that file, or, if you trust the pickle, convert it with "
            "AutoModelForSeq2SeqLM.from_pretrained(OLD).save_pretrained(NEW)"
        )
    if missing:
        problem = f"lacks {', '.join(missing)}"
        if not source.exists():
            problem = "does not exist"
        elif not source.is_dir():
            problem = "is not a directory"
        elif is_other:
            problem = f"has a model of type {kind!r}"
        raise UserError(
            f"{source} {problem}; it must be the directory of a Hugging Face Marian model; download all its files, or "
            "convert a model of another program to this format first"
        )


_MODEL_TYPES = ("marian", "pegasus")
_REQUIRED = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "encoder_attention_heads", "vocab_size")


def _check_config(source: Path, config: Config) -> None:
    """Raise UserError with all options that nmt does not support."""
    model_type = config.get("model_type")
    reasons = [f"{name} is missing or not an integer" for name in _REQUIRED if not isinstance(config.get(name), int)]
    decoder_size = config.get("decoder_vocab_size") or 0
    if not isinstance(decoder_size, int):
        reasons.append(f"decoder_vocab_size is {decoder_size!r}, not an integer")
    if model_type not in _MODEL_TYPES:
        reasons.append(f"model_type is {model_type!r}, not 'marian'")
    for name in ("ffn_dim", "attention_heads"):
        encoder, decoder = config.get(f"encoder_{name}"), config.get(f"decoder_{name}")
        if encoder != decoder:
            reasons.append(f"encoder_{name} is {encoder}, but decoder_{name} is {decoder}")
    if config.get("activation_function", "gelu") not in _ACTIVATIONS:
        reasons.append(f"activation_function is {config['activation_function']!r}, not {' or '.join(_ACTIVATIONS)}")
    required = {"normalize_embedding": False, "static_position_embeddings": True}
    if model_type == "marian":
        required |= {"normalize_before": False, "add_final_layer_norm": False}
    reasons += [
        f"{name} is {config[name]!r}, not {value}"
        for name, value in required.items()
        if config.get(name, value) != value
    ]
    if reasons:
        raise UserError(f"{source} cannot be imported: {'; '.join(reasons)}; choose another model")


# --- Weights ----------------------------------------------------------------------------------------------------------


def _convert(
    weights: Mapping[str, Tensor], config: Config, src: Side, tgt: Side
) -> tuple[dict[str, Tensor], ModelRecipe]:
    """Return the weights, under nmt's names, and the architecture."""
    is_tied = bool(config.get("tie_word_embeddings", True))
    is_scaled = bool(config.get("scale_embedding", False))
    src_table, tgt_table = _embedding_tables(weights, config)
    out_table = tgt_table if is_tied else _first(weights, "lm_head.weight")
    tying: Literal["three-way", "decoder", "none"] = "none"
    if is_tied and is_scaled:
        is_joint = src_table is tgt_table and src.rows == tgt.rows
        tying = "three-way" if is_joint else "decoder"
    bias = weights.get("final_logits_bias", torch.zeros(1, len(out_table))).flatten().float()
    bias = _select_rows(bias, tgt.rows, missing=_MASKED_LOGIT)
    if tgt.rows.count(tgt.rows[BOS_ID]) > 1:  # also the row of EOS, whose probability would count twice
        bias[BOS_ID] = _MASKED_LOGIT
    recipe = _recipe(config, tying, has_bias=bool(bias.any()))

    scale = 1.0 if is_scaled else 1 / math.sqrt(recipe.d_model)
    tensors = {
        "src_embedding.weight": _select_rows(src_table.float() * scale, src.rows),
        "tgt_embedding.weight": _select_rows(tgt_table.float() * scale, tgt.rows),
        "output.weight": _select_rows(out_table.float(), tgt.rows),
        "output.bias": bias,
    }
    model = build_uninitialized(recipe, len(src.rows), len(tgt.rows), torch.device("meta"))
    parameters = dict(model.named_parameters())
    _check_names(weights, parameters.keys() - tensors.keys())
    for name in parameters:
        if name not in tensors:
            tensors[name] = torch.cat([_first(weights, foreign).float() for foreign in marian_names(name)])
    mismatches = [
        f"{name} is {tuple(tensors[name].shape)}"
        for name, parameter in parameters.items()
        if tensors[name].shape != parameter.shape
    ]
    if mismatches:
        raise UserError(f"the weights do not match config.json: {'; '.join(mismatches)}; download the model again")
    return {name: tensors[name].contiguous() for name in parameters}, recipe


def _embedding_tables(weights: Mapping[str, Tensor], config: Config) -> tuple[Tensor, Tensor]:
    """Return the source and target embeddings; the same tensor if they are shared.

    An untied model may have its own table on each side beside the shared one, which transformers then does not use.
    """
    shared = weights.get("model.shared.weight")
    is_shared = config.get("share_encoder_decoder_embeddings", True) and config.get("tie_word_embeddings", True)
    if shared is not None and is_shared:
        return shared, shared
    src_table = _first(weights, "model.encoder.embed_tokens.weight", "model.shared.weight")
    tgt_table = _first(weights, "model.decoder.embed_tokens.weight", "model.shared.weight", "lm_head.weight")
    return src_table, tgt_table


def _check_values(weights: Mapping[str, Tensor]) -> None:
    """Raise UserError for integer tensors, such as those of a quantized model, and for NaN and infinity."""
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{name} has type {kind}; weights must be float32, float16 or bfloat16; choose another model"
            )
        if not tensor.isfinite().all():
            raise UserError(f"{name} has NaN or infinite values; weights must be finite; download the model again")


def _check_names(weights: Mapping[str, Tensor], parameters: Iterable[str]) -> None:
    """Raise UserError for tensors that the model does not have, such as those of another layer."""
    known = {foreign for name in parameters for foreign in marian_names(name)}
    if extra := [name for name in weights if name not in known and not _TABLES.fullmatch(name)]:
        more = f" and {len(extra) - 3:,} more" if len(extra) > 3 else ""
        raise UserError(
            f"model.safetensors has tensors that do not belong to the model in config.json: {', '.join(extra[:3])}"
            f"{more}; the files must match; download both again, or choose another model"
        )


def _recipe(config: Config, tying: Literal["three-way", "decoder", "none"], has_bias: bool) -> ModelRecipe:
    """Convert the architecture. Raises UserError if it is not valid."""
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
    except ValueError as error:
        raise UserError(f"config.json is not valid ({error}); it must match the weights; correct it") from error


def _first(weights: Mapping[str, Tensor], *names: str) -> Tensor:
    """Return the first tensor that exists. Raises UserError."""
    for name in names:
        if name in weights:
            return weights[name]
    raise UserError(f"model.safetensors lacks {' and '.join(names)}; it must be a complete model; download it again")


def _select_rows(table: Tensor, rows: list[int | None], missing: float = 0.0) -> Tensor:
    """Select rows in a new order; None selects a row of `missing`."""
    largest = max(row for row in rows if row is not None)
    if largest >= len(table):
        raise UserError(
            f"vocab.json has id {largest}, but the weights have {len(table)} rows; they must match; download the model "
            "again"
        )
    selected = table[torch.tensor([row or 0 for row in rows])]
    selected[torch.tensor([row is None for row in rows])] = missing
    return selected


def _check_positions(source: Path, weights: Mapping[str, Tensor], recipe: ModelRecipe) -> None:
    """Raise UserError if the weights contain position encodings that are not the paper's sinusoids."""
    for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
        if name not in weights:
            continue
        expected = sinusoids(recipe.max_positions, recipe.d_model)
        rounding = max(1e-4, torch.finfo(weights[name].dtype).eps)
        if weights[name].shape != expected.shape or not torch.allclose(weights[name].float(), expected, atol=rounding):
            raise UserError(
                f"{source} cannot be imported: {name} is not sinusoidal (Vaswani et al. 2017); choose another model"
            )
