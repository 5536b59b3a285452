"""Previous sentences of a document, from reading to token sequences."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nmt import UserError
from nmt.data.cleaning import ChunkCleaner
from nmt.data.context import encode_joined, fit_context
from nmt.data.encoding import SentenceEncoder
from nmt.data.store import Sentences
from nmt.recipe import Context, DataRecipe, TokenizerRecipe
from nmt.special_ids import UNK_ID
from nmt.text.clean import Cleaner
from nmt.text.context import (
    CLEAN_BREAK,
    Separators,
    after_last,
    clean_joined,
    find_separators,
    is_blank,
    join_lines,
    last_lines,
    with_previous,
)
from nmt.text.tokenizer import Tokenizer, Tokenizers, train_tokenizer

SEP = 9
SOURCE, BOTH = Context(2), Context(2, "both")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    options = TokenizerRecipe(vocab_size=300, user_symbols=("<sep>",))
    return train_tokenizer(
        ["a dog sees a cat", "the cat sleeps"] * 9, options, tmp_path_factory.mktemp("t") / "t.model"
    )


def test_an_empty_line_and_another_document_end_the_context() -> None:
    lines = ["a", "b", "c", "d", " ", "e", "f", "g"]
    found = list(with_previous(lines, 2, is_blank, [1, 1, 1, 1, 1, 1, 1, 2]))
    assert [item for item, _ in found] == lines
    assert ["".join(previous) for _, previous in found] == ["", "a", "ab", "bc", "cd", "", "e", ""]


def test_pairs_that_cleaning_drops_are_in_no_context() -> None:
    clean = Cleaner(DataRecipe(train=[{"kind": "toy"}], valid=[{"kind": "toy"}]), "en", "de").clean
    pairs = [("one", "eins"), ("two\ufffd", "zwei"), ("three ", "drei"), ("four", "vier"), ("", ""), ("five", "fünf")]
    joined = list(join_lines(pairs, BOTH, None))
    assert list(map(last_lines, joined)) == pairs
    found = [clean_joined(clean, BOTH, *pair) for pair in joined]
    assert found == [
        ("one", "eins"),
        "control characters",
        (f"one{CLEAN_BREAK}three", f"eins{CLEAN_BREAK}drei"),
        (f"three{CLEAN_BREAK}four", f"drei{CLEAN_BREAK}vier"),
        "empty",
        ("five", "fünf"),
    ]
    assert clean_joined(clean, SOURCE, *joined[3]) == (f"three{CLEAN_BREAK}four", "vier")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_pair_is_cleaned_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[str] = []

    def clean(cleaner: Cleaner, src: str, tgt: str) -> tuple[str, str]:
        cleaned.append(src)
        return src, tgt

    monkeypatch.setattr(Cleaner, "clean", clean)
    pairs = [(str(number), str(number)) for number in range(20)]
    data = DataRecipe(train=[{"kind": "toy"}], valid=[{"kind": "toy"}], context=size)
    ChunkCleaner(data, [("en", "de")])((0, list(join_lines(pairs, data.context_options, None))))
    assert cleaned == [src for src, _ in pairs]


def test_each_previous_sentence_ends_with_a_separator(tokenizer: Tokenizer) -> None:
    tokenizers = Tokenizers(tokenizer, tokenizer)
    separators = find_separators(tokenizers, SOURCE)
    assert separators is not None
    assert tuple(separators) == (tokenizer.user_symbols()["<sep>"], None)
    texts = [f"a dog{CLEAN_BREAK}sees{CLEAN_BREAK}the cat", "a cat", f"x <sep>y{CLEAN_BREAK}z"]
    found = encode_joined(SentenceEncoder(tokenizer), texts, separators.src)
    sentences = np.split(found.tokens, np.cumsum(found.lengths)[:-1])
    for text, tokens in zip(texts, sentences, strict=True):
        expected: list[int] = []
        for sentence in text.split(CLEAN_BREAK):
            own = [UNK_ID if token == separators.src else token for token in tokenizer.encode(sentence)]
            expected += [*own, separators.src]
        assert tokens.tolist() == expected[:-1]
    assert found.words.tolist() == [5, 2, 3]


def test_a_tokenizer_without_separator_is_an_error(tmp_path: Path) -> None:
    plain = train_tokenizer(["a dog"] * 9, TokenizerRecipe(vocab_size=270), tmp_path / "t.model")
    with pytest.raises(UserError, match=r"has no piece <sep>, which data.context needs; set data.context to 0, or "):
        find_separators(Tokenizers(plain, plain), SOURCE)
    assert find_separators(Tokenizers(plain, plain), Context()) is None


def pack(sequences: list[list[int]]) -> Sentences:
    lengths = np.array([len(one) for one in sequences], dtype=np.int32)
    return Sentences(np.array([token for one in sequences for token in one], dtype=np.uint16), lengths, lengths)


def unpack(sentences: Sentences) -> list[list[int]]:
    return [part.tolist() for part in np.split(sentences.tokens, np.cumsum(sentences.lengths)[:-1])]


def join(sentences: Sequence[list[int]], *, has_context: bool) -> list[int]:
    """Return the last sentence, after the previous ones with their separators if it has context."""
    previous = sentences[:-1] if has_context else []
    return [token for sentence in previous for token in (*sentence, SEP)] + sentences[-1]


@pytest.mark.parametrize("has_target", [False, True])
def test_the_oldest_sentences_are_dropped_on_both_sides(has_target: bool) -> None:
    rng = random.Random(4)
    max_src, max_tgt = 10, 12

    def sentence() -> list[int]:
        return [rng.randint(10, 99) for _ in range(rng.randint(1, 7))]

    whole: list[tuple[list[int], list[int]]] = []
    expected: list[tuple[list[int], list[int]]] = []
    for _ in range(300):
        length = rng.randint(1, 4)
        sources, targets = ([sentence() for _ in range(length)] for _ in range(2))
        joined = [
            (join(sources[dropped:], has_context=True), join(targets[dropped:], has_context=has_target))
            for dropped in range(length)
        ]
        fitting = [(src, tgt) for src, tgt in joined if len(src) <= max_src and len(tgt) <= max_tgt]
        whole.append(joined[0])
        expected.append(fitting[0] if fitting else joined[-1])
    separators = Separators(SEP, SEP if has_target else None)
    src, tgt = (pack(list(side)) for side in zip(*whole, strict=True))
    found = fit_context(src, tgt, separators, max_src, max_tgt)
    assert list(zip(*map(unpack, found), strict=True)) == expected
    assert all(side.words.tolist() == side.lengths.tolist() for side in found), "dropped tokens must not count as words"
    assert sum(new != old for new, old in zip(expected, whole, strict=True)) > 100, "too few pairs exceed the limits"


def test_after_last_is_the_index_after_the_last_separator() -> None:
    assert [after_last(tokens, SEP) for tokens in ([], [1, 2], [SEP], [1, SEP, 2, SEP, 3])] == [0, 0, 1, 4]
    assert after_last([1, SEP, 2], None) == 0
