"""Parsing of LibreTranslate requests: query strings, URL-encoded forms and multipart forms (RFC 7578)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from urllib.parse import parse_qsl

URL_ENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

Fields = dict[str, str | list[str]]

_MAX_FIELDS = 1_000
_MAX_HEADER = 1_000  # the time to parse one is quadratic in its length
_CHARSETS = ("utf-8", "utf8", "us-ascii")


def parse_query(query: bytes) -> Fields:
    """Parse a query string; a repeated field becomes a list. Raises ValueError if it is invalid."""
    return _collect(_url_encoded(query))


def parse_form(content_type: str, body: bytes) -> Fields:
    """Parse a form of the type URL_ENCODED or MULTIPART; a repeated field becomes a list.

    CRLF in a value becomes a line feed, because browsers send line breaks in forms as CRLF. Raises ValueError if the
    form is invalid, incomplete or contains files.
    """
    is_multipart = media_type(content_type) == MULTIPART
    pairs = _multipart(content_type, body) if is_multipart else _url_encoded(body)
    return _collect((name, value.replace("\r\n", "\n")) for name, value in pairs)


def media_type(content_type: str) -> str:
    """Return the media type of a content type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def _collect(pairs: Iterable[tuple[str, str]]) -> Fields:
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _url_encoded(content: bytes) -> list[tuple[str, str]]:
    return parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")


def _multipart(content_type: str, body: bytes) -> Iterator[tuple[str, str]]:
    boundary = _headers(f"content-type: {content_type}").get_boundary()
    if not boundary:
        raise ValueError("the content type has no boundary")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), _MAX_FIELDS + 2)
    if len(parts) > _MAX_FIELDS + 1:
        raise ValueError(f"the form has more than {_MAX_FIELDS:,} fields")
    for part in parts:
        if part.startswith(b"--"):
            return
        yield _field(part)
    raise ValueError("the form has no closing boundary, so it is incomplete")


def _field(part: bytes) -> tuple[str, str]:
    """Return the name and value of a part of a multipart form."""
    head, separator, value = part.partition(b"\r\n\r\n")
    headers = _headers(head.decode().lstrip())
    name = headers.get_param("name", header="content-disposition")
    file = headers.get_param("filename", header="content-disposition")
    if not separator or name is None:
        raise ValueError("a part of the form has no name")
    name = collapse_rfc2231_value(name)
    if file is not None:
        raise ValueError(f"field {name!r} is a file")
    charset = headers.get_content_charset("utf-8")
    encoding = str(headers.get("content-transfer-encoding", "8bit")).strip().lower()
    if charset not in _CHARSETS or encoding not in ("7bit", "8bit", "binary"):
        raise ValueError(f"field {name!r} has encoding {charset}, {encoding}; it must be UTF-8")
    return name, value.decode()


def _headers(head: str) -> Message:
    if len(head) > _MAX_HEADER:
        raise ValueError(f"a header of the form has more than {_MAX_HEADER:,} characters")
    return HeaderParser().parsestr(head)
