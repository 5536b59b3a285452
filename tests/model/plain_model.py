"""Equations of the model and its variants in float64, for one sentence pair, head and query."""

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from nmt.model.transformer import Transformer


class PlainModel:
    """A reimplementation with the parameters of a `Transformer` in float64, without dropout."""

    def __init__(self, model: Transformer) -> None:
        self.recipe = model.recipe
        self.weights = {name: weight.detach() for name, weight in model.named_parameters(remove_duplicate=False)}
        self._memories: dict[tuple[int, ...], Tensor] = {}  # encoder outputs

    def logits(self, src: list[int], tgt: list[int]) -> Tensor:
        """Scores after each target token, (len(tgt), vocab)."""
        if tuple(src) not in self._memories:
            self._memories[tuple(src)] = self._encode(src)
        memory = self._memories[tuple(src)]
        x = self._embed("tgt_embedding", tgt)
        for i in range(self.recipe.num_decoder_layers):
            x = self._layer(f"decoder.layers.{i}", x, memory)
        return self._final_norm("decoder", x) @ self.weights["output.weight"].T

    def _encode(self, src: list[int]) -> Tensor:
        x = self._embed("src_embedding", src)
        for i in range(self.recipe.num_encoder_layers):
            x = self._layer(f"encoder.layers.{i}", x)
        return self._final_norm("encoder", x)

    def _embed(self, name: str, tokens: list[int]) -> Tensor:
        d_model = self.recipe.d_model
        rows = []
        for position, token in enumerate(tokens):
            row = self.weights[f"{name}.weight"][token] * math.sqrt(d_model)
            match self.recipe.positions:
                case "learned":
                    row = row + self.weights[f"{name}.positions"][position]
                case "sinusoidal":
                    angles = [position / 10_000 ** (2 * i / d_model) for i in range(d_model // 2)]
                    row = row + torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])  # rounded to float32
            rows.append(row)
        return torch.stack(rows)

    def _layer(self, name: str, x: Tensor, memory: Tensor | None = None) -> Tensor:
        is_decoder = memory is not None
        x = self._residual(f"{name}.attention", x, lambda h: self._self_attention(name, h, is_decoder))
        if memory is not None:
            x = self._residual(
                f"{name}.cross_attention", x, lambda h: self._cross_attention(f"{name}.cross_attention", h, memory)
            )
        return self._residual(f"{name}.feed_forward", x, lambda h: self._feed_forward(f"{name}.feed_forward", h))

    def _residual(self, name: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        norm = f"{name}_residual.norm"
        if self.recipe.norm_order == "pre":
            return x + sublayer(self._norm(norm, x))
        return self._norm(norm, x + sublayer(x))

    def _final_norm(self, stack: str, x: Tensor) -> Tensor:
        return self._norm(f"{stack}.norm", x) if self.recipe.norm_order == "pre" else x

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        if self.recipe.norm == "rms":
            return x / ((x**2).mean(1, keepdim=True) + 1e-5).sqrt() * weight
        centered = x - x.mean(1, keepdim=True)
        return centered / ((centered**2).mean(1, keepdim=True) + 1e-5).sqrt() * weight + self.weights[f"{name}.bias"]

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        inner = self._linear(f"{name}.inner", x)
        match self.recipe.activation:
            case "relu":
                activated = inner.clamp(min=0)
            case "swiglu":
                gate, linear = inner.chunk(2, dim=1)
                activated = gate / (1 + (-gate).exp()) * linear
            case other:
                raise NotImplementedError(other)
        return self._linear(f"{name}.outer", activated)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _self_attention(self, layer: str, x: Tensor, causal: bool) -> Tensor:
        q, k, v = self._linear(f"{layer}.attention.qkv", x).chunk(3, dim=1)
        if self.recipe.positions == "rotary":
            q, k = self._rotate(q), self._rotate(k)
        relative = f"{layer}.attention.relative" if self.recipe.positions == "relative" else None
        return self._linear(f"{layer}.attention.out", self._attend(q, k, v, causal, relative))

    def _rotate(self, rows: Tensor) -> Tensor:
        """Multiply complex numbers, made of features i and i + d_head / 2, by e^(sqrt(-1) * position * angle_i)."""
        d_head = self.recipe.head_width
        heads: Tensor = rows.view(len(rows), -1, d_head).clone()
        for position, i in product(range(len(rows)), range(d_head // 2)):
            angle = position / 10_000 ** (2 * i / d_head)
            sin, cos = torch.tensor([math.sin(angle), math.cos(angle)]).double()  # rounded to float32
            turned = torch.complex(heads[position, :, i], heads[position, :, i + d_head // 2]) * torch.complex(cos, sin)
            heads[position, :, i], heads[position, :, i + d_head // 2] = turned.real, turned.imag
        return heads.flatten(1)

    def _cross_attention(self, name: str, x: Tensor, memory: Tensor) -> Tensor:
        k, v = self._linear(f"{name}.kv", memory).chunk(2, dim=1)
        return self._linear(f"{name}.out", self._attend(self._linear(f"{name}.q", x), k, v, causal=False))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, relative: str | None = None) -> Tensor:
        heads, d_head = [], self.recipe.head_width
        for one_q, one_k, one_v in zip(*(rows.split(d_head, dim=1) for rows in (q, k, v)), strict=True):
            rows = []
            for i in range(len(one_q)):
                last = i + 1 if causal else len(one_k)
                seen_k, seen_v = one_k[:last], one_v[:last]
                if relative is not None:
                    distance = self.recipe.max_distance
                    at = [min(max(j - i, -distance), distance) + distance for j in range(last)]
                    seen_k = seen_k + self.weights[f"{relative}.keys"][at]
                    seen_v = seen_v + self.weights[f"{relative}.values"][at]
                weights = torch.softmax(seen_k @ one_q[i] / math.sqrt(one_q.shape[1]), dim=0)
                rows.append(weights @ seen_v)
            heads.append(torch.stack(rows))
        return torch.cat(heads, dim=1)
