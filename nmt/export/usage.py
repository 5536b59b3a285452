"""Example programs for model cards: they translate with an export and the model's search options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.export.capabilities import length_exponent, max_hypotheses, unsupported_search_options
from nmt.export.engine import search_arguments
from nmt.export.generation import NON_SEARCH_OPTIONS, changed_options, forbidden_tokens
from nmt.export.marian_vocabulary import marian_name
from nmt.recipe import DecodeRecipe
from nmt.search.options import SearchOptions
from nmt.special_ids import EOS_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.text.tokenizer import Tokenizers

# Options of generation_config.json that the example repeats, for the reader.
_SHOWN = ("num_beams", "length_penalty", "no_repeat_ngram_size", "min_new_tokens")
_SHOWN_FOR_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p")

# Arguments of translate_batch at their defaults, which the example leaves out.
_DEFAULT_ARGUMENTS = {"patience": 1.0, "no_repeat_ngram_size": 0}


def huggingface_usage(generation: Mapping[str, Any], name: str, metadata: ModelMetadata, tokenizers: Tokenizers) -> str:
    """Return a program that translates with transformers.

    generation: content of generation_config.json; name: folder or repository of the export
    """
    unicode_form = metadata.unicode_form
    shown = (*_SHOWN, *_SHOWN_FOR_SAMPLING) if generation.get("do_sample") else _SHOWN
    options = "".join(f", {option}={generation[option]!r}" for option in shown if option in generation)
    extra = metadata.decode.max_extra_tokens + 1  # the source has EOS, the output BOS and EOS
    encode = 'batch = tokenizer([sentence], return_tensors="pt")'
    if tag := _tag_piece(metadata, tokenizers):
        encode = (
            f"tag = tokenizer.convert_tokens_to_ids({marian_name(tag)!r})\n"
            '    batch = tokenizer.pad({"input_ids": [[tag, *tokenizer(sentence)["input_ids"]]]}, return_tensors="pt")'
        )
    return f"""\
{_unicode_import(unicode_form)}from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained({name!r})
tokenizer = AutoTokenizer.from_pretrained({name!r})


def translate(sentence):
    sentence = {_normalized(unicode_form)}
    if not sentence:
        return ""
    {encode}
    longest = min(batch["input_ids"].shape[1] + {extra}, {generation["max_length"]})
    ids = model.generate(**batch{options}, max_length=longest)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0]


print(translate("A sentence."))"""


def ctranslate2_usage(
    metadata: ModelMetadata, tokenizers: Tokenizers, folder: Path, repository: str | None, max_positions: int
) -> str:
    """Return a program that translates like `nmt translate --engine ctranslate2`.

    repository: Hugging Face repository of the export; None for the local folder
    max_positions: maximum sentence length of the model, EOS included
    """
    source = "tokenizer.model" if tokenizers.joint else "tokenizer.src.model"
    target = "tokenizer.model" if tokenizers.joint else "tokenizer.tgt.model"
    piece = _tag_piece(metadata, tokenizers)
    tag = f"{[piece]} + " if piece else ""
    options = "".join(f"        {line},\n" for line in _ctranslate2_options(metadata, tokenizers))
    (eos,) = tokenizers.tgt.pieces([EOS_ID])
    imports = ""
    location = repr(str(folder))
    if repository is not None:
        imports = "from huggingface_hub import snapshot_download\n"
        location = f"snapshot_download({repository!r})"
    return f"""\
{_unicode_import(metadata.unicode_form)}import ctranslate2
import sentencepiece
{imports}
folder = {location}
translator = ctranslate2.Translator(folder)
source = sentencepiece.SentencePieceProcessor(model_file=folder + "/{source}")
target = sentencepiece.SentencePieceProcessor(model_file=folder + "/{target}")


def translate(sentence):
    sentence = {_normalized(metadata.unicode_form)}
    if not sentence:
        return ""
    pieces = {tag}source.encode(sentence, out_type=str)
    # With a beam, outputs of this length have no EOS and may differ from those of nmt.
    longest = {_max_length(metadata, max_positions)}
    results = translator.translate_batch(
        [pieces],
{options}    )
    return target.decode([piece for piece in results[0].hypotheses[0][:longest] if piece != {eos!r}])


print(translate("A sentence."))"""


def _tag_piece(metadata: ModelMetadata, tokenizers: Tokenizers) -> str:
    """Return the piece of the model's own tag; "" if it has none."""
    if not metadata.decode.tag:
        return ""
    (piece,) = tokenizers.src.pieces([tokenizers.src.tag_id(metadata.decode.tag)])
    return piece


def _unicode_import(form: str) -> str:
    return "" if form == "none" else "import unicodedata\n\n"


def _normalized(form: str) -> str:
    """Return an expression for a sentence in the model's Unicode form, with single spaces as the only white space."""
    text = "sentence" if form == "none" else f"unicodedata.normalize({form!r}, sentence)"
    return f'" ".join({text}.split())'


def _ctranslate2_options(metadata: ModelMetadata, tokenizers: Tokenizers) -> list[str]:
    """Return the arguments of `translate_batch` as Python code."""
    one_best = metadata.decode.model_copy(update={"sampling": False, "n_best": 1})
    count = 1 if metadata.decode.sampling else min(metadata.decode.n_best, max_hypotheses(metadata.decode))
    arguments = search_arguments(
        SearchOptions.from_recipe(one_best, forbidden=forbidden_tokens(tokenizers, metadata)),
        tokenizers.tgt.all_pieces,
    )
    return [
        *(f"{name}={value!r}" for name, value in arguments.items() if value != _DEFAULT_ARGUMENTS.get(name)),
        "max_decoding_length=longest + 1",
        f"min_decoding_length={_min_length(metadata.decode)}",
        *([f"num_hypotheses={count}"] if count > 1 else []),
    ]


def _max_length(metadata: ModelMetadata, max_positions: int) -> str:
    decode = metadata.decode
    largest = max_positions - 1  # EOS needs a position, too
    limits = [f"len(pieces) + {decode.max_extra_tokens}"]
    if decode.max_length_ratio is not None:
        limits.append(f"-int(-round({decode.max_length_ratio} * len(pieces), 6) // 1)")  # rounded up
    if decode.max_tokens is not None or metadata.max_tokens + decode.max_extra_tokens > largest:
        limits.append(str(min(decode.max_tokens or largest, largest)))
    return limits[0] if len(limits) == 1 else f"min({', '.join(limits)})"


def _min_length(decode: DecodeRecipe) -> str:
    """Return an expression for the minimum length, at most the maximum, which CTranslate2 requires."""
    if not decode.min_tokens and not decode.min_length_ratio:
        return "0"
    if not decode.min_length_ratio:
        return f"min({decode.min_tokens}, longest)"
    return f"min(max({decode.min_tokens}, int(round({decode.min_length_ratio} * len(pieces), 6))), longest)"


def lost_by_ctranslate2(decode: DecodeRecipe) -> list[str]:
    """Describe the search options of a model that CTranslate2 does not support."""
    lost = []
    if decode.length_penalty == "gnmt" and decode.length_alpha:
        ours, theirs = f"((5+n)/6)^{decode.length_alpha:g}", f"n^{length_exponent(decode):g}"
        lost.append(f"length penalty gnmt, {ours} (the example uses {theirs})")
    excluding = changed_options(decode, ("forbid", "no_repeat_ngram", "min_tokens", "min_length_ratio"))
    lost += [f"{name} without renormalizing the probabilities of the other tokens" for name in excluding]
    limiting = changed_options(decode, ("max_tokens", "max_extra_tokens", "max_length_ratio"))
    lost += [f"the log-probability of EOS at the limit of {name} (replaced by 0)" for name in limiting]
    unsupported = unsupported_search_options(decode)
    if decode.mbr_metric != "none":
        unsupported.append("mbr_metric")
    lost += ["decode.stop 'exact'" if name == "stop" else f"decode.{name}" for name in unsupported]
    return lost + [name for name in changed_options(decode, NON_SEARCH_OPTIONS) if name not in lost]
