"""SentencePiece files: reads and replaces the pieces of a model, and reads encoded sentences.

SentencePiece's interface does not expose the algorithm of a model, and cannot change its pieces. Its protobuf module
needs a version of protobuf that is at least as new as its generated code, so this module parses the messages itself.
The field numbers are those of sentencepiece_model.proto and sentencepiece.proto.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple

import sentencepiece

from nmt.errors import UserError
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.lines import unreadable

Algorithm = Literal["bpe", "unigram"]
_ALGORITHMS: dict[bytes, Algorithm] = {b"\x01": "unigram", b"\x02": "bpe"}  # by SentencePiece's model type

SPACE = "\u2581"
"""The character for a space in pieces."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")

_PIECES, _TRAINER, _NORMALIZER, _SELF_TEST = 1, 2, 3, 4
_PIECE_TEXT, _PIECE_SCORE, _PIECE_KIND = 1, 2, 3
_MODEL_TYPE, _COVERAGE, _MAX_LINE_BYTES = 3, 10, 18
_UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 40, 41, 42, 43
_SPECIAL_NAMES = (45, 46, 47, 48)
_CHARACTER_MAP, _RULE_FILE = 2, 6
_TOKENS, _TOKEN_ID, _TOKEN_BEGIN = 2, 2, 4
_VARINT, _LENGTH_DELIMITED, _FOUR_BYTES = 0, 2, 5


class PieceKind(IntEnum):
    """The type of a piece, numbered as in SentencePiece."""

    ordinary = 1
    unknown = 2
    control = 3
    user_symbol = 4
    unused = 5
    byte = 6


@dataclass(frozen=True)
class Piece:
    """An entry of a subword model. Its index is its token id.

    text:  piece string, with `▁` for a space
    score: bpe: decreases with the order of merges; unigram: log-probability in nats
    """

    text: str
    score: float = 0.0
    kind: PieceKind = PieceKind.ordinary


SPECIAL_PIECES = (
    Piece("<pad>", kind=PieceKind.control),
    Piece("<unk>", kind=PieceKind.unknown),
    Piece("<s>", kind=PieceKind.control),
    Piece("</s>", kind=PieceKind.control),
)
"""The special tokens of this project, in the order of their ids."""
SPECIAL_TEXTS = frozenset(piece.text for piece in SPECIAL_PIECES)


def spell(piece: str) -> bytes:
    """Return the UTF-8 bytes that a piece adds to a text; a byte piece adds one byte."""
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace(SPACE, " ").encode()


def read_sentencepiece(path: Path) -> bytes:
    """Read a model that another program trained; raise UserError if it is not a SentencePiece model."""
    try:
        model = path.read_bytes()
        if not model:
            raise ValueError  # SentencePiece ignores an empty model
        sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{path} is not a SentencePiece model; it must be one; correct the path or the file") from error
    except OSError as error:
        raise unreadable(path, error) from error
    return model


def read_algorithm(model: bytes) -> Algorithm | None:
    """Return the algorithm of a model; None if it is neither bpe nor unigram."""
    return _ALGORITHMS.get(_settings(model)[_TRAINER].get(_MODEL_TYPE, b"\x01"))


def has_whole_words(model: bytes) -> bool:
    """Return whether the pieces of a model are words (SentencePiece's model type `word`)."""
    return _settings(model)[_TRAINER].get(_MODEL_TYPE) == b"\x03"


def read_coverage(model: bytes) -> float:
    """Return the fraction of characters that the vocabulary covers."""
    content = _settings(model)[_TRAINER].get(_COVERAGE)
    return 1.0 if content is None else round(struct.unpack("<f", content)[0], 6)


def is_plain_bpe(model: bytes) -> bool:
    """Return whether a model is bpe and does not normalize characters."""
    return read_algorithm(model) == "bpe" and not _settings(model)[_NORMALIZER].get(_CHARACTER_MAP)


def read_pieces(model: bytes) -> list[Piece]:
    """Return the pieces of a model, in the order of their ids."""
    return [_read_piece(field.content) for field in _fields(model) if field.number == _PIECES]


def read_encoded(sentence: bytes) -> tuple[list[int], list[int]]:
    """Parse a SentencePieceText message; return the token ids and the byte offset of each token in the text."""
    tokens = [_by_number(token.content) for token in _fields(sentence) if token.number == _TOKENS]
    ids = [_integer(token[_TOKEN_ID], 0)[0] for token in tokens]
    offsets = [_integer(token[_TOKEN_BEGIN], 0)[0] for token in tokens]
    return ids, offsets


def with_pieces(model: bytes, pieces: Iterable[Piece]) -> bytes:
    """Return the model with its pieces replaced, and without its self-test samples."""
    written = b"".join(_write_bytes(_PIECES, _write_piece(piece)) for piece in pieces)
    kept = (field.raw for field in _fields(model) if field.number not in (_PIECES, _SELF_TEST))
    return written + b"".join(kept)


def with_special_pieces(model: bytes) -> bytes:
    """Return the model with `SPECIAL_PIECES` at the beginning, instead of its own special and other control tokens.

    Text is segmented as before, except that the text of a special token is never a token. A model of this project stays
    the same.
    """
    pieces = read_pieces(model)
    others = [piece for piece in pieces if piece.kind not in (PieceKind.control, PieceKind.unknown)]
    if pieces == [*SPECIAL_PIECES, *others]:
        return model
    others = [piece for piece in others if piece.text not in SPECIAL_TEXTS]
    ids = {_UNK_ID: UNK_ID, _BOS_ID: BOS_ID, _EOS_ID: EOS_ID, _PAD_ID: PAD_ID}
    written = b"".join(_write_integer(number << 3 | _VARINT) + _write_integer(value) for number, value in ids.items())
    model = with_pieces(model, [*SPECIAL_PIECES, *others])
    return _with_settings(model, _TRAINER, without={*ids, *_SPECIAL_NAMES}, added=written)


def without_unused_settings(model: bytes) -> bytes:
    """Return the model without the path of its normalization rules and the maximum length of training lines.

    The path depends on the machine. Without the maximum, the same text gives the same bytes as in earlier versions.
    """
    model = _with_settings(model, _TRAINER, without={_MAX_LINE_BYTES})
    return _with_settings(model, _NORMALIZER, without={_RULE_FILE})


def _with_settings(model: bytes, message: int, without: Container[int], added: bytes = b"") -> bytes:
    """Return the model without some fields of a message, and with other fields appended to it."""
    written = []
    for field in _fields(model):
        kept = (part.raw for part in _fields(field.content) if part.number not in without)
        is_changed = field.number == message
        written.append(_write_bytes(message, b"".join(kept) + added) if is_changed else field.raw)
    return b"".join(written)


class _Field(NamedTuple):
    """A field of a protobuf message. `raw` includes its key and length."""

    number: int
    content: bytes
    raw: bytes


def _settings(model: bytes) -> dict[int, dict[int, bytes]]:
    """Return the fields of the trainer and normalizer messages, by message and field number."""
    messages = _by_number(model, skip=_PIECES)
    return {number: _by_number(messages.get(number, b"")) for number in (_TRAINER, _NORMALIZER)}


def _by_number(message: bytes, skip: int | None = None) -> dict[int, bytes]:
    """Return the contents of the fields of a message; see `_fields`."""
    return {field.number: field.content for field in _fields(message, skip)}


def _read_piece(message: bytes) -> Piece:
    fields = _by_number(message)
    score = struct.unpack("<f", fields[_PIECE_SCORE])[0] if _PIECE_SCORE in fields else 0.0
    kind = PieceKind(fields.get(_PIECE_KIND, b"\x01")[0])
    return Piece(fields[_PIECE_TEXT].decode(), score, kind)


def _write_piece(piece: Piece) -> bytes:
    score = bytes([_PIECE_SCORE << 3 | _FOUR_BYTES]) + struct.pack("<f", piece.score)
    return _write_bytes(_PIECE_TEXT, piece.text.encode()) + score + bytes([_PIECE_KIND << 3 | _VARINT, piece.kind])


def _fields(message: bytes, skip: int | None = None) -> Iterator[_Field]:
    """Yield the fields of a message, except those numbered `skip`."""
    position = 0
    while position < len(message):
        key, start = _integer(message, position)
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
        if key >> 3 != skip:
            yield _Field(key >> 3, message[start:end], message[position:end])
        position = end


def _integer(message: bytes, start: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte, low bits first); return it and the position after it."""
    value = shift = 0
    while True:
        byte = message[start]
        value |= (byte & 127) << shift
        start, shift = start + 1, shift + 7
        if byte < 128:
            return value, start


def _write_bytes(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _write_integer(len(content)) + content


def _write_integer(value: int) -> bytes:
    """Encode a varint; see `_integer`."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])
