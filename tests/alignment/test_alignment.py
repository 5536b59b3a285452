"""Alignments from hand-made attention with known links."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention, WordAligner, attention_maps
from nmt.alignment.words import words_as_given, words_as_printed
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe
from nmt.text.clean import normalize
from nmt.text.pair_encoder import PairEncoder
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.decode.copy_model import CPU, CopyModel

WORDS = ["the", "a", "cat", "dog", "tree", "sees", "likes", "old", "red", "quickly,", "slowly.", "Then", "he", "said:"]
RECIPE = ModelRecipe(num_decoder_layers=3, num_heads=2)


class AligningHeadModel:
    """Head 1 of layer 1 attends from each input token to the equal source token; other heads prefer the first one.

    Every head attends to EOS more than to any other source token.
    """

    def __init__(self, recipe: ModelRecipe = RECIPE) -> None:
        self.recipe = recipe
        self.layers_computed = 0

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        sources, targets = src.to_lists(), tgt.to_lists()
        shape = (src.num_sentences, self.recipe.num_heads, tgt.max_length, src.max_length)
        for layer in range(self.recipe.num_decoder_layers):
            self.layers_computed += 1
            weights = torch.full(shape, 0.01)
            for sentence, (source, target) in enumerate(zip(sources, targets, strict=True)):
                weights[sentence, :, :, len(source) - 1] = 0.8
                weights[sentence, :, :, 0] += 0.02
                for position, token in enumerate(target):
                    if layer == 1 and token in source:
                        weights[sentence, 1, position, source.index(token)] += 0.1
            yield weights


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(300)]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    tokenizer = train_tokenizer(lines, TokenizerRecipe(vocab_size=320), path)
    return Tokenizers(tokenizer, tokenizer)


ALIGNING_HEAD = AlignmentAttention(1, (1,), "input")


def make_aligner(
    tokenizers: Tokenizers, chosen: AlignmentAttention = ALIGNING_HEAD, reverse_target: bool = False
) -> WordAligner:
    model = AligningHeadModel()
    encoder = PairEncoder(tokenizers, "NFC", model.recipe.max_positions - 1, reverse_target=reverse_target)
    return WordAligner(model, encoder, chosen, device=CPU, batch_tokens=50)


def test_the_tag_of_the_source_takes_a_position(tokenizers: Tokenizers) -> None:
    model = AligningHeadModel(ModelRecipe(num_decoder_layers=3, num_heads=2, max_positions=6))  # one is for EOS
    plain, tagged = (
        WordAligner(model, PairEncoder(tokenizers, "NFC", 5, tag), ALIGNING_HEAD, device=CPU, batch_tokens=50)
        for tag in ((), (5,))
    )
    source = next(line for line in ("the a " * n + "cat" for n in range(5)) if len(tokenizers.src.encode(line)) == 5)
    pair = plain.encoder.encode(source, "cat")
    assert plain.encoder.fits(pair)
    assert not tagged.encoder.fits(pair)
    plain.align([source], ["cat"])
    with pytest.raises(UserError, match=r"source, line 1 has 6 tokens"):
        tagged.align([source], ["cat"])


def test_the_most_attended_source_token_is_never_eos() -> None:
    pairs = [([5, 6, 7], [7, 5, 6]), ([9], [9, 9]), ([4, 8], [])]
    maps = attention_maps(AligningHeadModel(), pairs, CPU)
    assert [one.shape for one in maps] == [(2, 3, 2, 3, 4), (2, 3, 2, 2, 2), (2, 3, 2, 0, 3)]
    assert [ALIGNING_HEAD.attended(one[:, 1]) for one in maps] == [[2, 0, 1], [0, 0], []]
    # The mean of all heads, of which one aligns.
    assert AlignmentAttention(1, (), "input").attended(maps[0][:, 1]) == [2, 0, 1]
    assert AlignmentAttention(0, (), "input").attended(maps[0][:, 0]) == [0, 0, 0]
    # The previous decoder position, where the first input is BOS.
    assert AlignmentAttention(1, (1,), "output").attended(maps[0][:, 1]) == [0, 2, 0]


def test_layers_above_the_requested_one_are_not_computed() -> None:
    model = AligningHeadModel()
    (one,) = attention_maps(model, [([5, 6], [6, 5])], CPU, only_layer=1)
    assert one.shape == (2, 1, 2, 2, 3)
    assert model.layers_computed == 2


def test_words_are_aligned_for_lines_of_any_length(tokenizers: Tokenizers) -> None:
    rng = random.Random(2)
    words = [word for word in WORDS if len(tokenizers.src.encode(word)) == 1]  # others may share a token
    assert len(words) > 6
    sources = [" ".join(rng.sample(words, k=rng.randint(1, len(words)))) for _ in range(60)]
    targets = [" ".join(rng.sample(source.split(), k=len(source.split()))) for source in sources]
    found = make_aligner(tokenizers).align([f" {source}  \u200b" for source in sources], targets)
    for source, target, links in zip(sources, targets, found, strict=True):
        words = source.split()
        assert links == sorted((words.index(word), position) for position, word in enumerate(target.split()))


def test_an_empty_side_has_no_links(tokenizers: Tokenizers) -> None:
    found = make_aligner(tokenizers).align(["", "cat", "\u200b", "cat"], ["cat", "", "", "cat"])
    assert found == [[], [], [], [(0, 0)]]
    assert make_aligner(tokenizers).align([], []) == []


def test_a_line_too_long_is_an_error(tokenizers: Tokenizers) -> None:
    aligner = make_aligner(tokenizers)
    with pytest.raises(UserError, match=r"target, line 12 has \d+ tokens; the model supports at most 1023; split"):
        aligner.align(["cat", "cat"], ["cat", "old " * 2000], first_line=11)


def test_right_to_left_models_align_in_reading_order(tokenizers: Tokenizers) -> None:
    pairs = [([5, 6, 7], [7, 5, 6]), ([9, 8], [8])]
    backwards = make_aligner(tokenizers, AlignmentAttention(1, (), "input"), reverse_target=True)
    assert backwards.attended(pairs) == [[2, 0, 1], [1]]
    forwards = attention_maps(AligningHeadModel(), [(source, target[::-1]) for source, target in pairs], CPU)
    for one, other in zip(backwards.maps(pairs), forwards, strict=True):
        np.testing.assert_array_equal(one, other[:, :, :, ::-1])


def test_options_choose_the_attention() -> None:
    def chosen(layers: int = 6, **options: object) -> AlignmentAttention:
        decode = DecodeRecipe.model_validate(options)
        return AlignmentAttention.from_recipe(decode, ModelRecipe(num_decoder_layers=layers, num_heads=8))

    assert chosen() == AlignmentAttention(4)
    assert chosen(layers=1) == AlignmentAttention(0)
    assert chosen(alignment_layer=5, alignment_heads=(0, 7)) == AlignmentAttention(5, (0, 7), "output")
    assert chosen(alignment_at="input").at == "input"
    with pytest.raises(UserError, match=r"alignment_layer must be between 0 and 5 \(the last decoder layer\), got 6"):
        chosen(alignment_layer=6)
    with pytest.raises(UserError, match="alignment_heads must be between 0 and 7, got 8"):
        chosen(alignment_heads=(1, 8))


class AttendingCopyModel(CopyModel):
    """Attends from each token to its copy."""

    recipe = RECIPE

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        weights = torch.eye(tgt.max_length, src.max_length)
        for _ in range(self.recipe.num_decoder_layers):
            yield weights.expand(src.num_sentences, self.recipe.num_heads, -1, -1)


LINES = [
    "the old cat sees a dog.",
    "",
    "  two   spaces\tand\u3000more ",
    "a\x00b \u200b cd",
    "\u2581 odd\u2581marks \u2581",
    "caf\u00e9 \U0001f600\U0001f680 \u732b",
    "the cat sees the old red tree slowly. " * 30,
    "\u732b" * 300,
    "x" * 700,
    "old cat, " * 60,
]


def translate(
    tokenizers: Tokenizers, lines: list[str], max_positions: int, **decode: object
) -> list[list[Translation]]:
    recipe = DecodeRecipe.model_validate(
        {"beam_size": 2, "max_extra_tokens": 3, "stop": "exact", "alignments": True} | decode
    )
    model = AttendingCopyModel(tokenizers.src.vocab_size)
    translator = Translator(model, tokenizers, recipe, max_positions=max_positions, unicode_form="NFC", device=CPU)
    return translator.translate_n_best(lines)


@pytest.mark.parametrize(("max_positions", "num_split"), [(30, 4), (1024, 0)])
@pytest.mark.slow
def test_copied_words_are_aligned(tokenizers: Tokenizers, max_positions: int, num_split: int) -> None:
    """Each word is aligned with its copy, also in lines that are split because they exceed the model's positions."""
    lengths = [len(tokenizers.src.encode(normalize(line, "NFC"))) for line in LINES]
    assert sum(length >= max_positions for length in lengths) == num_split  # one position is for EOS
    for line, (best,) in zip(LINES, translate(tokenizers, LINES, max_positions), strict=True):
        src_words, tgt_words = words_as_given(line, "NFC"), words_as_printed(best.text)
        assert len(src_words) == len(tgt_words)
        assert best.alignment == sorted(set(zip(src_words, tgt_words, strict=True)))
    (plain,) = translate(tokenizers, LINES[:1], max_positions)[0]
    assert plain.alignment == [(position, position) for position in range(6)]
    (empty,) = translate(tokenizers, [""], max_positions)[0]
    assert empty.alignment == []


def test_each_translation_has_its_own_alignment(tokenizers: Tokenizers) -> None:
    first, _, *others = translate(tokenizers, LINES[:4], 1024, n_best=2)  # the second line is empty
    for best, second in (first, *others):
        assert set(best.alignment or ()) < set(second.alignment or ())  # the second translation has one more token
        for translation in (best, second):
            assert translation.alignment is not None
            assert {target for _, target in translation.alignment} == set(range(len(translation.text.split())))


def test_alignments_are_computed_only_on_request(tokenizers: Tokenizers) -> None:
    class Blind(AttendingCopyModel):
        def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
            raise AssertionError("computed without a request")

    recipe = DecodeRecipe(beam_size=1)
    model = Blind(tokenizers.src.vocab_size)
    translator = Translator(model, tokenizers, recipe, max_positions=99, unicode_form="NFC", device=CPU)
    assert [best.alignment for (best,) in translator.translate_n_best(["the cat", ""])] == [None, None]
