"""Search options as Hugging Face's generation configuration says them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from nmt.recipe import DecodeRecipe, UserError, explain
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.storage.model_facts import ModelFacts
from nmt.text.clean import UnicodeForm, normalize
from nmt.text.tokenizer import Tokenizers

# What our search never puts out, and Hugging Face's must not either.
_NEVER = [PAD_ID, UNK_ID, BOS_ID]


# What transformers has no word for.
_LOST = (
    "max_length_ratio",
    "min_length_ratio",
    "num_groups",
    "require",
    "bias",
    "tag",
    "shortlist",
)
_DEFAULTS = DecodeRecipe().model_dump()


def to_generation_config(
    decode: DecodeRecipe, max_positions: int, max_tokens: int, forbidden: Sequence[Sequence[int]]
) -> tuple[dict[str, Any], list[str]]:
    """The generation configuration of a model, and the options that it cannot express, in words.

    max_tokens: of the longest sentence that the model was trained on; forbidden: the tokens of what `decode.forbid`
    forbids. The longest output depends on the input with us, and is one number there: that of the longest input that we
    take at a time. Both divide by n^alpha with the end token counted.
    """
    config: dict[str, Any] = {
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": EOS_ID,
        "suppress_tokens": _NEVER,
        "num_beams": 1 if decode.sampling else decode.beam_size,
        "early_stopping": "never" if decode.stop == "exact" else True,
        "max_length": min(max_positions, max_tokens + decode.max_extra_tokens + 2),
    }
    problems = []
    config["length_penalty"] = 0.0 if decode.length_penalty == "none" else decode.length_alpha
    if decode.length_penalty == "gnmt" and decode.length_alpha:
        alpha = f"{decode.length_alpha:g}"
        problems.append(f"length penalty gnmt, ((5+n)/6)^{alpha} (it has n^{alpha} instead)")
    if decode.stop == "patience":
        problems.append(f"patience {decode.patience:g} (its search ends as with decode.stop 'first')")
    if decode.sampling:
        config |= {"do_sample": True, "temperature": decode.temperature, "top_k": decode.top_k, "top_p": decode.top_p}
        config |= {"min_p": decode.min_p} if decode.min_p else {}
        problems.append("the seed of sampling")
    if decode.n_best > 1:
        config["num_return_sequences"] = decode.n_best
    if decode.min_tokens:
        config["min_new_tokens"] = decode.min_tokens
    if decode.no_repeat_ngram:
        config["no_repeat_ngram_size"] = decode.no_repeat_ngram
    if sequences := [list(sequence) for sequence in forbidden if sequence]:
        config["bad_words_ids"] = sequences
    if decode.bayes_risk != "none":
        problems.append("minimum Bayes risk")
    problems += [f"decode.{name}" for name in _LOST if getattr(decode, name) != _DEFAULTS[name]]
    return config, problems


def forbidden_tokens(tokenizers: Tokenizers, facts: ModelFacts) -> list[list[int]]:
    """The tokens of each phrase that the model's own search options forbid."""
    form = cast(UnicodeForm, facts.unicode_form)
    return [tokenizers.tgt.encode(normalize(phrase, form)) for phrase in facts.decode.forbid]


def from_generation_config(config: Mapping[str, Any]) -> DecodeRecipe:
    """The search options in a generation configuration (or a model's older configuration); UserError for nonsense."""
    try:
        return DecodeRecipe.model_validate(
            {
                "beam_size": config.get("num_beams") or 1,
                "length_penalty": "power",
                "length_alpha": 1.0 if config.get("length_penalty") is None else config["length_penalty"],
                "stop": "exact" if config.get("early_stopping") == "never" else "first",
                "no_repeat_ngram": config.get("no_repeat_ngram_size") or 0,
                "min_tokens": config.get("min_new_tokens") or 0,
            }
        )
    except ValidationError as error:
        raise UserError(f"the generation configuration makes no sense here ({explain(error)}); mend it") from error
