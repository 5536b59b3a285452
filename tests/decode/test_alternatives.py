"""Translations that begin with a partial word, alternatives after a prefix, and attention."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt.checkpoint import load_model
from nmt.decode.translator import Translator
from nmt.errors import NoTranslationError, UserError
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.search.options import SearchOptions
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.tokenizer import Tokenizers
from tests.cli.conftest import model as model
from tests.cli.nasty_lines import sentence

SEARCH = DecodeRecipe(beam_size=3, max_extra_tokens=20)


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return Translator.load(model, "cpu", "fp32", SEARCH)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    rng = random.Random(5)
    return [sentence(rng) for _ in range(4)]


@pytest.mark.parametrize("prefix", ["t", "the ca", "the cat ", "Zebr", "über", "the , a", "日本", "a  b"])
def test_translations_begin_with_a_partial_word(translator: Translator, lines: list[str], prefix: str) -> None:
    start = " ".join(prefix.split()) + (" " if prefix.endswith(" ") else "")
    for translations in translator.translate_n_best(lines, 2, [prefix] * len(lines), partial_word=True):
        assert all(f"{translation.text} ".startswith(start) for translation in translations)


class Reference:
    """Log-probabilities and attention of the model with teacher forcing."""

    def __init__(self, path: Path) -> None:
        self.model = load_model(path, torch.device("cpu")).model
        self.tokenizer = Tokenizers.load(path).tgt

    def pack(self, line: str, target: list[int]) -> tuple[PackedSequences, PackedSequences]:
        source = self.tokenizer.encode(line)
        return PackedSequences.from_lists([[*source, EOS_ID]]), PackedSequences.from_lists([[BOS_ID, *target]])

    @torch.inference_mode()
    def log_probs(self, line: str, target: list[int]) -> torch.Tensor:
        """Return log-probabilities after each target token, (target tokens + 1, vocab)."""
        return self.model.logits(self.model.forward(*self.pack(line, target))).log_softmax(dim=-1)

    @torch.inference_mode()
    def attention(self, line: str, target: list[int]) -> list[torch.Tensor]:
        return [layer[0, :, : len(target)] for layer in self.model.cross_attention(*self.pack(line, target))]


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.mark.parametrize("prefix", ["", "the cat", "quickly, 3.14 ü"])
@pytest.mark.slow
def test_alternatives_begin_with_the_most_probable_tokens(
    translator: Translator, reference: Reference, lines: list[str], prefix: str
) -> None:
    for line in lines:
        start = reference.tokenizer.encode(prefix)
        next_log_probs = reference.log_probs(line, start)[-1].clone()
        next_log_probs[: EOS_ID + 1] = -torch.inf
        found = translator.alternatives(line, prefix, 5)
        expected = reference.tokenizer.pieces(next_log_probs.topk(5).indices.tolist())
        assert 1 <= len(found) == len({translation.text for translation in found})
        order = [expected.index(translation.pieces[len(start)]) for translation in found]
        assert order == sorted(order)
        for translation in found:
            ids = reference.tokenizer.ids(translation.pieces)
            steps = reference.log_probs(line, ids).gather(1, torch.tensor([[*ids, EOS_ID]]).T)
            assert ids[: len(start)] == start
            assert translation.log_prob == pytest.approx(steps.sum().item(), abs=1e-4)


def test_mbr_does_not_change_the_scores_of_alternatives(translator: Translator, lines: list[str]) -> None:
    mbr = translator.with_decode(DecodeRecipe(mbr_metric="chrf", n_best=2))
    expected, found = (each.alternatives(lines[0], "the", 3) for each in (translator, mbr))
    assert [one.score for one in found] == [one.score for one in expected]


@pytest.mark.parametrize(("prefix", "count"), [("the c", 1), ("t", 2), ("the ", 4)])
def test_alternatives_complete_a_partial_word(
    translator: Translator, lines: list[str], prefix: str, count: int
) -> None:
    found = translator.alternatives(lines[0], prefix, 4, partial_word=True)
    assert len({translation.text for translation in found}) == len(found) >= count
    assert all(translation.text.startswith(prefix) for translation in found)


def test_alternatives_have_no_forbidden_phrase(translator: Translator, reference: Reference, lines: list[str]) -> None:
    (piece,) = reference.tokenizer.pieces(reference.tokenizer.encode("the"))
    found = translator.alternatives(lines[0], "", 200)
    assert any(piece in translation.pieces[:1] for translation in found)
    forbidding = translator.with_decode(DecodeRecipe(beam_size=4, max_extra_tokens=20, forbid=("the",)))
    left = forbidding.alternatives(lines[0], "", 200)
    assert left and not any(piece in translation.pieces for translation in left)


def test_impossible_alternatives_are_an_error(translator: Translator, lines: list[str]) -> None:
    prefix, required = "the cat", ["the tree"]
    length = len(translator._tokenizers.tgt.encode(prefix))
    limited = translator.with_decode(DecodeRecipe(max_tokens=length + 1))  # the required phrase does not fit
    with pytest.raises(NoTranslationError):
        limited.translate([lines[0]], [prefix], [required])
    with pytest.raises(NoTranslationError):
        limited.alternatives(lines[0], prefix, 3, required)


def test_tokens_that_complete_a_forbidden_phrase() -> None:
    options = SearchOptions(forbidden=((5,), (6, 7), (8, 6, 9)))
    for tokens, expected in (((), [5]), ((6,), [5, 7]), ((8, 6), [5, 7, 9]), ((7, 8, 6), [5, 7, 9]), ((6, 8), [5])):
        assert options.forbidden_after(tokens) == expected


def test_tokens_that_repeat_an_ngram() -> None:
    for n, tokens, expected in (
        (0, (5, 5), set()),
        (1, (5, 6, 5), {5, 6}),
        (2, (5, 6, 5), {6}),
        (2, (5, 5), {5}),
        (3, (5, 6, 7, 8, 5, 6), {7}),
        (3, (5, 6), set()),
        (2, (), set()),
    ):
        assert set(SearchOptions(no_repeat_ngram=n).forbidden_after(tokens)) == expected


def test_alternatives_do_not_repeat_ngrams(translator: Translator, reference: Reference, lines: list[str]) -> None:
    prefix = "said the said"
    encoded = reference.tokenizer.encode(prefix)
    repeated = encoded[encoded.index(encoded[-1]) + 1]
    found = translator.alternatives(lines[0], prefix, 200)
    assert any(reference.tokenizer.ids(one.pieces)[len(encoded) :][:1] == [repeated] for one in found)
    options = DecodeRecipe(beam_size=3, max_extra_tokens=20, no_repeat_ngram=2)
    without = translator.with_decode(options).alternatives(lines[0], prefix, 200)
    assert without
    for one in without:
        tokens = reference.tokenizer.ids(one.pieces)
        assert len(set(pairwise(tokens))) == len(tokens) - 1


def test_alternatives_of_empty_and_of_split_lines(translator: Translator) -> None:
    assert [translation.text for translation in translator.alternatives(" ", "", 3)] == [""]
    line = "the cat sees a dog. " * 20
    first, *others = translator.alternatives(line, "", 3)
    assert others
    assert translator.translate([line])[0] in {first.text, *(translation.text for translation in others)}
    assert all(translation.text.split()[-1:] == first.text.split()[-1:] for translation in others)


def test_attention_is_that_of_the_decoder(translator: Translator, reference: Reference, lines: list[str]) -> None:
    for line in [*lines, ""]:
        ((translation,),) = translator.translate_n_best([line], 1)
        attention = translator.attention(line, translation)
        assert attention.target == translation.pieces
        assert attention.source == [*reference.tokenizer.pieces(reference.tokenizer.encode(line)), "</s>"]
        expected = reference.attention(line, reference.tokenizer.ids(translation.pieces))
        for layer, weights in zip(expected, attention.weights, strict=True):
            assert np.array(weights).reshape(layer.shape) == pytest.approx(layer.numpy(), abs=1e-4)


def test_attention_of_a_split_line_is_an_error(translator: Translator) -> None:
    line = "the cat sees a dog. " * 20
    ((translation,),) = translator.translate_n_best([line], 1)
    with pytest.raises(UserError, match="the line is split"):
        translator.attention(line, translation)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "the cat"])
def test_a_greedy_search_reports_each_token(model: Path, lines: list[str], prefix: str) -> None:
    greedy = Translator.load(model, "cpu", "fp32", SEARCH.model_copy(update={"beam_size": 1}).all_given())
    for line in lines:
        reported: list[str] = []
        ((translation,),) = greedy.with_callback(reported.append).translate_n_best([line], prefixes=[prefix])
        ids = greedy._tokenizers.tgt.ids(translation.pieces)
        assert reported == [greedy._tokenizers.tgt.decode(ids[: end + 1]) for end in range(len(ids))]
        assert greedy.translate([line], [prefix]) == [translation.text]


def test_several_lines_are_not_reported_and_a_beam_is_an_error(translator: Translator, lines: list[str]) -> None:
    reported: list[str] = []
    with pytest.raises(UserError, match="with_callback needs greedy search"):
        translator.with_callback(reported.append).translate(lines)
    greedy = translator.with_decode(DecodeRecipe(beam_size=1))
    assert greedy.with_callback(reported.append).translate(lines) == greedy.translate(lines)
    assert reported == []
