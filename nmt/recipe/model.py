"""The recipe section of the model: the Transformer, or a recurrent model with attention."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import PositiveInt, ValidationInfo, field_validator, model_validator

from nmt.recipe.corpora import Probability, Section

# Options of the model section that apply to one architecture only.
_TRANSFORMER_ONLY = (
    *("d_ff", "num_heads", "d_head", "num_encoder_heads", "attention_dropout", "activation_dropout", "activation"),
    *("norm_order", "norm", "positions", "max_distance"),
)
_GRU_ONLY = ("attention", "input_feeding")
DROPOUT_OPTIONS = frozenset({"dropout", "attention_dropout", "activation_dropout", "word_dropout"})


class ModelRecipe(Section):
    """The Transformer (Vaswani et al. 2017, section 3); the defaults are the paper's base model.

    Alternatively its predecessor, a GRU encoder-decoder with attention (Bahdanau et al. 2015; Luong et al. 2015).
    """

    architecture: Literal["transformer", "gru"] = "transformer"
    """The Transformer, or a bidirectional GRU encoder and a GRU decoder with attention. `gru` uses `d_model`, the
    numbers of layers, `dropout`, `word_dropout`, `tied_embeddings`, `output_bias`, `max_positions` and its own options
    below; setting other options is an error."""
    d_model: PositiveInt = 512
    """Model dimension; with `gru`, that of embeddings, encoder outputs (each direction has half) and decoder states."""
    d_ff: PositiveInt = 2048
    """Inner dimension of the feed-forward sub-layers."""
    num_heads: PositiveInt = 8
    """Attention heads; must divide `d_model` unless `d_head` is set."""
    d_head: PositiveInt | None = None
    """Dimension of queries, keys and values per head (d_k and d_v of the paper); by default `d_model / num_heads`. Row
    B of the paper's table 3 changes only d_k."""
    num_encoder_heads: PositiveInt | None = None
    """Attention heads of the encoder; by default `num_heads`. For pruned models (`nmt heads`)."""
    num_encoder_layers: PositiveInt = 6
    """Encoder layers."""
    num_decoder_layers: PositiveInt = 6
    """Decoder layers."""
    dropout: Probability = 0.1
    """Dropout on sub-layer outputs and on sums of embeddings and positions (paper, section 5.4)."""
    attention_dropout: Probability = 0.0
    """Dropout on attention weights; not in the paper; tensor2tensor used 0.1."""
    activation_dropout: Probability = 0.0
    """Dropout after the feed-forward activation; not in the paper."""
    word_dropout: Probability = 0.0
    """Probability of omitting the embedding of an input token, on both sides, but not its position (Gal and Ghahramani
    2016; Sennrich and Zhang 2019, who use 0.1 to 0.3 for small corpora); not in the paper."""
    activation: Literal["relu", "gelu", "swish", "swiglu"] = "relu"
    """Feed-forward activation. `swiglu` adds a gate: (swish(x W1) * x V) W2 (Shazeer 2020). V has the size of W1; with
    two thirds of `d_ff`, the number of parameters stays the same."""
    norm_order: Literal["post", "pre"] = "post"
    """Normalization after the residual sum (the paper) or before the sub-layer (more stable for deep models)."""
    norm: Literal["layer", "rms"] = "layer"
    """Layer normalization (the paper) or RMSNorm, without mean subtraction and bias (Zhang and Sennrich 2019)."""
    tied_embeddings: Literal["three-way", "decoder", "none"] = "three-way"
    """Tie source, target and output embeddings (`three-way`, the paper), target and output (`decoder`), or none."""
    output_bias: bool = False
    """Add a bias before the output softmax, as in Marian; not in the paper."""
    positions: Literal["sinusoidal", "learned", "rotary", "relative"] = "sinusoidal"
    """Position encoding: sinusoids added to the embeddings (the paper), learned vectors added to the embeddings (the
    paper's table 3, row E), or in self-attention, rotations of queries and keys (Su et al. 2021) or learned vectors of
    relative positions added to keys and values (Shaw et al. 2018)."""
    max_distance: PositiveInt = 16
    """With relative positions: clipping distance (k of Shaw et al., who find no difference from 2 to 64)."""
    max_positions: PositiveInt = 1024
    """Maximum sentence length in tokens, including EOS."""
    attention: Literal["additive", "multiplicative"] = "additive"
    """With `gru`: attention score of decoder state s and encoder state h, v tanh(W s + U h) (Bahdanau et al. 2015) or
    s W h (Luong et al. 2015, "general"), which needs less memory and computation."""
    input_feeding: bool = False
    """With `gru`: concatenate the attention output with the input of the next position (Luong et al. 2015, section
    3.3), which tells the decoder what it has attended to. Training then computes the positions sequentially."""

    @property
    def head_width(self) -> int:
        """Dimension of a head: `d_head`, or d_model / num_heads."""
        return self.d_head or self.d_model // self.num_heads

    @property
    def encoder_heads(self) -> int:
        """`num_encoder_heads` or its default."""
        return self.num_encoder_heads or self.num_heads

    @property
    def cross_attentions(self) -> tuple[int, int]:
        """Decoder layers with cross-attention, and heads of each."""
        return (1, 1) if self.architecture == "gru" else (self.num_decoder_layers, self.num_heads)

    @property
    def ineffective_options(self) -> set[str]:
        """Options that do not apply to this model."""
        others = set(_TRANSFORMER_ONLY if self.architecture == "gru" else _GRU_ONLY)
        return others if self.positions == "relative" else others | {"max_distance"}

    @property
    def description(self) -> str:
        """The architecture and its sizes in one phrase."""
        layers = f"{self.num_encoder_layers}+{self.num_decoder_layers} layers, d_model {self.d_model}"
        if self.architecture == "gru":
            feeding = " with input feeding" if self.input_feeding else ""
            return f"GRU of {layers}, {self.attention} attention{feeding}, dropout {self.dropout:g}"
        heads = "1 head" if self.num_heads == 1 else f"{self.num_heads} heads"
        return f"Transformer of {layers}, d_ff {self.d_ff}, {heads}, dropout {self.dropout:g}"

    @field_validator("num_encoder_heads")
    @classmethod
    def _drop_equal_heads(cls, num_encoder_heads: int | None, info: ValidationInfo) -> int | None:
        """Replace the default value with None: equal models then have equal recipes."""
        return None if num_encoder_heads == info.data.get("num_heads") else num_encoder_heads

    @field_validator("d_head")
    @classmethod
    def _drop_default(cls, d_head: int | None, info: ValidationInfo) -> int | None:
        """Replace the default value with None: equal models then have equal recipes."""
        is_default = d_head is not None and d_head * info.data.get("num_heads", 0) == info.data.get("d_model")
        return None if is_default else d_head

    @model_validator(mode="after")
    def _options_fit_the_architecture(self) -> ModelRecipe:
        is_gru = self.architecture == "gru"
        changed = self.changed_options()
        for name in _TRANSFORMER_ONLY if is_gru else _GRU_ONLY:
            if name in changed:
                other = "transformer" if is_gru else "gru"
                raise ValueError(
                    f"model.{name} has no effect on architecture {self.architecture!r}; set model.architecture to "
                    f"{other!r}, or remove model.{name}"
                )
        if is_gru and self.d_model % 2:
            raise ValueError(
                f"model.d_model is {self.d_model}; it must be even, half for each direction of the encoder"
            )
        return self

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelRecipe:
        if self.architecture == "gru":
            return self
        if self.d_head is None and self.d_model % self.num_heads:
            step = math.lcm(self.num_heads, 2)
            fewer_heads = next(count for count in range(self.num_heads, 0, -1) if self.d_model % count == 0)
            raise ValueError(
                f"model.d_model is {self.d_model}; it must be a multiple of model.num_heads ({self.num_heads}); try "
                f"model.num_heads={fewer_heads} or model.d_model={max(self.d_model // step, 1) * step}, or set "
                "model.d_head"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"model.d_model is {self.d_model}; it must be even, half sine and half cosine")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"model.positions is 'rotary', but the head dimension is {self.head_width}; it must be even, because "
                f"features are rotated in pairs; set model.d_head to {self.head_width + 1}"
            )
        if self.max_distance != 16 and self.positions != "relative":
            raise ValueError(
                f"model.max_distance has no effect on {self.positions} positions; set model.positions to 'relative', "
                "or remove model.max_distance"
            )
        return self
