"""Models and checkpoints as directories of plain, verified files; no pickle on any path.

A model directory holds `model.safetensors`, `model.toml`, the tokenizer and `manifest.json`. A checkpoint is a model
directory that also holds what training needs to go on: `optimizer.safetensors`, `state.json` and `recipe.toml`. So a
checkpoint can be translated with as it is.

How they are written whole or not at all, and verified, is in `nmt.storage.sealed`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, UserError
from nmt.storage.model_metadata import ModelMetadata, model_toml, read_model_toml
from nmt.storage.run_folder import checkpoint_directory, checkpoint_step, find_model, list_checkpoints
from nmt.storage.sealed import (
    CorruptError,
    reporting_disk_errors,
    sync,
    verify_directory,
    write_directory,
)

AVERAGE = "average.safetensors"

Tensors = Mapping[str, Tensor]


# --- Model directories ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a directory, in evaluation mode on its device."""

    model: Transformer
    facts: ModelMetadata
    directory: Path


def model_files(
    model_recipe: ModelRecipe, tensors: Tensors, tokenizer_files: Mapping[str, bytes], facts: ModelMetadata
) -> dict[str, bytes | Callable[[], bytes]]:
    """The files of a model directory, for `write_directory`; tensors are those of `model_tensors`."""
    return {
        "model.safetensors": lambda: save(dict(tensors)),
        "model.toml": model_toml(model_recipe, facts).encode(),
        **tokenizer_files,
    }


def load_model(path: Path, device: torch.device) -> LoadedModel:
    """Read and verify the model at `path`: a model directory, a checkpoint, or a run (its average, else its newest).

    Raises UserError when there is no model, and CorruptError when a file is not what was saved.
    """
    directory = find_model(path)
    verify_directory(directory)
    model_recipe, facts = read_model_toml(directory / "model.toml")
    with device:
        model = Transformer(model_recipe, facts.src_vocab_size, facts.tgt_vocab_size)
    load_tensors(model, read_tensors(directory / "model.safetensors"))
    return LoadedModel(model.eval(), facts, directory)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights by name on the host, tied ones once."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


def load_tensors(model: nn.Module, tensors: Tensors) -> None:
    """Copy weights into a model; raises UserError naming all that do not fit."""
    own = dict(model.named_parameters())
    problems = [f"{name} is missing" for name in own.keys() - tensors.keys()]
    problems += [f"{name} is unknown" for name in tensors.keys() - own.keys()]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, must be {tuple(own[name].shape)}"
        for name in own.keys() & tensors.keys()
        if tensors[name].shape != own[name].shape
    ]
    if problems:
        raise UserError(f"the weights do not fit the model: {'; '.join(sorted(problems))}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; CorruptError where it is not one."""
    try:
        return renamed(load_file(path))
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{path} is not a readable safetensors file ({error}); copy it again") from error


# Earlier versions had a matrix for each projection of attention, which today are fused, and other names of the output.
_PROJECTION = re.compile(r"(.*\.)(cross_attention|attention)\.(q|k|v)\.(weight|bias)")
_FUSED = {"attention": "qkv", "cross_attention": "kv"}


def renamed(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors of a model or an optimizer under the names of today, whichever version wrote them."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        older = _PROJECTION.fullmatch(name)
        fused = _FUSED[older[2]] if older else ""
        if older is None or older[3] not in fused:
            found[re.sub(r"\boutput_(?=weight$|bias$)", "output.", name)] = tensor
        elif older[3] == fused[0]:
            parts = [tensors.get(f"{older[1]}{older[2]}.{part}.{older[4]}", tensor.new_empty(0)) for part in fused]
            found[f"{older[1]}{older[2]}.{fused}.{older[4]}"] = torch.cat(parts) if tensor.ndim else tensor
    return found


# --- Checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """What training needs to go on from where it was; `average` is the moving average of the weights, or empty."""

    model: Tensors
    optimizer: Tensors
    average: Tensors
    state: dict[str, Any]


def save_checkpoint(
    run: Path, step: int, checkpoint: Checkpoint, model_files: Mapping[str, Any], recipe_toml: str
) -> Path:
    """Write the checkpoint of an update, with the files of its model directory, and return where it is.

    One of the same update that is there already gives way: what it lacks is a validation that was broken off. It goes
    only when the new one is whole, and comes back if this is cut off in between: see `remove_leftovers`.
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
    if not directory.exists():
        write_directory(directory, files)
        return directory
    anew, replaced = (directory.with_name(f".{directory.name}.{what}") for what in ("anew", "replaced"))
    shutil.rmtree(anew, ignore_errors=True)
    write_directory(anew, files)
    with reporting_disk_errors(directory):
        directory.rename(replaced)
        anew.rename(directory)
        sync(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return directory


def load_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint; raises CorruptError."""
    verify_directory(directory)
    try:
        state = json.loads((directory / "state.json").read_bytes())
    except ValueError as error:
        raise CorruptError(f"{directory / 'state.json'} is not JSON; copy the checkpoint again") from error
    return Checkpoint(
        model=read_tensors(directory / "model.safetensors"),
        optimizer=read_tensors(directory / "optimizer.safetensors"),
        average=read_tensors(directory / AVERAGE) if (directory / AVERAGE).exists() else {},
        state=state,
    )


def newest_checkpoint(run: Path, say: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that verifies; a corrupt one is set aside under another name, and `say` tells of it."""
    for directory in reversed(list_checkpoints(run)):
        try:
            return directory, load_checkpoint(directory)
        except CorruptError as error:
            aside = directory.with_name(f"corrupt-{directory.name}")
            shutil.rmtree(aside, ignore_errors=True)
            directory.rename(aside)
            say(f"{error}; set aside as {aside.name}, going back to the checkpoint before it")
    return None


def remove_leftovers(run: Path) -> None:
    """Remove what a killed process left half written or half removed; one that was just being replaced comes back."""
    for replaced in (run / "checkpoints").glob(".step-*.replaced"):
        original = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not original.exists():
            replaced.rename(original)
    for leftover in (run / "checkpoints").glob(".*step-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def prune_checkpoints(run: Path, keep_last: int, keep_steps: Collection[int]) -> None:
    """Remove every checkpoint that is neither among the newest `keep_last` nor of one of `keep_steps`."""
    for directory in list_checkpoints(run)[:-keep_last]:
        if checkpoint_step(directory) not in keep_steps:
            _remove(directory)


def _remove(directory: Path) -> None:
    doomed = directory.with_name(f".{directory.name}.removed")
    directory.rename(doomed)  # first out of sight, so that a half-removed one is never taken for whole
    shutil.rmtree(doomed, ignore_errors=True)


# --- Averages ---------------------------------------------------------------------------------------------------------


def average_tensors(directories: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several verified model directories, summed in float64 one file at a time.

    Raises UserError when the models differ in shape. Integer tensors are averaged towards zero, as fairseq does.
    """
    assert directories, "an average needs at least one model"
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for directory in directories:
        verify_directory(directory)
        tensors = read_tensors(directory / "model.safetensors")
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if total and shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise UserError(
                f"{directory} has other weights than {directories[0]}; averaged models must be of one shape"
            )
        for name, tensor in tensors.items():
            kinds[name] = tensor.dtype
            total[name] = total[name].add_(tensor.double()) if name in total else tensor.double()
    return {name: (tensor / len(directories)).to(kinds[name]) for name, tensor in total.items()}


def average_checkpoints(directories: Sequence[Path], out: Path, decode: DecodeRecipe | None = None) -> None:
    """Write the average of checkpoints or model directories of one run as a new model directory at `out`.

    Its search options are `decode`, or else those of the last of them.
    """
    origin = {"averaged": [directory.name for directory in directories]}
    _write_derived(directories[-1], average_tensors(directories), origin, out, decode)


def write_ema(checkpoint: Path, out: Path, decode: DecodeRecipe | None = None) -> None:
    """Write the moving average that a checkpoint holds as a new model directory at `out`; UserError without one.

    Its search options are `decode`, or else those of the checkpoint.
    """
    verify_directory(checkpoint)
    if not (checkpoint / AVERAGE).exists():
        raise UserError(f"{checkpoint} holds no moving average; its run must keep one; train with train.ema_decay set")
    _write_derived(checkpoint, read_tensors(checkpoint / AVERAGE), {"moving_average": checkpoint.name}, out, decode)


def _write_derived(
    model: Path, tensors: Tensors, origin: dict[str, Any], out: Path, decode: DecodeRecipe | None = None
) -> None:
    """A model directory like `model`, with other weights or search options and a note of where they come from."""
    model_recipe, facts = read_model_toml(model / "model.toml")
    tokenizer = {path.name: path.read_bytes() for path in sorted(model.glob("tokenizer*.model"))}
    derived = replace(facts, origin={**facts.origin, **origin}, decode=decode or facts.decode)
    write_directory(out, model_files(model_recipe, tensors, tokenizer, derived))


def write_with_decode(model: Path, decode: DecodeRecipe, out: Path) -> None:
    """Write a verified model once more as a new model directory at `out`, with other search options of its own."""
    verify_directory(model)
    _write_derived(model, read_tensors(model / "model.safetensors"), {}, out, decode)
