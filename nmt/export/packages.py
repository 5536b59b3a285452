"""Optional packages: imported on use; a missing one raises an error that names the extra to install."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
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

# CTranslate2 uses asyncio only for coroutines of its own, but imports it, which takes 15 ms and 2.5 MB.
_UNUSED_IMPORTS: dict[Package, str] = {"ctranslate2": "asyncio"}


def is_installed(package: Package) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def load_package(package: Package, submodule: str = "") -> Any:
    """Import a package, or one of its modules. Raises UserError if it is not installed."""
    try:
        with _deferred_import(_UNUSED_IMPORTS.get(package)):
            return importlib.import_module(f"{package}.{submodule}" if submodule else package)
    except ImportError as error:
        raise UserError(
            f"package {package} cannot be imported ({error}); it is required here; pip install "
            f"'nmt[{EXTRA_OF[package]}]'"
        ) from error


@contextmanager
def _deferred_import(name: str | None) -> Iterator[None]:
    """Defer imports of a module in this block to its first use, unless it is already imported."""
    if name is None or name in sys.modules:
        yield
        return
    deferred = sys.modules[name] = _DeferredModule(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is deferred:
            del sys.modules[name]


class _DeferredModule(ModuleType):
    """A module that is imported when one of its attributes is used."""

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)
