"""Plots of attention."""

import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention, WordAligner
from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.plots.attention import AttentionPlot, draw_attention, read_attention
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


def test_plot_has_the_chosen_heads_and_their_links(aligner: WordAligner) -> None:
    plot = read_attention(aligner, "the cat sees", "cat the dog")
    assert plot.src[-1] == "</s>"
    assert "".join(plot.src[:-1]) == "▁the▁cat▁sees"
    assert "".join(plot.tgt) == "▁cat▁the▁dog"
    assert plot.title == "layer 0, head 1, at input"
    assert plot.weights.shape == (len(plot.tgt), len(plot.src))
    np.testing.assert_allclose(plot.weights[1, :3], [0.0, 0.5, 0.0])
    assert plot.attended[:3] == [0, 1, 2]


@pytest.mark.parametrize(("source", "target"), [("", "cat"), ("cat", " "), ("the cat sees " * 20, "cat")])
def test_empty_and_long_sentences_are_an_error(aligner: WordAligner, source: str, target: str) -> None:
    with pytest.raises(UserError, match="empty or too long"):
        read_attention(aligner, source, target)


WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]])
PLOT = AttentionPlot("layer 0, all heads", ["▁das", "▁Haus", "</s>"], ["▁the", "▁house"], WEIGHTS, [0, 1])


@pytest.mark.slow
def test_maps_are_written_in_the_format_of_the_extension(tmp_path: Path) -> None:
    draw_attention(PLOT, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    draw_attention(PLOT, tmp_path / "map.svg")
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()


@pytest.mark.slow
def test_tokens_with_dollar_signs_are_not_read_as_formulas(tmp_path: Path) -> None:
    """As formulas, these source tokens would raise a ValueError."""
    draw_attention(replace(PLOT, src=["$$", "▁$x_$", "</s>"], tgt=["a^b$▁$", "▁costs"]), tmp_path / "map.png")


@pytest.mark.slow
def test_characters_without_a_glyph_are_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_attention(replace(PLOT, tgt=["\U000f0000\U000f0001", "\U000f0000"]), tmp_path / "map.png")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"warning: the font of {tmp_path / 'map.png'} lacks 2 characters, drawn as boxes; add")


@pytest.mark.slow
def test_a_large_image_has_a_lower_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolutions: list[int] = []
    monkeypatch.setattr("nmt.plots.attention.save_figure", lambda _figure, _path, dpi: resolutions.append(dpi))
    long = AttentionPlot("layer 0, all heads", ["a"] * 300, ["b"] * 300, np.eye(300), list(range(300)))
    draw_attention(long, tmp_path / "map.png")
    (dpi,) = resolutions
    assert 80 < dpi < 120


@pytest.mark.slow
def test_an_image_with_unreadable_tokens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.png"
    long = replace(PLOT, src=["a"] * 2001, tgt=["b"] * 2000)
    with pytest.raises(UserError) as error:
        draw_attention(long, path)
    assert str(error.value) == (
        f"a map of 2,000 x 2,001 tokens would be unreadable in {path}; an image has at most 20,000 pixels per side and "
        "50 megapixels; write a .svg file, or select a shorter line"
    )
    saved: list[Path] = []
    monkeypatch.setattr("nmt.plots.attention.save_figure", lambda _figure, path, _dpi: saved.append(path))
    draw_attention(long, tmp_path / "map.svg")
    assert saved == [tmp_path / "map.svg"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "problem"), [("map.docx", "draw"), ("missing/map.png", "write")])
def test_an_unsuitable_path_is_an_error(tmp_path: Path, name: str, problem: str) -> None:
    path = tmp_path / name
    with pytest.raises(UserError, match=re.escape(f"cannot {problem} {path}")):
        draw_attention(PLOT, path)
