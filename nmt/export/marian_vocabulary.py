"""Import of Marian vocabularies: `vocab.json` maps the pieces of `source.spm` and `target.spm` to ids; see `marian`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.logs import warn
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.subword_file import (
    SPECIAL_PIECES,
    SPECIAL_TEXTS,
    Piece,
    PieceKind,
    read_algorithm,
    read_pieces,
    read_sentencepiece,
    with_pieces,
)
from nmt.text.tokenizer import Tokenizer

_LANGUAGE_CODE = re.compile(r">>.+<<")

_FEW_MISSING = 0.2  # fraction of a subword model's pieces that may be missing without a warning

_UNKNOWN_PENALTY = 10.0  # SentencePiece scores an unknown character this much below its lowest-scoring piece


@dataclass(frozen=True)
class Side:
    """The vocabulary of one language.

    subword_model: SentencePiece model with nmt's special tokens
    rows:          row of each piece in Marian's embeddings; None for a piece that Marian does not have
    is_nmt:        whether the vocabulary was exported by nmt
    """

    subword_model: bytes
    rows: list[int | None]
    is_nmt: bool


@dataclass(frozen=True)
class _Vocabulary:
    """Marian's token ids: of all pieces, and of the special tokens. size: number of embedding rows"""

    ids: dict[str, int]
    size: int
    pad: int
    unk: int
    bos: int
    eos: int


def marian_name(piece: str) -> str:
    """Return a piece as in Marian's vocabulary, where language codes have no preceding space."""
    return piece[1:] if piece.startswith("▁") and _LANGUAGE_CODE.fullmatch(piece[1:]) else piece


def read_sides(source: Path, config: Mapping[str, Any]) -> tuple[Side, Side]:
    """Read the source and target vocabularies. Raises UserError if the files do not match."""
    src_model, tgt_model = _read_model(source / "source.spm"), _read_model(source / "target.spm")
    src_vocab = tgt_vocab = _read_vocabulary(source / "vocab.json", config, int(config["vocab_size"]))
    if (source / "target_vocab.json").exists():
        tgt_size = int(config.get("decoder_vocab_size") or config["vocab_size"])
        tgt_vocab = _read_vocabulary(source / "target_vocab.json", config, tgt_size)
    for name, model, vocab in (("source.spm", src_model, src_vocab), ("target.spm", tgt_model, tgt_vocab)):
        _warn_of_missing_pieces(source / name, model, vocab)
    if _is_nmt(src_model, src_vocab) and _is_nmt(tgt_model, tgt_vocab):
        src_side = Side(src_model, list(range(src_vocab.size)), is_nmt=True)
        tgt_side = Side(tgt_model, list(range(tgt_vocab.size)), is_nmt=True)
        return src_side, tgt_side
    return _source_side(src_model, src_vocab), _target_side(tgt_model, tgt_vocab)


def _read_model(path: Path) -> bytes:
    model = read_sentencepiece(path)
    if read_algorithm(model) is None:
        raise UserError(f"{path} is neither a bpe nor a unigram model; nmt imports only these; choose another model")
    return model


def _read_vocabulary(path: Path, config: Mapping[str, Any], size: int) -> _Vocabulary:
    try:
        ids = {str(piece): int(token) for piece, token in json.loads(path.read_text(encoding="utf-8")).items()}
        pad, eos, bos = (int(config[name]) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"))
        unk = ids["<unk>"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} or config.json is not valid ({type(error).__name__}: {error}); they must map all pieces and <unk> "
            "to ids and define the pad, EOS and decoder start tokens; download them again"
        ) from error
    used = [*ids.values(), pad, eos, bos]
    if len(set(ids.values())) != len(ids) or min(used) < 0 or max(used) >= size:
        raise UserError(
            f"{path} must map each piece to a unique id below the vocabulary size {size}; download it again"
        )
    if len({pad, eos, unk}) < 3:
        raise UserError(
            f"{path.parent / 'config.json'} must have different ids for padding, EOS and <unk>; download it again"
        )
    return _Vocabulary(ids, size, pad, unk, bos, eos)


def _warn_of_missing_pieces(path: Path, model: bytes, vocab: _Vocabulary) -> None:
    """Warn if the vocabulary lacks many pieces of a subword model, which then probably belongs to another model."""
    pieces = [marian_name(piece.text) for piece in read_pieces(model) if piece.kind == PieceKind.ordinary]
    missing = sum(text not in vocab.ids for text in pieces)
    if missing > _FEW_MISSING * len(pieces):
        warn(
            f"the vocabulary lacks {missing:,} of {len(pieces):,} pieces of {path}, which become unknown tokens; if "
            "the file belongs to another model, download the one for this model"
        )


def _is_nmt(model: bytes, vocab: _Vocabulary) -> bool:
    """Return whether pieces and special tokens already have nmt's ids."""
    special = (vocab.pad, vocab.unk, vocab.bos, vocab.eos)
    if special != (PAD_ID, UNK_ID, BOS_ID, EOS_ID) or vocab.size != len(vocab.ids):
        return False
    if {marian_name(piece.text): i for i, piece in enumerate(read_pieces(model))} != vocab.ids:
        return False
    try:
        Tokenizer(model, Path("source.spm"))
    except UserError:
        return False
    return True


def _source_side(model: bytes, vocab: _Vocabulary) -> Side:
    """Keep all pieces, to preserve segmentation, and add language codes of `vocab.json`.

    Characters of `vocab.json` are added, too, unless the model encodes unknown characters as bytes.
    """
    subwords = [piece for piece in read_pieces(model) if piece.kind not in (PieceKind.control, PieceKind.unknown)]
    texts = {marian_name(piece.text) for piece in subwords} | SPECIAL_TEXTS
    lowest = min((piece.score for piece in subwords if piece.kind == PieceKind.ordinary), default=0.0)
    has_bytes = any(piece.kind == PieceKind.byte for piece in subwords)
    rare = [text for text in vocab.ids if len(text) == 1 and text not in texts and not has_bytes]
    codes = [text for text in vocab.ids if _LANGUAGE_CODE.fullmatch(text) and text not in texts]
    pieces = [*subwords, *(Piece(text, lowest - _UNKNOWN_PENALTY) for text in rare)]
    # Codes are at the beginning of a line, where SentencePiece adds a space.
    pieces += [Piece(f"▁{code}", kind=PieceKind.user_symbol) for code in codes]
    rows: list[int | None] = [vocab.pad, vocab.unk, vocab.bos, vocab.eos]
    rows += [vocab.ids.get(marian_name(piece.text), vocab.unk) for piece in subwords]
    rows += [vocab.ids[text] for text in (*rare, *codes)]
    return Side(with_pieces(model, [*SPECIAL_PIECES, *pieces]), rows, is_nmt=False)


def _target_side(model: bytes, vocab: _Vocabulary) -> Side:
    """Keep each row of Marian's output, with or without a piece; bytes without a row have probability 0."""
    piece_of = {piece.text: piece for piece in read_pieces(model) if piece.text not in SPECIAL_TEXTS}
    text_of = {token: text for text, token in vocab.ids.items()}
    rows: list[int | None] = [vocab.pad, vocab.unk, vocab.bos, vocab.eos]
    special = set(rows)
    pieces = list(SPECIAL_PIECES)
    if vocab.pad == vocab.bos:
        rows[PAD_ID] = None
    for row in range(vocab.size):
        if row in special:
            continue
        text = text_of.get(row, "")
        if not text or text in SPECIAL_TEXTS:
            text = f"<row {row}>"
        rows.append(row)
        pieces.append(piece_of.get(text, Piece(text, kind=PieceKind.unused)))
    # SentencePiece needs all bytes or none.
    texts = {piece.text for piece in pieces}
    lost_bytes = [piece for piece in piece_of.values() if piece.kind == PieceKind.byte and piece.text not in texts]
    return Side(with_pieces(model, [*pieces, *lost_bytes]), [*rows, *(None for _ in lost_bytes)], is_nmt=False)
