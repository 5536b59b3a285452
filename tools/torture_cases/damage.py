"""Cases of damaged and malicious files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nmt.storage.run_folder import list_checkpoints
from torture_cases.interruptions import check_completed
from torture_cases.run_state import verifies
from torture_cases.sandbox import MAX_STEPS, CommandResult, Sandbox, Trial, first_problem

# --- Truncations and flipped bits -------------------------------------------------------------------------------------


def damaged_checkpoint(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Check that truncations and flipped bits are detected and training falls back to the previous checkpoint."""
    reference = sandbox.reference()[0]
    target = sandbox.new_run(list_checkpoints(reference)[-1])
    files = sorted(target.iterdir())
    for number in range(200):
        path = files[number // 2 % len(files)]
        name, content = _damage(sandbox, path, cut=number % 2 == 0)
        problem = _check_detection(target)
        path.write_bytes(content)
        yield Trial(f"{path.name}: {name}", problem)
    assert verifies(target)
    for number, path in enumerate(files[:1] if quick else files):
        run = sandbox.new_run(reference)
        name, _ = _damage(sandbox, list_checkpoints(run)[-1] / path.name, cut=number % 2 == 0)
        result = sandbox.run(sandbox.training(run))
        named = None if f"step-{MAX_STEPS:08d}" in result.stderr else "no message names the damaged checkpoint"
        yield Trial(
            f"resume with {path.name}: {name}", first_problem(check_completed(result, run, reference), named), run
        )


def _check_detection(directory: Path) -> str | None:
    """Return a problem unless verification reports the damage."""
    try:
        return "the damage was not detected" if verifies(directory) else None
    except Exception as error:
        return f"expected CorruptError, got {error!r}"


def _damage(sandbox: Sandbox, path: Path, *, cut: bool) -> tuple[str, bytes]:
    """Truncate a file or flip one bit at random; returns a description and the original content."""
    content = path.read_bytes()
    position = sandbox.random.randrange(len(content))
    if cut:
        path.write_bytes(content[:position])
        return f"truncated to {position} of {len(content)} bytes", content
    bit = sandbox.random.randrange(8)
    damaged = bytearray(content)
    damaged[position] ^= 1 << bit
    path.write_bytes(damaged)
    return f"bit {bit} of byte {position} flipped", content


# --- Malicious pickles ------------------------------------------------------------------------------------------------


class _Payload:
    """Creates a folder when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def malicious_pickle(marker: Path, suffix: str) -> bytes:
    """Pickle that creates the folder `marker` when loaded, in the format of files with this suffix."""
    data = io.BytesIO()
    match suffix:
        case ".npy":
            np.save(data, np.array([_Payload(marker)], dtype=object), allow_pickle=True)
        case ".safetensors":
            torch.save(_Payload(marker), data)
        case _:
            pickle.dump(_Payload(marker), data)
    return data.getvalue()


@dataclass(frozen=True)
class _Target:
    """A file of a finished run to replace, and the commands that load it.

    resealed: update the manifest to match the malicious file
    """

    path: Path
    commands: Sequence[Sequence[str]]
    resealed: bool = False


def malicious_pickles(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Replace every loaded file with a pickle, with matching manifests.

    Passes if nothing is executed and the command either does not need the file or prints a one-line error.
    """
    reference = sandbox.reference()[0]
    marker = sandbox.folder / "executed"
    run = sandbox.folder / "malicious"
    targets = list(_targets(sandbox, run, reference))
    for target in targets[:: len(targets) // 4] if quick else targets:
        for command in target.commands:
            shutil.copytree(reference, run)
            _plant(target, marker)
            result = sandbox.run(command)
            problem = "the pickle was executed" if marker.exists() else None
            shutil.rmtree(run)
            shutil.rmtree(marker, ignore_errors=True)
            yield Trial(
                f"{target.path.relative_to(sandbox.folder)}: {command[0]}", first_problem(problem, _check_exit(result))
            )


def _plant(target: _Target, marker: Path) -> None:
    content = malicious_pickle(marker, target.path.suffix)
    target.path.write_bytes(content)
    if target.resealed:
        manifest = target.path.with_name("manifest.json")
        entries = json.loads(manifest.read_bytes())
        entries[target.path.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(entries), encoding="utf-8")


def _check_exit(result: CommandResult) -> str | None:
    """Return a problem unless the command succeeded or printed a one-line error."""
    if result.has_traceback:
        return f"traceback ({result.summary})"
    if result.status == 0 or (result.status in (1, 2) and len(result.error_lines) == 1):
        return None
    return f"expected success or a one-line error ({result.summary})"


def _targets(sandbox: Sandbox, run: Path, reference: Path) -> Iterator[_Target]:
    text = sandbox.folder / "text"
    text.write_text("a b c\n", encoding="utf-8")
    resume = sandbox.training(run, f"train.max_steps={MAX_STEPS + 1}")
    last = run / "checkpoints" / list_checkpoints(reference)[-1].name
    average = ["average", str(run), "--last", "2", "-o", str(run / "averaged")]
    for path in sorted(list_checkpoints(reference)[-1].iterdir()):
        translate = ["translate", str(last), str(text), "--engine", "torch"]
        yield _Target(last / path.name, [resume, average, translate], resealed=path.name != "manifest.json")
    model = run / "model"
    fine_tune = sandbox.training(run / "tuned", f"train.start_from={model}", "train.max_steps=1")
    for path in sorted(path for path in (reference / "model").iterdir() if path.is_file()):
        uses = [
            ["translate", str(run), str(text), "--engine", "torch"],
            ["score", str(model), str(text), str(text)],
            fine_tune,
        ]
        yield _Target(model / path.name, uses, resealed=path.name != "manifest.json")
    for path in sorted(path for path in (reference / "data").iterdir() if path.is_file()):
        yield _Target(run / "data" / path.name, [resume])
    yield _Target(run / "metrics.jsonl", [resume])
    yield _Target(run / "recipe.toml", [resume, ["config", str(run / "recipe.toml")]])
    hypotheses = run / "translations" / "heldout.de"
    yield _Target(
        hypotheses, [["evaluate", "--ref", str(text), str(hypotheses)], ["translate", str(run), str(hypotheses)]]
    )
