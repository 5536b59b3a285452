"""The arithmetic of a model against torch's own count, against single sentences, and against known figures."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.bench.flops import ModelFlops
from nmt.bench.model_specs import find_model_spec
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.train.loss import TrainingLoss

SMALL = ModelRecipe(d_model=16, d_ff=40, num_heads=2, num_encoder_layers=3, num_decoder_layers=2, dropout=0.1)
VOCAB = 50
GATED = SMALL.model_copy(update={"activation": "swiglu"})
OF_WIDE_HEADS = SMALL.model_copy(update={"d_head": 12})
RECIPES = pytest.mark.parametrize("recipe", [SMALL, GATED, OF_WIDE_HEADS], ids=["paper", "swiglu", "wide heads"])


def batch(num_pairs: int, src_length: int, tgt_length: int) -> Batch:
    """Pairs of equal length, each as wide as a row of rectangles: torch counts what the model's arithmetic needs."""
    src, tgt = (torch.randint(4, VOCAB, (num_pairs, length)).tolist() for length in (src_length, tgt_length))
    packed = PackedSequences.from_lists(tgt)
    return Batch(PackedSequences.from_lists(src), packed, packed.tokens)


@RECIPES
@pytest.mark.parametrize(("num_pairs", "src_length", "tgt_length"), [(1, 64, 64), (5, 80, 64), (3, 64, 96)])
def test_a_training_step_counts_as_torch_counts_it(
    num_pairs: int, src_length: int, tgt_length: int, recipe: ModelRecipe
) -> None:
    loss = TrainingLoss(Transformer(recipe, VOCAB, VOCAB), label_smoothing=0.1)
    with FlopCounterMode(display=False) as counter:
        loss(batch(num_pairs, src_length, tgt_length))[0].backward()
    arithmetic = ModelFlops.of(recipe, VOCAB)
    lengths = np.full(num_pairs, src_length), np.full(num_pairs, tgt_length)
    # The kernel computes the future as well, and hides it afterwards.
    hidden_pairs = num_pairs * recipe.num_decoder_layers * (tgt_length * (tgt_length - 1) // 2)
    expected = arithmetic.training(*lengths) + 3 * arithmetic.attended_pair * hidden_pairs
    assert counter.get_total_flops() == expected


def test_a_batch_is_the_sum_of_its_sentences() -> None:
    arithmetic = ModelFlops.of(SMALL, VOCAB)
    src, tgt = np.array([3, 1, 250], np.uint16), np.array([2, 300, 4], np.uint16)
    total = 0
    for s, t in zip(src.tolist(), tgt.tolist(), strict=True):
        total += s * arithmetic.src_token + t * (arithmetic.tgt_token + arithmetic.softmax)
        total += 4 * 16 * (3 * sum(s for _ in range(s)) + 2 * sum(s + own + 1 for own in range(t)))
    assert arithmetic.forward(src, tgt) == total


@pytest.mark.parametrize(("name", "mflop"), [("base", 375.7), ("big", 1270.4)])
def test_the_papers_models_cost_what_is_known(name: str, mflop: float) -> None:
    """For sentences of 27 source and 28 target tokens and 37,000 pieces, computed elsewhere."""
    spec = find_model_spec(name)
    assert spec.tgt_vocab_size == 37_000
    flops = ModelFlops.of(spec.recipe.model, 37_000).training(np.array([27]), np.array([28]))
    assert flops / 28 / 1e6 == pytest.approx(mflop, abs=0.05)


@RECIPES
def test_the_linear_layers_are_all_of_it_but_attention(recipe: ModelRecipe) -> None:
    arithmetic = ModelFlops.of(recipe, VOCAB)
    matmuls = arithmetic.matmuls(src_rows=70, tgt_rows=90)
    flops = sum(matmul.count * matmul.flops for matmul in matmuls)
    assert flops == 70 * arithmetic.src_token + 90 * (arithmetic.tgt_token + arithmetic.softmax)
    # ... and are the model's own matrices: three-way tied, the output matrix stands for the embeddings too.
    weights = sum(matmul.count * matmul.inner * matmul.outer for matmul in matmuls)
    matrices = [weight for weight in Transformer(recipe, VOCAB, VOCAB).parameters() if weight.ndim == 2]
    assert weights == sum(weight.numel() for weight in matrices)
