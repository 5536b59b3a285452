"""Training with torch.compile: number of graphs, gradients, compilation time and speedup.

A dry run compiles with the backend `eager` and an attention kernel that can be traced on a CPU.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from gpu_check.outcome import Results
from gpu_check.settings import NO_GPU, Settings
from nmt.bench.inputs import BUILT_IN_LENGTHS, prepare_training_data
from nmt.bench.model_specs import ModelSpec, find_model_spec
from nmt.bench.training import Repetition, TrainingBench, compiled_graphs
from nmt.data.loader import Update
from nmt.data.store import PairStore
from nmt.devices.precision import autocast
from nmt.processes.distributed import World, start_world
from nmt.train.trainer import Trainer

_WARM_UP = 3
# Maximum relative distance of the bf16 gradients: a few units in the last place of 8 significant bits.
_GRADIENT_LIMIT = 0.03


def run(settings: Settings, results: Results, _part: str) -> None:
    """Measure eager and compiled training and compare their gradients."""
    updates = settings.pick(10, 2)
    with start_world(settings.device) as world, tempfile.TemporaryDirectory() as folder:
        spec = _spec(settings, compiled=False)
        spec, store = prepare_training_data(spec, BUILT_IN_LENGTHS, Path(folder), 8 * updates, settings.pick(None, 200))
        with TrainingBench(spec, world, store) as bench:
            _trace_on_cpu(bench.trainer, settings)
            bench.run(_WARM_UP)
            eager = bench.run(updates)
            with bench.trainer.batches() as batches:
                update = next(batches)
            expected = _gradient(bench.trainer, update, world)
        _measure_compiled(settings, results, _compiled(settings, spec, world, store), eager, update, expected)


def _measure_compiled(
    settings: Settings, results: Results, bench: TrainingBench, eager: Repetition, update: Update, expected: Tensor
) -> None:
    with bench:
        first = bench.run(1)
        bench.run(_WARM_UP)
        graphs = compiled_graphs()
        compiled = bench.run(settings.pick(10, 2))
        recompiled = compiled_graphs() - graphs
        results.check("graphs of model and loss after warm-up", "1", str(graphs), graphs == 1)
        results.check("recompilations after warm-up", "0", str(recompiled), recompiled == 0)
        skipped = eager.skipped + compiled.skipped
        results.check("updates without a finite gradient", "0", str(skipped), skipped == 0)
        found = _gradient(bench.trainer, update, bench.trainer.world)
    distance = float((found - expected).norm() / expected.norm())
    name = "gradient of compiled and eager steps in bf16, without dropout"
    results.check(name, f"within {_GRADIENT_LIMIT:g}", f"{distance:.2g}", distance <= _GRADIENT_LIMIT)
    rates = [one.tgt_tokens / one.seconds for one in (compiled, eager)]
    speed = f"{rates[0]:,.0f} and {rates[1]:,.0f} target tokens/s, {rates[0] / rates[1]:.2f} times"
    if settings.on_gpu:
        results.check("compiled and eager training", "compiled is faster", speed, rates[0] > rates[1])
    else:
        results.not_measured("compiled and eager training", "compiled is faster", NO_GPU)
    results.note(f"First compiled update: {first.seconds:.1f} s. Compiled and eager: {speed}.")


def _spec(settings: Settings, *, compiled: bool) -> ModelSpec:
    options = [f"train.device={settings.device}", "train.precision=bf16", "train.shapes=fixed"]
    options.append(f"train.compile={str(compiled and settings.on_gpu).lower()}")
    small = ["train.batch_tokens=600", "train.micro_batch_tokens=300", "model.dropout=0.0", "data.max_tokens=100"]
    small += ["model.num_encoder_layers=1", "model.num_decoder_layers=1", "train.threads=1"]
    return find_model_spec(
        settings.pick("base", "tiny"), [*options, *settings.pick([], small)], settings.pick(None, 200)
    )


def _compiled(settings: Settings, spec: ModelSpec, world: World, store: PairStore) -> TrainingBench:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    recipe = _spec(settings, compiled=True).recipe.model_copy(update={"run_dir": spec.recipe.run_dir})
    bench = TrainingBench(ModelSpec(recipe, spec.src_vocab_size, spec.tgt_vocab_size), world, store)
    _trace_on_cpu(bench.trainer, settings)
    if not settings.on_gpu:
        bench.trainer.loss.compile_step(backend="eager")
    return bench


def _trace_on_cpu(trainer: Trainer, settings: Settings) -> None:
    """On a CPU, use an attention kernel that does not read tensors on the host, as on a GPU."""
    if not settings.on_gpu:
        trainer.model.use_kernel("masked")


def _gradient(trainer: Trainer, update: Update, world: World) -> Tensor:
    """Gradient of a micro-batch as one vector, without dropout, at seeded random weights."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.copy_(torch.randn(weight.shape) / max(weight.shape) ** 0.5)
    trainer.model.scale_dropout(0.0)
    trainer.loss.zero_grad(set_to_none=True)
    batch = update.micro_batches[0].batch
    with autocast("bf16", world.device):
        loss, _ = trainer.loss(batch.to(world.device))
    (loss / batch.tgt_tokens).backward()
    return torch.cat(
        [weight.grad.flatten().float() for weight in trainer.model.parameters() if weight.grad is not None]
    )
