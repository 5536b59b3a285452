"""`nmt translate` as a user runs it, with a tiny random model: every kind of line, every format, any interruption."""

import gzip
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmt import DecodeRecipe, Translator
from nmt.checkpoint import write_with_decode
from nmt.processes.parallel import map_in_order
from nmt.storage.model_metadata import model_toml, read_model_metadata, read_model_toml
from nmt.storage.sealed import write_directory
from nmt.streams import job, torch_workers
from nmt.streams.source import PipeLines
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, PipeIn, Write, one_line
from tests.cli.nasty_lines import as_bytes, nasty_lines

SENTENCES = [f"the old dog {number} sees a cat" for number in range(20)]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_bytes(as_bytes(SENTENCES))
    return tmp_path / "in.txt"


def translate_lines(nmt: Nmt, model: Path, source: Path, lines: list[str], *options: object) -> tuple[str, str]:
    """Write a source file, translate it one line at a time, and return stdout and stderr."""
    source.write_bytes(as_bytes(lines))
    search = ("--engine", "torch", "--precision", "fp32", "--beam-size", 3, "--window", 1)
    status, out, err = nmt("translate", model, source, *search, *options)
    assert status == 0, err
    return out, err


@pytest.mark.slow
def test_nasty_lines_get_the_same_translations_in_file_pipe_and_python(
    model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path
) -> None:
    lines, options = nasty_lines(2_000, num_longest=2), ("--window", 150, "--beam-size", 1, "--precision", "fp32")
    (tmp_path / "in").write_bytes(as_bytes(lines))
    status, out, err = nmt("translate", model, tmp_path / "in", "-o", tmp_path / "out", *options)
    assert (status, out) == (0, ""), err
    written = (tmp_path / "out").read_bytes()
    assert written.count(b"\n") == len(lines)
    assert written.endswith(b"\n")
    translations = written.decode().split("\n")[:-1]
    assert all(len(line.splitlines()) <= 1 and "\t" not in line for line in translations)
    assert len(set(translations)) > 300
    assert all(not translation for line, translation in zip(lines, translations, strict=True) if not line.split())
    assert "lines were too long" in err

    pipe_in(lambda write: write(as_bytes(lines)))
    status, out, err = nmt("translate", model, *options, "--max-delay", "inf")
    assert (status, out.encode()) == (0, written), err
    greedy = read_model_metadata(model).decode.model_copy(update={"beam_size": 1})
    streamed = Translator.load(model, "cpu", "fp32", greedy).stream(lines, window=150)
    assert [best.text for best, *_ in streamed] == translations


@pytest.mark.slow
def test_json_lines_from_a_pipe_without_their_format_give_a_warning(model: Path, nmt: Nmt, pipe_in: PipeIn) -> None:
    options = ("--engine", "torch", "--precision", "fp32", "--beam-size", 1)
    for more, expected in (((), True), (("--input-format", "jsonl"), False), (("--input-format", "text"), False)):
        pipe_in(lambda write: write(b'{"text": "a dog"}\n{"text": "a cat"}\n'))
        status, _, err = nmt("translate", model, *options, *more)
        assert status == 0
        assert ("warning: standard input looks like jsonl" in err) == expected


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        (['{"text": "a dog", "prefix": "b", "required": ["c"]}', '{"text": ""}'], ""),
        (
            ['{"text": "\\u200b", "prefix": "b"}', '{"text": "a"}'],
            "1 blank line has a prefix or required phrases, which",
        ),
        (['{"text": " ", "prefix": "b"}', '{"text": "a dog"}'], "1 blank line has a prefix or required phrases, which"),
        (['{"text": "", "prefix": " "}', '{"text": null, "required": []}'], ""),
        (
            ['{"text": "", "prefix": "b"}', '{"text": null, "required": ["c"]}', '{"text": "a dog"}'],
            "2 blank lines have a prefix or required phrases, which are ignored; the translation of a blank line is",
        ),
    ],
)
def test_constraints_of_blank_lines_are_counted(
    model: Path, nmt: Nmt, tmp_path: Path, lines: list[str], warned: str
) -> None:
    _, err = translate_lines(nmt, model, tmp_path / "in.jsonl", lines)
    assert f"warning: {warned}" in err if warned else "blank line" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "options", "warned"),
    [
        (["a dog\tx", "", "a cat\ty"], (), ""),
        (
            ["a dog\tx", "a cat", "a cow"],
            (),
            "2 lines of {name} (first: line 2) have a different number of columns than the",
        ),
        (["source\ttarget", "a cat\tx"], (), "{name}, line 1 looks like a header and is translated; set --header"),
        (["1\ten\tde", "2\ta cat\tx"], ("--column", 1), "{name}, line 1 looks like a header and is translated"),
        (["source\ttarget", "a cat\tx"], ("--header",), ""),
        (
            ["source\ttarget", "a cat\tx", '"a ""big"" cat"\tx'],
            ("--header",),
            "1 line of {name} (first: line 3) has a quoted text",
        ),
        (["ID\tsentence", "1\ta cat"], ("--column", 1), "{name}, line 1 looks like a header and is translated"),
        (["Source Text\tscore\tlabel", "a\tb\tc"], (), "{name}, line 1 looks like a header and is translated"),
        (['"id"\t"source"', "1\ta cat"], ("--column", 1), "{name}, line 1 looks like a header and is translated"),
        (["id\tsource\tnote", "1\ta cat\tx"], (), "{name}, line 1 looks like a header and is translated"),
        (["English sentence\tGerman sentence", "a\tb"], (), "{name}, line 1 looks like a header and is translated"),
        (["text\tText", "sentence\tSatz"], (), ""),
        (["id\ta source\tx", "1\ta cat\tx"], (), ""),
        (["text", "sentence"], (), ""),
        (["text\t1", "sentence\t2"], (), ""),
        (["1\ten\tten", "2\ta\tb"], ("--column", 1), ""),
    ],
)
def test_likely_mistakes_in_tsv_give_a_warning(
    model: Path, nmt: Nmt, tmp_path: Path, lines: list[str], options: tuple[object, ...], warned: str
) -> None:
    name = tmp_path / "in.tsv"
    _, err = translate_lines(nmt, model, name, lines, *options)
    assert f"warning: {warned.format(name=name)}" in err if warned else "warning" not in err


@pytest.mark.slow
def test_a_length_penalty_without_beam_search_needs_scores(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a dog\n")
    given = ("translate", model, tmp_path / "in.txt", "--length-penalty", "power")
    for single in (("-b", 1), ("--set", "sampling=true")):
        status, _, err = nmt(*given, *single)
        assert status == 2 and "length_penalty only changes the scores of" in one_line(err)
        assert nmt(*given, *single, "--with-scores")[0] == 0
    assert nmt(*given, "-b", 2)[0] == 0
    assert nmt(*given[:3], "-b", 1, "--length-penalty", "none")[0] == 0


def test_lone_surrogates_are_named(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    """JSON can express them."""
    lines = ['{"text": "a dog \\ud83d\\ude00"}', '{"text": "a \\ud800 dog"}', '{"text": "a dog\\ude00"}']
    name = tmp_path / "in.jsonl"
    assert "warning" not in translate_lines(nmt, model, name, lines[:1])[1]
    out, err = translate_lines(nmt, model, name, lines)
    assert out.count("\n") == 3
    assert f"warning: 2 lines of {name} (first: line 2) have half of a surrogate pair" in err


@pytest.mark.parametrize(
    ("lines", "options", "warned"),
    [
        (['{"text": "a dog", "id": 1, "n_best": 3, "alignment": ""}', ""], (), ""),
        (['{"text": "a dog", "score": 1}'], ("--output-format", "text"), ""),
        (
            ['{"text": "a dog"}', '{"text": null, "score": 1}'],
            (),
            "1 line of {name} (first: line 2) has fields that the",
        ),
        (
            ['{"text": "a dog", "tokens": 2, "translation": ""}', '{"text": "b", "score": 1}', '{"text": "c"}'],
            (),
            "2 lines of {name} (first: line 1) have fields that the output replaces: 'translation', 'tokens', 'score'; "
            "to keep them, rename them, or use --output-format text",
        ),
        (['{"text": "a dog", "n_best": 3}'], ("--n-best", 2), "has fields that the output replaces: 'n_best'; to"),
        (['{"translation": {"en": "a dog"}, "score": 1}'], ("--field", "translation.en"), ""),
        (
            ['{"translation": {"en": "a", "score": 1}}'],
            ("--field", "translation.en"),
            "that the output replaces: 'score';",
        ),
    ],
)
def test_replaced_fields_are_named(
    model: Path, nmt: Nmt, tmp_path: Path, lines: list[str], options: tuple[object, ...], warned: str
) -> None:
    name = tmp_path / "in.jsonl"
    out, err = translate_lines(nmt, model, name, lines, *options)
    assert out.count("\n") == len(lines)
    assert warned.format(name=name) in err if warned else "warning" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "forbid", "own", "warned"),
    [
        ("the old dog", "['cat', 'old d', 'do']", [], ""),
        ("", "['dog']", ["dog"], ""),
        ("The old  Dog", "['old dog']", [], "1 line has a prefix with a forbidden phrase (first: 'old dog' in line 2"),
        (
            "the old dog",
            "['cat', 'dog']",
            [],
            "1 line has a prefix with a forbidden phrase (first: 'dog' in line 2; case",
        ),
        ("dog", "['cat']", ["a", "dog"], "1 line has a prefix with a forbidden phrase (first: 'dog' in line 2; case"),
        (
            "大狗",
            "['狗']",
            [],
            "1 line has a prefix with a forbidden phrase (first: '狗' in line 2; case is ignored); the prefix takes",
        ),
    ],
)
def test_forbidden_phrases_in_prefixes_are_named(
    model: Path, nmt: Nmt, tmp_path: Path, prefix: str, forbid: str, own: list[str], warned: str
) -> None:
    lines = [{"text": "a dog"}, {"text": "a cat", "prefix": prefix, "forbidden": own}, {"text": "", "prefix": prefix}]
    (tmp_path / "in.jsonl").write_bytes(as_bytes([json.dumps(line) for line in lines]))
    (tmp_path / "in.txt").write_text("a dog\na cat\n")
    (tmp_path / "prefixes").write_text(f"\n{prefix}\n")
    options = ("--engine", "torch", "--precision", "fp32", "--beam-size", 1, "--set", f"forbid={forbid}")
    status, _, err = nmt("translate", model, tmp_path / "in.jsonl", *options)
    assert status == 0, err
    assert f"warning: {warned}" in err if warned else "forbidden" not in err
    if not own:
        err = nmt("translate", model, tmp_path / "in.txt", "--prefixes", tmp_path / "prefixes", *options)[2]
        assert f"warning: {warned}" in err if warned else "warning" not in err
        (tmp_path / "in.tsv").write_text("text\na dog\na cat\n")
        command = ("translate", model, tmp_path / "in.tsv", "--header", "--prefixes", tmp_path / "prefixes", *options)
        err = nmt(*command)[2]
        assert f"warning: {warned.replace('line 2', 'line 3')}" in err if warned else "warning" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("required", "options", "warned"),
    [
        (
            ["old dog"],
            ("--set", "forbid=['dog']"),
            "line 2 requires 'old dog', which contains the forbidden phrase 'dog'",
        ),
        (
            [["dog", "a dog"]],
            ("--set", "forbid=['dog']"),
            "line 2 requires 'dog' or 'a dog', which contains the forbidden",
        ),
        ([], ("--set", "forbid=['dog']", "--set", "require=['a dog']"), "line 1 requires 'a dog', which contains the"),
        ([["dog", "cat"]], ("--set", "forbid=['dog']"), ""),
        (["dog"], ("--set", "forbid=['og', 'a dog']"), ""),
    ],
)
def test_forbidden_phrases_in_required_ones_are_named(
    model: Path, nmt: Nmt, tmp_path: Path, required: list[object], options: tuple[str, ...], warned: str
) -> None:
    lines = [{"text": "a dog"}, {"text": "a cat", "required": required}]
    (tmp_path / "in.jsonl").write_bytes(as_bytes([json.dumps(line) for line in lines]))
    longer = ("--set", "max_length_ratio=3", "--set", "max_extra_tokens=20")
    search = ("--engine", "torch", "--precision", "fp32", *longer)
    status, _, err = nmt("translate", model, tmp_path / "in.jsonl", *search, *options)
    assert (f"warning: {warned}" in err and "no translation is possible" in err) if warned else "warning" not in err
    assert status == bool(warned), err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "warned"),
    [
        ("cat\told dog", "line 2 requires 'old dog' or 'Old dog', which contains the forbidden phrase 'dog'"),
        ("cat\told dog|cat", ""),
        ("cow\told dog", ""),
    ],
)
def test_forbidden_phrases_in_terms_are_named(model: Path, nmt: Nmt, tmp_path: Path, terms: str, warned: str) -> None:
    source, target = terms.split("\t")
    (tmp_path / "terms.tsv").write_text(f"{terms}\n")
    (tmp_path / "in.txt").write_text("a dog\na cat\n")
    own = {"text": "a cat", "glossary": [[source, target.split("|")]]}
    (tmp_path / "in.jsonl").write_text(f'{{"text": "a dog"}}\n{json.dumps(own)}\n')
    search = ("--engine", "torch", "--precision", "fp32", "--set", "max_extra_tokens=20", "--set", "forbid=['dog']")
    for given in ((tmp_path / "in.txt", "--glossary", tmp_path / "terms.tsv"), (tmp_path / "in.jsonl",)):
        status, _, err = nmt("translate", model, *given, *search)
        assert (f"warning: {warned}" in err and "no translation is possible" in err) if warned else "warning" not in err
        assert status == bool(warned), err


@pytest.mark.slow
def test_a_preferred_phrase_that_is_forbidden_is_named(model: Path, nmt: Nmt, sentences: Path) -> None:
    search = ("--engine", "torch", "--precision", "fp32", "--set", "forbid=['dog', 'cat']")
    for phrase, value, is_named in (("a dog", 1, True), ("a dog", -1, False), ("a doge", 1, False)):
        status, _, err = nmt("translate", model, sentences, *search, "--set", f"bias.{phrase}={value}")
        assert status == 0, err
        assert ("warning: bias prefers 'a dog', which contains the forbidden phrase 'dog';" in err) == is_named


def test_a_summary_that_cannot_be_written_leaves_a_complete_output(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(line: str) -> None:  # as for `2>&1 | head`
        raise BrokenPipeError(line)

    monkeypatch.setattr(job, "say", say)
    status, _, err = nmt(
        "translate", model, sentences, "-o", tmp_path / "out", "--engine", "torch", "--precision", "fp32"
    )
    assert (status, err) == (1, "")
    assert (tmp_path / "out").read_text().count("\n") == len(SENTENCES)
    assert not (tmp_path / "out.part").exists()


@pytest.mark.slow
def test_pipe_is_translated_line_by_line(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    answered: list[int] = []

    def write_and_wait(write: Write) -> None:
        for number in range(1, 4):
            write(b"the old dog\n")
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                part = tmp_path / "out.part"
                if part.exists() and part.read_bytes().count(b"\n") == number:
                    answered.append(number)
                    break
                time.sleep(0.01)

    pipe_in(write_and_wait)
    assert nmt("translate", model, "-o", tmp_path / "out")[0] == 0
    assert answered == [1, 2, 3]


@pytest.mark.slow
def test_pipe_is_translated_line_by_line_by_several_processes(
    model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path
) -> None:
    def write_and_wait(write: Write) -> None:
        write(b"the old dog\n")
        deadline = time.monotonic() + 60
        while not (tmp_path / "out.part").exists() or not (tmp_path / "out.part").stat().st_size:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        write(b"\xff\n")

    pipe_in(write_and_wait)
    options = ("--engine", "torch", "--processes", 2, "--device", "cpu", "--window", 1)
    status, _, err = nmt("translate", model, "-o", tmp_path / "out", *options)
    assert status == 1
    assert "standard input, line 2" in err.splitlines()[-1]  # progress lines may precede it
    assert (tmp_path / "out.part").read_bytes().count(b"\n") == 1


@pytest.mark.slow
def test_resume_after_an_invalid_line(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in SENTENCES]
    command = ("translate", model, "-o", tmp_path / "out.jsonl.gz", "--input-format", "jsonl", "--engine", "torch")
    pipe_in(lambda write: write(as_bytes([*lines[:13], '{"text"', *lines[14:]])))
    status, _, err = nmt(*command)
    assert status == 1
    assert "standard input, line 14 is not JSON" in one_line(err)
    pipe_in(lambda write: write(as_bytes(lines)))
    assert nmt(*command, "--resume")[0] == 0
    written = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line)["text"] for line in written] == SENTENCES


@pytest.mark.slow
def test_formats_are_selected_by_name_and_by_option(model: Path, nmt: Nmt, sentences: Path, tmp_path: Path) -> None:
    _, plain, _ = nmt("translate", model, sentences, "--engine", "torch")
    translations = plain.splitlines()
    (tmp_path / "in.tsv").write_text("".join(f"{number}\t{text}\n" for number, text in enumerate(SENTENCES)))
    with gzip.open(tmp_path / "in.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"id": number, "t": {"en": text}}) + "\n" for number, text in enumerate(SENTENCES))

    status, columns, err = nmt("translate", model, tmp_path / "in.tsv", "--column", 1, "--engine", "torch")
    assert status == 0, err
    expected = zip(map(str, range(20)), SENTENCES, translations, strict=True)
    assert [tuple(line.split("\t")) for line in columns.splitlines()] == list(expected)

    command = ("translate", model, tmp_path / "in.jsonl.gz", "--field", "t.en", "--engine", "torch")
    status, objects, err = nmt(*command, "--n-best", 2)
    assert status == 0, err
    found = [json.loads(line) for line in objects.splitlines()]
    assert [one["id"] for one in found] == list(range(20))
    assert [one["t"]["en"] for one in found] == SENTENCES
    assert [one["translation"] for one in found] == translations
    for one in found:
        assert one["n_best"][0] == {key: one[key] for key in one["n_best"][0]}
        assert one["n_best"][0]["score"] >= one["n_best"][1]["score"]
        for translation in one["n_best"]:
            assert len(translation["token_log_probs"]) == len(translation["tokens"]) + 1
            assert sum(translation["token_log_probs"]) == pytest.approx(translation["log_prob"], abs=1e-5)

    assert nmt(*command, "--output-format", "text")[1] == plain
    assert nmt(*command, "-o", tmp_path / "out.tsv")[0] == 0
    assert (tmp_path / "out.tsv").read_text().splitlines() == [
        f"{text}\t{translation}" for text, translation in zip(SENTENCES, translations, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("in.jsonl", b'{"text": "a"}\n{"body": "b"}\n', (), "in.jsonl, line 2 has no field 'text'"),
        ("in.jsonl", b"{1\n", (), "in.jsonl, line 1 is not JSON"),
        ("in.jsonl", b'{"text": "a", "text": "b"}\n', (), "in.jsonl, line 1 is not JSON (field 'text' is repeated)"),
        ("in.jsonl", b'{"text": "a", "translation": "", "n_best": []}', (), "the fields 'translation' and 'n_best'"),
        ("in.json", b'[{"text": "a"}]', (), "in.json, line 1 starts an array"),
        ("in.txt", "a\n".encode("utf-16"), (), "in.txt is UTF-16; nmt reads UTF-8"),
        (
            "in.txt",
            b"a\n",
            ("--set", "alignment_layer=9", "--with-alignments"),
            "alignment_layer must be between 0 and 0 (the last decoder layer), got 9",
        ),
        ("in.tsv", b"", ("--header",), "in.tsv is empty; with --header, the first line must name"),
        ("in.tsv", b"a\n", ("--column", ""), "in.tsv, line 1 has no column ''; it has 'a'"),
        ("in.tsv", b"a\n", ("--column=--1",), "in.tsv, line 1 has no column '--1'"),
        ("in.jsonl", b'{"text": "a"}\n', ("--field", ""), "in.jsonl, line 1 has no field ''"),
        ("in.tsv", b"a\tb\nc\n", ("--column", 1), "in.tsv, line 2 has 1 column;"),
        ("in.txt", b"a\n\xff\n", (), "in.txt, line 2: byte 0xff is not UTF-8"),
        ("in.txt", b"a\n", ("-o", "out.zst"), "out.zst: only .gz compression"),
        ("in.txt", b"a\n", ("--tag", "<talks>"), "tag '<talks>' is unknown to the tokenizer; it must be one of <web>,"),
        ("in.txt", b"a\n", ("--resume",), "--resume cannot resume standard output"),
        ("in.txt", b"a\n", ("--restart",), "--restart cannot restart standard output"),
    ],
)
def test_invalid_input_is_reported_before_translation(
    model: Path, nmt: Nmt, tmp_path: Path, name: str, content: bytes, options: tuple[object, ...], expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    status, out, err = nmt("translate", model, tmp_path / name, "--engine", "torch", *options)
    assert (status, out) == (1, "")
    assert expected in one_line(err)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "in.csv",
            ("--column", 0),
            "--column is for TSV; in.csv is read as text; leave out --column, or use --input-format tsv if tabs",
        ),
        ("in.jsonl", ("--column", 1), "--column is for TSV; in.jsonl is read as jsonl"),
        ("in.txt", ("--header",), "--header is for TSV; in.txt is read as text"),
        ("in.txt", ("--field", "text"), "--field is for JSON Lines; in.txt is read as text and written as text"),
        ("in.tsv", ("--field", "a", "--output-format", "jsonl"), "--field is for JSON Lines; in.tsv is read as tsv"),
        ("in.tsv", ("--column", "-1"), "--column is -1; it must be a number from 0, or a name in the header"),
        ("in.txt", ("--set", "alignment_heads=[0]"), "alignment_heads has no effect without alignments"),
        (
            "in.txt",
            ("--set", "beam_size=2", "--beam-size", 3),
            "beam_size is given both by --set and by its own option",
        ),
        ("in.txt", ("--set", "sampling_seed=2", "--seed", 3), "sampling_seed is given both by --set and by its own"),
        (
            "in.txt",
            ("--set", "beam_size=2", "--set", "decode.beam_size=3"),
            "decode.beam_size is given twice",
        ),
        ("in.txt", ("--seed", 3), "--seed has no effect without sampling=true"),
        (
            "in.txt",
            ("--beam-size", 3, "--set", "sampling=true"),
            "--beam-size has no effect without a search (sampling=false)",
        ),
        ("in.txt", ("--set", 'forbid=[""]'), "decode.forbid has an empty phrase"),
        ("in.txt", ("--set", 'require=["a", " "]'), "decode.require has an empty phrase"),
        ("in.txt", ("--set", "bias={''=1}"), "decode.bias has an empty phrase"),
        ("in.txt", ("--with-scores", "--n-best", 2), "--with-scores has no effect: this output has scores"),
        (
            "in.txt",
            ("--with-scores", "--output-format", "moses"),
            "--with-scores has no effect: this output has scores",
        ),
        (
            "in.txt",
            ("--with-scores", "--output-format", "jsonl"),
            "--with-scores has no effect: this output has scores",
        ),
        ("in.txt", ("--glossary-report", "terms"), "--glossary-report has no effect without --glossary"),
        ("in.txt", ("--glossary-mode", "constrain"), "--glossary-mode has no effect without --glossary"),
        ("in.txt", ("--set", "glossary_mode=constrain"), "--set glossary_mode has no effect without --glossary"),
        ("in.txt", ("--set", "glossary_mode = constrain"), "--set glossary_mode has no effect without --glossary"),
        ("in.txt", ("--set", "sampling_seed = 2"), "sampling_seed has no effect without sampling=true"),
        ("in.txt", ("--threads", 1, "--processes", 1), "--threads and --processes are mutually exclusive"),
    ],
)
def test_unusable_options_are_usage_errors(
    model: Path, nmt: Nmt, tmp_path: Path, name: str, options: tuple[object, ...], expected: str
) -> None:
    (tmp_path / name).write_text("a dog\n")
    status, out, err = nmt("translate", model, tmp_path / name, *options)
    assert (status, out) == (2, "")
    assert expected in one_line(err).replace(f"{tmp_path}/", "")


@pytest.mark.slow
def test_a_header_names_the_columns_and_is_kept(model: Path, nmt: Nmt, sentences: Path, tmp_path: Path) -> None:
    translations = nmt("translate", model, "--engine", "torch", sentences)[1].splitlines()
    rows = [f"{number}\t{text}" for number, text in enumerate(SENTENCES)]
    (tmp_path / "in.tsv").write_text("\n".join(["id\ten", *rows]))
    command = ("translate", model, tmp_path / "in.tsv", "--column", "en", "--window", 6, "--engine", "torch")
    status, out, err = nmt(*command)
    assert status == 0, err
    expected = ["id\ten\ttranslation", *map("\t".join, zip(rows, translations, strict=True))]
    assert out.splitlines() == expected
    assert nmt(*command, "-o", tmp_path / "out.txt")[0] == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == translations
    listed = nmt(*command, "--n-best", 2, "--output-format", "text")[1].splitlines()
    assert {line.split("\t")[0] for line in listed} == {str(number) for number in range(1, 21)}


def test_diverse_lists_are_the_same_in_every_format(model: Path, nmt: Nmt, sentences: Path) -> None:
    """Filled up with the best of the whole beam, a list would have near copies from the best group."""
    groups = ("--beam-size", 6, "--set", "beam_groups=3", "--set", "diversity_penalty=3", "--n-best", 3)
    command = ("translate", model, sentences, "--engine", "torch", *groups)
    lists = [json.loads(line)["n_best"] for line in nmt(*command, "--output-format", "jsonl")[1].splitlines()]
    texts = [[entry["translation"] for entry in entries] for entries in lists]
    found = [line.split("\t")[::2] for line in nmt(*command)[1].splitlines()]
    expected = [[str(n), text] for n, entries in enumerate(texts, start=1) for text in dict.fromkeys(entries)]
    assert found == expected


@pytest.mark.slow
def test_n_best_lists_have_no_duplicate_texts(model: Path, nmt: Nmt, sentences: Path) -> None:
    # The model ends each translation after a few bytes, most of which are invalid UTF-8 and decoded as U+FFFD.
    command = ("translate", model, sentences, "--engine", "torch", "--beam-size", 12, "--set", "max_length_ratio=0.1")
    status, out, err = nmt(*command, "--n-best", 12, "--no-distinct")
    assert status == 0, err
    everything = [line.split("\t") for line in out.splitlines()]
    assert len(everything) == 12 * len(SENTENCES)
    expected = []
    for number in range(1, len(SENTENCES) + 1):
        best_of_text = {text: score for own, score, text in reversed(everything) if own == str(number)}
        in_order = sorted(best_of_text.items(), key=lambda one: -float(one[1]))
        expected += [f"{number}\t{score}\t{text}" for text, score in in_order]
    assert len(expected) < len(everything)
    distinct = nmt(*command, "--n-best", 12)[1].splitlines()
    assert sorted(distinct) == sorted(expected)
    few = nmt(*command, "--n-best", 2)[1].splitlines()
    numbers = [line.split("\t")[0] for line in distinct]
    assert few == [line for index, line in enumerate(distinct) if numbers[:index].count(numbers[index]) < 2]
    assert nmt(*command, "--n-best", 2, "--output-format", "jsonl")[1].count('"score"') == 3 * len(SENTENCES)
    status, _, err = nmt(*command, "--distinct")
    assert status == 2
    assert "--distinct has no effect on one translation" in one_line(err)
    status, _, err = nmt(*command, "--n-best", 4, "--set", "mbr_metric=chrf", "--distinct")
    assert status == 2
    assert "set mbr_metric to 'none', or leave out --distinct" in one_line(err)


@pytest.mark.slow
def test_the_extension_of_the_output_decides_its_format(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"text": "the old dog"}\n')
    expected = Translator.load(model, "cpu").translate(["the old dog"])
    for name in ("out.txt", "out.json", "out.de"):
        assert nmt("translate", model, tmp_path / "in.json", "--engine", "torch", "-o", tmp_path / name)[0] == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    for name in ("out.json", "out.de"):
        assert json.loads((tmp_path / name).read_text())["translation"] == expected[0]


def test_bad_bytes_can_be_replaced(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"the dog\n\xff\xfe dog\n")
    status, out, _ = nmt("translate", model, tmp_path / "in", "--invalid-utf8", "replace", "--engine", "torch")
    assert status == 0
    assert out.splitlines() == Translator.load(model, "cpu").translate(["the dog", "\ufffd\ufffd dog"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.txt", "out.jsonl.gz", "out.tsv"])
def test_resume_after_interruption_gives_the_same_output(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None], name: str
) -> None:
    def text(path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    (tmp_path / "in.tsv").write_bytes(as_bytes(["en", *SENTENCES]))
    out, part = tmp_path / name, tmp_path / f"{name}.part"
    command: list[object] = ["translate", model, tmp_path / "in.tsv", "--header", "-o", out, "--window", 6]
    command += ["--n-best", 2, "--engine", "torch"]
    assert nmt(*command)[0] == 0
    expected = text(out)
    out.unlink()
    for windows in (0, 1, 3):
        interrupt_after(windows)
        status, _, err = nmt(*command)
        assert status == 130
        if windows == 0:
            assert one_line(err) == "interrupted"
            assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv"]
            continue
        told = f"interrupted; {part} has the first {6 * windows} lines; to continue, add --resume to the command"
        assert one_line(err) == told
        status, _, err = nmt(*command)
        assert status == 2
        assert f"{part} has {6 * windows} lines from an interrupted command" in one_line(err)
        status, _, err = nmt(*command, "--resume", "--batch-tokens", 999)
        assert status == 0, err
        assert text(out) == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv", name]
        status, _, err = nmt(*command, "--resume")
        assert status == 0
        assert f"{out} is complete: 20 lines, as many as {tmp_path / 'in.tsv'}; its model and" in err
        out.unlink()
    out.write_text("no list\n")
    if name == "out.txt":
        status, _, err = nmt(*command, "--resume")
        assert status == 1
        assert f"{out} is not an n-best list; --resume needs an output with the same options" in one_line(err)


@pytest.mark.slow
def test_resume_requires_the_same_options_and_input(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    other = tmp_path / "other"
    write_with_decode(model, DecodeRecipe(beam_size=2), other)
    (tmp_path / "shortened").write_bytes(as_bytes(SENTENCES[:3]))
    (tmp_path / "changed").write_bytes(as_bytes(["a cat", *SENTENCES[1:]]))
    (tmp_path / "corrected").write_bytes(as_bytes([*SENTENCES[:-1], "a cat"]))
    more = ("-o", tmp_path / "out", "--engine", "torch", "--window", 6)
    interrupt_after(2)
    assert nmt("translate", model, sentences, *more)[0] == 130
    part = (tmp_path / "out.part").read_bytes()
    for models, source, options, expected in (
        (other, sentences, (), f"model was {model} (SHA-256 "),
        (model, sentences, ("--ensemble", other), f"ensemble was [] and is {other} (SHA-256 "),
        (model, sentences, ("--beam-size", 3), "decode.beam_size was 2 and is 3"),
        (model, sentences, ("--with-scores",), "with-scores was false and is true"),
        (
            model,
            sentences,
            ("--prefixes", sentences),
            f"{sentences} with --prefixes {sentences} does not start with the 12 lines",
        ),
        (model, tmp_path / "shortened", (), f"shortened has 3 lines; {tmp_path / 'out.part'} has translations of 12"),
        (model, tmp_path / "changed", (), f"lines that {tmp_path / 'out.part'} was made from ({sentences});"),
        (model, tmp_path / "changed", (), "use the same input, --prefixes and --required, or --restart to start over"),
    ):
        status, _, err = nmt("translate", models, source, *more, *options, "--resume")
        assert status == 2
        assert expected in one_line(err)
        assert (tmp_path / "out.part").read_bytes() == part
    assert nmt("translate", model, tmp_path / "corrected", *more, "--resume")[0] == 0
    assert not (tmp_path / "out.part").exists()
    assert nmt("translate", model, sentences, "--engine", "torch", "-o", tmp_path / "whole")[0] == 0
    resumed, whole = ((tmp_path / name).read_text().splitlines() for name in ("out", "whole"))
    assert resumed[:-1] == whole[:-1]
    status, _, err = nmt("translate", model, tmp_path / "shortened", *more, "--resume")
    assert status == 1
    assert f"out has 20 lines, {tmp_path / 'shortened'} has 3, and there is no out.part to resume" in one_line(err)
    status, _, err = nmt("translate", model, sentences, *more, "--resume", "--restart")
    assert status == 2
    assert "give one of them" in one_line(err)


@pytest.mark.slow
def test_resume_rejects_a_complete_output_of_another_format(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(as_bytes(["", *SENTENCES]))
    (tmp_path / "in.tsv").write_bytes(as_bytes(["", *SENTENCES]))
    kinds = {
        "text": ("in",),
        "text with scores": ("in", "--with-scores"),
        "JSON Lines": ("in", "--output-format", "jsonl"),
        "TSV": ("in.tsv", "--output-format", "tsv"),
    }
    for written, (source, *options) in kinds.items():
        command = ("translate", model, "--engine", "torch", "-o", tmp_path / "out")
        assert nmt(*command, tmp_path / source, *options)[0] == 0
        content = (tmp_path / "out").read_bytes()
        for kind, (source, *options) in kinds.items():
            status, _, err = nmt(*command, tmp_path / source, *options, "--resume")
            if written == kind or (written, kind) == ("text with scores", "TSV"):
                assert (status, "is complete: 21 lines" in err) == (0, True)  # both have columns
                continue
            assert status == 1
            assert one_line(err) == (
                f"{tmp_path / 'out'} is not {kind}; --resume needs an output with the same options; choose another "
                "output, or leave out --resume to replace it"
            )
        assert (tmp_path / "out").read_bytes() == content
    with_alignments = (*command, tmp_path / "in", "--with-alignments")
    assert nmt(*with_alignments)[0] == 0
    assert "is complete: 21 lines" in nmt(*with_alignments, "--resume")[2]


@pytest.mark.slow
def test_resume_distinguishes_n_best_lists(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(as_bytes(["a dog", "a cat"]))
    command = ("translate", model, tmp_path / "in", "--engine", "torch", "--n-best", 2, "-o", tmp_path / "out")
    kinds = {"an n-best list with tabs": "text", "a Moses n-best list": "moses"}
    for written in kinds.values():
        assert nmt(*command, "--output-format", written)[0] == 0
        for name, kind in kinds.items():
            status, _, err = nmt(*command, "--output-format", kind, "--resume")
            if kind == written:
                assert (status, "is complete: 2 lines" in err) == (0, True)
            else:
                assert status == 1 and one_line(err).startswith(f"{tmp_path / 'out'} is not {name}; --resume needs")


@pytest.mark.slow
def test_interrupted_and_resumed_commands_report_their_long_lines(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    long = " ".join(["the old dog"] * 300)
    (tmp_path / "in.txt").write_text(
        "".join(f"{line}\n" for line in [*SENTENCES[:5], long, *SENTENCES[:5], long, long])
    )
    command = ["translate", model, tmp_path / "in.txt", "-o", tmp_path / "out", "--window", 6, "--engine", "torch"]
    interrupt_after(1)
    status, _, err = nmt(*command)
    assert status == 130
    assert "warning: 1 line was too long for the model and was translated in parts" in err
    status, _, err = nmt(*command, "--resume")
    assert status == 0
    assert "the first 6 lines were translated earlier; warnings count only the others" in err
    assert "warning: 2 lines were too long for the model and were translated in parts" in err


def test_an_interrupted_command_with_resume_is_rerun_unchanged(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    out = tmp_path / "out"
    interrupt_after(2)
    status, _, err = nmt("translate", model, sentences, "-o", out, "--engine", "torch", "--window", 6, "--resume")
    told = f"interrupted; {out}.part has the first 12 lines; to continue, rerun the command"
    assert (status, one_line(err)) == (130, told)


@pytest.mark.parametrize("option", ["--prefixes", "--required"])
def test_resume_names_a_missing_option(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None], option: str
) -> None:
    (tmp_path / "words").write_text("cat\n" * len(SENTENCES))
    command = ("translate", model, sentences, "-o", tmp_path / "out", "--engine", "torch", "--window", 6)
    interrupt_after(2)
    assert nmt(*command, option, tmp_path / "words")[0] == 130
    status, _, err = nmt(*command, "--resume")
    assert status == 2
    assert f"made from ({sentences} with {option} {tmp_path / 'words'}); use the same input, --pref" in one_line(err)


@pytest.mark.slow
def test_restart_keeps_the_part_if_the_model_does_not_load(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    command = ("translate", model, sentences, "-o", tmp_path / "out", "--engine", "torch", "--window", 6)
    interrupt_after(2)
    assert nmt(*command)[0] == 130
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("out*")}
    assert kept.keys() == {"out.part", "out.part.jsonl"}
    for option in ("--fusion", "--ensemble", "--shortlist"):
        assert nmt(*command, "--restart", option, sentences)[0] == 1, option
    (tmp_path / "memory").write_text("text")
    assert nmt(*command, "--restart", "--memory", tmp_path / "memory")[0] == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out*")} == kept
    assert nmt(*command, "--restart")[0] == 0
    assert {path.name for path in tmp_path.glob("out*")} == {"out"}


@pytest.mark.slow
def test_resume_requires_the_same_header(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    source = tmp_path / "in.tsv"
    rows = "".join(f"{number}\t{text}\n" for number, text in enumerate(SENTENCES))
    source.write_text(f"id\ten\n{rows}")
    command = ("translate", model, source, "--header", "--column", 1, "-o", tmp_path / "out.jsonl", "--window", 6)
    interrupt_after(2)
    assert nmt(*command, "--engine", "torch")[0] == 130
    source.write_text(f"id\tEnglish\n{rows}")
    status, _, err = nmt(*command, "--engine", "torch", "--resume")
    assert status == 2
    assert 'header was ["id", "en"] and is ["id", "English"]' in one_line(err)
    source.write_text(f"id\ten\n{rows}")
    assert nmt(*command, "--engine", "torch", "--resume")[0] == 0
    assert (tmp_path / "out.jsonl").read_text().count('"en": ') == len(SENTENCES)


@pytest.mark.slow
def test_resume_requires_the_same_glossary_report(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    """A new report would lack the rows of the first lines."""
    (tmp_path / "in").write_bytes(as_bytes(SENTENCES))
    (tmp_path / "terms").write_text("cat\tdog\n")
    command = ("translate", model, tmp_path / "in", "-o", tmp_path / "out", "--window", 6)
    options = ("--glossary", tmp_path / "terms", "--engine", "torch", "--resume")
    interrupt_after(2)
    assert nmt(*command, *options)[0] == 130
    status, _, err = nmt(*command, *options, "--glossary-report", tmp_path / "report")
    assert (status, "glossary-report was null and is" in one_line(err)) == (2, True)
    assert not (tmp_path / "report").exists()
    assert nmt(*command, *options)[0] == 0


@pytest.mark.slow
def test_resume_from_a_pipe_requires_the_same_lines(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    command = ("translate", model, "-o", tmp_path / "out", "--window", 1)
    pipe_in(lambda write: write(as_bytes([*SENTENCES[:5]]) + b"\xff\n"))
    assert nmt(*command)[0] == 1
    pipe_in(lambda write: write(as_bytes(["a cat", *SENTENCES[1:]])))
    status, _, err = nmt(*command, "--resume")
    assert status == 2
    assert "standard input does not start with the 5 lines that" in one_line(err)
    pipe_in(lambda write: write(as_bytes(SENTENCES)))
    assert nmt(*command, "--resume")[0] == 0
    assert (tmp_path / "out").read_text().count("\n") == 20
    pipe_in(lambda write: write(as_bytes(SENTENCES)))
    status, _, err = nmt(*command, "--resume")
    assert status == 0
    assert "out is complete: 20 lines, as many as standard input" in err


@pytest.mark.slow
def test_several_processes_write_the_same_bytes(
    model: Path, nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []

    def recorded(make: Any, jobs: Any, num_processes: int, *, option: str) -> Any:
        numbers.append(num_processes)
        return map_in_order(make, jobs, num_processes, option=option)

    monkeypatch.setattr(torch_workers, "map_in_order", recorded)
    monkeypatch.setattr(torch_workers, "num_cores", lambda: 2)
    monkeypatch.setattr(torch_workers, "LINES_PER_PROCESS", 150)
    (tmp_path / "in").write_bytes(as_bytes(nasty_lines(300, num_longest=0)))
    command = ("translate", model, tmp_path / "in", "--window", 20, "--output-format", "jsonl", "--engine", "torch")
    _, alone, err_alone = nmt(*command, "--processes", 1)
    assert nmt(*command, "--threads", 1)[1] == alone
    assert not numbers
    status, together, err = nmt(*command)
    assert status == 0, err
    assert numbers == [2]
    assert together == alone
    (warning,) = [line for line in err_alone.splitlines() if "lines were too long" in line]
    assert warning in err.splitlines()


@pytest.mark.parametrize(
    ("num_lines", "cores", "fitting", "processes"),
    [
        (None, 8, 99, 1),
        (0, 8, 99, 1),
        (999, 8, 99, 1),
        (1_000, 8, 99, 2),
        (10**6, 8, 99, 8),
        (10**6, 8, None, 8),
        (10**6, 8, 3, 3),
        (10**6, 8, 0, 1),
        (10**6, 8, -1, 1),
    ],
)
def test_the_number_of_processes_depends_on_lines_cores_and_memory(
    num_lines: int | None, cores: int, fitting: int | None, processes: int
) -> None:
    assert torch_workers.choose_num_processes(num_lines, cores, fitting) == processes


@pytest.mark.slow
def test_tag_is_prepended_to_each_part_of_a_long_line(model: Path, nmt: Nmt, sentences: Path) -> None:
    plain, tagged, other = (
        nmt("translate", model, "--engine", "torch", sentences, *options)[1]
        for options in ((), ("--tag", "<web>"), ("--set", "tag=<news>"))
    )
    assert len({plain, tagged, other}) == 3
    decode = read_model_metadata(model).decode.model_copy(update={"tag": "<web>"})
    translator = Translator.load(model, "cpu", decode=decode)
    assert translator.translate(SENTENCES) == tagged.splitlines()
    long = " ".join(SENTENCES)
    parts = [part.text for part in translator._encoder.split(long)[0]]
    assert len(parts) > 1
    assert translator.translate([long]) == [" ".join(translator.translate(parts))]


@pytest.mark.slow
def test_truncated_and_split_lines_are_reported(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(" ".join(SENTENCES * 100) + "\n" + SENTENCES[0] + "\n", encoding="utf-8")
    for option, result in (
        (("--set", "long_lines=truncate"), "truncated"),
        (("--set", "long_lines=split"), "translated in parts; if sentences are missing, use --split-sentences"),
    ):
        options = ("--engine", "torch", *option, "--set", "max_tokens=1")
        status, _, err = nmt("translate", model, tmp_path / "in.txt", *options)
        assert status == 0 and f"1 line was too long for the model and was {result}\n" in err


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_lines_longer_than_the_training_text_are_reported(model: Path, nmt: Nmt, tmp_path: Path, engine: str) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'nmt[fast]'")
    limit = max(len(Tokenizers.load(model).src.encode(line)) for line in SENTENCES)
    (tmp_path / "in.txt").write_bytes(as_bytes([*SENTENCES, *(" and ".join(SENTENCES[i : i + 2]) for i in (0, 4, 9))]))
    recipe, metadata = read_model_toml(model / "model.toml")
    changed = model_toml(recipe, replace(metadata, longest_source=limit))
    files = {name: (model / name).read_bytes() for name in ("model.safetensors", "tokenizer.model")}
    write_directory(tmp_path / "model", files | {"model.toml": changed.encode()})
    options = ("--engine", engine, "--set", "max_tokens=1")
    for name, warns in (("model", True), (model, False)):
        status, _, err = nmt("translate", tmp_path / name, tmp_path / "in.txt", *options)
        assert status == 0
        assert ("3 lines were longer than any sentence of the training text; check" in err) == warns


def test_standard_input_that_is_closed_is_one_line(model: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    status, _, err = nmt("translate", model)
    assert status == 1
    assert "standard input is closed" in one_line(err)


def test_a_redirected_file_is_read_to_its_end(
    model: Path, nmt: Nmt, sentences: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected, _ = nmt("translate", model, sentences)
    with sentences.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert nmt("translate", model)[1] == expected
        rest = PipeLines(file.fileno(), "rest")
        assert rest.wait(0.0) and list(rest) == []


@pytest.mark.slow
def test_scores_depend_on_the_tag(model: Path, nmt: Nmt, sentences: Path, tmp_path: Path) -> None:
    (tmp_path / "tgt").write_text("a red cat\n" * len(SENTENCES))
    web = DecodeRecipe(beam_size=1, tag="<web>")
    translator = Translator.load(model, "cpu", "fp32", web)
    forced = translator.translate_n_best(SENTENCES, prefixes=["a red cat"] * len(SENTENCES))
    for options, expected in ((("--tag", "<web>"), True), ((), False)):
        _, out, _ = nmt("score", model, sentences, tmp_path / "tgt", "--per-token", *options)
        for line, [translation] in zip(out.splitlines(), forced, strict=True):
            *tokens, _ = [float(column.rpartition(":")[2]) for column in line.split("\t")[1].split(" ")]
            assert (tokens == pytest.approx(translation.token_log_probs[: len(tokens)], abs=1e-3)) == expected
    status, _, err = nmt("score", model, sentences, tmp_path / "tgt", "--tag", "<s>")
    assert status == 1
    assert "one of <web>, <news>" in one_line(err)


def test_max_delay_for_a_file_is_an_error(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("The dog sees a cat.\n")
    status, out, err = nmt("translate", model, tmp_path / "in", "--max-delay", 1)
    assert (status, out) == (2, "")
    assert f"--max-delay has no effect on {tmp_path / 'in'}, which is a file; leave out --max-delay" in one_line(err)


@pytest.mark.slow
def test_sentences_of_a_paragraph_are_translated_separately(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("The dog sees Dr. Smith. The cat runs!\n\nA cat.\n")
    command = ("translate", model, tmp_path / "in", "--engine", "torch", "--precision", "fp32")
    first, second, third = Translator.load(model, "cpu", "fp32").translate(
        ["The dog sees Dr. Smith.", "The cat runs!", "A cat."]
    )
    expected = [f"{first} {second}", "", third]
    assert nmt(*command, "--split-sentences")[1].splitlines() == expected
    memory = ("--memory", tmp_path / "m")
    assert nmt(*command, *memory)[1] == nmt(*command)[1]
    assert nmt(*command, *memory, "--split-sentences")[1].splitlines() == expected != nmt(*command)[1].splitlines()


@pytest.mark.slow
def test_translate_warns_of_newer_checkpoints(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    (run / "report.json").write_text(json.dumps({"training": {"steps": 1_000}}))
    (run / "checkpoints" / "step-00001200").mkdir(parents=True)
    lines = tmp_path / "lines"
    lines.write_text("a dog\n")
    assert "was averaged at step 1,000, but the run has a checkpoint of step 1,200" in nmt("translate", run, lines)[2]
    assert "averaged" not in nmt("translate", run / "model", lines)[2]
    others = ("translate", model, lines, "--ensemble", run), ("score", run, lines, lines), ("align", run, lines, lines)
    for command in others:
        err = nmt(*command)[2]
        assert err.count("was averaged at step 1,000, but the run has a checkpoint of step 1,200") == 1


def test_empty_input_is_reported(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    pipe_in(lambda write: write(b""))
    status, _, err = nmt("translate", model, "-o", tmp_path / "out", "--engine", "torch")
    assert (status, (tmp_path / "out").read_bytes()) == (0, b"")
    assert "warning: standard input has no lines to translate; check the input\n" in err
