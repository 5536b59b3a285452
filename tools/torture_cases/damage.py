"""Cases in which files are damaged, or hold what an attacker put there."""

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

from torture_cases.evidence import checkpoints, verifies
from torture_cases.interruptions import completed
from torture_cases.trial import Trial, first_problem
from torture_cases.workshop import MAX_STEPS, Ended, Workshop

# --- Truncations and flipped bits -------------------------------------------------------------------------------------


def damaged_checkpoint(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """Each truncation and each flipped bit must be found, and training must fall back to the checkpoint before."""
    reference = shop.reference()[0]
    target = shop.new_run(checkpoints(reference)[-1])
    files = sorted(target.iterdir())
    for number in range(200):
        path = files[number // 2 % len(files)]
        name, content = _damage(shop, path, cut=number % 2 == 0)
        problem = _overlooked(target)
        path.write_bytes(content)
        yield Trial(f"{path.name}: {name}", problem)
    assert verifies(target)
    for number, path in enumerate(files[:1] if quick else files):
        run = shop.new_run(reference)
        name, _ = _damage(shop, checkpoints(run)[-1] / path.name, cut=number % 2 == 0)
        ended = shop.do(shop.training(run))
        told = None if f"step-{MAX_STEPS:08d}" in ended.said else "it does not name the damaged checkpoint"
        yield Trial(f"going on with {path.name}: {name}", first_problem(completed(ended, run, reference), told), run)


def _overlooked(directory: Path) -> str | None:
    """What is wrong with the way in which `nmt` finds the damage, if anything."""
    try:
        return "it was not found" if verifies(directory) else None
    except Exception as error:
        return f"it must be found as a CorruptError, not as {error!r}"


def _damage(shop: Workshop, path: Path, *, cut: bool) -> tuple[str, bytes]:
    """Cut a file short, or flip one of its bits, at random; what was done, and the content before."""
    content = path.read_bytes()
    place = shop.random.randrange(len(content))
    if cut:
        path.write_bytes(content[:place])
        return f"cut to {place} of {len(content)} bytes", content
    bit = shop.random.randrange(8)
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    path.write_bytes(damaged)
    return f"bit {bit} of byte {place} flipped", content


# --- Malicious pickles ------------------------------------------------------------------------------------------------


class _Bomb:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.sign),)


def bomb(sign: Path, suffix: str) -> bytes:
    """A pickle that makes the folder `sign` when it is loaded, in the dress of files that end in `suffix`."""
    data = io.BytesIO()
    match suffix:
        case ".npy":
            np.save(data, np.array([_Bomb(sign)], dtype=object), allow_pickle=True)
        case ".safetensors":
            torch.save(_Bomb(sign), data)
        case _:
            pickle.dump(_Bomb(sign), data)
    return data.getvalue()


@dataclass(frozen=True)
class _Mine:
    """A file of a finished run that is replaced, and the commands that load it.

    resealed: the manifest beside it says that it is right
    """

    path: Path
    commands: Sequence[Sequence[str]]
    resealed: bool = False


def malicious_pickles(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """A pickle in place of every file that a command loads; manifests are forged to match.

    Passes when nothing is executed, and the command either does without the file or says in one line what is wrong.
    """
    reference = shop.reference()[0]
    sign = shop.folder / "executed"
    run = shop.folder / "mined"
    mines = list(_mines(shop, run, reference))
    for mine in mines[:: len(mines) // 4] if quick else mines:
        for command in mine.commands:
            shutil.copytree(reference, run)
            _lay(mine, sign)
            ended = shop.do(command)
            problem = "it was executed" if sign.exists() else None
            shutil.rmtree(run)
            shutil.rmtree(sign, ignore_errors=True)
            yield Trial(f"{mine.path.relative_to(shop.folder)}: {command[0]}", first_problem(problem, _orderly(ended)))


def _lay(mine: _Mine, sign: Path) -> None:
    content = bomb(sign, mine.path.suffix)
    mine.path.write_bytes(content)
    if mine.resealed:
        manifest = mine.path.with_name("manifest.json")
        entries = json.loads(manifest.read_bytes())
        entries[mine.path.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(entries), encoding="utf-8")


def _orderly(ended: Ended) -> str | None:
    """What is wrong with the way in which a command ended on bad input, if anything."""
    if ended.traceback:
        return f"nothing was executed, but it shows a traceback ({ended.summary})"
    if ended.status == 0 or (ended.status in (1, 2) and len(ended.error_lines) == 1):
        return None
    return f"nothing was executed, but it must say in one line what is wrong ({ended.summary})"


def _mines(shop: Workshop, run: Path, reference: Path) -> Iterator[_Mine]:
    text = shop.folder / "text"
    text.write_text("a b c\n", encoding="utf-8")
    goes_on = shop.training(run, f"train.max_steps={MAX_STEPS + 1}")
    last = run / "checkpoints" / checkpoints(reference)[-1].name
    averages = ["average", str(run), "--last", "2", "-o", str(run / "averaged")]
    for path in sorted(checkpoints(reference)[-1].iterdir()):
        translates = ["translate", str(last), str(text), "--engine", "torch"]
        yield _Mine(last / path.name, [goes_on, averages, translates], resealed=path.name != "manifest.json")
    model = run / "model"
    fine_tunes = shop.training(run / "tuned", f"train.start_from={model}", "train.max_steps=1")
    for path in sorted(path for path in (reference / "model").iterdir() if path.is_file()):
        uses = [
            ["translate", str(run), str(text), "--engine", "torch"],
            ["score", str(model), str(text), str(text)],
            fine_tunes,
        ]
        yield _Mine(model / path.name, uses, resealed=path.name != "manifest.json")
    for path in sorted(path for path in (reference / "data").iterdir() if path.is_file()):
        yield _Mine(run / "data" / path.name, [goes_on])
    yield _Mine(run / "metrics.jsonl", [goes_on])
    yield _Mine(run / "recipe.toml", [goes_on, ["config", str(run / "recipe.toml")]])
    hypotheses = run / "translations" / "heldout.de"
    yield _Mine(
        hypotheses, [["evaluate", "--ref", str(text), str(hypotheses)], ["translate", str(run), str(hypotheses)]]
    )
