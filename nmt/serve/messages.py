"""HTTP messages: schemas and parsing of request bodies, and JSON responses."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    Strict,
    ValidationError,
    model_validator,
)

from nmt.decode.glossary import split_forms
from nmt.keep.items import Kind
from nmt.recipe import requirement
from nmt.serve.documents import TextFormat
from nmt.serve.forms import MULTIPART, URL_ENCODED, media_type, parse_form, parse_query
from nmt.text.clean import valid_unicode
from nmt.text.json_fields import short_integer, unique_fields

_MAX_PHRASES = 100  # the cost of a step grows with required phrases, and in CTranslate2 with forbidden ones
_MAX_PHRASE = 1_000  # characters; more could block all other requests while phrases are compared
_MAX_PREFIX = 10_000
_MAX_FIELDS = 1_000  # of an object; listing 80,000 unknown fields as errors blocks all other requests for seconds
_MAX_BEAM_SIZE = 32  # time and memory of a request grow with it
# Descriptions of invalid fields, by the error types of pydantic, where those of recipes do not fit JSON.
_PROBLEMS = {
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
}


def _valid(value: object) -> object:
    """Replace lone surrogates, which JSON can express and UTF-8 cannot."""
    return valid_unicode(value) if isinstance(value, str) else value


def _text_or_texts(value: object) -> str | list[str]:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return [valid_unicode(text) for text in value]
    raise ValueError("must be a string or a list of strings")


def _sentence(value: object) -> str | tuple[str, str]:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return valid_unicode(value[0]), valid_unicode(value[1])
    raise ValueError("must be a sentence, or a pair of a sentence and its translation")


def _forms(value: object) -> str | list[str]:
    forms = _text_or_texts(value)
    texts = [forms] if isinstance(forms, str) else forms
    if len(texts) > _MAX_PHRASES or any(len(text) > _MAX_PHRASE for text in texts):
        raise ValueError(f"must be at most {_MAX_PHRASES} texts of at most {_MAX_PHRASE:,} characters")
    return forms


def _required(value: object) -> str | tuple[str, ...]:
    forms = _forms(value)
    for form in [forms] if isinstance(forms, str) else forms or [""]:
        _not_blank(form)
    return split_forms(forms) if isinstance(forms, str) else tuple(forms)


def _not_blank(phrase: str) -> str:
    if not phrase.strip():
        raise ValueError("must not be blank")
    return phrase


Text = Annotated[str, BeforeValidator(_valid)]
Texts = Annotated[str | list[str], PlainValidator(_text_or_texts, json_schema_input_type=str | list[str])]
Sentence = Annotated[str | tuple[str, str], PlainValidator(_sentence, json_schema_input_type=str | tuple[str, str])]
Forms = Annotated[str | list[str], PlainValidator(_forms, json_schema_input_type=str | list[str])]
Required = Annotated[str | tuple[str, ...], PlainValidator(_required, json_schema_input_type=str | list[str])]
ShortText = Annotated[str, Field(max_length=_MAX_PHRASE), BeforeValidator(_valid)]
Bias = Annotated[float, Strict(), Field(ge=-1_000.0, le=1_000.0)]
Phrase = Annotated[ShortText, AfterValidator(_not_blank)]
Phrases = Annotated[list[Phrase], Field(max_length=_MAX_PHRASES)]
# Strict, because JSON is typed: `true` is not a number, and "3" and "yes" are strings.
Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]


class LibreTranslateMessage(BaseModel):
    """Common fields of LibreTranslate's requests; unknown fields are ignored, and null means the default."""

    q: Texts
    api_key: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _remove_empty(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Remove options that are null or empty, which many clients send for options that they do not use."""
        return {name: value for name, value in fields.items() if value is not None and (value != "" or name == "q")}

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


class SentencesRequest(BaseModel):
    """Body of `POST /v1/sentences`. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    text: Texts

    @property
    def texts(self) -> list[str]:
        """The texts of `text`."""
        return [self.text] if isinstance(self.text, str) else self.text


class TranslateRequest(SentencesRequest):
    """Body of `POST /v1/translate`; the options apply to each text. `model` is optional if there is only one."""

    model: Text | None = None
    format: TextFormat = "text"
    n_best: Integer = Field(default=1, ge=1)
    beam_size: Integer | None = Field(default=None, ge=1, le=_MAX_BEAM_SIZE)
    length_alpha: Number | None = Field(default=None, ge=0.0, le=10.0)
    prefix: Text = Field(default="", max_length=_MAX_PREFIX)
    context: Annotated[list[Sentence], Field(max_length=_MAX_PHRASES)] = []
    partial_word: Flag = False
    alternatives: Flag = False
    required: Annotated[list[Required], Field(max_length=_MAX_PHRASES)] = []
    glossary: Annotated[list[tuple[ShortText, Forms]], Field(max_length=_MAX_PHRASES)] = []
    forbidden: Phrases = []
    preferred: Annotated[dict[Phrase, Bias], Field(max_length=_MAX_PHRASES)] = {}
    tag: Text | None = None
    keep: Annotated[list[Kind], FailFast()] = []  # a list of all errors could take a lot of memory
    alignments: Flag = False
    attention: Flag = False
    scores: Flag = False
    stream: Flag = False
    stream_tokens: Flag = False


class ScoreRequest(BaseModel):
    """Body of `POST /v1/score`: pairs of a source and its translation. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    model: Text | None = None
    pairs: Annotated[list[tuple[Text, Text]], FailFast()]


class JsonLine(JSONResponse):
    """A response of one line of JSON."""

    def render(self, content: Any) -> bytes:
        """Encode the content; lone surrogates become question marks."""
        return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "replace")


Message = TypeVar("Message", bound=BaseModel)


def parse_fields(content_type: str, query: bytes, body: bytes, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a request, unchecked; raises HTTPException if they cannot be parsed.

    Only LibreTranslate requests may be forms or have a query string. Native requests are always JSON, because curl
    sends all data with the content type of a form by default.
    """
    is_native = not issubclass(kind, LibreTranslateMessage)
    try:
        fields = _parse_json(body) if is_native else _parse_any(content_type, query, body)
    except (ValueError, RecursionError) as error:
        kinds = "a JSON object" if is_native else "a JSON object or a form"
        raise HTTPException(400, f"invalid request body: {error}; send {kinds}") from error
    if is_native and query:
        raise HTTPException(400, "the query string has no effect; send its fields in the JSON body")
    return fields


def check_fields(fields: dict[str, Any], kind: type[Message]) -> Message:
    """Return the message that has these fields; raises HTTPException if they are not valid."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]  # others may be many, and inputs long
        field = ".".join(str(part) for part in first["loc"] if part != "[key]").rstrip(". ") or "the name of a field"
        problem = _PROBLEMS.get(first["type"]) or f"must {requirement(first)}"
        if first["type"] == "value_error":
            problem = first["msg"].removeprefix("Value error, ")
        raise HTTPException(400, f"{field} {problem}; see the schema in /openapi.json") from error


def _parse_any(content_type: str, query: bytes, body: bytes) -> dict[str, Any]:
    """Parse a form or JSON, and the query string."""
    in_query: dict[str, Any] = dict(parse_query(query))
    is_form = media_type(content_type) in (URL_ENCODED, MULTIPART)
    if not body and (in_query or is_form):
        return in_query
    if media_type(content_type) == URL_ENCODED and body.lstrip().startswith(b"{"):  # curl's default for any data
        raise ValueError("it is JSON, but its content type is not application/json")
    in_body = parse_form(content_type, body) if is_form else _parse_json(body)
    for name in in_query.keys() & in_body.keys():
        raise ValueError(f"field {name!r} is also in the query string")
    return in_query | in_body


def _parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises ValueError for anything else."""
    fields = json.loads(body, object_pairs_hook=_few_fields, parse_int=short_integer, parse_constant=_not_json)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return fields


def _few_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; raises ValueError for repeated and for too many fields."""
    if len(pairs) > _MAX_FIELDS:
        raise ValueError(f"an object has more than {_MAX_FIELDS:,} fields")
    return unique_fields(pairs)


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def request_schema(kind: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a request body."""
    schema = {"schema": kind.model_json_schema()}
    content_types = ["application/json", URL_ENCODED, MULTIPART] if form else ["application/json"]
    content = dict.fromkeys(content_types, schema)
    return {"requestBody": {"required": True, "content": content}}
