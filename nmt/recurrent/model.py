"""A GRU encoder-decoder with attention, from tokens to log-probabilities, with the interface of the Transformer.

The encoder is bidirectional (Bahdanau et al. 2015). The decoder attends from its new state (Luong et al. 2015), with an
additive or a multiplicative score; Bahdanau's decoder attends from its previous state and reads the result in the same
step, which prevents parallel training. With `model.input_feeding` the decoder reads it one step later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.model.transformer import EncoderDecoder
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad
from nmt.recipe import ModelRecipe
from nmt.recurrent.attention import Memory
from nmt.recurrent.layers import Decoder, Encoder


@dataclass
class GruState:
    """State of search between steps.

    memory: see `Memory`
    states: states of the decoder layers, (num_layers, batch, beam, d_model)
    output: output of the last step, (batch, beam, d_model)
    """

    memory: Memory
    states: Tensor
    output: Tensor

    def reorder(self, beam_index: Tensor) -> None:
        """Make hypothesis j of sentence b continue hypothesis `beam_index[b, j]`; beam_index: (batch, beam)."""
        index = beam_index[None, :, :, None].expand_as(self.states)
        self.states = self.states.gather(2, index)
        self.output = self.output.gather(1, index[0])

    def select(self, sentence_index: Tensor) -> None:
        """Select sentences (n,), in this order."""
        self.memory = self.memory.select(sentence_index)
        self.states = self.states.index_select(1, sentence_index)
        self.output = self.output.index_select(0, sentence_index)


class GruModel(EncoderDecoder):
    """Encoder, decoder and embeddings; `forward` for training, `start` and `step` for search."""

    def __init__(self, recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int) -> None:
        """Initialize the parameters; raises ValueError for three-way tying of vocabularies of different sizes."""
        super().__init__(recipe, src_vocab_size, tgt_vocab_size)
        self.encoder = Encoder(recipe)
        self.decoder = Decoder(recipe)
        self._initialize()

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        """Return the decoder output for every target position, (tgt.total, d_model); see `Transformer.forward`."""
        outputs, _ = self._decode(src, tgt)
        return outputs

    def forward_with_log_weights(
        self, src: PackedSequences, tgt: PackedSequences, links: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the result of `forward`, and the log attention weights between linked tokens, (num_links,).

        links: indices of packed target and source tokens, each (num_links,)
        """
        outputs, weights = self._decode(src, tgt)
        linked = weights[links[0], src.positions[links[1]]]
        return outputs, linked.clamp_min(torch.finfo(linked.dtype).tiny).log()

    def encode(self, src: PackedSequences) -> Tensor:
        """Return the encoder output (src.total, d_model)."""
        return self.encoder(self.src_embedding(src.tokens, src.positions), src)

    def start(self, src: PackedSequences, beam_size: int) -> GruState:
        """Encode source sentences; return the initial state for `step`."""
        encoded = self.encode(src)
        states = self.decoder.initial_states(encoded, src)[:, :, None].expand(-1, -1, beam_size, -1)
        return GruState(self.decoder.attention.memory(encoded, src), states, torch.zeros_like(states[0]))

    def advance(self, tokens: Tensor, state: GruState) -> Tensor:
        """See `EncoderDecoder.advance`."""
        x = self.tgt_embedding(tokens, tokens)  # this embedding ignores positions
        state.output, state.states, _ = self.decoder.step(x, state.output, state.states, state.memory)
        return state.output

    def use_activation_checkpointing(self, enabled: bool) -> None:
        """Save only the inputs of the encoder layers and of the decoder in training; see `Transformer`."""
        self.encoder.activation_checkpointing = self.decoder.activation_checkpointing = enabled

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """Yield the weights of the only attention layer, (num_sentences, 1, tgt_len, src_len) float32, padded."""
        _, weights = self._decode(src, tgt)
        yield pad(weights[:, None], tgt.one_per_row)

    def _decode(self, src: PackedSequences, tgt: PackedSequences) -> tuple[Tensor, Tensor]:
        """Return the outputs (tgt.total, d_model) and attention weights (tgt.total, src_len)."""
        return self.decoder(self.tgt_embedding(tgt.tokens, tgt.positions), self.encode(src), tgt, src)

    def _initialize(self) -> None:
        """Xavier uniform for matrices, zero for biases; GRU layers as in torch.

        N(0, 1/d_model) for embeddings, the output weight and the vector of additive scores.
        """
        for name, parameter in self.named_parameters():
            if ".stack." in name:
                continue
            if parameter.ndim == 1 and not name.endswith("attention.score"):
                nn.init.zeros_(parameter)
            elif "embedding" in name or name in ("output.weight", "decoder.attention.score"):
                nn.init.normal_(parameter, std=self.recipe.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)
