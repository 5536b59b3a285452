"""Layers of the recurrent model: encoder and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence
from torch.utils.checkpoint import checkpoint

from nmt.model.dropout import Dropout
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad, unpad
from nmt.recipe import ModelRecipe
from nmt.recurrent.attention import Attention, Memory
from nmt.recurrent.time_major import TimeMajor

# Devices on which autocast runs a GRU in fp16, even if its dtype is bf16 (aten/src/ATen/cudnn/AutocastRNN.cpp). Without
# loss scaling, small gradients would underflow, so bf16 training computes the GRU in the dtype of its weights.
_FP16_AUTOCAST = ("cuda",)


class GruStack(nn.Module):
    """GRU layers (Cho et al. 2014) with dropout between them; layers above the first add their input (Wu et al. 2016).

    Each layer is a separate `nn.GRU`: dropout inside torch's multi-layer GRU is not reproducible on a GPU.
    """

    def __init__(self, recipe: ModelRecipe, num_layers: int, in_width: int, *, bidirectional: bool) -> None:
        """in_width: width of the input of the first layer."""
        super().__init__()
        width = recipe.d_model // 2 if bidirectional else recipe.d_model
        widths = [in_width] + [recipe.d_model] * (num_layers - 1)
        layers = (nn.GRU(width_in, width, bidirectional=bidirectional) for width_in in widths)
        self.layers = cast(Sequence[nn.GRU], nn.ModuleList(layers))
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, batch_sizes: Tensor, initial: Tensor | None, *, checkpointed: bool = False) -> Tensor:
        """Rows in the order of `TimeMajor`, (total, in_width) -> outputs of the top layer, (total, d_model).

        initial: states before the first position, (num_layers, rows of the first position, d_model); None: zeros
        checkpointed: activation checkpointing, see `Transformer.use_activation_checkpointing`
        """
        for index, layer in enumerate(self.layers):
            below = self.dropout(x) if index else x
            state = None if initial is None else initial[index : index + 1]
            inputs = (layer, below, state, batch_sizes)
            output, _ = checkpoint(_run_layer, *inputs, use_reentrant=False) if checkpointed else _run_layer(*inputs)
            x = x + output if index else output
        return x

    def step(self, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Compute one position: (rows, in_width) -> output of the top layer (rows, d_model) and new states.

        states: (num_layers, rows, d_model)
        """
        new = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            below = self.dropout(x) if index else x
            output, _ = _run_layer(layer, below[None], state[None])
            new.append(output[0])
            x = x + output[0] if index else output[0]
        return x, torch.stack(new)


def _run_layer(
    layer: nn.GRU, x: Tensor, state: Tensor | None, batch_sizes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a layer and its last state.

    x: (positions, rows, width), or (total, width) with `batch_sizes`; state: before the first position; None: zeros
    """
    kind, dtype = x.device.type, next(layer.parameters()).dtype
    bypasses = kind in _FP16_AUTOCAST and torch.is_autocast_enabled(kind)
    bypasses = bypasses and torch.get_autocast_dtype(kind) != torch.float16
    with torch.autocast(kind, enabled=False) if bypasses else nullcontext():
        if bypasses:
            x, state = x.to(dtype), None if state is None else state.to(dtype)
        if batch_sizes is None:
            outputs, last = layer(x, state)
            return outputs, last
        packed, last = layer(PackedSequence(x, batch_sizes), state)
    return packed.data, last


class Encoder(nn.Module):
    """Bidirectional GRU layers; each direction has d_model / 2 units."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.activation_checkpointing = False
        self.stack = GruStack(recipe, recipe.num_encoder_layers, recipe.d_model, bidirectional=True)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, src: PackedSequences) -> Tensor:
        """Source embeddings (src.total, d_model) -> encoder output (src.total, d_model)."""
        rows = TimeMajor.of(src)
        use_checkpoint = self.activation_checkpointing and self.training
        output = self.stack(rows.from_packed(x), rows.batch_sizes, None, checkpointed=use_checkpoint)
        return self.dropout(rows.to_packed(output))


class Decoder(nn.Module):
    """GRU layers, and attention from the top one.

    In training without input feeding, all positions are computed together: one call per layer, then attention. With
    input feeding, `step` computes them one after the other, as in search.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.activation_checkpointing = False
        self.num_layers, self.input_feeding = recipe.num_decoder_layers, recipe.input_feeding
        in_width = recipe.d_model * (2 if recipe.input_feeding else 1)
        self.initial = nn.Linear(recipe.d_model // 2, recipe.num_decoder_layers * recipe.d_model)
        self.stack = GruStack(recipe, recipe.num_decoder_layers, in_width, bidirectional=False)
        self.attention = Attention(recipe)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, encoded: Tensor, tgt: PackedSequences, src: PackedSequences) -> tuple[Tensor, Tensor]:
        """Target embeddings (tgt.total, d_model) and encoder output (src.total, d_model) -> outputs and weights.

        The outputs are (tgt.total, d_model), the attention weights (tgt.total, src_len) float32.
        """
        run = self._forward_by_position if self.input_feeding else self._forward_together
        inputs = (x, encoded, tgt, src)
        use_checkpoint = self.activation_checkpointing and self.training
        outputs, weights = checkpoint(run, *inputs, use_reentrant=False) if use_checkpoint else run(*inputs)
        return self.dropout(outputs), weights

    def _forward_together(
        self, x: Tensor, encoded: Tensor, tgt: PackedSequences, src: PackedSequences
    ) -> tuple[Tensor, Tensor]:
        rows = TimeMajor.of(tgt)
        initial = self.initial_states(encoded, src).index_select(1, rows.sentences)
        states = rows.to_packed(self.stack(rows.from_packed(x), rows.batch_sizes, initial))
        padded = pad(states[:, None], tgt.one_per_row).squeeze(1)  # (num_sentences, padded tgt_len, d_model)
        memory = self.attention.memory(encoded, src)
        outputs, weights = self.attention(padded[:, : tgt.max_length], memory, (tgt.sizes, src.sizes))
        missing = padded.shape[1] - outputs.shape[1]

        def to_packed(result: Tensor) -> Tensor:
            return unpad(F.pad(result, (0, 0, 0, missing))[:, None], tgt.one_per_row).squeeze(1)

        return to_packed(outputs), to_packed(weights)

    def _forward_by_position(
        self, x: Tensor, encoded: Tensor, tgt: PackedSequences, src: PackedSequences
    ) -> tuple[Tensor, Tensor]:
        rows = TimeMajor.of(tgt)
        states = self.initial_states(encoded, src).index_select(1, rows.sentences)
        memory = self.attention.memory(encoded, src).select(rows.sentences)
        output = torch.zeros_like(states[0])
        outputs, weights = [], []
        for embedded in rows.from_packed(x).split(rows.batch_sizes.tolist()):
            n = len(embedded)  # sentences that have this position
            memory = Memory(*(part[:n] for part in memory))
            result, states, step_weights = self.step(embedded[:, None], output[:n, None], states[:, :n, None], memory)
            output, states = result[:, 0], states[:, :, 0]
            outputs.append(output)
            weights.append(step_weights[:, 0])
        return rows.to_packed(torch.cat(outputs)), rows.to_packed(torch.cat(weights))

    def step(self, x: Tensor, output: Tensor, states: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
        """Compute one position of every hypothesis.

        x, output: embeddings of the last tokens and outputs of the last position, (batch, beam, d_model)
        states:    (num_layers, batch, beam, d_model)

        Returns outputs, new states and attention weights (batch, beam, src_len).
        """
        if self.input_feeding:
            x = torch.cat([x, output.to(x.dtype)], dim=-1)
        top, new = self.stack.step(x.flatten(0, 1), states.flatten(1, 2))
        result, weights = self.attention(top.view_as(states[0]), memory)
        return result, new.view_as(states), weights

    def initial_states(self, encoded: Tensor, src: PackedSequences) -> Tensor:
        """Encoder outputs (src.total, d_model) -> (num_layers, num_sentences, d_model).

        Computed from the backward output at the first token, which has read the whole sentence (Bahdanau et al. 2015).
        """
        first = src.cu_seqlens[:-1].long().clamp(max=src.total - 1)  # empty sentences may come last
        backward = encoded.index_select(0, first).chunk(2, dim=-1)[1]
        return torch.stack(torch.tanh(self.initial(backward)).chunk(self.num_layers, dim=-1))
