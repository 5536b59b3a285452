"""Layers of both stacks: embeddings, position encodings, feed-forward, residual connections with norms.

"The paper" is Vaswani et al. 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.dropout import Dropout
from nmt.recipe import ModelRecipe


def sinusoids(num_positions: int, d_model: int) -> Tensor:
    """Sine and cosine position encodings, (num_positions, d_model) float32 (paper, section 3.5).

    The order is [all sines | all cosines], as in Marian, for export; the paper interleaves them, which is equivalent.
    """
    cpu = torch.device("cpu")  # also for a model on the meta device, where arithmetic imports torch's compiler
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=cpu) / d_model
    positions = torch.arange(num_positions, dtype=torch.float64, device=cpu)
    angles = positions[:, None] * 10_000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def rotate(x: Tensor, encodings: Tensor) -> Tensor:
    """Rotate each pair of features, i and i + d_head / 2, by an angle that grows with the position (Su et al. 2021).

    x: (..., parts, num_heads, d_head); encodings: `sinusoids` of each position, (..., d_head)
    """
    sin, cos = encodings[..., None, None, :].chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class Embedding(nn.Module):
    """Token embedding times sqrt(d_model), plus position, then dropout (paper, sections 3.4, 3.5 and 5.4).

    Word dropout, which is not in the paper, zeroes the whole embedding of some tokens, but not their positions.

    Recurrent layers read tokens in order, so their embedding has no positions.
    """

    def __init__(self, vocab_size: int, recipe: ModelRecipe) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, recipe.d_model))
        self.scale = math.sqrt(recipe.d_model)
        self.dropout = Dropout(recipe.dropout)
        self.word_dropout = Dropout(recipe.word_dropout)
        self.positions: Tensor | None
        match "none" if recipe.architecture == "gru" else recipe.positions:
            case "sinusoidal":
                self.register_buffer("positions", sinusoids(recipe.max_positions, recipe.d_model), persistent=False)
            case "learned":
                self.positions = nn.Parameter(torch.empty(recipe.max_positions, recipe.d_model))
            case "rotary" | "relative" | "none":  # for the first two, see `SelfAttention`
                self.positions = None
            case unknown:
                assert_never(unknown)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens and positions (...) -> (..., d_model)."""
        x = F.embedding(tokens, self.weight) * self.scale
        if self.word_dropout.current_p:
            x = x * self.word_dropout(torch.ones_like(x[..., :1]))  # (..., 1)
        return self.dropout(x if self.positions is None else x + F.embedding(positions, self.positions))


class Output(nn.Module):
    """Projection to logits over the vocabulary; its weight may be tied to the embeddings (paper, section 3.4)."""

    def __init__(self, vocab_size: int, recipe: ModelRecipe) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, recipe.d_model))
        self.bias = nn.Parameter(torch.empty(vocab_size)) if recipe.output_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., vocab)."""
        return F.linear(x, self.weight, self.bias)

    def restricted(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the projection to `tokens` (n,) only: (..., d_model) -> (..., n)."""
        weight = self.weight[tokens]
        bias = None if self.bias is None else self.bias[tokens]
        return lambda x: F.linear(x, weight, bias)


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2 (paper, section 3.3).

    With `swiglu`, (swish(x W_1 + b_1) * (x V + c)) W_2 + b_2; the weight of `inner` stacks W_1 and V.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.inner = nn.Linear(recipe.d_model, 2 * recipe.d_ff if recipe.activation == "swiglu" else recipe.d_ff)
        self.outer = nn.Linear(recipe.d_ff, recipe.d_model)
        self.activation = recipe.activation
        self.dropout = Dropout(recipe.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., d_model)."""
        return self.outer(self.dropout(self._activate(self.inner(x))))

    def _activate(self, h: Tensor) -> Tensor:
        match self.activation:
            case "relu":
                return F.relu(h, inplace=True)  # h has no other use
            case "gelu":
                return F.gelu(h)
            case "swish":
                return F.silu(h)
            case "swiglu":
                gate, linear = h.chunk(2, dim=-1)
                return F.silu(gate) * linear
            case _:
                assert_never(self.activation)


def build_norm(recipe: ModelRecipe) -> nn.LayerNorm | nn.RMSNorm:
    """Build the norm of the recipe, (..., d_model) -> (..., d_model)."""
    match recipe.norm:
        case "layer":
            return nn.LayerNorm(recipe.d_model)
        case "rms":
            return nn.RMSNorm(recipe.d_model, eps=1e-5)  # as in LayerNorm; torch's default depends on the dtype
        case _:
            assert_never(recipe.norm)


class Residual(nn.Module):
    """x + dropout(sublayer(x)), normalized after the sum (post-norm, the paper) or before the sublayer (pre-norm)."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.norm = build_norm(recipe)
        self.pre_norm = recipe.norm_order == "pre"
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(..., d_model) -> (..., d_model)."""
        summed = x + self.dropout(sublayer(self.norm(x) if self.pre_norm else x))
        return summed if self.pre_norm else self.norm(summed)


def final_norm(recipe: ModelRecipe) -> nn.Module:
    """Build the norm at the end of a stack, which only pre-norm needs."""
    return build_norm(recipe) if recipe.norm_order == "pre" else nn.Identity()
