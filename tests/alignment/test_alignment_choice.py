"""The choice of layer and heads, with some heads made to align."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention, WordAligner
from nmt.alignment.choice import agreement, choose_attention
from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe, TokenizerRecipe
from nmt.text.pair_encoder import PairEncoder, TokenPair
from nmt.text.tokenizer import Tokenizers, train_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxy"
AlignedParities = dict[tuple[int, int], tuple[int, ...]]


class AligningHeadsModel:
    """A model with heads that align all or half of the words, among random heads."""

    recipe = ModelRecipe(num_decoder_layers=3, num_heads=4)

    def __init__(self, other: dict[int, int], aligned: AlignedParities) -> None:
        """other: source token of each target token; aligned: token parities that each (layer, head) aligns."""
        self.other, self.aligned, self.shift = other, aligned, 0

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        noise = torch.Generator().manual_seed(src.total)
        shape = (src.num_sentences, tgt.max_length, src.max_length)
        for layer in range(self.recipe.num_decoder_layers):
            heads = []
            for head in range(self.recipe.num_heads):
                weights = torch.rand(shape, generator=noise) * 0.5
                for sentence, (source, target) in enumerate(zip(src.to_lists(), tgt.to_lists(), strict=True)):
                    for position, token in enumerate(target):
                        right = self.other.get(token)
                        if right in source and token % 2 in self.aligned.get((layer, head), ()):
                            weights[sentence, position - self.shift, source.index(right)] += 1.0
                heads.append(weights)
            yield torch.stack(heads, dim=1)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    words = [letter * 2 for letter in LETTERS] + [letter.upper() * 2 for letter in LETTERS]
    path = tmp_path_factory.mktemp("choice") / "tokenizer.model"
    # 4 special tokens, 256 bytes, 50 letters and the space, and 100 merges.
    recipe = TokenizerRecipe(vocab_size=4 + 256 + 51 + 100)
    tokenizer = train_tokenizer([" ".join(words)] * 50, recipe, path)
    assert len(tokenizer.encode("aa BB")) == 2
    return Tokenizers(tokenizer, tokenizer)


def text() -> tuple[list[str], list[str]]:
    """Words translated to upper case, with some neighbors swapped."""
    rng = random.Random(3)
    sources, targets = [], []
    for _ in range(200):
        words = [letter * 2 for letter in rng.sample(LETTERS, k=rng.randint(2, 8))]
        sources.append(" ".join(words))
        for position in range(0, len(words) - 1, 2):
            if rng.random() < 0.5:
                words[position : position + 2] = words[position + 1], words[position]
        targets.append(" ".join(words).upper())
    return sources, targets


def make_aligner(tokenizers: Tokenizers, aligned: AlignedParities, back: bool = False, shift: int = 0) -> WordAligner:
    tokens = {letter: tokenizers.src.encode(letter * 2)[0] for letter in LETTERS + LETTERS.upper()}
    other = {tokens[letter.upper()]: tokens[letter] for letter in LETTERS}
    if back:
        other = {source: target for target, source in other.items()}
    model = AligningHeadsModel(other, aligned)
    model.shift = shift
    return WordAligner(
        model, PairEncoder(tokenizers, "NFC", 255), AlignmentAttention(0), device=torch.device("cpu"), batch_tokens=500
    )


@pytest.mark.slow
def test_the_statistical_aligner_finds_the_aligned_heads(tokenizers: Tokenizers) -> None:
    """At input and output positions."""
    aligned: AlignedParities = {(2, 1): (0,), (2, 3): (1,), (0, 0): (0,)}
    for shift, position in ((0, "input"), (1, "output")):
        choice = choose_attention(make_aligner(tokenizers, aligned, shift=shift), *text())
        assert choice.attention == AlignmentAttention(2, (1, 3), position)  # type: ignore[arg-type]
        assert choice.agreement > 0.95
        assert len(choice.by_layer) == 6
        by_layer = choice.by_layer
        assert max(by_layer, key=lambda one: by_layer[one]) == AlignmentAttention(2, (), position)  # type: ignore[arg-type]


@pytest.mark.slow
def test_all_heads_are_kept_if_a_subset_is_no_better(tokenizers: Tokenizers) -> None:
    aligned: AlignedParities = {(1, head): (0, 1) for head in range(4)}
    assert choose_attention(make_aligner(tokenizers, aligned), *text()).attention == AlignmentAttention(1, (), "input")


@pytest.mark.slow
def test_a_reverse_model_finds_the_aligned_heads(tokenizers: Tokenizers) -> None:
    aligner = make_aligner(tokenizers, {(0, 2): (0, 1)})
    reverse = make_aligner(tokenizers, {(1, head): (0, 1) for head in range(4)}, back=True)
    choice = choose_attention(aligner, *text(), reverse)
    assert choice.attention == AlignmentAttention(0, (2,), "input")
    assert choice.agreement > 0.99


class EncoderWithoutCharacters(PairEncoder):
    """Removes the text AA, as the tokenizer of an imported model may remove characters that another one keeps."""

    def encode(self, source: str, target: str) -> TokenPair:
        return super().encode(source.replace("AA", ""), target)


@pytest.mark.slow
def test_pairs_without_text_for_the_reverse_model_are_left_out(tokenizers: Tokenizers) -> None:
    aligner = make_aligner(tokenizers, {(0, 2): (0, 1)})
    reverse = make_aligner(tokenizers, {(1, head): (0, 1) for head in range(4)}, back=True)
    reverse.encoder = EncoderWithoutCharacters(tokenizers, "NFC", 255)
    sources, targets = text()
    choice = choose_attention(aligner, ["aa", *sources], ["AA", *targets], reverse)
    assert choice.attention == AlignmentAttention(0, (2,), "input")


def test_text_without_usable_pairs_is_rejected(tokenizers: Tokenizers) -> None:
    with pytest.raises(UserError, match="no pair that fits"):
        choose_attention(make_aligner(tokenizers, {}), ["", "aa"], ["AA", ""])


def test_agreement_is_f1() -> None:
    assert agreement([{(0, 0), (1, 1)}, set()], [{(0, 0)}, {(2, 2)}]) == 0.5
    assert agreement([set()], [set()]) == 0.0
