"""Equations of the GRU model in float64, for one sentence pair and one position at a time."""

import math

import torch
from torch import Tensor

from nmt.recurrent.model import GruModel


class PlainGru:
    """A reimplementation with the parameters of a `GruModel` in float64, without dropout.

    A GRU computes r = sigmoid(W_r x + U_r h), z = sigmoid(W_z x + U_z h), n = tanh(W_n x + r (U_n h)) and the new state
    (1 - z) n + z h (Cho et al. 2014, with the reset after the matmul as in torch).
    """

    def __init__(self, model: GruModel) -> None:
        self.recipe = model.recipe
        self.weights = {name: weight.detach() for name, weight in model.named_parameters(remove_duplicate=False)}

    def logits(self, src: list[int], tgt: list[int]) -> Tensor:
        """Scores after each target token, (len(tgt), vocab)."""
        return self.outputs(src, tgt)[0] @ self.weights["output.weight"].T

    def outputs(self, src: list[int], tgt: list[int]) -> tuple[Tensor, Tensor]:
        """Outputs (len(tgt), d_model) and attention weights (len(tgt), len(src))."""
        memory = self._encode(src)
        d_model, num_layers = self.recipe.d_model, self.recipe.num_decoder_layers
        initial = torch.tanh(self._linear("decoder.initial", memory[0][d_model // 2 :]))
        states = [initial[layer * d_model : (layer + 1) * d_model] for layer in range(num_layers)]
        output = torch.zeros(d_model, dtype=torch.float64)
        outputs, all_weights = [], []
        for token in tgt:
            x = self._embed("tgt_embedding", token)
            if self.recipe.input_feeding:
                x = torch.cat([x, output])
            for layer in range(num_layers):
                states[layer] = self._gru(f"decoder.stack.layers.{layer}", "", x, states[layer])
                x = x + states[layer] if layer else states[layer]
            exponentials = torch.stack([self._score(x, encoded) for encoded in memory]).exp()
            weights = exponentials / exponentials.sum()
            context = weights @ torch.stack(memory)
            output = torch.tanh(self._linear("decoder.attention.combine", torch.cat([context, x])))
            outputs.append(output)
            all_weights.append(weights)
        return torch.stack(outputs), torch.stack(all_weights)

    def _encode(self, src: list[int]) -> list[Tensor]:
        inputs = [self._embed("src_embedding", token) for token in src]
        for layer in range(self.recipe.num_encoder_layers):
            name = f"encoder.stack.layers.{layer}"
            forward = self._read(name, "", inputs)
            backward = self._read(name, "_reverse", inputs[::-1])[::-1]
            outputs = [torch.cat(pair) for pair in zip(forward, backward, strict=True)]
            inputs = [x + y for x, y in zip(inputs, outputs, strict=True)] if layer else outputs
        return inputs

    def _read(self, name: str, direction: str, inputs: list[Tensor]) -> list[Tensor]:
        state = torch.zeros(self.recipe.d_model // 2, dtype=torch.float64)
        states = []
        for x in inputs:
            state = self._gru(name, direction, x, state)
            states.append(state)
        return states

    def _gru(self, name: str, direction: str, x: Tensor, state: Tensor) -> Tensor:
        of_x = self.weights[f"{name}.weight_ih_l0{direction}"] @ x + self.weights[f"{name}.bias_ih_l0{direction}"]
        of_h = self.weights[f"{name}.weight_hh_l0{direction}"] @ state + self.weights[f"{name}.bias_hh_l0{direction}"]
        x_r, x_z, x_n = of_x.chunk(3)
        h_r, h_z, h_n = of_h.chunk(3)
        reset, update = 1 / (1 + (-x_r - h_r).exp()), 1 / (1 + (-x_z - h_z).exp())
        new = torch.tanh(x_n + reset * h_n)
        return (1 - update) * new + update * state

    def _score(self, state: Tensor, encoded: Tensor) -> Tensor:
        key = self.weights["decoder.attention.key.weight"] @ encoded
        if self.recipe.attention == "multiplicative":
            return (state * key).sum()
        query = self._linear("decoder.attention.query", state)
        return (self.weights["decoder.attention.score"] * torch.tanh(query + key)).sum()

    def _embed(self, name: str, token: int) -> Tensor:
        return self.weights[f"{name}.weight"][token] * math.sqrt(self.recipe.d_model)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]
