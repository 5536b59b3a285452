"""Layout of run directories, and resolution of user paths to models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.logs import is_first_rank, warn
from nmt.processes.run_lock import require_lock
from nmt.recipe import is_dumped
from nmt.storage.sealed import MANIFEST, CorruptError, manifest_digest, read_manifest

MODEL, CLASSIFIER = "model.toml", "classifier.toml"
"""Files that describe a translation model and a classifier in their directories."""

STAMPS = "stamps.json"
"""File of every prepared corpus, see `nmt.data.fingerprint`."""

# Entries of a run that must not be the output of a command such as `nmt translate`.
_OWN_ENTRIES = (
    "checkpoints",
    "data",
    "leaks.json",
    "metrics.jsonl",
    "model",
    "plan.json",
    "recipe.toml",
    "report.json",
    "report.md",
    "tensorboard",
)


def checkpoint_directory(run: Path, step: int) -> Path:
    """Return the directory of a checkpoint; names sort by step."""
    return run / "checkpoints" / f"step-{step:08d}"


def checkpoint_step(directory: Path) -> int:
    """Return the step of a checkpoint."""
    return int(directory.name.removeprefix("step-"))


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first, unverified."""
    return sorted(path for path in (run / "checkpoints").glob("step-" + 8 * "[0-9]") if path.is_dir())


def owning_directory(file: Path) -> Path | None:
    """Return the run or the model to which a file belongs; None for other files, such as the output of a command."""
    real = Path(os.path.realpath(file))
    for run in real.parents[:3]:
        entry = real.relative_to(run).parts[0]
        if entry in _OWN_ENTRIES and list_checkpoints(run):
            return run
        if entry == "data" and _is_prepared(run / "data"):
            return run
        if entry == "translations" and real.stem in _scored_test_sets(run):
            return run
    with suppress(CorruptError):  # not a sealed directory
        if real.name in {MANIFEST, *read_manifest(real.parent)}:
            return real.parent
    return None


def _scored_test_sets(run: Path) -> set[str]:
    tests = read_json_object(run / "report.json").get("tests")
    if not isinstance(tests, list):
        return set()
    return {test.get("name", "") for test in tests if isinstance(test, dict)}


def require_run(path: Path) -> None:
    """Raise UserError if a user path is not the directory of a run of a translation model."""
    if not list_checkpoints(path) and not (path / "recipe.toml").is_file():
        wrong = "is not a run" if path.exists() else "does not exist"
        raise UserError(f"{path} {wrong}; expected the directory of a run, such as runs/NAME; correct the path")
    if any((checkpoint / CLASSIFIER).is_file() for checkpoint in list_checkpoints(path)):
        raise UserError(f"{path} is the run of a classifier; expected the run of a translation model; correct the path")


def find_model(path: Path, description: str = MODEL) -> Path:
    """Resolve a user path to the directory of a translation model, or of a classifier; raise UserError without one.

    Returns a model directory or a checkpoint unchanged. For a run, returns its averaged model, or its newest
    checkpoint if there is no averaged model. An averaged model without its description is returned too: an error when
    it is read is better than silent use of a checkpoint.

    description: file that describes the model: `MODEL` or `CLASSIFIER`
    """
    checkpoints = list_checkpoints(path)
    for directory in (path, path / "model"):
        if (directory / description).is_file():
            return directory
    for directory in (path, path / "model", *checkpoints[-1:]):
        if description == MODEL and (directory / CLASSIFIER).is_file():
            raise UserError(f"{path} is a classifier; expected a translation model; use it with nmt classify")
        if description == CLASSIFIER and (directory / MODEL).is_file():
            raise UserError(
                f"{path} is a translation or language model; expected a classifier; train one with nmt train-classifier"
            )
    if (path / "model" / MANIFEST).is_file():
        return path / "model"
    if checkpoints:
        return checkpoints[-1]
    if (path / "model.bin").is_file():
        raise UserError(
            f"{path} is an export to CTranslate2; expected an nmt model; use the model that was exported; `nmt "
            "translate` can also run it with CTranslate2 (--engine)"
        )
    if (path / "config.json").is_file():
        raise UserError(f"{path} is a Hugging Face model; expected an nmt model; convert it with nmt import")
    wrong, advice = "has no model", "correct the path"
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
    elif description == MODEL and _is_prepared(path / "data"):
        wrong, advice = "is a run without checkpoints", "train it with nmt run"
    expected = f"a model directory (with {description}), a checkpoint or a run directory"
    raise UserError(f"{path} {wrong}; expected {expected}; {advice}")


def require_own_files(run: Path, translations: Sequence[str], *, keeps_recipe: bool = False) -> None:
    """Raise UserError if a new run would overwrite files in its directory, or if the directory is not its own.

    translations: names of the translated test sets
    keeps_recipe: the run does not overwrite a `recipe.toml` of the user
    """
    if not keeps_recipe:
        require_own_recipe(run)
    _require_no_model_or_corpus(run)
    _require_own_folders(run)
    saved = run / "recipe.toml"
    if list_checkpoints(run) or (saved.is_file() and is_replaceable(saved)):
        return
    written = ["report.md", "report.json", "curves.png"]
    if not saved.is_file():  # a killed run with the user's recipe may have metrics but no checkpoint
        written.insert(0, "metrics.jsonl")
    # nmt also writes these before training; without the key, they are files of the user.
    for name, key in (("leaks.json", "sets"), ("plan.json", "parameters")):
        if key not in read_json_object(run / name):
            written.append(name)
    written += [f"translations/{name}" for name in translations]
    if existing := [name for name in written if os.path.lexists(run / name)]:
        raise UserError(
            f"{run} has {', '.join(existing)} but no run; the new run would overwrite existing files; move them "
            "away, or set another run_dir"
        )


def _require_no_model_or_corpus(run: Path) -> None:
    """Raise UserError if a run directory is the directory of a model or of a prepared corpus."""
    is_model = (run / MANIFEST).is_file() and any((run / name).is_file() for name in (MODEL, CLASSIFIER))
    if is_model or _is_prepared(run):
        kind = "a model or checkpoint" if is_model else "a prepared corpus"
        raise UserError(f"{run} is {kind}; a run must have its own directory; set another run_dir")


def _require_own_folders(run: Path) -> None:
    """Raise UserError if an entry of a run directory cannot be a folder of this run.

    That is a file or a dangling link, or a link from `checkpoints` to the checkpoints of another run.
    """
    for name in ("data", "checkpoints", "tensorboard", "translations"):
        is_dangling = (run / name).is_symlink() and not (run / name).exists()
        if (run / name).is_file() or (is_dangling and name != "data"):  # preparation creates the target of that link
            kind = "a link to a missing folder" if is_dangling else "a file"
            raise UserError(f"{run / name} is {kind}; the run needs a folder there; move it, or set another run_dir")
    other = _linked_directory(run / "checkpoints")
    if other is not None and (other / "recipe.toml").is_file():
        raise UserError(
            f"{run / 'checkpoints'} is a link to the checkpoints of another run, {other}; each run must have its own; "
            "remove the link, or start from that run (train.start_from)"
        )


def require_own_recipe(run: Path) -> None:
    """Raise UserError if `recipe.toml` in a run directory is the user's: training would overwrite it."""
    saved = run / "recipe.toml"
    if saved.is_file() and not is_replaceable(saved):
        raise UserError(
            f"{saved} is where training saves the recipe with all options; yours must be another file; rename it, or "
            "set another run_dir"
        )


def is_replaceable(recipe: Path) -> bool:
    """Return whether training wrote a recipe; invalid TOML counts as written by a training run that crashed."""
    try:
        return is_dumped(recipe.read_text(encoding="utf-8-sig"))
    except ValueError:
        return True


def require_own_model(run: Path) -> None:
    """Raise UserError if `model` in a run directory must not be replaced: only a model of this run may be replaced."""
    out = run / "model"
    require_lock(out)
    is_model = (out / MODEL).is_file() or (out / MANIFEST).is_file()
    if out.exists() and not is_model and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists but is not a model, so it is not overwritten; move it away")
    if is_model and not list_checkpoints(run):
        raise UserError(f"{out} is a model, but {run} has no checkpoints, so it is not overwritten; move it away")
    other = _linked_directory(out)
    if is_model and other is not None and list_checkpoints(other):
        raise UserError(
            f"{out} is a link to the model of another run, {other}, which is not overwritten; remove the link"
        )


def warn_of_divergence(path: Path) -> None:
    """Warn if no validation of the run of a model or checkpoint has a finite score."""
    model = find_model(path).resolve()
    checkpoints = list_checkpoints(model.parent)  # none if the model is a checkpoint, which has its own state
    newest = checkpoints[-1] if checkpoints else model
    scores = read_json_object(newest / "state.json").get("scores") or {}
    if scores and max(scores.values()) == -math.inf and is_first_rank():
        warn(
            f"no validation score of the run of {path} is finite; training probably diverged; use another model, or "
            "train under another name with a lower train.learning_rate"
        )


def require_own_text(data: Path) -> None:
    """Raise UserError if `data`, to be replaced, is a link to the prepared text of another run with checkpoints."""
    other = _linked_directory(data)
    if other is not None and list_checkpoints(other):
        raise UserError(
            f"{data} is a link to the text of another run, {other}, which was trained on it; it must not be replaced "
            "with different text; remove the link, or restore the previous options and files"
        )


def _linked_directory(entry: Path) -> Path | None:
    """Return the directory that contains the target of a link; None for an entry of its own directory."""
    directory = Path(os.path.realpath(entry)).parent
    return None if directory == Path(os.path.realpath(entry.parent)) else directory


def _is_prepared(directory: Path) -> bool:
    """Return whether a directory has a prepared corpus."""
    return (directory / STAMPS).is_file()


def find_prepared(path: Path) -> Path:
    """Return the directory of the prepared corpus of a run; other paths are returned unchanged."""
    return path / "data" if (path / "data").is_dir() else path


def find_report(model: Path) -> dict[str, Any] | None:
    """Return the report of the run that contains the averaged model `model`; None for any other model.

    Warns if the run has only the report of an earlier model; reports of earlier versions do not identify their model.
    """
    path = model.resolve().parent / "report.json"
    report = read_json_object(path) if model.resolve().name == "model" else {}
    if report.get("model", "") not in ("", manifest_digest(model)):
        warn(
            f"{path} is the report of an earlier model, so its scores are left out; run `nmt run` to write the report "
            f"of {model}"
        )
        return None
    return report or None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing, incomplete or has another value."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
