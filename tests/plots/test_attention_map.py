"""Attention maps: panels and figures."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention, WordAligner
from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.plots.attention import Panel, draw_attention, read_panels
from nmt.recipe import ModelRecipe, TokenizerRecipe
from nmt.text.pair_encoder import PairEncoder
from nmt.text.tokenizer import Tokenizers, train_tokenizer

pytest.importorskip("matplotlib", reason="plots need the extra `plot`")


class DiagonalModel:
    """Attends from the position that reads target token i to source token i; weights differ by layer and head."""

    recipe = ModelRecipe(num_decoder_layers=2, num_heads=2, max_positions=20)

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        for layer in range(2):
            weights = torch.eye(tgt.max_length, src.max_length).roll(1, dims=0)
            yield torch.stack([weights * (0.1 + 0.2 * layer), weights * (0.5 + 0.2 * layer)])[None]


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> WordAligner:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(["the", "cat", "dog", "sees"], k=8)) for _ in range(100)]
    path = tmp_path_factory.mktemp("plots") / "tokenizer.model"
    tokenizer = train_tokenizer(lines, TokenizerRecipe(vocab_size=285), path)
    return WordAligner(
        DiagonalModel(),
        PairEncoder(Tokenizers(tokenizer, tokenizer), "NFC", DiagonalModel.recipe.max_positions - 1),
        AlignmentAttention(0, (1,), "input"),
        device=torch.device("cpu"),
        batch_tokens=99,
    )


def test_panel_has_the_chosen_heads_and_their_links(aligner: WordAligner) -> None:
    src, tgt, (panel,) = read_panels(aligner, "the cat sees", "cat the dog")
    assert src[-1] == "</s>"
    assert "".join(src[:-1]) == "▁the▁cat▁sees"
    assert "".join(tgt) == "▁cat▁the▁dog"
    assert panel.title == "layer 0, head 1, at input"
    assert panel.weights.shape == (len(tgt), len(src))
    np.testing.assert_allclose(panel.weights[1, :3], [0.0, 0.5, 0.0])
    assert panel.attended[:3] == [0, 1, 2]


def test_each_layer_has_a_panel_with_all_heads(aligner: WordAligner) -> None:
    _, _, panels = read_panels(aligner, "the cat", "cat the", each_layer=True)
    assert [panel.title for panel in panels] == ["layer 0, all heads, at input", "layer 1, all heads, at input"]
    assert [float(panel.weights[0, 0]) for panel in panels] == pytest.approx([0.3, 0.5])


@pytest.mark.parametrize(("source", "target"), [("", "cat"), ("cat", " "), ("the cat sees " * 20, "cat")])
def test_empty_and_long_sentences_are_an_error(aligner: WordAligner, source: str, target: str) -> None:
    with pytest.raises(UserError, match="empty or too long"):
        read_panels(aligner, source, target)


WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]])
PANELS = [Panel("layer 0, all heads", WEIGHTS, [0, 1]), Panel("layer 1, all heads", WEIGHTS / 2, [0, 1])]
SRC, TGT = ["▁das", "▁Haus", "</s>"], ["▁the", "▁house"]


@pytest.mark.slow
def test_maps_are_written_in_the_format_of_the_extension(tmp_path: Path) -> None:
    draw_attention(SRC, TGT, PANELS, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    draw_attention(SRC, TGT, PANELS[:1], tmp_path / "map.svg")
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()


@pytest.mark.slow
def test_tokens_with_dollar_signs_are_not_read_as_formulas(tmp_path: Path) -> None:
    """As formulas, these source tokens would raise a ValueError."""
    draw_attention(["$$", "▁$x_$", "</s>"], ["a^b$▁$", "▁costs"], PANELS, tmp_path / "map.png")


@pytest.mark.slow
def test_a_large_image_has_a_lower_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolutions: list[int] = []
    monkeypatch.setattr("nmt.plots.attention.save_figure", lambda _figure, _path, dpi: resolutions.append(dpi))
    long = Panel("layer 0, all heads", np.eye(300), list(range(300)))
    draw_attention(["a"] * 300, ["b"] * 300, [long], tmp_path / "map.png")
    (dpi,) = resolutions
    assert 80 < dpi < 120


@pytest.mark.slow
def test_an_image_with_unreadable_tokens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.png"
    with pytest.raises(UserError) as error:
        draw_attention(["a"] * 1001, ["b"] * 1000, PANELS, path)
    assert str(error.value) == (
        f"2 maps of 1,000 x 1,001 tokens would be unreadable in {path}; an image has at most 20,000 pixels per "
        "side and 50 megapixels; write a .svg file, leave out --each-layer, or select a shorter line"
    )
    saved: list[Path] = []
    monkeypatch.setattr("nmt.plots.attention.save_figure", lambda _figure, path, _dpi: saved.append(path))
    draw_attention(["a"] * 1001, ["b"] * 1000, PANELS[:1], tmp_path / "map.svg")
    assert saved == [tmp_path / "map.svg"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "problem"), [("map.docx", "draw"), ("missing/map.png", "write")])
def test_an_unsuitable_path_is_an_error(tmp_path: Path, name: str, problem: str) -> None:
    path = tmp_path / name
    with pytest.raises(UserError, match=re.escape(f"cannot {problem} {path}")):
        draw_attention(SRC, TGT, PANELS, path)
