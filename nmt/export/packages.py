"""Packages of the extras: they are imported when they are used, and a missing one is named in one line."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Literal

from nmt.recipe import UserError

Package = Literal["ctranslate2", "transformers", "fastapi", "uvicorn"]

_EXTRA: dict[Package, str] = {
    "ctranslate2": "fast",
    "transformers": "huggingface",
    "fastapi": "serve",
    "uvicorn": "serve",
}


def is_installed(package: Package) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def load_package(package: Package, submodule: str = "") -> Any:
    """The imported package, or a module inside it; raises UserError that says which extra brings it."""
    try:
        return importlib.import_module(f"{package}.{submodule}" if submodule else package)
    except ImportError as error:
        raise UserError(
            f"package {package} cannot be imported ({error}); it must be installed for this; "
            f"pip install 'nmt[{_EXTRA[package]}]'"
        ) from error
