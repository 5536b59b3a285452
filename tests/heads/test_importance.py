"""Importance of heads against plain computations in float64."""

import copy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from nmt.heads.importance import nll_without, sensitivity
from nmt.heads.masks import Head, HeadMasks, all_heads, attentions
from nmt.heads.pairs import Pairs
from nmt.inference.prepacked import prepack
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID, EOS_ID

VOCAB = 17
CPU = torch.device("cpu")
PAIRS = Pairs(
    sources=[[5, 6, 7], [8], [9, 10, 11, 12, 13, 5, 6], [14, 15]], targets=[[6, 5], [7, 8, 9], [16, 4, 5, 6, 7, 8], []]
)


def random_model(seed: int = 0, **options: Any) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "d_ff": 16, "num_heads": 3, "num_encoder_layers": 2, "num_decoder_layers": 2}
    recipe = ModelRecipe.model_validate(sizes | {"max_positions": 16, "dropout": 0.3} | options)
    model = Transformer(recipe, VOCAB, VOCAB).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def sentence_losses(model: Transformer) -> Tensor:
    """The negative log-likelihood of each pair, computed one by one."""
    losses = []
    for source, target in zip(PAIRS.sources, PAIRS.targets, strict=True):
        src, tgt = PackedSequences.from_lists([[*source, EOS_ID]]), PackedSequences.from_lists([[BOS_ID, *target]])
        log_probs = model.logits(model(src, tgt)).log_softmax(dim=-1)
        losses.append(-sum(log_probs[position, token] for position, token in enumerate([*target, EOS_ID])))
    return torch.stack([torch.as_tensor(loss) for loss in losses]).detach()


def scaled(model: Transformer, head: Head, factor: float) -> Transformer:
    """Return a copy in which the columns of W_O for a head are multiplied by `factor`."""
    changed = copy.deepcopy(model)
    attention = attentions(changed)[head.attention]
    width = attention.width // attention.num_heads
    with torch.no_grad():
        attention.out.weight[:, head.index * width : (head.index + 1) * width] *= factor
    return changed


def batches() -> list[Batch]:
    return [batch for _, batch in PAIRS.batches(CPU)]


TOKENS = sum(len(target) + 1 for target in PAIRS.targets)
POSITIONS = get_args(ModelRecipe.model_fields["positions"].annotation)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [*({"positions": positions} for positions in POSITIONS), {"norm_order": "pre", "num_decoder_layers": 2}],
    ids=str,
)
def test_sensitivity_equals_finite_differences(options: dict[str, Any]) -> None:
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model, step = random_model(**layers | options), 1e-5
    copied = copy.deepcopy(model)
    found = sensitivity(copied, HeadMasks(copied), batches())
    assert list(found) == all_heads(model)
    for head, value in found.items():
        slopes = (sentence_losses(scaled(model, head, 1 + step)) - sentence_losses(scaled(model, head, 1 - step))) / 2
        assert value == pytest.approx(float((slopes / step).abs().sum()) / TOKENS, rel=1e-6, abs=1e-8)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in copied.parameters())


@pytest.mark.slow
def test_removal_equals_zeroed_columns_of_the_output_projection() -> None:
    model = random_model()
    masked, heads = copy.deepcopy(model), all_heads(model)
    groups: list[list[Head]] = [[], *([head] for head in heads)]
    found = nll_without(masked, HeadMasks(masked), batches(), groups)
    expected = [float(sentence_losses(model).sum()) / TOKENS]
    expected += [float(sentence_losses(scaled(model, head, 0.0)).sum()) / TOKENS for head in heads]
    assert found == pytest.approx(expected, rel=1e-10)
    assert len({round(value, 9) for value in found}) == len(found)  # each head matters


def test_groups_are_removed_together_and_then_restored() -> None:
    model = random_model()
    heads = all_heads(model)
    first, last = heads[0], heads[-1]
    both = float(sentence_losses(scaled(scaled(model, first, 0.0), last, 0.0)).sum()) / TOKENS
    masks = HeadMasks(model)
    whole, found, again = nll_without(model, masks, batches(), [[], [first, last], []])
    assert found == pytest.approx(both, rel=1e-10)
    assert again == whole


def test_masks_apply_to_prepacked_models_in_search() -> None:
    model = random_model().float()
    head = all_heads(model)[7]
    expected, packed = scaled(model, head, 0.0), prepack(copy.deepcopy(model))
    masks = HeadMasks(packed)
    src, bos = PackedSequences.from_lists([[5, 6, EOS_ID], [7, EOS_ID]]), torch.full((2, 1), BOS_ID)
    with torch.inference_mode(), masks.removed([head]):
        found = packed.step(bos, packed.start(src, 1))
        torch.testing.assert_close(found, expected.step(bos, expected.start(src, 1)))
        assert not torch.allclose(found, model.step(bos, model.start(src, 1)))
