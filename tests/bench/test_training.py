"""Training benchmarks: equal to the trainer, with tokens, FLOPs and padding."""

import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from nmt.bench.device import LinearRate
from nmt.bench.model_specs import ModelSpec
from nmt.bench.training import TrainingBench, measure_training
from nmt.data.epoch_plan import plan_epoch
from nmt.data.store import PairStore
from nmt.model import dropout
from nmt.model.transformer import Transformer
from nmt.packing.shapes import UpdateStatistics
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.data import TrainingData
from nmt.train.trainer import Trainer

ALONE = World(0, 1, torch.device("cpu"))


def changed(recipe: Recipe, **options: Any) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=options)})


@pytest.mark.slow
def test_benchmark_trains_like_the_trainer(small_spec: ModelSpec, small_store: PairStore) -> None:
    """Parameters and EMA equal those of a training run, bit for bit."""
    recipe = changed(small_spec.recipe, max_steps=5)
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, small_spec.src_vocab_size, small_spec.tgt_vocab_size)
    text = TrainingData(small_store, small_store)
    trainer = Trainer(recipe, ALONE, model, text, lambda tensors, step: {})
    trainer.run()
    spec = replace(small_spec, recipe=recipe.model_copy(update={"run_dir": recipe.directory / "other"}))
    with TrainingBench(spec, ALONE, small_store) as bench:
        bench.run(2)
        bench.run(3)
        measured = bench.trainer
    assert trainer.average is not None
    assert measured.average is not None
    for one, other in ((trainer.model, measured.model), (trainer.average, measured.average)):
        tensors = [part.state_dict() if isinstance(part, nn.Module) else part.tensors() for part in (one, other)]
        assert tensors[0].keys() == tensors[1].keys()
        assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())
    assert not (recipe.directory / "other").exists()  # nothing is saved


@pytest.mark.slow
def test_tokens_and_flops_equal_those_of_the_updates(small_spec: ModelSpec, small_store: PairStore) -> None:
    recipe = small_spec.recipe
    lengths = small_store.src.lengths, small_store.tgt.lengths
    limit = UpdateStatistics.from_lengths(*lengths, batch_tokens=200).src_tokens
    plan = plan_epoch(
        *lengths, batch_tokens=200, src_batch_tokens=limit, micro_batch_tokens=90, seed=recipe.seed, epoch=0
    )
    first = [plan.sentences(index) for index in range(3)]
    with TrainingBench(small_spec, ALONE, small_store) as bench:
        repetition = bench.run(3)
    assert repetition.src_tokens == sum(int(lengths[0][ids].sum()) + len(ids) for ids in first)
    assert repetition.tgt_tokens == sum(plan.tgt_tokens(index) for index in range(3)) <= 600
    assert repetition.flops == sum(bench.model_flops.training(lengths[0][i] + 1, lengths[1][i] + 1) for i in first)
    assert repetition.seconds > 0
    assert repetition.skipped == 0


@pytest.mark.slow
def test_rdrop_doubles_the_flops(small_spec: ModelSpec, small_store: PairStore) -> None:
    flops = []
    for rdrop in (0.0, 5.0):
        spec = replace(small_spec, recipe=changed(small_spec.recipe, rdrop=rdrop))
        with TrainingBench(spec, ALONE, small_store) as bench:
            flops.append(bench.run(1).flops)
    assert flops[1] == 2 * flops[0]


@pytest.mark.slow
def test_dropout_has_its_full_rate(small_spec: ModelSpec, small_store: PairStore) -> None:
    spec = replace(small_spec, recipe=changed(small_spec.recipe, dropout_ramp_steps=1_000))
    with TrainingBench(spec, ALONE, small_store) as bench:
        bench.run(1)
        scales = {module.scale for module in bench.trainer.model.modules() if isinstance(module, dropout.Dropout)}
    assert scales == {1.0}


@pytest.mark.slow
def test_padding_to_one_shape_is_counted(small_spec: ModelSpec, small_store: PairStore) -> None:
    spec = replace(small_spec, recipe=changed(small_spec.recipe, shapes="fixed"))
    with TrainingBench(spec, ALONE, small_store) as bench:
        shape = bench.trainer.batching.shape
        repetition, row_padding = bench.run(2), bench.row_padding(2)  # two updates each
    assert shape is not None
    assert 190 < repetition.tgt_tokens / 2 <= 200
    rows = 3 * (shape.src_tokens + shape.tgt_tokens)  # of the three micro-batches of an update
    tokens = (repetition.src_tokens + repetition.tgt_tokens) / 2
    # Other updates have slightly different numbers of tokens.
    assert row_padding == pytest.approx(1 - tokens / rows, abs=0.03)


@pytest.mark.slow
def test_padding_of_bf16_matmuls_is_counted(small_spec: ModelSpec, small_store: PairStore) -> None:
    spec = replace(small_spec, recipe=changed(small_spec.recipe, precision="bf16"))
    with TrainingBench(spec, ALONE, small_store) as bench:
        assert 0.0 < bench.row_padding(1) < 0.5


OTHER_RANK = 100


class WithPaddedRank(World):
    """Rank 0 with a simulated rank 1, which has `OTHER_RANK` rows of padding and `OTHER_RANK` bytes."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values + OTHER_RANK


@pytest.mark.slow
def test_padding_and_memory_are_those_of_all_ranks(
    small_spec: ModelSpec, small_store: PairStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrainingBench(small_spec, ALONE, small_store) as bench:
        alone = bench.row_padding(1)
        monkeypatch.setattr(bench, "_world", WithPaddedRank(0, 2, torch.device("cpu")))
        both = bench.row_padding(1)
        monkeypatch.setattr("nmt.bench.training.peak_memory", lambda device: 5)
        assert bench.peak_memory() == 5 + OTHER_RANK
    assert alone == 0.0
    assert both > 0.1  # `OTHER_RANK` more than the 400 rows of an update


@pytest.mark.slow
def test_rates_of_a_training_result_are_consistent(
    small_spec: ModelSpec, small_store: PairStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = LinearRate(mean=2e9, best=8e9)
    monkeypatch.setattr("nmt.bench.training.measure_linear", lambda *_: linear)
    result = measure_training(small_spec, ALONE, small_store, warm_up=2, updates=2, repetitions=3)
    spread = result.tgt_tokens_per_second
    assert len(spread.samples) == 3
    assert 0 < spread.least <= spread.median <= spread.most
    # The repetitions have slightly different numbers of tokens, so the two are only approximately equal.
    harmonic_mean = statistics.harmonic_mean(spread.samples)
    assert result.flops_per_second == pytest.approx(result.flops_per_tgt_token * harmonic_mean, rel=0.05)
    assert result.linear == linear
    assert result.fraction_of_linear == pytest.approx(result.flops_per_second / 2e9)
    assert result.fraction_of_best_linear == pytest.approx(result.flops_per_second / 8e9)
    assert 0 < result.first_update_seconds < result.warm_up_seconds
    assert result.peak_memory > 50e6
    assert (result.skipped, result.compiled_while_timed, result.micro_batch_tokens) == (0, 0, 90)
