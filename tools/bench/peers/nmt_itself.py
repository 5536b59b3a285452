"""nmt: the trainer and the translator of this tree, as `nmt bench` measures them.

Options: compile (true or false) and any `train.x` of a recipe; processes, and any `decode.x`.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.work import Work
from bench.worker import Clock
from nmt.bench.decoding import DecodingBench, DecodingTask
from nmt.bench.processes import DecodingProcesses
from nmt.bench.subjects import find_subject
from nmt.bench.tasks import SearchRequest, model_and_sentences, training_text
from nmt.bench.training import TrainingBench
from nmt.distributed import start_world


def _overrides(work: Work, section: str) -> list[str]:
    chosen = {name: value for name, value in work.options.items() if name.startswith(f"{section}.")}
    return [*(f"model.{name}={value}" for name, value in asdict(work.shape).items()), *map("=".join, chosen.items())]


def train(work: Work, clock: Clock) -> None:
    """Updates of the trainer on the prepared corpus."""
    options = {"batch_tokens": work.batch_tokens, "precision": work.precision, "device": work.device}
    options |= {"threads": work.threads, "label_smoothing": work.label_smoothing}
    options["compile"] = work.option("compile", "false")
    given = [f"train.{name}={value}" for name, value in options.items()]
    subject = find_subject("base", [*given, *_overrides(work, "train")], work.vocab_size)
    with start_world(work.device) as world, tempfile.TemporaryDirectory() as folder:
        corpus = str(work.path("nmt"))
        subject, store = training_text(subject, corpus, Path(folder), work.updates, work.vocab_size)
        with TrainingBench(subject, world, store) as bench:
            while True:
                clock.lap(bench.repeat(work.updates).tgt_tokens)


def decode(work: Work, clock: Clock) -> None:
    """Passes of the translator with random weights, from text to text, by one process or several."""
    processes = int(work.option("processes", "1"))
    # A sentence of the test set has about 16 tokens, and none counts for less.
    settings = [f"beam_size={work.beam_size}", f"batch_tokens={work.batch_sentences * 16}"]
    settings += [
        f"{name.removeprefix('decode.')}={value}" for name, value in work.options.items() if name.startswith("decode.")
    ]
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(_recipe(work), encoding="utf-8")
        request = SearchRequest(
            model=str(recipe),
            source=work.path("test.src.txt"),
            tokenizer=work.path("nmt"),
            num_sentences=work.num_sentences,
            vocab_size=None,
            output_tokens=work.output_tokens,
            settings=settings,
        )
        model, search, sentences = model_and_sentences(request, Path(folder))
        precision: object = work.precision
        task = DecodingTask(model, sentences, search, work.device, precision, work.threads // processes)  # type: ignore[arg-type]
        bench = DecodingBench(task) if processes == 1 else DecodingProcesses(task, processes)
        while True:
            clock.lap(bench.repeat().tokens)


def _recipe(work: Work) -> str:
    """A recipe of which only the model counts."""
    model = "\n".join(f"{name} = {value}" for name, value in asdict(work.shape).items())
    corpora = 'train = [{ kind = "embedded" }]\nvalid = [{ kind = "embedded" }]'
    return f'name = "bench"\nsrc_lang = "en"\ntgt_lang = "de"\n[data]\n{corpora}\n[model]\n{model}\n'
