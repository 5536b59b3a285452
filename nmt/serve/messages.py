"""What clients send and get: the fields of each request, read from JSON or a form, and answers of one line of JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from nmt.text.clean import valid_unicode

FORM = "application/x-www-form-urlencoded"

_MOST_FIELDS_OF_FORM = 1_000
# What no output holds is looked for at each step of the search.
_MOST_PHRASES = 100


def _valid(value: object) -> object:
    """JSON can spell lone surrogates, which no encoding can hold."""
    return valid_unicode(value) if isinstance(value, str) else value


def _text_or_texts(value: object) -> str | list[str]:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [valid_unicode(one) for one in value]
    raise ValueError("it must be a string or a list of strings")


Text = Annotated[str, BeforeValidator(_valid)]
Texts = Annotated[str | list[str], PlainValidator(_text_or_texts, json_schema_input_type=str | list[str])]
Phrases = Annotated[list[Text], Field(max_length=_MOST_PHRASES)]


class LibreTranslateRequest(BaseModel):
    """`POST /translate`, as LibreTranslate has it; fields that are not listed are ignored."""

    q: Texts
    source: Text
    target: Text
    format: Text = "text"
    alternatives: int = Field(default=0, ge=0)
    api_key: Text = ""


class NativeRequest(BaseModel):
    """What requests of our own have in common: no unknown field, and a model by its name, or the only one."""

    model_config = ConfigDict(extra="forbid")

    model: Text | None = None


class TranslateRequest(NativeRequest):
    """`POST /v1/translate`; what is asked for holds for each text."""

    text: Texts
    n_best: int = Field(default=1, ge=1)
    prefix: Text = ""
    required: Phrases = []
    forbidden: Phrases = []
    tag: Text | None = None
    alignments: bool = False
    scores: bool = False


class ScoreRequest(NativeRequest):
    """`POST /v1/score`: pairs of a source and its translation."""

    pairs: list[tuple[Text, Text]]


class JsonLine(JSONResponse):
    """An answer of one line of JSON."""

    def render(self, content: Any) -> bytes:
        """The bytes of the answer, with a question mark for what UTF-8 cannot hold."""
        return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "replace")


Message = TypeVar("Message", bound=BaseModel)


def parse_message(content_type: str, body: bytes, kind: type[Message]) -> Message:
    """The request that a body holds; HTTPException where it holds none.

    It is JSON, except for LibreTranslate a form, if the content type says so: curl says so of any data.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        is_form = media_type == FORM and kind is LibreTranslateRequest
        fields = _read_form(body) if is_form else json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not valid: {error}; it must be a JSON object; correct it") from error
    if not isinstance(fields, dict):
        raise HTTPException(400, "the body is no JSON object; it must be one; correct it")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        wrong = first["msg"].removeprefix("Value error, ")
        raise HTTPException(400, f"{place}: {wrong}; /openapi.json lists the fields; correct it") from error


def _read_form(body: bytes) -> dict[str, str | list[str]]:
    """The fields of a form; one that is given several times is a list."""
    fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS_OF_FORM, errors="strict")
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def request_schema(kind: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """What the OpenAPI description says of the body of a request."""
    schema = {"schema": kind.model_json_schema()}
    content = {"application/json": schema} | ({FORM: schema} if form else {})
    return {"requestBody": {"required": True, "content": content}}
