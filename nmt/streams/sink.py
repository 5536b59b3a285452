"""Unbuffered text output, plain or gzip-compressed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING

from nmt.errors import UserError, describe_write_error

if TYPE_CHECKING:
    from zlib import _Compress

_GZIP = 31  # wbits of zlib: the largest window, with gzip header and trailer


@contextmanager
def write_errors(name: str) -> Iterator[None]:
    """Convert OSError to UserError, except BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        advice = "it must be writable; choose another output"
        raise UserError(describe_write_error(error, name, advice)) from error


def lock(file: FileIO) -> bool:
    """Lock a file until it is closed; return False on file systems without locks.

    Raises BlockingIOError if another process has locked it.
    """
    try:
        # Not a POSIX record lock: closing any descriptor of the file would release it.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # the file system has no locks
        return False
    return True


class Sink:
    """Writes text to a file without buffering: each write is visible immediately and raises its own errors.

    Compressed output is a sequence of gzip members, and can be truncated after each member.

    position: bytes of the file so far
    digest:   SHA-256 of these bytes
    """

    def __init__(self, file: FileIO, name: str, *, is_compressed: bool, position: int = 0) -> None:
        """Write to an unbuffered file; name: for error messages."""
        self._file, self._name = file, name
        self.is_compressed = is_compressed
        self.position = position
        self.digest = hashlib.sha256()
        self._compressor: _Compress | None = None
        self._is_damaged = False

    def write(self, text: str) -> None:
        """Write text; raises UserError if that fails."""
        content = text.encode()
        if self.is_compressed:
            self._compressor = self._compressor or zlib.compressobj(wbits=_GZIP)
            content = self._compressor.compress(content) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._write_bytes(content)

    def end_member(self) -> None:
        """End the current gzip member, if any; raises UserError if this fails or failed earlier."""
        if self._is_damaged:
            raise UserError(f"{self._name} has an incomplete gzip member, which cannot be continued; translate again")
        if self._compressor is not None:
            self._is_damaged = True
            self._write_bytes(self._compressor.flush())
            self._compressor = None
            self._is_damaged = False

    def finish(self) -> None:
        """End the output; empty compressed output gets one empty member."""
        if self.is_compressed and self._compressor is None and not self.position:
            self.write("")
        self.end_member()

    def sync(self) -> None:
        """Flush the file to disk."""
        with write_errors(self._name):
            os.fsync(self._file.fileno())

    def _write_bytes(self, content: bytes) -> None:
        with write_errors(self._name):
            rest = memoryview(content)
            while rest:
                written = self._file.write(rest) or 0
                self.position += written
                self.digest.update(rest[:written])
                rest = rest[written:]
