"""Check and load the language model for shallow fusion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint import load_model
from nmt.errors import UserError
from nmt.inference.prepare import prepare_for_search
from nmt.recipe import ModelRecipe, SearchPrecision
from nmt.search.beam_search import StepModel
from nmt.special_ids import EOS_ID
from nmt.storage.model_metadata import read_model_metadata, require_kind
from nmt.storage.run_folder import find_model
from nmt.text.tokenizer import Tokenizer, Tokenizers


@dataclass(frozen=True)
class FusedLanguageModel:
    """A language model for shallow fusion.

    path:   as given by the user
    source: source token ids, the same for every sentence
    """

    path: Path
    model: StepModel[Any]
    recipe: ModelRecipe
    source: tuple[int, ...]

    @classmethod
    def load(cls, path: Path, device: torch.device, precision: SearchPrecision) -> FusedLanguageModel:
        """Load a model directory, a checkpoint or a run."""
        loaded = load_model(path, device)
        tag = loaded.metadata.decode.tag
        tags = [] if tag is None else [Tokenizers.load(loaded.directory).src.tag_id(tag)]
        return cls(path, prepare_for_search([loaded.model], precision, device)[0], loaded.model.recipe, (*tags, EOS_ID))


def require_fusible(
    path: Path, language: str | None, tgt: Tokenizer | None = None, *, reverse_target: bool = False
) -> None:
    """Raise UserError unless `path` is a language model for the target language of the translator, if known.

    tgt: if given, the model must also have this target tokenizer, and the direction `reverse_target`
    """
    directory = find_model(path)
    metadata = read_model_metadata(directory)
    require_kind(directory, metadata, language_model=True)
    if language is not None and metadata.tgt_lang != language:
        raise UserError(
            f"{directory} is a language model of {metadata.tgt_lang}; shallow fusion needs one of the target language, "
            f"{language}; choose another model"
        )
    if tgt is None:
        return
    if Tokenizers.load(directory).tgt.model != tgt.model:
        raise UserError(
            f"{directory} and the translation model have different target tokenizers; shallow fusion needs the same "
            "tokenizer; train the language model with tokenizer.start_from set to the translation model"
        )
    if metadata.reverse_target != reverse_target:
        raise UserError(
            f"{directory} and the translation model decode in opposite directions; shallow fusion needs the same "
            "direction; set data.reverse_target of the language model to that of the translation model"
        )
