"""Parity checks: their sample sentences, rounding of weights, and detection of small errors."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import load_model
from nmt.data.prepare import prepare
from nmt.errors import UserError
from nmt.export import ctranslate2 as conversion
from nmt.export import parity
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.card import Target
from nmt.export.engine import CTranslate2Engine
from nmt.export.packages import is_installed
from nmt.export.parity import default_sample, round_weights
from nmt.recipe import parse_recipe
from nmt.text.term_markup import TermMarkers
from nmt.text.tokenizer import Tokenizers
from tests.export.conftest import MakeModel
from tests.extras import needs_ctranslate2

RECIPE = """
name = "run"
src_lang = "en"
tgt_lang = "de"
[data]
workers = 1
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 60 }]
[tokenizer]
vocab_size = 400
"""


@pytest.mark.slow
def test_the_sample_for_a_model_of_a_run_is_validation_text(make_model: MakeModel, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prepared = prepare(parse_recipe(RECIPE, [f"run_dir='{run}'"]))
    validation = prepared.valid_set().src
    model = make_model()
    for path in ("model", "average-ema", "checkpoints/step-00000001"):
        shutil.copytree(model, run / path)
        loaded = load_model(run / path, torch.device("cpu"))
        sample = default_sample(loaded, Tokenizers.load(loaded.directory).src)
        assert sample.origin == "the validation set"
        assert len(sample.lines) == 24
        assert set(sample.lines) <= set(validation)


def test_the_sample_for_a_model_without_a_run_is_random_pieces(make_model: MakeModel) -> None:
    loaded = load_model(make_model(), torch.device("cpu"))
    tokenizer = Tokenizers.load(loaded.directory).src
    sample = default_sample(loaded, tokenizer)
    assert sample == default_sample(loaded, tokenizer)
    assert sample.origin == "random pieces of the source tokenizer"
    assert len({line for line in sample.lines if tokenizer.encode(line)}) == 24


@pytest.mark.parametrize("quantization", ["float16", "bfloat16", "int8", "int8_float16"])
def test_round_weights_rounds_to_the_stored_type(quantization: str, make_model: MakeModel) -> None:
    model = load_model(make_model(), torch.device("cpu")).transformer
    rounded = round_weights(model, quantization)  # type: ignore[arg-type]
    inner, exact = rounded.encoder.layers[0].feed_forward.inner, model.encoder.layers[0].feed_forward.inner
    assert not torch.equal(inner.weight, exact.weight)
    if quantization.startswith("int8"):
        steps = inner.weight / (exact.weight.abs().amax(dim=1, keepdim=True) / 127)
        torch.testing.assert_close(steps, steps.round(), atol=1e-3, rtol=0)
    assert torch.equal(inner.bias, exact.bias) == (quantization == "int8")
    assert round_weights(model, "float32") is model


@pytest.mark.slow
@needs_ctranslate2
@pytest.mark.parametrize("quantization", ["float16", "int8", "int8_bfloat16"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "relative"])
def test_positions_are_rounded_as_in_the_export(
    positions: str, quantization: str, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "_MAX_MEAN_DIFFERENCE", dict.fromkeys((quantization,), 1.0))  # weights are random
    options = ExportOptions("ctranslate2", quantization=quantization)  # type: ignore[arg-type]
    (*_, note) = export_model(make_model(positions=positions), tmp_path / "export", options)
    assert note.startswith("Parity check passed: ")


@pytest.mark.slow
@needs_ctranslate2
@pytest.mark.parametrize("quantization", ["float32", "bfloat16", "int8"])
def test_a_small_weight_error_is_found_despite_rounding(
    quantization: str, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_norm = conversion._fill_norm

    def fill_with_error(spec: object, norm: torch.nn.Module) -> None:
        fill_norm(spec, norm)
        spec.gamma *= 1.005  # type: ignore[attr-defined]

    options = ExportOptions("ctranslate2", quantization=quantization)  # type: ignore[arg-type]
    (*_, note) = export_model(make_model(), tmp_path / "correct", options)
    assert note.startswith("Parity check passed: 24 sentences of random pieces of the source tokenizer, computed in ")
    assert "(limit 0.0001)" in note
    monkeypatch.setattr(conversion, "_fill_norm", fill_with_error)
    with pytest.raises(UserError, match="the parity check failed: "):
        export_model(make_model(), tmp_path / "wrong", options)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ctranslate2", "huggingface"])
def test_a_model_with_marked_terms_has_parity(target: Target, make_model: MakeModel, tmp_path: Path) -> None:
    if not is_installed("ctranslate2" if target == "ctranslate2" else "transformers"):
        pytest.skip(f"no package for {target}")
    sample = ["the <term-source> old man <term-target> alte Mann <term-end> sleeps", "a <term-source>dog<term-end>"]
    model = make_model(marks_terms=True)
    encoded = Tokenizers.load(model).src.encode(sample[0])
    assert [encoded.count(marker) for marker in TermMarkers.ids_of(Tokenizers.load(model).src)] == [1, 1, 1]
    (*_, note) = export_model(model, tmp_path / "export", ExportOptions(target, sample=sample))
    assert note.startswith("Parity check passed: 2 sentences of the given sample")
    assert "`<term-target>`, its translation and `<term-end>`" in (tmp_path / "export" / "README.md").read_text()


@pytest.mark.slow
@needs_ctranslate2
def test_a_large_rounding_error_fails_the_check(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "_MAX_MEAN_DIFFERENCE_INT8", 1e-5)
    with pytest.raises(UserError, match=r"on average \(limit 1e-05\).*; try another --quantization$"):
        export_model(make_model(), tmp_path / "export", ExportOptions("ctranslate2", quantization="int8"))


@pytest.mark.slow
@needs_ctranslate2
def test_nan_of_ctranslate2_fails_the_check(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nan(self: CTranslate2Engine, pairs: Sequence[tuple[object, list[int]]], batch_tokens: int) -> list[list[float]]:
        return [[math.nan] * (len(tgt) + 1) for _, tgt in pairs]

    monkeypatch.setattr(CTranslate2Engine, "score", nan)
    with pytest.raises(UserError, match="the parity check failed: CTranslate2 returns NaN in float32"):
        export_model(make_model(), tmp_path / "export", ExportOptions("ctranslate2"))


@pytest.mark.slow
@needs_ctranslate2
def test_a_sample_may_have_one_sentence(make_model: MakeModel, tmp_path: Path) -> None:
    (*_, note) = export_model(make_model(), tmp_path / "export", ExportOptions("ctranslate2", sample=["the man"]))
    assert note.startswith("Parity check passed: 1 sentence of the given sample, ")


@needs_ctranslate2
def test_an_empty_sample_is_an_error(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sentence of the sample has 1 to 95 tokens; "):
        export_model(make_model(), tmp_path / "export", ExportOptions("ctranslate2", sample=["", " "]))
