"""Proofs that an exported model is the model: sample sentences through both, and how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nmt.checkpoint import LoadedModel
from nmt.data.clean import UnicodeForm, normalize
from nmt.data.embedded import generate
from nmt.data.tokenizer import Tokenizers
from nmt.decode.hypothesis import Hypothesis
from nmt.decode.options import SearchOptions
from nmt.decode.scoring import score_pairs
from nmt.decode.search import beam_search
from nmt.decode.text_translator import Task
from nmt.export.ctranslate2 import Quantization
from nmt.export.engine import CTranslate2Engine
from nmt.export.packages import load_package
from nmt.packed import Batch, PackedSequences
from nmt.recipe import UserError
from nmt.special_ids import BOS_ID, EOS_ID

EMBEDDED_SENTENCES = 24
_AT_A_TIME = 16

MOST_LOG_PROB_DIFFERENCE = 1e-4
"""Of any token at any place, between our model and Hugging Face's."""

# Of any token of a translation, between our model and CTranslate2's; weights rounded to 8 bits differ most.
_MOST_OF_CTRANSLATE2: Mapping[str, float] = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.5}
_MOST_OF_INT8 = 1.0
# What of greedy translations must be the same where no weight was rounded: near ties may tip.
_SAME_TRANSLATIONS = 0.95


@dataclass(frozen=True)
class Proof:
    """Whether an export is the model, and the figures in words."""

    passed: bool
    figures: str


def sample_sentences(src_lang: str) -> list[str]:
    """Sentences of the embedded corpus, German ones for models that translate German."""
    pairs = islice(generate("test", EMBEDDED_SENTENCES, seed=1), EMBEDDED_SENTENCES)
    return [pair.tgt if src_lang == "de" else pair.src for pair in pairs]


class _Sample:
    """Sentences as tokens, and their greedy translations by our model, on the CPU in float32."""

    def __init__(self, loaded: LoadedModel, tokenizers: Tokenizers, lines: Sequence[str]) -> None:
        self.model, self.tokenizers = loaded.model, tokenizers
        form = cast(UnicodeForm, loaded.facts.unicode_form)
        most = min(loaded.facts.max_tokens, loaded.model.recipe.max_positions - 1)
        encoded = {text: tokenizers.src.encode(text) for text in (normalize(line, form) for line in lines)}
        self.lines = [text for text, tokens in encoded.items() if 0 < len(tokens) <= most]
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


def prove_ctranslate2(
    loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, quantization: Quantization, lines: Sequence[str]
) -> Proof:
    """Compare greedy translations, and the log-probabilities that both give to the tokens of CTranslate2's."""
    sample = _Sample(loaded, tokenizers, lines)
    engine = CTranslate2Engine(exported, tokenizers, torch.device("cpu"), "default")
    tasks = [Task(tokens, [], []) for tokens in sample.sources]
    found = [best[0] for best in engine.search(tasks, sample.options, batch_tokens=1_024)]
    same = sum(one.tokens == own for one, own in zip(found, sample.translations, strict=True))
    furthest, total, tokens = 0.0, 0.0, 0
    for part in sample.parts:
        for own, one in zip(
            score_pairs(sample.model, sample.batch(part, [one.tokens for one in found[part]])), found[part], strict=True
        ):
            apart = [abs(a - b) for a, b in zip(own.token_log_probs, one.token_log_probs, strict=True)]
            furthest, total, tokens = max(furthest, *apart), total + sum(apart), tokens + len(apart)
    is_near = furthest <= _MOST_OF_CTRANSLATE2.get(quantization, _MOST_OF_INT8)
    is_same = quantization != "float32" or same >= _SAME_TRANSLATIONS * len(found)
    figures = (
        f"{same} of {len(found)} greedy translations are the same; log-probabilities of tokens differ by at most "
        f"{furthest:.2g}, on average {total / max(tokens, 1):.2g}"
    )
    return Proof(bool(found) and is_near and is_same, figures)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def prove_huggingface(loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, lines: Sequence[str]) -> Proof:
    """Compare tokens, texts, and log-probabilities of all pieces at all places of our greedy translations."""
    sample = _Sample(loaded, tokenizers, lines)
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
        f"log-probabilities differ by at most {furthest:.2g}; {same_tokens} of {count} sentences have the same tokens "
        f"and {same_texts} of {count} translations the same text"
    )
    passed = count > 0 and furthest <= MOST_LOG_PROB_DIFFERENCE and same_tokens == same_texts == count
    return Proof(passed, figures)


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
