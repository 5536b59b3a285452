"""The loss, compared with torch, published tables of other systems, and finite differences."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.train import loss as loss_module
from nmt.train.loss import TrainingLoss, linear_cross_entropy, linear_rdrop
from tests.vectors import load_vectors

FACTOR = 0.37  # of the loss: the backward pass must multiply the gradients by it


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("rows_in_chunk", "multiple"), [(1, 1), (10, 1), (1000, 1), (1, 4), (10, 4), (1000, 64)])
def test_loss_and_gradients_equal_torch_in_float64(
    smoothing: float, rows_in_chunk: int, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, d_model, total = 53, 16, 37
    monkeypatch.setattr(loss_module, "row_multiple", lambda precision, device: multiple)
    monkeypatch.setitem(loss_module.CHUNK_BYTES, "cpu", 4 * vocab * rows_in_chunk)
    monkeypatch.setitem(loss_module._SLICE_BYTES, "cpu", 4 * vocab * 7)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(total, d_model, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(vocab, d_model, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(0, vocab, (total,), generator=generator)
    loss, nll = linear_cross_entropy(hidden, weight, labels, smoothing)
    ours = torch.autograd.grad(loss * FACTOR, (hidden, weight))
    reference = F.cross_entropy(hidden @ weight.T, labels, label_smoothing=smoothing, reduction="sum")
    theirs = torch.autograd.grad(reference * FACTOR, (hidden, weight))
    torch.testing.assert_close(loss, reference, rtol=1e-13, atol=0)
    torch.testing.assert_close(nll, F.cross_entropy(hidden @ weight.T, labels, reduction="sum"), rtol=1e-13, atol=0)
    assert loss.requires_grad and not nll.requires_grad
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    loss, nll = linear_cross_entropy(hidden, weight, torch.tensor([0, 2]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(0.0, abs=1e-6)
    assert loss.item() == pytest.approx(2 * 0.1 * 1e4, rel=1e-5)
    for tensor in (hidden, weight):
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all()


def test_bf16_autocast_has_bf16_precision_and_float32_gradients() -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(50, 32, requires_grad=True), torch.randn(100, 32, requires_grad=True)
    labels = torch.randint(0, 100, (50,))
    exact, _ = linear_cross_entropy(hidden, weight, labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = linear_cross_entropy(hidden, weight, labels, 0.1)
    assert exact.item() != rough.item() == pytest.approx(exact.item(), rel=0.01)
    rough_grads, exact_grads = (torch.autograd.grad(loss, (hidden, weight)) for loss in (rough, exact))
    for mine, other in zip(rough_grads, exact_grads, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - other).norm() < 0.02 * other.norm()


def loss_of_log_probs(log_probs: torch.Tensor, labels: torch.Tensor, smoothing: float) -> float:
    """Compute the loss of given logits, with the identity matrix as output projection."""
    loss, _ = linear_cross_entropy(log_probs, torch.eye(log_probs.shape[1], dtype=log_probs.dtype), labels, smoothing)
    return loss.item()


def test_joeynmt_label_smoothing_after_converting_the_convention() -> None:
    """JoeyNMT gives gold 1 - e, pad 0 and all others e / (V - 2), and subtracts the entropy of that target (KL)."""
    table = load_vectors("joeynmt_label_smoothing.json")
    p_row, pad, vocab = table["p_row"], table["pad"], table["V"]
    labels = torch.tensor([label for row in table["targets"] for label in row if label != pad])
    kept = [i for i in range(vocab) if i != pad]
    log_probs = torch.tensor(p_row, dtype=torch.float64).log()
    # Without the pad entry the vocabulary has V - 1 entries. Theirs: e to V - 2 entries; ours: E to V - 1, gold too.
    # So E = e (V - 1) / (V - 2) gives the same target. log p of the pad entry must not enter our log-sum-exp: the
    # other entries sum to less than 1, which adds a constant that is subtracted.
    e = 0.4
    ours_e = e * (vocab - 1) / (vocab - 2)
    rows = log_probs[kept].expand(len(labels), -1)
    missing = len(labels) * math.log(sum(p_row[i] for i in kept))
    cross_entropy = loss_of_log_probs(rows, labels - 1, ours_e) - missing
    entropy = -((1 - e) * math.log(1 - e) + e * math.log(e / (vocab - 2))) * len(labels)
    assert cross_entropy - entropy == pytest.approx(table["smoothing0.4"]["recomputed"], abs=1e-12)
    plain = loss_of_log_probs(rows, labels - 1, 0.0) - missing
    assert plain == pytest.approx(table["smoothing0"]["recomputed"], abs=1e-12)


def test_sockeye_cross_entropy_and_gradient() -> None:
    """Sockeye averages over non-padding rows. Packed batches have no padding, so the padding row is left out."""
    table = load_vectors("sockeye.json")["cross_entropy"]
    rows = [i for i, label in enumerate(table["labels"]) if label != table["pad"]]
    logits = torch.tensor(table["logits"], dtype=torch.float64)[rows].requires_grad_(True)
    labels = torch.tensor(table["labels"])[rows]
    loss, _ = linear_cross_entropy(logits, torch.eye(4, dtype=torch.float64), labels, 0.0)
    mean = loss / len(rows)
    mean.backward()
    assert mean.item() == pytest.approx(table["loss_mean_nonpad"], abs=1e-12)
    expected = torch.tensor(table["grad"], dtype=torch.float64)[rows]
    torch.testing.assert_close(logits.grad, expected, rtol=1e-6, atol=1e-7)


def test_training_loss_and_gradient_by_finite_differences() -> None:
    torch.manual_seed(0)
    recipe = ModelRecipe(d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0)
    model = Transformer(recipe, 11, 11).double()
    tgt = [[5, 6, 7], [8]]
    batch = Batch(
        src=PackedSequences.from_lists([[4, 5, EOS_ID], [6, EOS_ID]]),
        tgt=PackedSequences.from_lists([[BOS_ID, *t] for t in tgt]),
        labels=PackedSequences.from_lists([[*t, EOS_ID] for t in tgt]).tokens,
    )
    module = TrainingLoss(model, 0.1)
    loss, _ = module(batch)
    logits = model.logits(model(batch.src, batch.tgt))
    assert loss.item() == pytest.approx(
        F.cross_entropy(logits, batch.labels, label_smoothing=0.1, reduction="sum").item(), rel=1e-12
    )
    loss.backward()
    for name in (
        "output.weight",
        "decoder.layers.0.cross_attention.kv.weight",
        "encoder.layers.0.feed_forward.inner.bias",
    ):
        parameter = dict(model.named_parameters())[name]
        flat, index, step = parameter.data.view(-1), 3, 1e-6
        values = []
        for sign in (1, -1):
            flat[index] += sign * step
            values.append(module(batch)[0].item())
            flat[index] -= sign * step
        slope = (values[0] - values[1]) / (2 * step)
        assert parameter.grad is not None
        assert parameter.grad.view(-1)[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


# --- R-Drop -----------------------------------------------------------------------------------------------------------


def rdrop_by_autograd(first: Tensor, second: Tensor, labels: Tensor, smoothing: float, rdrop: float) -> Tensor:
    """Half of the paper's formula, by torch functions on all logits."""
    cross_entropies = [
        F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum") for logits in (first, second)
    ]
    p, q = torch.log_softmax(first, dim=-1), torch.log_softmax(second, dim=-1)
    divergences = [F.kl_div(b, a, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    return (torch.stack(cross_entropies).sum() + rdrop * torch.stack(divergences).sum() / 2) / 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rdrop", [0.5, 5.0])
@pytest.mark.parametrize("rows_in_chunk", [1, 11, 1000])  # a chunk has both rows of a pair
def test_rdrop_and_its_gradients_equal_autograd_in_float64(
    smoothing: float, rdrop: float, rows_in_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, d_model, total = 53, 16, 37
    monkeypatch.setitem(loss_module.CHUNK_BYTES, "cpu", 4 * vocab * rows_in_chunk)
    monkeypatch.setitem(loss_module._SLICE_BYTES, "cpu", 24 * vocab * 3)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, total, d_model, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(vocab, d_model, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(0, vocab, (total,), generator=generator)
    loss, nll = linear_rdrop(hidden, weight, labels, smoothing, rdrop)
    ours = torch.autograd.grad(loss * FACTOR, (hidden, weight))
    first, second = hidden @ weight.T
    reference = rdrop_by_autograd(first, second, labels, smoothing, rdrop)
    theirs = torch.autograd.grad(reference * FACTOR, (hidden, weight))
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    torch.testing.assert_close(nll, rdrop_by_autograd(first, second, labels, 0.0, 0.0), rtol=1e-12, atol=0)
    assert loss.requires_grad and not nll.requires_grad
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_rdrop_with_bf16_autocast_has_bf16_precision_and_float32_gradients() -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(2, 50, 32, requires_grad=True), torch.randn(100, 32, requires_grad=True)
    labels = torch.randint(0, 100, (50,))
    exact, _ = linear_rdrop(hidden, weight, labels, 0.1, 5.0)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = linear_rdrop(hidden, weight, labels, 0.1, 5.0)
    assert exact.item() != rough.item() == pytest.approx(exact.item(), rel=0.01)
    rough_grads, exact_grads = (torch.autograd.grad(loss, (hidden, weight)) for loss in (rough, exact))
    for mine, other in zip(rough_grads, exact_grads, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - other).norm() < 0.02 * other.norm()


def test_rdrop_of_two_equal_passes_is_plain_cross_entropy() -> None:
    torch.manual_seed(4)
    hidden = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    weight, labels = torch.randn(20, 8, dtype=torch.float64), torch.randint(0, 20, (9,))
    twice = linear_rdrop(torch.stack([hidden, hidden]), weight, labels, 0.1, 5.0)
    once = linear_cross_entropy(hidden, weight, labels, 0.1)
    torch.testing.assert_close(twice, once, rtol=1e-13, atol=0)
    grads = [torch.autograd.grad(loss, hidden)[0] for loss in (twice[0], once[0])]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-13)


def test_rdrop_of_contradicting_passes_is_finite() -> None:
    hidden = torch.tensor([[[1e4]], [[-1e4]]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    loss, _ = linear_rdrop(hidden, weight, torch.tensor([0]), 0.0, 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(2e4 / 2 + 4e4 / 4, rel=1e-6)
    for tensor in (hidden, weight):
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all()


def test_rdrop_uses_two_passes_with_seeded_dropout() -> None:
    torch.manual_seed(0)
    recipe = ModelRecipe(d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dropout=0.3)
    model = Transformer(recipe, 11, 11).double()
    batch = Batch(
        src=PackedSequences.from_lists([[4, 5, EOS_ID], [6, EOS_ID]]),
        tgt=PackedSequences.from_lists([[BOS_ID, 5, 6, 7], [BOS_ID, 8]]),
        labels=torch.tensor([5, 6, 7, EOS_ID, 8, EOS_ID]),
    )
    module, parameters = TrainingLoss(model, 0.1, rdrop=5.0), list(model.parameters())

    torch.manual_seed(6)
    loss, _ = module(batch)
    grads = torch.autograd.grad(loss, parameters)
    torch.manual_seed(6)
    first, second = model.logits(model(batch.src.repeated(), batch.tgt.repeated())).chunk(2)
    assert not torch.equal(first, second)
    reference = rdrop_by_autograd(first, second, batch.labels, 0.1, 5.0)
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    for mine, other in zip(grads, torch.autograd.grad(reference, parameters), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)

    torch.manual_seed(7)
    assert module(batch)[0] != loss
    module.eval()
    assert torch.equal(torch.stack(module(batch)), torch.stack(TrainingLoss(model, 0.1).eval()(batch)))


@pytest.mark.parametrize("rdrop", [0.0, 2.0])
def test_padding_to_a_multiple_does_not_change_the_loss(rdrop: float) -> None:
    recipe = ModelRecipe(num_encoder_layers=2, num_decoder_layers=2, d_model=16, d_ff=24, num_heads=2, dropout=0.0)
    torch.manual_seed(3)
    model = Transformer(recipe, 40, 40).double()
    loss = TrainingLoss(model, 0.1, rdrop).train()
    pairs = [([7, 8, 9, EOS_ID], [BOS_ID, 11, 12]), ([5, EOS_ID], [BOS_ID, 13]), ([6] * 9, [BOS_ID] * 5)]
    src, tgt = (PackedSequences.from_lists([pair[side] for pair in pairs]) for side in (0, 1))
    batch = Batch(src, tgt, labels=tgt.tokens)
    rounded = batch.pad_to_multiple(16)
    assert rounded.src.total > src.total and rounded.tgt.total > tgt.total
    results = []
    for one in (batch, rounded):
        model.zero_grad(set_to_none=True)
        value, nll = loss(one)
        value.backward()
        results.append([value, nll, *(weight.grad for weight in model.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rdrop", [0.0, 5.0])
def test_an_output_bias_is_part_of_the_loss_and_its_gradient(rdrop: float) -> None:
    torch.manual_seed(8)
    sizes: dict[str, Any] = {"d_model": 8, "d_ff": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    sizes |= {"dropout": 0.0, "tied_embeddings": "decoder", "output_bias": True}
    model = Transformer(ModelRecipe.model_validate(sizes), 11, 13).double()
    assert model.output.bias is not None
    torch.nn.init.normal_(model.output.bias)
    batch = Batch(
        src=PackedSequences.from_lists([[5, 6, EOS_ID], [7, EOS_ID]]),
        tgt=PackedSequences.from_lists([[BOS_ID, 8, 9], [BOS_ID]]),
        labels=torch.tensor([8, 9, EOS_ID, EOS_ID]),
    )
    weights = [model.output.weight, model.output.bias, model.decoder.layers[0].feed_forward.inner.weight]
    loss, nll = TrainingLoss(model, 0.1, rdrop)(batch)  # without dropout both passes are the same
    logits = model.logits(model(batch.src, batch.tgt))
    expected = F.cross_entropy(logits, batch.labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(nll, F.cross_entropy(logits, batch.labels, reduction="sum"), rtol=1e-12, atol=0)
    for mine, other in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-12)
