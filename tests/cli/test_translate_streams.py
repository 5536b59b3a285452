"""`nmt translate` as a user runs it, with a tiny random model: every kind of line and every format."""

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from nmt import DecodeRecipe, Translator
from nmt.processes.parallel import map_in_order
from nmt.storage.model_metadata import read_model_metadata
from nmt.streams import job, torch_workers
from nmt.streams.source import PipeLines
from tests.calling import Nmt, PipeIn, Write, one_line
from tests.cli.nasty_lines import SENTENCES, as_bytes, nasty_lines
from tests.waiting import wait_until


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
def test_a_length_penalty_without_beam_search_needs_scores(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a dog\n")
    given = ("translate", model, tmp_path / "in.txt", "--length-penalty", "power")
    for single in (("-b", 1), ("--set", "sampling=true")):
        status, _, err = nmt(*given, *single)
        assert status == 2 and "length_penalty only changes the scores of" in one_line(err)
        assert nmt(*given, *single, "--with-scores")[0] == 0
    assert nmt(*given, "-b", 2)[0] == 0
    assert nmt(*given[:3], "-b", 1, "--length-penalty", "none")[0] == 0


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
def test_a_model_may_be_removed_during_translation(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    shutil.copytree(model, copy := tmp_path / "model")

    def write_and_remove(write: Write) -> None:
        write(b"the old dog\n")
        wait_until(lambda: (tmp_path / "out.part").exists() and (tmp_path / "out.part").stat().st_size > 0)
        shutil.rmtree(copy)
        write(b"the red cat\n")

    pipe_in(write_and_remove)
    status, _, err = nmt("translate", copy, "-o", tmp_path / "out", "--engine", "torch", "--processes", 1)
    assert status == 0 and "translated 2 lines" in err
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


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
        (
            "in.jsonl",
            b'{"text": "a", "text": "b"}\n',
            (),
            "in.jsonl, line 1 is not usable JSON (field 'text' is repeated)",
        ),
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
