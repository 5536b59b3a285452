"""Guided alignment: train one head of the cross-attention to align words.

The loss of a target token is the cross-entropy between a uniform distribution over its links and the attention weights
of the head (Chen et al. 2016, "Guided Alignment Training for Topic-Aware Neural Machine Translation"; Garg et al. 2019,
"Jointly Learning to Align and Translate with Transformer Models"). Tokens without links do not contribute.
Only training computes the loss, from the weights of one head before dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.alignment.attention import AlignmentAttention
from nmt.model.multi_head import CrossAttention
from nmt.models import TranslationModel
from nmt.packing.packed import PackedSequences, TokenLinks
from nmt.packing.padding import pad
from nmt.recipe import Recipe
from nmt.recurrent.model import GruModel


@dataclass(frozen=True)
class Guidance:
    """The attention head to train, and the weight of its loss."""

    attention: AlignmentAttention
    weight: float

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Guidance | None:
        """Return the guidance of a recipe; None without guided alignment. Raises UserError for an unknown head."""
        if not recipe.train.guided_alignment:
            return None
        return cls(AlignmentAttention.from_recipe(recipe.decode, recipe.model), recipe.train.guided_alignment_weight)

    def forward(
        self, model: TranslationModel, src: PackedSequences, tgt: PackedSequences, links: TokenLinks | None
    ) -> tuple[Tensor, Tensor]:
        """Return the decoder output (tgt.total, d_model) and the weighted loss, summed over target tokens, in nats.

        links: links of the labels; None if there are none
        """
        if links is None:
            empty = torch.empty(0, dtype=torch.int64, device=src.tokens.device)
            links = TokenLinks(tgt=empty, src=empty, counts=empty)
        # A label is predicted at its own index and read at the next one.
        positions = links.tgt if self.attention.at == "output" else links.tgt + 1
        if isinstance(model, GruModel):
            hidden, log_weights = model.forward_with_log_weights(src, tgt, (positions, links.src))
        else:
            (head,) = self.attention.heads
            attention = model.decoder.layers[self.attention.layer].cross_attention
            inputs: list[tuple[Any, ...]] = []  # of `attention`
            hook = attention.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments))
            try:
                hidden = model(src, tgt)
            finally:
                hook.remove()
            x, memory, *_ = inputs[0]
            log_weights = _log_weights(attention, head, x, memory, tgt, src, (positions, links.src))
        return hidden, -self.weight * (log_weights / links.counts).sum()


def _log_weights(
    attention: CrossAttention,
    head: int,
    x: Tensor,
    memory: Tensor,
    tgt: PackedSequences,
    src: PackedSequences,
    links: tuple[Tensor, Tensor],
) -> Tensor:
    """Return the log attention weights of a head between linked tokens, (num_links,), in at least float32.

    x:     input of the attention, (tgt.total, d_model)
    links: indices of packed target and source tokens, each (num_links,)
    """
    d_head = attention.width // attention.num_heads
    features = slice(head * d_head, (head + 1) * d_head)  # in `kv`, the keys precede the values
    q = F.linear(x, attention.q.weight[features], attention.q.bias[features])  # (tgt.total, d_head)
    k = F.linear(memory, attention.kv.weight[features], attention.kv.bias[features])  # (src.total, d_head)
    rows = tgt.attention_rows(src, causal=False)
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        q, k = (pad(y[:, None].to(dtype), side) for y, side in ((q, rows.queries), (k, rows.keys)))
        scores = (q / math.sqrt(d_head)) @ k.transpose(-2, -1)  # (rows, 1, query width, key width)
        log_weights = torch.log_softmax(scores + rows.mask.to(dtype), dim=-1)
    tgt_links, src_links = links
    key_columns = rows.keys.slots[src_links] % max(rows.keys.width, 1)
    return log_weights.flatten(0, 2)[rows.queries.slots[tgt_links], key_columns]
