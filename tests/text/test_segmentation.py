"""Subword sampling, compared with enumerated probabilities and with SentencePiece."""

import math
import random
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise, product
from typing import Literal

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.recipe import TokenizerRecipe
from nmt.text.clean import normalize
from nmt.text.segmentation import SubwordSampler
from nmt.text.subword_file import Algorithm, Piece, PieceKind
from nmt.text.tokenizer import Tokenizer, train_tokenizer

Vocabulary = tuple[Algorithm, list[Piece]]

TEXT = """the small green garden mountain river follows discovers underneath between quickly wonderful translation
sentence language grandmother yesterday sometimes beautiful carpenter window newspaper together understanding"""
SYMBOLS = ("<web>", "<2de>", "a,b")
DIFFICULT = [
    "größer 漢字 \U0001f600",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 and \U0001d518",
    "the <2de> a,b garden",
    "<2de>the river",
    "a,ba,b",
    "river<2de>",
    "\ufdfd \u0e01\u0e33 e\u0301",
    "x",
    "  the   river \u2581\u2581 follows ",
    "greengardenmountainriver" * 12,
]


def sentences(count: int) -> list[str]:
    rng = random.Random(1)
    compounds = ["".join(rng.sample(TEXT.split(), 2)) for _ in range(100)]
    words = [*TEXT.split(), *compounds]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    recipes = {
        algorithm: TokenizerRecipe(algorithm=algorithm, vocab_size=360, user_symbols=SYMBOLS)
        for algorithm in ("bpe", "unigram")
    }
    return {name: train_tokenizer(sentences(600), recipes[name], folder / f"{name}.model") for name in recipes}


@pytest.fixture(params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]


def resegment(vocabulary: Vocabulary, alpha: float, batch: list[list[int]], seed: int = 0) -> list[list[int]]:
    tokens = np.array([token for ids in batch for token in ids], dtype=np.uint16)
    lengths = np.array([len(ids) for ids in batch])
    new, new_lengths = SubwordSampler(*vocabulary, alpha).resegment(tokens, lengths, np.random.default_rng(seed))
    assert new.dtype == np.uint16 and len(new) == new_lengths.sum()
    return [part.tolist() for part in np.split(new, np.cumsum(new_lengths)[:-1])] if batch else []


def surface(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    """Return the text of tokens, with a `▁` for each space, by joining their pieces."""
    text = b""
    for piece in tokenizer.pieces(ids):
        byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
        text += bytes.fromhex(byte[1]) if byte else piece.encode()
    return text


def test_text_is_unchanged(tokenizer: Tokenizer) -> None:
    tag = tokenizer.encode("<web>")[-1]
    batch = [tokenizer.encode(text) for text in [*DIFFICULT, *sentences(50)]]
    batch += [[], *([tag, *ids] for ids in batch), []]
    changed = 0
    for alpha in (0.0, 0.1, 0.5, 0.95):
        sampled = resegment(tokenizer.vocabulary(), alpha, batch)
        assert [surface(tokenizer, ids) for ids in sampled] == [surface(tokenizer, ids) for ids in batch]
        assert list(map(tokenizer.decode, sampled)) == list(map(tokenizer.decode, batch))
        changed += sum(new != old for new, old in zip(sampled, batch, strict=True))
    assert changed > len(batch)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.text(max_size=12), max_size=6), st.integers(0, 9))
def test_arbitrary_text_is_unchanged(tokenizers: dict[str, Tokenizer], texts: list[str], seed: int) -> None:
    for tokenizer in tokenizers.values():
        batch = [tokenizer.encode(normalize(text, "NFC")) for text in texts]
        sampled = resegment(tokenizer.vocabulary(), 0.3, batch, seed)
        assert [surface(tokenizer, ids) for ids in sampled] == [surface(tokenizer, ids) for ids in batch]


@pytest.mark.slow
def test_user_symbols_are_not_split(tokenizer: Tokenizer) -> None:
    symbols = {tokenizer.encode(symbol)[-1] for symbol in SYMBOLS}
    tag = tokenizer.encode("<web>")[-1]
    batch = [[tag, *tokenizer.encode(text)] for text in DIFFICULT]
    for seed in range(20):
        for old, new in zip(batch, resegment(tokenizer.vocabulary(), 0.1, batch, seed), strict=True):
            assert new[0] == tag
            assert [token for token in new if token in symbols] == [token for token in old if token in symbols]


def test_segmentations_without_randomness_match_sentencepiece(tokenizers: dict[str, Tokenizer]) -> None:
    texts = [*DIFFICULT, *sentences(300)]
    batch = [tokenizers["bpe"].encode(text) for text in texts]
    assert resegment(tokenizers["bpe"].vocabulary(), 0.0, batch) == batch
    # For unigram, a large alpha leaves only the best segmentations; there may be ties.
    unigram = tokenizers["unigram"]
    scores = [piece.score for piece in unigram.vocabulary()[1]]
    batch = [unigram.encode(text) for text in texts]
    for best, sampled in zip(batch, resegment(unigram.vocabulary(), 1e5, batch), strict=True):
        assert sum(scores[i] for i in sampled) == pytest.approx(sum(scores[i] for i in best), abs=1e-3)


def scores_of(vocabulary: Vocabulary) -> dict[str, float]:
    return {piece.text: piece.score for piece in vocabulary[1] if piece.kind == PieceKind.ordinary}


def possible_merges(parts: tuple[str, ...], score_of: dict[str, float]) -> list[tuple[float, int]]:
    """Return the priority (lowest first) and position of every possible merge."""
    return [(-score_of[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score_of]


def merge(parts: tuple[str, ...], i: int) -> tuple[str, ...]:
    return (*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :])


def sample_bpe_dropout(vocabulary: Vocabulary, word: str, alpha: float, rng: random.Random) -> tuple[str, ...]:
    """Return a segmentation sampled with algorithm 1 of Provilkov et al. 2020."""
    score_of, parts = scores_of(vocabulary), tuple(word)
    while True:
        merges = [found for found in possible_merges(parts, score_of) if rng.random() >= alpha]
        if not merges:
            return parts
        parts = merge(parts, min(merges)[1])


def bpe_dropout(vocabulary: Vocabulary, word: str, alpha: float) -> dict[tuple[str, ...], float]:
    """Return the probability of every segmentation under algorithm 1, by enumerating dropped merges."""
    score_of = scores_of(vocabulary)

    @cache
    def outcomes(parts: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        total: dict[tuple[str, ...], float] = defaultdict(float)
        merges = possible_merges(parts, score_of)
        for is_dropped in product((True, False), repeat=len(merges)):
            pattern_probability = math.prod(alpha if dropped else 1 - alpha for dropped in is_dropped)
            remaining = [found for found, dropped in zip(merges, is_dropped, strict=True) if not dropped]
            following = outcomes(merge(parts, min(remaining)[1])) if remaining else {parts: 1.0}
            for segmentation, probability in following.items():
                total[segmentation] += pattern_probability * probability
        return total

    return outcomes(tuple(word))


def unigram_sampling(vocabulary: Vocabulary, word: str, alpha: float) -> dict[tuple[str, ...], float]:
    """Return the probability of every segmentation (Kudo 2018), by enumeration."""
    score_of = scores_of(vocabulary)

    def segmentations(text: str) -> list[tuple[str, ...]]:
        if not text:
            return [()]
        ends = [end for end in range(1, len(text) + 1) if text[:end] in score_of]
        return [(text[:end], *rest) for end in ends for rest in segmentations(text[end:])]

    weights = {pieces: math.exp(alpha * sum(score_of[piece] for piece in pieces)) for pieces in segmentations(word)}
    total = sum(weights.values())
    return {pieces: weight / total for pieces, weight in weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize("word", ["the", "garden", "beautiful", "riverriver"])
@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_segmentations_have_their_probabilities(word: str, alpha: float, tokenizer: Tokenizer) -> None:
    vocabulary, count = tokenizer.vocabulary(), 10_000
    enumerate_segmentations = {"bpe": bpe_dropout, "unigram": unigram_sampling}[vocabulary[0]]
    expected = enumerate_segmentations(vocabulary, f"\u2581{word}", alpha)
    assert sum(expected.values()) == pytest.approx(1)
    segmented = resegment(vocabulary, alpha, [tokenizer.encode(word)] * count)
    sampled = Counter(tuple(tokenizer.pieces(ids)) for ids in segmented)
    assert sampled.keys() <= expected.keys()
    for segmentation, probability in expected.items():
        deviation = math.sqrt(probability * (1 - probability) / count)
        assert sampled[segmentation] / count == pytest.approx(probability, abs=5 * deviation + 1 / count)


@pytest.mark.slow
def test_the_token_count_of_bpe_dropout_matches_algorithm_1(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer, rng, texts = tokenizers["bpe"], random.Random(3), sentences(500)
    vocabulary = tokenizer.vocabulary()
    words = [f"\u2581{word}" for text in texts for word in text.split()]
    theirs = sum(len(sample_bpe_dropout(vocabulary, word, 0.1, rng)) for word in words)
    ours = sum(map(len, resegment(vocabulary, 0.1, [tokenizer.encode(text) for text in texts])))
    assert ours == pytest.approx(theirs, rel=0.01)


def test_the_token_count_of_unigram_sampling_matches_sentencepiece(tokenizers: dict[str, Tokenizer]) -> None:
    texts, tokenizer = sentences(2000), tokenizers["unigram"]
    sentencepiece.set_random_generator_seed(1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    theirs = sum(len(processor.encode(text, enable_sampling=True, alpha=0.2, nbest_size=-1)) for text in texts)
    ours = sum(map(len, resegment(tokenizer.vocabulary(), 0.2, [tokenizer.encode(text) for text in texts])))
    assert ours == pytest.approx(theirs, rel=0.03)


def test_same_generator_state_gives_same_sample(tokenizer: Tokenizer) -> None:
    batch = [tokenizer.encode(text) for text in sentences(100)]
    sampled = [resegment(tokenizer.vocabulary(), 0.2, batch, seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_equal_sentences_are_sampled_independently(tokenizer: Tokenizer) -> None:
    sampled = resegment(tokenizer.vocabulary(), 0.2, [tokenizer.encode(" ".join(TEXT.split()))] * 50)
    assert len({tuple(ids) for ids in sampled}) == 50


@pytest.mark.parametrize("batch", [[], [[]], [[], []]])
def test_a_batch_without_tokens_is_unchanged(batch: list[list[int]], tokenizer: Tokenizer) -> None:
    assert resegment(tokenizer.vocabulary(), 0.5, batch) == batch


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_piece_with_a_character_that_is_no_piece_is_not_split(algorithm: Literal["bpe", "unigram"]) -> None:
    scores = {"a": -1.5, "b": -1.6, "ab": -1.0, "bz": -2.0, "z?": -5.0}
    pieces = [Piece("<unk>", kind=PieceKind.unknown), *(Piece(text, score) for text, score in scores.items())]
    batch = [[3, 4, 5, 1, 2]] * 100
    sampled = resegment((algorithm, pieces), 0.5, batch)
    assert {tuple(ids) for ids in sampled} == {(*a, 4, 5, *b) for a in ((3,), (1, 2)) for b in ((3,), (1, 2))}
