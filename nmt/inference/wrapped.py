"""Base class of wrappers for search, which delegates calls to the wrapped model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from torch import Tensor

from nmt.models import TranslationModel
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe

ModelT = TypeVar("ModelT", bound=TranslationModel)


class WrappedModel(Generic[ModelT]):
    """Base class of models that compute steps differently, with the same results."""

    def __init__(self, model: ModelT) -> None:
        self._model = model

    def logits_of(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """See `Transformer.logits_of`."""
        return self._model.logits_of(tokens)

    @property
    def recipe(self) -> ModelRecipe:
        """See `Transformer.recipe`."""
        return self._model.recipe

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """See `Transformer.cross_attention`."""
        return self._model.cross_attention(src, tgt)
