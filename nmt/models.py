"""Build a model of either architecture, with or without initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmt.model.transformer import Transformer
from nmt.recipe import ModelRecipe
from nmt.recurrent.model import GruModel

TranslationModel = Transformer | GruModel


def build_model(recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int) -> TranslationModel:
    """Build the model of a recipe and initialize its parameters, in float32 regardless of torch's default dtype.

    Raises ValueError for three-way tying of vocabularies of different sizes.
    """
    match recipe.architecture:
        case "transformer":
            return Transformer(recipe, src_vocab_size, tgt_vocab_size).float()
        case "gru":
            return GruModel(recipe, src_vocab_size, tgt_vocab_size).float()
        case _:
            assert_never(recipe.architecture)


def build_uninitialized(
    recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int, device: torch.device
) -> TranslationModel:
    """Build a model on a device without initializing its parameters; on `meta`, they have only shapes.

    Raises ValueError as `build_model` does.
    """
    with device, _Uninitialized():
        return build_model(recipe, src_vocab_size, tgt_vocab_size).to(device)


class _Uninitialized(TorchFunctionMode):
    """Leaves new parameters uninitialized: random numbers for 48 million parameters take half a second.

    The state of torch's random generator does not change either.
    """

    _RANDOM = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, unless it fills a parameter with random numbers."""
        kwargs = kwargs or {}
        if func in self._RANDOM:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
