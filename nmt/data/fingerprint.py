"""What a prepared corpus depends on, and whether one that is there still stands for the recipe.

An input file is known by its content (sha256). `stamps.json` keeps size and time of change of each, so that files
that nobody touched need not be read again to be recognised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.corpus import input_files, read_blocks
from nmt.data.embedded import generate
from nmt.data.start_from import start_models, taken_tokenizers, tokenizer_digests
from nmt.logs import progress, say
from nmt.recipe import Corpus, EmbeddedCorpus, Recipe

REPORT_FILE = "prepare.json"
_STAMPS_FILE = "stamps.json"

# Grows when the same recipe and text would be prepared in another way than before.
FORMAT = 2

_SAMPLE_PAIRS = 200


def recipe_part(recipe: Recipe) -> dict[str, Any]:
    """Those options that decide what the prepared corpus looks like, as JSON values.

    Where files lie does not: `data.root` is left out and absolute paths are cut down to the name. Nor does how often
    the pairs of a corpus are shown, nor, when the tokenizers are taken from a model, how others would be trained.
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
    }


@dataclass(frozen=True)
class InputFile:
    """Content and state of an input file: sha256, size in bytes, time of change in nanoseconds."""

    name: str
    size: int
    sha256: str
    changed: int

    def report(self) -> dict[str, str | int]:
        """What is the same wherever and whenever the file is read."""
        return {"name": self.name, "bytes": self.size, "sha256": self.sha256}


def read_inputs(recipe: Recipe) -> list[InputFile]:
    """Look at each input file, in the order of the recipe; raises UserError for one that cannot be read."""
    files = _files(recipe)
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
            inputs.append(InputFile(path.name, size, digest.hexdigest(), changed))
    return inputs


def write_stamps(inputs: Sequence[InputFile], directory: Path) -> None:
    """Note sizes and times of change of the input files."""
    stamps = [[file.size, file.changed] for file in inputs]
    (directory / _STAMPS_FILE).write_text(json.dumps(stamps) + "\n", encoding="utf-8")


def is_current(recipe: Recipe, directory: Path) -> bool:
    """Whether `directory` holds, whole, what the recipe would make of the input files as they are now.

    Raises UserError when the model whose tokenizers the recipe takes is damaged.
    """
    report = read_report(directory)
    if report is None or report["recipe"] != recipe_part(recipe):
        return False
    gone = [path for path in (*_files(recipe), *start_models(recipe)) if not path.exists()]
    if gone:
        say(f"{gone[0]} is not there any more; going on with what was prepared from it in {directory}")
        return True
    taken = taken_tokenizers(recipe)
    if taken is not None and report["tokenizers"] != tokenizer_digests(taken):
        return False
    if _read_json(directory / _STAMPS_FILE) == _stamps(recipe):
        return True
    inputs = read_inputs(recipe)
    if report["inputs"] != [file.report() for file in inputs]:
        return False
    with suppress(OSError):  # A folder that may only be read is up to date all the same.
        write_stamps(inputs, directory)
    return True


def read_report(directory: Path) -> dict[str, Any] | None:
    """The report of a prepared corpus; None when there is none or its files are not as it says."""
    report = _read_json(directory / REPORT_FILE)
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        return None
    sizes = {name: _size(directory / name) for name in report["files"]}
    return report if sizes == report["files"] else None


def _files(recipe: Recipe) -> list[Path]:
    corpora = (*recipe.data.train, *recipe.data.valid)
    return [path for corpus in corpora for path in input_files(corpus, recipe.data)]


def _stamps(recipe: Recipe) -> list[list[int]]:
    states = [path.stat() for path in _files(recipe)]
    return [[state.st_size, state.st_mtime_ns] for state in states]


def _portable(corpus: Corpus, exclude: set[str]) -> dict[str, Any]:
    """The options of a corpus but for some, without the place of its files on this machine."""
    values = corpus.model_dump(mode="json", exclude=exclude)
    paths = {name for name in values if isinstance(getattr(corpus, name), Path)} | {"dataset"}
    values = {name: _portable_path(value) if name in paths and value else value for name, value in values.items()}
    if isinstance(corpus, EmbeddedCorpus):
        # The grammar is part of the program and may change with it; its first pairs tell.
        sample = generate(corpus.split, min(corpus.pairs, _SAMPLE_PAIRS), corpus.seed)
        text = "".join(f"{pair.src}\t{pair.tgt}\n" for pair in sample)
        values["sample_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return values


def _portable_path(path: str) -> str:
    return Path(path).name if Path(path).expanduser().is_absolute() else path


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
