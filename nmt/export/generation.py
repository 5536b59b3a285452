"""Conversion between search options and Hugging Face generation configurations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from nmt.errors import UserError
from nmt.export.capabilities import GNMT_EXPONENT
from nmt.recipe import SEPARATOR, TERM_MARKERS, DecodeRecipe, explain
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers

_UNSUPPORTED = (
    "max_length_ratio",
    "min_length_ratio",
    "beam_groups",
    "require",
    "bias",
    "trees",
    "tag",
    "shortlist",
    "fusion",
)
_DEFAULTS = DecodeRecipe().model_dump()

# Options of generation configurations that nmt does not read, with the value that has no effect.
_NOT_READ: Mapping[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "min_length": 0,
    "forced_bos_token_id": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "num_return_sequences": 1,
    "penalty_alpha": None,
    "guidance_scale": 1.0,
    "dola_layers": None,
    "force_words_ids": None,
    "constraints": None,
    "forced_decoder_ids": None,
    "stop_strings": None,
    "max_time": None,
}

_HUGGINGFACE_NAMES = {
    "beam_size": "num_beams",
    "length_alpha": "length_penalty",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "min_tokens": "min_new_tokens",
}

NON_SEARCH_OPTIONS = (
    "split_sentences",
    "long_lines",
    "alignments",
    "alignment_layer",
    "alignment_heads",
    "alignment_at",
)
"""Options of the steps before and after search, which no export can represent."""


def to_generation_config(
    decode: DecodeRecipe, max_positions: int, max_tokens: int, forbidden: Sequence[Sequence[int]]
) -> tuple[dict[str, Any], list[str]]:
    """Return a generation configuration, and descriptions of the options that it cannot express.

    transformers has one maximum length for all inputs: the one for inputs of `max_tokens` tokens is used. Its length
    penalty is `power`, n^alpha with EOS counted.

    max_tokens: maximum length of training sentences
    forbidden:  token ids of the phrases in `decode.forbid`
    """
    longest = max_tokens + decode.max_extra_tokens
    limit = longest if decode.max_tokens is None else min(longest, decode.max_tokens)
    config: dict[str, Any] = {
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": EOS_ID,
        "suppress_tokens": [PAD_ID, UNK_ID, BOS_ID],
        "num_beams": 1 if decode.sampling else decode.beam_size,
        "early_stopping": "never" if decode.stop == "exact" else True,
        "max_length": min(max_positions, limit + 2),
        "length_penalty": 0.0 if decode.length_penalty == "none" else decode.length_alpha,
    }
    lost = []
    if decode.length_penalty == "gnmt" and decode.length_alpha:
        config["length_penalty"] = exponent = round(decode.length_alpha * GNMT_EXPONENT, 6)
        lost.append(f"length penalty gnmt, ((5+n)/6)^{decode.length_alpha:g} (replaced by n^{exponent:g})")
    if decode.stop == "patience":
        lost.append(f"patience {decode.patience:g} (replaced by decode.stop 'first')")
    if decode.sampling:
        config |= {"do_sample": True, "temperature": decode.temperature, "top_k": decode.top_k, "top_p": decode.top_p}
        if decode.min_p:
            config["min_p"] = decode.min_p
        lost.append("the sampling seed")
    if decode.n_best > 1:
        config["num_return_sequences"] = decode.n_best
    if decode.min_tokens:
        config["min_new_tokens"] = decode.min_tokens
    if decode.no_repeat_ngram:
        config["no_repeat_ngram_size"] = decode.no_repeat_ngram
    if sequences := [list(sequence) for sequence in forbidden if sequence]:
        config["bad_words_ids"] = sequences
    if decode.mbr_metric != "none":
        lost.append("minimum Bayes risk decoding (decode.mbr_metric)")
    lost.append("the log-probability of EOS at the maximum length (replaced by 0, so these outputs may differ)")
    if decode.max_tokens is None or decode.max_tokens > decode.max_extra_tokens:
        replacement = f"the limit of the longest input, {config['max_length']}"
        lost.append(f"decode.max_extra_tokens (replaced by {replacement}; the example applies it)")
    return config, lost + changed_options(decode, (*_UNSUPPORTED, *NON_SEARCH_OPTIONS))


def changed_options(decode: DecodeRecipe, names: Sequence[str]) -> list[str]:
    """Return the options, as decode.NAME, whose values are not the defaults."""
    return [f"decode.{name}" for name in names if getattr(decode, name) != _DEFAULTS[name]]


def forbidden_tokens(tokenizers: Tokenizers, metadata: ModelMetadata) -> list[list[int]]:
    """Encode the phrases that the model's own search options forbid, and the markup that it never outputs."""
    form = metadata.unicode_form
    markup = [*TERM_MARKERS, *([SEPARATOR] if metadata.context.has_target else [])]
    phrases = [normalize(phrase, form) for phrase in metadata.decode.forbid]
    forbidden = [tokens for phrase in phrases for tokens in tokenizers.tgt.encode_forbidden(phrase)]
    symbols = tokenizers.tgt.user_symbols()
    return forbidden + [[symbols[piece]] for piece in markup if piece in symbols]


def ignored_options(config: Mapping[str, Any], markup: Collection[int]) -> list[str]:
    """Return the options of a generation configuration that change translations and that nmt does not read.

    markup: token ids that nmt never outputs
    """
    ignored = [name for name, neutral in _NOT_READ.items() if config.get(name) not in (None, neutral)]
    forbidden_anyway = [[config.get("pad_token_id")], *([token] for token in markup)]
    suppressed_anyway = [UNK_ID, *(config.get(f"{name}_token_id") for name in ("pad", "bos", "decoder_start"))]
    for name, without_effect in (("bad_words_ids", forbidden_anyway), ("suppress_tokens", suppressed_anyway)):
        values = config.get(name) or []
        if not isinstance(values, list) or any(value not in without_effect for value in values):
            ignored.append(name)
    return ignored


def from_generation_config(config: Mapping[str, Any], max_positions: int) -> DecodeRecipe:
    """Return the search options of a generation configuration or an old model configuration; raises UserError.

    max_positions: of the model; a maximum length of this value or above has no effect
    """
    try:
        return DecodeRecipe.model_validate(
            {
                "beam_size": config.get("num_beams") or 1,
                "length_penalty": "power",
                "length_alpha": 1.0 if config.get("length_penalty") is None else config["length_penalty"],
                "stop": "exact" if config.get("early_stopping") == "never" else "first",
                "no_repeat_ngram": config.get("no_repeat_ngram_size") or 0,
                "min_tokens": config.get("min_new_tokens") or 0,
                "max_tokens": _max_tokens(config, max_positions),
            }
        )
    except ValidationError as error:
        length = "max_length" if config.get("max_new_tokens") is None else "max_new_tokens"
        names = _HUGGINGFACE_NAMES | {"max_tokens": length}
        options = re.compile(rf"\b({'|'.join(names)}) = ")
        reasons = options.sub(lambda match: f"{names[match[1]]} = ", explain(error))
        raise UserError(f"nmt does not support the generation configuration ({reasons}); correct it") from error


def _max_tokens(config: Mapping[str, Any], max_positions: int) -> Any:
    """Return the maximum number of tokens without BOS and EOS, None if it has no effect, or an invalid value."""
    new_tokens = config.get("max_new_tokens")
    if new_tokens is not None:  # takes precedence, and excludes BOS
        return new_tokens - 1 if isinstance(new_tokens, int) else new_tokens
    length = config.get("max_length")
    if not isinstance(length, int):
        return length
    return length - 2 if length < max_positions else None
