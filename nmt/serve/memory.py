"""Translation memory of a server: file errors do not fail requests, and waits for locks end after one second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from nmt.decode.memory import DEFAULT_LIMIT, TranslationMemory
from nmt.decode.translation import Translation
from nmt.errors import MemoryFileError
from nmt.serve.log import log_warning

Result = TypeVar("Result")

_BUSY_MILLISECONDS = 1_000  # requests would time out during longer waits for other processes
_PAUSE_SECONDS = 10.0


class ServedMemory(TranslationMemory):
    """A translation memory that logs errors instead of raising them and is not used for 10 seconds afterwards.

    settings:    JSON values that identify the model
    num_reused:  lines that were found
    num_missing: lines that were not found, or not looked up after an error
    num_errors:  failed reads and writes
    """

    def __init__(self, path: Path, limit: int | None, settings: Mapping[str, Any]) -> None:
        """Open or create the file; raises MemoryFileError if it is unusable."""
        super().__init__(path, limit or DEFAULT_LIMIT)
        self._database.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        self.settings = settings
        self.num_reused = self.num_missing = self.num_errors = 0
        self._resumes_at = 0.0
        self._identity = _identity(path)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, list[Translation]]:
        """Return the existing entries of these keys, or none after an error."""
        keys = list(keys)
        find = super().find
        no_entries: dict[bytes, list[Translation]] = {}
        with self._lock:
            found = self._attempt(lambda: find(keys), no_entries)
            num_found = sum(key in found for key in keys)
            self.num_reused += num_found
            self.num_missing += len(keys) - num_found
        return found

    def update(self, used: Iterable[bytes], added: Mapping[bytes, Sequence[Translation]]) -> None:
        """See `TranslationMemory`; does nothing after an error."""
        update = super().update
        with self._lock:
            self._attempt(lambda: update(used, added), None)

    def _attempt(self, call: Callable[[], Result], otherwise: Result) -> Result:
        if monotonic() < self._resumes_at:
            return otherwise
        try:
            if _identity(self._path) != self._identity:
                raise MemoryFileError(f"{self._path} was deleted or replaced; restart the server to use the new file")
            return call()
        except MemoryFileError as error:
            self.num_errors += 1
            self._resumes_at = monotonic() + _PAUSE_SECONDS
            log_warning(f"{error}; the translation memory is not used for {_PAUSE_SECONDS:g} seconds")
            return otherwise


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
