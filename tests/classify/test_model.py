"""The classifier against PyTorch modules with the same weights, in float64 and padded."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.classify.model import Classifier
from nmt.classify.text_classifier import classify
from nmt.devices.precision import autocast
from nmt.devices.transfer import to_device
from nmt.model.layers import sinusoids
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe
from tests.simulated_cuda import CUDA, contents, on_gpu, simulated_cuda

TEXTS = [[5, 9, 7, 3], [3], [11, 12, 13, 14, 15, 16, 4, 3], [2, 3]]
VOCAB, CLASSES = 20, 3


def double_classifier(norm_order: Literal["pre", "post"]) -> Classifier:
    recipe = ModelRecipe(
        d_model=16, d_ff=24, num_heads=4, num_encoder_layers=2, dropout=0.0, max_positions=16, norm_order=norm_order
    )
    torch.manual_seed(1)
    model = Classifier(recipe, VOCAB, CLASSES).double()
    for parameter in model.parameters():  # biases and norms differ from 0 and 1
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def reference_logits(model: Classifier) -> Tensor:
    recipe = model.recipe
    pre = recipe.norm_order == "pre"
    layer = nn.TransformerEncoderLayer(
        recipe.d_model, recipe.num_heads, recipe.d_ff, 0.0, batch_first=True, norm_first=pre, dtype=torch.float64
    )
    final = nn.LayerNorm(recipe.d_model, dtype=torch.float64) if pre else None
    encoder = nn.TransformerEncoder(layer, recipe.num_encoder_layers, final, enable_nested_tensor=False)
    pairs: list[tuple[nn.Module, nn.Module]] = []
    for ours, theirs in zip(model.encoder.layers, encoder.layers, strict=True):
        theirs.self_attn.in_proj_weight.data = ours.attention.qkv.weight.data
        theirs.self_attn.in_proj_bias.data = ours.attention.qkv.bias.data
        pairs += [(ours.attention.out, theirs.self_attn.out_proj)]
        pairs += [(ours.feed_forward.inner, theirs.linear1), (ours.feed_forward.outer, theirs.linear2)]
        pairs += [(ours.attention_residual.norm, theirs.norm1), (ours.feed_forward_residual.norm, theirs.norm2)]
    if final is not None:
        pairs.append((model.encoder.norm, final))
    for own, other in pairs:
        other.load_state_dict(own.state_dict())
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in TEXTS], batch_first=True)
    lengths = torch.tensor([len(text) for text in TEXTS])
    is_padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
    x = F.embedding(tokens, model.src_embedding.weight) * math.sqrt(recipe.d_model)
    x = encoder(x + sinusoids(tokens.shape[1], recipe.d_model).double(), src_key_padding_mask=is_padding)
    means = x.masked_fill(is_padding[:, :, None], 0.0).sum(dim=1) / lengths[:, None]
    return F.linear(means, model.classes.weight, model.classes.bias)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_logits_and_gradients_are_those_of_pytorch_modules(norm_order: Literal["pre", "post"]) -> None:
    model = double_classifier(norm_order)
    labels = torch.tensor([0, 2, 1, 1])
    logits = model(PackedSequences.from_lists(TEXTS))
    expected = reference_logits(model)
    assert torch.allclose(logits, expected, rtol=0, atol=1e-12)
    # The gradient with respect to the embeddings passes through every part.
    weight = model.src_embedding.weight
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels), [weight])
    (wanted,) = torch.autograd.grad(F.cross_entropy(expected, labels), [weight])
    assert torch.allclose(gradient, wanted, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_training_on_a_gpu_mixes_no_devices_and_does_not_synchronize() -> None:
    model, texts = double_classifier("pre").float(), PackedSequences.from_lists(TEXTS)
    with torch.no_grad():
        expected = classify(model, texts, "fp32", torch.device("cpu"))
    with simulated_cuda():
        on_gpu(model)
        with autocast("bf16", CUDA):
            logits = classify(model, texts, "bf16", CUDA)
        F.cross_entropy(logits, to_device(np.array([0, 2, 1, 1]), CUDA)).backward()
        assert (logits.device, logits.dtype, tuple(logits.shape)) == (CUDA, torch.float32, (4, CLASSES))
        assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(contents(logits), expected, rtol=0.05, atol=0.05)


def test_padding_of_bf16_matmuls_does_not_add_a_text() -> None:
    model = double_classifier("pre").float()
    texts = PackedSequences.from_lists(TEXTS)
    with torch.no_grad():
        padded = classify(model, texts, "bf16", torch.device("cpu"))  # rows are padded to a multiple of 64
        assert np.allclose(padded, model(texts), atol=1e-5)
