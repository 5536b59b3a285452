"""Former name of `nmt.storage.model_metadata`."""

from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS as USUAL_MAX_TOKENS
from nmt.storage.model_metadata import ModelMetadata as ModelFacts

__all__ = ["USUAL_MAX_TOKENS", "ModelFacts"]
