"""Word-by-word encoding compared with SentencePiece on whole sentences, and operations on encoded sentences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data import encoding
from nmt.data.encoding import SentenceEncoder
from nmt.data.store import Sentences
from nmt.recipe import TokenizerRecipe
from nmt.text.clean import normalize
from nmt.text.subword_file import SPACE, Piece, PieceKind, read_pieces, with_pieces
from nmt.text.tokenizer import Tokenizer, train_tokenizer

LINES = [f"the {a} {b} sees the {c}" for a in ("old", "new") for b in ("cat", "dog") for c in ("house", "garden")] * 5
ODD = ["", "\u2581", "\u2581\u2581 a", "a \u2581 b", "b\u2581", "<web>", "<web>the", "the<web> cat a,b a,", "<s> </s>"]
ODD += ["漢字 größer \U0001f600", "x" * 300, "\ufffd", "thethethe catcat", "\u00ad", "e\u0301", "<0x41> <unk>", "a  b "]


def trained(folder: Path, algorithm: str) -> Tokenizer:
    symbols = ("<web>", "a,b", "ca", "\u2581hou")
    recipe = TokenizerRecipe(vocab_size=278, algorithm=algorithm, user_symbols=symbols)
    return train_tokenizer(LINES, recipe, folder / f"{algorithm}.model")


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return trained(tmp_path_factory.mktemp("tokenizer"), request.param)


def lists(sentences: Sentences) -> list[list[int]]:
    return [part.tolist() for part in np.split(sentences.tokens, np.cumsum(sentences.lengths))[:-1]]


def sentences_of(ids: list[list[int]]) -> Sentences:
    lengths = np.array([len(sentence) for sentence in ids], dtype=np.int32)
    tokens = np.array([token for sentence in ids for token in sentence], dtype=np.uint16)
    return Sentences(tokens, lengths, lengths + np.int32(7))


SYLLABLE = st.sampled_from(["the", "cat", "hou", "se", "<web>", "a,b", "a,", "ö", "漢", "\u2581", "x", "."])
WORD = st.lists(SYLLABLE, max_size=4).map("".join)
TEXT = st.text(max_size=30) | st.lists(WORD, max_size=6).map(" ".join) | st.sampled_from([*ODD, *LINES[:8]])


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.lists(TEXT, max_size=5), max_size=3), st.sampled_from(["NFC", "none"]))
def test_encoder_matches_sentencepiece(tokenizer: Tokenizer, batches: list[list[str]], form: Any) -> None:
    encoder = SentenceEncoder(tokenizer)
    for batch in batches:
        texts = [normalize(text, form) for text in batch]
        sentences = encoder(texts)
        assert lists(sentences) == [tokenizer.encode(text) for text in texts]
        assert sentences.words.tolist() == [len(text.split()) for text in texts]
        assert sentences.tokens.dtype == np.uint16


def test_each_word_is_segmented_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained(tmp_path, "bpe")
    segmented: list[str] = []
    encode_batch = tokenizer.encode_batch

    def record(texts: list[str]) -> list[list[int]]:
        segmented.extend(texts)
        return encode_batch(texts)

    monkeypatch.setattr(tokenizer, "encode_batch", record)
    encoder = SentenceEncoder(tokenizer)
    for line in LINES:
        assert lists(encoder([line, "the end"])) == [tokenizer.encode(line), tokenizer.encode("the end")]
    assert sorted(segmented) == sorted({word for line in LINES for word in line.split()} | {"end"})


@pytest.mark.slow
def test_the_word_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained(tmp_path, "bpe")
    limit, max_new_tokens = 50, 40  # the words of one call have at most 40 tokens
    monkeypatch.setattr(encoding, "_MAX_CACHED_TOKENS", limit)
    encoder = SentenceEncoder(tokenizer)
    for number in range(200):
        texts = [f"the cat sees {number} mice", f"{number * number} dogs"]
        assert lists(encoder(texts)) == [tokenizer.encode(text) for text in texts]
        assert encoder._cache.num_tokens <= limit + max_new_tokens


def test_select_keeps_the_sentences_of_the_mask() -> None:
    ids = [[1, 2], [], [3], [4, 5, 6]]
    for mask in ([True, True, True, True], [False, True, False, True], [False] * 4):
        part = sentences_of(ids).select(np.array(mask))
        assert lists(part) == [sentence for sentence, is_kept in zip(ids, mask, strict=True) if is_kept]
        assert part.words.tolist() == [len(sentence) + 7 for sentence in lists(part)]


def test_prepend_and_reverse_change_each_sentence() -> None:
    ids = [[1, 2], [], [3], [4, 5, 6]]
    assert lists(sentences_of(ids).prepend(9)) == [[9, *sentence] for sentence in ids]
    assert lists(sentences_of(ids).reverse()) == [sentence[::-1] for sentence in ids]
    assert lists(sentences_of([]).prepend(9)) == lists(sentences_of([]).reverse()) == []
    assert sentences_of(ids).prepend(9).words.tolist() == [9, 7, 8, 10], "a tag must not count as a word"


# --- Models that encode by words --------------------------------------------------------------------------------------


def test_bpe_models_encode_by_words_and_unigram_models_do_not(tmp_path: Path) -> None:
    assert trained(tmp_path, "bpe").encodes_by_words()
    assert not trained(tmp_path, "unigram").encodes_by_words()


@pytest.mark.parametrize("text", ["▁the▁old", "the old", "old▁"])
def test_a_model_with_a_piece_across_a_space_does_not_encode_by_words(text: str, tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, "bpe")
    pieces = read_pieces(tokenizer.model)
    pieces.append(Piece(text, kind=PieceKind.user_symbol))
    other = Tokenizer(with_pieces(tokenizer.model, pieces), Path("other"))
    assert not other.encodes_by_words()
    assert lists(SentenceEncoder(other)(LINES)) == [other.encode(line) for line in LINES]


def train_without_byte_pieces(folder: Path, **options: Any) -> Tokenizer:
    """Train a model with options of SentencePiece. Unknown characters become the unknown token."""
    settings: dict[str, Any] = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    settings |= {"normalization_rule_name": "identity", "model_type": "bpe", "vocab_size": 40, "minloglevel": 2}
    model = folder / "other"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=str(model), **(settings | options)
    )
    return Tokenizer.load(model.with_suffix(".model"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("normalization_rule_name", "nmt_nfkc"),
        ("add_dummy_prefix", False),
        ("treat_whitespace_as_suffix", True),
        ("split_by_whitespace", False),
        ("normalization_rule_name", "identity"),
    ],
)
def test_models_of_other_trainers_are_encoded_as_by_sentencepiece(option: str, value: Any, tmp_path: Path) -> None:
    tokenizer = train_without_byte_pieces(tmp_path, **{option: value})
    assert tokenizer.encodes_by_words() == (value == "identity")
    assert_encoded_as_by_sentencepiece(tokenizer)


def test_a_model_without_a_space_piece_does_not_encode_by_words(tmp_path: Path) -> None:
    """Adjacent unknown characters, including spaces, are one token."""
    tokenizer = train_without_byte_pieces(tmp_path)
    pieces = [piece for piece in read_pieces(tokenizer.model) if piece.text != SPACE]
    without = Tokenizer(with_pieces(tokenizer.model, pieces), Path("without"))
    assert len(without.encode("ö ä")) < len(tokenizer.encode("ö ä"))
    assert not without.encodes_by_words()
    assert_encoded_as_by_sentencepiece(without)


def assert_encoded_as_by_sentencepiece(tokenizer: Tokenizer) -> None:
    texts = [*LINES, *(normalize(text, "none") for text in ODD), "ö ä", "ö the ä"]
    assert lists(SentenceEncoder(tokenizer)(texts)) == [tokenizer.encode(text) for text in texts]
    for text in texts:
        assert lists(SentenceEncoder(tokenizer)([text])) == [tokenizer.encode(text)]
