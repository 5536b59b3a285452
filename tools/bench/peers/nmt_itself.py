"""nmt: the trainer and the translator of this tree, as `nmt bench` measures them.

Options: compile (true or false) and any `train.x` of a recipe; processes, and any `decode.x`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import cast

from bench.work import Work
from bench.worker import Clock
from nmt.bench.decoding import DecodingBench, DecodingTask
from nmt.bench.inputs import DecodingRequest, prepare_decoding, prepare_training_data
from nmt.bench.model_specs import find_model_spec
from nmt.bench.processes import DecodingProcesses
from nmt.bench.random_model import write_random_model
from nmt.bench.training import TrainingBench
from nmt.data.prepare import prepare as prepare_corpus
from nmt.devices.precision import SearchPrecision
from nmt.processes.distributed import start_world
from nmt.recipe import parse_recipe
from nmt.text.tokenizer import Tokenizers

# A recipe must name corpora, even where they are not read.
_NOT_READ = 'train = [{ kind = "toy" }]\nvalid = [{ kind = "toy" }]'


def _overrides(work: Work, section: str) -> list[str]:
    chosen = {name: value for name, value in work.options.items() if name.startswith(f"{section}.")}
    return [*(f"model.{name}={value}" for name, value in asdict(work.shape).items()), *map("=".join, chosen.items())]


def train(work: Work, clock: Clock) -> None:
    """Updates of the trainer on the prepared corpus."""
    options = {"batch_tokens": work.batch_tokens, "precision": work.precision, "device": work.device}
    options |= {"threads": work.threads, "label_smoothing": work.label_smoothing}
    options["compile"] = work.option("compile", "false")
    given = [f"train.{name}={value}" for name, value in options.items()]
    spec = find_model_spec("base", [*given, *_overrides(work, "train")], work.vocab_size)
    with start_world(work.device) as world, tempfile.TemporaryDirectory() as folder:
        corpus = str(work.path("nmt"))
        spec, store = prepare_training_data(spec, corpus, Path(folder), work.updates, work.vocab_size)
        with TrainingBench(spec, world, store) as bench:
            while True:
                clock.lap(bench.run(work.updates).tgt_tokens)


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
        recipe.write_text(_recipe(work, _NOT_READ), encoding="utf-8")
        request = DecodingRequest(
            model=str(recipe),
            source=work.path("test.src.txt"),
            tokenizer=work.path("nmt"),
            num_sentences=work.num_sentences,
            vocab_size=None,
            output_tokens=work.output_tokens - 1,  # and the end token, which takes a step of search like the others
            settings=settings,
        )
        model, search, sentences = prepare_decoding(request, Path(folder))
        precision = cast(SearchPrecision, work.precision)
        threads = work.threads // processes
        task = DecodingTask(model, sentences, search, work.device, precision, threads)
        bench = DecodingBench(task) if processes == 1 else DecodingProcesses(task, processes)
        while True:
            clock.lap(bench.run().tokens + work.num_sentences)


def _recipe(work: Work, corpora: str) -> str:
    """A recipe with the model of the work."""
    model = "\n".join(f"{name} = {value}" for name, value in asdict(work.shape).items())
    return f'name = "bench"\nsrc_lang = "en"\ntgt_lang = "de"\n[data]\n{corpora}\n[model]\n{model}\n'


def prepare(work: Work, clock: Clock) -> None:
    """`nmt prepare` of the training text with a trained tokenizer: from files of text to a token store on disk."""
    tokenizers = Tokenizers.load(work.path("nmt") / "data")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        small = ["model.d_model=16", "model.num_heads=1"]
        write_random_model(model, find_model_spec("tiny", small).recipe, tokenizers)
        for number in count():
            given = [f"run_dir={folder}/{number}", f"data.workers={work.threads}", f"tokenizer.start_from={model}"]
            prepared = prepare_corpus(parse_recipe(_recipe(work, _corpora(work)), given))
            clock.lap(sum(prepared.report["train"][side]["tokens"] for side in ("src", "tgt")))
            shutil.rmtree(Path(folder) / str(number))


def _corpora(work: Work) -> str:
    """The training text as it was, and a little of it for validation."""
    lines = []
    for name, split in (("train", "train"), ("valid", "test")):
        src, tgt = (json.dumps(str(work.path(f"{split}.{side}.txt"))) for side in ("src", "tgt"))
        lines.append(f'{name} = [{{ kind = "text", src = {src}, tgt = {tgt} }}]')
    return "\n".join([*lines, "drop_duplicates = false", "drop_identical = false"])
