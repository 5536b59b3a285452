"""Training and use of tokenizers."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.errors import UserError
from nmt.recipe import TERM_MARKERS, TokenizerRecipe
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text import tokenizer as tokenizer_module
from nmt.text.clean import normalize
from nmt.text.subword_file import PieceKind, read_pieces, with_pieces
from nmt.text.term_markup import TermMarkers
from nmt.text.tokenizer import Tokenizer, Tokenizers, train_tokenizer, train_tokenizers

LINES = [f"the {a} {b} sees the {c}" for a in ("old", "new") for b in ("cat", "dog") for c in ("house", "garden")] * 5
RECIPE = TokenizerRecipe(vocab_size=320, user_symbols=("<2de>", "a,b"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train_tokenizer(LINES, RECIPE, tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


@pytest.mark.parametrize(("algorithm", "lowercase"), [("bpe", True), ("unigram", False)])
@pytest.mark.slow
def test_training_is_reproducible_and_sets_special_ids(algorithm: str, lowercase: bool, tmp_path: Path) -> None:
    recipe = TokenizerRecipe(vocab_size=277, algorithm=algorithm, lowercase=lowercase)
    first = train_tokenizer(LINES, recipe, tmp_path / "1.model")
    again = train_tokenizer(iter(LINES), recipe, tmp_path / "2.model")
    assert (tmp_path / "1.model").read_bytes() == (tmp_path / "2.model").read_bytes() == first.model == again.model
    assert first.vocab_size == 277
    assert first.pieces([PAD_ID, UNK_ID, BOS_ID, EOS_ID]) == ["<pad>", "<unk>", "<s>", "</s>"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 277, "algorithm": "bpe", "lowercase": True},
        {"vocab_size": 277, "algorithm": "unigram", "character_coverage": 0.99},
        {"vocab_size": 275, "algorithm": "char", "character_coverage": 0.9995},
        {"vocab_size": 261, "algorithm": "byte"},
    ],
)
def test_options_are_read_from_a_trained_model(options: dict[str, Any], tmp_path: Path) -> None:
    recipe = TokenizerRecipe(**options)
    found = train_tokenizer(LINES, recipe, tmp_path / "1.model").options()
    assert found == recipe.model_dump(include=set(found))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "char", "byte"])
def test_phrases_of_scripts_without_spaces_may_continue_a_line(algorithm: str, tmp_path: Path) -> None:
    words = ("犬", "猫", "学校", "新聞", "本")
    lines = [f"{one}は{two}を見ます。" for one in words for two in words] * 5
    size = {"bpe": 286, "unigram": 276}.get(algorithm, 275)
    recipe = TokenizerRecipe(vocab_size=size, algorithm=algorithm, character_coverage=1.0)
    tokenizer = train_tokenizer(lines, recipe, tmp_path / "tokenizer.model")
    for phrase in ("猫", "新聞", "を見", "𠮷"):
        *_, continuation = tokenizer.encode_phrase(phrase)
        assert tokenizer.decode([*tokenizer.encode("見"), *continuation]) == f"見{phrase}"
    for piece in tokenizer.pieces(range(tokenizer.vocab_size)):
        assert (tokenizer.ids([piece]) in tokenizer.encode_forbidden("見")) == ("見" in piece)
    assert tokenizer.encode_phrase("dog 猫") == [tokenizer.encode("dog 猫")]
    assert tokenizer.encode_phrase("") == [[]]
    tokenizer.has_spaces = False
    *_, continuation = tokenizer.encode_phrase("dog")
    assert tokenizer.decode([*tokenizer.encode("見"), *continuation]) == "見dog"
    assert tokenizer.encode_phrase("") == [[]]


def test_text_round_trips(tokenizer: Tokenizer) -> None:
    for text in [*LINES[:8], "größer 漢字 \U0001f600", "<s> </s> <unk> <pad>", "the <2de> a,b house", ""]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {PAD_ID, UNK_ID, BOS_ID, EOS_ID} & set(ids)


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_arbitrary_normalized_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    # SentencePiece decodes U+2581 as a space.
    text = normalize(text.replace("\u2581", ""), "NFC")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.text(st.characters(codec=None), max_size=20), max_size=5))
@pytest.mark.slow
def test_a_batch_is_encoded_as_its_texts_are(tokenizer: Tokenizer, texts: list[str]) -> None:
    ids = tokenizer.encode_batch(texts)
    assert ids == [tokenizer.encode(text) for text in texts]


@pytest.mark.slow
@given(st.lists(st.integers(-5, 400) | st.integers(-(2**70), 2**70), max_size=20))
def test_any_ids_decode_to_one_line(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert not {"\n", "\r"} & set(tokenizer.decode(ids))
    assert len(tokenizer.pieces(ids)) == len(ids)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "char"])
def test_tokens_with_digits_are_those_whose_text_has_one(algorithm: str, tmp_path: Path) -> None:
    recipe = TokenizerRecipe(vocab_size=290, algorithm=algorithm, character_coverage=1.0)
    lines = ["in 1990 and 1991, x² of ٣ dogs", "½ a1 b22", *LINES]
    tokenizer = train_tokenizer(lines, recipe, tmp_path / "tokenizer.model")
    expected = [
        token
        for token in range(tokenizer.vocab_size)
        if any(c.isdecimal() or c == "½" for c in tokenizer.decode([token]))
    ]
    assert tokenizer.tokens_with_digits() == expected
    pieces = tokenizer.pieces(expected)
    assert {"<0x30>", "<0x39>"} < {*pieces} and all(any(digit in piece for piece in pieces) for digit in "٣½")
    assert not {"<0x2F>", "<0x3A>", "<0xE4>"} & {*pieces} and not any("²" in piece for piece in pieces)


def test_line_feed_bytes_stay_on_the_line(tokenizer: Tokenizer) -> None:
    line_feed = next(i for i in range(tokenizer.vocab_size) if tokenizer.pieces([i]) == ["<0x0A>"])
    assert tokenizer.decode([*tokenizer.encode("cat"), line_feed, *tokenizer.encode("dog")]) == "cat  dog"


def test_a_lone_surrogate_is_encoded_as_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_user_symbols_are_single_pieces(tokenizer: Tokenizer) -> None:
    assert "<2de>" in tokenizer.pieces(tokenizer.encode("<2de>the cat"))
    assert "a,b" in tokenizer.pieces(tokenizer.encode("a,b"))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "char", "byte"])
def test_symbols_are_added_at_the_end_of_the_vocabulary(algorithm: str, tmp_path: Path) -> None:
    recipe = TokenizerRecipe.model_validate({"vocab_size": 278, "algorithm": algorithm, "user_symbols": ["<old>"]})
    tokenizer = train_tokenizer(LINES, recipe, tmp_path / "tokenizer.model")
    extended = tokenizer.with_symbols(["<old>", "<new>", "<q>", "<new>"])
    size = tokenizer.vocab_size
    assert extended.vocab_size == size + 2 and extended.pieces(range(size)) == tokenizer.pieces(range(size))
    assert extended.encode("<new>")[-1] == size and extended.encode("x <q>")[-1] == size + 1
    for line in [*LINES, "Ж <old> a"]:
        assert extended.encode(line) == tokenizer.encode(line)
    assert extended.decode(extended.encode("the<new>cat")) == tokenizer.decode(tokenizer.encode("the<new>cat"))
    assert extended.with_symbols(["<q>", "<old>"]) is extended


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_lowercasing_equals_lowercased_text(algorithm: str, tmp_path: Path) -> None:
    options = {"vocab_size": 278, "algorithm": algorithm, "user_symbols": ("<Web>",)}
    lines = [line.title() if number % 3 else line.upper() for number, line in enumerate(LINES)]
    lowering = train_tokenizer(
        lines, TokenizerRecipe.model_validate(options | {"lowercase": True}), tmp_path / "1.model"
    )
    plain = train_tokenizer(map(str.lower, lines), TokenizerRecipe.model_validate(options), tmp_path / "2.model")
    assert lowering.lowercases() and not plain.lowercases()
    assert lowering.pieces(range(278)) == plain.pieces(range(278))
    for line in [*lines, "Ä ß Ω Ж Old"]:
        assert lowering.encode(line) == plain.encode(line.lower())
    assert (
        lowering.decode(lowering.encode("<Web> \u0130stanbul \u03a3\u0391\u03a3"))
        == "<Web> istanbul \u03c3\u03b1\u03c3"
    )
    assert not lowering.encodes_by_words()


@pytest.fixture(scope="module")
def lowering(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    recipe = RECIPE.model_copy(update={"lowercase": True})
    return train_tokenizer(LINES, recipe, tmp_path_factory.mktemp("lowering") / "tokenizer.model")


@pytest.mark.slow
@settings(max_examples=50)
@given(st.text(max_size=30))
def test_lowercasing_keeps_the_number_of_characters(lowering: Tokenizer, text: str) -> None:
    text = normalize(text.replace("\u2581", ""), "NFC")
    lowered = lowering.decode(lowering.encode(text))
    assert len(lowered) == len(text)
    assert lowering.encode(lowered) == lowering.encode(text)
    assert lowered.lower() == lowered


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_the_vocabulary_equals_that_of_sentencepiece(algorithm: str, tmp_path: Path) -> None:
    recipe = TokenizerRecipe(vocab_size=279, algorithm=algorithm, user_symbols=("<2de>", "a,b"))
    tokenizer = train_tokenizer(LINES, recipe, tmp_path / "tokenizer.model")
    found, pieces = tokenizer.vocabulary()
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = list(range(tokenizer.vocab_size))
    assert found == algorithm
    assert [piece.text for piece in pieces] == processor.id_to_piece(ids)
    assert [piece.score for piece in pieces] == processor.get_score(ids)
    special = {"<pad>", "<unk>", "<s>", "</s>", "<2de>", "a,b", *(f"<0x{byte:02X}>" for byte in range(256))}
    assert {piece.text for piece in pieces if piece.kind != PieceKind.ordinary} == special


def test_the_vocabulary_of_another_algorithm_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "words"
    special: dict[str, Any] = {"pad_id": PAD_ID, "unk_id": UNK_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=path, model_type="char", vocab_size=20, **special, minloglevel=2
    )
    with pytest.raises(UserError, match="neither a bpe nor a unigram model"):
        Tokenizer.load(path.with_suffix(".model")).vocabulary()


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_the_error_for_an_unsuitable_vocabulary_size_names_the_limit(algorithm: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=r"vocab_size is 5000; this text allows at most \d+ pieces") as caught:
        train_tokenizer(LINES, TokenizerRecipe(vocab_size=5000, algorithm=algorithm), path)
    limit = int(str(caught.value).split("at most ")[1].split()[0])
    assert train_tokenizer(LINES, TokenizerRecipe(vocab_size=limit, algorithm=algorithm), path).vocab_size == limit
    with pytest.raises(UserError, match=r"vocab_size is 100; .* need 2[0-9][0-9]"):
        train_tokenizer(LINES, TokenizerRecipe(vocab_size=100, algorithm=algorithm), path)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "char"])
def test_training_reads_lines_of_any_length(algorithm: str, tmp_path: Path) -> None:
    recipe = TokenizerRecipe(vocab_size=278, algorithm=algorithm)
    article = "ж " * 9 + "the old cat " * 500
    tokenizer = train_tokenizer([*LINES, article], recipe, tmp_path / "tokenizer.model")
    assert tokenizer.has_piece("ж")
    assert b"\x80\x80\x80\x80\x04" not in tokenizer.model  # the length limit, which would change all models


def test_training_without_text_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot train the tokenizer") as caught:
        train_tokenizer([], RECIPE, tmp_path / "tokenizer.model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 100])
def test_a_damaged_model_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        Tokenizer.load(tmp_path / "tokenizer.model")


def test_a_missing_model_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read tokenizer .*; it must be in a model directory or in folder data"):
        Tokenizers.load(tmp_path)


@pytest.mark.parametrize("joint", [True, False])
def test_joint_and_separate_tokenizers_are_saved_and_loaded(joint: bool, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    pairs = [(line, line.replace("the", "das")) for line in LINES]
    made = train_tokenizers(lambda: pairs, TokenizerRecipe(vocab_size=300, joint=joint), tmp_path)
    assert made.joint == joint
    assert (made.src.model == made.tgt.model) == joint
    made.save(tmp_path / "copy")
    loaded = Tokenizers.load(tmp_path / "copy")
    assert loaded.joint == joint
    assert loaded.files() == made.files() == Tokenizers.load(tmp_path).files()
    assert sorted(loaded.files()) == (["tokenizer.model"] if joint else ["tokenizer.src.model", "tokenizer.tgt.model"])


@pytest.mark.parametrize("joint", [True, False])
def test_tags_are_source_symbols(joint: bool, tmp_path: Path) -> None:
    recipe = TokenizerRecipe(vocab_size=300, joint=joint, user_symbols=("<sep>",))
    made = train_tokenizers(lambda: [(line, line) for line in LINES], recipe, tmp_path, ["<web>", "<sep>"])
    assert list(made.src.user_symbols()) == ["<sep>", "<web>"]
    assert list(made.tgt.user_symbols()) == (["<sep>", "<web>"] if joint else ["<sep>"])
    for symbol, i in made.src.user_symbols().items():
        assert made.src.pieces([i]) == [symbol]
        assert made.src.tag_id(symbol) == i
    for unknown in ("<news>", "<s>", "<0x41>", ""):
        with pytest.raises(UserError, match=r"one of <sep>, <web>; correct the tag, or leave it out$"):
            made.src.tag_id(unknown)
    plain = train_tokenizer(LINES, TokenizerRecipe(vocab_size=300), tmp_path / "plain.model")
    assert plain.user_symbols() == {}
    with pytest.raises(UserError, match="this model has no tags"):
        plain.tag_id("<web>")


def test_a_file_without_term_markers_is_not_parsed(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new translator looks for the markers; parsing 32,000 pieces takes 0.1 s."""
    recipe = TokenizerRecipe(vocab_size=300, user_symbols=TERM_MARKERS)
    marked = train_tokenizer(LINES, recipe, tmp_path / "marked.model")
    read = Mock(side_effect=read_pieces)
    monkeypatch.setattr(tokenizer_module, "read_pieces", read)
    assert TermMarkers.ids_of(tokenizer) == []
    assert not read.called
    for _ in range(2):
        assert marked.pieces(TermMarkers.ids_of(marked)) == list(TERM_MARKERS)
    read.assert_called_once_with(marked.model)
    assert all(map(marked.has_piece, (*TERM_MARKERS, "</s>")))
    assert not any(map(marked.has_piece, ("<unk>", "missing")))


def test_an_ordinary_piece_with_the_text_of_a_marker_is_not_a_marker(tokenizer: Tokenizer) -> None:
    pieces = read_pieces(tokenizer.model)
    pieces[-1] = replace(pieces[-1], text=TERM_MARKERS[0])
    changed = Tokenizer(with_pieces(tokenizer.model, pieces), tokenizer.path)
    assert changed.has_piece(TERM_MARKERS[0])
    assert TermMarkers.ids_of(changed) == []
