"""Previous lines of a document in files and pipes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from nmt import UserError
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.errors import CommandError, MemoryFileError
from nmt.recipe import NO_CONTEXT, Context, DecodeRecipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.streams.job import TranslationJob
from nmt.streams.output import Output
from nmt.streams.part import InputDigest, Origin
from nmt.streams.records import Record, RecordReader, RecordWriter
from nmt.streams.source import PipeLines, Source, with_context
from nmt.streams.term_report import TermReport
from nmt.streams.windows import split_windows
from nmt.streams.workers import Load, WindowTranslator, Workers

SOURCE, BOTH = Context(2), Context(2, "both")
READER = RecordReader("text")
split_documents = partial(split_windows, whole_documents=True)


def records_of(lines: Sequence[str]) -> list[Record]:
    return [Record(number, line, line) for number, line in enumerate(lines, start=1)]


class UpperCase:
    """Translates to upper case, followed by the number of the call, and records contexts."""

    lines_split = lines_longer = lines_reused = 0

    def __init__(self, context: Context) -> None:
        self.context = context
        self.contexts: dict[str, list[Any]] = {}
        self.calls = 0

    def start_translation(self, inputs: Sequence[TranslatorInput]) -> Callable[[], list[list[Translation]]]:
        self.calls += 1
        self.contexts |= {one.text: list(one.context) for one in inputs}
        texts = [f"{one.text.upper()}{self.calls}" if one.text else "" for one in inputs]
        return lambda: [[Translation(text, 0.0, 0.0, [])] for text in texts]


def window_translator(context: Context) -> tuple[WindowTranslator, UpperCase]:
    fake = UpperCase(context)
    return WindowTranslator(cast(TextTranslator, fake), RecordWriter(READER, "text")), fake


def test_lines_get_the_previous_lines_of_their_document(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a\nb\nc\nd\n\n \ne\nf")
    records = list(Source.open(tmp_path / "in", replace(READER, context=SOURCE), "error").records())
    contexts = [record.context for record in records]
    assert contexts == [(), ("a",), ("a", "b"), ("b", "c"), ("c", "d"), (), (), ("e",)]
    assert all(record.context is None for record in Source.open(tmp_path / "in", READER, "error").records())


def test_the_field_context_starts_a_document(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"text": "a"},
        {"text": "b", "context": ["x", "y\nz"]},
        {"text": "c"},
        {"text": None},
        {"text": "d", "context": []},
        {"text": "e", "context": None},
    ]
    (tmp_path / "in").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reader = RecordReader("jsonl", context=SOURCE)
    records = Source.open(tmp_path / "in", reader, "error").records()
    assert [record.context for record in records] == [(), ("x", "y z"), ("y z", "b"), ("b", "c"), (), ("d",)]


@pytest.mark.parametrize(
    ("context", "value", "expected"),
    [
        (SOURCE, "x", "a list of sentences; got 'x'"),
        (SOURCE, [["x", "y"]], "a list of sentences; got ['x', 'y']"),
        (
            BOTH,
            ["x"],
            "a list of pairs [sentence, translation], because this model needs previous translations; got",
        ),
        (BOTH, [["x", 1]], "a list of pairs [sentence, translation], because this model needs previous translations; "),
    ],
)
def test_a_wrong_context_names_the_line(context: Context, value: object, expected: str) -> None:
    line = json.dumps({"text": "a", "context": value})
    with pytest.raises(UserError) as raised:
        RecordReader("jsonl", context=context).read(line, 3, "in.jsonl")
    assert str(raised.value).startswith(f"in.jsonl, line 3: field 'context' must be {expected}")
    assert RecordReader("jsonl").read(line, 3, "in.jsonl").context is None  # ignored without data.context


def test_only_the_first_line_of_a_document_has_a_known_context_with_translations() -> None:
    records = records_of(["a", "b", "", "c", "d"])
    records[4] = Record(5, "d", "d", context=(("x", "X"),))
    found = [record.context for record in with_context(records, BOTH)]
    assert found == [(), None, None, (), (("x", "X"),)]


def test_windows_end_with_a_document() -> None:
    records = list(with_context(records_of(["a", "b", "c", "", "d", "e", "", "f"]), BOTH))
    numbers = [record.number for record in records]
    for size in range(1, 9):
        found = list(split_documents(records, size, max_characters=1_000))
        assert [record.number for window in found for record in window] == numbers
        assert all(window[0].context is not None for window in found)
        assert all(len(window) >= size for window in found[:-1])
        for i, window in enumerate(found):  # a resumed translation has the same windows
            assert list(split_documents(records[window[0].number - 1 :], size, max_characters=1_000)) == found[i:]
    assert [len(window) for window in split_documents(records, 100, max_characters=2)] == [4, 3, 1]

    def failing() -> Any:
        yield from records[:6]
        raise UserError("line 7 is wrong")

    windows = split_documents(failing(), 3, max_characters=1_000)
    sizes: list[int] = []
    with pytest.raises(UserError, match="line 7"):
        sizes += map(len, windows)
    assert sizes == [4, 2]


def test_a_document_is_translated_with_its_own_translations() -> None:
    translate, fake = window_translator(BOTH)
    records = list(with_context(records_of(["a", "b", "c", "f", "", "d", "e"]), BOTH))
    assert translate(records).text == "A1\nB2\nC3\nF4\n\nD1\nE2\n"
    assert fake.contexts["c"] == [("a", "A1"), ("b", "B2")]
    assert fake.contexts["f"] == [("b", "B2"), ("c", "C3")]  # not the whole document
    assert fake.contexts["e"] == [("d", "D1")]


def test_a_document_continues_in_the_next_window_of_a_pipe() -> None:
    translate, fake = window_translator(BOTH)
    records = list(with_context(records_of(["a", "b", "c", "", "d"]), BOTH))
    assert "".join(translate([record]).text for record in records) == "A1\nB2\nC3\n\nD5\n"
    assert fake.contexts["c"] == [("a", "A1"), ("b", "B2")]
    assert fake.contexts["d"] == []


def job_of(source: Source, output: Output, origin: Origin, load: Load) -> TranslationJob:
    metadata = ModelMetadata("en", "de", 11, 11, "NFC", DecodeRecipe())
    return TranslationJob(source, output, origin, TermReport(), load, None, 0.0, [], metadata, "", 0.0)


def test_a_translation_cannot_be_resumed_within_a_document(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a\nb\nc\n")
    source = Source.open(tmp_path / "in", replace(READER, context=BOTH), "error")
    output, origin = Output(tmp_path / "out"), Origin({})
    digest = InputDigest()
    digest.add(islice(source.records(), 2))
    with pytest.raises(KeyboardInterrupt), output.open(origin) as part:
        part.write("A1\nB2\n", 2, digest.hexdigest())  # as for a pipe
        raise KeyboardInterrupt
    load = partial(pytest.fail, "no line should be translated")
    job = job_of(source, output, origin, load)
    with pytest.raises(CommandError, match=r"out\.part ends within a document; .* use --restart to start over$"):
        job.run(nullcontext(Workers()), resume=True, restart=False)
    assert (tmp_path / "out.part").read_text() == "A1\nB2\n"


def test_a_pipe_is_rejected_by_several_processes_that_need_translations(tmp_path: Path) -> None:
    descriptor, _ = os.pipe()
    source = Source(tmp_path, replace(READER, context=BOTH), pipe=PipeLines(descriptor, "pipe"))
    load = partial(pytest.fail, "no model should be loaded")
    output = Output(tmp_path / "out")
    job = job_of(source, output, Origin({}), load)
    with pytest.raises(UserError, match="several processes cannot translate a pipe with this model"):
        job.run(nullcontext(Workers(processes=2)), resume=False, restart=False)


def test_an_unusable_memory_is_not_an_error_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def fail(self: UpperCase, inputs: Sequence[TranslatorInput]) -> None:
        calls.append(inputs)
        raise MemoryFileError("cannot use m: database is locked")

    monkeypatch.setattr(UpperCase, "start_translation", fail)
    translate, _ = window_translator(NO_CONTEXT)
    with pytest.raises(MemoryFileError, match=r"^cannot use m: database is locked$"):
        translate(records_of(["a", "b", "c", "d"]))
    assert len(calls) == 1, "waiting for the lock again would take a minute for each half"


def test_source_context_needs_one_search() -> None:
    translate, fake = window_translator(SOURCE)
    assert translate(list(with_context(records_of(["a", "b", "c"]), SOURCE))).text == "A1\nB1\nC1\n"
    assert fake.contexts == {"a": [], "b": ["a"], "c": ["a", "b"]}
