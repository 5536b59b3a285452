"""Sentence pairs for measuring heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nmt.checkpoint import LoadedModel
from nmt.data.epoch_plan import plan_by_length
from nmt.packing.packed import Batch
from nmt.storage.model_metadata import require_kind
from nmt.text.tokenizer import Tokenizers

# Maximum tokens of each side of a batch. The logits of a batch are kept for the gradient.
_BATCH_TOKENS = 1_024


@dataclass(frozen=True)
class Pairs:
    """Token ids of sentence pairs in the order of the model.

    sources:        tokens with the model's tag, without EOS
    targets:        tokens without BOS and EOS; reversed for a right-to-left model
    tag_length:     tokens of the tag
    reverse_target: whether the targets are reversed
    """

    sources: list[list[int]]
    targets: list[list[int]]
    tag_length: int = 0
    reverse_target: bool = False

    @classmethod
    def encode(
        cls, loaded: LoadedModel, tokenizers: Tokenizers, sources: Sequence[str], targets: Sequence[str]
    ) -> Pairs:
        """Tokenize pairs of lines; raises UserError for a language model and for a sentence that is too long."""
        require_kind(loaded.directory, loaded.metadata, language_model=False)
        encoder = loaded.pair_encoder(tokenizers, loaded.metadata.decode.tag)
        pairs = [encoder.encode(source, target) for source, target in zip(sources, targets, strict=True)]
        encoder.require_fit(pairs)
        ordered = [encoder.in_model_order(pair) for pair in pairs]
        return cls([src for src, _ in ordered], [tgt for _, tgt in ordered], len(encoder.tag), encoder.reverse_target)

    def batches(self, device: torch.device) -> list[tuple[list[int], Batch]]:
        """Return batches of pairs of similar length, each with the indices of its pairs."""
        lengths = [np.array([len(ids) for ids in side], dtype=np.int64) for side in (self.sources, self.targets)]
        plan = plan_by_length(*lengths, micro_batch_tokens=_BATCH_TOKENS)
        return [
            (ids.tolist(), Batch.from_lists([self.sources[i] for i in ids], [self.targets[i] for i in ids]).to(device))
            for ids in plan
        ]
