"""`Transformer.cross_attention` returns the weights of the forward pass."""

import pytest
import torch
from torch import Tensor

import nmt.model.attention as attention
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID, EOS_ID

SRC = PackedSequences.from_lists([[5, 6, 7, EOS_ID], [8, EOS_ID], [5, 9, 4, 4, 6, EOS_ID]])
TGT = PackedSequences.from_lists([[BOS_ID, 4, 5], [BOS_ID, 9, 9, 8, 7, 6, 5], [BOS_ID]])


def random_model(norm_order: str = "post") -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 3}
    return Transformer(ModelRecipe.model_validate(sizes | {"norm_order": norm_order}), 12, 12).eval()


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_cross_attention_equals_the_weights_of_forward(norm_order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(norm_order)
    with torch.no_grad():
        found = list(model.cross_attention(SRC, TGT))
    used: list[Tensor] = []
    compute = attention.scaled_dot_product

    def recorded(*arguments: Tensor | None) -> tuple[Tensor, Tensor]:
        out, weights = compute(*arguments)  # type: ignore[arg-type]
        used.append(weights)
        return out, weights

    monkeypatch.setattr(attention, "scaled_dot_product", recorded)
    with torch.no_grad():
        model(SRC, TGT)
    across = used[2::2]  # after the encoder layer, self-attention comes first
    shape = TGT.attention_rows(SRC, causal=False)
    slots = [
        side.slots.split(lengths.tolist()) for side, lengths in ((shape.queries, TGT.sizes), (shape.keys, SRC.sizes))
    ]
    assert len(found) == len(across) == 3
    for one, other in zip(found, across, strict=True):
        assert one.shape == (3, 2, 7, 6) and len(other) == 1  # all sentences share a row
        for sentence, (rows, columns) in enumerate(zip(*slots, strict=True)):
            own = one[sentence, :, : len(rows), : len(columns)]
            torch.testing.assert_close(own, other[0][:, rows][:, :, columns], rtol=1e-6, atol=1e-7)
    assert not torch.allclose(found[0], found[2], atol=1e-3)


def test_layers_are_computed_lazily() -> None:
    model = random_model()
    model.decoder.layers[2].register_forward_pre_hook(lambda module, inputs: pytest.fail("layer 2 was computed"))
    model.decoder.layers[1].register_forward_pre_hook(lambda module, inputs: pytest.fail("layer 1 was completed"))
    layers = model.cross_attention(SRC, TGT)
    assert [next(layers).shape for _ in range(2)] == [(3, 2, 7, 6)] * 2
