"""nmt: the encoder-decoder Transformer for machine translation."""

from nmt.decode.translator import Translation, Translator
from nmt.recipe import UserError

__all__ = ["Translation", "Translator", "UserError"]
