"""Checks whether a foreign format can represent a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nmt.recipe import ModelRecipe, UserError
from nmt.storage.model_metadata import ModelMetadata

# Options of which all formats support all values, or that only matter in training.
_HELD_EVERYWHERE = frozenset(
    {"d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "max_positions", "activation"}
    | {"dropout", "attention_dropout", "activation_dropout", "norm_order", "tied_embeddings", "output_bias"}
)


def foreign_choices(
    recipe: ModelRecipe, facts: ModelMetadata | None = None, also_held: Collection[str] = ()
) -> list[str]:
    """The options of an architecture that a format is not known to hold, where they are not the paper's.

    also_held: options that this format holds, and others do not
    facts: of a model that other programs shall read, which know of no order of writing but that of reading
    """
    reversed_text = ["data.reverse_target is true"] if facts is not None and facts.reverse_target else []
    return reversed_text + [
        f"model.{name} is {getattr(recipe, name)!r}"
        for name, field in ModelRecipe.model_fields.items()
        if name not in {*_HELD_EVERYWHERE, *also_held}
        and getattr(recipe, name) != field.get_default(call_default_factory=True)
    ]


def refuse(target: str, reasons: Sequence[str], advice: str) -> None:
    """Raise UserError with all reasons, if any, why a format cannot represent a model."""
    if reasons:
        raise UserError(f"{target} cannot hold this model: {'; '.join(reasons)}; {advice}")
