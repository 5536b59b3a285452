"""The vocabulary of a Marian model: `vocab.json` numbers what `source.spm` and `target.spm` cut; see `marian`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from nmt.recipe import UserError
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.subword_file import Piece, PieceKind, read_algorithm, read_pieces, with_pieces
from nmt.text.tokenizer import Tokenizer

# The special tokens, in the order of their numbers.
_SPECIAL = (
    Piece("<pad>", kind=PieceKind.control),
    Piece("<unk>", kind=PieceKind.unknown),
    Piece("<s>", kind=PieceKind.control),
    Piece("</s>", kind=PieceKind.control),
)
_SPECIAL_TEXTS = frozenset(piece.text for piece in _SPECIAL)
_LANGUAGE_CODE = re.compile(r">>.+<<")

# By so much an unknown character is less probable than any piece, to SentencePiece.
_UNKNOWN_PENALTY = 10.0


@dataclass(frozen=True)
class Side:
    """One language of an imported model.

    subword_model: SentencePiece model with our special tokens
    rows:          for each of its pieces the row of Marian's embeddings; None for one that Marian does not have
    is_ours:       whether the model and its numbers come from nmt
    """

    subword_model: bytes
    rows: list[int | None]
    is_ours: bool


@dataclass(frozen=True)
class _Numbers:
    """Marian's numbers of pieces, and of those that have a part to play."""

    of: dict[str, int]
    rows: int
    pad: int
    unknown: int
    begin: int
    end: int


def marian_name(piece: str) -> str:
    """How Marian's numbering calls a piece of ours: as it is, but a language code without the space before it."""
    return piece[1:] if piece.startswith("▁") and _LANGUAGE_CODE.fullmatch(piece[1:]) else piece


def read_sides(source: Path, config: Mapping[str, Any]) -> tuple[Side, Side]:
    """Source and target side of the model in a directory; raises UserError for files that do not fit together."""
    src_model, tgt_model = _read_model(source / "source.spm"), _read_model(source / "target.spm")
    src_numbers = _read_numbers(source / "vocab.json", config, int(config["vocab_size"]))
    tgt_numbers = src_numbers
    if (source / "target_vocab.json").exists():
        tgt_rows = int(config.get("decoder_vocab_size") or config["vocab_size"])
        tgt_numbers = _read_numbers(source / "target_vocab.json", config, tgt_rows)
    if _is_ours(src_model, src_numbers) and _is_ours(tgt_model, tgt_numbers):
        return Side(src_model, [*range(src_numbers.rows)], True), Side(tgt_model, [*range(tgt_numbers.rows)], True)
    return _source_side(src_model, src_numbers), _target_side(tgt_model, tgt_numbers)


def _read_model(path: Path) -> bytes:
    model = path.read_bytes()
    try:
        sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{path} is no SentencePiece model; it must be as it was made; download it again") from error
    if read_algorithm(model) is None:
        raise UserError(f"{path} is neither a bpe nor a unigram model; only these can be imported; take another model")
    return model


def _read_numbers(path: Path, config: Mapping[str, Any], rows: int) -> _Numbers:
    try:
        numbers = {str(piece): int(number) for piece, number in json.loads(path.read_text(encoding="utf-8")).items()}
        special = [int(config[name]) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")]
        unknown = numbers["<unk>"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} and config.json must number all pieces, <unk> among them, and name pad, end and start token "
            f"({type(error).__name__}: {error}); download them again"
        ) from error
    used = [*numbers.values(), *special]
    if len(set(numbers.values())) != len(numbers) or min(used) < 0 or max(used) >= rows:
        raise UserError(
            f"{path} must give each piece a number of its own below {rows}, the vocabulary size; download it again"
        )
    pad, end, begin = special
    return _Numbers(numbers, rows, pad, unknown, begin, end)


def _is_ours(model: bytes, numbers: _Numbers) -> bool:
    """Whether pieces and special tokens have our numbers already."""
    special = (numbers.pad, numbers.unknown, numbers.begin, numbers.end)
    if special != (PAD_ID, UNK_ID, BOS_ID, EOS_ID) or numbers.rows != len(numbers.of):
        return False
    if {marian_name(piece.text): i for i, piece in enumerate(read_pieces(model))} != numbers.of:
        return False
    try:
        Tokenizer(model, Path("source.spm"))
    except UserError:
        return False
    return True


def _source_side(model: bytes, numbers: _Numbers) -> Side:
    """All pieces of the model, so that it cuts as it did, and characters and language codes that only Marian has."""
    own = [piece for piece in read_pieces(model) if piece.kind not in (PieceKind.control, PieceKind.unknown)]
    texts = {marian_name(piece.text) for piece in own} | _SPECIAL_TEXTS
    lowest = min((piece.score for piece in own if piece.kind == PieceKind.ordinary), default=0.0)
    rare = [text for text in numbers.of if len(text) == 1 and text not in texts]
    codes = [text for text in numbers.of if _LANGUAGE_CODE.fullmatch(text) and text not in texts]
    pieces = [*own, *(Piece(text, lowest - _UNKNOWN_PENALTY) for text in rare)]
    # A code stands at the beginning of a line, where SentencePiece puts a space.
    pieces += [Piece(f"▁{code}", kind=PieceKind.user_symbol) for code in codes]
    rows: list[int | None] = [numbers.pad, numbers.unknown, numbers.begin, numbers.end]
    rows += [numbers.of.get(marian_name(piece.text), numbers.unknown) for piece in own]
    rows += [numbers.of[text] for text in (*rare, *codes)]
    return Side(with_pieces(model, [*_SPECIAL, *pieces]), rows, is_ours=False)


def _target_side(model: bytes, numbers: _Numbers) -> Side:
    """Every row of Marian's output once, whether or not a piece of the model stands for it."""
    own = {piece.text: piece for piece in read_pieces(model) if piece.text not in _SPECIAL_TEXTS}
    text_of = {number: text for text, number in numbers.of.items()}
    rows: list[int | None] = [numbers.pad, numbers.unknown, numbers.begin, numbers.end]
    special, pieces = set(rows), list(_SPECIAL)
    if numbers.pad == numbers.begin:
        rows[PAD_ID] = None
    for number in range(numbers.rows):
        if number in special:
            continue
        text = text_of.get(number, "")
        if not text or text in _SPECIAL_TEXTS:
            text = f"<row {number}>"
        rows.append(number)
        pieces.append(own.get(text, Piece(text, kind=PieceKind.unused)))
    return Side(with_pieces(model, pieces), rows, is_ours=False)
