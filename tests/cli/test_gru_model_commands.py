"""Commands with a GRU model: they work, or fail with a one-line error."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.cli.align import load_aligner
from nmt.export.packages import is_installed
from nmt.models import build_model
from nmt.plots.attention import read_attention
from nmt.recipe import ModelRecipe
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt
from tests.extras import import_ctranslate2


@pytest.fixture(scope="module")
def gru(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GRU model with random weights and the tokenizer of the fixture `model`."""
    loaded = load_model(model, torch.device("cpu"))
    metadata, tokenizers = loaded.metadata, Tokenizers.load(model)
    sizes = {
        "architecture": "gru",
        "d_model": 16,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "max_positions": 200,
    }
    recipe = ModelRecipe.model_validate(sizes)
    torch.manual_seed(0)
    network = build_model(recipe, metadata.src_vocab_size, metadata.tgt_vocab_size)
    directory = tmp_path_factory.mktemp("gru") / "model"
    write_directory(directory, model_files(recipe, model_tensors(network), tokenizers.files(), metadata))
    return directory


@pytest.mark.slow
def test_translation_reports_why_it_uses_torch(gru: Path, texts: Path, nmt: Nmt) -> None:
    status, out, err = nmt("translate", gru, texts / "src", "--device", "cpu")
    assert status == 0, err
    assert len(out.splitlines()) == len((texts / "src").read_text(encoding="utf-8").split("\n")) - 1
    reason = f"{gru} is a GRU model" if is_installed("ctranslate2") else "CTranslate2 is not installed"
    assert err.strip().endswith(f", because {reason}")
    assert "engine: torch" in err
    assert "converting" not in err


@pytest.mark.slow
def test_alignments_scores_and_info_are_supported(gru: Path, texts: Path, nmt: Nmt) -> None:
    status, out, err = nmt(
        "translate", gru, texts / "src", "--engine", "torch", "--with-alignments", "--output-format", "jsonl"
    )
    assert status == 0, err
    assert all("alignment" in json.loads(line) for line in out.splitlines())
    status, _, err = nmt("score", gru, texts / "src", texts / "ref")
    assert status == 0, err
    status, out, err = nmt("info", gru)
    assert status == 0, err
    assert "GRU of 1+1 layers, d_model 16, additive attention, dropout 0.1" in out
    assert "cannot run this model: model.architecture is 'gru'" in out or "not installed" in out


@pytest.mark.slow
def test_attention_is_plotted(gru: Path, texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
    status, _, err = nmt("plot", "alignment", gru, texts / "src", texts / "ref", "-o", tmp_path / "map.png")
    assert status == 0, err
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    src, tgt = ((texts / name).read_text(encoding="utf-8").splitlines()[0] for name in ("src", "ref"))
    plot = read_attention(load_aligner(gru, None, None, None, "cpu"), src, tgt)
    assert plot.weights.shape == (len(plot.tgt), len(plot.src))
    np.testing.assert_allclose(plot.weights.sum(axis=1), 1.0, atol=1e-5)
    assert plot.weights.std() > 0.0


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("heads", "{gru}", "{src}", "{ref}"), "choose another model"),
        (("export", "{gru}", "--to", "ctranslate2", "-o", "{new}"), "choose another model"),
        (("translate", "{gru}", "{src}", "--engine", "ctranslate2", "--device", "cpu"), "use --engine torch"),
    ],
)
def test_commands_that_need_a_transformer_fail_in_one_line(
    command: tuple[str, ...], remedy: str, gru: Path, texts: Path, tmp_path: Path, nmt: Nmt
) -> None:
    if "ctranslate2" in command:
        import_ctranslate2()
    paths = {"gru": gru, "src": texts / "src", "ref": texts / "ref", "new": tmp_path / "new"}
    status, _, err = nmt(*(part.format(**paths) for part in command))
    assert status == 1
    assert err.count("\n") == 1
    assert err.endswith(f"is a GRU model; it must be a Transformer; {remedy}\n")
    assert not (tmp_path / "new").exists()
