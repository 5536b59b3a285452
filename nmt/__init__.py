"""nmt: the encoder-decoder Transformer for machine translation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.decode.translation import Translation
    from nmt.decode.translator import Translator
    from nmt.errors import UserError
    from nmt.recipe import DecodeRecipe

    __version__: str

__all__ = ["DecodeRecipe", "Translation", "Translator", "UserError", "__version__"]

# Imported lazily, because importing torch takes a second.
_MODULES = {
    "DecodeRecipe": "nmt.recipe",
    "Translation": "nmt.decode.translation",
    "Translator": "nmt.decode.translator",
    "UserError": "nmt.errors",
}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__`."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("nmt")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
