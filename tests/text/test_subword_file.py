"""Subword model files, compared with SentencePiece."""

from pathlib import Path

import pytest
import sentencepiece

from nmt.recipe import TokenizerRecipe
from nmt.text.subword_file import Piece, PieceKind, read_algorithm, read_pieces, with_pieces
from nmt.text.tokenizer import Tokenizer, train_tokenizer

LINES = [f"the {a} {b} sees the {c}" for a in ("old", "new") for b in ("cat", "dog") for c in ("house", "garden")] * 5


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    recipe = TokenizerRecipe(vocab_size=277, algorithm=request.param, user_symbols=("<2de>",))
    return train_tokenizer(LINES, recipe, tmp_path_factory.mktemp("tokenizer") / f"{request.param}.model")


def test_pieces_match_sentencepiece(tokenizer: Tokenizer) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    pieces, ids = read_pieces(tokenizer.model), range(processor.get_piece_size())
    assert read_algorithm(tokenizer.model) == tokenizer.path.stem
    assert [piece.text for piece in pieces] == [processor.id_to_piece(i) for i in ids]
    assert [piece.score for piece in pieces] == [processor.get_score(i) for i in ids]
    for kind, is_kind in {
        PieceKind.unknown: processor.is_unknown,
        PieceKind.control: processor.is_control,
        PieceKind.unused: processor.is_unused,
        PieceKind.byte: processor.is_byte,
    }.items():
        assert [piece.kind == kind for piece in pieces] == [is_kind(i) for i in ids]
    assert [piece.text for piece in pieces if piece.kind == PieceKind.user_symbol] == ["<2de>"]


def test_same_pieces_give_the_same_model(tokenizer: Tokenizer) -> None:
    pieces = read_pieces(tokenizer.model)
    again = with_pieces(tokenizer.model, pieces)
    assert read_pieces(again) == pieces
    assert Tokenizer(again, Path("again")).encode_batch(LINES) == tokenizer.encode_batch(LINES)


def test_pieces_can_be_removed_and_added(tokenizer: Tokenizer) -> None:
    pieces = [piece for piece in read_pieces(tokenizer.model) if piece.text != "▁house"]
    changed = [*pieces[:4], Piece("▁the▁old▁cat", kind=PieceKind.user_symbol), *pieces[4:], Piece("x" * 200, -1e30)]
    other = Tokenizer(with_pieces(tokenizer.model, changed), Path("other"))
    assert other.pieces(other.encode("the old cat"))[:1] == ["▁the▁old▁cat"]
    assert other.decode(other.encode("the old cat sees the house")) == "the old cat sees the house"
    assert "▁house" not in other.pieces(other.encode("the house"))
    assert other.pieces([other.vocab_size - 1]) == ["x" * 200]
