"""Score given translations with a model (forced decoding)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from nmt.checkpoint import LoadedModel, load_model
from nmt.decode.arguments import require_context, require_strings
from nmt.decode.context import ContextEncoder
from nmt.decode.task import Previous, Task
from nmt.logs import counted
from nmt.packing.packed import Batch, PackedSequences
from nmt.processes.distributed import choose_device
from nmt.search.hypothesis import in_reading_order
from nmt.special_ids import EOS_ID
from nmt.storage.model_metadata import warn_of_run
from nmt.text.context import is_blank_pair, with_previous
from nmt.text.pair_encoder import TokenPair
from nmt.text.tokenizer import Tokenizers

# Target tokens per chunk of logits: the logits of a whole batch can be larger than the model.
_CHUNK_TOKENS = 1_024


class ForwardModel(Protocol):
    """A model that computes all target positions at once, such as the Transformer in training."""

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        """Decoder output for every target position, (tgt.total, d_model)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d_model) -> (..., vocab)."""


@dataclass(frozen=True)
class PairScore:
    """Log-probability of a translation given its source; up to rounding, what search computes for the same tokens.

    log_prob:        natural logarithm of the probability, EOS included
    token_log_probs: log-probability of each token and of EOS; they sum to log_prob
    """

    log_prob: float
    token_log_probs: list[float]


@torch.inference_mode()
def score_pairs(model: ForwardModel, batch: Batch) -> list[PairScore]:
    """Score each pair of a batch with one forward pass.

    The model must be in evaluation mode, and the batch on its device. Log-probabilities are float32 in every precision.
    """
    hidden = model.forward(batch.src, batch.tgt)  # (total, d_model)
    chunks = zip(hidden.split(_CHUNK_TOKENS), batch.labels.split(_CHUNK_TOKENS), strict=True)
    log_probs = [
        model.logits(chunk).float().log_softmax(dim=-1).gather(1, labels[:, None]).squeeze(1)
        for chunk, labels in chunks
    ]
    by_sentence = torch.cat(log_probs).cpu().split(batch.tgt.lengths.tolist())
    return [PairScore(float(row.double().sum()), row.tolist()) for row in by_sentence]


@dataclass(frozen=True)
class TextScore(PairScore):
    """A `PairScore` and the pieces of the translation, EOS as `</s>`. Pieces and scores are in reading order.

    num_bytes: length of the translation in UTF-8 as the tokenizer sees it: normalized, without repeated spaces
    """

    pieces: list[str]
    num_bytes: int


@dataclass
class Likelihood:
    """Sums over scored texts.

    log_prob:  natural logarithm of the probability of all texts, EOS tokens included
    tokens:    number of tokens, EOS tokens included
    num_bytes: length of the texts, see `TextScore`
    """

    log_prob: float = 0.0
    tokens: int = 0
    num_bytes: int = 0

    def add(self, score: PairScore, num_bytes: int) -> None:
        """Add a text. num_bytes: see `TextScore`"""
        self.log_prob += score.log_prob
        self.tokens += len(score.token_log_probs)
        self.num_bytes += num_bytes

    @property
    def perplexity(self) -> float:
        """Exponential of the mean negative log-probability of a token; not comparable between tokenizers."""
        return math.exp(min(-self.log_prob / max(self.tokens, 1), 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Negative binary logarithm of the probability, divided by the bytes.

        Comparable between tokenizers with the same normalization: a lowercasing one need not predict case.
        """
        return -self.log_prob / math.log(2) / max(self.num_bytes, 1)


class TextScorer:
    """Scores text with a model, its tokenizers and its normalization.

    num_parameters:    number of parameters, tied ones counted once
    is_language_model: whether the model ignores sources
    """

    def __init__(self, loaded: LoadedModel, tokenizers: Tokenizers, device: torch.device, tag: str | None) -> None:
        """device: device of the model; tag: see `DecodeRecipe.tag`."""
        self._model, self._device = loaded.model, device
        self._encoder = loaded.pair_encoder(tokenizers, tag)
        self._context = ContextEncoder(loaded.metadata.context, tokenizers, self._encoder.unicode_form)
        self._max_tokens = min(loaded.metadata.max_tokens, self._encoder.limit)
        self.num_parameters = loaded.model.num_parameters()
        self.is_language_model = loaded.metadata.is_language_model

    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", tag: str | None = None, *, own_tag: bool = True
    ) -> TextScorer:
        """Load a model directory, a checkpoint or a run; raises UserError if there is none.

        tag:     see `DecodeRecipe.tag`
        own_tag: whether the tag of the model replaces None
        """
        torch_device = choose_device(device)
        loaded = load_model(Path(path), torch_device)
        warn_of_run(Path(path), loaded.metadata)
        if tag is None and own_tag:
            tag = loaded.metadata.decode.tag
        return cls(loaded, Tokenizers.load(loaded.directory), torch_device, tag)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        first_line: int = 1,
        *,
        names: tuple[str, str] = ("source", "target"),
        context: Sequence[Sequence[Previous]] | None = None,
    ) -> list[TextScore]:
        """Score each target as the translation of its source, in one batch. A language model ignores the sources.

        Raises UserError for a sentence that does not fit the model's positions, TypeError unless the sides are
        collections of strings, and ValueError if they differ in length.

        first_line: line number of the first pair
        names:      names of both sides in errors
        context:    previous sentences of each pair, which are not scored; see `documents`
        """
        _require_pairs(sources, targets)
        if context is not None:
            require_context(context)
            if len(context) != len(sources):
                raise ValueError(
                    f"got {counted(len(context), 'context')} for {counted(len(sources), 'pair')}; "
                    "expected one list of previous sentences per pair"
                )
            context = [tuple(previous) for previous in context]  # arrays have no truth value, and a Series has labels
        if len(sources) == 0:  # also for arrays, which have no truth value
            return []
        pairs = [self._encode(source, target) for source, target in zip(sources, targets, strict=True)]
        self._encoder.require_fit(pairs, first_line, names)
        tasks, src_tokens, tgt_tokens = [], [], []
        for i, (src, tgt) in enumerate(pairs):
            task = Task([*src], [], [])
            if context is not None:
                task = self._add_context(task, context[i], len(tgt))
            ordered_src, ordered_tgt = self._encoder.in_model_order((task.sentence, tgt))
            tasks.append(task)
            src_tokens.append(ordered_src)
            tgt_tokens.append([*task.prefix, *ordered_tgt])
        scores = score_pairs(self._model, Batch.from_lists(src_tokens, tgt_tokens).to(self._device))
        return [
            self._text_score(score, len(task.prefix), tgt)
            for score, task, (_, tgt) in zip(scores, tasks, pairs, strict=True)
        ]

    def _add_context(self, task: Task, previous: Sequence[Previous], tgt_len: int) -> Task:
        """Add previous sentences to a task; none if the target does not fit the model's positions after them."""
        limit = self._max_tokens - len(self._encoder.tag)
        (with_context,) = self._context.add([task], previous, limit)
        if len(with_context.prefix) + tgt_len <= self._encoder.limit:
            return with_context
        (without_context,) = self._context.add([task], (), limit)
        return without_context

    def _text_score(self, score: PairScore, num_previous: int, tgt: Sequence[int]) -> TextScore:
        """Return the score of a target without the previous translations before it."""
        log_probs = score.token_log_probs[num_previous:]
        return TextScore(
            sum(log_probs) if num_previous else score.log_prob,
            in_reading_order(log_probs) if self._encoder.reverse_target else log_probs,
            self._encoder.tokenizers.tgt.pieces([*tgt, EOS_ID]),
            len(self._encoder.tokenizers.tgt.decode(list(tgt)).encode(errors="surrogatepass")),
        )

    @property
    def normalization(self) -> str:
        """Describe how texts are normalized, such as `NFC, lowercased`."""
        lowercases = self._encoder.tokenizers.tgt.lowercases()
        return f"{self._encoder.unicode_form}{', lowercased' if lowercases else ''}"

    def documents(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[Previous, ...]] | None:
        """Return the context of each pair; empty pairs end a document. None if the model uses no context."""
        _require_pairs(sources, targets)
        context = self._context.context
        if not context.size:
            return None
        pairs = with_previous(zip(sources, targets, strict=True), context.size, is_blank_pair)
        return [previous if context.has_target else tuple(src for src, _ in previous) for _, previous in pairs]

    def fits(self, source: str, target: str) -> bool:
        """Return whether both sides fit the model's positions."""
        return self._encoder.fits(self._encode(source, target))

    def _encode(self, source: str, target: str) -> TokenPair:
        return self._encoder.encode("" if self.is_language_model else source, target)


def _require_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise TypeError unless both sides are collections of strings, and ValueError if they differ in length."""
    require_strings("sources", sources)
    require_strings("targets", targets)
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources and {len(targets)} targets; expected one target per source")
