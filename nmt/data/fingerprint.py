"""What a prepared corpus depends on, and whether one that is there still stands for the recipe.

An input file is known by its content (SHA-256). `stamps.json` keeps its size, time of change and path as the recipe
gives it, so that unchanged files need not be read again, and a file that was deleted is told from a path that is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.corpus import input_files
from nmt.data.start_from import start_models, taken_tokenizers, tokenizer_digests
from nmt.data.store import Split
from nmt.logs import progress, warn
from nmt.recipe import Corpus, Recipe
from nmt.text.lines import read_blocks

REPORT_FILE = "prepare.json"
_STAMPS_FILE = "stamps.json"

# Grows when the same recipe and text would be prepared in another way than before.
FORMAT = 2


def recipe_part(recipe: Recipe) -> dict[str, Any]:
    """Those options that decide what the prepared corpus looks like, as JSON values.

    Where files lie does not: `data.root` is left out and absolute paths are cut down to the name. How often the pairs
    of a corpus are shown decides what the tokenizers are trained on; when they are taken from a model, neither that nor
    how others would be trained counts.
    """
    data = recipe.data.model_dump(mode="json", exclude={"root", "train", "valid", "test", "temperature", "workers"})
    if not recipe.data.reverse_target:
        del data["reverse_target"]  # What was prepared before there was such an option is still up to date.
    data["train"] = [_portable(corpus, exclude={"weight"}) for corpus in recipe.data.train]
    data["valid"] = [_portable(corpus, exclude={"weight", "tag"}) for corpus in recipe.data.valid]
    trained = recipe.tokenizer.model_dump(mode="json", exclude={"start_from"})
    return {
        "src_lang": recipe.src_lang,
        "tgt_lang": recipe.tgt_lang,
        "data": data,
        "tokenizer": "taken" if start_models(recipe) else trained,
        "model": {"max_positions": recipe.model.max_positions},
        "mixture": None if start_models(recipe) else _mixture(recipe),
    }


def known_part(recipe: Recipe, report: dict[str, Any]) -> dict[str, Any]:
    """`recipe_part` as far as a report tells it; those of earlier versions tell nothing of the mixture.

    Their tokenizers do not depend on it.
    """
    unknown = {"mixture"} - report["recipe"].keys()
    return {key: value for key, value in recipe_part(recipe).items() if key not in unknown}


def _mixture(recipe: Recipe) -> dict[str, Any] | None:
    """How training corpora are mixed; None where an epoch shows every pair once, whatever their sizes."""
    weights = [corpus.weight for corpus in recipe.data.train]
    levels = len(weights) > 1 and recipe.data.temperature != 1.0
    return {"weights": weights, "temperature": recipe.data.temperature} if levels or len(set(weights)) > 1 else None


def text_identity(report: dict[str, Any], recipe: Recipe) -> str:
    """SHA-256 of all that decides the training text of a prepared corpus and its tokenizers."""
    inputs = report["inputs"][: len(_files(recipe.data.train, recipe))]
    known = [_of_training(report["recipe"]), inputs, report["tokenizers"]]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _of_training(part: dict[str, Any]) -> dict[str, Any]:
    """Of `recipe_part`, what the training text depends on; without a mixture as earlier versions wrote it."""
    data = {key: value for key, value in part["data"].items() if key != "valid"}
    others = {key: value for key, value in part.items() if key != "model" and value is not None}
    return {**others, "data": data}


@dataclass(frozen=True)
class InputFile:
    """Content and state of an input file: SHA-256, size in bytes, time of change in nanoseconds."""

    path: Path
    size: int
    sha256: str
    changed: int

    def report(self) -> dict[str, str | int]:
        """What is the same wherever and whenever the file is read."""
        return {"name": self.path.name, "bytes": self.size, "sha256": self.sha256}


def read_inputs(recipe: Recipe) -> list[InputFile]:
    """Look at each input file, in the order of the recipe; raises UserError for one that cannot be read."""
    files = _all_files(recipe)
    total = sum(path.stat().st_size for path in files if path.exists())
    with progress("looking at the input", total, "bytes") as bar:
        inputs: list[InputFile] = []
        for path in files:
            # Noted before it is read: if it changes meanwhile, the next call will see that.
            changed = path.stat().st_mtime_ns if path.exists() else 0
            digest, size = hashlib.sha256(), 0
            for block in read_blocks(path):
                digest.update(block)
                size += len(block)
                bar.advance(len(block))
            inputs.append(InputFile(path, size, digest.hexdigest(), changed))
    return inputs


def write_stamps(inputs: Sequence[InputFile], directory: Path) -> None:
    """Note sizes, times of change and paths of the input files."""
    stamps = [[file.size, file.changed, str(file.path)] for file in inputs]
    (directory / _STAMPS_FILE).write_text(json.dumps(stamps) + "\n", encoding="utf-8")


def outdated_splits(recipe: Recipe, directory: Path) -> set[Split]:
    """The splits of `directory` that are not, whole, what the recipe makes of the input files as they are now.

    Both where the training text or a tokenizer changed. Raises UserError when the model whose tokenizers the recipe
    takes is damaged.
    """
    report = read_report(directory)
    if report is None or _of_training(report["recipe"]) != _of_training(known_part(recipe, report)):
        return {"train", "valid"}
    files = _all_files(recipe)
    gone = [path for path in (*files, *start_models(recipe)) if not path.exists()]
    if gone:
        stamped = [stamp[2] for stamp in _read_json(directory / _STAMPS_FILE) or [] if len(stamp) > 2]
        if gone[0] in files and stamped and str(gone[0]) not in stamped:
            return {"train", "valid"}  # never seen there: reading it will say so
        warn(f"{gone[0].absolute()} no longer exists; using what was prepared from it in {directory}")
        return set()
    taken = taken_tokenizers(recipe)
    if taken is not None and report["tokenizers"] != tokenizer_digests(taken):
        return {"train", "valid"}
    outdated: set[Split] = set() if report["recipe"] == known_part(recipe, report) else {"valid"}
    if _read_json(directory / _STAMPS_FILE) == _stamps(recipe):
        return outdated
    inputs = read_inputs(recipe)
    now, then = [file.report() for file in inputs], report["inputs"]
    num_train = len(_files(recipe.data.train, recipe))
    if now[:num_train] != then[:num_train]:
        return {"train", "valid"}
    if now != then:
        return {"valid"}
    with suppress(OSError):  # A folder that may only be read is up to date all the same.
        write_stamps(inputs, directory)
    return outdated


def read_report(directory: Path) -> dict[str, Any] | None:
    """The report of a prepared corpus; None when there is none or its files are not as it says."""
    report = _read_json(directory / REPORT_FILE)
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        return None
    sizes = {name: _size(directory / name) for name in report["files"]}
    return report if sizes == report["files"] else None


def _files(corpora: Sequence[Corpus], recipe: Recipe) -> list[Path]:
    return [path for corpus in corpora for path in input_files(corpus, recipe.data)]


def _all_files(recipe: Recipe) -> list[Path]:
    return _files((*recipe.data.train, *recipe.data.valid), recipe)


def _stamps(recipe: Recipe) -> list[list[int | str]]:
    return [[path.stat().st_size, path.stat().st_mtime_ns, str(path)] for path in _all_files(recipe)]


def _portable(corpus: Corpus, exclude: set[str]) -> dict[str, Any]:
    """The options of a corpus but for some, without the place of its files on this machine."""
    values = corpus.model_dump(mode="json", exclude=exclude)
    for name in ("revision", "label_column", "label_field"):
        if values.get(name, "") is None:
            del values[name]  # What was prepared before there was such an option is still up to date.
    paths = {name for name in values if isinstance(getattr(corpus, name), Path)} | {"dataset"}
    return {name: _portable_path(value) if name in paths and value else value for name, value in values.items()}


def _portable_path(path: str) -> str:
    return Path(path).name if Path(path).expanduser().is_absolute() else path


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
