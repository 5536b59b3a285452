"""Translation memory: a persistent cache of translations in an SQLite database.

The key of an entry is the SHA-256 of everything that determines a translation: model and options (`settings`), line,
prefix, required phrases, glossary terms and context. There is no fuzzy matching. Several processes may use a database
concurrently.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from pathlib import Path
from threading import RLock
from typing import Any

from nmt.decode.glossary import Required, Span, Term
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.errors import MemoryFileError
from nmt.recipe import Context
from nmt.text.clean import normalize

DEFAULT_LIMIT = 1_000_000
"""Default maximum number of entries."""

_APPLICATION_ID = 0x6E6D_7401  # "nmt" and the version of the tables
_HEADER = b"SQLite format 3\0"
_LOCK_SECONDS = 60.0
_DIGEST_BYTES = 8

# `used` is the value of `clock` at the last use of an entry; each window of lines advances the clock. `digest` is
# the checksum of key and translations, because SQLite has none.
_TABLES = (
    "CREATE TABLE state (entries INTEGER NOT NULL, clock INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0, 0)",
    "CREATE TABLE translations (key BLOB PRIMARY KEY, used INTEGER NOT NULL, digest BLOB NOT NULL, json BLOB NOT NULL)",
    "CREATE INDEX by_use ON translations (used)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
)
_FIND = "SELECT digest, json FROM translations WHERE key = ?"
_USE = "UPDATE translations SET used = (SELECT clock FROM state) WHERE key = ?"
_ADD = "INSERT OR IGNORE INTO translations SELECT ?, clock, ?, ? FROM state"
_REMOVE_OLDEST = """
    DELETE FROM translations WHERE key IN
    (SELECT key FROM translations ORDER BY used LIMIT (SELECT max(0, entries - ?) FROM state))
"""


class TranslationMemory:
    """A thread-safe database of translations by key, with a maximum number of entries."""

    def __init__(self, path: Path, limit: int = DEFAULT_LIMIT) -> None:
        """Open a database or create it; raises MemoryFileError if it is unusable, damaged, or another kind of file.

        limit: maximum number of entries; the least recently used ones are removed
        """
        self._path, self._limit, self._lock = path, limit, RLock()
        with self._errors():
            self._require_database()
            file = path.absolute()  # SQLite keeps a relative `:memory:` in memory
            self._database = sqlite3.connect(file, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
            self.close = self._database.close  # also called when the connection is garbage-collected
            with self._transaction("IMMEDIATE"):
                self._create_or_check()
            # With a write-ahead log, readers do not block a writer. If another process prevents the switch, the next
            # command that opens the database retries it.
            with suppress(sqlite3.OperationalError):
                self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")

    def find(self, keys: Iterable[bytes]) -> dict[bytes, list[Translation]]:
        """Return the entries of these keys that exist; raises MemoryFileError if the file is damaged."""
        entries = {}
        with self._lock, self._errors(), self._transaction("DEFERRED"):
            for key in keys:
                for digest, content in self._database.execute(_FIND, (key,)):
                    if not isinstance(content, bytes) or digest != _digest(key, content):
                        raise self._damaged("an entry does not match its checksum")
                    entries[key] = list(map(_translation, json.loads(content)))
        return entries

    def update(self, used: Iterable[bytes], added: Mapping[bytes, Sequence[Translation]]) -> None:
        """Add entries, mark these and `used` as most recently used, and evict the least recently used above the limit.

        Raises MemoryFileError if the file cannot be written, or is damaged.
        """
        rows = []
        for key, translations in added.items():
            content = json.dumps([astuple(translation) for translation in translations]).encode()
            rows.append((key, _digest(key, content), content))
        with self._lock, self._errors(), self._transaction("IMMEDIATE"):
            self._database.execute("UPDATE state SET clock = clock + 1")
            self._database.executemany(_USE, [(key,) for key in used])
            if rows:
                num_added = self._database.executemany(_ADD, rows).rowcount
                self._database.execute("UPDATE state SET entries = entries + ?", (num_added,))
            num_removed = self._database.execute(_REMOVE_OLDEST, (self._limit,)).rowcount
            self._database.execute("UPDATE state SET entries = entries - ?", (num_removed,))

    def _require_database(self) -> None:
        """Raise MemoryFileError if the file is not an SQLite database; SQLite would overwrite a short file."""
        try:
            # Opening a pipe could block forever, and SQLite would write a file next to a device.
            if self._path.exists() and not self._path.is_file() and not self._path.is_dir():
                raise sqlite3.OperationalError("it is a pipe or a device")
            with self._path.open("rb") as file:
                start = file.read(len(_HEADER))
        except FileNotFoundError:
            return  # to be created
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror) from error
        if start and start != _HEADER:
            raise self._damaged("it is not an SQLite database")

    def _create_or_check(self) -> None:
        """Create the tables of a new database; raises MemoryFileError if an existing one has another application id."""
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (num_tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not application and not num_tables:
            for statement in _TABLES:
                self._database.execute(statement)
        elif application != _APPLICATION_ID:
            raise MemoryFileError(
                f"{self._path} is an SQLite database, but not a translation memory of this version; --memory "
                "needs a file written by `nmt translate --memory`; choose another file"
            )

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._database.execute(f"BEGIN {kind}")
        try:
            yield
            self._database.execute("COMMIT")  # if a reader makes this fail, the transaction stays open
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert SQLite errors to MemoryFileError."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise MemoryFileError(
                f"cannot use {self._path}: {error}; --memory needs a readable and writable file on a local disk; check "
                "its permissions, the disk and other processes, or choose another file"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, problem: str) -> MemoryFileError:
        return MemoryFileError(
            f"{self._path} is damaged or not a translation memory ({problem}); --memory needs a file written by `nmt "
            "translate --memory`; remove the file to start an empty memory, or choose another"
        )


class MemoryTranslator:
    """Looks translations up in a memory and adds missing ones. Translates repeated lines once.

    lines_reused: number of lines of `start_translation` reused so far
    """

    def __init__(self, translator: TextTranslator, memory: TranslationMemory, settings: Mapping[str, Any]) -> None:
        """Translate with `translator`. settings: JSON values that identify its models and options"""
        self.lines_reused = 0
        self._translator, self._memory, self._settings = translator, memory, settings
        self._settings_json = json.dumps(settings, sort_keys=True)

    @property
    def context(self) -> Context:
        """See `TextTranslator`."""
        return self._translator.context

    @property
    def splits_sentences(self) -> bool:
        """See `TextTranslator`."""
        return self._translator.splits_sentences

    @property
    def lines_split(self) -> int:
        """See `TextTranslator`; reused lines count too."""
        return self._translator.lines_split

    @property
    def lines_longer(self) -> int:
        """See `TextTranslator`; reused lines count too."""
        return self._translator.lines_longer

    @property
    def unsupported(self) -> dict[str, str]:
        """See `TextTranslator`."""
        return self._translator.unsupported

    @property
    def require(self) -> Sequence[Required]:
        """See `TextTranslator`."""
        return self._translator.require

    @property
    def forbid(self) -> Sequence[str]:
        """See `TextTranslator`."""
        return self._translator.forbid

    def with_constraints(
        self, tag: str | None, forbidden: Sequence[str] = (), *, digits: bool = True, requires: bool = True
    ) -> MemoryTranslator:
        """See `TextTranslator.with_constraints`."""
        settings = {**self._settings, "decode.forbid": [*self._settings.get("decode.forbid", ()), *forbidden]}
        if tag is not None:
            settings["decode.tag"] = tag
        if not digits:
            settings["digits"] = False
        if not requires:
            settings["decode.require"] = []
        translator = self._translator.with_constraints(tag, forbidden, digits=digits, requires=requires)
        return MemoryTranslator(translator, self._memory, settings)

    def fits_beam(self, item: TranslatorInput) -> bool:
        """See `TextTranslator.fits_beam`."""
        return self._translator.fits_beam(item)

    def translate_inputs(self, inputs: Sequence[TranslatorInput], n_best: int | None = None) -> list[list[Translation]]:
        """See `TextTranslator.translate_inputs`; does not change `lines_reused`."""
        before = self.lines_reused
        finish = self.start_translation(inputs, n_best)
        self.lines_reused = before
        return finish()

    def start_translation(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None
    ) -> Callable[[], list[list[Translation]]]:
        """Start a translation like `TextTranslator.start_translation`; raises MemoryFileError like `find`."""
        keys = [self._key(item, n_best) for item in inputs]
        reused = self._memory.find(keys)
        missing: dict[bytes, TranslatorInput] = {}
        reused_lines = []
        for key, item in zip(keys, inputs, strict=True):
            if key in reused or key in missing:
                reused_lines.append(item.text)
            else:
                missing[key] = item
        self.lines_reused += len(reused_lines)
        self._translator.count_long(reused_lines)
        finish = self._translator.start_translation(list(missing.values()), n_best)

        def result() -> list[list[Translation]]:
            added = dict(zip(missing, finish(), strict=True))
            self._memory.update(reused, added)
            entries = reused | added
            return [entries[key] for key in keys]

        return result

    def _key(self, item: TranslatorInput, n_best: int | None) -> bytes:
        content: list[object] = [self._settings_json, item.text, item.prefix, item.required]
        terms: list[object] = []
        overlapping: list[object] = []
        if item.glossary is not None:
            text = normalize(item.text, "none")
            terms = self._describe(item.glossary.locate(text))
            overlapping = self._describe(item.glossary.overlapping(text))
        if terms or item.context:
            content.append(terms)
        if item.context:
            content.append(item.context)
        if n_best is not None:
            content.append({"n_best": n_best})
        if overlapping:
            content.append({"overlapping": overlapping})
        return _sha256(json.dumps(content).encode())

    def _describe(self, located: Iterable[tuple[Span, Term]]) -> list[object]:
        """Return the spans of terms and what a translation depends on, as JSON values."""
        annotates = self._settings.get("decode.glossary_mode") == "annotate"
        return [[span, term.forms[0] if annotates else term.required] for span, term in located]


def _translation(fields: list[Any]) -> Translation:
    translation = Translation(*fields)
    if translation.alignment is None:
        return translation
    return replace(translation, alignment=[(source, target) for source, target in translation.alignment])


def _digest(key: bytes, content: bytes) -> bytes:
    return _sha256(key + content)[:_DIGEST_BYTES]


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
