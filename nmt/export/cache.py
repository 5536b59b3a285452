"""Conversions to CTranslate2 are kept inside the model directory that they were made from.

The name of a conversion holds the hash of the model's manifest, and the manifest the hash of each file of the model. So
another model at the same place has another conversion, and the directory of a conversion is sealed like any other.

A lock file beside the conversions orders the processes that use a model: those that read share the lock, and one that
converts or removes has it alone. Where the file system has no locks, the first conversion to be renamed to its final
name is the one that all processes use.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from time import time
from typing import IO, Literal, cast

from nmt.logs import say
from nmt.recipe import ModelRecipe, UserError
from nmt.storage.model_facts import ModelFacts, read_model_facts, read_model_recipe
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import MANIFEST, CorruptError, verify_directory, write_directory

if sys.platform != "win32":
    import fcntl

# Another number for another way of converting.
_VERSION = 2
# A conversion takes minutes: what one began a day ago, its process has not ended.
_ABANDONED_SECONDS = 86_400.0
_LOCK_FILE = ".ctranslate2.lock"

StoredAs = Literal["float32", "int8"]


@dataclass(frozen=True)
class Conversion:
    """A model directory, what its `model.toml` says, and the directory of its conversion."""

    model: Path
    recipe: ModelRecipe
    facts: ModelFacts
    directory: Path


def may_convert(path: Path, stored_as: StoredAs) -> bool:
    """Whether the conversion of the model is there, or can be kept beside it; UserError where there is no model."""
    model = find_model(path)
    return os.access(model, os.W_OK) or _conversion_of(model, stored_as).is_dir()


@contextmanager
def open_conversion(path: Path, stored_as: StoredAs) -> Iterator[Conversion]:
    """The conversion of the model that a path means, made now if there is none of it as it is.

    No other process removes it inside the `with` block. Raises UserError where there is no model, or where the
    conversion cannot be written, and CorruptError where a file of the model is damaged; the weights are read and
    verified only to be converted.
    """
    model = find_model(path)
    verify_directory(model, without="*.safetensors")
    with _open_lock(model) as lock:
        _lock(lock, alone=False)
        directory = _conversion_of(model, stored_as)
        if not _is_whole(directory):
            _lock(lock, alone=True)
            # Another process may have made it while this one waited.
            directory = _conversion_of(model, stored_as)
            if not _is_whole(directory):
                directory = _convert(model, directory, stored_as)
        yield Conversion(model, read_model_recipe(model), read_model_facts(model), directory)


def _open_lock(model: Path) -> AbstractContextManager[IO[bytes] | None]:
    """The lock file of the model's conversions, which is never removed; None where it cannot be opened."""
    for mode in ("ab", "rb"):  # some file systems lock for one process alone only what it may write
        with suppress(OSError):
            return cast(IO[bytes], (model / _LOCK_FILE).open(mode))
    return nullcontext()


def _lock(file: IO[bytes] | None, *, alone: bool) -> None:
    """Wait for the lock, shared or alone, in the place of the one held; do nothing where there are no locks."""
    if file is not None and sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)


def _convert(model: Path, directory: Path, stored_as: StoredAs) -> Path:
    """Write the conversion; to a temporary folder of this process where the model's cannot be written to."""
    verify_directory(model)
    is_kept = os.access(model, os.W_OK)
    later = "finds it done" if is_kept else f"does it again, because {model} cannot be written to"
    say(f"converting {model} to {stored_as} for CTranslate2; the next call {later}")
    try:
        # Imported only now: it needs torch, which no later call imports.
        files = import_module("nmt.export.ctranslate2").convert(model, stored_as)
        if _conversion_of(model, stored_as) != directory:
            raise UserError(f"{model} was replaced while it was converted; it must stay as it is until then; rerun")
        if not is_kept:
            temporary = Path(mkdtemp(prefix="nmt-"))
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            directory = temporary / directory.name
        _publish(files, directory)
    except (OSError, RuntimeError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise UserError(
            f"cannot convert {model} for CTranslate2: {detail}; there must be a place to write to, with room; check "
            "that, or use --engine torch"
        ) from error
    _remove_outdated(model)
    return directory


def _publish(files: Mapping[str, bytes], directory: Path) -> None:
    """Make the directory, unless another process makes it first, whose files are then as good.

    A damaged one is replaced, and a whole one is never touched: another process may be reading it.
    """
    staging = Path(mkdtemp(prefix=f".{directory.name}.part-", dir=directory.parent))
    try:
        write_directory(staging / "new", files)
        if directory.exists() and not _is_whole(directory):
            with suppress(OSError):  # where another process has moved it away
                directory.rename(staging / "damaged")
        try:
            (staging / "new").rename(directory)
        except OSError:
            if not _is_whole(directory):
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_outdated(model: Path) -> None:
    """Remove conversions of a model that was at this place before, and what a dead process left behind."""
    current = _conversion_of(model, "float32").name.removesuffix("float32")
    for other in model.glob(f"ctranslate2-{_VERSION}-*"):
        if not other.name.startswith(current):
            shutil.rmtree(other, ignore_errors=True)
    for staging in model.glob(".ctranslate2-*.part-*"):
        with suppress(OSError):
            if time() - staging.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(staging, ignore_errors=True)


def _conversion_of(model: Path, stored_as: StoredAs) -> Path:
    """Where the conversion of the model lies that is at this place now."""
    digest = hashlib.sha256((model / MANIFEST).read_bytes()).hexdigest()[:16]
    return model / f"ctranslate2-{_VERSION}-{digest}-{stored_as}"


def _is_whole(directory: Path) -> bool:
    try:
        verify_directory(directory)
    except CorruptError:
        return False
    return True
