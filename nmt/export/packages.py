"""Optional packages: imported on use; a missing one raises an error that names the extra to install."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Literal

from nmt.errors import UserError

Package = Literal["ctranslate2", "transformers", "fastapi", "uvicorn", "py3langid", "rouge_score"]

EXTRA_OF: dict[Package, str] = {
    "ctranslate2": "fast",
    "transformers": "huggingface",
    "fastapi": "serve",
    "uvicorn": "serve",
    "py3langid": "serve",
    "rouge_score": "summarize",
}


def is_installed(package: Package) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def load_package(package: Package, submodule: str = "") -> Any:
    """Import a package, or one of its modules. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(f"{package}.{submodule}" if submodule else package)
    except ImportError as error:
        raise UserError(
            f"package {package} cannot be imported ({error}); it is required here; pip install "
            f"'nmt[{EXTRA_OF[package]}]'"
        ) from error
