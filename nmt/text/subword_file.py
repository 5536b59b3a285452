"""SentencePiece model files: their pieces read, and other pieces put in their place; and encoded sentences read.

SentencePiece's interface does not tell which pieces are user symbols and of which kind a model is, and cannot change
them; the file can. The package's own module for it is of no use here: it wants one certain version of protobuf. The
numbers are those of sentencepiece_model.proto and of sentencepiece.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

Algorithm = Literal["bpe", "unigram"]

SPACE = "\u2581"
"""How pieces write a space."""

_PIECES, _TRAINER, _NORMALIZER, _SELF_TEST = 1, 2, 3, 4
_PIECE_TEXT, _PIECE_SCORE, _PIECE_KIND = 1, 2, 3
_MODEL_TYPE = 3
_REPLACEMENTS, _RULE_FILE = 2, 6
_TOKENS, _TOKEN_ID, _TOKEN_BEGIN = 2, 2, 4
_VARINT, _LENGTH_DELIMITED, _FOUR_BYTES = 0, 2, 5


class PieceKind(IntEnum):
    """What a piece is for; the numbers are SentencePiece's."""

    ordinary = 1
    unknown = 2
    control = 3
    user_symbol = 4
    unused = 5
    byte = 6


@dataclass(frozen=True)
class Piece:
    """An entry of a subword model; its id is its place among all.

    text:  written form, `▁` for a space
    score: of bpe, the earlier a piece was merged the higher; of unigram, log-probability in nats
    """

    text: str
    score: float = 0.0
    kind: PieceKind = PieceKind.ordinary


def read_algorithm(model: bytes) -> Algorithm | None:
    """How a model cuts text; None when it is neither bpe nor unigram."""
    match _settings(model)[_TRAINER].get(_MODEL_TYPE, b"\x01"):
        case b"\x01":
            return "unigram"
        case b"\x02":
            return "bpe"
        case _:
            return None


def is_plain_bpe(model: bytes) -> bool:
    """Whether a model cuts text as bpe does and has no rules by which some of its characters stand for others."""
    settings = _settings(model)
    return settings[_TRAINER].get(_MODEL_TYPE) == b"\x02" and not settings[_NORMALIZER].get(_REPLACEMENTS)


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces of a model, in the order of their ids."""
    return [_read_piece(field.content) for field in _fields(model) if field.number == _PIECES]


def read_encoded(sentence: bytes) -> tuple[list[int], list[int]]:
    """The ids of a sentence's tokens, and the byte of its text where each begins; from a SentencePieceText message."""
    tokens = [
        {field.number: field.content for field in _fields(token.content)}
        for token in _fields(sentence)
        if token.number == _TOKENS
    ]
    ids, begins = ([_integer(token[number], 0)[0] for token in tokens] for number in (_TOKEN_ID, _TOKEN_BEGIN))
    return ids, begins


def with_pieces(model: bytes, pieces: Iterable[Piece]) -> bytes:
    """The same model with other pieces; samples by which it would test itself are left out."""
    written = b"".join(_write_bytes(_PIECES, _write_piece(piece)) for piece in pieces)
    kept = (field.raw for field in _fields(model) if field.number not in (_PIECES, _SELF_TEST))
    return written + b"".join(kept)


def without_rule_file(model: bytes) -> bytes:
    """The same model without the name of the file that its rules came from, which belongs to one machine."""
    written = b""
    for field in _fields(model):
        if field.number == _NORMALIZER:
            kept = (part.raw for part in _fields(field.content) if part.number != _RULE_FILE)
            written += _write_bytes(_NORMALIZER, b"".join(kept))
        else:
            written += field.raw
    return written


class _Field(NamedTuple):
    """A field of a Protocol Buffers message: its number, its content as it is written there, and all of its bytes."""

    number: int
    content: bytes
    raw: bytes


def _settings(model: bytes) -> dict[int, dict[int, bytes]]:
    """How a model was trained and how it takes text, by the numbers of these messages and of their fields."""
    messages = {field.number: field.content for field in _fields(model, but=_PIECES)}
    return {
        number: {field.number: field.content for field in _fields(messages.get(number, b""))}
        for number in (_TRAINER, _NORMALIZER)
    }


def _read_piece(message: bytes) -> Piece:
    fields = {field.number: field.content for field in _fields(message)}
    score = struct.unpack("<f", fields[_PIECE_SCORE])[0] if _PIECE_SCORE in fields else 0.0
    kind = PieceKind(fields.get(_PIECE_KIND, b"\x01")[0])
    return Piece(fields[_PIECE_TEXT].decode(), score, kind)


def _write_piece(piece: Piece) -> bytes:
    score = bytes([_PIECE_SCORE << 3 | _FOUR_BYTES]) + struct.pack("<f", piece.score)
    return _write_bytes(_PIECE_TEXT, piece.text.encode()) + score + bytes([_PIECE_KIND << 3 | _VARINT, piece.kind])


def _fields(message: bytes, but: int | None = None) -> Iterator[_Field]:
    """The fields of a message, but for those of one number."""
    place = 0
    while place < len(message):
        key, start = _integer(message, place)
        match key & 7:
            case 0:
                end = _integer(message, start)[1]
            case 1:
                end = start + 8
            case 5:
                end = start + 4
            case _:
                size, start = _integer(message, start)
                end = start + size
        if key >> 3 != but:
            yield _Field(key >> 3, message[start:end], message[place:end])
        place = end


def _integer(message: bytes, start: int) -> tuple[int, int]:
    """An integer of seven bits a byte, the lowest ones first, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[start]
        value |= (byte & 127) << shift
        start, shift = start + 1, shift + 7
        if byte < 128:
            return value, start


def _write_bytes(number: int, content: bytes) -> bytes:
    size, written = len(content), bytearray([number << 3 | _LENGTH_DELIMITED])
    while size > 127:
        written.append(size & 127 | 128)
        size >>= 7
    return bytes([*written, size]) + content
