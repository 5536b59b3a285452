"""HTTP messages: schemas and parsing of request bodies, and JSON responses."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    ValidationError,
)

from nmt.keep.items import Kind
from nmt.serve.documents import TextFormat
from nmt.text.clean import valid_unicode

FORM = "application/x-www-form-urlencoded"

_MAX_FORM_FIELDS = 1_000
_MAX_PHRASES = 100  # each step of the search checks all forbidden phrases
_MAX_BEAM_SIZE = 32  # time and memory of a request grow with it


def _valid(value: object) -> object:
    """Replace lone surrogates, which JSON can express and UTF-8 cannot."""
    return valid_unicode(value) if isinstance(value, str) else value


def _text_or_texts(value: object) -> str | list[str]:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return [valid_unicode(text) for text in value]
    raise ValueError("must be a string or a list of strings")


def _not_blank(phrase: str) -> str:
    if not phrase.strip():
        raise ValueError("must have more than white space")
    return phrase


Text = Annotated[str, BeforeValidator(_valid)]
Texts = Annotated[str | list[str], PlainValidator(_text_or_texts, json_schema_input_type=str | list[str])]
Bias = Annotated[float, Strict(), Field(ge=-1_000.0, le=1_000.0)]
Phrase = Annotated[str, AfterValidator(_not_blank), BeforeValidator(_valid)]
Phrases = Annotated[list[Phrase], Field(max_length=_MAX_PHRASES)]
# JSON has types: true is no number, and "3" and "yes" are texts.
Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]


class LibreTranslateMessage(BaseModel):
    """Fields of all requests that LibreTranslate defines; unknown ones are ignored."""

    q: Texts
    api_key: Text = ""

    @property
    def texts(self) -> list[str]:
        """The texts of `q`."""
        return [self.q] if isinstance(self.q, str) else self.q


class LibreTranslateRequest(LibreTranslateMessage):
    """Body of `POST /translate`."""

    source: Text
    target: Text
    format: Text = "text"
    alternatives: int = Field(default=0, ge=0)


class DetectRequest(LibreTranslateMessage):
    """Body of `POST /detect`."""


class NativeRequest(BaseModel):
    """Fields of all native requests; `model` may be omitted if there is only one. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    model: Text | None = None


class TranslateRequest(NativeRequest):
    """Body of `POST /v1/translate`; the options apply to each text."""

    text: Texts
    format: TextFormat = "text"
    n_best: Integer = Field(default=1, ge=1)
    beam_size: Integer | None = Field(default=None, ge=1, le=_MAX_BEAM_SIZE)
    length_alpha: Number | None = Field(default=None, ge=0.0, le=10.0)
    prefix: Text = ""
    context: Annotated[list[Text | tuple[Text, Text]], Field(max_length=_MAX_PHRASES)] = []
    partial_word: Flag = False
    alternatives: Flag = False
    required: Phrases = []
    glossary: Annotated[list[tuple[Text, Text | list[Text]]], Field(max_length=_MAX_PHRASES)] = []
    forbidden: Phrases = []
    preferred: Annotated[dict[Phrase, Bias], Field(max_length=_MAX_PHRASES)] = {}
    tag: Text | None = None
    keep: list[Kind] = []
    alignments: Flag = False
    attention: Flag = False
    scores: Flag = False
    stream: Flag = False
    stream_tokens: Flag = False


class ScoreRequest(NativeRequest):
    """Body of `POST /v1/score`: pairs of a source and its translation."""

    pairs: list[tuple[Text, Text]]


class JsonLine(JSONResponse):
    """A response of one line of JSON."""

    def render(self, content: Any) -> bytes:
        """Encode the content; lone surrogates become question marks."""
        return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "replace")


Message = TypeVar("Message", bound=BaseModel)


def parse_message(content_type: str, body: bytes, kind: type[Message]) -> Message:
    """Parse a request body; raises HTTPException if it is not valid.

    Only LibreTranslate requests may be forms. Native requests are always JSON, because curl declares any data a form.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        is_form = media_type == FORM and issubclass(kind, LibreTranslateMessage)
        fields = _parse_form(body) if is_form else json.loads(body)
    except (ValueError, RecursionError) as error:
        kinds = "a JSON object or a URL-encoded form" if issubclass(kind, LibreTranslateMessage) else "a JSON object"
        raise HTTPException(400, f"invalid request body: {error}; send {kinds}") from error
    if not isinstance(fields, dict):
        raise HTTPException(400, "the request body is not a JSON object; send one")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        raise HTTPException(400, f"{field}: {problem}; see the schema in /openapi.json") from error


def _parse_form(body: bytes) -> dict[str, str | list[str]]:
    """Parse a URL-encoded form; repeated fields become lists."""
    fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS, errors="strict")
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def request_schema(kind: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a request body."""
    schema = {"schema": kind.model_json_schema()}
    content = {"application/json": schema} | ({FORM: schema} if form else {})
    return {"requestBody": {"required": True, "content": content}}
