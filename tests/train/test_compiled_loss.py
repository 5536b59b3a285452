"""The compiled step, tested on a CPU: padding changes nothing, and one graph serves all batches."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.epoch_plan import plan_epoch
from nmt.model import attention, dropout
from nmt.model.attention import Kernel
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, BatchShape, PackedSequences
from nmt.packing.shapes import UpdateStatistics
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.train.compiled_loss import compilable_cross_entropy
from nmt.train.loss import TrainingLoss, linear_cross_entropy

VOCAB = 70
FACTOR = 0.37  # of the loss: the backward pass must multiply the gradients by it
SMALL = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.fixture
def one_graph_for_all() -> Iterator[None]:
    """A second compilation of the same code is an error."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


def fixed_and_packed() -> tuple[BatchShape, list[tuple[Batch, Batch]]]:
    """Return the batches of three updates, padded to one shape and without padding."""
    random = np.random.Generator(np.random.PCG64(4))
    src_lengths, tgt_lengths = random.integers(0, 9, 60), random.integers(0, 9, 60)
    shape = UpdateStatistics.from_lengths(src_lengths, tgt_lengths, batch_tokens=120).shape(60)
    plan = plan_epoch(src_lengths, tgt_lengths, batch_tokens=120, micro_batch_tokens=60, seed=1, epoch=0, shape=shape)
    batches = []
    for ids in plan.micro_batches(0) + plan.micro_batches(1) + plan.micro_batches(2):
        src, tgt = ([random.integers(4, VOCAB, side[i]).tolist() for i in ids] for side in (src_lengths, tgt_lengths))
        packed = Batch.from_lists(src, tgt)
        batches.append((packed.pad_to_shape(shape), packed))
    assert len({(packed.src.total, packed.tgt.total, packed.num_sentences) for _, packed in batches}) > 5
    return shape, batches


def build(dtype: torch.dtype = torch.float64, **options: Any) -> TrainingLoss:
    torch.manual_seed(3)
    model = Transformer(ModelRecipe.model_validate(SMALL | {"dropout": 0.0} | options), VOCAB, VOCAB).to(dtype)
    if model.output.bias is not None:
        torch.nn.init.normal_(model.output.bias)
    return TrainingLoss(model, 0.1).train()


def loss_and_gradients(loss: TrainingLoss, batch: Batch) -> list[Tensor]:
    loss.zero_grad(set_to_none=True)
    value, nll = loss(batch)
    value.backward()
    return [value.detach(), nll, *(weight.grad for weight in loss.parameters())]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_bytes", [1, 4 * 128 * 64, 4 * 128 * 128, 1 << 30])  # the padded vocabulary has 128
def test_padding_is_ignored_and_other_rows_equal_torch(smoothing: float, chunk_bytes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(200, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(101, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(1, 101, (200,), generator=generator)
    labels[150:] = PAD_ID
    results = []
    for loss, nll in (
        compilable_cross_entropy(hidden, weight, labels, smoothing, chunk_bytes),
        linear_cross_entropy(hidden[:150], weight, labels[:150], smoothing),
        [
            F.cross_entropy(hidden @ weight.T, labels, label_smoothing=eps, reduction="sum", ignore_index=PAD_ID)
            for eps in (smoothing, 0.0)
        ],
    ):
        results.append([loss, nll, *torch.autograd.grad(loss * FACTOR, (hidden, weight))])
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(results[0], results[2], rtol=1e-12, atol=1e-13)


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[1e4], [-1e4], [1e4]], requires_grad=True)
    weight = torch.tensor([[0.0], [1.0], [-1.0]], requires_grad=True)
    loss, nll = compilable_cross_entropy(hidden, weight, torch.tensor([1, 2, PAD_ID]), 0.1, 1)
    loss.backward()
    assert nll.item() == pytest.approx(0.0, abs=1e-6)
    assert loss.item() == pytest.approx(2 * 0.1 * 1e4, rel=1e-5)
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all() and hidden.grad[2] == 0
    assert weight.grad is not None and torch.isfinite(weight.grad).all()


def test_bf16_precision_is_that_of_the_eager_loss() -> None:
    torch.manual_seed(0)
    weight = (torch.randn(1_000, 64) / 8).requires_grad_()
    hidden = (3 * torch.randn(200, 64)).bfloat16().requires_grad_()
    labels = torch.randint(1, 1_000, (200,))
    exact = torch.autograd.grad(
        linear_cross_entropy(hidden.double(), weight.double(), labels, 0.1)[0], (hidden, weight)
    )
    errors = []
    for loss, _ in (
        linear_cross_entropy(hidden, weight, labels, 0.1),
        compilable_cross_entropy(hidden, weight, labels, 0.1, 1 << 18),
    ):
        assert loss.dtype == torch.float32
        grads = torch.autograd.grad(loss, (hidden, weight))
        assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.float32]
        errors.append([((a - b).norm() / b.norm()).item() for a, b in zip(grads, exact, strict=True)])
    assert all(new < 1.5 * old < 0.02 for old, new in zip(*errors, strict=True)), errors


@pytest.mark.slow
def test_padding_to_a_shape_changes_neither_loss_nor_gradients() -> None:
    """On the eager path, which skips padding."""
    loss = build()
    for fixed, packed in fixed_and_packed()[1]:
        torch.testing.assert_close(
            loss_and_gradients(loss, fixed), loss_and_gradients(loss, packed), rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("kernel", ["matmul", "sdpa", "masked"])
def test_source_padding_without_target_padding_is_ignored(kernel: Kernel) -> None:
    """No target token attends to the padding source tokens if the target side is full."""
    loss = build()
    loss.model.use_kernel(kernel)
    src = PackedSequences.from_lists([[5, 6, 7, EOS_ID]] * 5)
    tgt = PackedSequences.from_lists([[BOS_ID, 8, 9]] * 5)
    packed = Batch(src, tgt, PackedSequences.from_lists([[8, 9, EOS_ID]] * 5).tokens)
    fixed = packed.pad_to_shape(BatchShape(src.total + 128, tgt.total, num_sentences=7, max_length=64))
    assert fixed.src.sizes.tolist()[5:] == [64, 64] and not fixed.padding
    torch.testing.assert_close(
        loss_and_gradients(loss, fixed), loss_and_gradients(loss, packed), rtol=1e-12, atol=1e-13
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "checkpointing"),
    [
        ({}, False),
        ({"norm_order": "pre", "activation": "gelu"}, True),
        ({"tied_embeddings": "none", "output_bias": True}, False),
    ],
    ids=["post", "pre-checkpointing", "bias"],
)
def test_one_graph_computes_all_batches(options: dict[str, Any], checkpointing: bool, one_graph_for_all: None) -> None:
    plain, traced = build(**options), build(**options)
    traced.model.use_kernel("masked")
    traced.model.use_activation_checkpointing(checkpointing)
    traced.compile_step(backend="aot_eager")
    for fixed, packed in fixed_and_packed()[1]:
        torch.testing.assert_close(
            loss_and_gradients(traced, fixed), loss_and_gradients(plain, packed), rtol=1e-12, atol=1e-13
        )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def use_dropout_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the dropout for CPUs, which splits random integers in place."""
    for module in (attention, dropout):
        monkeypatch.setattr(module, "dropout", F.dropout)


@pytest.mark.slow
def test_one_graph_with_dropout_in_bf16(one_graph_for_all: None, monkeypatch: pytest.MonkeyPatch) -> None:
    use_dropout_of_a_gpu(monkeypatch)
    loss = build(torch.float32, dropout=0.3, attention_dropout=0.1, activation_dropout=0.1)
    loss.model.use_kernel("masked")
    loss.compile_step(backend="aot_eager")
    values = []
    _, batches = fixed_and_packed()
    for fixed, _ in (*batches, batches[-1]):
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16):
            values.append(loss(fixed)[0])
        values[-1].backward()
    assert values[-1] == values[-2] != values[-3]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_each_dropout_level_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    use_dropout_of_a_gpu(monkeypatch)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss, plain = build(torch.float32, dropout=0.3), build(torch.float32, dropout=0.3)
    for each in (loss, plain):
        each.model.use_kernel("masked")
    loss.compile_step(backend="eager")
    (batch, _), *_ = fixed_and_packed()[1]
    for seed, scale in enumerate((0.0, 0.5, 0.5, 1.0, 0.0, 0.5)):
        values = []
        for each in (loss, plain):
            each.model.scale_dropout(scale)
            torch.manual_seed(seed)
            values.append(each(batch))
        torch.testing.assert_close(values[0], values[1])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
    torch._dynamo.reset()


@pytest.mark.slow
def test_validation_and_other_shapes_do_not_use_the_graph(one_graph_for_all: None) -> None:
    loss, plain = build(), build()
    loss.model.use_kernel("masked")
    loss.compile_step(backend="eager")
    shape, batches = fixed_and_packed()
    loss(batches[0][0])
    plain.eval()
    loss.eval()
    for _, packed in batches:
        torch.testing.assert_close(loss(packed), plain(packed), rtol=1e-12, atol=0)
    larger = BatchShape(shape.src_tokens + 8, shape.tgt_tokens, shape.num_sentences + 1, shape.max_length)
    with pytest.raises(torch._dynamo.exc.RecompileError):  # what the other tests rely on
        loss.train()(batches[0][1].pad_to_shape(larger))
    torch._dynamo.reset()  # otherwise, the error would be another RecompileError
    loss.model.use_kernel(None)  # rows of this kernel are computed and cached on the host, which a graph cannot do
    with pytest.raises(torch._dynamo.exc.Unsupported):
        loss(batches[0][0])
