"""Conversions to CTranslate2 are kept inside the model directory that they were made from.

The name of a conversion holds the hash of the model's manifest, and the manifest the hash of each file of the model. So
another model at the same place has another conversion, and the directory of a conversion is sealed like any other.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import torch

from nmt.checkpoint import load_model
from nmt.data.tokenizer import Tokenizers
from nmt.export.ctranslate2 import ctranslate2_files
from nmt.layout import find_model
from nmt.logs import say
from nmt.recipe import ModelRecipe, UserError
from nmt.storage.model_facts import ModelFacts, read_model_facts, read_model_recipe
from nmt.storage.sealed import MANIFEST, CorruptError, verify_directory, write_directory

# Another number for another way of converting.
_VERSION = 1


@dataclass(frozen=True)
class Conversion:
    """A model directory, what its `model.toml` says, and the directory of its conversion."""

    model: Path
    recipe: ModelRecipe
    facts: ModelFacts
    directory: Path


def find_conversion(path: Path) -> Conversion:
    """The conversion of the model that a path means, made now if there is none of it as it is.

    Raises UserError where there is no model, and CorruptError where one of its files is not what was saved.
    """
    model = find_model(path)
    verify_directory(model)
    digest = hashlib.sha256((model / MANIFEST).read_bytes()).hexdigest()[:16]
    directory = model / f"ctranslate2-{_VERSION}-{digest}"
    if not _is_whole(directory):
        directory = _convert(model, directory)
    return Conversion(model, read_model_recipe(model), read_model_facts(model), directory)


def _convert(model: Path, directory: Path) -> Path:
    """Write the conversion, in place of all others; to a passing folder where the model's cannot be written to."""
    say(f"converting {model} for CTranslate2; the next call finds it done")
    files = ctranslate2_files(load_model(model, torch.device("cpu")).model, Tokenizers.load(model), "float32")
    if not os.access(model, os.W_OK):
        passing = Path(mkdtemp(prefix="nmt-"))
        atexit.register(shutil.rmtree, passing, ignore_errors=True)
        directory = passing / directory.name
    for other in directory.parent.glob("ctranslate2-*"):
        shutil.rmtree(other, ignore_errors=True)
    try:
        write_directory(directory, files)
    except UserError:
        if not _is_whole(directory):  # as it is when another process was faster
            raise
    return directory


def _is_whole(directory: Path) -> bool:
    try:
        verify_directory(directory)
    except CorruptError:
        return False
    return True
