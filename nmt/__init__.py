"""nmt: the encoder-decoder Transformer for machine translation."""

from nmt.decode.translator import Translation, Translator
from nmt.recipe import DecodeRecipe, UserError

__all__ = ["DecodeRecipe", "Translation", "Translator", "UserError"]
