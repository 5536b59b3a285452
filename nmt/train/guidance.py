"""Guided alignment: train one head of the cross-attention to align words.

The loss of a target token is the cross-entropy of the attention of that head with the links of the token, which have
equal probabilities (Chen et al. 2016, "Guided Alignment Training for Topic-Aware Neural Machine Translation"; Garg et
al. 2019, "Jointly Learning to Align and Translate with Transformer Models"). Tokens without links do not contribute.
Only training computes the loss, from the weights of one head before dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.alignment.attention import ChosenAttention
from nmt.models import TranslationModel
from nmt.packing.packed import PackedSequences, TokenLinks
from nmt.recipe import Recipe


@dataclass(frozen=True)
class Guidance:
    """The attention to train, of one head, and the weight of its loss."""

    attention: ChosenAttention
    weight: float

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Guidance | None:
        """Return the guidance of a recipe; None without guided alignment. Raises UserError for an unknown head."""
        if not recipe.train.guided_alignment:
            return None
        return cls(ChosenAttention.from_recipe(recipe.decode, recipe.model), recipe.train.guided_alignment_weight)

    def forward(
        self, model: TranslationModel, src: PackedSequences, tgt: PackedSequences, links: TokenLinks | None
    ) -> tuple[Tensor, Tensor]:
        """Return the decoder output (tgt.total, d_model) and the weighted loss, summed over target tokens, in nats.

        links: of the labels; None for none
        """
        if links is None:
            none = torch.empty(0, dtype=torch.int64, device=src.tokens.device)
            links = TokenLinks(none, none, none)
        # A label is predicted at its own index and read at the next one.
        positions = links.tgt if self.attention.at == "output" else links.tgt + 1
        layer, (head,) = self.attention.layer, self.attention.heads
        hidden, log_weights = model.aligning(src, tgt, layer, head, (positions, links.src))
        return hidden, -self.weight * (log_weights / links.counts).sum()
