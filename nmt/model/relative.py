"""Relative positions (Shaw et al. 2018): learned vectors of the distance, added to keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.dropout import dropout
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad, unpad


class RelativePositions(nn.Module):
    """Vectors of the distances -k .. k, shared by the heads of a layer; larger distances are clipped (section 3.2).

    keys, values: (2 k + 1, d_head), a^K and a^V of the paper
    """

    def __init__(self, max_distance: int, d_head: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, d_head))
        self.values = nn.Parameter(torch.empty(2 * max_distance + 1, d_head))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sentences: PackedSequences, *, causal: bool, p: float = 0.0
    ) -> Tensor:
        """Attention within each sentence; q, k, v: (total, num_heads, d_head) -> the same shape.

        Computes `scaled_dot_product` for query i, keys k_j + a^K_ij and values v_j + a^V_ij (equations 3 and 4).
        Sentences are contiguous in padded rows, so distances of columns are distances of positions.
        """
        rows = sentences.attention_rows(sentences, causal=causal)
        q, k, v = pad(q, rows.queries), pad(k, rows.keys), pad(v, rows.keys)  # (rows, num_heads, width, d_head)
        column = torch.arange(rows.queries.width, device=q.device)
        relative_k, relative_v = self.vectors(column - column[:, None]).to(q.dtype).unbind(0)  # (width, width, d_head)
        with torch.autocast(q.device.type, enabled=False):  # as in `attend`
            q = q / math.sqrt(q.shape[-1])
            by_distance = torch.einsum("...id,ijd->...ij", q, relative_k)
            scores = q @ k.transpose(-2, -1) + by_distance + rows.mask.to(q.dtype)
            weights = dropout(torch.softmax(scores, dim=-1), p)
            out = weights @ v + torch.einsum("...ij,ijd->...id", weights, relative_v)
        return unpad(out, rows.queries)

    def vectors(self, distances: Tensor) -> Tensor:
        """Key position minus query position (...) int64 -> vectors (2, ..., d_head) for keys and values."""
        bucket = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return torch.stack([F.embedding(bucket, self.keys), F.embedding(bucket, self.values)])
