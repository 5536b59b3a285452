"""Scoring: how probable a model finds given translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from nmt.checkpoint import LoadedModel, load_model
from nmt.packing.packed import Batch, PackedSequences
from nmt.processes.distributed import choose_device
from nmt.recipe import UserError
from nmt.search.hypothesis import in_order_of_reading
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.clean import UnicodeForm, normalize
from nmt.text.tokenizer import Tokenizers

# Logits are made for this many target tokens at a time, because a whole batch of them can be larger than the model.
_TOKENS_AT_A_TIME = 1_024


class ForwardModel(Protocol):
    """A model that reads a whole translation at once, such as the Transformer in training."""

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        """What the model says at each target position, (tgt.total, d_model)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d_model) -> unnormalised scores over the vocabulary, (..., vocab)."""


@dataclass(frozen=True)
class PairScore:
    """How probable a translation is, given its source.

    log_prob:        natural logarithm of its probability, end token included: what search gives for the same tokens
    token_log_probs: of each token and of the end token; they sum to log_prob
    """

    log_prob: float
    token_log_probs: list[float]


@torch.inference_mode()
def score_pairs(model: ForwardModel, batch: Batch) -> list[PairScore]:
    """Score each pair of a batch, in its order, with one pass through the model (in evaluation mode).

    The batch lies on the model's device; the logarithms are taken in float32 whatever the model computes in.
    """
    hidden = model.forward(batch.src, batch.tgt)  # (total, d_model)
    chunks = zip(hidden.split(_TOKENS_AT_A_TIME), batch.labels.split(_TOKENS_AT_A_TIME), strict=True)
    log_probs = [
        model.logits(part).float().log_softmax(dim=-1).gather(1, labels[:, None]).squeeze(1) for part, labels in chunks
    ]
    by_sentence = torch.cat(log_probs).cpu().split(batch.tgt.lengths.tolist())
    return [PairScore(float(row.double().sum()), row.tolist()) for row in by_sentence]


@dataclass(frozen=True)
class TextScore:
    """A `PairScore` with the tokens of the translation in written form, the end token as `</s>`.

    The tokens are in the order of reading, also where the model writes from right to left.
    """

    log_prob: float
    token_log_probs: list[float]
    pieces: list[str]


class Scorer:
    """A model with all that stands between it and text, to say how probable given translations are."""

    def __init__(self, loaded: LoadedModel, tokenizers: Tokenizers, device: torch.device) -> None:
        """Score with a model that lies on `device`."""
        self._model, self._tokenizers, self._device = loaded.model, tokenizers, device
        self._unicode_form = cast(UnicodeForm, loaded.facts.unicode_form)
        self._limit = loaded.model.recipe.max_positions - 1
        self._reverse_target = loaded.facts.reverse_target
        tag = loaded.facts.decode.tag
        self._tag = [] if tag is None else [tokenizers.src.tag_id(tag)]

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", tag: str | None = None) -> Scorer:
        """The scorer of a model directory, a checkpoint or a run; UserError where there is none.

        tag: put before each source, by default that of the model's own recipe; see `DecodeRecipe.tag`
        """
        place = choose_device(device)
        loaded = load_model(Path(path), place)
        if tag is not None:
            decode = loaded.facts.decode.model_copy(update={"tag": tag})
            loaded = replace(loaded, facts=replace(loaded.facts, decode=decode))
        return cls(loaded, Tokenizers.load(loaded.directory), place)

    def score(self, sources: Sequence[str], targets: Sequence[str], first_line: int = 1) -> list[TextScore]:
        """Score each target as the translation of its source, together as one batch.

        Raises UserError for a sentence longer than the model's positions; `first_line` is the number to call it by.
        """
        encoded = [self._encode(source, target) for source, target in zip(sources, targets, strict=True)]
        src_ids, tgt_ids = [src for src, _ in encoded], [tgt for _, tgt in encoded]
        self._check_lengths(src_ids, tgt_ids, first_line)
        as_written = [ids[::-1] for ids in tgt_ids] if self._reverse_target else tgt_ids
        labels = [[*ids, EOS_ID] for ids in as_written]
        batch = Batch(
            src=PackedSequences.from_lists([[*ids, EOS_ID] for ids in src_ids]),
            tgt=PackedSequences.from_lists([[BOS_ID, *ids] for ids in as_written]),
            labels=PackedSequences.from_lists(labels).tokens,
        )
        return [
            TextScore(
                pair.log_prob,
                in_order_of_reading(pair.token_log_probs) if self._reverse_target else pair.token_log_probs,
                self._tokenizers.tgt.pieces([*ids, EOS_ID]),
            )
            for pair, ids in zip(score_pairs(self._model, batch.to(self._device)), tgt_ids, strict=True)
        ]

    def fits(self, source: str, target: str) -> bool:
        """Whether the model has positions for both sides of a pair."""
        return max(map(len, self._encode(source, target))) <= self._limit

    def _encode(self, source: str, target: str) -> tuple[list[int], list[int]]:
        form = self._unicode_form
        src, tgt = self._tokenizers.src, self._tokenizers.tgt
        return [*self._tag, *src.encode(normalize(source, form))], tgt.encode(normalize(target, form))

    def _check_lengths(self, src_ids: Sequence[list[int]], tgt_ids: Sequence[list[int]], first_line: int) -> None:
        for number, (src, tgt) in enumerate(zip(src_ids, tgt_ids, strict=True), start=first_line):
            if max(len(src), len(tgt)) > self._limit:
                raise UserError(
                    f"line {number} has {max(len(src), len(tgt))} tokens; the model holds {self._limit}; "
                    "split the sentence"
                )
