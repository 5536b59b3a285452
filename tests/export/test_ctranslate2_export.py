"""Exports to CTranslate2, loaded by CTranslate2 and compared with nmt."""

import os
import signal
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from nmt.checkpoint import load_model
from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.export import bundle, representable
from nmt.export import ctranslate2 as conversion
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.ctranslate2 import Quantization
from nmt.processes.interruption import Interrupted
from nmt.recipe import DecodeRecipe
from nmt.text.tokenizer import Tokenizers
from tests.export.conftest import MakeModel
from tests.extras import import_ctranslate2

ctranslate2 = import_ctranslate2()


VARIANTS = [
    {},
    {"norm_order": "pre", "activation": "gelu"},
    {"tied_embeddings": "decoder", "joint": False, "activation": "swish", "output_bias": True},
    {"tied_embeddings": "none", "joint": False, "norm_order": "pre", "num_decoder_layers": 1},
    {"activation": "swiglu"},
    {"d_head": 12},
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "relative", "max_distance": 3},
    {"positions": "relative", "d_head": 6, "norm_order": "pre"},
    {
        "positions": "rotary",
        "norm": "rms",
        "output_bias": True,
        "activation": "swiglu",
        "norm_order": "pre",
        "d_head": 6,
    },
    {"d_head": 4, "num_heads": 5, "norm_order": "pre"},
    {"num_encoder_heads": 1},
    {"d_head": 4, "num_heads": 2, "num_encoder_heads": 3, "norm_order": "pre"},
    {"norm": "rms", "output_bias": True},
    {"norm": "rms", "output_bias": True, "norm_order": "pre"},
]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_translations_and_scores_match(
    variant: dict[str, object], make_model: MakeModel, lines: list[str], tmp_path: Path
) -> None:
    model, out = make_model(**variant), tmp_path / "export"
    notes = export_model(model, out, ExportOptions("ctranslate2"))
    assert any(note.startswith("Parity check passed: ") for note in notes)
    tokenizers = Tokenizers.load(out)
    greedy = DecodeRecipe(beam_size=1, length_penalty="none", max_extra_tokens=10)
    ours = Translator.load(model, "cpu", "fp32", greedy).translate_n_best(lines)
    loaded = ctranslate2.Translator(str(out), compute_type="float32")
    sources = [tokenizers.src.pieces(tokenizers.src.encode(line)) for line in lines]
    scored = loaded.score_batch(sources, [n_best[0].pieces for n_best in ours])
    for n_best, result in zip(ours, scored, strict=True):
        assert sum(result.log_probs) == pytest.approx(n_best[0].log_prob, abs=2e-4)
    results = loaded.translate_batch(
        sources,
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=96,
        disable_unk=True,
        suppress_sequences=[["<pad>"], ["<s>"]],
    )
    same = sum(
        # truncated, because only nmt's maximum length depends on the source
        result.hypotheses[0][: len(n_best[0].pieces)] == n_best[0].pieces
        for n_best, result in zip(ours, results, strict=True)
    )
    assert same >= 0.95 * len(lines)


@pytest.mark.slow
def test_scorer_matches_score_batch(make_model: MakeModel, lines: list[str], tmp_path: Path) -> None:
    model, out = make_model(seed=5), tmp_path / "export"
    export_model(model, out, ExportOptions("ctranslate2"))
    tokenizers = Tokenizers.load(model)
    pieces = [tokenizers.src.pieces(tokenizers.src.encode(line)) for line in lines]
    theirs = ctranslate2.Translator(str(out)).score_batch(pieces, pieces[::-1])
    ours = TextScorer.load(model, "cpu").score(lines, lines[::-1])
    for expected, actual in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            torch.tensor(actual.log_probs), torch.tensor(expected.token_log_probs), atol=2e-5, rtol=1e-5
        )


@pytest.mark.slow
def test_quantized_files_are_smaller(make_model: MakeModel, tmp_path: Path) -> None:
    model, full = make_model(), tmp_path / "float32"
    export_model(model, full, ExportOptions("ctranslate2", sample=["A dog sleeps."]))
    for quantization in get_args(Quantization):
        small = tmp_path / quantization
        if small == full:
            continue
        export_model(model, small, ExportOptions("ctranslate2", quantization=quantization, sample=["A dog sleeps."]))
        assert (small / "model.bin").stat().st_size < 0.6 * (full / "model.bin").stat().st_size, quantization
        assert f"stored as {quantization}" in (small / "README.md").read_text()


def test_quantization_does_not_change_the_model(make_model: MakeModel) -> None:
    model = make_model()
    loaded = load_model(model, torch.device("cpu"))
    before = {name: weight.clone() for name, weight in loaded.model.named_parameters()}
    conversion.ctranslate2_files(loaded.transformer, Tokenizers.load(model), "int8")
    assert all(torch.equal(before[name], weight) for name, weight in loaded.model.named_parameters())


@pytest.mark.slow
def test_a_failed_parity_check_writes_nothing(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_embedding = conversion._fill_embedding

    def fill_without_scale(stack: Any, spec: Any, embedding: Any) -> None:
        fill_embedding(stack, spec, embedding)
        stack.scale_embeddings = 1.0

    monkeypatch.setattr(conversion, "_fill_embedding", fill_without_scale)
    with pytest.raises(UserError, match=r"^the parity check failed: .* differ by at most .*; .*; [^\n]*$"):
        export_model(make_model(), tmp_path / "export", ExportOptions("ctranslate2"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_export_written_meanwhile_is_not_replaced(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "export"

    def write_card(*_: object) -> str:
        out.mkdir()
        return ""

    monkeypatch.setattr(bundle, "write_card", write_card)
    with pytest.raises(UserError, match="export already exists; it is not overwritten"):
        export_model(make_model(), out, ExportOptions("ctranslate2"))
    assert list(tmp_path.glob("*export*")) == [out]


def test_unsupported_options_are_named(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat two options as unknown to the exports."""
    monkeypatch.setattr(
        representable, "_SUPPORTED_EVERYWHERE", representable._SUPPORTED_EVERYWHERE - {"activation", "norm_order"}
    )
    model = make_model(activation="gelu", norm_order="pre")
    with pytest.raises(UserError, match=r"model\.activation is 'gelu'; model\.norm_order is 'pre'; "):
        export_model(model, tmp_path / "export", ExportOptions("ctranslate2"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupted_export_leaves_nothing(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_handled(*_: object) -> None:
        raise AssertionError("the signal would have killed the process")

    monkeypatch.setattr(bundle, "write_card", lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, not_handled)
    try:
        with pytest.raises(Interrupted) as caught:
            export_model(make_model(), tmp_path / "export", ExportOptions("ctranslate2"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.status == 143
    assert list(tmp_path.iterdir()) == []
