"""The translator with a copying model, which reveals errors of order and splitting, and with a Transformer."""

import copy
import pickle
import random
import sys
import weakref
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.decode.arguments import translator_inputs
from nmt.decode.glossary import Glossary, Term
from nmt.decode.scoring import TextScorer
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.inference.quantized import supports_int8
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe, SearchPrecision, TokenizerRecipe
from nmt.search.batches import Batching, static_batches
from nmt.search.beam_search import StepModel
from nmt.search.ensemble import Ensemble
from nmt.special_ids import EOS_ID
from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS, ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.text.clean import normalize
from nmt.text.splitting import Alternatives, assign_phrases, join_texts, split_text
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.decode.test_fusion import write_model

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(not supports_int8(CPU), reason="this processor has no AVX-512-VNNI")
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "tree",
    "sees",
    "likes",
    "old",
    "red",
    "quickly,",
    "slowly.",
    "Then",
    "he",
    "said:",
    "go!",
]


def text_lines(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]


def nasty_lines() -> list[str]:
    """Return 200 difficult lines."""
    lines = [
        "",
        " ",
        "\t",
        "\u3000 \u00a0",
        "\x00",
        "\x00\x00 a\x00b",
        "\ufeffcat",
        "\ud800 lone \udfff surrogates",
        "\u200b",
    ]
    lines += ["cat\rdog", "cat\x85dog", "cat\u2028dog\u2029", "cat\x0b\x0c\x1c\x1d\x1edog", "  the  cat  ", "▁▁ cat ▁"]
    lines += [
        "<s> </s> <unk> <pad> <0x0A>",
        "\\n \\t %s {0} $HOME `rm`",
        "&amp; <b>cat</b>",
        "😀🇩🇪👩‍👩‍👧‍👦🏳️‍🌈",
        "ﷺ ﬁ ½ Å",
    ]
    lines += ["שלום עולם", "مرحبا بالعالم؟ نعم.", "\u202etac\u202c", "日本語の文。二番目の文。", "नमस्ते दुनिया", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢"]
    lines += [
        "word " * 10_000,
        "x" * 3_000,
        "cat. " * 300,
        "猫" * 700,
        "a," * 500,
        "https://example.org/" + "path/" * 80,
        "0" * 257,
    ]
    rng = random.Random(1)
    while len(lines) < 150:
        lines.append(
            "".join(chr(rng.choice([rng.randrange(0x250), rng.randrange(0x110000)])) for _ in range(rng.randrange(60)))
        )
    return lines + text_lines(200 - len(lines), seed=2)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    tokenizer = train_tokenizer(text_lines(300), TokenizerRecipe(vocab_size=320), path)
    return Tokenizers(tokenizer, tokenizer)


class CopyState:
    def __init__(self, sentences: list[list[int]], beam_size: int) -> None:
        self.sentences, self.beam_size, self.length = sentences, beam_size, 0

    def reorder(self, beam_index: Tensor) -> None:
        pass

    def select(self, sentence_index: Tensor) -> None:
        self.sentences = [self.sentences[i] for i in sentence_index.tolist()]


OUT_OF_MEMORY = (
    torch.OutOfMemoryError("no"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError("no"),
)


class CopyModel:
    """Predicts the source token of each position.

    too_many: number of sentences in a batch that exhaust its memory
    error:    raised if they do
    sure:     whether all other tokens have probability 0, which makes samples deterministic
    """

    def __init__(
        self, vocab: int, too_many: int = 10**9, *, error: Exception = OUT_OF_MEMORY[0], sure: bool = False
    ) -> None:
        self.vocab, self.too_many, self.error, self.sure = vocab, too_many, error, sure
        self.batches: list[list[int]] = []  # lengths of the sentences of each batch
        self.refused: list[int] = []  # sizes of the batches that were too large

    def start(self, src: PackedSequences, beam_size: int) -> CopyState:
        if src.num_sentences >= self.too_many:
            self.refused.append(src.num_sentences)
            raise self.error
        self.batches.append(src.lengths.tolist())
        return CopyState(src.to_lists(), beam_size)

    def step(self, tokens: Tensor, state: CopyState) -> Tensor:
        log_probs = torch.full((*tokens.shape, self.vocab), 0.0 if self.sure else 0.1 / self.vocab).log()
        for row, sentence in enumerate(state.sentences):
            log_probs[row, :, sentence[min(state.length, len(sentence) - 1)]] = -0.1
        state.length += 1
        return log_probs


def make_translator(
    model: StepModel[CopyState],
    tokenizers: Tokenizers,
    max_positions: int = 1024,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    **decode: Any,
) -> Translator:
    # The model is nearly certain of each token, so all other hypotheses end early; `first` would stop at these.
    stop = "first" if decode.get("sampling") else "exact"
    recipe = DecodeRecipe.model_validate({"beam_size": 2, "max_extra_tokens": 3, "stop": stop} | decode)
    return Translator(
        model,
        tokenizers,
        recipe,
        max_positions=max_positions,
        unicode_form="NFC",
        device=CPU,
        max_tokens=max_tokens,
    )


# --- With the model that copies --------------------------------------------------------------------------------------


def test_sentences_of_a_line_are_translated_separately(tokenizers: Tokenizers) -> None:
    sentences = ["Dr. Smith sees the old red tree.", "The dog likes the tree!", "The cat sees the tree."]
    limit = max(len(tokenizers.src.encode(sentence)) for sentence in sentences)
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, max_positions=limit + 1, beam_size=3, split_sentences=True)
    joined, empty = translator.translate_n_best([f"  {sentences[0]}\t {sentences[1]} {sentences[2]} ", " "], n_best=3)
    assert translator.lines_split == 0
    whole = make_translator(model, tokenizers, max_positions=limit + 1, beam_size=3)
    parts = whole.translate_n_best(sentences, n_best=3)
    assert (joined[0].text, empty[0].text) == (" ".join(sentences), "")
    for rank, translation in enumerate(joined):
        assert translation.pieces == [piece for part in parts for piece in part[rank].pieces]

    longer = "the dog likes the old red tree slowly and the cat sees the old red tree."
    prefixed = translator.translate_n_best([f"{sentences[0]} {longer}"], n_best=1, prefixes=["the"])[0][0]
    assert translator.lines_split == 1
    assert prefixed.text.startswith("the")
    assert prefixed.text.endswith(longer)


def test_sentences_of_a_line_are_aligned_separately(tmp_path: Path) -> None:
    first, second = "w1 w2 w3.", " ".join(["7", *(f"w{number % 9}" for number in range(40))])
    decode = DecodeRecipe(alignments=True, split_sentences=True)
    translator = Translator.load(write_model(tmp_path / "model"), "cpu", "fp32", decode)
    (one,), (other,), (both,) = translator.translate_n_best([first, second, f"{first} {second}"])
    assert translator.lines_split == 2 and one.alignment and other.alignment
    num_src, num_tgt = len(first.split()), len(one.text.split())
    assert both.alignment == [*one.alignment, *((src + num_src, tgt + num_tgt) for src, tgt in other.alignment)]


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


def test_only_a_line_that_is_not_split_is_streamed(tokenizers: Tokenizers) -> None:
    model, streamed = CopyModel(tokenizers.src.vocab_size), list[str]()
    options: dict[str, Any] = {"beam_size": 1, "stop": "first", "split_sentences": True, "batch_tokens": 1}
    translator = make_translator(model, tokenizers, **options).with_callback(streamed.append)
    assert translator.translate(["The cat sees the tree. The dog sees it."]) == [
        "The cat sees the tree. The dog sees it."
    ]
    assert streamed == []
    assert translator.translate(["The cat sees the tree."]) == streamed[-1:] == ["The cat sees the tree."]


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
    said = [line for line in capfd.readouterr().err.splitlines() if "not enough memory" in line]
    assert len(said) == 1
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


def test_a_stream_has_as_many_prefixes_as_lines(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, beam_size=2)
    lines = ["the old dog", "a red tree"]
    for arguments in ({"prefixes": iter(["the", "a", "a"])}, {"required": [[], [], ["dog"]]}):
        stream = translator.stream(lines, 1, **arguments)
        assert len([next(stream), next(stream)]) == 2
        with pytest.raises(UserError, match="has more items than there are lines; expected one per line"):
            next(stream)
    short = translator.stream(lines, 1, ["the"])
    assert next(short)
    with pytest.raises(UserError, match="got 0 prefixes for 1 line"):
        next(short)


def test_a_prefix_longer_than_any_output_is_an_error(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=4)
    prefix = "the old dog"
    assert len(tokenizers.tgt.encode(prefix)) == 3
    assert translator.translate(["cat"], [prefix]) == [prefix]
    with pytest.raises(
        UserError, match=r"the prefix, or the line .* has 7 tokens; an output has at most 3; shorten it"
    ):
        translator.translate(["cat"], [f"{prefix} sees it"])


def test_translations_have_the_required_phrases_of_their_line(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, beam_size=4)
    lines, required = ["the old dog", "a red tree", "", "he said: go!"], [["cat"], [], ["dog"], ["red tree", "likes"]]
    found = translator.translate(lines, required=required)
    assert [line for line, phrases in zip(found, required, strict=True) if not phrases] == ["a red tree"]
    assert "cat" in found[0] and found[2] == "" and "red tree" in found[3] and "likes" in found[3]
    assert found == [out[0].text for out in translator.stream(lines, window=2, required=required)]
    together = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, beam_size=4, require=["cat"])
    assert together.translate(["the old dog"], required=[[]]) == together.translate(["the old dog"]) == [found[0]]


def test_phrases_are_found_within_lines_of_scripts_without_spaces(tmp_path: Path) -> None:
    words = ("犬", "猫", "鳥", "魚")
    recipe = TokenizerRecipe(vocab_size=266, algorithm="char", character_coverage=1.0)
    tokenizer = train_tokenizer(["".join(pair) for pair in product(words, words)], recipe, tmp_path / "tokenizer.model")
    tokenizers = Tokenizers(tokenizer, tokenizer)
    model = CopyModel(tokenizer.vocab_size)
    for options in ({"forbid": ["猫"]}, {"bias": {"猫": -50.0}}):
        (found,) = make_translator(model, tokenizers, **options).translate(["犬猫鳥"])
        assert found and "猫" not in found
    (found,) = make_translator(model, tokenizers, beam_size=8).translate(["犬鳥鳥犬鳥"], required=[["魚"]])
    assert "魚" in found[1:] and " " not in found


def test_latin_phrases_are_found_in_languages_without_spaces(tmp_path: Path) -> None:
    """A Latin word that the model writes after a Japanese one is not repeated if required, and can be forbidden."""
    recipe = TokenizerRecipe(vocab_size=266, algorithm="char", character_coverage=1.0)
    train_tokenizer(["犬猫鳥魚", "ab cd", "犬ab"], recipe, tmp_path / "tokenizer.model")
    found = []
    for language in ("ja", "de"):
        tokenizers = Tokenizers.load(tmp_path, language)
        model = CopyModel(tokenizers.src.vocab_size)
        (required,) = make_translator(model, tokenizers, beam_size=8).translate(["犬ab猫"], required=[["ab"]])
        (forbidden,) = make_translator(model, tokenizers, forbid=["ab"]).translate(["犬ab猫"])
        found.append((required, "ab" in forbidden))
    assert found[0] == ("犬ab猫", False)
    assert found[1][0] != found[0][0] and found[1][1]


def test_bias_and_groups_of_the_recipe_are_applied(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    assert make_translator(model, tokenizers, bias={"dog": -20.0}).translate(["the old dog"]) != ["the old dog"]
    groups = make_translator(model, tokenizers, beam_size=4, beam_groups=2, n_best=2, diversity_penalty=9.0)
    [translations] = groups.translate_n_best(["the old dog"])
    assert len({translation.text for translation in translations}) == 2


def test_invalid_required_phrases_are_errors(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, max_positions=6)
    sampling = make_translator(model, tokenizers, sampling=True)
    for one, required, message in (
        (translator, [["the cat"], []], "got 2 lists of required phrases for 1 line; "),
        (translator, [["the cat sees the old red tree"]], r"required phrases .* have 10 tokens; .* at most 5; "),
        (sampling, [["dog"]], "sampling does not support required phrases; "),
        (translator, [[" "]], "required phrase ' ' is empty; "),
        (translator, [[()]], r"required phrase \(\) is empty; "),
        (translator, [[("dog", "")]], r"required phrase \('dog', ''\) is empty; "),
    ):
        with pytest.raises(UserError, match=message) as raised:
            one.translate(["cat"], required=required)
        assert "\n" not in str(raised.value) and str(raised.value).count(";") == 2


# --- Splitting -------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="ab .,!?。、\u0301", max_size=80), st.integers(1, 20))
def test_parts_fit_and_cover_the_whole_line(text: str, limit: int) -> None:
    line = " ".join(text.split())
    pieces = split_text(line, lambda piece: len(piece) <= limit)
    assert all(0 < len(piece) <= limit and piece == piece.strip() for piece in pieces)
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One two. Three four.", 20, ["One two. Three four."]),
        ("One, two three. Four five", 20, ["One, two three.", "Four five"]),
        ('He said: "Go!" Then he, too, went.', 25, ['He said: "Go!"', "Then he, too, went."]),
        ("At 3.14 it is one and a half, no more", 30, ["At 3.14 it is one and a half,", "no more"]),
        ("A. B. C. D. E. F. G. H.", 12, ["A. B. C. D.", "E. F. G. H."]),
        ("one two three four", 10, ["one two", "three four"]),
        ("1,000,000.50 and", 13, ["1,000,000.50", "and"]),
        ("一二三。四五六七八。九", 8, ["一二三。", "四五六七八。九"]),
        ("abcdefgh", 3, ["ab", "cd", "ef", "gh"]),
        ("", 3, []),
    ],
)
def test_lines_are_split_at_the_best_positions(text: str, limit: int, pieces: list[str]) -> None:
    assert split_text(text, lambda piece: len(piece) <= limit) == pieces


def test_a_character_too_long_is_its_own_part() -> None:
    assert split_text("ab", lambda piece: False) == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "joined", "first_words"),
    [
        (["One two.", "Three"], "One two. Three", [0, 2]),
        (["\u4e00\u4e8c\u3002", "\u4e09\u56db"], "\u4e00\u4e8c\u3002\u4e09\u56db", [0, 0]),
        (["\u4e00 \u4e8c", "\u4e09 \u56db", "\u4e94"], "\u4e00 \u4e8c\u4e09 \u56db\u4e94", [0, 1, 2]),
        (
            ["\u201c\u4e00\u3002\u201d", "\u300c\u4e8c\u300d", "API"],
            "\u201c\u4e00\u3002\u201d\u300c\u4e8c\u300dAPI",
            [0, 0, 0],
        ),
        (["\u3072\u3089", "\u30ab\u30bf"], "\u3072\u3089\u30ab\u30bf", [0, 0]),
        (["\u0e01\u0e33", "\u0e02"], "\u0e01\u0e33\u0e02", [0, 0]),  # Thai
        (["\u0e81", "\u0e82"], "\u0e81\u0e82", [0, 0]),  # Lao
        (["\u1780\u17d4", "\u1781"], "\u1780\u17d4\u1781", [0, 0]),  # Khmer
        (["\u1000\u104b", "\u1001"], "\u1000\u104b\u1001", [0, 0]),  # Burmese
        (["\uac00", "\ub098"], "\uac00 \ub098", [0, 1]),  # Korean has spaces
        (["it is called \u4e2d\u6587", "in Chinese"], "it is called \u4e2d\u6587 in Chinese", [0, 4]),
        (["", "a", "", "b"], "a b", [0, 0, 1, 1]),
        (["a", '"'], 'a "', [0, 1]),
        ([], "", []),
    ],
)
def test_parts_are_joined_with_or_without_a_space(texts: list[str], joined: str, first_words: list[int]) -> None:
    assert join_texts(texts) == (joined, first_words)


FIRST, SECOND = "the old dog sees a red tree.", "Then he likes the cat slowly."


def split_in_two(tokenizers: Tokenizers, **decode: Any) -> Translator:
    """Return a translator that splits FIRST from SECOND."""
    longest = max(len(tokenizers.src.encode(part)) for part in (FIRST, SECOND))
    return make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_tokens=longest, **decode)


def test_lines_longer_than_training_sentences_are_split(tokenizers: Tokenizers) -> None:
    translator = split_in_two(tokenizers)
    assert translator.translate([f"{FIRST} {SECOND}", FIRST]) == [f"{FIRST} {SECOND}", FIRST]
    assert translator.lines_split == 1
    unsplit = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers)
    assert unsplit.translate([f"{FIRST} {SECOND}"]) == [f"{FIRST} {SECOND}"]
    assert unsplit.lines_split == 0


def test_the_first_part_of_a_split_line_gets_the_prefix(tokenizers: Tokenizers) -> None:
    [found] = split_in_two(tokenizers, beam_size=4).translate([f"{FIRST} {SECOND}"], prefixes=["he said:"])
    assert found.startswith("he said:") and found.endswith(SECOND)
    assert "he said:" not in found[8:]


@pytest.mark.parametrize("phrase", ["old dog", "likes the cat", "he likes"])
def test_a_phrase_is_assigned_to_the_part_that_contains_it(tokenizers: Tokenizers, phrase: str) -> None:
    translator = split_in_two(tokenizers, beam_size=4)
    assert translator.translate([f"{FIRST} {SECOND}"], required=[[phrase]]) == [f"{FIRST} {SECOND}"]


def test_every_translation_of_a_split_line_has_the_required_phrases(tokenizers: Tokenizers) -> None:
    phrases = ["quickly", "cat slowly", "go! go!", "quickly"]
    for options in ({"n_best": 3}, {"require": ["quickly", "go! go!"]}):
        translator = split_in_two(tokenizers, beam_size=8, max_extra_tokens=12, **options)
        [whole, split] = translator.translate_n_best([FIRST, f"{FIRST} {SECOND}"], required=[[], phrases])
        assert all(phrase in one.text for one in split for phrase in phrases)
        assert all("quickly" in one.text for one in whole) == ("require" in options)
        for one in split:
            assert len(one.token_log_probs) == len(one.pieces) + 2
            assert one.log_prob == pytest.approx(sum(one.token_log_probs))
    forbidding = split_in_two(tokenizers, beam_size=4, forbid=["red", "likes"])
    [found] = forbidding.translate([f"{FIRST} {SECOND}"])
    assert "red" not in found.split() and "likes" not in found.split()


def test_parts_of_a_line_get_the_terms_in_them(tokenizers: Tokenizers) -> None:
    glossary = Glossary(
        [Term("red tree", ("quickly", "go! go!")), Term("tree slowly", ("dog",)), Term("cat", ("old",))]
    )
    translator = split_in_two(tokenizers, beam_size=6, max_extra_tokens=12)
    lines = [f"{FIRST} {SECOND}", "a red tree", "a man", ""]
    found = translator.translate(lines, glossary=glossary)
    assert ("quickly" in found[0] or "go! go!" in found[0]) and "old" in found[0].partition("Then")[2]
    assert "quickly" in found[1] or "go! go!" in found[1]
    assert found[2:] == translator.translate(lines[2:])
    assert found == [out[0].text for out in translator.stream(lines, window=2, glossary=glossary)]
    assert translator.translate(lines[1:], glossary=[None, glossary, None]) == translator.translate(lines[1:])


def test_terms_in_the_rest_of_a_truncated_line_are_not_required(tokenizers: Tokenizers) -> None:
    glossary, start = Glossary([Term("cat", ("old",)), Term("tree", ("dog",))]), "the tree"
    limit = len(tokenizers.src.encode(start))
    options: dict[str, Any] = {"max_tokens": limit, "long_lines": "truncate", "beam_size": 4}
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, **options)
    found = translator.translate([f"{start} cat", start], glossary=glossary)
    assert found[0] == found[1]
    assert "dog" in found[0]


def test_terms_beyond_the_maximum_length_are_not_required(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=6)
    glossary = Glossary([Term("cat", ("the cat sees the old red tree",))])
    assert translator.translate(["cat"], glossary=glossary) == ["cat"]
    prefix, form = "the old red", "the dog"
    positions = len(tokenizers.tgt.encode(prefix)) + len(tokenizers.tgt.encode(form))  # one too few, because of EOS
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=positions)
    glossary = Glossary([Term("cat", (form,))])
    assert form in translator.translate(["cat"], glossary=glossary)[0]
    assert translator.translate(["cat"], [prefix], glossary=glossary) == translator.translate(["cat"], [prefix])
    sampling = make_translator(CopyModel(9), tokenizers, sampling=True)
    with pytest.raises(UserError, match=r"^sampling [^;]*;[^;]*;[^;]*$"):
        sampling.translate(["cat"], glossary=glossary)


def test_a_phrase_is_assigned_to_the_most_probable_part() -> None:
    one: Alternatives = ((7,),)
    two: Alternatives = ((9, 9), (5, 6))
    three: Alternatives = ((8, 9), (8,))
    log_probs = {(0, one): -9.0, (1, one): -8.5, (0, three): -float("inf"), (1, three): -30.0}
    asked: list[tuple[int, Alternatives]] = []

    def search(pairs: list[tuple[int, Alternatives]]) -> list[float]:
        asked.extend(pairs)
        return [log_probs[pair] for pair in pairs]

    outputs = [(4, 5, 4, 6), (4, 5, 6)]
    assert assign_phrases([one, two, three, one], outputs, [-2.0, -1.0], search) == [[one], [two, three]]
    assert asked == [*log_probs]
    impossible = assign_phrases([one], [(), ()], [-float("inf")] * 2, lambda pairs: [-float("inf")] * len(pairs))
    assert impossible == [[one], []], "the search of the line then says that no translation is possible"


# --- With a real model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_directory(tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    recipe = ModelRecipe.model_validate(sizes | {"max_positions": 48})
    vocab = tokenizers.src.vocab_size
    model = Transformer(recipe, vocab, vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    decode = DecodeRecipe(beam_size=2, n_best=2, max_extra_tokens=4)
    metadata = ModelMetadata("en", "de", vocab, vocab, "NFC", decode, max_tokens=30)
    directory = tmp_path_factory.mktemp("run") / "model"
    write_directory(directory, model_files(recipe, model_tensors(model), tokenizers.files(), metadata))
    return directory


@pytest.mark.slow
def test_results_do_not_depend_on_batching(model_directory: Path) -> None:
    lines = [line[:200] for line in nasty_lines()[:100]]
    outputs = []
    for batch_tokens in (150, 5_000):
        loaded = load_model(model_directory, CPU)
        translator = Translator(
            loaded.model.double(),  # float64 rounding is too small to change a decision
            Tokenizers.load(model_directory),
            DecodeRecipe(beam_size=2, max_extra_tokens=4, batch_tokens=batch_tokens),
            max_positions=48,
            unicode_form="NFC",
            device=CPU,
        )
        outputs.append(translator.translate(lines))
    assert len(outputs[0]) == 100
    assert all(len(out.splitlines()) <= 1 for out in outputs[0])
    assert len(set(outputs[0])) > 50
    assert outputs[0] == outputs[1]
    order = random.Random(0).sample(range(100), 30)
    assert translator.translate([lines[i] for i in order]) == [outputs[0][i] for i in order]
    assert translator.translate([lines[20]]) == [outputs[0][20]]


@pytest.mark.slow
def test_load_uses_the_models_recipe(model_directory: Path) -> None:
    translator = Translator.load(str(model_directory), device="cpu", precision="fp32")
    lines = text_lines(5)
    for translations in translator.translate_n_best(lines):
        assert len(translations) == 2  # n_best of the model's recipe
        assert translations[0].score >= translations[1].score
        assert all(translation.text and translation.pieces for translation in translations)
        for translation in translations:
            assert len(translation.token_log_probs) == len(translation.pieces) + 1
            assert sum(translation.token_log_probs) == pytest.approx(translation.log_prob)
    assert translator.translate(lines) == [translations[0].text for translations in translator.translate_n_best(lines)]
    greedy = Translator.load(model_directory, device="cpu", precision="fp32", decode=DecodeRecipe(beam_size=1))
    assert [len(translations) for translations in greedy.translate_n_best(lines)] == [1] * 5
    with pytest.raises(UserError, match=r"n_best must be between 1 and beam_size \(1\), got 2"):
        greedy.translate_n_best(lines, n_best=2)


@pytest.mark.slow
def test_results_do_not_depend_on_the_default_dtype(model_directory: Path) -> None:
    lines = text_lines(5)
    outputs = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            translator = Translator.load(model_directory, device="cpu", precision="fp32")
            translations = translator.translate_n_best(lines)
            scores = TextScorer.load(model_directory, "cpu").score(lines, lines)
        finally:
            torch.set_default_dtype(torch.float32)
        outputs.append((translations, scores))
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.slow
def test_load_splits_at_the_models_max_tokens(model_directory: Path, tokenizers: Tokenizers, tmp_path: Path) -> None:
    line = " ".join(text_lines(9))
    translator = Translator.load(model_directory, device="cpu")
    translator.translate([line, "the cat"])
    assert translator.lines_split == 1
    parts = [part.tokens for part in translator._split(line)]
    assert len(parts) > 1 and all(len(tokens) <= 30 for tokens in parts)
    assert list(chain(*parts)) == tokenizers.src.encode(line)
    old = tmp_path / "old"  # without max_tokens in its metadata; it has 48 positions
    files = {path.name: path.read_bytes() for path in model_directory.iterdir() if path.name != "manifest.json"}
    files["model.toml"] = files["model.toml"].replace(b"max_tokens = 30\n", b"")
    write_directory(old, files)
    assert any(len(part.tokens) > 30 for part in Translator.load(old, device="cpu")._split(line))


@pytest.mark.slow
def test_fp16_is_closer_to_fp32_than_bf16(model_directory: Path) -> None:
    """fp16 has 11 significant bits and bf16 has 8, so fp16 errors are an eighth of bf16's; a quarter is allowed."""
    lines = text_lines(40)
    precisions: tuple[SearchPrecision, ...] = ("fp32", "fp16", "bf16")
    exact, fp16, bf16 = (
        [best for (best,) in Translator.load(model_directory, "cpu", precision).translate_n_best(lines, 1)]
        for precision in precisions
    )

    def errors(reduced: list[Translation]) -> list[float]:
        """Return the errors of the log-probabilities of all tokens in equal translations."""
        return [
            abs(a - b)
            for one, other in zip(exact, reduced, strict=True)
            if one.text == other.text
            for a, b in zip(one.token_log_probs, other.token_log_probs, strict=True)
        ]

    assert 0 < mean(errors(fp16)) < mean(errors(bf16)) / 4
    same = [one.text == other.text for one, other in zip(exact, fp16, strict=True)]
    assert sum(same) >= 36  # random weights leave some undecided


@pytest.mark.slow
@pytest.mark.parametrize("reduced", ["bf16", pytest.param("int8", marks=needs_int8)])
def test_reduced_precision_is_close_to_fp32(model_directory: Path, reduced: Literal["bf16", "int8"]) -> None:
    scores = []
    precisions: tuple[SearchPrecision, ...] = ("fp32", reduced)
    for precision in precisions:
        translator = Translator.load(model_directory, device="cpu", precision=precision)
        scores.append([translations[0].score for translations in translator.translate_n_best(text_lines(20))])
    differences = (torch.tensor(scores[0]) - torch.tensor(scores[1])).abs()
    # About 0.01; scores are about -20. The median, because random weights leave some decisions to rounding.
    assert 0.0 < differences.median() < 0.1


@pytest.mark.slow
@needs_int8
def test_int8_results_do_not_depend_on_the_batch(model_directory: Path) -> None:
    translator = Translator.load(model_directory, device="cpu", precision="int8")
    lines = text_lines(12)
    together = translator.translate_n_best(lines)
    alone = [translator.translate_n_best([line])[0] for line in lines]
    assert [[one.text for one in found] for found in together] == [[one.text for one in found] for found in alone]
    for found, same in zip(together, alone, strict=True):
        assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in same], abs=1e-4)


def test_int8_is_rejected_without_vnni(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu._is_vnni_supported", lambda: False)
    with pytest.raises(
        UserError, match="int8 needs a CPU with AVX-512-VNNI; device cpu is not one; use --precision fp32 or bf16"
    ):
        Translator.load(model_directory, device="cpu", precision="int8")


def test_a_translator_is_neither_pickled_nor_deep_copied(model_directory: Path) -> None:
    translator = Translator.load(model_directory, "cpu")
    assert copy.copy(translator).translate(["ab"]) == translator.translate(["ab"])
    for function in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a Translator can be neither pickled nor deep-copied; load one in each"):
            function(translator)


def test_a_model_in_training_mode_is_an_error(model_directory: Path, tokenizers: Tokenizers) -> None:
    loaded = load_model(str(model_directory), "cpu")
    for model in (loaded.model.train(), Ensemble([loaded.model])):
        with pytest.raises(ValueError, match=r"in training mode, .*; call model\.eval\(\)"):
            Translator(
                model, tokenizers, DecodeRecipe(), max_positions=9, unicode_form="NFC", device=torch.device("cpu")
            )


class Labeled(list[Any]):
    """A list that is indexed by labels, like a pandas Series after sorting."""

    def __getitem__(self, label: Any) -> Any:
        return super().__getitem__(len(self) - 1 - label)


def test_arguments_are_matched_by_position() -> None:
    inputs = translator_inputs(
        Labeled(["a", "b"]),
        Labeled(["c", "d"]),
        Labeled([["e"], ["f"]]),
        glossary=Labeled([Glossary([Term("g", ("h",))]), None]),
        context=Labeled([["i"], []]),
    )
    assert [(one.text, one.prefix, one.required, one.context) for one in inputs] == [
        ("a", "c", ["e"], ["i"]),
        ("b", "d", ["f"], []),
    ]
    assert inputs[0].glossary is not None and inputs[1].glossary is None


def test_a_missing_model_and_an_unknown_device_are_errors(tmp_path: Path, model_directory: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        Translator.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="device 'abacus' is unknown"):
        Translator.load(model_directory, device="abacus")
