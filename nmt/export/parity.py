"""Parity checks: compare the translations and log-probabilities of a model and its export on sample sentences."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint import LoadedModel
from nmt.data.prepare import load_prepared
from nmt.decode.scoring import score_pairs
from nmt.decode.task import Task
from nmt.errors import UserError, message_of
from nmt.export.capabilities import EngineDevice
from nmt.export.ctranslate2 import Quantization
from nmt.export.engine import CTranslate2Engine
from nmt.export.packages import load_package
from nmt.logs import counted
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.clean import normalize
from nmt.text.subword_file import PieceKind, read_pieces
from nmt.text.tokenizer import Tokenizer, Tokenizers

NUM_SENTENCES = 24
"""Size of the default sample."""
MAX_LOG_PROB_DIFFERENCE = 1e-4
"""Maximum difference of token log-probabilities in float32. Measured with the quickstart model: 1.1e-5 for
transformers, 1e-5 for CTranslate2 with all weight types."""

_BATCH_SIZE = 16
_MAX_RANDOM_PIECES = 20
_MIN_EQUAL_FRACTION = 0.95  # of greedy translations in the same precision: rounding may decide ties

# Maximum mean difference of token log-probabilities from the unrounded model, in CTranslate2's compute type. Measured
# with the quickstart model on text and on random pieces: float16 0.0001 and 0.0008, bfloat16 0.001 and 0.007, int8
# 0.003 and 0.027.
_MAX_MEAN_DIFFERENCE: Mapping[str, float] = {"float16": 0.005, "bfloat16": 0.05}
_MAX_MEAN_DIFFERENCE_INT8 = 0.1


@dataclass(frozen=True)
class Parity:
    """Result of a parity check, and a summary of the comparison with its limits."""

    passed: bool
    summary: str


# --- Sample -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Sentences and a description of their origin."""

    lines: list[str]
    origin: str


def default_sample(loaded: LoadedModel, tokenizer: Tokenizer) -> Sample:
    """Return evenly spaced validation sentences of the model's run; without a run, random pieces of the tokenizer."""
    if validation := _validation_lines(loaded.directory.resolve()):
        lines = [validation[i * len(validation) // NUM_SENTENCES] for i in range(NUM_SENTENCES)]
        return Sample(list(dict.fromkeys(lines)), "the validation set")
    ordinary = [i for i, piece in enumerate(read_pieces(tokenizer.model)) if piece.kind == PieceKind.ordinary]
    rng = random.Random(1)
    lines = [
        tokenizer.decode(rng.choices(ordinary, k=rng.randint(1, _MAX_RANDOM_PIECES)))
        for _ in range(NUM_SENTENCES if ordinary else 0)
    ]
    return Sample(lines, "random pieces of the source tokenizer")


def _validation_lines(model: Path) -> list[str]:
    """Return the nonempty validation lines of the run that contains a model or checkpoint; [] without a run."""
    for run in (model.parent, model.parent.parent):
        with suppress(UserError):
            return [line for line in load_prepared(run / "data").valid_set().src if line.strip()]
    return []


class _Reference:
    """Sample sentences as tokens, and their greedy translations by a model on the CPU in float32."""

    def __init__(self, loaded: LoadedModel, tokenizers: Tokenizers, lines: Sequence[str], model: Transformer) -> None:
        self.model = model
        form = loaded.metadata.unicode_form
        max_tokens = min(loaded.metadata.max_tokens, model.recipe.max_positions - 1)
        normalized = [normalize(line, form) for line in lines]
        encoded = {text: tokenizers.src.encode(text) for text in normalized}
        self.lines = [text for text, tokens in encoded.items() if 0 < len(tokens) <= max_tokens]
        if not self.lines:
            raise UserError(
                f"no sentence of the sample has 1 to {max_tokens} tokens; the parity check needs one (for Hugging "
                "Face, without `>>...<<` at the beginning); pass other sentences with --sample"
            )
        self.sources = [encoded[line] for line in self.lines]
        self.options = SearchOptions(beam_size=1, length_penalty="none", max_tokens=model.recipe.max_positions - 1)
        self.translations = [list(hypothesis.tokens) for hypothesis in self._translate()]

    @property
    def slices(self) -> list[slice]:
        """Slices of the sentences, one per batch."""
        return [slice(start, start + _BATCH_SIZE) for start in range(0, len(self.sources), _BATCH_SIZE)]

    def _translate(self) -> list[Hypothesis]:
        n_best_lists: list[list[Hypothesis]] = []
        for batch in self.slices:
            src = PackedSequences.from_lists([[*tokens, EOS_ID] for tokens in self.sources[batch]])
            n_best_lists += beam_search(self.model, src, self.options)
        if not all(n_best_lists):
            raise UserError(
                "the model's log-probabilities are NaN for some sentences; its weights must be finite; use another "
                "checkpoint"
            )
        return [hypotheses[0] for hypotheses in n_best_lists]


# --- CTranslate2 ------------------------------------------------------------------------------------------------------


def check_ctranslate2(
    loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, quantization: Quantization, sample: Sample
) -> Parity:
    """Compare greedy translations, and the log-probabilities of CTranslate2's translations.

    The first comparison computes in float32, with the weights of the model rounded like those of the export: it detects
    a wrong weight even if its effect is small. If weights are rounded, a second comparison checks the export, in
    CTranslate2's compute type, against the unrounded model.
    """
    exact = _compare(loaded, tokenizers, exported, sample, round_weights(loaded.transformer, quantization), "float32")
    passed = exact.max_difference <= MAX_LOG_PROB_DIFFERENCE and exact.num_equal >= _MIN_EQUAL_FRACTION * exact.total
    summary = f"{counted(exact.total, 'sentence')} of {sample.origin}, computed in float32"
    if quantization != "float32":
        summary += f" with weights rounded to {quantization} on both sides"
    summary += (
        f": log-probabilities of tokens differ by at most {exact.max_difference:.2g} "
        f"(limit {MAX_LOG_PROB_DIFFERENCE:g}), {exact.num_equal} of {exact.total} greedy translations are the same "
        f"(limit {_MIN_EQUAL_FRACTION:.0%})"
    )
    if quantization == "float32":
        return Parity(passed, summary)
    quantized = _compare(loaded, tokenizers, exported, sample, loaded.transformer, _cpu_compute_type(quantization))
    limit = _MAX_MEAN_DIFFERENCE.get(quantization, _MAX_MEAN_DIFFERENCE_INT8)
    summary += (
        "; in CTranslate2's compute type on a CPU, log-probabilities differ from those of the unrounded model by "
        f"{quantized.mean_difference:.2g} on average (limit {limit:g}) and by at most {quantized.max_difference:.2g}, "
        f"and {quantized.num_equal} of {quantized.total} greedy translations are the same"
    )
    return Parity(passed and quantized.mean_difference <= limit, summary)


@dataclass(frozen=True)
class _Comparison:
    """Number of equal greedy translations, and differences of token log-probabilities."""

    total: int
    num_equal: int
    max_difference: float
    mean_difference: float


def _compare(
    loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, sample: Sample, model: Transformer, compute_type: str
) -> _Comparison:
    """Compare the model of `loaded`, or a copy with rounded weights, with the export in a compute type.

    The logits of the model are computed in float64, and their softmax in float32.
    """
    reference = _Reference(loaded, tokenizers, sample.lines, model)
    engine = CTranslate2Engine(exported, tokenizers, EngineDevice("cpu"), compute_type)
    tasks = [Task(tokens, [], []) for tokens in reference.sources]
    n_best_lists = engine.start_search(tasks, reference.options, batch_tokens=1_024, scores=True)()
    if not all(n_best_lists):
        raise UserError(
            f"the parity check failed: CTranslate2 returns NaN in {compute_type} for some sentences; log-probabilities "
            "must be finite; try another --quantization, or report this"
        )
    hypotheses = [n_best[0] for n_best in n_best_lists]
    num_equal = sum(
        hypothesis.tokens == expected for hypothesis, expected in zip(hypotheses, reference.translations, strict=True)
    )
    differences: list[float] = []
    exact = copy.deepcopy(reference.model).double()  # float32 would add its own rounding, up to the limit
    for batch in reference.slices:
        outputs = [hypothesis.tokens for hypothesis in hypotheses[batch]]
        scores = score_pairs(exact, Batch.from_lists(reference.sources[batch], outputs))
        for score, hypothesis in zip(scores, hypotheses[batch], strict=True):
            pairs = zip(score.token_log_probs, hypothesis.token_log_probs, strict=True)
            differences += [abs(a - b) for a, b in pairs]
    mean = sum(differences) / len(differences)
    return _Comparison(len(hypotheses), num_equal, max(differences), mean)


def _cpu_compute_type(quantization: Quantization) -> str:
    """Return the compute type that CTranslate2 selects on this CPU; naming it avoids a warning."""
    supported = load_package("ctranslate2").get_supported_compute_types("cpu")
    if quantization in supported:
        return quantization
    return "int8_float32" if quantization.startswith("int8") else "float32"


# --- Rounding ---------------------------------------------------------------------------------------------------------

_DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8_float16": torch.float16,
    "int8_bfloat16": torch.bfloat16,
}


@torch.no_grad()
def round_weights(model: Transformer, quantization: Quantization) -> Transformer:
    """Return a float32 copy with weights rounded like CTranslate2's; for float32, the model itself.

    int8 types quantize the matrices of linear layers and embeddings, with one scale per row. Other tensors have
    the type at the end of the name, or float32 for `int8`. CTranslate2 computes rotary encodings itself.
    """
    if quantization == "float32":
        return model
    rounded = copy.deepcopy(model)
    dtype = _DTYPES.get(quantization)
    for name, tensor in (*rounded.named_parameters(), *rounded.named_buffers()):
        leaf = name.rpartition(".")[2]
        if leaf == "weight" and tensor.dim() == 2 and quantization.startswith("int8"):
            tensor.copy_(_round_to_int8(tensor))
        elif dtype is not None and leaf != "rotary":
            tensor.copy_(tensor.to(dtype))
    return rounded


def _round_to_int8(weight: Tensor) -> Tensor:
    """Quantize a matrix (rows, columns) symmetrically per row and dequantize it."""
    steps = weight.new_tensor(127.0)  # as a tensor: `127.0 / tensor` rounds twice and may differ in the last bit
    max_abs = weight.abs().amax(dim=1, keepdim=True)
    scale = steps / max_abs.where(max_abs > 0, steps)
    return (weight * scale).round() / scale


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def check_huggingface(loaded: LoadedModel, tokenizers: Tokenizers, exported: Path, sample: Sample) -> Parity:
    """Compare tokens, texts, and log-probabilities of the whole vocabulary at all positions of greedy translations.

    Leaves out sentences that begin with `>>...<<`, which Marian's tokenizer reads as a language code, unless that is a
    piece of the source tokenizer.
    """
    codes = {None, *tokenizers.src.all_pieces}
    form = loaded.metadata.unicode_form
    lines = [line for line in sample.lines if _language_code(normalize(line, form)) in codes]
    reference = _Reference(loaded, tokenizers, lines, loaded.transformer)
    model, tokenizer = load_huggingface(exported)
    max_difference, equal_tokens, equal_texts = 0.0, list[bool](), list[bool]()
    for batch in reference.slices:
        outputs = reference.translations[batch]
        encoded = tokenizer(reference.lines[batch], padding=True, return_tensors="pt")
        rows = zip(encoded["input_ids"], encoded["attention_mask"], reference.sources[batch], strict=True)
        equal_tokens += [ids[mask.bool()].tolist() == [*tokens, EOS_ID] for ids, mask, tokens in rows]
        texts = tokenizer.batch_decode([[BOS_ID, *tokens, EOS_ID] for tokens in outputs], skip_special_tokens=True)
        expected = map(tokenizers.tgt.decode, outputs)
        equal_texts += [a.split() == b.split() for a, b in zip(texts, expected, strict=True)]
        max_difference = max(max_difference, _max_log_prob_difference(model, reference, batch))
    total = len(reference.lines)
    summary = (
        f"{counted(total, 'sentence')} of {sample.origin}: log-probabilities of all tokens differ by at most "
        f"{max_difference:.2g} (limit {MAX_LOG_PROB_DIFFERENCE:g}), {sum(equal_tokens)} of {total} sentences have "
        f"the same tokens and {sum(equal_texts)} of {total} translations the same text (limit: all)"
    )
    equal = map(all, zip(equal_tokens, equal_texts, strict=True))
    different = [line for line, is_equal in zip(reference.lines, equal, strict=True) if not is_equal]
    if different:
        summary += f"; the first different sentence is {different[0]!r}"
    return Parity(max_difference <= MAX_LOG_PROB_DIFFERENCE and not different, summary)


def _language_code(line: str) -> str | None:
    """Return the beginning of a line that Marian's tokenizer reads as a language code; None if there is none."""
    return line[: line.index("<<") + 2] if line.startswith(">>") and "<<" in line else None


@torch.inference_mode()
def _max_log_prob_difference(model: Any, reference: _Reference, selected: slice) -> float:
    """Compare the log-probabilities of nmt and transformers, given the same tokens; NaN counts as infinite."""
    batch = Batch.from_lists(reference.sources[selected], reference.translations[selected])
    expected = reference.model.logits(reference.model(batch.src, batch.tgt)).log_softmax(dim=-1)  # (total, vocab)
    inputs, mask = _pad(batch.src)
    decoder_inputs, decoder_mask = _pad(batch.tgt)
    logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs).logits
    actual = logits.float().log_softmax(dim=-1)[decoder_mask.bool()]  # (total, vocab)
    return float((expected - actual).abs().nan_to_num(torch.inf).max())


def _pad(packed: PackedSequences) -> tuple[Tensor, Tensor]:
    """Return padded tokens and their mask, both (num_sentences, max_length)."""
    mask = torch.arange(packed.max_length) < packed.lengths[:, None]
    tokens = torch.zeros(mask.shape, dtype=torch.int64)
    tokens[mask] = packed.tokens
    return tokens, mask.long()


def load_huggingface(directory: Path) -> tuple[Any, Any]:
    """Load a float32 model in evaluation mode and its tokenizer, and silence the messages of transformers.

    Raises UserError if transformers cannot load them.
    """
    transformers = load_package("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(directory)).float().eval()
        return model, transformers.AutoTokenizer.from_pretrained(str(directory))
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise UserError(
            f"transformers cannot load {directory}: {message_of(error)}; the model must be complete; report this"
        ) from error
