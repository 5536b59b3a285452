"""Models and checkpoints as directories of plain, verified files; no pickle on any path.

A model directory holds `model.safetensors`, `model.toml`, the tokenizer and `manifest.json`. A checkpoint is a model
directory that also holds what training needs to go on: `optimizer.safetensors`, `state.json` and `recipe.toml`. So a
checkpoint can be translated with as it is.

A directory is written beside its place under a temporary name, synced to disk, sealed by a manifest (size and SHA-256
of every file) and renamed: it is there whole or not at all. Every load verifies the manifest first, because a flipped
bit in a tensor file loads without complaint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nmt.layout import checkpoint_directory, checkpoint_step, find_model, list_checkpoints
from nmt.logs import say
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, UserError, drop_removed

MANIFEST = "manifest.json"
AVERAGE = "average.safetensors"
FORMAT = 1

Tensors = Mapping[str, Tensor]


class CorruptError(UserError):
    """A directory whose files are not what its manifest says."""


# --- Sealed directories -----------------------------------------------------------------------------------------------


def write_directory(directory: Path, files: Mapping[str, bytes | Callable[[], bytes]]) -> None:
    """Write all `files` (name to content, or to a function that makes it) into a new sealed directory, or nothing.

    Raises UserError when the directory exists, cannot be written or the disk is full.
    """
    require_new(directory)
    with _naming_disk_errors(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = directory.with_name(f".{directory.name}.part-{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            manifest = {}
            for name, content in files.items():
                data = content() if callable(content) else content
                _write_synced(temporary / name, data)
                manifest[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                del data  # so that the next content is not made while this one is still held
            _write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
            _sync_directory(temporary)
            temporary.rename(directory)
            _sync_directory(directory.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def require_new(directory: Path) -> None:
    """Raise UserError where something of this name is there."""
    if directory.exists():
        raise UserError(f"{directory} exists already; it must be a new name; choose another or remove it")


def writes_through(path: Path) -> bool:
    """Whether a path is written to as it is, as a pipe or a device must be, and not replaced by a new file."""
    return (path.exists() and not path.is_file() and not path.is_dir()) or path.absolute().parts[1:2] in (
        ("dev",),
        ("proc",),
    )


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, in the place of one that is there; UserError where it cannot be written.

    A symbolic link stays, and its target is replaced; what is no plain file is written to as it is.
    """
    with _naming_disk_errors(path):
        if writes_through(path):
            path.write_bytes(content)
            return
        path = path.resolve()
        temporary = path.with_name(f".{path.name}.part-{os.getpid()}")
        try:
            _write_synced(temporary, content)
            temporary.replace(path)
            _sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def verify_directory(directory: Path) -> None:
    """Compare every file with the manifest; raises CorruptError that names the first file that differs."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{directory} has no readable {MANIFEST}; the directory must be whole; copy it again"
        ) from error
    for name, (size, digest) in expected.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != size or _sha256(path) != digest:
            raise CorruptError(
                f"{path} is missing or corrupt (its size or SHA-256 is not what {MANIFEST} says); "
                "it must be the file that was saved; copy it again or use another checkpoint"
            )


def manifest_digest(directory: Path) -> str:
    """SHA-256 of a directory's manifest, and so of all its files; "" where there is none."""
    manifest = directory / MANIFEST
    return _sha256(manifest) if manifest.is_file() else ""


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _naming_disk_errors(directory: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line for the user."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(
                f"the disk is full while writing {directory}; it must have room; free some and go on"
            ) from error
        raise UserError(f"cannot write {directory}: {error.strerror}; choose a place that can be written to") from error


# --- Model directories ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFacts:
    """What `model.toml` says of a model besides its architecture.

    origin:         where the weights come from, such as `{"run": ..., "steps": [...]}`
    reverse_target: whether it reads and writes the tokens of the target side in reverse
    """

    src_lang: str
    tgt_lang: str
    src_vocab_size: int
    tgt_vocab_size: int
    unicode_form: str
    decode: DecodeRecipe
    origin: dict[str, Any] = field(default_factory=dict)
    reverse_target: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a directory, in evaluation mode on its device."""

    model: Transformer
    facts: ModelFacts
    directory: Path


def model_files(
    model_recipe: ModelRecipe, tensors: Tensors, tokenizer_files: Mapping[str, bytes], facts: ModelFacts
) -> dict[str, bytes | Callable[[], bytes]]:
    """The files of a model directory, for `write_directory`; tensors are those of `model_tensors`."""
    return {
        "model.safetensors": lambda: save(dict(tensors)),
        "model.toml": _model_toml(model_recipe, facts).encode(),
        **tokenizer_files,
    }


def load_model(path: Path, device: torch.device) -> LoadedModel:
    """Read and verify the model at `path`: a model directory, a checkpoint, or a run (its average, else its newest).

    Raises UserError when there is no model, and CorruptError when a file is not what was saved.
    """
    directory = find_model(path)
    verify_directory(directory)
    model_recipe, facts = _read_model_toml(directory / "model.toml")
    with device:
        model = Transformer(model_recipe, facts.src_vocab_size, facts.tgt_vocab_size)
    load_tensors(model, read_tensors(directory / "model.safetensors"))
    return LoadedModel(model.eval(), facts, directory)


def read_model_facts(directory: Path) -> ModelFacts:
    """What `model.toml` says of a model; CorruptError where it cannot be read."""
    return _read_model_toml(directory / "model.toml")[1]


def read_model_recipe(directory: Path) -> ModelRecipe:
    """The architecture that `model.toml` says; CorruptError where it cannot be read."""
    return _read_model_toml(directory / "model.toml")[0]


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
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{path} is not a readable safetensors file ({error}); copy it again") from error


def _model_toml(model_recipe: ModelRecipe, facts: ModelFacts) -> str:
    tree = {
        "format": FORMAT,
        "languages": {"src": facts.src_lang, "tgt": facts.tgt_lang},
        "vocabulary": {"src": facts.src_vocab_size, "tgt": facts.tgt_vocab_size},
        "text": {"unicode_form": facts.unicode_form, "reverse_target": facts.reverse_target},
        "model": model_recipe.model_dump(mode="json"),
        "decode": facts.decode.model_dump(mode="json", exclude_none=True),
        "origin": facts.origin,
    }
    return tomli_w.dumps(tree)


def _read_model_toml(path: Path) -> tuple[ModelRecipe, ModelFacts]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT:
            raise UserError(f"{path} has format {tree['format']}; this version reads format {FORMAT}; update nmt")
        _say_ignored(path, tuple(drop_removed(tree)))
        facts = ModelFacts(
            src_lang=tree["languages"]["src"],
            tgt_lang=tree["languages"]["tgt"],
            src_vocab_size=tree["vocabulary"]["src"],
            tgt_vocab_size=tree["vocabulary"]["tgt"],
            unicode_form=tree["text"]["unicode_form"],
            decode=DecodeRecipe.model_validate(tree["decode"]),
            origin=tree["origin"],
            reverse_target=tree["text"].get("reverse_target", False),  # models of before know no such thing
        )
        return ModelRecipe.model_validate(tree["model"]), facts
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValidationError) as error:
        raise CorruptError(f"{path} is not a readable model description; copy the model directory again") from error


@cache
def _say_ignored(path: Path, options: tuple[str, ...]) -> None:
    """Say once which options of a model of an earlier version no longer exist, if there are any."""
    if options:
        say(f"{path}: {', '.join(options)} no longer exists; it is ignored")


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
    with _naming_disk_errors(directory):
        directory.rename(replaced)
        anew.rename(directory)
        _sync_directory(directory.parent)
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


def average_checkpoints(directories: Sequence[Path], out: Path) -> None:
    """Write the average of checkpoints or model directories of one run as a new model directory at `out`."""
    origin = {"averaged": [directory.name for directory in directories]}
    _write_derived(directories[-1], average_tensors(directories), origin, out)


def write_moving_average(checkpoint: Path, out: Path) -> None:
    """Write the moving average that a checkpoint holds as a new model directory at `out`; UserError without one."""
    verify_directory(checkpoint)
    if not (checkpoint / AVERAGE).exists():
        raise UserError(f"{checkpoint} holds no moving average; its run must keep one; train with train.ema_decay set")
    _write_derived(checkpoint, read_tensors(checkpoint / AVERAGE), {"moving_average": checkpoint.name}, out)


def _write_derived(
    model: Path, tensors: Tensors, origin: dict[str, Any], out: Path, decode: DecodeRecipe | None = None
) -> None:
    """A model directory like `model`, with other weights or search options and a note of where they come from."""
    model_recipe, facts = _read_model_toml(model / "model.toml")
    tokenizer = {path.name: path.read_bytes() for path in sorted(model.glob("tokenizer*.model"))}
    derived = replace(facts, origin={**facts.origin, **origin}, decode=decode or facts.decode)
    write_directory(out, model_files(model_recipe, tensors, tokenizer, derived))


def write_with_decode(model: Path, decode: DecodeRecipe, out: Path) -> None:
    """Write a verified model once more as a new model directory at `out`, with other search options of its own."""
    verify_directory(model)
    _write_derived(model, read_tensors(model / "model.safetensors"), {}, out, decode)
