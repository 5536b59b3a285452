"""Parity checks: sample sentences through a model and its export, and how far apart the two are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nmt.checkpoint import LoadedModel
from nmt.decode.scoring import score_pairs
from nmt.decode.text_translator import Task
from nmt.export.capabilities import EngineDevice
from nmt.export.ctranslate2 import Quantization
from nmt.export.engine import CTranslate2Engine
from nmt.export.packages import load_package
from nmt.export.rounding import round_weights
from nmt.export.sentences import Sentences
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import UserError
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.clean import UnicodeForm, normalize
from nmt.text.tokenizer import Tokenizers

_AT_A_TIME = 16

MOST_LOG_PROB_DIFFERENCE = 1e-4
"""Of any token at any place, in float32 arithmetic. Measured with the quickstart model: 1.1e-5 for transformers, and
1e-5 for CTranslate2 with weights of every type."""

# What rounded weights and CTranslate2's own arithmetic may change a token's log-probability by, on average. Measured
# with the quickstart model on text and on random pieces: float16 0.0001 and 0.0008, bfloat16 0.001 and 0.007, int8
# 0.003 and 0.027.
_MOST_ON_AVERAGE: Mapping[str, float] = {"float16": 0.005, "bfloat16": 0.05}
_MOST_ON_AVERAGE_OF_INT8 = 0.1
# What of greedy translations must be the same in the same arithmetic: near ties may tip.
_SAME_TRANSLATIONS = 0.95


@dataclass(frozen=True)
class Parity:
    """Whether an export agrees with its model, and what was compared, in words with the limits."""

    passed: bool
    figures: str


class _Sample:
    """Sentences as tokens, and their greedy translations by a model, on the CPU in float32."""

    def __init__(
        self, loaded: LoadedModel, tokenizers: Tokenizers, lines: Sequence[str], model: Transformer | None = None
    ) -> None:
        """model: that of `loaded` unless another is given."""
        self.model, self.tokenizers = model or loaded.model, tokenizers
        form = cast(UnicodeForm, loaded.facts.unicode_form)
        most = min(loaded.facts.max_tokens, loaded.model.recipe.max_positions - 1)
        encoded = {text: tokenizers.src.encode(text) for text in (normalize(line, form) for line in lines)}
        self.lines = [text for text, tokens in encoded.items() if 0 < len(tokens) <= most]
        if not self.lines:
            raise UserError(
                f"no sentence of the sample has 1 to {most} tokens; the parity check needs one; give others by --sample"
            )
        self.sources = [encoded[line] for line in self.lines]
        self.options = SearchOptions(
            beam_size=1, length_penalty="none", max_tokens=loaded.model.recipe.max_positions - 1
        )
        self.translations = [list(found.tokens) for found in self._translate()]

    def _translate(self) -> list[Hypothesis]:
        found: list[list[Hypothesis]] = []
        for part in self.parts:
            batch = [[*tokens, EOS_ID] for tokens in self.sources[part]]
            found += beam_search(self.model, PackedSequences.from_lists(batch), self.options)
        if not all(found):
            raise UserError(
                "the model gives nothing but NaN for some sentences; its weights must be finite; use another checkpoint"
            )
        return [best[0] for best in found]

    def batch(self, part: slice, outputs: Sequence[Sequence[int]]) -> Batch:
        """Some of the sentences with outputs, as training has them."""
        return Batch(
            src=PackedSequences.from_lists([[*tokens, EOS_ID] for tokens in self.sources[part]]),
            tgt=PackedSequences.from_lists([[BOS_ID, *tokens] for tokens in outputs]),
            labels=PackedSequences.from_lists([[*tokens, EOS_ID] for tokens in outputs]).tokens,
        )

    @property
    def parts(self) -> list[slice]:
        """The sentences in portions."""
        return [slice(start, start + _AT_A_TIME) for start in range(0, len(self.sources), _AT_A_TIME)]


# --- CTranslate2 ------------------------------------------------------------------------------------------------------


def check_ctranslate2(
    loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, quantization: Quantization, sentences: Sentences
) -> Parity:
    """Compare greedy translations, and the log-probabilities that both give to the tokens of CTranslate2's.

    In float32 arithmetic, with the model of which the weights were rounded like the export's. Where they were rounded,
    also in CTranslate2's own arithmetic, with the model as it is.
    """
    rounded = _Sample(loaded, tokenizers, sentences.lines, round_weights(loaded.model, quantization))
    exact = _compare(rounded, _load_engine(exported, tokenizers, "float32"))
    passed = exact.furthest <= MOST_LOG_PROB_DIFFERENCE and exact.same >= _SAME_TRANSLATIONS * exact.sentences
    figures = f"{exact.sentences} sentences {sentences.origin}, in float32 arithmetic"
    if quantization != "float32":
        figures += f" with weights rounded to {quantization} on both sides"
    figures += (
        f": log-probabilities of tokens differ by at most {exact.furthest:.2g} (limit {MOST_LOG_PROB_DIFFERENCE:g}), "
        f"{exact.same} of {exact.sentences} greedy translations are the same (limit {_SAME_TRANSLATIONS:.0%})"
    )
    if quantization == "float32":
        return Parity(passed, figures)
    unrounded = _Sample(loaded, tokenizers, sentences.lines)
    own = _compare(unrounded, _load_engine(exported, tokenizers, _own_arithmetic(quantization)))
    limit = _MOST_ON_AVERAGE.get(quantization, _MOST_ON_AVERAGE_OF_INT8)
    figures += (
        f"; in CTranslate2's own arithmetic on a CPU, against the model without rounding: by {own.mean:.2g} on average "
        f"(limit {limit:g}) and by at most {own.furthest:.2g}, and {own.same} of {own.sentences} greedy translations "
        "are the same"
    )
    return Parity(passed and own.mean <= limit, figures)


@dataclass(frozen=True)
class _Comparison:
    """Of how many sentences the greedy translation is the same, and differences of log-probabilities of tokens."""

    sentences: int
    same: int
    furthest: float
    mean: float


def _compare(sample: _Sample, engine: CTranslate2Engine) -> _Comparison:
    tasks = [Task(tokens, [], []) for tokens in sample.sources]
    found = [best[0] for best in engine.search(tasks, sample.options, batch_tokens=1_024)]
    same = sum(one.tokens == own for one, own in zip(found, sample.translations, strict=True))
    apart: list[float] = []
    for part in sample.parts:
        scored = score_pairs(sample.model, sample.batch(part, [one.tokens for one in found[part]]))
        for own, one in zip(scored, found[part], strict=True):
            apart += [abs(a - b) for a, b in zip(own.token_log_probs, one.token_log_probs, strict=True)]
    return _Comparison(len(found), same, max(apart, default=0.0), sum(apart) / max(len(apart), 1))


def _load_engine(exported: Path, tokenizers: Tokenizers, arithmetic: str) -> CTranslate2Engine:
    return CTranslate2Engine(exported, tokenizers, EngineDevice("cpu"), arithmetic)


def _own_arithmetic(quantization: Quantization) -> str:
    """What CTranslate2 computes such weights in on this CPU, named so that it need not warn of having chosen."""
    supported = load_package("ctranslate2").get_supported_compute_types("cpu")
    if quantization in supported:
        return quantization
    return "int8_float32" if quantization.startswith("int8") else "float32"


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def check_huggingface(loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, sentences: Sentences) -> Parity:
    """Compare tokens, texts, and log-probabilities of all pieces at all places of our greedy translations."""
    sample = _Sample(loaded, tokenizers, sentences.lines)
    model, tokenizer = load_huggingface(exported)
    furthest, same_tokens, same_texts = 0.0, 0, 0
    for part in sample.parts:
        outputs, own_lines = sample.translations[part], sample.lines[part]
        encoded = tokenizer(own_lines, padding=True, return_tensors="pt")
        rows = zip(encoded["input_ids"], encoded["attention_mask"], sample.sources[part], strict=True)
        same_tokens += sum(ids[mask.bool()].tolist() == [*own, EOS_ID] for ids, mask, own in rows)
        texts = tokenizer.batch_decode([[BOS_ID, *tokens, EOS_ID] for tokens in outputs], skip_special_tokens=True)
        own_texts = map(tokenizers.tgt.decode, outputs)
        same_texts += sum(text.split() == own.split() for text, own in zip(texts, own_texts, strict=True))
        furthest = max(furthest, _largest_difference(model, sample, part))
    count = len(sample.lines)
    figures = (
        f"{count} sentences {sentences.origin}: log-probabilities of all tokens differ by at most {furthest:.2g} "
        f"(limit {MOST_LOG_PROB_DIFFERENCE:g}), {same_tokens} of {count} sentences have the same tokens and "
        f"{same_texts} of {count} translations the same text (limit: all)"
    )
    passed = furthest <= MOST_LOG_PROB_DIFFERENCE and same_tokens == same_texts == count
    return Parity(passed, figures)


@torch.inference_mode()
def _largest_difference(model: Any, sample: _Sample, part: slice) -> float:
    """Between the two log-probabilities of any piece at any place of some translations, the sources as we cut them."""
    batch = sample.batch(part, sample.translations[part])
    own = sample.model.logits(sample.model(batch.src, batch.tgt)).log_softmax(dim=-1)  # (total, vocab)
    inputs, mask = _pad(batch.src)
    logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=_pad(batch.tgt)[0]).logits
    theirs = logits.float().log_softmax(dim=-1)[_pad(batch.tgt)[1].bool()]  # (total, vocab)
    return float((own - theirs).abs().max())


def _pad(packed: PackedSequences) -> tuple[Tensor, Tensor]:
    """Tokens and mask of packed sentences in a rectangle, both (num_sentences, max_length)."""
    mask = torch.arange(packed.max_length) < packed.lengths[:, None]
    tokens = torch.zeros(mask.shape, dtype=torch.int64)
    tokens[mask] = packed.tokens
    return tokens, mask.long()


def load_huggingface(directory: Path) -> tuple[Any, Any]:
    """Model (float32, for evaluation) and tokenizer of a directory, as transformers loads them; without its remarks.

    Raises UserError when it cannot load them.
    """
    transformers = load_package("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(directory)).float().eval()
        return model, transformers.AutoTokenizer.from_pretrained(str(directory))
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        detail = " ".join(str(error).split())
        raise UserError(
            f"transformers cannot load {directory}: {detail}; it must be a whole model; report this"
        ) from error
