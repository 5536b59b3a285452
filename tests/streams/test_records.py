"""Lines of every format in, lines of every format out, and nothing lost on the way."""

import json
import re
from pathlib import Path

import pytest

from nmt import Translation, UserError
from nmt.streams.records import Format, Layout, Record, RecordWriter

BEST = Translation("ein Hund", -0.25, -1.123456789, ["▁ein", "▁Hund"], [-0.5, -0.4, -0.22345678])
SECOND = Translation("der Hund", -0.75, -2.0, ["▁der", "▁Hund"], [-1.0, -0.5, -0.5], [(0, 0), (1, 1)])
TEXT, TSV, JSONL = Layout(Format.text), Layout(Format.tsv, column=1), Layout(Format.jsonl, field="page.text")

# Lines of JSON whose spelling Python's own json would change: numbers, escapes, equal names, spaces, an empty object.
ODD_JSON = [
    '{"id": 1.10, "big": 123456789012345678901234567890, "far": 1e400, "page": {"text": "a dog"}}',
    '  { "page" : {"text":"\\u0061 dog\\ud800"}, "s": "\\ud83d\\ude00", "s": "2" }  ',
    '{"page": {"text": null}, "tab": "a\\tb\\u2028", "nan": NaN}',
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tsv", Format.tsv),
        ("a.b.tsv.gz", Format.tsv),
        ("a.jsonl", Format.jsonl),
        ("a.jsonl.zst", Format.jsonl),
        ("a.json", Format.jsonl),
        ("a.txt", Format.text),
        ("a.tsv.txt.gz", Format.text),
        ("a.de", None),
        ("a.gz", None),
        ("tsv", None),
        ("-", None),
    ],
)
def test_the_name_of_a_file_tells_its_format(name: str, expected: Format | None) -> None:
    assert Format.of_file(Path(name)) is expected


# --- In ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "line", "text"),
    [
        (TEXT, 'a\tdog "x"\r', 'a\tdog "x"\r'),
        (TSV, "1\ta dog\tx", "a dog"),
        (TSV, "1\ta dog\r", "a dog"),
        (TSV, "\t", ""),
        (JSONL, ODD_JSON[0], "a dog"),
        (JSONL, ODD_JSON[1], "a dog\ufffd"),
        (JSONL, ODD_JSON[2], None),
        (JSONL, '{"page.text": "a dog", "page": {"text": "a cat"}}', "a dog"),
        (Layout(Format.jsonl, field="a.b.c"), '{"a": {"b.c": "a dog"}}', "a dog"),
        (JSONL, '{"page": {"text": "a\\nb"}}\r', "a b"),
        (JSONL, "  ", ""),
    ],
)
def test_the_text_is_found(layout: Layout, line: str, text: str | None) -> None:
    record = layout.read(line, 7, "in")
    assert (record.number, record.text) == (7, text)
    assert record.line.removesuffix("\r") == line.removesuffix("\r")


@pytest.mark.parametrize(
    ("layout", "line", "expected"),
    [
        (TSV, "one column", "in, line 7 has 1 columns; --column 1"),
        (TSV, "", "has 1 columns"),
        (JSONL, "{'page': 1}", "in, line 7 is not JSON"),
        (JSONL, '{"page": {"text": "a"', "is not JSON"),
        pytest.param(JSONL, "[" * 100_000, "is not JSON", id="deep"),
        pytest.param(JSONL, f'{{"page": {"9" * 5_000}}}', "is not JSON", id="digits"),
        (JSONL, '{"page": {"body": "a"}}', "has no field 'page.text'; there are 'body'; mend it, or correct --field"),
        (JSONL, '["a"]', "has no field"),
        pytest.param(JSONL, json.dumps("\ud800" * 1000), "has no field", id="surrogates"),
        (JSONL, '{"page": {"text": 3}}', "is of type int; it must be text"),
    ],
)
def test_a_line_without_text_is_one_line_that_names_it(layout: Layout, line: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        layout.read(line, 7, "in")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    str(caught.value).encode()


def test_a_header_names_the_columns() -> None:
    named = Layout(Format.tsv, column="en", header=True)
    layout = named.with_header("id\ten\tde\r", "in")
    assert (layout.column, layout.names) == (1, ("id", "en", "de"))
    assert layout.read("7\ta dog\tein Hund", 1, "in") == Record(1, "a dog", "7\ta dog\tein Hund")
    assert Layout(Format.tsv, column=2, header=True).with_header("id\ten\tde", "in").column == 2
    for header, expected in (
        (None, "in is empty; --header needs a first line with the names of the columns"),
        ("id\tde", "in, line 1 has no column 'en'; there are 'id', 'de'; correct --column"),
        ("en\ten", "in, line 1 names two columns 'en'; each needs a name of its own"),
    ):
        with pytest.raises(UserError, match=re.escape(expected)):
            named.with_header(header, "in")
    with pytest.raises(UserError, match="in, line 1 has 2 columns; --column 2"):
        Layout(Format.tsv, column=2, header=True).with_header("id\ten", "in")
    with pytest.raises(UserError, match="in, line 9 has 2 columns and the header 3; they must be as many"):
        layout.read("7\ta dog", 8, "in")


def test_an_array_is_no_json_lines() -> None:
    with pytest.raises(UserError, match=r"in, line 1 begins an array; .* jq -c '\.\[\]' in > in\.jsonl"):
        JSONL.read(' [{"page": 1},', 1, "in")


# --- Out --------------------------------------------------------------------------------------------------------------


def write(layout: Layout, output: Format, line: str, *, n_best: int = 1, with_scores: bool = False) -> str:
    translations = [BEST, SECOND][:n_best]
    return RecordWriter(layout, output, n_best, with_scores).write(layout.read(line, 7, "in"), translations)


def test_lists_of_moses_count_from_0_and_end_in_the_alignment_that_is_asked_for() -> None:
    record, first = Record(7, "a dog", "a dog"), "6 ||| ein Hund ||| LogProb= -1.1235 ||| -0.2500\n"
    assert RecordWriter(TEXT, Format.moses).write(record, [BEST, SECOND]) == first
    second = "6 ||| der Hund ||| LogProb= -2.0000 ||| -0.7500 ||| 0-0 1-1\n"
    assert RecordWriter(TEXT, Format.moses, 2, with_alignments=True).write(record, [SECOND]) == second
    assert RecordWriter(TEXT, Format.moses).is_numbered


def test_text() -> None:
    assert write(TEXT, Format.text, "a\tdog") == "ein Hund\n"
    assert write(TSV, Format.text, "1\ta dog", with_scores=True) == "-0.2500\tein Hund\n"
    assert write(JSONL, Format.text, ODD_JSON[0], n_best=2) == "7\t-0.2500\tein Hund\n7\t-0.7500\tder Hund\n"
    assert not RecordWriter(TEXT, Format.text).is_numbered
    assert RecordWriter(TEXT, Format.text, n_best=2).is_numbered
    assert not RecordWriter(TEXT, Format.jsonl, n_best=2).is_numbered


def test_columns_are_kept_and_their_number_is_the_same_for_all() -> None:
    assert write(TSV, Format.tsv, "1\ta dog\t\r") == "1\ta dog\t\tein Hund\n"
    assert write(TSV, Format.tsv, "1\ta", n_best=2, with_scores=True) == "1\ta\t-0.2500\tein Hund\t-0.7500\tder Hund\n"
    assert write(TEXT, Format.tsv, "a\tdog") == "a dog\tein Hund\n"
    assert write(JSONL, Format.tsv, ODD_JSON[1]) == "a dog\ufffd\tein Hund\n"
    few = RecordWriter(TSV, Format.tsv, n_best=3, with_scores=True).write(Record(1, "", "\t"), [BEST])
    assert few == "\t\t-0.2500\tein Hund\t\t\t\t\n"


def test_of_equal_texts_the_best_stays() -> None:
    again = Translation("ein Hund", -0.5, -1.5, ["▁ein", "▁H", "und"], [-0.5, -0.4, -0.3, -0.3])
    found, record = [BEST, again, SECOND], TSV.read("1\ta dog", 7, "in")
    text = RecordWriter(TSV, Format.text, n_best=2, distinct=True)
    assert text.write(record, found) == "7\t-0.2500\tein Hund\n7\t-0.7500\tder Hund\n"
    assert text.write(record, [BEST, again]) == "7\t-0.2500\tein Hund\n"
    columns = RecordWriter(TSV, Format.tsv, n_best=3, distinct=True)
    assert columns.write(record, found) == "1\ta dog\tein Hund\tder Hund\t\n"
    written = json.loads(RecordWriter(TSV, Format.jsonl, n_best=2, distinct=True).write(record, found))
    assert [one["translation"] for one in written["n_best"]] == ["ein Hund", "der Hund"]


def test_alignments_stand_behind_each_translation() -> None:
    record = TSV.read("1\ta", 7, "in")
    text = RecordWriter(TSV, Format.text, n_best=2, with_alignments=True).write(record, [BEST, SECOND])
    assert text == "7\t-0.2500\tein Hund\t\n7\t-0.7500\tder Hund\t0-0 1-1\n"
    columns = RecordWriter(TSV, Format.tsv, n_best=2, with_alignments=True)
    assert columns.write(record, [SECOND]) == "1\ta\tder Hund\t0-0 1-1\t\t\n"


def test_all_that_is_known_of_a_translation_is_in_the_object() -> None:
    written = json.loads(write(TEXT, Format.jsonl, "a\tdog\u2028", n_best=2))
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
    assert json.loads(write(TSV, Format.jsonl, "1\ta dog")) == {"columns": ["1", "a dog"]} | best


@pytest.mark.parametrize("line", ODD_JSON[:2])
def test_the_fields_of_an_object_stay_as_they_are_written(line: str) -> None:
    written = write(JSONL, Format.jsonl, line)
    assert written.endswith("}\n")
    assert written.count("\n") == 1
    assert written.startswith(line.strip().removesuffix("}").rstrip() + ', "translation": "ein Hund", ')
    added = json.loads(write(TEXT, Format.jsonl, ""))
    assert repr(json.loads(written)) == repr(json.loads(line) | {key: added[key] for key in list(added)[1:]})


def test_a_null_text_has_a_null_translation() -> None:
    line, nothing = '{"page": {"text": null}, "score": 7}', [Translation("", 0.0, 0.0, [], alignment=[])]
    record = JSONL.read(line, 7, "in")
    written = json.loads(RecordWriter(JSONL, Format.jsonl, n_best=2, with_alignments=True).write(record, nothing))
    added = ("translation", "score", "log_prob", "tokens", "token_log_probs", "alignment", "n_best")
    assert written == {"page": {"text": None}} | dict.fromkeys(added)
    assert RecordWriter(JSONL, Format.tsv, with_scores=True).write(record, nothing) == "\t\t\n"
    assert RecordWriter(JSONL, Format.text).write(record, nothing) == "\n"
    beside = Layout(Format.jsonl, field="translation.en")
    written = json.loads(
        RecordWriter(beside, Format.jsonl).write(beside.read('{"translation": {"en": null}}', 1, "in"), nothing)
    )
    assert written["translation"]["translation"] is written["translation"]["score"] is None


def test_fields_of_the_same_name_are_replaced_and_lone_surrogates_survive() -> None:
    again = write(JSONL, Format.jsonl, '{"page": {"text": "ü \\ud800"}, "score": "old", "n": 1}')
    assert again.isascii()
    assert json.loads(again)["page"] == {"text": "ü \ud800"}
    assert json.loads(again)["score"] == -0.25
    assert '"ü"' in write(JSONL, Format.jsonl, '{"page": {"text": "ü"}, "score": "old"}')
    field = Layout(Format.jsonl, field="x")
    assert write(field, Format.jsonl, '{"x": ""}').startswith('{"x": "", "translation"')


def test_a_blank_line_of_json_lines_stays_one() -> None:
    nothing = [Translation("", 0.0, 0.0, [])]
    assert RecordWriter(JSONL, Format.jsonl).write(JSONL.read(" ", 1, "in"), nothing) == "\n"
    assert RecordWriter(JSONL, Format.tsv).write(JSONL.read("", 1, "in"), nothing) == "\t\n"


def test_results_stand_beside_the_text_where_its_path_begins_with_the_name_of_one() -> None:
    layout = Layout(Format.jsonl, field="translation.en")
    line = '{"id": 1, "translation": {"en": "a dog", "de": "der Hund", "score": 3}, "score": 7}'
    written = json.loads(write(layout, Format.jsonl, line))
    assert written["id"] == 1 and written["score"] == 7
    inner = written["translation"]
    assert (inner["en"], inner["de"]) == ("a dog", "der Hund")
    assert (inner["translation"], inner["score"]) == ("ein Hund", -0.25)
    assert json.loads(write(layout, Format.jsonl, '{"translation": {"en": "a dog"}}'))["translation"]["en"] == "a dog"


def test_results_stand_beside_a_field_whose_name_has_a_dot() -> None:
    layout = Layout(Format.jsonl, field="translation.en")
    line = '{"translation.en": "a dog", "translation": "old"}'
    assert json.loads(write(layout, Format.jsonl, line))["translation"] == "ein Hund"
    layout = Layout(Format.jsonl, field="translation.en.text")
    inner = json.loads(write(layout, Format.jsonl, '{"translation": {"en.text": "a dog"}}'))["translation"]
    assert (inner["en.text"], inner["translation"]) == ("a dog", "ein Hund")


def test_a_dotted_field_of_plain_text_is_an_object_in_an_object() -> None:
    written = json.loads(write(Layout(Format.text, field="page.text"), Format.jsonl, "a dog"))
    assert written["page"] == {"text": "a dog"} and written["translation"] == "ein Hund"
    written = json.loads(write(Layout(Format.text, field="translation.en"), Format.jsonl, "a dog"))
    assert written["translation"]["en"] == "a dog" and written["translation"]["translation"] == "ein Hund"


def test_a_header_stays_and_names_what_is_added() -> None:
    layout = Layout(Format.tsv, 1, header=True).with_header("id\ten", "in")
    assert RecordWriter(layout, Format.tsv).header == "id\ten\ttranslation\n"
    several = RecordWriter(layout, Format.tsv, n_best=2, with_scores=True, with_alignments=True)
    added = "score\ttranslation\talignment\tscore_2\ttranslation_2\talignment_2"
    assert several.header == f"id\ten\t{added}\n"
    assert RecordWriter(layout, Format.text).header == RecordWriter(TSV, Format.tsv).header == ""
    assert RecordWriter(layout, Format.jsonl).header == ""
    assert json.loads(write(layout, Format.jsonl, "1\ta dog"))["columns"] == {"id": "1", "en": "a dog"}


def test_a_column_that_would_be_there_twice_is_refused() -> None:
    layout = Layout(Format.tsv, header=True).with_header("en\tscore\ttranslation", "in")
    with pytest.raises(UserError, match="has a column 'translation', which the output adds"):
        _ = RecordWriter(layout, Format.tsv).header
    with pytest.raises(UserError, match="has a column 'score'"):
        _ = RecordWriter(layout, Format.tsv, with_scores=True).header
    assert RecordWriter(layout, Format.text).header == ""
