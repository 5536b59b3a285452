"""Attention maps: panels and figures."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention, WordAligner
from nmt.packing.packed import PackedSequences
from nmt.plots.attention import Panel, draw_attention, read_panels
from nmt.recipe import ModelRecipe, TokenizerRecipe, UserError
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
    assert panel.title == "layer 0, heads 1, by input"
    assert panel.weights.shape == (len(tgt), len(src))
    np.testing.assert_allclose(panel.weights[1, :3], [0.0, 0.5, 0.0])
    assert panel.attended[:3] == [0, 1, 2]


def test_each_layer_has_a_panel_with_all_heads(aligner: WordAligner) -> None:
    _, _, panels = read_panels(aligner, "the cat", "cat the", each_layer=True)
    assert [panel.title for panel in panels] == ["layer 0, all heads, by input", "layer 1, all heads, by input"]
    assert [float(panel.weights[0, 0]) for panel in panels] == pytest.approx([0.3, 0.5])


@pytest.mark.parametrize(("source", "target"), [("", "cat"), ("cat", " "), ("the cat sees " * 20, "cat")])
def test_empty_and_long_sentences_are_an_error(aligner: WordAligner, source: str, target: str) -> None:
    with pytest.raises(UserError, match="empty or too long"):
        read_panels(aligner, source, target)


def test_figure_is_written(tmp_path: Path) -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]])
    panels = [Panel("layer 0, all heads", weights, [0, 1]), Panel("layer 1, all heads", weights / 2, [0, 1])]
    src, tgt = ["▁das", "▁Haus", "</s>"], ["▁the", "▁house"]
    draw_attention(src, tgt, panels, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    draw_attention(src, tgt, panels[:1], tmp_path / "map.svg")
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()
    draw_attention(["$$", "▁$x_$", "</s>"], ["a^b$▁$", "▁costs"], panels, tmp_path / "dollars.png")  # not formulas
    for path in (tmp_path / "map.docx", tmp_path / "missing" / "map.png"):
        with pytest.raises(UserError, match=f"cannot (draw|write) {path}"):
            draw_attention(src, tgt, panels, path)
