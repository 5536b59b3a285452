"""Models and checkpoints: directories of verified files, without pickle.

A model directory has `model.safetensors`, `model.toml`, the tokenizer and `manifest.json`. A checkpoint is a model
directory with `optimizer.safetensors`, `state.json`, `recipe.toml` and, if the run keeps an EMA, `average.safetensors`
to resume training; it can be used to translate.
`nmt.storage.sealed` writes directories atomically and verifies them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nmt.devices.memory import explained_out_of_memory
from nmt.errors import UserError
from nmt.logs import warn
from nmt.model.transformer import Transformer
from nmt.models import TranslationModel, build_uninitialized
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.recipe.model import DROPOUT_OPTIONS
from nmt.storage.model_metadata import ModelMetadata, model_toml, read_model_toml, require_transformer
from nmt.storage.run_folder import checkpoint_directory, checkpoint_step, find_model, list_checkpoints
from nmt.storage.sealed import (
    CorruptError,
    read_manifest,
    require_new,
    require_present,
    verify_directory,
    write_directory,
)
from nmt.text.pair_encoder import PairEncoder
from nmt.text.tokenizer import Tokenizers

AVERAGE = "average.safetensors"

Tensors = Mapping[str, Tensor]


# --- Model directories ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedModel:
    """A model from a directory, in evaluation mode on its device."""

    model: TranslationModel
    metadata: ModelMetadata
    directory: Path

    @property
    def transformer(self) -> Transformer:
        """The model as a Transformer; raises UserError for another architecture."""
        require_transformer(self.model.recipe, self.directory)
        return cast(Transformer, self.model)

    def pair_encoder(self, tokenizers: Tokenizers, tag: str | None) -> PairEncoder:
        """Return the encoder of sentence pairs. tag: see `DecodeRecipe.tag`"""
        tag_ids = [] if tag is None else [tokenizers.src.tag_id(tag)]
        return PairEncoder(
            tokenizers,
            self.metadata.unicode_form,
            self.model.recipe.max_positions - 1,
            tag_ids,
            self.metadata.max_source_tokens(tag_ids),
            self.metadata.reverse_target,
        )


def model_files(
    model_recipe: ModelRecipe, tensors: Tensors, tokenizer_files: Mapping[str, bytes], metadata: ModelMetadata
) -> dict[str, bytes | Callable[[], bytes]]:
    """Return the files of a model directory for `write_directory`; `tensors` from `model_tensors`."""
    return {
        "model.safetensors": lambda: save(dict(tensors)),
        "model.toml": model_toml(model_recipe, metadata).encode(),
        **tokenizer_files,
    }


def load_model(path: str | Path, device: torch.device | str) -> LoadedModel:
    """Load and verify a model directory, a checkpoint, or a run (its average, else its newest checkpoint).

    Raises:
        UserError: no model at `path`.
        CorruptError: a file differs from what was saved.
    """
    directory = find_model(Path(path))
    verify_directory(directory)
    model_recipe, metadata = read_model_toml(directory / "model.toml")
    device = torch.device(device)
    with explained_out_of_memory(device):
        model = build_uninitialized(model_recipe, metadata.src_vocab_size, metadata.tgt_vocab_size, device)
    load_tensors(model, read_tensors(directory / "model.safetensors"), directory)
    return LoadedModel(model.eval(), metadata, directory)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the parameters on the host by name, tied ones once."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


def load_tensors(model: nn.Module, tensors: Tensors, directory: Path | None = None) -> None:
    """Load parameters into a model; raises UserError listing all mismatches. directory: their source, for the error"""
    parameters = dict(model.named_parameters())
    problems = [f"{name} is missing" for name in parameters.keys() - tensors.keys()]
    problems += [f"{name} is unknown" for name in tensors.keys() - parameters.keys()]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, must be {tuple(parameters[name].shape)}"
        for name in parameters.keys() & tensors.keys()
        if tensors[name].shape != parameters[name].shape
    ]
    if problems:
        of_directory = f" of {directory}" if directory is not None else ""
        raise UserError(f"the parameters{of_directory} do not match the model: {', '.join(sorted(problems))}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raises CorruptError if it is not one."""
    try:
        return upgrade_tensors(load_file(path))
    except (SafetensorError, OSError) as error:
        require_present(path.parent)
        raise CorruptError(f"{path} is not a readable safetensors file ({error}); copy it again") from error


# Earlier versions had separate attention projections and named the output layer differently.
_PROJECTION = re.compile(r"(.*\.)(cross_attention|attention)\.(q|k|v)\.(weight|bias)")
_FUSED = {"attention": "qkv", "cross_attention": "kv"}


def upgrade_tensors(tensors: Tensors) -> dict[str, Tensor]:
    """Rename and fuse the tensors of a model or optimizer that an earlier version saved; keep current ones."""
    upgraded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _PROJECTION.fullmatch(name)
        if match is None:
            upgraded[re.sub(r"\boutput_(?=weight$|bias$)", "output.", name)] = tensor
            continue
        prefix, attention, projection, kind = match.groups()
        layer, fused = f"{prefix}{attention}", _FUSED[attention]
        if projection not in fused:  # the queries of cross-attention
            upgraded[name] = tensor
        elif projection == fused[0]:
            parts = [tensors.get(f"{layer}.{part}.{kind}", tensor.new_empty(0)) for part in fused]
            # A scalar is Adam's step counter.
            upgraded[f"{layer}.{fused}.{kind}"] = torch.cat(parts) if tensor.ndim else tensor
    return upgraded


# --- Checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """State of training to resume from; `average` is the EMA of the parameters, or empty."""

    model: Tensors
    optimizer: Tensors
    average: Tensors
    state: dict[str, Any]


def save_checkpoint(
    run: Path, step: int, checkpoint: Checkpoint, model_files: Mapping[str, Any], recipe_toml: str
) -> Path:
    """Write the checkpoint of a step, with the files of its model directory, and return its directory.

    Replaces a checkpoint that was saved at the same step before validation; see `write_directory`.
    """
    directory = checkpoint_directory(run, step)
    files: dict[str, bytes | Callable[[], bytes]] = {
        **model_files,
        "optimizer.safetensors": lambda: save(dict(checkpoint.optimizer)),
        "state.json": json.dumps(checkpoint.state, indent=1).encode(),
        "recipe.toml": recipe_toml.encode(),
    }
    if checkpoint.average:
        files[AVERAGE] = lambda: save(dict(checkpoint.average))
    write_directory(directory, files, replaces=directory.exists())
    return directory


def load_checkpoint(directory: Path) -> Checkpoint:
    """Load and verify a checkpoint; raises CorruptError, or UserError for a model without training state."""
    if "state.json" not in verify_directory(directory):
        raise UserError(f"{directory} is a model without training state; move it out of the checkpoint directory")
    return Checkpoint(
        model=read_tensors(directory / "model.safetensors"),
        optimizer=read_tensors(directory / "optimizer.safetensors"),
        average=read_tensors(directory / AVERAGE) if (directory / AVERAGE).exists() else {},
        state=json.loads((directory / "state.json").read_bytes()),
    )


def state_digest(model: Tensors, optimizer: Tensors, average: Tensors) -> str:
    """Return the SHA-256 of the tensors of a training state: names, dtypes, shapes and bits."""
    digest = hashlib.sha256()
    for kind, tensors in (("model", model), ("optimizer", optimizer), ("average", average)):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{kind} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def newest_checkpoint(run: Path) -> tuple[Path, Checkpoint] | None:
    """Return the newest valid checkpoint; rename corrupt ones. Warns of these, and of a restart from step 0."""
    directories = list_checkpoints(run)
    while directories:
        directory = directories.pop()
        try:
            return directory, load_checkpoint(directory)
        except CorruptError as error:
            aside = directory.with_name(f"corrupt-{directory.name}")
            shutil.rmtree(aside, ignore_errors=True)
            directory.rename(aside)
            instead = "using the previous checkpoint" if directories else "no other checkpoint is left"
            warn(f"{error}; set aside as {aside.name}; {instead}")
    metrics = run / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size > 0:
        warn(f"{run} has metrics but no checkpoint; training restarts from step 0 and replaces the metrics")
    return None


def remove_leftovers(run: Path) -> None:
    """Remove incomplete checkpoints and models of a killed process; restore a checkpoint that was being replaced.

    The command that replaces `model` writes it again.
    """
    for old in (run / "checkpoints").glob(".step-*.old-*"):
        original = old.with_name(old.name.removeprefix(".").partition(".")[0])
        if not original.exists():
            old.rename(original)
    for leftover in [*(run / "checkpoints").glob(".*step-*"), *run.glob(".model.*-*")]:
        shutil.rmtree(leftover, ignore_errors=True)


def prune_checkpoints(
    run: Path, keep_last: int, keep_steps: Collection[int], remove_steps: Collection[int] = ()
) -> None:
    """Remove the checkpoints at `remove_steps`; keep the newest `keep_last` of the others and those at `keep_steps`."""
    newest = [path for path in list_checkpoints(run) if checkpoint_step(path) not in remove_steps][-keep_last:]
    for directory in list_checkpoints(run):
        step = checkpoint_step(directory)
        if step in remove_steps or (directory not in newest and step not in keep_steps):
            hidden = directory.with_name(f".{directory.name}.removed")
            directory.rename(hidden)  # first, or a partly removed directory could look complete
            shutil.rmtree(hidden, ignore_errors=True)


# --- Averages ---------------------------------------------------------------------------------------------------------


def average_tensors(directories: Sequence[Path]) -> dict[str, Tensor]:
    """Verify model directories and average their parameters, accumulated in float64 one file at a time.

    Integer tensors are rounded toward zero, as in fairseq. Raises UserError if shapes or tokenizers differ.
    """
    assert directories, "an average needs at least one model"
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    tokenizers: list[dict[str, tuple[int, str]]] = []
    for directory in directories:
        files = verify_directory(directory)
        tokenizers.append({name: files[name] for name in files if name.startswith("tokenizer")})
        if tokenizers[-1] != tokenizers[0]:
            raise UserError(
                f"{directory} and {directories[0]} have different tokenizers; averaged models must share "
                "them; choose others"
            )
        tensors = read_tensors(directory / "model.safetensors")
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if total and shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise UserError(
                f"{directory} and {directories[0]} have different shapes; averaged models must share them; "
                "choose others"
            )
        for name, tensor in tensors.items():
            dtypes[name] = tensor.dtype
            total[name] = total[name].add_(tensor.double()) if name in total else tensor.double()
    return {name: (tensor / len(directories)).to(dtypes[name]) for name, tensor in total.items()}


def average_checkpoints(
    directories: Sequence[Path], out: Path, decode: DecodeRecipe | None = None, *, replaces: bool = False
) -> None:
    """Write the average of checkpoints or model directories of a run as a model directory.

    decode: search options; None keeps those of the last directory; replaces: see `write_directory`
    """
    origin = average_origin(directories)
    _write_derived(directories[-1], average_tensors(directories), origin, out, decode, replaces=replaces)


def average_models(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write the average of models with a common initial model; tokenizer and metadata are those of the last one.

    Returns the averaged directories. Raises UserError if `out` exists, or if models are not of the same kind.
    """
    require_new(out)
    models = [find_model(path) for path in paths]
    kinds = [_kind(*read_model_toml(model / "model.toml")) for model in models]
    for model, kind in zip(models, kinds, strict=True):
        different = [name for name in kind if kind[name] != kinds[0].get(name)]
        if different:
            raise UserError(
                f"{model} and {models[0]} have different {', '.join(different)}; averaged models must come from the "
                "same initial model; choose others"
            )
    origin = {**average_origin(models), "averaged": [_model_name(path) for path in paths]}
    _write_derived(models[-1], average_tensors(models), origin, out, None, replaces=False)
    similarity, model = min(zip(_similarities(out, models), models, strict=True), key=itemgetter(0))
    if similarity < 0.9:
        warn(
            f"the weights of {model} have little in common with the average (cosine similarity {similarity:.2f}), "
            "which probably cannot translate; average models that come from the same initial model"
        )
    return models


def _model_name(path: Path) -> str:
    """Return the name of a run, of a checkpoint or of a model directory; of `RUN/model`, the name of the run."""
    resolved = path.resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name


def _similarities(average: Path, models: Sequence[Path]) -> list[float]:
    """Return the cosine similarity of the matrices of each model with those of the average.

    It is 1 / sqrt(len(models)) for independent models of equal norm; 0.98 and more for a model and its fine-tuned
    version, and for checkpoints of the same run near its end.
    """

    def matrices(model: Path) -> list[Tensor]:
        tensors = read_tensors(model / "model.safetensors")
        return [tensors[name].double() for name in sorted(tensors) if tensors[name].ndim > 1]

    def dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
        return sum(float((a * b).sum()) for a, b in zip(first, second, strict=True))

    mean = matrices(average)
    weights = map(matrices, models)  # one model in memory at a time
    return [dot(each, mean) / math.sqrt(dot(each, each) * dot(mean, mean)) for each in weights]


def _kind(recipe: ModelRecipe, metadata: ModelMetadata) -> dict[str, Any]:
    """Return what models must have in common to be averaged, besides shapes and tokenizers.

    Fine-tuning may change the other options.
    """
    text = {"unicode_form": metadata.unicode_form, "reverse_target": metadata.reverse_target}
    return {**recipe.model_dump(exclude={*DROPOUT_OPTIONS, "max_positions"}), **text, "context": metadata.context}


def write_ema(checkpoint: Path, out: Path, decode: DecodeRecipe | None = None, *, replaces: bool = False) -> None:
    """Write the EMA of a checkpoint as a model directory; raises UserError if it has none.

    decode: search options; None keeps those of the checkpoint; replaces: see `write_directory`
    """
    verify_directory(checkpoint)
    origin = ema_origin(checkpoint)
    _write_derived(checkpoint, read_tensors(checkpoint / AVERAGE), origin, out, decode, replaces=replaces)


def average_origin(directories: Sequence[Path]) -> dict[str, Any]:
    """Return the origin of an average of checkpoints or models: their names, and the SHA-256 of their weights."""
    weights = [read_manifest(directory)["model.safetensors"][1] for directory in directories]
    return {"averaged": [directory.name for directory in directories], "weights": weights}


def ema_origin(checkpoint: Path) -> dict[str, Any]:
    """Return the origin of the EMA of a checkpoint; raises UserError as `write_ema` does."""
    if not (checkpoint / AVERAGE).exists():
        raise UserError(f"{checkpoint} has no EMA; the run must keep one; train with train.ema_decay set")
    return {"moving_average": checkpoint.name, "weights": [read_manifest(checkpoint)[AVERAGE][1]]}


def _write_derived(
    model: Path,
    tensors: Tensors,
    origin: dict[str, Any],
    out: Path,
    decode: DecodeRecipe | None,
    *,
    replaces: bool,
) -> None:
    """Write a model directory like `model` with other parameters or search options, and their origin."""
    model_recipe, metadata = read_model_toml(model / "model.toml")
    tokenizer_files = {path.name: path.read_bytes() for path in sorted(model.glob("tokenizer*.model"))}
    replaced = {"averaged", "moving_average"} if origin else set()
    kept = {name: value for name, value in metadata.origin.items() if name not in replaced}
    metadata = replace(metadata, origin=kept | origin, decode=decode or metadata.decode)
    write_directory(out, model_files(model_recipe, tensors, tokenizer_files, metadata), replaces=replaces)


def write_with_decode(model: Path, decode: DecodeRecipe, out: Path) -> None:
    """Verify a model and copy it to a model directory with other search options."""
    verify_directory(model)
    _write_derived(model, read_tensors(model / "model.safetensors"), {}, out, decode, replaces=False)
