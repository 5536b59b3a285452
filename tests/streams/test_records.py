"""Parsing and writing of text, TSV, JSON Lines and Moses n-best lists."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nmt import Translation, UserError
from nmt.errors import CommandError
from nmt.streams.records import (
    Format,
    Record,
    RecordReader,
    RecordWriter,
    choose_format,
    format_of_file,
    warn_of_format,
)
from nmt.text.format_warnings import warn_of_fields

BEST = Translation("ein Hund", -0.25, -1.123456789, ["▁ein", "▁Hund"], [-0.5, -0.4, -0.22345678])
SECOND = Translation("der Hund", -0.75, -2.0, ["▁der", "▁Hund"], [-1.0, -0.5, -0.5], [(0, 0), (1, 1)])
TEXT = RecordReader("text")
TSV = RecordReader("tsv", column=1)
JSONL = RecordReader("jsonl", field="page.text")

# JSON that a round trip through `json` would change: numbers, escapes, spaces.
ODD_JSON = [
    '{"id": 1.10, "big": 123456789012345678901234567890, "far": 1e400, "page": {"text": "a dog"}}',
    '  { "page" : {"text":"\\u0061 dog\\ud800"}, "s": "\\ud83d\\ude00", "t": "2" }  ',
    '{"page": {"text": null}, "tab": "a\\tb\\u2028", "nan": NaN}',
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tsv", "tsv"),
        ("a.b.tsv.gz", "tsv"),
        ("a.jsonl", "jsonl"),
        ("a.jsonl.zst", "jsonl"),
        ("a.json", "jsonl"),
        ("a.txt", "text"),
        ("FILM.SRT", "srt"),
        ("A.Tsv.GZ", "tsv"),
        ("a.tsv.txt.gz", "text"),
        ("a.de", None),
        ("a.gz", None),
        ("tsv", None),
        ("-", None),
    ],
)
def test_the_extension_determines_the_format(name: str, expected: Format | None) -> None:
    assert format_of_file(Path(name)) == expected


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("newstest.sgm newstest.XML newstest.sgm.gz", "its markup would be translated; use --input-format html"),
        ("memory.tmx page.XLF page.xliff.gz a.po a.pot", "its markup would be translated; extract the segments, or"),
        ("README.md page.rst.gz paper.tex", "its markup would be translated; convert it to HTML, or choose a format"),
        ("film.vtt film.en.ASS film.vtt.gz", r"is not supported; subtitles must be \.srt; convert them, or choose "),
    ],
)
def test_files_with_markup_are_refused(names: str, reason: str) -> None:
    for name in names.split():
        with pytest.raises(CommandError, match=reason):
            format_of_file(Path(name))
        with pytest.raises(CommandError, match=r" output is not supported; .* with --output-format"):
            choose_format(Path(name), None, "html", Path("a.html"))
        assert choose_format(Path(name), None, "html", Path("in.gz", name.lower())) == "html"


# --- Reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "line", "text"),
    [
        (TEXT, 'a\tdog "x"\r', 'a\tdog "x"\r'),
        (TSV, "1\ta dog\tx", "a dog"),
        (TSV, "1\ta dog\r", "a dog"),
        (TSV, "\t", ""),
        (JSONL, ODD_JSON[0], "a dog"),
        (JSONL, ODD_JSON[1], "a dog\ufffd"),
        (JSONL, ODD_JSON[2], None),
        (JSONL, '{"page.text": "a dog", "page": {"text": "a cat"}}', "a dog"),
        (RecordReader("jsonl", field="a.b.c"), '{"a": {"b.c": "a dog"}}', "a dog"),
        (JSONL, '{"page": {"text": "a\\nb"}}\r', "a b"),
        (JSONL, "  ", ""),
    ],
)
def test_the_text_of_a_line_is_read(reader: RecordReader, line: str, text: str | None) -> None:
    record = reader.read(line, 7, "in")
    assert (record.number, record.text) == (7, text)
    assert record.line.removesuffix("\r") == line.removesuffix("\r")


@pytest.mark.parametrize(
    ("reader", "line", "expected"),
    [
        (TSV, "one column", "in, line 7 has 1 column; --column 1"),
        (TSV, "", "has 1 column;"),
        (JSONL, "{'page': 1}", "in, line 7 is not JSON"),
        (JSONL, '{"page": {"text": "a"', "is not JSON"),
        (
            JSONL,
            '{"page": {"text": "a"}, "page": {"text": "b"}}',
            "in, line 7 is not usable JSON (field 'page' is repeated)",
        ),
        (JSONL, '{"page": {"text": "a", "n": 1, "n": 1}}', "field 'n' is repeated); each line must be one JSON object"),
        pytest.param(JSONL, '{"page": ' * 100_000, "in, line 7 has objects or arrays nested too deeply", id="deep"),
        pytest.param(
            JSONL, f'{{"page": {"9" * 5_000}}}', "is not usable JSON (it has an integer of 5,000 digits)", id="digits"
        ),
        (
            JSONL,
            '{"page": {"body": "a"}}',
            "has no field 'page.text'; the fields of 'page' are 'body'; fix it, or correct --field",
        ),
        (JSONL, '["a"]', "starts an array"),
        pytest.param(JSONL, json.dumps("\ud800" * 1000), "has no field", id="surrogates"),
        (
            RecordReader("jsonl", field="page.text"),
            '{"page": null}',
            "has no field 'page.text', because field 'page' is null, which is not an object; fix it",
        ),
        (JSONL, "null", "has no field 'page.text', because it is null, which is not an object; fix it"),
        (JSONL, '{"page": {"text": 3}}', "is of type int; it must be text"),
    ],
)
def test_a_line_without_text_is_an_error(reader: RecordReader, line: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        reader.read(line, 7, "in")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    str(caught.value).encode()  # fails for a lone surrogate


def test_the_header_names_the_columns() -> None:
    named = RecordReader("tsv", column="en", header=True)
    reader = named.with_header("id\ten\tde\r", "in")
    assert (reader.column, reader.names) == (1, ("id", "en", "de"))
    assert reader.read("7\ta dog\tein Hund", 1, "in") == Record(1, "a dog", "7\ta dog\tein Hund")
    assert RecordReader("tsv", column=2, header=True).with_header("id\ten\tde", "in").column == 2
    with pytest.raises(UserError, match="in, line 9 has 2 columns and the header has 3; the numbers must be equal"):
        reader.read("7\ta dog", 8, "in")
    with pytest.raises(UserError, match="in, line 9 has 1 column and the header has 3"):  # not about the index of "en"
        reader.read("7", 8, "in")


def test_a_header_without_the_column_is_an_error() -> None:
    named = RecordReader("tsv", column="en", header=True)
    for header, expected in (
        (None, "in is empty; with --header, the first line must name the columns"),
        ("id\tde", "in, line 1 has no column 'en'; it has 'id', 'de'; correct --column"),
        ("en\ten", "in, line 1 has two columns 'en'; names must be unique"),
    ):
        with pytest.raises(UserError, match=re.escape(expected)):
            named.with_header(header, "in")
    with pytest.raises(UserError, match="in, line 1 has 2 columns; --column 2"):
        RecordReader("tsv", column=2, header=True).with_header("id\ten", "in")


def test_json_array_is_an_error() -> None:
    with pytest.raises(UserError, match=r"in, line 1 starts an array; .* jq -c '\.\[\]' FILE > NEW\.jsonl"):
        JSONL.read(' [{"page": 1},', 1, "in")


# --- Writing ----------------------------------------------------------------------------------------------------------


def write(reader: RecordReader, output: Format, line: str, *, n_best: int = 1, with_scores: bool = False) -> str:
    translations = [BEST, SECOND][:n_best]
    return RecordWriter(reader, output, n_best, with_scores).write(reader.read(line, 7, "in"), translations)


def test_moses_lines_have_numbers_from_0_scores_and_escaped_separators() -> None:
    record, first = Record(7, "a dog", "a dog"), "6 ||| ein Hund ||| LogProb= -1.1235 ||| -0.2500\n"
    assert RecordWriter(TEXT, "moses").write(record, [BEST, SECOND]) == first
    second = "6 ||| der Hund ||| LogProb= -2.0000 ||| -0.7500 ||| 0-0 1-1\n"
    assert RecordWriter(TEXT, "moses", 2, with_alignments=True).write(record, [SECOND]) == second
    assert RecordWriter(TEXT, "moses").is_numbered
    line = RecordWriter(TEXT, "moses").write(record, [replace(BEST, text="a ||| b || c||||")])
    assert line.split("|||")[1] == " a &#124;&#124;&#124; b || c&#124;&#124;&#124;&#124; "


def test_text_lines_have_scores_and_numbers_on_request() -> None:
    assert write(TEXT, "text", "a\tdog") == "ein Hund\n"
    assert write(TSV, "text", "1\ta dog", with_scores=True) == "-0.2500\tein Hund\n"
    certain = RecordWriter(TSV, "text", 1, with_scores=True).write(Record(1, "a", ""), [replace(BEST, score=-1e-6)])
    assert certain.startswith("0.0000\t")
    assert write(JSONL, "text", ODD_JSON[0], n_best=2) == "7\t-0.2500\tein Hund\n7\t-0.7500\tder Hund\n"
    assert not RecordWriter(TEXT, "text").is_numbered
    assert RecordWriter(TEXT, "text", n_best=2).is_numbered
    assert not RecordWriter(TEXT, "jsonl", n_best=2).is_numbered


def test_tsv_keeps_columns_and_pads_missing_translations() -> None:
    assert write(TSV, "tsv", "1\ta dog\t\r") == "1\ta dog\t\tein Hund\n"
    assert write(TSV, "tsv", "1\ta", n_best=2, with_scores=True) == "1\ta\t-0.2500\tein Hund\t-0.7500\tder Hund\n"
    assert write(TEXT, "tsv", "a\tdog") == "a dog\tein Hund\n"
    assert write(JSONL, "tsv", ODD_JSON[1]) == "a dog\ufffd\tein Hund\n"
    assert write(JSONL, "tsv", r'{"page": {"text": "a\r\ndog\u2028"}}') == "a  dog \tein Hund\n"
    few = RecordWriter(TSV, "tsv", n_best=3, with_scores=True).write(Record(1, "", "\t"), [BEST])
    assert few == "\t\t-0.2500\tein Hund\t\t\t\t\n"


def test_distinct_keeps_the_best_of_equal_texts() -> None:
    again = Translation("ein Hund", -0.5, -1.5, ["▁ein", "▁H", "und"], [-0.5, -0.4, -0.3, -0.3])
    found, record = [BEST, again, SECOND], TSV.read("1\ta dog", 7, "in")
    text = RecordWriter(TSV, "text", n_best=2, distinct=True)
    assert text.write(record, found) == "7\t-0.2500\tein Hund\n7\t-0.7500\tder Hund\n"
    assert text.write(record, [BEST, again]) == "7\t-0.2500\tein Hund\n"
    columns = RecordWriter(TSV, "tsv", n_best=3, distinct=True)
    assert columns.write(record, found) == "1\ta dog\tein Hund\tder Hund\t\n"
    written = json.loads(RecordWriter(TSV, "jsonl", n_best=2, distinct=True).write(record, found))
    assert [one["translation"] for one in written["n_best"]] == ["ein Hund", "der Hund"]


def test_alignments_follow_each_translation() -> None:
    record = TSV.read("1\ta", 7, "in")
    text = RecordWriter(TSV, "text", n_best=2, with_alignments=True).write(record, [BEST, SECOND])
    assert text == "7\t-0.2500\tein Hund\t\n7\t-0.7500\tder Hund\t0-0 1-1\n"
    columns = RecordWriter(TSV, "tsv", n_best=2, with_alignments=True)
    assert columns.write(record, [SECOND]) == "1\ta\tder Hund\t0-0 1-1\t\t\n"


def test_results_are_fields_of_json_lines() -> None:
    written = json.loads(write(TEXT, "jsonl", "a\tdog\u2028", n_best=2))
    best = {
        "translation": "ein Hund",
        "score": -0.25,
        "log_prob": -1.123457,
        "tokens": ["▁ein", "▁Hund"],
        "token_log_probs": [-0.5, -0.4, -0.223457],
    }
    second = {"translation": "der Hund", "score": -0.75, "log_prob": -2.0, "tokens": ["▁der", "▁Hund"]}
    second |= {"token_log_probs": [-1.0, -0.5, -0.5], "alignment": [[0, 0], [1, 1]]}
    assert written == {"text": "a\tdog\u2028"} | best | {"n_best": [best, second]}
    assert json.loads(write(TEXT, "jsonl", "a dog\r")) == {"text": "a dog"} | best
    assert json.loads(write(TSV, "jsonl", "1\ta dog")) == {"columns": ["1", "a dog"]} | best


@pytest.mark.parametrize("line", ODD_JSON[:2])
def test_json_input_fields_are_copied_verbatim(line: str) -> None:
    written = write(JSONL, "jsonl", line)
    assert written.endswith("}\n")
    assert written.count("\n") == 1
    assert written.startswith(line.strip().removesuffix("}").rstrip() + ', "translation": "ein Hund", ')
    added = json.loads(write(TEXT, "jsonl", ""))
    assert repr(json.loads(written)) == repr(json.loads(line) | {key: added[key] for key in list(added)[1:]})


@pytest.mark.parametrize(
    "odd", ["2.50", "1e400", "[1.10, -0, 1E+2, NaN]", '{"a": [0.10, "\\u0061"], "score": 7.0}', "-1e-400"]
)
def test_replaced_fields_leave_others_as_they_are(odd: str) -> None:
    page, rest = f'{{"text": "a dog", "n": {odd}}}', f' "x" :{odd} , "y": {odd}'
    line = f'{{"score" : 1.50, "page": {page},{rest}, "log_prob":{odd}, "tokens": [[]]}}'
    written = write(JSONL, "jsonl", line)
    assert written.startswith(f'{{"score" : -0.25, "page": {page},{rest}, "log_prob":-1.123457, "tokens": ["▁ein"')
    inside = RecordReader("jsonl", field="translation.en")
    line = f'{{"id": {odd}, "translation": {{"en": "a dog", "score": {odd}, "n": {odd}}}, "end": {odd}}}'
    written = write(inside, "jsonl", line)
    assert written.startswith(
        f'{{"id": {odd}, "translation": {{"en": "a dog", "score": -0.25, "n": {odd}, "translation"'
    )
    assert written.endswith(f'}}, "end": {odd}}}\n')


@pytest.mark.parametrize("field", ["text", "translation.text"])
def test_results_of_an_earlier_translation_are_replaced_or_an_error(field: str) -> None:
    written = RecordWriter(JSONL, "jsonl").written
    reader = RecordReader("jsonl", field=field, written=written)
    assert written == ("translation", "score", "log_prob", "tokens", "token_log_probs")
    assert RecordWriter(JSONL, "jsonl", 2, with_alignments=True).written == (*written, "n_best", "alignment")

    def line(**results: object) -> str:
        fields = {"text": "a dog"} | results
        return json.dumps(fields if field == "text" else {"translation": fields, "n_best": []})

    def written_results(**results: object) -> dict[str, object]:
        output = json.loads(write(reader, "jsonl", line(**results)))
        fields: dict[str, object] = output if field == "text" else output["translation"]
        return fields

    replaced = written_results(translation="old", score=7)
    assert (replaced["translation"], replaced["score"]) == ("ein Hund", -0.25)
    kept = written_results(alignment=[[0, 0]], n_best=3)
    assert (kept["translation"], kept["alignment"], kept["n_best"]) == ("ein Hund", [[0, 0]], 3)
    for stale in ("n_best", "alignment"):
        with pytest.raises(
            UserError, match=f"in, line 1 has the fields 'translation' and '{stale}', and only the first"
        ):
            reader.read(line(translation="old", **{stale: []}), 1, "in")


def test_null_text_gives_null_translation() -> None:
    line, nothing = '{"page": {"text": null}, "score": 7}', [Translation("", 0.0, 0.0, [], alignment=[])]
    record = JSONL.read(line, 7, "in")
    written = json.loads(RecordWriter(JSONL, "jsonl", n_best=2, with_alignments=True).write(record, nothing))
    added = ("translation", "score", "log_prob", "tokens", "token_log_probs", "alignment", "n_best")
    assert written == {"page": {"text": None}} | dict.fromkeys(added)
    assert RecordWriter(JSONL, "tsv", with_scores=True).write(record, nothing) == "\t\t\n"
    assert RecordWriter(JSONL, "text").write(record, nothing) == "\n"
    beside = RecordReader("jsonl", field="translation.en")
    written = json.loads(
        RecordWriter(beside, "jsonl").write(beside.read('{"translation": {"en": null}}', 1, "in"), nothing)
    )
    assert written["translation"]["translation"] is written["translation"]["score"] is None


def test_fields_of_the_same_name_are_replaced_and_lone_surrogates_are_escaped() -> None:
    again = write(JSONL, "jsonl", '{"page": {"text": "ü \\ud800"}, "score": "old", "n": 1}')
    assert again.startswith('{"page": {"text": "ü \\ud800"}, "score": -0.25, "n": 1, "translation": ')
    damaged = json.loads(RecordWriter(TEXT, "jsonl").write(Record(1, "\ud800", "\ud800"), [BEST]))
    assert damaged["text"] == "\ud800"
    field = RecordReader("jsonl", field="x")
    assert write(field, "jsonl", '{"x": ""}').startswith('{"x": "", "translation"')


def test_blank_json_line_stays_blank() -> None:
    nothing = [Translation("", 0.0, 0.0, [])]
    assert RecordWriter(JSONL, "jsonl").write(JSONL.read(" ", 1, "in"), nothing) == "\n"
    assert RecordWriter(JSONL, "tsv").write(JSONL.read("", 1, "in"), nothing) == "\t\n"


def test_results_are_added_next_to_a_text_that_they_would_replace() -> None:
    reader = RecordReader("jsonl", field="translation.en")
    line = '{"id": 1, "translation": {"en": "a dog", "de": "der Hund", "score": 3}, "score": 7}'
    written = json.loads(write(reader, "jsonl", line))
    assert written["id"] == 1 and written["score"] == 7
    inner = written["translation"]
    assert (inner["en"], inner["de"]) == ("a dog", "der Hund")
    assert (inner["translation"], inner["score"]) == ("ein Hund", -0.25)
    assert json.loads(write(reader, "jsonl", '{"translation": {"en": "a dog"}}'))["translation"]["en"] == "a dog"


@pytest.mark.parametrize("field", ["translation", "score", "tokens", "translation.score", "translation.x.score"])
@pytest.mark.parametrize("source", [TEXT, JSONL])
def test_a_text_that_the_results_would_replace_is_an_error(source: RecordReader, field: str) -> None:
    reader = replace(source, field=field)
    with pytest.raises(CommandError, match=f"--field {field}: the output has a field '{field.split('.')[-1]}', which"):
        RecordWriter(reader, "jsonl")
    RecordWriter(reader, "text")  # has no fields
    RecordWriter(replace(TSV, field=field), "jsonl")  # has the columns of the input instead of a text


def test_a_text_field_may_have_the_name_of_a_result_that_the_output_lacks() -> None:
    for name in ("n_best", "alignment"):
        reader = replace(JSONL, field=name)
        assert json.loads(write(reader, "jsonl", f'{{"{name}": "a dog"}}'))[name] == "a dog"
        with pytest.raises(CommandError, match=f"has a field '{name}'"):
            RecordWriter(reader, "jsonl", n_best=2, with_alignments=True)


def test_a_field_whose_name_has_a_dot_is_not_nested() -> None:
    reader = RecordReader("jsonl", field="translation.en")
    line = '{"translation.en": "a dog", "translation": "old"}'
    assert json.loads(write(reader, "jsonl", line))["translation"] == "ein Hund"
    reader = RecordReader("jsonl", field="translation.en.text")
    inner = json.loads(write(reader, "jsonl", '{"translation": {"en.text": "a dog"}}'))["translation"]
    assert (inner["en.text"], inner["translation"]) == ("a dog", "ein Hund")


def test_dotted_field_for_plain_text_gives_nested_objects() -> None:
    written = json.loads(write(RecordReader("text", field="page.text"), "jsonl", "a dog"))
    assert written["page"] == {"text": "a dog"} and written["translation"] == "ein Hund"
    written = json.loads(write(RecordReader("text", field="translation.en"), "jsonl", "a dog"))
    assert written["translation"]["en"] == "a dog" and written["translation"]["translation"] == "ein Hund"


def test_added_columns_are_named_in_the_header() -> None:
    reader = RecordReader("tsv", 1, header=True).with_header("id\ten", "in")
    assert RecordWriter(reader, "tsv").header == "id\ten\ttranslation\n"
    several = RecordWriter(reader, "tsv", n_best=2, with_scores=True, with_alignments=True)
    added = "score\ttranslation\talignment\tscore_2\ttranslation_2\talignment_2"
    assert several.header == f"id\ten\t{added}\n"
    assert RecordWriter(reader, "text").header == RecordWriter(TSV, "tsv").header == ""
    assert RecordWriter(reader, "jsonl").header == ""
    assert json.loads(write(reader, "jsonl", "1\ta dog"))["columns"] == {"id": "1", "en": "a dog"}


def test_repeated_output_column_is_an_error() -> None:
    reader = RecordReader("tsv", header=True).with_header("en\tscore\ttranslation", "in")
    with pytest.raises(UserError, match="has a column 'translation', which the output adds"):
        _ = RecordWriter(reader, "tsv").header
    with pytest.raises(UserError, match="has a column 'score'"):
        _ = RecordWriter(reader, "tsv", with_scores=True).header
    assert RecordWriter(reader, "text").header == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"text": "a dog"}', "", '{ "text": "a cat"}\r'], "jsonl"),
        (["a dog\tein Hund", "a cat\teine Katze"], "tsv"),
        (["<!DOCTYPE html>", "<p>a dog</p>"], "html"),
        (["1", "00:00:01,000 --> 00:00:02,000", "a dog"], "srt"),
        (["{name} sees a dog {0}", "{name}"], ""),
        (["a\tdog"], ""),
        (["a\tdog", "a cat"], ""),
        (["a dog --> a cat", "<b>a dog</b>"], ""),
        (["", " "], ""),
        ([], ""),
    ],
)
def test_plain_text_that_looks_like_another_format_gives_a_warning(
    lines: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_format("standard input", lines)
    remark = f"looks like {expected} and is translated as plain text; set --input-format {expected}"
    assert capsys.readouterr().err == (f"warning: standard input {remark}\n" if expected else "")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (['<srcset setid="newstest2014" srclang="any">', "<doc>"], "an SGM or XML test set"),
        (['<?xml version="1.0"?>', '<dataset id="newstest2021">'], "an SGM or XML test set"),
        (['<?xml version="1.0"?>', '<tmx version="1.4">'], "a TMX file"),
        (["0 ||| ein Hund ||| -1.0", "0 ||| der Hund ||| -2.0"], "a Moses n-best list"),
    ],
)
def test_plain_text_that_looks_like_an_unsupported_format_gives_a_warning(
    lines: list[str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_format("standard input", lines)
    assert capsys.readouterr().err.startswith(f"warning: standard input looks like {kind}, whose ")


@pytest.mark.parametrize(
    ("lines", "is_array"),
    [
        (['[{"text": "a dog"}, {"text": "a cat"}]'], True),
        (["[", " {", '  "text": "a dog"', " }", "]"], True),
        (["[", '"a dog",', '"a \\"cat\\""', "]"], True),
        (['["a dog"]'], True),
        (['["The" dog] barks.', "The cat"], False),
        (["[1, 2] are references.", "[Music]"], False),
        ([], False),
    ],
)
def test_an_array_that_is_read_as_text_gives_a_warning(
    lines: list[str], is_array: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_format("in.txt", lines)
    looks = "looks like a JSON array, whose brackets and field names count as text"
    translated = "and is translated; extract the text first, or set --input-format text"
    assert capsys.readouterr().err == (f"warning: in.txt {looks} {translated}\n" if is_array else "")
    warn_of_fields("in.txt", lines)
    assert capsys.readouterr().err == (f"warning: in.txt {looks}; extract the text first\n" if is_array else "")


def test_a_header_of_plain_text_gives_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for lines, is_named in ((["source", "a dog"], True), (["source"], False), (["text", "a dog"], False)):
        warn_of_format("in.txt", lines)
        warning = "warning: in.txt begins with 'source', which looks like a column name and is translated; "
        assert capsys.readouterr().err.startswith(warning) == is_named


def test_an_output_with_a_csv_name_in_another_format_gives_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_format(Path("in.csv"), None, "text") == "text"
    assert choose_format(Path("out.csv"), "tsv", "tsv") == "tsv"
    assert choose_format(Path("out.tsv"), None, "text") == "tsv"
    assert choose_format(Path("in.csv.jsonl"), None, "text") == "jsonl"
    assert capsys.readouterr().err == ""
    assert choose_format(Path("out.csv.gz"), None, "tsv") == "tsv"
    remedy = "rename it, or set --output-format tsv"
    assert capsys.readouterr().err == f"warning: out.csv.gz is written as tsv, not as CSV; {remedy}\n"


@pytest.mark.parametrize(
    ("name", "lines", "is_named"),
    [
        ("in.csv", ["id,text", '1,"a dog, a cat"'], True),
        ("in.CSV.gz", ["id;text", "1;a dog"], True),
        ("in.csv", ["a dog", "a cat"], False),
        ("in.txt", ["id,text", "1,a dog"], False),
        ("in.csv", [], False),
    ],
)
def test_csv_that_is_read_as_text_gives_a_warning(
    name: str, lines: list[str], is_named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_format(name, lines)
    remark = "is translated as plain text, including commas and quotes; convert it to TSV, or set --input-format text"
    assert capsys.readouterr().err == (f"warning: {name} {remark}\n" if is_named else "")
    warn_of_format("in.csv", ["1\ta dog", "2\ta, cat"])
    assert capsys.readouterr().err.startswith("warning: in.csv looks like tsv")
