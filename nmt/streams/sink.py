"""What text is written to, plain or compressed, and what is said where the system refuses it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Protocol

from nmt.recipe import UserError

_GZIP = 31  # window bits: the largest window, with gzip's head and tail


class _Compressor(Protocol):
    """What `zlib.compressobj` gives; its class has no public name."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int = ..., /) -> bytes: ...


@contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """Turn what the system refuses into one line, but for a reader that has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {name}: {error.strerror}; choose a place that can be written to") from error


class Sink:
    """A file that text is written to; what was written can be read by others at once.

    A compressed one is a row of gzip members, which any program reads as one text: behind a whole one it can be cut.

    position: how many bytes the file has so far
    """

    def __init__(self, file: FileIO, name: str, *, is_compressed: bool, position: int = 0) -> None:
        """Write to `file`, which errors call `name`; it has no buffer, so that each error shows where it arises."""
        self._file, self._name, self.is_compressed, self.position = file, name, is_compressed, position
        self._compressor: _Compressor | None = None

    def write(self, text: str) -> None:
        """Write some lines; UserError where there is no room for them."""
        content = text.encode()
        if self.is_compressed:
            self._compressor = self._compressor or zlib.compressobj(wbits=_GZIP)
            content = self._compressor.compress(content) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._write_bytes(content)

    def end_member(self) -> None:
        """Close the gzip member that was begun, where there is one."""
        if self._compressor is not None:
            self._write_bytes(self._compressor.flush())
            self._compressor = None

    def finish(self) -> None:
        """End the text; a compressed one without text is a member of nothing."""
        if self.is_compressed and self._compressor is None and not self.position:
            self.write("")
        self.end_member()

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        with naming_errors(self._name):
            os.fsync(self._file.fileno())

    def _write_bytes(self, content: bytes) -> None:
        with naming_errors(self._name):
            rest = memoryview(content)
            while rest:
                written = self._file.write(rest) or 0
                self.position += written
                rest = rest[written:]
