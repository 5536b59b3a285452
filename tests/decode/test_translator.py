"""The translator: batches, order, streams and failures, with a model that copies."""

import sys
import weakref
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.decode.scoring import TextScorer
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.search.batches import Batching, static_batches
from nmt.special_ids import EOS_ID
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers
from tests.decode.copy_model import OUT_OF_MEMORY, CopyModel, CopyState, make_translator, nasty_lines, text_lines
from tests.decode.test_fusion import write_model


def test_all_text_gets_the_unicode_form_of_the_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", "data.unicode_form=NFKC")
    translator, scorer = Translator.load(path, "cpu", "fp32"), TextScorer.load(path, "cpu")
    translations, scores = [], []
    for letter in ("w", "\uff57"):  # the second is a compatibility form of the first
        source, prefix, required, target = (f"{letter}{number}" for number in (1, 2, 3, 4))
        translations.append(translator.translate_n_best([source], None, [prefix], [[required]]))
        scores.append(scorer.score([source], [target]))
    assert translations[0] == translations[1] and scores[0] == scores[1]
    assert translations[0][0][0].text.startswith("w2") and "w3" in translations[0][0][0].text


@pytest.mark.slow
@pytest.mark.parametrize("max_positions", [40, 1024])
def test_lines_keep_their_order(tokenizers: Tokenizers, max_positions: int) -> None:
    lines = nasty_lines()
    assert len(lines) == 200
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, max_positions, batch_tokens=20_000)
    num_split = 0
    for line, out in zip(lines, translator.translate(lines), strict=True):
        tokens = tokenizers.src.encode(normalize(line, "NFC"))
        expected = tokenizers.src.decode(tokens)
        assert len(out.splitlines()) <= 1
        if len(tokens) < min(max_positions, 256 + 1):
            assert out == expected
        else:
            num_split += 1
            assert out.replace(" ", "") == expected.replace(" ", "")
    assert translator.lines_split == num_split > 5


def test_empty_lines_skip_the_model(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers)
    assert translator.translate([" ", "", "\x00", "\u200b\u2028"]) == [""] * 4
    assert translator.translate_n_best(["\t"], n_best=2) == [[Translation("", 0.0, 0.0, [], [])]]
    assert translator.translate([]) == []
    assert model.batches == []


@pytest.mark.slow
def test_batches_have_similar_lengths_within_the_budget(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, batch_tokens=100)
    lines = text_lines(150) + ["cat"] * 50
    assert translator.translate(lines) == lines
    assert sum(map(len, model.batches)) == 200
    for lengths in model.batches:
        assert sum(max(length, 16) for length in lengths) <= 100 or len(lengths) == 1
    in_order = [length for lengths in model.batches for length in sorted(lengths, reverse=True)]
    assert in_order == sorted(in_order, reverse=True)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["cuda", "cpu", "numpy"])
def test_batches_shrink_permanently_when_memory_is_too_small(
    tokenizers: Tokenizers, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    model = CopyModel(tokenizers.src.vocab_size, too_many=4, error=error)
    translator = make_translator(model, tokenizers)
    lines = ["cat"] * 32  # each counts as 16 tokens: a batch of all, half of them, ...
    assert translator.translate(lines) == lines
    assert model.refused == [32, 16, 8, 4]
    assert list(map(len, model.batches)) == [2] * 16
    for _ in range(2):
        assert translator.translate(lines) == lines
    assert model.refused == [32, 16, 8, 4], "failed batch sizes are not tried again"
    model.too_many = 2
    assert translator.translate(lines) == lines
    assert model.refused == [32, 16, 8, 4, 2]
    said = [line for line in capfd.readouterr().err.splitlines() if "not enough memory" in line]
    assert len(said) == 1, "only the first time"
    assert "4,096" in said[0] and "reduced to 32" in said[0]


def test_memory_too_small_for_one_sentence_is_an_error(tokenizers: Tokenizers) -> None:
    with pytest.raises(UserError, match=r"^cpu is out of memory for a single sentence; [^\n]*$"):
        make_translator(CopyModel(tokenizers.src.vocab_size, too_many=1), tokenizers).translate(["cat"] * 3)


def test_other_errors_are_not_treated_as_out_of_memory(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size, too_many=2, error=RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        make_translator(model, tokenizers).translate(["cat"] * 3)
    assert model.refused == [3]


@pytest.mark.parametrize("sampling", [False, True])
def test_finished_sentences_survive_out_of_memory(tokenizers: Tokenizers, sampling: bool) -> None:
    """Short sentences finish before the step that fails and are not searched again."""

    class Grows(CopyModel):
        """Runs out of memory with two sentences after 12 steps."""

        def step(self, tokens: Tensor, state: CopyState) -> Tensor:
            if state.length >= 12 and len(state.sentences) > 1:
                raise torch.OutOfMemoryError("no")
            return super().step(tokens, state)

    lines = ["cat", "dog", "tree", "the old dog sees the red tree slowly. Then he said: go!", "a cat", "he"]
    lines += ["the red cat likes the old tree quickly, Then the dog said: go!"]
    model = Grows(tokenizers.src.vocab_size, sure=True)
    options: dict[str, Any] = {"sampling": True, "n_best": 1} if sampling else {}
    translator = make_translator(model, tokenizers, **options)
    lengths = sorted(len(tokenizers.src.encode(line)) + 1 for line in lines)
    assert lengths[-3] < 12 < lengths[-2]
    assert translator.translate(lines) == lines
    assert sorted(model.batches[0]) == lengths
    assert set(chain(*model.batches[1:])) == set(lengths[-2:]), "only the two long ones are searched again"
    assert [len(batch) for batch in model.batches[1:]] in ([1, 1], [2, 1, 1])


def test_a_failed_search_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensors:
        """State of a search."""

    held: list[weakref.ref[Tensors]] = []
    freed: list[bool] = []

    def search(sentences: list[int], rows: int, found: dict[int, int]) -> None:
        tensors = Tensors()
        held.append(weakref.ref(tensors))
        if rows > 1:
            raise torch.OutOfMemoryError("no")
        found.update({sentence: sentence for sentence in sentences})

    def empty_cache() -> None:
        freed.append(held[-1]() is None and sys.exc_info()[1] is None)

    monkeypatch.setattr("torch.cuda.empty_cache", empty_cache)
    batching = Batching(64, torch.device("cuda", 0))
    assert batching.run(static_batches, [5, 5, 5, 5], search) == [0, 1, 2, 3]
    assert freed == [True, True]


@pytest.mark.slow
def test_stream_reads_one_window_at_a_time(tokenizers: Tokenizers) -> None:
    lines = ["cat", "", "the old dog", "x " * 600, "tree", "a", "he said"]
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers)
    expected = translator.translate_n_best(lines)
    for window in (1, 2, 3, 100):
        asked: list[str] = []

        def reader(asked: list[str] = asked) -> Iterator[str]:
            for line in lines:
                asked.append(line)
                yield line

        answers = translator.stream(reader(), window)
        for number, translations in enumerate(expected, start=1):
            found = next(answers)
            assert [t.text for t in found] == [t.text for t in translations]
            assert len(asked) <= -(-number // window) * window
        assert next(answers, None) is None


@pytest.mark.parametrize("sampling", [False, True])
def test_nan_is_an_error(tokenizers: Tokenizers, sampling: bool) -> None:
    class Damaged(CopyModel):
        def step(self, tokens: Tensor, state: CopyState) -> Tensor:
            return super().step(tokens, state) * float("nan")

    translator = make_translator(Damaged(tokenizers.src.vocab_size), tokenizers, sampling=sampling)
    with pytest.raises(
        UserError, match=r"^no translation is possible; [^\n;]*, or the model returns NaN [^\n]*; [^\n]*$"
    ):
        translator.translate(["cat"])


def test_line_breaks_from_byte_pieces_become_spaces(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers.tgt
    spelled = [f"<0x{byte:02X}>" for byte in "a\nb\rc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i".encode()]
    ids = {tokenizer.pieces([i])[0]: i for i in range(tokenizer.vocab_size)}

    class BreaksLines(CopyModel):
        def start(self, src: PackedSequences, beam_size: int) -> CopyState:
            return CopyState([[*(ids[piece] for piece in spelled), EOS_ID]] * src.num_sentences, beam_size)

    translator = make_translator(BreaksLines(tokenizer.vocab_size), tokenizers, max_extra_tokens=50)
    [[translation]] = translator.translate_n_best(["cat"])
    assert translation.text == "a b c d e f g h i"
    assert translation.pieces == spelled


def test_scores_of_a_split_line_are_means_of_its_parts(tokenizers: Tokenizers) -> None:
    first, second = "the cat sees the old red tree slowly.", "the dog likes the tree."
    limit = max(len(tokenizers.src.encode(part)) for part in (first, second))
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, max_positions=limit + 1, beam_size=3)
    [joined] = translator.translate_n_best([f"{first} {second}"], n_best=3)
    parts = translator.translate_n_best([first, second], n_best=3)
    assert translator.lines_split == 1
    assert len(joined) == 3
    assert joined[0].text == f"{first} {second}"
    for rank, translation in enumerate(joined):
        a, b = parts[0][rank], parts[1][rank]
        assert translation.pieces == a.pieces + b.pieces
        assert translation.token_log_probs == a.token_log_probs + b.token_log_probs
        assert translation.log_prob == pytest.approx(a.log_prob + b.log_prob)
        assert translation.score == pytest.approx((a.score + b.score) / 2)


def test_eos_needs_a_position_of_the_source(tokenizers: Tokenizers) -> None:
    line = "the cat sees the old red tree slowly. the dog likes the tree."
    num_tokens = len(tokenizers.src.encode(line))
    for max_positions, num_parts in ((num_tokens + 1, 1), (num_tokens, 2)):
        model = CopyModel(tokenizers.src.vocab_size)
        translator = make_translator(model, tokenizers, max_positions)
        assert translator.translate([line]) == [line]
        assert sum(map(len, model.batches)) == num_parts and max(map(max, model.batches)) <= max_positions
