"""Activation checkpointing changes memory and time, but no bit of the gradients or the random state."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nmt.model.attention import Kernel
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID
from nmt.train.loss import TrainingLoss

VOCAB = 31
SRC = PackedSequences.from_lists([[5, 6, 7, 8], [9], [10, 11, 12, 4, 5, 6]])
TGT = PackedSequences.from_lists([[BOS_ID, 5, 6], [BOS_ID, 7, 8, 9, 10], [BOS_ID]])


def build(*, recompute: bool, **changes: object) -> Transformer:
    """Build a model with every kind of dropout and always the same parameters."""
    options: dict[str, object] = {"d_model": 16, "d_ff": 24, "num_heads": 4}
    options |= {"num_encoder_layers": 3, "num_decoder_layers": 2, "max_positions": 16}
    options |= {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.3}
    torch.manual_seed(1)
    model = Transformer(ModelRecipe.model_validate(options | changes), VOCAB, VOCAB).train()
    model.use_activation_checkpointing(recompute)
    return model


def gradients(model: nn.Module, *inputs: object) -> list[Tensor]:
    """Return all gradients and the final random state."""
    model.zero_grad()
    torch.manual_seed(2)
    out = model(*inputs)
    (out[0] if isinstance(out, tuple) else out.sin().sum()).backward()
    assert all(
        parameter.grad is not None for name, parameter in model.named_parameters() if "output.weight" not in name
    )
    return [p.grad.clone() for p in model.parameters() if p.grad is not None] + [torch.get_rng_state()]


def training_batch() -> Batch:
    """Return a batch without cached layouts."""
    src, tgt = (PackedSequences.from_lists(side.to_lists()) for side in (SRC, TGT))
    return Batch(src, tgt, labels=tgt.tokens.flip(0))


def assert_equal_bits(first: list[Tensor], second: list[Tensor]) -> None:
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kernel", ["matmul", "sdpa"])
def test_gradients_have_the_same_bits_with_dropout(norm_order: str, autocast: bool, kernel: Kernel) -> None:
    plain, checkpointed = (build(recompute=recompute, norm_order=norm_order) for recompute in (False, True))
    plain.use_kernel(kernel)
    checkpointed.use_kernel(kernel)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert_equal_bits(gradients(checkpointed, SRC, TGT), gradients(plain, SRC, TGT))


def test_layers_are_recomputed_in_training_only() -> None:
    model = build(recompute=True)
    calls = dict.fromkeys([*model.encoder.layers, *model.decoder.layers], 0)

    def count(layer: nn.Module, _inputs: object) -> None:
        calls[layer] += 1

    for layer in calls:
        layer.register_forward_pre_hook(count)
    gradients(model, SRC, TGT)
    assert set(calls.values()) == {2}
    gradients(model.eval(), SRC, TGT)
    assert set(calls.values()) == {3}
    model.use_activation_checkpointing(False)
    gradients(model.train(), SRC, TGT)
    assert set(calls.values()) == {4}


def test_parameter_names_are_unchanged() -> None:
    assert build(recompute=True).state_dict().keys() == build(recompute=False).state_dict().keys()


@pytest.mark.slow
def test_a_deep_model_keeps_only_layer_inputs() -> None:
    def saved_bytes(model: Transformer) -> int:
        """Return the bytes of all tensors saved for the backward pass, without the parameters."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(src, tgt)
        return sum(t.untyped_storage().nbytes() for address, t in storages.items() if address not in weights)

    src, tgt = (PackedSequences.from_lists([[5] * 15] * 20) for _ in range(2))
    deep = {"num_encoder_layers": 8, "num_decoder_layers": 8}
    plain, checkpointed = (saved_bytes(build(recompute=recompute, **deep)) for recompute in (False, True))
    layer_input_bytes = src.total * 16 * 4  # d_model is 16, in float32
    assert checkpointed < 30 * layer_input_bytes < plain / 10  # 16 layers, embeddings, encoder output


@pytest.fixture
def single_process_group(tmp_path: Path) -> Iterator[None]:
    """A process group with one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("single_process_group")
@pytest.mark.parametrize("rdrop", [0.0, 5.0])
def test_recomputing_and_rdrop_work_with_ddp(rdrop: float) -> None:
    """DDP requires each gradient to be ready once, and R-Drop uses every parameter twice."""
    plain, checkpointed = (TrainingLoss(build(recompute=recompute), 0.1, rdrop) for recompute in (False, True))
    batch = training_batch()
    parallel = DistributedDataParallel(checkpointed, gradient_as_bucket_view=True)
    for _ in range(2):  # DDP reports a violation in the next step
        assert_equal_bits(gradients(parallel, batch), gradients(plain, batch))


@pytest.mark.slow
def test_recomputing_works_with_compiled_layers() -> None:
    plain, checkpointed = (build(recompute=recompute, num_encoder_layers=1) for recompute in (False, True))
    for layer in checkpointed.encoder.layers:
        layer.compile(dynamic=True, backend="eager")  # only tracing and guards matter here
    batch = training_batch()
    assert_equal_bits(gradients(checkpointed, batch.src, batch.tgt), gradients(plain, batch.src, batch.tgt))
