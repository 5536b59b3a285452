"""`nmt bench train` and `nmt bench decode`: measure training and translation speed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.bench.decoding import DecodingTask, measure_decoding
from nmt.bench.inputs import BUILT_IN_LENGTHS, DecodingRequest, prepare_decoding, prepare_training_data
from nmt.bench.model_specs import find_model_spec
from nmt.bench.report import decoding_rows, format_table, training_rows, write_json
from nmt.bench.training import measure_training
from nmt.cli.arguments import MAX_THREADS, Device, file_path
from nmt.devices.precision import Precision as TrainingPrecision
from nmt.logs import counted
from nmt.processes.distributed import start_world
from nmt.recipe import SearchPrecision
from nmt.streams.output_checks import require_output

app = typer.Typer(help="Measure the training and translation speed of this machine.", no_args_is_help=True)
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="tiny (Wu et al. 2021), base or big (Vaswani et al. 2017), a recipe (.toml or a name that nmt recipes "
        "lists), or a model directory.",
    ),
]
VocabSize = Annotated[
    int | None,
    typer.Option(min=5, help="Vocabulary size (default: that of the prepared corpus or the model; base: 37,000)."),
]
Repetitions = Annotated[int, typer.Option(min=1, help="Number of measurements; reports median and spread.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", parser=file_path, metavar="PATH", help="Write all results, with each measurement, to this JSON file."
    ),
]


@app.command()
def train(
    model: Model,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options that override those of the recipe: section.key=value.")
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(
            help="Training data: wmt14 (random tokens with the sentence lengths of WMT14), or a run directory with a "
            "prepared corpus."
        ),
    ] = BUILT_IN_LENGTHS,
    vocab_size: VocabSize = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Target tokens per update.")] = None,
    micro_batch_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens per micro-batch.")] = None,
    precision: Annotated[TrainingPrecision | None, typer.Option(help="Compute type of matmuls.")] = None,
    device: Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="Threads per process; 0 divides the cores.")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile or not.")] = None,
    warm_up: Annotated[int, typer.Option(min=1, help="Updates before the first measurement.")] = 5,
    updates: Annotated[int, typer.Option(min=1, help="Updates per measurement.")] = 10,
    repetitions: Repetitions = 5,
    json_file: JsonFile = None,
) -> None:
    """Measure training: target tokens per second, without padding, and model FLOP/s relative to those of F.linear.

    Runs the trainer with its batches, loss, optimizer and compilation, but saves nothing. The rates exclude the
    warm-up. F.linear is timed afterwards, at the shapes of the model.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt bench train big
    """
    require_output("--json", json_file, [Path(model)], replaces=b'"kind": "train"')
    options: dict[str, object] = {"batch_tokens": batch_tokens, "micro_batch_tokens": micro_batch_tokens}
    options |= {"precision": precision, "device": device, "threads": threads}
    options["compile"] = None if compiled is None else str(compiled).lower()
    train_overrides = [f"train.{name}={value}" for name, value in options.items() if value is not None]
    spec = find_model_spec(model, [*(overrides or ()), *train_overrides], vocab_size)
    with start_world(spec.recipe.train.device, "rerun the command") as world, tempfile.TemporaryDirectory() as folder:
        num_updates = warm_up + updates * (repetitions + 1)
        spec, store = prepare_training_data(spec, lengths, Path(folder), num_updates, vocab_size)
        result = measure_training(spec, world, store, warm_up=warm_up, updates=updates, repetitions=repetitions)
    if not world.is_main:
        return
    number = counted(world.size, "process", "processes")
    title = f"training {model} on {world.device}, {number}, vocabulary {spec.tgt_vocab_size:,}, lengths of {lengths}"
    title += f", {spec.recipe.train.batch_tokens:,} target tokens per update"
    typer.echo(format_table(title, training_rows(result)))
    if json_file is not None:
        settings = {"model": model, "lengths": lengths, "vocab_size": spec.tgt_vocab_size, "warm_up": warm_up}
        settings |= {"updates": updates, "repetitions": repetitions, "device": str(world.device), "world": world.size}
        resolved = spec.recipe.model_dump(mode="json", include={"model", "train", "seed"})
        write_json(json_file, "train", {**settings, "recipe": resolved}, result)


@app.command()
def decode(
    model: Model,
    source: Annotated[
        Path | None,
        typer.Option("--input", help="Sentences, one per line (default: random tokens with the lengths of WMT14)."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="With random weights and --input: a run, or a directory with a tokenizer."),
    ] = None,
    sentences: Annotated[
        int, typer.Option(min=1, help="Maximum number of sentences, from the start of the file.")
    ] = 256,
    vocab_size: VocabSize = None,
    output_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Exact length of each output in tokens (default: chosen by the model; with random weights, the length "
            "of the source).",
        ),
    ] = None,
    beam_size: Annotated[int | None, typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum source tokens per batch.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other option of the decode section, such as length_penalty=none."),
    ] = None,
    precision: Annotated[SearchPrecision, typer.Option(help="Compute type; auto: bf16 if native, else fp32.")] = "auto",
    device: Device = "auto",
    threads: Annotated[int, typer.Option(min=0, max=MAX_THREADS, help="Threads; 0 uses all cores.")] = 0,
    latency: Annotated[bool, typer.Option("--latency", help="Also measure each sentence on its own.")] = False,
    repetitions: Repetitions = 5,
    json_file: JsonFile = None,
) -> None:
    """Measure translation: output tokens per second, from text to text.

    tiny, base, big and recipes have random weights; they are as fast as trained weights for the same number of tokens.
    The rates exclude loading and a first pass.
    """
    require_output("--json", json_file, [source, Path(model)], replaces=b'"kind": "decode"')
    options = {"beam_size": beam_size, "batch_tokens": batch_tokens}
    overrides = [*(settings or ()), *(f"{name}={value}" for name, value in options.items() if value is not None)]
    request = DecodingRequest(model, source, tokenizer, sentences, vocab_size, output_tokens, overrides)
    with tempfile.TemporaryDirectory() as folder:
        path, recipe, lines = prepare_decoding(request, Path(folder))
        task = DecodingTask(path, lines, recipe, device, precision, threads).resolved()
        result = measure_decoding(task, repetitions=repetitions, latency=latency)
    title = f"translating with {model}, {recipe.description}, {task.precision} on {task.device}"
    typer.echo(format_table(title, decoding_rows(result)))
    if json_file is not None:
        conditions: dict[str, Any] = {"model": model, "input": str(source) if source else None, "sentences": len(lines)}
        conditions |= {"output_tokens": output_tokens, "precision": task.precision, "device": task.device}
        conditions |= {"threads": threads, "repetitions": repetitions}
        conditions["decode"] = recipe.model_dump(mode="json")
        write_json(json_file, "decode", conditions, result)
