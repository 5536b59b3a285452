"""Shallow fusion in the translator and the command: scores, limits, and language models that do not fit."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.decode.language_model import require_fusible
from nmt.decode.scoring import TextScorer
from nmt.decode.shortlist import Shortlist
from nmt.decode.translator import Translator
from nmt.engines import Engine, TranslatorRequest
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe, SearchPrecision, parse_recipe
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt
from tests.extras import import_ctranslate2

LINES = ["w1 w2 w3 w4", "", "w30", "w7 w7 w9 w2 w11 w30 w5 w6"]
WEIGHT = 0.7


def write_model(folder: Path, *overrides: str, vocab_size: int = 40, language_model: bool = False) -> Path:
    corpus = '{kind="monolingual", path="x"}' if language_model else '{kind="toy"}'
    text = f"""
        name = "random"
        src_lang = "{"zxx" if language_model else "de"}"
        tgt_lang = "en"
        data = {{ train = [{corpus}], valid = [{corpus}], max_tokens = 30 }}
        train.micro_batch_tokens = 100
        decode = {{ max_extra_tokens = 4, length_penalty = "none" }}
        [model]
        d_model = 8
        d_ff = 16
        num_heads = 2
        num_encoder_layers = 1
        num_decoder_layers = 1
        max_positions = 40
        tied_embeddings = "none"
    """
    write_random_model(folder, parse_recipe(text, overrides), numbered_word_tokenizers(vocab_size))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "translation")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "language", "seed=2", language_model=True)


@pytest.mark.slow
def test_another_language_model_replaces_the_loaded_one(model: Path, language_model: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", "seed=3", language_model=True)
    decodes = [DecodeRecipe(fusion=path, fusion_weight=WEIGHT) for path in (language_model, other)]
    loaded = [Translator.load(model, "cpu", "fp32", decode) for decode in decodes]
    first, second = (translator.translate_n_best(LINES) for translator in loaded)
    assert loaded[0].with_decode(decodes[1]).translate_n_best(LINES) == second != first


def test_scores_are_weighted_sums(model: Path, language_model: Path) -> None:
    decode = DecodeRecipe(fusion=language_model, fusion_weight=WEIGHT, n_best=4)
    fused = Translator.load(model, "cpu", "fp32", decode).translate_n_best(LINES)
    assert fused != Translator.load(model, "cpu", "fp32", DecodeRecipe(n_best=4)).translate_n_best(LINES)
    own, other = TextScorer.load(model, "cpu"), TextScorer.load(language_model, "cpu")
    for line, translations in zip(LINES, fused, strict=True):
        if not line:
            continue
        texts = [translation.text for translation in translations]
        scores = zip(own.score([line] * len(texts), texts), other.score([""] * len(texts), texts), strict=True)
        for translation, (score, lm_score) in zip(translations, scores, strict=True):
            assert translation.log_prob == pytest.approx(score.log_prob + WEIGHT * lm_score.log_prob, rel=1e-4)
            pairs = zip(score.token_log_probs, lm_score.token_log_probs, strict=True)
            assert translation.token_log_probs == pytest.approx([a + WEIGHT * b for a, b in pairs], rel=1e-3)


@pytest.mark.slow
def test_fusion_can_be_added_strengthened_and_removed(model: Path, language_model: Path) -> None:
    options: dict[str, Any] = {"max_extra_tokens": 4, "length_penalty": "none"}
    plain = Translator.load(model, "cpu", "fp32")
    fused = plain.with_decode(DecodeRecipe(**options, fusion=language_model))
    stronger = fused.with_decode(DecodeRecipe(**options, fusion=language_model, fusion_weight=3.0))
    scores = [one.translate_n_best(LINES[:1])[0][0].score for one in (plain, fused, stronger)]
    assert scores[0] > scores[1] > scores[2]
    without = stronger.with_decode(DecodeRecipe(**options, fusion_weight=0.0))
    assert without.translate_n_best(LINES) == plain.translate_n_best(LINES)


def test_outputs_fit_the_positions_of_the_language_model(model: Path, tmp_path: Path) -> None:
    small = write_model(tmp_path / "small", "model.max_positions=8", "data.max_tokens=7", language_model=True)
    decode = DecodeRecipe(fusion=small, min_tokens=30, max_extra_tokens=30)
    (translation,) = Translator.load(model, "cpu", "fp32", decode).translate_n_best(LINES[:1])[0]
    assert len(translation.pieces) == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: write_model(folder), "is a translation model; it must be a language model"),
        (lambda folder: write_model(folder, vocab_size=41, language_model=True), "have different target tokenizers"),
        (lambda folder: folder, "other does not exist; expected a model"),
        (
            lambda folder: write_model(folder, "tgt_lang=fr", language_model=True),
            "language model of fr; .* target language, en",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_an_error(
    model: Path, tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    decode, plain = DecodeRecipe(fusion=make(tmp_path / "other")), Translator.load(model, "cpu", "fp32")
    uses: list[Callable[[], object]] = [
        lambda: Translator.load(model, "cpu", "fp32", decode),
        lambda: plain.with_decode(decode),
    ]
    for use in uses:
        with pytest.raises(UserError, match=message) as raised:
            use()
        assert "\n" not in str(raised.value)


def test_a_shortlist_of_other_languages_is_an_error(model: Path, tmp_path: Path) -> None:
    tokenizers = Tokenizers.load(model)
    empty = np.zeros(0, dtype=np.int32)
    shortlist = Shortlist(tokenizers.tgt.vocab_size, empty, np.zeros(tokenizers.src.vocab_size + 1, np.int32), empty)
    shortlist.save(tmp_path / "list", tokenizers, ("fr", "en"))
    translator = Translator.load(model, "cpu", "fp32")
    with pytest.raises(UserError, match="translates from fr to en; the model translates from de to en"):
        translator.with_decode(DecodeRecipe(shortlist=tmp_path / "list"))


def test_a_weight_of_0_disables_the_language_model_with_each_engine(
    model: Path, language_model: Path, tmp_path: Path, nmt: Nmt
) -> None:
    import_ctranslate2()
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in LINES))
    expected = Translator.load(model, "cpu", "fp32").translate(LINES)
    fused = ("--fusion", language_model, "--fusion-weight", 0, "--precision", "fp32", "--device", "cpu")
    for engine in ("torch", "ctranslate2"):
        status, out, err = nmt("translate", model, tmp_path / "src", *fused, "--engine", engine)
        assert (status, out.splitlines()) == (0, expected), err


def test_directions_must_agree(language_model: Path) -> None:
    tgt = Tokenizers.load(language_model).tgt
    require_fusible(language_model, None, tgt, reverse_target=False)
    with pytest.raises(UserError, match="decode in opposite directions"):
        require_fusible(language_model, None, tgt, reverse_target=True)


def test_the_language_model_of_a_run_is_chosen_once(
    model: Path, language_model: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, each process might use another checkpoint, and a memory keep translations for the wrong one."""
    first = copytree(language_model, tmp_path / "run" / "checkpoints" / "step-00000001")
    module = import_module("nmt.cli.translate")
    choose_engine = module.choose_engine
    requests: list[TranslatorRequest] = []

    def save_a_checkpoint(
        engine: Engine, precision: SearchPrecision, request: TranslatorRequest, **options: Any
    ) -> Any:
        write_model(first.with_name("step-00000002"), "seed=3", language_model=True)
        requests.append(request)
        return choose_engine(engine, precision, request, **options)

    monkeypatch.setattr(module, "choose_engine", save_a_checkpoint)
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in LINES))
    fused = ("--fusion", tmp_path / "run", "--fusion-weight", WEIGHT, "--precision", "fp32", "--device", "cpu")
    status, out, err = nmt("translate", model, tmp_path / "src", *fused)
    assert status == 0, err
    assert [request.decode.fusion for request in requests] == [first]
    expected = Translator.load(model, "cpu", "fp32", DecodeRecipe(fusion=language_model, fusion_weight=WEIGHT))
    assert out.splitlines() == expected.translate(LINES)


@pytest.mark.slow
def test_fusion_options_of_the_command_are_applied(model: Path, language_model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in LINES))
    fused = ("--fusion", language_model, "--fusion-weight", WEIGHT, "--precision", "fp32", "--output-format", "jsonl")
    status, out, err = nmt("translate", model, tmp_path / "src", *fused, "--device", "cpu")
    assert status == 0 and "torch" in err  # the engine
    decode = DecodeRecipe(fusion=language_model, fusion_weight=WEIGHT)
    expected = Translator.load(model, "cpu", "fp32", decode).translate(LINES)
    assert [json.loads(line)["translation"] for line in out.splitlines()] == expected

    status, out, err = nmt("translate", model, tmp_path / "src", "--fusion-weight", "0.5")
    assert (status, out) == (2, "")
    assert "--fusion-weight has no effect without fusion" in err
    assert nmt("translate", model, tmp_path / "src", "--fusion", "", "--device", "cpu")[0] == 0
    status, _, err = nmt("translate", model, tmp_path / "src", "--fusion", language_model, "--engine", "ctranslate2")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "does not support shallow fusion" in err
