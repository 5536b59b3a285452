"""CTranslate2 conversions, cached inside the model directory.

The name of a conversion contains the hash of the model's manifest, which contains the hash of each file of the model.
A changed model therefore gets a new conversion. Conversions are sealed with a manifest, too.

A lock file prevents a process from replacing or removing a conversion that another process is reading: readers share
the lock, and a writer holds it exclusively. On file systems without locks, all processes use the first conversion that
is renamed to its final name.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from time import time
from typing import IO, Literal, cast

from nmt.errors import UserError, message_of
from nmt.logs import say
from nmt.recipe import ModelRecipe
from nmt.storage.model_metadata import ModelMetadata, read_model_recipe, read_model_toml, require_transformer
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import MANIFEST, CorruptError, file_sha256, verify_directory, write_directory

_VERSION = 2  # of the conversion code; increment it when conversions change
_STALE_SECONDS = 86_400.0  # older staging folders belong to dead processes: a conversion takes minutes
_LOCK_FILE = ".ctranslate2.lock"

StoredAs = Literal["float32", "int8"]


@dataclass(frozen=True)
class Conversion:
    """A model directory, the contents of its `model.toml`, and the directory of its conversion."""

    model: Path
    recipe: ModelRecipe
    metadata: ModelMetadata
    directory: Path


def can_cache(path: Path, stored_as: StoredAs) -> bool:
    """Return whether a conversion is cached or can be. Raises UserError if there is no model."""
    model = find_model(path)
    if os.access(model, os.W_OK):
        return True
    return (model / MANIFEST).is_file() and _conversion_path(model, stored_as).is_dir()


@contextmanager
def open_conversion(path: Path, stored_as: StoredAs) -> Iterator[Conversion]:
    """Find or make the conversion of a model; no other process can remove it during the `with` block.

    Only a new conversion reads and verifies the weights. Raises UserError if there is no model or the conversion
    cannot be written, and CorruptError if a file of the model is damaged.
    """
    model = find_model(path)
    verify_directory(model, without="*.safetensors")
    with _open_lock(model) as lock:
        _lock(lock, exclusive=False)
        directory = _conversion_path(model, stored_as)
        if not _is_valid(directory):
            _lock(lock, exclusive=True)
            directory = _conversion_path(model, stored_as)  # another process may have converted while this one waited
            if not _is_valid(directory):
                directory = _convert(model, directory, stored_as)
        yield Conversion(model, *read_model_toml(model / "model.toml"), directory)


def _open_lock(model: Path) -> AbstractContextManager[IO[bytes] | None]:
    """Open the lock file, which is never removed; None if it cannot be opened."""
    for mode in ("ab", "rb"):  # some file systems grant exclusive locks only on files opened for writing
        with suppress(OSError):
            return cast(IO[bytes], (model / _LOCK_FILE).open(mode))
    return nullcontext()


def _lock(file: IO[bytes] | None, *, exclusive: bool) -> None:
    """Wait for the lock, which replaces the current one; do nothing if locks are not supported."""
    if file is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def _convert(model: Path, directory: Path, stored_as: StoredAs) -> Path:
    """Write the conversion, to a temporary folder of this process if the model directory is read-only."""
    require_transformer(read_model_recipe(model), model, "use --engine torch")
    verify_directory(model)
    is_cached = os.access(model, os.W_OK)
    next_time = "later calls reuse the result" if is_cached else f"not cached, because {model} is read-only"
    say(f"converting {model} to {stored_as} for CTranslate2; {next_time}")
    try:
        # Imports torch, which calls with a cached conversion do not need.
        files = import_module("nmt.export.ctranslate2").convert(model, stored_as)
        if _conversion_path(model, stored_as) != directory:
            raise UserError(f"{model} changed during its conversion; it must not change; rerun")
        if not is_cached:
            temporary = Path(mkdtemp(prefix="nmt-"))
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            directory = temporary / directory.name
        _publish(files, directory)
    except (OSError, RuntimeError, ValueError) as error:
        find_model(model)  # raises UserError if the model was deleted in the meantime
        detail = error.strerror if isinstance(error, OSError) and error.strerror else message_of(error)
        raise UserError(
            f"converting {model} for CTranslate2 failed: {detail}; the conversion needs a writable folder with free "
            "space; check the folder, or use --engine torch"
        ) from error
    _remove_stale(model)
    return directory


def _publish(files: Mapping[str, bytes], directory: Path) -> None:
    """Write the directory atomically, unless another process publishes it first.

    A damaged directory is replaced. A valid one is never touched, because another process may be reading it.
    """
    staging = Path(mkdtemp(prefix=f".{directory.name}.part-", dir=directory.parent))
    try:
        write_directory(staging / "new", files)
        if directory.exists() and not _is_valid(directory):
            with suppress(OSError):  # another process may have moved it
                directory.rename(staging / "damaged")
        try:
            (staging / "new").rename(directory)
        except OSError:
            if not _is_valid(directory):
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_stale(model: Path) -> None:
    """Remove conversions of earlier versions of the model, and staging folders of dead processes."""
    current = _conversion_path(model, "float32").name.removesuffix("float32")
    for other in model.glob(f"ctranslate2-{_VERSION}-{'[0-9a-f]' * 16}-*"):
        if not other.name.startswith(current):
            shutil.rmtree(other, ignore_errors=True)
    for staging in model.glob(".ctranslate2-*.part-*"):
        with suppress(OSError):
            if time() - staging.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(staging, ignore_errors=True)


def _conversion_path(model: Path, stored_as: StoredAs) -> Path:
    """Return the path of the conversion of the current model."""
    digest = file_sha256(model / MANIFEST)[:16]
    return model / f"ctranslate2-{_VERSION}-{digest}-{stored_as}"


def _is_valid(directory: Path) -> bool:
    try:
        verify_directory(directory)
    except CorruptError:
        return False
    return True
