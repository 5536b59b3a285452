"""Translating by CTranslate2 against translating by ourselves: outputs, scores, all options, the kept conversion."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.decode.scoring import Scorer
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.export import cache
from nmt.export import ctranslate2 as conversion
from nmt.export.engine import CTranslate2Translator
from nmt.export.offers import Place, choose_compute_type, choose_place
from nmt.recipe import DecodeRecipe, UserError
from nmt.storage.model_facts import read_model_facts
from nmt.storage.sealed import CorruptError
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers
from tests.export.rounding import changed_copies, decided_lines

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'nmt[fast]'")

MakeModel = Callable[..., Path]


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    """One whose translations end by themselves: at the limit of length, CTranslate2's beam search has other rules."""
    return make_model(seed=3)


def search(**decode: object) -> DecodeRecipe:
    return DecodeRecipe.model_validate({"length_penalty": "power", "max_extra_tokens": 10} | decode).all_given()


def both(model: Path, **decode: object) -> tuple[Translator, CTranslate2Translator]:
    recipe = search(**decode)
    return (
        Translator.load(model, "cpu", "fp32", recipe),
        CTranslate2Translator.load(model, "cpu", "fp32", recipe),
    )


@pytest.fixture(scope="module")
def copies(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return changed_copies(model, tmp_path_factory.mktemp("copies"))


def assert_the_same(ours: list[list[Translation]], theirs: list[list[Translation]], decided: list[int]) -> None:
    """The best translations of the lines that rounding does not decide, and their scores."""
    for number in decided:
        own, other = ours[number][0], theirs[number][0]
        assert (other.pieces, other.text) == (own.pieces, own.text)
        assert other.score == pytest.approx(own.score, abs=1e-4)
        assert other.log_prob == pytest.approx(own.log_prob, abs=1e-3)


@pytest.mark.parametrize(
    "decode",
    [
        {"beam_size": 1},
        {"length_alpha": 0.0},
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
        {"batch_tokens": 40},
    ],
    ids=str,
)
def test_translations_and_scores_are_the_same(
    decode: dict[str, object], model: Path, copies: list[Path], lines: list[str]
) -> None:
    ours, theirs = both(model, **decode)
    decided = decided_lines(copies, search(**decode), lines)
    found = theirs.translate_n_best(lines)
    assert_the_same(ours.translate_n_best(lines), found, decided)
    theirs._scores = False  # as for text alone
    texts = [best.text for best, *_ in theirs.translate_n_best(lines)]
    assert [texts[number] for number in decided] == [found[number][0].text for number in decided]


def test_the_rules_hold(model: Path, lines: list[str]) -> None:
    tokenizer = Tokenizers.load(model).src
    _, theirs = both(model, min_tokens=9, no_repeat_ngram=2, beam_size=3)
    for [translation] in theirs.translate_n_best(lines):
        assert len(translation.pieces) >= 9
        bigrams = list(zip(translation.pieces, translation.pieces[1:], strict=False))
        assert len(set(bigrams)) == len(bigrams)
    _, theirs = both(model, max_length_ratio=0.5)
    for line, [translation] in zip(lines, theirs.translate_n_best(lines), strict=True):
        assert len(translation.pieces) <= -(-len(tokenizer.encode(line)) // 2)


@pytest.mark.slow
def test_scores_are_log_probabilities_also_of_a_prefix(model: Path, copies: list[Path], lines: list[str]) -> None:
    options: dict[str, object] = {"beam_size": 4, "length_penalty": "none"}
    ours, theirs = both(model, **options)
    prefixes = ["", "Der Hund", "xyz"] * (len(lines) // 3)
    expected = ours.translate_n_best(lines, prefixes=prefixes)
    found = theirs.translate_n_best(lines, prefixes=prefixes)
    assert_the_same(expected, found, decided_lines(copies, search(**options), lines, prefixes))
    begun = Tokenizers.load(model).tgt
    for prefix, [translation] in zip(prefixes, found, strict=True):
        given = begun.pieces(begun.encode(prefix))
        assert translation.pieces[: len(given)] == given
    scorer = Scorer.load(model, "cpu")
    for line, [translation] in zip(lines, found, strict=True):
        if begun.pieces(begun.encode(normalize(translation.text, "NFC"))) == translation.pieces:
            [score] = scorer.score([line], [translation.text])
            assert translation.log_prob == pytest.approx(score.log_prob, abs=1e-3)
            assert translation.score == translation.log_prob


@pytest.mark.slow
def test_n_best_are_different_and_in_order(model: Path, lines: list[str]) -> None:
    ours, theirs = both(model, beam_size=4, n_best=4)
    for own, other in zip(ours.translate_n_best(lines), theirs.translate_n_best(lines), strict=True):
        assert len({tuple(translation.pieces) for translation in other}) == len(other) == 4
        assert [t.score for t in other] == sorted((t.score for t in other), reverse=True)
        assert other[0].score <= own[0].score + 0.05
    assert all(len(found) == 2 for found in theirs.translate_n_best(lines[:5], n_best=2))


def test_lines_of_any_kind_come_back_in_order(model: Path) -> None:
    _, theirs = both(model, beam_size=2, min_tokens=2)
    lines = ["The dog.", "", "x " * 400, "<s> </s> <unk>", "\ud800 漢字", "The dog."]
    found = theirs.translate(lines)
    assert len(found) == len(lines)
    assert found[0] == found[-1] != ""
    assert found[1] == ""
    assert theirs.lines_cut == 1
    assert all("\n" not in text for text in found)


def test_all_that_cannot_be_honoured_is_named_at_once(model: Path) -> None:
    decode = DecodeRecipe(num_groups=2, stop="exact", alignments=True, shortlist=Path("list"))
    with pytest.raises(UserError) as refused:
        CTranslate2Translator.load(model, "cpu", "fp32", decode, ensemble=[model])
    message = str(refused.value)
    named = ("decode.stop 'exact'", "groups", "alignments", "--shortlist", "ensemble")
    assert all(name in message for name in named)
    assert "\n" not in message
    types = [choose_compute_type(name, Place("cpu")) for name in ("fp32", "bf16", "fp16", "int8", "auto")]
    assert types == ["float32", "bfloat16", "float16", "int8", "int8"]


def test_devices_have_the_names_of_ours() -> None:
    assert choose_place("cpu") == choose_place("auto") == Place("cpu")
    assert (choose_place("cuda"), choose_place("cuda:3")) == (Place("cuda"), Place("cuda", 3))
    for wrong in ("cpu:1", "gpu", "cuda:x"):
        with pytest.raises(UserError, match=f"device '{wrong}' is unknown"):
            choose_place(wrong)


def test_a_precision_that_the_device_lacks_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctranslate2.get_supported_compute_types", lambda *_: {"float32", "int8"})
    decode = DecodeRecipe(length_penalty="none")
    with pytest.raises(UserError, match=r"no precision fp16 \(on this cpu it has fp32, int8\)"):
        CTranslate2Translator.load(model, "cpu", "fp16", decode)


def test_int8_is_near(model: Path, lines: list[str]) -> None:
    ours, _ = both(model, beam_size=1, min_tokens=1)
    rough = CTranslate2Translator.load(
        model, "cpu", "int8", DecodeRecipe(beam_size=1, length_penalty="power", min_tokens=1)
    )
    exact, near = ours.translate_n_best(lines), rough.translate_n_best(lines)
    assert {t.pieces[0] == o.pieces[0] for [t], [o] in zip(exact, near, strict=True)} >= {True}
    assert [t.log_prob for [t] in exact] != [t.log_prob for [t] in near]


# --- The kept conversion ----------------------------------------------------------------------------------------------


def conversions(model: Path) -> dict[Path, int]:
    return {path: (path / "model.bin").stat().st_mtime_ns for path in model.glob("ctranslate2-*")}


def convert_once(model: Path) -> Path:
    with cache.open_conversion(model, "float32") as made:
        return made.directory


def test_the_conversion_is_kept_until_the_model_changes(make_model: MakeModel, lines: list[str]) -> None:
    model, other = make_model(seed=2), make_model(seed=3)
    decode = read_model_facts(model).decode
    first = CTranslate2Translator.load(model, "cpu", "fp32", decode).translate(lines)
    [(path, written)] = conversions(model).items()
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(lines) == first
    assert conversions(model) == {path: written}
    for name in ("model.safetensors", "manifest.json"):
        (model / name).write_bytes((other / name).read_bytes())
    changed = CTranslate2Translator.load(model, "cpu", "fp32").translate(lines)
    assert changed == CTranslate2Translator.load(other, "cpu", "fp32").translate(lines) != first
    assert len(conversions(model)) == 1
    assert path not in conversions(model)


def damage(conversion_directory: Path) -> None:
    content = bytearray((conversion_directory / "model.bin").read_bytes())
    content[len(content) // 2] ^= 64
    (conversion_directory / "model.bin").write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["absent", "damaged", "outdated"])
def test_processes_that_start_together_convert_once(make_model: MakeModel, tmp_path: Path, state: str) -> None:
    """None of them finds a directory that another one has half removed, or loads what was damaged."""
    model = make_model(seed=6)
    if state != "absent":
        damage(convert_once(model))
    if state == "outdated":
        other = make_model(seed=12)
        for name in ("model.safetensors", "manifest.json"):
            (model / name).write_bytes((other / name).read_bytes())
    context = get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    children = [context.Process(target=_load_together, args=(model, barrier, results)) for _ in range(4)]
    for child in children:
        child.start()
    found = [results.get(timeout=240) for _ in children]
    for child in children:
        child.join(60)
    translations, numbers_converted = zip(*found, strict=True)
    assert len(set(translations)) == 1
    assert sorted(numbers_converted) == [0, 0, 0, 1]
    assert len(list(model.glob("*ctranslate2-*"))) == 1


def _load_together(model: Path, barrier: Any, results: Any) -> None:
    """Load a model when other processes do; what it translates, and how many conversions this process has made."""
    convert, calls = conversion.convert, list[Any]()

    def convert_slowly(*arguments: Any) -> dict[str, bytes]:
        calls.append(arguments)
        time.sleep(0.5)  # the others meet the state that this process has met
        return convert(*arguments)

    conversion.convert = convert_slowly  # type: ignore[assignment]
    barrier.wait(200)
    try:
        [text] = CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."])
    except UserError as error:
        text = f"failed: {error}"
    results.put((text, len(calls)))


def test_a_conversion_is_not_removed_while_it_is_read(make_model: MakeModel) -> None:
    model, other = make_model(seed=13), make_model(seed=14)
    with cache.open_conversion(model, "float32") as first:
        pass
    with cache.open_conversion(model, "float32"):
        for name in ("model.safetensors", "manifest.json"):
            (model / name).write_bytes((other / name).read_bytes())
        replacing = Thread(target=convert_once, args=(model,))
        replacing.start()
        replacing.join(2.0)
        assert (first.directory / "model.bin").exists()
    replacing.join(60)
    assert list(conversions(model)) == [convert_once(model)] != [first.directory]


@pytest.mark.parametrize(("is_kept", "said"), [(True, "finds it done"), (False, "does it again, because ")])
def test_a_conversion_says_whether_it_is_kept(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_kept: bool,
    said: str,
) -> None:
    model = make_model(seed=16)
    monkeypatch.setattr("os.access", lambda *_: is_kept)
    convert_once(model)
    assert bool(conversions(model)) == is_kept
    assert f"for CTranslate2; the next call {said}" in capsys.readouterr().err


def test_only_what_is_surely_left_behind_is_removed(make_model: MakeModel) -> None:
    model = make_model(seed=7)
    directory = convert_once(model)
    outdated, other_version = model / "ctranslate2-2-0123456789abcdef-int8", model / "ctranslate2-99-0123456789abcdef"
    young, old = model / f".{directory.name}.part-young", model / f".{directory.name}.part-old"
    for folder in (outdated, other_version, young, old):
        (folder / "inner").mkdir(parents=True)
    days_ago = time.time() - 3 * 86_400
    os.utime(old, (days_ago, days_ago))
    (directory / "model.bin").unlink()
    assert convert_once(model) == directory
    assert {path for path in model.iterdir() if path.is_dir()} == {directory, other_version, young}


def test_a_model_that_is_replaced_while_it_is_converted_is_an_error(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the weights of one model could be kept under the hash of another."""
    model, other = make_model(seed=8), make_model(seed=9)
    convert = conversion.convert

    def replace_first(*arguments: Any) -> dict[str, bytes]:
        for name in ("model.safetensors", "manifest.json"):
            (model / name).write_bytes((other / name).read_bytes())
        return convert(*arguments)

    monkeypatch.setattr(conversion, "convert", replace_first)
    with pytest.raises(UserError, match="was replaced while it was converted"):
        convert_once(model)
    assert not conversions(model)
    assert (convert_once(model) / "model.bin").exists()


@pytest.mark.parametrize("missing", ["flock", "open"])
def test_no_lock_is_needed(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Some file systems have none, and some models lie where nothing can be written."""
    model = make_model(seed=15)
    if missing == "flock":
        monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "no locks")))
    else:
        (model / cache._LOCK_FILE).mkdir()
    damage(convert_once(model))
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."])


def test_a_damaged_conversion_is_made_anew_and_a_damaged_model_is_an_error(make_model: MakeModel) -> None:
    model = make_model(seed=4)
    first = CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."])
    [path] = conversions(model)
    damage(path)
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."]) == first
    (model / "model.safetensors").write_bytes(b"")
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."]) == first  # not read
    with pytest.raises(CorruptError, match=r"model\.safetensors"):
        CTranslate2Translator.load(model, "cpu", "int8")
    (model / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CorruptError, match=r"tokenizer\.model"):
        CTranslate2Translator.load(model, "cpu", "fp32")


def test_precisions_have_conversions_of_their_own(make_model: MakeModel, lines: list[str]) -> None:
    model = make_model(seed=10)
    exact = CTranslate2Translator.load(model, "cpu", "fp32").translate(lines)
    CTranslate2Translator.load(model, "cpu", "auto")
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(lines) == exact
    sizes = {path.name.rpartition("-")[2]: (path / "model.bin").stat().st_size for path in conversions(model)}
    assert sizes.keys() == {"float32", "int8"}
    assert sizes["int8"] < 0.5 * sizes["float32"]


@pytest.mark.slow
def test_no_torch_is_imported_where_the_conversion_is_there(make_model: MakeModel) -> None:
    model = make_model(seed=11)
    program = (
        "import sys; from nmt.export.engine import CTranslate2Translator\n"
        f"print(CTranslate2Translator.load({str(model)!r}, 'cpu').translate(['The dog.']))\n"
        "print({'torch', 'sacrebleu', 'pyarrow', 'numpy'} & sys.modules.keys() or 'none of them')"
    )
    first, second = (subprocess.check_output([sys.executable, "-c", program], text=True).splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert second[1] == "none of them"


def test_one_model_searches_by_several_options(model: Path) -> None:
    for one in both(model, beam_size=4):
        other = one.with_decode(search(beam_size=4, n_best=3, forbid=["e"]))
        again = type(one).load(model, "cpu", "fp32", search(beam_size=4, n_best=3, forbid=["e"]))
        assert other.translate_n_best(["the cat sees a dog"]) == again.translate_n_best(["the cat sees a dog"])
        assert len(one.translate_n_best(["the cat sees a dog"])[0]) == 1
        texts_alone = one.with_decode(search(beam_size=4), scores=False)
        assert texts_alone.translate(["the cat sees a dog"]) == one.translate(["the cat sees a dog"])
        with pytest.raises(UserError, match="tag '<no>' is unknown"):
            one.with_decode(search(tag="<no>"))
