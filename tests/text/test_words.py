"""Mapping from tokens to words, with real tokenizers."""

import io
import re
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from nmt.alignment.words import (
    drop_punctuation,
    format_links,
    link_words,
    words_as_given,
    words_as_printed,
    words_of_pieces,
    words_of_starts,
)
from nmt.recipe import TokenizerRecipe, UnicodeForm
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = [f"the old tree sees {word} cats quickly, a cat." for word in ("red", "green", "many", "no")] * 20
    recipe = TokenizerRecipe(vocab_size=320, user_symbols=("<web>",))
    return train_tokenizer(lines, recipe, tmp_path_factory.mktemp("words") / "tokenizer.model")


@pytest.mark.parametrize(
    ("line", "form", "words"),
    [
        ("ab  c", "NFC", [0, 0, 1]),
        ("", "NFC", []),
        ("a\u200bb \u200b c", "NFC", [0, 0, 2]),  # invisible characters are removed
        ("a\x00b c", "NFC", [0, 0, 1]),  # one word as given, two after normalization
        ("e\u0301 x", "NFC", [0, 1]),
        ("½ x", "NFKC", [0, 0, 0, 1]),
        ("\u2581a\u2581 b", "NFC", [0, 1]),  # SentencePiece treats this character as a space
    ],
)
def test_words_of_an_unnormalized_line(line: str, form: str, words: list[int]) -> None:
    assert words_as_given(line, form) == words  # type: ignore[arg-type]


def spelled(piece: str) -> bytes:
    """Return the bytes that a piece adds to a word."""
    if re.fullmatch("<0x..>", piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", "").encode()


def words_of_line(tokenizer: Tokenizer, line: str, form: UnicodeForm = "NFC") -> tuple[list[str], list[int | None]]:
    """Return the pieces of a line and the word index of each."""
    text = normalize(line, form)
    ids, starts = tokenizer.encode_with_starts(text)
    assert ids == tokenizer.encode(text)
    return tokenizer.pieces(ids), words_of_starts(text, starts, words_as_given(line, form))


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("abt \u2581\u3000é"), max_size=40))
def test_the_pieces_of_a_word_spell_it(tokenizer: Tokenizer, line: str) -> None:
    pieces, words = words_of_line(tokenizer, line)
    for index, word in enumerate(line.split()):
        found = b"".join(spelled(piece) for piece, own in zip(pieces, words, strict=True) if own == index)
        expected = normalize(word, "NFC").replace("\u2581", " ").split()
        assert found.decode() == "".join(expected)
    visible = [own for piece, own in zip(pieces, words, strict=True) if spelled(piece)]
    assert None not in visible
    assert visible == sorted(visible, key=lambda index: index or 0)


@pytest.fixture(scope="session", params=[True, False], ids=["bytes", "unknown"])
def foreign(request: pytest.FixtureRequest) -> Tokenizer:
    """A normalizing tokenizer, like those of Marian models, with byte pieces or with an unknown token."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the office has a final cat, 12 old trees and a fine ff."] * 20),
        model_writer=model,
        vocab_size=340 if request.param else 60,
        hard_vocab_limit=False,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        byte_fallback=request.param,
        user_defined_symbols=[">>fr<<"],
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        minloglevel=2,
    )
    return Tokenizer(model.getvalue(), Path("foreign.model"))


@pytest.mark.parametrize(
    "line",
    [
        "the o\ufb03ce has a \ufb01nal cat",  # ligatures are several letters
        "\uff54\uff48\uff45 \uff4f\uff4c\uff44 cat",  # full-width letters
        "the\u3000old\u3000\u3000cat",  # ideographic spaces
        "  the  old   cat ",
        "\u2460\u2461 old cats\u2026 \u00bd a cat",  # compatibility characters
        "a\u0301 cat e\u0301e\u0301 x\u0302\u0323 the",  # combining characters
        "\uff76\uff9e the cat",  # two characters become one
        "\ufdfa the cat",  # one character becomes several words
        "\U0001f600\U0001f600 the \u732b cat",  # no pieces
        ">>fr<< the cat",
        "a\u200bb \u200b c\u00ad the",
        "\u00b4 the \u00b4 cat",  # a space and a combining character
        "\u2581the\u2581 cat",
        "the \ud800 cat",
        "",
        "\u3000",
    ],
)
@pytest.mark.parametrize("form", ["none", "NFC", "NFKC"])
def test_pieces_of_a_normalizing_tokenizer_spell_their_word(foreign: Tokenizer, line: str, form: UnicodeForm) -> None:
    pieces, words = words_of_line(foreign, line, form)
    for index, word in enumerate(line.split()):
        found = [piece for piece, own in zip(pieces, words, strict=True) if own == index]
        alone, _ = words_of_line(foreign, word, form)
        assert b"".join(map(spelled, found)) == b"".join(map(spelled, alone))


@pytest.mark.slow
@given(st.lists(st.integers(4, 319), max_size=30))
def test_words_of_arbitrary_output_contain_their_pieces(tokenizer: Tokenizer, ids: list[int]) -> None:
    """Most tokens are bytes that spell invalid characters."""
    pieces, text = tokenizer.pieces(ids), tokenizer.decode(ids)
    words = words_of_pieces(pieces, words_as_printed(text))
    known = [word for word in words if word is not None]
    assert known == sorted(known)
    assert set(known) == set(range(len(text.split())))
    for piece, word in zip(pieces, words, strict=True):
        if not re.fullmatch("<0x..>|\u2581", piece):
            assert word is not None
            assert piece.strip("\u2581") in text.split()[word]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁a", "<0xC3>", "<0xA4>", "b", "▁c"], [0, 0, 0, 0, 1]),
        (["<0xC3>", "▁b"], [0, 1]),  # an incomplete character is one character
        (["▁a", "<0xE2>", "<0x80>", "<0xA8>", "b"], [0, 1, 1, 1, 1]),  # these bytes spell a line separator
        (["▁", "a", "▁", "▁b"], [0, 0, 1, 1]),
        (["▁a", "▁"], [0, None]),
        ([], []),
    ],
)
def test_pieces_belong_to_the_words_that_they_spell(pieces: list[str], words: list[int | None]) -> None:
    written = (spelled(piece) if piece[0] == "<" else piece.replace("\u2581", " ").encode() for piece in pieces)
    text = b"".join(written)
    assert words_of_pieces(pieces, words_as_printed(text.decode("utf-8", "replace"))) == words


@pytest.mark.parametrize(
    ("pieces", "words", "expected"),
    [
        (["▁the", "▁house", ",", "▁in"], [0, 1, 1, 2], [0, 1, None, 2]),
        (["▁„", "Haus", "“."], [0, 0, 0], [None, 0, None]),
        (["▁a", "▁,", "▁b"], [0, 1, 2], [0, 1, 2]),  # a word of its own
        (["▁", ".", "..", "▁5", "€"], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]),  # a symbol is no punctuation
        (["▁", "a", "<0xE2>", "▁"], [0, 0, 0, None], [None, 0, 0, None]),
    ],
)
def test_punctuation_at_a_word_is_not_aligned(
    pieces: list[str], words: list[int | None], expected: list[int | None]
) -> None:
    assert drop_punctuation(words, pieces) == expected


def test_words_are_aligned_if_any_of_their_tokens_are() -> None:
    assert link_words([2, 0, 0, 1], [0, 0, 1], [0, 0, 1, None]) == [(0, 0), (0, 1), (1, 0)]
    assert link_words([], [], [0, 1]) == []
    assert format_links([(0, 1), (12, 3)]) == "0-1 12-3"
    assert format_links([]) == ""
