"""Constraints of a single line in JSON Lines."""

import json
from typing import Any

import pytest

from nmt.decode.glossary import Term
from nmt.errors import UserError
from nmt.streams.records import Record, RecordReader

READER = RecordReader("jsonl")


def read(fields: dict[str, Any], reader: RecordReader = READER) -> Record:
    return reader.read(json.dumps({"text": "a"} | fields), 3, "in.jsonl")


def test_constraints_are_read_from_the_fields_of_a_line() -> None:
    record = read({"prefix": "a\nb", "required": ["x", ["y", "z"]], "forbidden": ["u"], "tag": "<web>"})
    assert (record.prefix, record.required, record.forbidden, record.tag) == ("a b", ("x", ("y", "z")), ("u",), "<web>")
    assert read({"required": ["x|y", "x |", ["x|y"], "|"]}).required == (("x", "y"), ("x",), ("x|y",), "|")
    terms = read({"glossary": [["dog", "Hund|Hunde"], ["cat", ["Katze", "Kater"]]]}).terms
    assert terms == (Term("dog", ("Hund", "Hunde")), Term("cat", ("Katze", "Kater")))


def test_null_and_the_field_of_the_text_are_not_constraints() -> None:
    nothing = dict.fromkeys(("prefix", "required", "forbidden", "tag", "glossary"))
    assert read(nothing) == Record(3, "a", json.dumps({"text": "a"} | nothing))
    record = read({"tag": "a dog"}, RecordReader("jsonl", field="tag"))
    assert (record.text, record.tag) == ("a dog", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"prefix": ["x"]},
        {"tag": 5},
        {"required": "x"},
        {"required": [3]},
        {"required": [[]]},
        {"required": ["x", [" "]]},
        {"forbidden": [""]},
        {"forbidden": [["x"]]},
        {"glossary": {"a": "b"}},
        {"glossary": [["a"]]},
        {"glossary": [["a", 1]]},
        {"glossary": [[1, "a"]]},
        {"glossary": [["", "a"]]},
        {"glossary": [["a", "b|"]]},
    ],
    ids=str,
)
def test_invalid_fields_are_errors_with_line_and_field(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(UserError, match=rf"^in.jsonl, line 3: field '{name}'[^\n;]*;[^\n;]*;[^\n;]*$"):
        read(fields)
