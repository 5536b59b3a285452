"""Likely mistakes in the input of `nmt translate` are named."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.storage.model_metadata import model_toml, read_model_toml
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, PipeIn
from tests.cli.nasty_lines import SENTENCES, as_bytes
from tests.extras import import_ctranslate2


def translate_lines(nmt: Nmt, model: Path, source: Path, lines: list[str], *options: object) -> tuple[str, str]:
    """Write a source file, translate it one line at a time, and return stdout and stderr."""
    source.write_bytes(as_bytes(lines))
    search = ("--engine", "torch", "--precision", "fp32", "--beam-size", 3, "--window", 1)
    status, out, err = nmt("translate", model, source, *search, *options)
    assert status == 0, err
    return out, err


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
            "1 line without text (first: line 1) has a prefix or required phrases, which are ignored; remove them",
        ),
        (
            ['{"text": "a dog"}', '{"text": " ", "prefix": "b"}'],
            "1 line without text (first: line 2) has a prefix or required phrases, which",
        ),
        (['{"text": "", "prefix": " "}', '{"text": null, "required": []}'], ""),
        (
            ['{"text": "", "prefix": "b"}', '{"text": null, "required": ["c"]}', '{"text": "a dog"}'],
            "2 lines without text (first: line 1) have a prefix or required phrases, which are",
        ),
    ],
)
def test_constraints_of_lines_without_text_are_counted(
    model: Path, nmt: Nmt, tmp_path: Path, lines: list[str], warned: str
) -> None:
    _, err = translate_lines(nmt, model, tmp_path / "in.jsonl", lines)
    assert f"warning: {warned}" in err if warned else "without text" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "options", "warned"),
    [
        (["a dog\tx", "", "a cat\ty"], (), ""),
        (
            ["a dog\tx", "a cat", "a cow"],
            (),
            "2 lines of {name} (first: line 2) have a different number of columns than line 1 (2), so the",
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
        import_ctranslate2()
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


@pytest.mark.slow
def test_lost_items_are_counted(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    lines = ["a <b>dog</b>", "a dog {name}", "a cat, 100%"]
    expected = "warning: 2 lines have tags or placeholders that their translations lack; use --keep markup,placeholders"
    assert expected in translate_lines(nmt, model, tmp_path / "in.txt", lines)[1]
    kept = "warning: 1 line has placeholders that its translation lacks; use --keep markup,placeholders"
    assert kept in translate_lines(nmt, model, tmp_path / "in.txt", lines, "--keep", "markup")[1]
    assert " lack" not in translate_lines(nmt, model, tmp_path / "in.txt", lines, "--keep", "markup,placeholders")[1]
