"""A text classifier: the mean of the encoder output, then one linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.model.encoder import Encoder
from nmt.model.layers import Embedding
from nmt.model.transformer import initialize
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class Classifier(nn.Module):
    """The encoder of `Transformer`, mean pooling over the tokens of a text, and a linear layer to the classes."""

    def __init__(self, recipe: ModelRecipe, vocab_size: int, num_classes: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.src_embedding = Embedding(vocab_size, recipe)
        self.encoder = Encoder(recipe)
        self.classes = nn.Linear(recipe.d_model, num_classes)
        initialize(self, recipe, [self.src_embedding.weight])

    def forward(self, texts: PackedSequences) -> Tensor:
        """Return the logits of each text, (num_sentences, num_classes), in float32 or float64; no text may be empty."""
        x = self.encoder(self.src_embedding(texts.tokens, texts.positions), texts)  # (total, d_model)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):  # cheap, and rounding would change the probabilities
            # Not `index_add`, whose order of additions varies between runs on a GPU.
            means = torch.segment_reduce(x, "mean", offsets=texts.cu_seqlens.long())  # (num_sentences, d_model)
            logits: Tensor = self.classes(means)
        return logits
