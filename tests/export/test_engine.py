"""Parity of CTranslate2Translator and Translator for all search options."""

import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from nmt.decode.scoring import TextScorer
from nmt.decode.task import Task, TranslatorInput
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.engines import start_workers
from nmt.errors import UserError
from nmt.export import batches
from nmt.export.batches import TokenReporter, split_batches
from nmt.export.capabilities import COMPUTE_TYPES, EngineDevice, enable_avx512, resolve_precision, select_device
from nmt.export.engine import CTranslate2Translator
from nmt.grammar import ToyPair
from nmt.recipe import DecodeRecipe, SearchPrecision
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizer, Tokenizers
from tests.export.conftest import MakeModel
from tests.export.rounding import perturbed_copies, stable_lines
from tests.extras import import_ctranslate2

import_ctranslate2()


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    """A model whose translations end with EOS before the length limit."""
    return make_model(seed=3)


def search(**decode: object) -> DecodeRecipe:
    return DecodeRecipe.model_validate({"length_penalty": "power", "max_extra_tokens": 10} | decode).all_given()


def load_both(model: Path, **decode: object) -> tuple[Translator, CTranslate2Translator]:
    recipe = search(**decode)
    return (
        Translator.load(model, "cpu", "fp32", recipe),
        CTranslate2Translator.load(model, "cpu", "fp32", recipe),
    )


@pytest.fixture(scope="module")
def copies(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return perturbed_copies(model, tmp_path_factory.mktemp("copies"))


def assert_parity(ours: list[list[Translation]], theirs: list[list[Translation]], stable: list[int]) -> None:
    """Compare the best translations and their scores for the lines that rounding does not affect."""
    for number in stable:
        expected, actual = ours[number][0], theirs[number][0]
        assert (actual.pieces, actual.text) == (expected.pieces, expected.text)
        assert actual.score == pytest.approx(expected.score, abs=1e-4)
        assert actual.log_prob == pytest.approx(expected.log_prob, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "decode",
    [
        {"beam_size": 1},
        {"length_alpha": 1.0},
        {"length_penalty": "none"},
        {"length_penalty": "gnmt", "length_alpha": 0.0},
        {"length_penalty": "gnmt", "length_alpha": 0.6},
        {"stop": "patience", "patience": 2.0},
        {"max_extra_tokens": 60},
        {"beam_size": 5, "n_best": 5},
        {"beam_size": 1, "min_tokens": 12},
        {"beam_size": 1, "max_length_ratio": 0.5},
        {"beam_size": 1, "no_repeat_ngram": 2},
        {"beam_size": 1, "forbid": ["the", "dog", "ist", "s"]},
    ],
    ids=str,
)
def test_translations_and_scores_match(
    decode: dict[str, object], model: Path, copies: list[Path], lines: list[str]
) -> None:
    ours, theirs = load_both(model, **decode)
    stable = stable_lines(copies, search(**decode), lines)
    translations = theirs.translate_n_best(lines)
    assert_parity(ours.translate_n_best(lines), translations, stable)
    theirs._scores = False
    texts = [best.text for best, *_ in theirs.translate_n_best(lines)]
    assert [texts[number] for number in stable] == [translations[number][0].text for number in stable]


@pytest.mark.slow
def test_constraints_are_satisfied(model: Path, lines: list[str]) -> None:
    tokenizer = Tokenizers.load(model).src
    _, theirs = load_both(model, min_tokens=9, no_repeat_ngram=2, beam_size=3)
    for [translation] in theirs.translate_n_best(lines):
        assert len(translation.pieces) >= 9
        bigrams = list(zip(translation.pieces, translation.pieces[1:], strict=False))
        assert len(set(bigrams)) == len(bigrams)
    _, theirs = load_both(model, max_length_ratio=0.5)
    for line, [translation] in zip(lines, theirs.translate_n_best(lines), strict=True):
        assert len(translation.pieces) <= -(-len(tokenizer.encode(line)) // 2)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "Der alte"])
def test_alternatives_match(model: Path, lines: list[str], prefix: str) -> None:
    ours, theirs = load_both(model)
    pairs = [[engine.alternatives(line, prefix, 3) for engine in (ours, theirs)] for line in lines[:10]]
    same = [[one.pieces for one in expected] == [one.pieces for one in actual] for expected, actual in pairs]
    assert sum(same) >= 9  # rounding may decide between two tokens or translations


def test_a_prefix_of_maximum_length_has_no_alternatives(model: Path, lines: list[str]) -> None:
    prefix = "Der alte"
    length = len(Tokenizers.load(model).tgt.encode(prefix))
    for translator in load_both(model, max_tokens=length):
        assert [one.text for one in translator.alternatives(lines[0], prefix, 3)] == [prefix]


def test_alternatives_do_not_start_with_special_tokens(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In imported Marian models, BOS has the row of the padding token, which may be probable."""
    translator = CTranslate2Translator.load(model, "cpu", "fp32")
    ranking = [BOS_ID, PAD_ID, 7, 8, 9]
    monkeypatch.setattr(translator._engine, "next_tokens", lambda task, count: ranking[:count])
    assert translator._next_tokens(Task([7], [], []), 3) == [7, 8, 9]


@pytest.mark.parametrize("prefix", [[], [7]])
def test_there_are_at_most_as_many_alternatives_as_tokens(model: Path, prefix: list[int]) -> None:
    size = Tokenizers.load(model).tgt.vocab_size
    for translator in load_both(model):
        for count in (size - 2, size, 2 * size):
            tokens = translator._next_tokens(Task([7], prefix, []), count)
            assert sorted(tokens) == list(range(EOS_ID + 1, size))


@pytest.mark.parametrize("prefix", ["", "Der alte"])
def test_a_greedy_search_reports_each_token(model: Path, lines: list[str], prefix: str) -> None:
    engine = CTranslate2Translator.load(model, "cpu", "fp32", search(beam_size=1))
    decode = Tokenizers.load(model).tgt
    for line in lines[:5]:
        reported: list[str] = []
        ((translation,),) = engine.with_callback(reported.append).translate_n_best([line], prefixes=[prefix])
        ids = decode.ids(translation.pieces)
        assert reported == [decode.decode(ids[: end + 1]) for end in range(len(ids))]


def test_a_callback_does_not_keep_the_translator(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of CTranslate2 that released the last reference to its translator would abort the process."""
    reporters: list[TokenReporter] = []
    report = TokenReporter.report

    def remember(reporter: TokenReporter, step: Any) -> bool:
        reporters.append(reporter)
        return report(reporter, step)

    monkeypatch.setattr(TokenReporter, "report", remember)
    engine = CTranslate2Translator.load(model, "cpu", "fp32", search(beam_size=1))
    reported: list[str] = []
    engine.with_callback(reported.append).translate(["the dog"], prefixes=["Der alte"])
    assert len(reporters) >= len(reported) > 0
    assert all(reporter._on_tokens is None for reporter in reporters)
    assert reporters[0].report(None)  # stops a search that is still running


@pytest.mark.slow
def test_scores_are_log_probabilities_including_a_prefix(model: Path, copies: list[Path], lines: list[str]) -> None:
    options: dict[str, object] = {"beam_size": 4, "length_penalty": "none"}
    ours, theirs = load_both(model, **options)
    prefixes = ["", "Der Hund", "xyz"] * (len(lines) // 3)
    expected = ours.translate_n_best(lines, prefixes=prefixes)
    actual = theirs.translate_n_best(lines, prefixes=prefixes)
    assert_parity(expected, actual, stable_lines(copies, search(**options), lines, prefixes))
    tokenizer = Tokenizers.load(model).tgt
    for prefix, [translation] in zip(prefixes, actual, strict=True):
        pieces = tokenizer.pieces(tokenizer.encode(prefix))
        assert translation.pieces[: len(pieces)] == pieces
    scorer = TextScorer.load(model, "cpu")
    for line, [translation] in zip(lines, actual, strict=True):
        if tokenizer.pieces(tokenizer.encode(normalize(translation.text, "NFC"))) == translation.pieces:
            [score] = scorer.score([line], [translation.text])
            assert translation.log_prob == pytest.approx(score.log_prob, abs=1e-3)
            assert translation.score == translation.log_prob


@pytest.mark.slow
def test_n_best_lists_are_distinct_and_sorted(model: Path, lines: list[str]) -> None:
    ours, theirs = load_both(model, beam_size=4, n_best=4)
    for expected, actual in zip(ours.translate_n_best(lines), theirs.translate_n_best(lines), strict=True):
        assert len({tuple(translation.pieces) for translation in actual}) == len(actual) == 4
        assert [t.score for t in actual] == sorted((t.score for t in actual), reverse=True)
        assert actual[0].score <= expected[0].score + 0.05
    assert all(len(n_best) == 2 for n_best in theirs.translate_n_best(lines[:5], n_best=2))


@pytest.mark.slow
def test_n_best_lists_are_complete_with_the_gnmt_penalty(make_model: MakeModel, pairs: list[ToyPair]) -> None:
    """If more hypotheses end than it returns, CTranslate2 drops some by scores with another length penalty."""
    penalty = {"length_penalty": "gnmt", "length_alpha": 1.7}
    translators = load_both(make_model(seed=1), **penalty, beam_size=4, n_best=4, max_extra_tokens=30)
    ours, theirs = (translator.translate_n_best([pairs[i].src for i in (21, 23, 66)]) for translator in translators)
    assert [[one.pieces for one in n_best] for n_best in theirs] == [[one.pieces for one in n_best] for n_best in ours]


def test_outputs_with_excluded_tokens_are_dropped(model: Path) -> None:
    """CTranslate2 outputs PAD, or a token that an option excludes, if its beam is larger than the number of others."""
    translator = CTranslate2Translator.load(model, "cpu", "fp32", search(beam_size=4))
    pieces = Tokenizers.load(model).tgt.all_pieces
    hypotheses = [[pieces[7], pieces[EOS_ID]], [pieces[PAD_ID], pieces[EOS_ID]], [pieces[8], pieces[EOS_ID]]]
    for exponent in (1.0, -8.0):
        scores = [log_prob / 2**exponent for log_prob in (-2.0, -1e10, float("-inf"))]
        outputs = translator._engine._outputs(Mock(hypotheses=hypotheses, scores=scores), exponent)
        assert [(output.tokens, output.log_prob) for output in outputs] == [([7], -2.0)]


def test_unusual_lines_keep_their_order(model: Path) -> None:
    _, theirs = load_both(model, beam_size=2, min_tokens=2)
    lines = ["The dog.", "", "x " * 400, "<s> </s> <unk>", "\ud800 漢字", "The dog."]
    texts = theirs.translate(lines)
    assert len(texts) == len(lines)
    assert texts[0] == texts[-1] != ""
    assert texts[1] == ""
    assert theirs.lines_split == 1
    assert all("\n" not in text for text in texts)


def test_threads_get_the_translations_of_their_own_lines(model: Path, lines: list[str]) -> None:
    translator = CTranslate2Translator.load(model, "cpu", "fp32", search(), translators=2)
    assert translator.max_threads == 4
    expected = translator.translate(lines)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda line: translator.translate([line])[0], lines * 3))
    assert found == expected * 3


class CollectedOnce:
    """A result of CTranslate2 that can be collected only once; every second call of `done` returns true."""

    answers = itertools.cycle((False, True))

    def __init__(self, result: Any) -> None:
        self._result, self._is_collected = result.result(), False

    def done(self) -> bool:
        assert not self._is_collected
        return next(self.answers)

    def result(self) -> Any:
        self._is_collected = True
        return self._result


def test_batches_and_windows_are_larger_on_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a GPU takes as long for hundreds of sentences as for a few."""
    decode = search(beam_size=5)
    translator = CTranslate2Translator.load(model, "cpu", "fp32", decode, translators=1)
    assert translator._batch_tokens == 256
    translator._engine.on_gpu = True
    translator._set_decode(decode)
    assert translator._batch_tokens == 8_192
    translator._set_decode(search(batch_tokens=300))
    assert translator._batch_tokens == 300
    for device, on_gpu in ((EngineDevice("cpu"), False), (EngineDevice("cuda", 1), True)):
        monkeypatch.setattr("nmt.engines.select_device", lambda name, device=device: device)
        with start_workers("ctranslate2", "auto", None, None) as workers:
            assert workers.on_gpu is on_gpu


def test_no_state_is_read_after_results_are_collected(model: Path, lines: list[str]) -> None:
    translator = CTranslate2Translator.load(model, "cpu", "fp32", search(batch_tokens=1), translators=1)
    expected = translator.translate(lines)
    theirs = translator._engine._translator
    translator._engine._translator = Mock(
        wraps=theirs,
        translate_batch=lambda *given, **options: [
            CollectedOnce(one) for one in theirs.translate_batch(*given, **options)
        ],
    )
    assert translator.translate(lines) == expected


def test_an_interruption_cancels_waiting_batches(
    model: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = CTranslate2Translator.load(model, "cpu", "fp32", search(batch_tokens=1), translators=1)
    finish = translator.start_translation([TranslatorInput(lines[0])])
    monkeypatch.setattr(batches, "sleep", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(batches.Batch, "is_done", False)
    with pytest.raises(KeyboardInterrupt):
        translator.translate(lines)
    monkeypatch.undo()
    assert not translator._engine._queue._waiting
    assert [finish()[0][0].text] == translator.translate(lines[:1])


def test_an_error_reaches_the_caller_whose_lines_cause_it(model: Path, lines: list[str]) -> None:
    translator = CTranslate2Translator.load(model, "cpu", "fp32", search(batch_tokens=1), translators=1)
    expected = translator.translate_n_best(lines)
    theirs = translator._engine._translator

    def translate_batch(*given: Any, target_prefix: object, **options: Any) -> list[Any]:
        if target_prefix is not None:
            raise ValueError("no prefixes")
        return list(theirs.translate_batch(*given, **options))

    translator._engine._translator = Mock(wraps=theirs, translate_batch=translate_batch)
    finish = translator.start_translation([TranslatorInput(line) for line in lines])
    fail = translator.start_translation([TranslatorInput(lines[0], "Der")])
    assert finish() == expected
    with pytest.raises(UserError, match="CTranslate2 failed: no prefixes"):
        fail()


def test_all_unsupported_options_are_named(model: Path) -> None:
    decode = DecodeRecipe(beam_groups=2, stop="exact", alignments=True, shortlist=Path("list"))
    with pytest.raises(UserError) as refused:
        CTranslate2Translator.load(model, "cpu", "fp32", decode, ensemble=[model])
    message = str(refused.value)
    names = ("decode.stop 'exact'", "beam groups", "alignments", "--shortlist", "ensembles")
    assert all(name in message for name in names)
    assert "\n" not in message


def test_a_greedy_search_has_no_stopping_criterion(model: Path, lines: list[str]) -> None:
    ours, theirs = load_both(model, beam_size=1, stop="exact")
    assert theirs.translate(lines[:1]) == ours.translate(lines[:1])
    with pytest.raises(UserError, match=r"does not support decode\.stop 'exact'"):
        theirs.with_decode(DecodeRecipe(beam_size=4))


def test_precisions_have_compute_types() -> None:
    names: tuple[SearchPrecision, ...] = ("fp32", "bf16", "fp16", "int8", "auto")
    types = [COMPUTE_TYPES[resolve_precision(name, EngineDevice("cpu"))] for name in names]
    assert types == ["float32", "bfloat16", "float16", "int8", "int8"]


def test_device_names_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 0)
    assert select_device("cpu") == select_device("auto") == EngineDevice("cpu")
    assert select_device("cuda:3") == EngineDevice("cuda", 3)
    with pytest.raises(UserError, match=r"device 'cuda' does not exist \(CUDA devices found: 0\); use cpu"):
        select_device("cuda")
    for device in ("cpu:1", "gpu", "cuda:x", None, 0):
        with pytest.raises(UserError, match=f"device {device!r} is unknown"):
            select_device(device)  # type: ignore[arg-type]


def test_a_process_that_sees_only_its_own_gpu_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert select_device("auto") == select_device("cuda") == EngineDevice("cuda", 0)


@pytest.mark.parametrize(
    ("vendor", "flags", "user", "expected"),
    [
        ("AuthenticAMD", "avx2 avx512f avx512cd avx512vl avx512dq avx512bw", None, "AVX512"),
        ("AuthenticAMD", "avx2 avx512f avx512cd avx512vl avx512dq avx512bw", "AVX2", "AVX2"),
        ("AuthenticAMD", "avx2 avx512f", None, None),
        ("GenuineIntel", "avx2 avx512f avx512cd avx512vl avx512dq avx512bw", None, None),
        ("GenuineIntel", "avx2 avx512f avx512cd avx512vl avx512dq avx512bw amx_tile", None, "AVX512"),
    ],
)
def test_avx512_is_enabled_where_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, flags: str, user: str | None, expected: str | None
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n\nvendor_id\t: other\n")
    monkeypatch.setenv("CT2_FORCE_CPU_ISA", user or "")  # restores the variable after the test
    if user is None:
        monkeypatch.delenv("CT2_FORCE_CPU_ISA")
    enable_avx512(cpuinfo)
    assert os.environ.get("CT2_FORCE_CPU_ISA") == expected
    enable_avx512(tmp_path / "missing")  # no error on other systems


def test_an_unsupported_precision_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctranslate2.get_supported_compute_types", lambda *_: {"float32", "int8"})
    decode = DecodeRecipe(length_penalty="none")
    with pytest.raises(UserError, match=r"does not support precision fp16 \(this CPU supports fp32, int8\)"):
        CTranslate2Translator.load(model, "cpu", "fp16", decode)


def test_a_negative_number_of_translators_is_an_error(model: Path) -> None:
    with pytest.raises(ValueError, match="translators must be at least 1, got -1"):
        CTranslate2Translator.load(model, "cpu", "fp32", translators=-1)


@pytest.mark.slow
def test_int8_is_close_to_fp32(model: Path, lines: list[str]) -> None:
    recipe = search(beam_size=1)
    exact = Translator.load(model, "cpu", "fp32", recipe).translate_n_best(lines)
    rounded = CTranslate2Translator.load(model, "cpu", "int8", recipe).translate_n_best(lines)
    same = sum(one.pieces == other.pieces for [one], [other] in zip(exact, rounded, strict=True))
    assert same >= 0.8 * len(lines)
    assert [translation.log_prob for [translation] in exact] != [translation.log_prob for [translation] in rounded]


def test_with_decode_equals_loading_with_the_same_options(model: Path) -> None:
    for translator in load_both(model, beam_size=4):
        other = translator.with_decode(search(beam_size=4, n_best=3, forbid=["e"]))
        reloaded = type(translator).load(model, "cpu", "fp32", search(beam_size=4, n_best=3, forbid=["e"]))
        assert other.translate_n_best(["the cat sees a dog"]) == reloaded.translate_n_best(["the cat sees a dog"])
        assert len(translator.translate_n_best(["the cat sees a dog"])[0]) == 1
        without_scores = translator.with_decode(search(beam_size=4), scores=False)
        assert without_scores.translate(["the cat sees a dog"]) == translator.translate(["the cat sees a dog"])
        with pytest.raises(UserError, match="tag '<no>' is unknown"):
            translator.with_decode(search(tag="<no>"))


def test_digits_may_be_excluded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of a translation stand for digits."""
    line, excluded = "the cat sees a dog", list[int]()
    monkeypatch.setattr(Tokenizer, "tokens_with_digits", lambda _: excluded)

    def tokens_of(translator: Translator | CTranslate2Translator) -> set[int]:
        return {*Tokenizers.load(model).tgt.ids(translator.translate_n_best([line])[0][0].pieces)}

    for translator in load_both(model, beam_size=4):
        excluded = [*tokens_of(translator)]
        without = translator.with_constraints(None, digits=False)
        for constrained in (without, without.with_constraints(None), without.with_decode(search(beam_size=2))):
            assert tokens_of(constrained).isdisjoint(excluded)
        assert tokens_of(translator) == {*excluded}


def test_mbr_selects_from_the_candidates_of_the_recipe(model: Path) -> None:
    lines = ["the cat sees a dog", "a dog"]
    for translator in load_both(model, beam_size=4, n_best=4, mbr_metric="chrf"):
        ranked = translator.translate_n_best(lines)
        assert translator.translate_n_best(lines, 2) == [one[:2] for one in ranked]
        assert translator.translate_n_best(lines, 1) == [one[:1] for one in ranked]
        assert translator.translate(lines) == [one[0].text for one in ranked]


def test_sentences_of_a_batch_have_equal_lengths() -> None:
    rng = random.Random(1)
    lengths = [(rng.randint(1, 9), rng.randint(0, 1)) for _ in range(300)]
    split = list(split_batches(lengths, 40))
    assert sorted(i for batch in split for i in batch) == list(range(300))
    assert all(len(batch) * (max(lengths[i][0] for i in batch) + 1) <= 40 for batch in split)
    assert all(len({lengths[i] for i in batch}) == 1 for batch in split)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "The "])
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_results_do_not_depend_on_the_batch(
    model: Path, lines: list[str], prefix: str, precision: Literal["int8", "fp32"]
) -> None:
    translator = CTranslate2Translator.load(model, "cpu", precision, search(n_best=2), translators=1)
    prefixes = [prefix * (number % 3) for number in range(len(lines))]
    alone = [translator.translate_n_best([line], prefixes=[own])[0] for line, own in zip(lines, prefixes, strict=True)]
    assert translator.translate_n_best(lines, prefixes=prefixes) == alone


@pytest.mark.slow
def test_a_result_at_the_length_limit_does_not_depend_on_longer_lines(make_model: MakeModel, lines: list[str]) -> None:
    recipe = search(beam_size=3, length_alpha=1.0, max_extra_tokens=20)
    translator = CTranslate2Translator.load(make_model(), "cpu", "int8", recipe, translators=1)
    alone = [translator.translate_n_best([line])[0] for line in lines]
    assert translator.translate_n_best([*lines, " ".join(lines[:5])])[:-1] == alone


def test_lines_of_equal_length_have_the_same_batch_key(model: Path, lines: list[str]) -> None:
    torch_translator, translator = load_both(model)
    tokenizer = Tokenizers.load(model).src
    assert [translator.batch_key(line) for line in lines] == [len(tokenizer.encode(line)) for line in lines]
    assert {torch_translator.batch_key(line) for line in lines} == {None}
