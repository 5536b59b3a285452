"""Example programs for model cards: they translate with an export and the model's search options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.export.engine import NO_PENALTY
from nmt.export.generation import forbidden_tokens
from nmt.recipe import DecodeRecipe
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.text.tokenizer import Tokenizers

# Options of generation_config.json that the example repeats, for the reader.
_SHOWN = ("num_beams", "length_penalty", "no_repeat_ngram_size", "min_new_tokens")
_SHOWN_FOR_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p")

# Search options that change translations and that CTranslate2 does not support.
_NOT_IN_CTRANSLATE2 = ("beam_groups", "require", "bias", "mbr_metric", "sampling", "shortlist")
_DEFAULTS = DecodeRecipe()


def huggingface_usage(generation: Mapping[str, Any], name: str) -> str:
    """Return a program that translates with transformers.

    generation: content of generation_config.json; name: folder or repository of the export
    """
    shown = (*_SHOWN, *_SHOWN_FOR_SAMPLING) if generation.get("do_sample") else _SHOWN
    options = "".join(f", {option}={generation[option]!r}" for option in shown if option in generation)
    return f"""\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained({name!r})
tokenizer = AutoTokenizer.from_pretrained({name!r})


def translate(sentence):
    batch = tokenizer([sentence], return_tensors="pt")
    ids = model.generate(**batch{options})
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0]


print(translate("A sentence."))"""


def ctranslate2_usage(metadata: ModelMetadata, tokenizers: Tokenizers, folder: Path, repository: str | None) -> str:
    """Return a program that translates like `nmt translate --engine ctranslate2`.

    repository: Hugging Face repository of the export; None for the local folder
    """
    source, target = ("tokenizer.model",) * 2 if tokenizers.joint else ("tokenizer.src.model", "tokenizer.tgt.model")
    tag = f"[{metadata.decode.tag!r}] + " if metadata.decode.tag else ""
    options = "".join(f"        {line},\n" for line in _ctranslate2_options(metadata, tokenizers))
    (eos,) = tokenizers.tgt.pieces([EOS_ID])
    imports, location = "", repr(str(folder))
    if repository is not None:
        imports, location = "from huggingface_hub import snapshot_download\n", f"snapshot_download({repository!r})"
    return f"""\
import ctranslate2
import sentencepiece
{imports}
folder = {location}
translator = ctranslate2.Translator(folder)
source = sentencepiece.SentencePieceProcessor(model_file=folder + "/{source}")
target = sentencepiece.SentencePieceProcessor(model_file=folder + "/{target}")


def translate(sentence):
    pieces = {tag}source.encode(sentence, out_type=str)
    longest = {_max_length(metadata.decode)}
    results = translator.translate_batch(
        [pieces],
{options}    )
    return target.decode([piece for piece in results[0].hypotheses[0][:longest] if piece != {eos!r}])


print(translate("A sentence."))"""


def _ctranslate2_options(metadata: ModelMetadata, tokenizers: Tokenizers) -> list[str]:
    """Return the arguments of `translate_batch` as Python code."""
    decode = metadata.decode
    suppressed = [[piece] for piece in tokenizers.tgt.pieces([PAD_ID, BOS_ID])]
    suppressed += [tokenizers.tgt.pieces(tokens) for tokens in forbidden_tokens(tokenizers, metadata)]
    return [
        f"beam_size={decode.beam_size}",
        *([f"patience={decode.patience}"] if decode.stop == "patience" and decode.beam_size > 1 else []),
        f"length_penalty={(decode.length_alpha if decode.length_penalty != 'none' else 0.0) or NO_PENALTY}",
        *([f"no_repeat_ngram_size={decode.no_repeat_ngram}"] if decode.no_repeat_ngram else []),
        "max_decoding_length=longest + 1",
        f"min_decoding_length={_min_length(decode)}",
        "return_end_token=True",
        "disable_unk=True",
        f"suppress_sequences={suppressed!r}",
    ]


def _max_length(decode: DecodeRecipe) -> str:
    limits = [f"len(pieces) + {decode.max_extra_tokens}"]
    if decode.max_length_ratio is not None:
        limits.append(f"-int(-{decode.max_length_ratio} * len(pieces) // 1)")  # rounded up
    if decode.max_tokens is not None:
        limits.append(str(decode.max_tokens))
    return limits[0] if len(limits) == 1 else f"min({', '.join(limits)})"


def _min_length(decode: DecodeRecipe) -> str:
    if not decode.min_length_ratio:
        return str(decode.min_tokens)
    return f"max({decode.min_tokens}, int({decode.min_length_ratio} * len(pieces)))"


def lost_by_ctranslate2(decode: DecodeRecipe) -> list[str]:
    """Describe the search options of a model that CTranslate2 does not support."""
    lost = []
    if decode.length_penalty == "gnmt" and decode.length_alpha:
        alpha = f"{decode.length_alpha:g}"
        lost.append(f"length penalty gnmt, ((5+n)/6)^{alpha} (the example uses n^{alpha})")
    if decode.stop == "exact":
        lost.append("decode.stop 'exact'")
    return lost + [
        f"decode.{name}" for name in _NOT_IN_CTRANSLATE2 if getattr(decode, name) != getattr(_DEFAULTS, name)
    ]
