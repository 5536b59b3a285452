"""FLOP counts against torch's counter, closed formulas and known values."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.bench.flops import ModelFlops
from nmt.bench.model_specs import find_model_spec
from nmt.model.transformer import Transformer
from nmt.models import build_model
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.train.loss import TrainingLoss

SMALL = ModelRecipe(d_model=16, d_ff=40, num_heads=2, num_encoder_layers=3, num_decoder_layers=2, dropout=0.1)
VOCAB = 50
GATED = SMALL.model_copy(update={"activation": "swiglu"})
WIDE_HEADS = SMALL.model_copy(update={"d_head": 12})
PRUNED = SMALL.model_copy(update={"num_encoder_heads": 1})
RECIPES = pytest.mark.parametrize(
    "recipe", [SMALL, GATED, WIDE_HEADS, PRUNED], ids=["paper", "swiglu", "wide heads", "fewer encoder heads"]
)


def batch(num_pairs: int, src_length: int, tgt_length: int) -> Batch:
    """Pairs of equal length, without padding even where attention pads: torch counts padding too."""
    src, tgt = (torch.randint(4, VOCAB, (num_pairs, length)).tolist() for length in (src_length, tgt_length))
    packed = PackedSequences.from_lists(tgt)
    return Batch(PackedSequences.from_lists(src), packed, packed.tokens)


@pytest.mark.slow
@RECIPES
@pytest.mark.parametrize(("num_pairs", "src_length", "tgt_length"), [(1, 64, 64), (5, 80, 64), (3, 64, 96)])
def test_training_step_equals_the_count_of_torch(
    num_pairs: int, src_length: int, tgt_length: int, recipe: ModelRecipe
) -> None:
    loss = TrainingLoss(Transformer(recipe, VOCAB, VOCAB), label_smoothing=0.1)
    with FlopCounterMode(display=False) as counter:
        loss(batch(num_pairs, src_length, tgt_length))[0].backward()
    flops = ModelFlops(recipe, VOCAB)
    lengths = np.full(num_pairs, src_length), np.full(num_pairs, tgt_length)
    # The kernel also computes future keys, then masks them.
    masked_pairs = num_pairs * recipe.num_decoder_layers * (tgt_length * (tgt_length - 1) // 2)
    flops_per_pair = 4 * recipe.num_heads * recipe.head_width
    assert counter.get_total_flops() == flops.training(*lengths) + 3 * flops_per_pair * masked_pairs


@RECIPES
def test_forward_pass_equals_the_formulas_per_token_and_pair(recipe: ModelRecipe) -> None:
    d, a, f = 16, recipe.num_heads * recipe.head_width, 40
    encoder_a = a // 2 if recipe is PRUNED else a
    feed_forward = 2 * d * (3 * f if recipe.activation == "swiglu" else 2 * f)
    src_token = 3 * (8 * d * encoder_a + feed_forward) + 2 * 4 * d * a
    tgt_token = 2 * (8 * d * a + feed_forward + 4 * d * a) + 2 * d * VOCAB
    src, tgt = np.array([3, 1, 250], np.uint16), np.array([2, 300, 4], np.uint16)
    total = 0
    for s, t in zip(src.tolist(), tgt.tolist(), strict=True):
        total += s * src_token + t * tgt_token
        total += 4 * encoder_a * 3 * s * s + 4 * a * 2 * sum(s + position + 1 for position in range(t))
    assert ModelFlops(recipe, VOCAB).forward(src, tgt) == total


@pytest.mark.parametrize(("name", "mflop"), [("base", 375.7), ("big", 1270.4)])
def test_models_of_the_paper_have_known_costs(name: str, mflop: float) -> None:
    """For sentences of 27 source and 28 target tokens and a vocabulary of 37,000, computed independently."""
    spec = find_model_spec(name)
    assert spec.tgt_vocab_size == 37_000
    flops = ModelFlops(spec.recipe.model, 37_000).training(np.array([27]), np.array([28]))
    assert flops / 28 / 1e6 == pytest.approx(mflop, abs=0.05)


@RECIPES
def test_matmuls_are_the_matrices_of_the_model(recipe: ModelRecipe) -> None:
    matmuls = ModelFlops(recipe, VOCAB).matmuls(src_tokens=70, tgt_tokens=90)
    weights = sum(matmul.count * matmul.inner * matmul.outer for matmul in matmuls)
    # The output matrix is tied to both embeddings, so it is counted once.
    matrices = [weight for weight in Transformer(recipe, VOCAB, VOCAB).parameters() if weight.ndim == 2]
    assert weights == sum(weight.numel() for weight in matrices)


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
@pytest.mark.parametrize("input_feeding", [False, True])
def test_matmuls_of_a_gru_are_its_matrices(attention: str, input_feeding: bool) -> None:
    options = {"architecture": "gru", "d_model": 16, "num_encoder_layers": 3, "num_decoder_layers": 2}
    recipe = ModelRecipe.model_validate(options | {"attention": attention, "input_feeding": input_feeding})
    flops = ModelFlops(recipe, VOCAB)
    weights = sum(matmul.count * matmul.inner * matmul.outer for matmul in flops.matmuls(70, 90))
    named = build_model(recipe, VOCAB, VOCAB).named_parameters()
    # The initial state of the decoder is computed once per sentence and is not counted.
    assert weights == sum(weight.numel() for name, weight in named if weight.ndim == 2 and "initial" not in name)
    per_pair = 2 * 2 * 16  # a score and a term of the weighted sum
    linear = sum(matmul.count * matmul.flops for matmul in flops.matmuls(7, 6))
    assert flops.forward(np.array([3, 4]), np.array([5, 1])) == linear + (3 * 5 + 4 * 1) * per_pair
