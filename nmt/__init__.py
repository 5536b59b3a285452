"""nmt: the encoder-decoder Transformer for machine translation."""

from typing import TYPE_CHECKING, Any

from nmt.recipe import DecodeRecipe, UserError

if TYPE_CHECKING:
    from nmt.decode.translation import Translation
    from nmt.decode.translator import Translator

    __version__: str

__all__ = ["DecodeRecipe", "Translation", "Translator", "UserError", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the translator when it is first asked for: processes that only prepare text start sooner without torch."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("nmt")
    if name not in ("Translation", "Translator"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nmt.decode import translator  # noqa: PLC0415

    return getattr(translator, name)
