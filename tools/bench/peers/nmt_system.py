"""nmt: the trainer and translator of this source tree, as measured by `nmt bench`.

Options for training: compile (true or false) and any `train.*` of a recipe; for learning: any `train.*` or `model.*`,
and init (nmt, xavier, transformers or eole: the initialization); for decoding: any `decode.*`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import cast

from torch import nn

from bench.worker import Clock
from bench.workload import Workload
from nmt.bench.decoding import DecodingBench, DecodingTask
from nmt.bench.inputs import DecodingRequest, prepare_decoding, prepare_training_data
from nmt.bench.model_specs import ModelSpec, find_model_spec
from nmt.bench.random_model import write_random_model
from nmt.bench.training import TrainingBench
from nmt.data.prepare import load_prepared
from nmt.data.prepare import prepare as prepare_corpus
from nmt.data.store import PairStore
from nmt.decode.translator import Translator
from nmt.processes.distributed import start_world
from nmt.recipe import DecodeRecipe, SearchPrecision, parse_recipe
from nmt.text.tokenizer import Tokenizers
from nmt.train.validate import validate

_EMBEDDINGS = ("src_embedding.weight", "tgt_embedding.weight", "output.weight")
# A recipe must name corpora, even if they are not read.
_PLACEHOLDER_CORPORA = 'train = [{ kind = "toy" }]\nvalid = [{ kind = "toy" }]'


def _training_spec(workload: Workload, changes: Mapping[str, object], sections: tuple[str, ...]) -> ModelSpec:
    """Model and training options of a workload.

    changes:  further options
    sections: whose options the settings of the system override, such as `train.`
    """
    names = ("batch_tokens", "precision", "device", "threads", "label_smoothing")
    options: dict[str, object] = {f"train.{name}": getattr(workload, name) for name in names}
    options |= changes
    options |= {f"model.{name}": value for name, value in asdict(workload.shape).items()}
    options |= {name: value for name, value in workload.options.items() if name.startswith(sections)}
    return find_model_spec("base", [f"{name}={value}" for name, value in options.items()], workload.vocab_size)


def train(workload: Workload, clock: Clock) -> None:
    """Train on the prepared corpus."""
    spec = _training_spec(workload, {"train.compile": workload.options.get("compile", "false")}, ("train.",))
    with start_world(workload.device) as world, tempfile.TemporaryDirectory() as folder:
        corpus = str(workload.path("nmt"))
        spec, store = prepare_training_data(spec, corpus, Path(folder), workload.updates, workload.vocab_size)
        with TrainingBench(spec, world, store) as bench:
            while True:
                clock.end_round(bench.run(workload.updates).tgt_tokens)


def learn(workload: Workload, clock: Clock) -> None:
    """Train with the schedule of the workload; then translate the test set."""
    learning = workload.learning
    assert learning is not None
    changes = {"seed": learning.seed, "train.schedule": "noam"}
    changes |= {"train.learning_rate": learning.learning_rate, "train.warmup_steps": learning.warmup_steps}
    spec = _training_spec(workload, changes, ("train.", "model."))
    prepared = load_prepared(workload.path("nmt") / "data")
    valid = PairStore(prepared.directory, "valid")
    with start_world(workload.device) as world, tempfile.TemporaryDirectory() as folder:
        spec, store = prepare_training_data(spec, str(workload.path("nmt")), Path(folder), 0, workload.vocab_size)
        with TrainingBench(spec, world, store) as bench:
            loss = bench.trainer.loss
            _initialize_like(workload.options.get("init", "nmt"), loss.model)
            clock.end_round(0)
            for _ in range(learning.rounds):
                tokens = bench.run(workload.updates).tgt_tokens
                clock.end_round(tokens, lambda: {"nll": validate(loss, valid, world, 2_048, lambda: None).nll})
            search = DecodeRecipe(beam_size=workload.beam_size, length_penalty="power", length_alpha=1.0)
            translator = Translator(
                loss.model.eval(),
                prepared.tokenizers,
                search,
                max_positions=spec.recipe.model.max_positions,
                unicode_form=spec.recipe.data.unicode_form,
                device=world.device,
            )
            lines = translator.translate(workload.lines("test.src.txt"))
            Path(f"{learning.output}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            clock.end_round(len(lines))


def _initialize_like(system: str, model: nn.Module) -> None:
    """Replace the initial matrices by those of another initialization.

    xavier:       Xavier uniform, embeddings N(0, 1/d_model): twice as large as nmt's
    transformers: N(0, 0.02^2) for all
    eole:         Xavier uniform for all, the embeddings too
    """
    if system not in ("nmt", "xavier", "transformers", "eole"):
        raise SystemExit(f"init must be nmt, xavier, transformers or eole, got {system!r}; correct it")
    for name, parameter in model.named_parameters():
        if system == "nmt" or parameter.dim() == 1:
            continue
        if system == "transformers":
            nn.init.normal_(parameter, std=0.02)
        elif system == "eole" and name in _EMBEDDINGS:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith(".weight"):  # not positions, which nmt does not halve
            parameter.data.mul_(2)


def decode(workload: Workload, clock: Clock) -> None:
    """Translate text with random weights."""
    # Test sentences have about 16 tokens; shorter ones count as 16.
    settings = [f"beam_size={workload.beam_size}", f"batch_tokens={workload.batch_sentences * 16}"]
    settings += [
        f"{name.removeprefix('decode.')}={value}"
        for name, value in workload.options.items()
        if name.startswith("decode.")
    ]
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(_recipe(workload, _PLACEHOLDER_CORPORA), encoding="utf-8")
        request = DecodingRequest(
            model=str(recipe),
            source=workload.path("test.src.txt"),
            tokenizer=workload.path("nmt"),
            num_sentences=workload.num_sentences,
            vocab_size=None,
            output_tokens=workload.output_tokens - 1,  # EOS takes one more step
            settings=settings,
        )
        model, search, sentences = prepare_decoding(request, Path(folder))
        precision = cast(SearchPrecision, workload.precision)
        bench = DecodingBench(DecodingTask(model, sentences, search, workload.device, precision, workload.threads))
        while True:
            clock.end_round(bench.run().tokens + len(sentences))


def _recipe(workload: Workload, corpora: str) -> str:
    """Recipe with a model of the workload's shape."""
    model = "\n".join(f"{name} = {value}" for name, value in asdict(workload.shape).items())
    return f'name = "bench"\nsrc_lang = "en"\ntgt_lang = "de"\n[data]\n{corpora}\n[model]\n{model}\n'


def prepare(workload: Workload, clock: Clock) -> None:
    """Run `nmt prepare` with a trained tokenizer: from text files to a token store on disk."""
    tokenizers = Tokenizers.load(workload.path("nmt") / "data")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        small = ["model.d_model=16", "model.num_heads=1"]
        write_random_model(model, find_model_spec("tiny", small).recipe, tokenizers)
        for number in count():
            given = [f"run_dir={folder}/{number}", f"data.workers={workload.threads}", f"tokenizer.start_from={model}"]
            prepared = prepare_corpus(parse_recipe(_recipe(workload, _corpora(workload)), given))
            clock.end_round(sum(prepared.report["train"][side]["tokens"] for side in ("src", "tgt")))
            shutil.rmtree(Path(folder) / str(number))


def _corpora(workload: Workload) -> str:
    """Raw training text, with the test set for validation."""
    lines = []
    for name, split in (("train", "train"), ("valid", "test")):
        src, tgt = (json.dumps(str(workload.path(f"{split}.{side}.txt"))) for side in ("src", "tgt"))
        lines.append(f'{name} = [{{ kind = "text", src = {src}, tgt = {tgt} }}]')
    return "\n".join([*lines, "drop_duplicates = false", "drop_identical = false"])
