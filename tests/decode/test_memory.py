"""The translation memory: what it reuses, what it removes, and what it refuses."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from nmt.decode.glossary import Glossary, Term
from nmt.decode.memory import MemoryTranslator, TranslationMemory
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.errors import UserError

Request = tuple[str, str, tuple[str, ...]]


class FakeTranslator:
    """Translates by a fixed function of the request, and records the requests."""

    def __init__(self) -> None:
        self.lines_split = 0
        self.requests: list[Request] = []
        self.inputs: Sequence[TranslatorInput] = ()

    def with_constraints(
        self, tag: str | None, forbidden: Sequence[str] = (), *, digits: bool = True, requires: bool = True
    ) -> FakeTranslator:
        return self

    def count_long(self, lines: Sequence[str]) -> None:
        self.lines_split += sum(len(line) > 50 for line in lines)

    def start_translation(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None
    ) -> Callable[[], list[list[Translation]]]:
        requests = [(one.text, one.prefix, tuple(map(str, one.required))) for one in inputs]
        self.requests += requests
        self.inputs = inputs
        return lambda: [translate(*request) for request in requests]


def translate(line: str, prefix: str = "", required: tuple[str, ...] = ()) -> list[Translation]:
    """Return two translations with all types and special values of fields."""
    rng = random.Random(repr((line, prefix, required)))
    log_probs = [math.log(rng.random()) for _ in line]
    text = " ".join([prefix, line[::-1], *required])
    best = Translation(text, sum(log_probs) / 7, sum(log_probs), list(line), log_probs, [(0, 1), (2, 0)])
    return [best, Translation(f"{text}\ud800", -math.inf, -1e-300, [])]


def remembering(path: Path, translator: FakeTranslator, settings: object = 1) -> MemoryTranslator:
    return MemoryTranslator(cast(TextTranslator, translator), TranslationMemory(path), {"model": settings})


def run(translator: MemoryTranslator, requests: Sequence[Request]) -> list[list[Translation]]:
    return translator.start_translation([TranslatorInput(*request) for request in requests])()


def test_only_requests_that_differ_are_translated(tmp_path: Path) -> None:
    requests: list[Request] = [("a b", "", ()), ("a b", "x", ()), ("a b", "", ("x",)), ("a", "b", ()), ("a b", "", ())]
    requests += [("a b", "", ("x", "y")), ("a b", "", ("x y",)), ("a b ", "", ()), ("\ud800", "", ()), ("", "", ())]
    distinct = list(dict.fromkeys(requests))
    fake = FakeTranslator()
    first = remembering(tmp_path / "m", fake)
    assert run(first, requests) == [translate(*request) for request in requests]
    assert (fake.requests, first.lines_reused) == (distinct, 1)

    changed: list[Request] = [("new", "", ()), *requests[::-1]]
    again = remembering(tmp_path / "m", fake)
    assert run(again, changed) == [translate(*request) for request in changed]
    assert (fake.requests[len(distinct) :], again.lines_reused) == ([("new", "", ())], len(requests))

    other = remembering(tmp_path / "m", fake, settings=2)
    assert run(other, requests) == [translate(*request) for request in requests]
    assert (len(fake.requests), other.lines_reused) == (2 * len(distinct) + 1, 1)


def test_repeated_long_lines_are_counted(tmp_path: Path) -> None:
    fake, long = FakeTranslator(), TranslatorInput("a" * 51)
    remembering(tmp_path / "m", fake).start_translation([long, long, long])()
    assert (len(fake.requests), fake.lines_split) == (1, 2)  # a real translator counts the line it translates


def test_only_the_terms_of_a_line_count(tmp_path: Path) -> None:
    fake = FakeTranslator()
    translator = remembering(tmp_path / "m", fake)

    def reused(*terms: Term) -> list[bool]:
        """Translate two lines with a glossary, and return which of them are reused."""
        before = len(fake.requests)
        glossary = Glossary(terms)
        translator.start_translation([TranslatorInput(text, glossary=glossary) for text in ("a b", "c")])()
        translated = [line for line, _, _ in fake.requests[before:]]
        assert all(one.glossary is glossary for one in fake.inputs)
        return [line not in translated for line in ("a b", "c")]

    run(translator, [("c", "", ())])
    assert reused(Term("a", ("x",))) == [False, True]
    assert reused(Term("a", ("x",)), Term("d", ("y",))) == [True, True]
    assert reused(Term("a", ("x", "y"))) == [False, True]
    assert reused(Term("c", ("x",))) == [False, False]


def test_overlapping_terms_are_part_of_the_key(tmp_path: Path) -> None:
    """A line that is split between `a` and `b` gets the term `b` instead of `a b`."""
    fake, forms = FakeTranslator(), ("x",)
    translator = remembering(tmp_path / "m", fake)
    long, short = Term("a b", forms), Term("b", forms)
    for terms, is_new in (([long], True), ([long, short], True), ([long, Term("d", forms)], False), ([long], False)):
        before = translator.lines_reused
        translator.start_translation([TranslatorInput("a b c", glossary=Glossary(terms))])()
        assert (translator.lines_reused == before) == is_new


@pytest.mark.parametrize("mode", ["annotate", "constrain"])
def test_the_words_of_terms_are_part_of_the_key(tmp_path: Path, mode: str) -> None:
    """The model reads each annotation after its term; each part of a split line gets the terms in it."""
    fake, memory = FakeTranslator(), TranslationMemory(tmp_path / "m")
    translator = MemoryTranslator(cast(TextTranslator, fake), memory, {"decode.glossary_mode": mode})
    for term, is_new in (("a", True), ("a", False), ("b", True), ("a b", True), ("c", True), ("d", False)):
        before = translator.lines_reused
        forms = ("x", "unused" if is_new else "y") if mode == "annotate" else ("x",)
        glossary = Glossary([Term(term, forms)])
        translator.start_translation([TranslatorInput("a b", glossary=glossary)])()
        assert (translator.lines_reused == before) == is_new


def test_constraints_of_a_line_are_part_of_the_key(tmp_path: Path) -> None:
    fake = FakeTranslator()
    translator = remembering(tmp_path / "m", fake)
    for tag, forbidden in ((None, ()), ("<x>", ()), (None, ("a",)), ("<x>", ("a",))):
        for is_new in (True, False):
            constrained = translator.with_constraints(tag, forbidden)
            run(constrained, [("a", "", ())])
            assert constrained.lines_reused == (not is_new)
    for is_new in (True, False):
        for constrained in (
            translator.with_constraints(None, digits=False),
            translator.with_constraints(None, requires=False),
        ):
            run(constrained, [("a", "", ())])
            assert constrained.lines_reused == (not is_new)


def test_the_least_recently_used_are_removed(tmp_path: Path) -> None:
    rng, limit = random.Random(1), 7
    last_use: dict[bytes, int] = {}
    for step in range(300):
        if step % 20 == 0:
            memory = TranslationMemory(tmp_path / "m", limit)
        key = bytes([rng.randrange(12)])
        found = memory.find([key])
        assert found.keys() == last_use.keys() & {key}
        memory.update(found, {} if found else {key: translate(repr(key))})
        last_use[key] = step
        if len(last_use) > limit:
            del last_use[min(last_use, key=last_use.__getitem__)]
    assert memory.find(bytes([i]) for i in range(12)).keys() == last_use.keys()

    smaller = TranslationMemory(tmp_path / "m", 3)
    smaller.update([], {})
    assert smaller.find(last_use).keys() == set(sorted(last_use, key=last_use.__getitem__)[-3:])
    smaller.update([], {bytes([100 + i]): [] for i in range(9)})
    assert len(smaller.find(bytes([i]) for i in range(256))) == 3


def test_several_connections_may_create_and_fill_it(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def fill(start: int) -> None:
        try:
            memory = TranslationMemory(tmp_path / "m")
            for i in range(start, start + 40):
                memory.update(memory.find([b"%d" % (i - 5)]), {b"%d" % i: translate(str(i))})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fill, args=(20 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert TranslationMemory(tmp_path / "m").find(b"%d" % i for i in range(150)) == {
        b"%d" % i: translate(str(i)) for i in range(140)
    }
    database = sqlite3.connect(tmp_path / "m")
    assert database.execute("SELECT entries FROM state").fetchone() == (140,)
    database.close()


@pytest.mark.slow
def test_a_changed_byte_is_an_error_or_has_no_effect(tmp_path: Path) -> None:
    keys = [b"%032d" % i for i in range(60)]
    memory = TranslationMemory(tmp_path / "m")
    memory.update([], {key: translate(str(key)) for key in keys})
    memory.close()
    content, rng, num_errors = (tmp_path / "m").read_bytes(), random.Random(1), 0
    for offset in [*range(16, 100, 3), *rng.sample(range(100, len(content)), 45)]:
        damaged = bytearray(content)
        damaged[offset] ^= 1 << rng.randrange(8)
        path = tmp_path / str(offset)
        path.write_bytes(damaged)
        try:
            memory = TranslationMemory(path)
            found = memory.find(keys)
            memory.update(found, {b"new": translate("new")})
            memory.close()
        except UserError as error:
            assert str(path) in str(error)
            num_errors += 1
        else:
            assert all(translations == translate(str(key)) for key, translations in found.items())
    assert num_errors > 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("long text", r"m is damaged or not a translation memory \(it is not an SQLite database\)"),
        ("short text", r"m is damaged or not a translation memory \(it is not an SQLite database\)"),
        ("truncated", "m is damaged or not a translation memory"),
        ("other tables", "m is an SQLite database, but not a translation memory"),
    ],
)
def test_another_file_is_refused_and_kept(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "m"
    match content:
        case "long text":
            path.write_text("text\n" * 500)
        case "short text":
            path.write_text("x")
        case "truncated":
            memory = TranslationMemory(path)
            memory.update([], {b"%d" % i: translate(str(i)) for i in range(60)})
            memory.close()
            path.write_bytes(path.read_bytes()[:-4096])
        case "other tables":
            database = sqlite3.connect(path)
            database.execute("CREATE TABLE songs (name)")
            database.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match=message):
        TranslationMemory(path).find([b"1"])
    assert path.read_bytes() == before


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match=r"cannot use .*m: Is a directory"):
        TranslationMemory(tmp_path / "m")


def test_names_that_are_special_in_sqlite_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:a?mode=memory", "a%20b"):
        TranslationMemory(Path(name)).update([], {b"key": [Translation("a", 0.0, 0.0, [])]})
        assert (tmp_path / name).is_file() and b"key" in TranslationMemory(Path(name)).find([b"key"])


def test_a_device_is_an_error() -> None:
    with pytest.raises(UserError, match="cannot use /dev/null: it is a pipe or a device; "):
        TranslationMemory(Path("/dev/null"))
    assert not Path("/dev/null-journal").exists()


def test_a_pipe_is_an_error(tmp_path: Path) -> None:
    """Opening it would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        UserError, match=r"pipe: it is a pipe or a device; --memory needs a readable and writable file on a local disk"
    ):
        TranslationMemory(tmp_path / "pipe")


def test_a_failed_commit_leaves_no_transaction_open(tmp_path: Path) -> None:
    memory = TranslationMemory(tmp_path / "memory.db")
    database = memory._database

    class FailingOnce:
        """SQLite fails to commit while another process reads, in some journal modes."""

        fails = True

        def execute(self, statement: str, *values: object) -> object:
            if statement == "COMMIT" and self.fails:
                self.fails = False
                raise sqlite3.OperationalError("database is locked")
            return database.execute(statement, *values)  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> object:
            return getattr(database, name)

    memory._database = cast(sqlite3.Connection, FailingOnce())
    translator = MemoryTranslator(cast(TextTranslator, FakeTranslator()), memory, {"model": 1})
    with pytest.raises(UserError, match="database is locked"):
        run(translator, [("a", "", ())])
    assert not database.in_transaction
    run(translator, [("a", "", ())])
    memory.close()


def test_a_failed_translation_is_not_remembered(tmp_path: Path) -> None:
    class FailingTranslator(FakeTranslator):
        def start_translation(self, *_: object, **__: object) -> Callable[[], list[list[Translation]]]:
            def fail() -> list[list[Translation]]:
                raise UserError("no translation is possible")

            return fail

    with pytest.raises(UserError, match="no translation"):
        run(remembering(tmp_path / "m", FailingTranslator()), [("a", "", ())])
    fake = FakeTranslator()
    assert run(remembering(tmp_path / "m", fake), [("a", "", ())]) == [translate("a")]
    assert len(fake.requests) == 1


def test_only_the_same_context_counts(tmp_path: Path) -> None:
    fake = FakeTranslator()
    translator = remembering(tmp_path / "m", fake)
    contexts: list[list[str | tuple[str, str]]] = [[], ["a"], ["a", "b"], [("a", "b")], ["a"], []]
    run(translator, [("x", "", ())])  # a line without context has the key of earlier versions
    inputs = [TranslatorInput("x", context=context) for context in contexts]
    found = translator.start_translation(inputs)()
    assert found == [translate("x")] * 6
    assert (len(fake.requests), translator.lines_reused) == (4, 3)
    assert [one.context for one in fake.inputs] == [["a"], ["a", "b"], [("a", "b")]]
    translator.start_translation(inputs)()
    assert len(fake.requests) == 4
