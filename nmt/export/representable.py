"""Checks whether another format can represent a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nmt.errors import UserError
from nmt.recipe import ModelRecipe
from nmt.recipe.model import DROPOUT_OPTIONS
from nmt.storage.model_metadata import ModelMetadata

# Options that all formats support, though not all values (see `huggingface`), or that only matter in training.
_SUPPORTED_EVERYWHERE = frozenset(
    {"d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "max_positions", "activation"}
    | {*DROPOUT_OPTIONS, "norm_order", "tied_embeddings", "output_bias"}
)


def unsupported_architecture(
    recipe: ModelRecipe, metadata: ModelMetadata | None = None, supported: Collection[str] = ()
) -> list[str]:
    """Describe the options of a model that a format does not support and that differ from the defaults.

    supported: further options that the format supports
    metadata:  given if other programs will load the model; they cannot reverse right-to-left output
    """
    reasons = ["data.reverse_target is true"] if metadata is not None and metadata.reverse_target else []
    return reasons + [
        f"model.{name} is {getattr(recipe, name)!r}"
        for name in recipe.changed_options()
        if name not in {*_SUPPORTED_EVERYWHERE, *supported}
    ]


def require_representable(target: str, reasons: Sequence[str], advice: str) -> None:
    """Raise UserError with all reasons, if any, why a format cannot represent a model."""
    if reasons:
        raise UserError(f"{target} cannot represent this model: {'; '.join(reasons)}; {advice}")
