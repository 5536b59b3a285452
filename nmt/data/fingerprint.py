"""Detection of outdated prepared text: a split is reused if everything that it depends on is unchanged.

The training text depends on its options, its input files and reused tokenizers; the validation set also on its own
options and files. Input files are identified by SHA-256. `stamps.json` records their size, time of last change and
path: files with the same stamp are not read again, and a deleted file can be distinguished from a wrong path. A
dataset on the Hub is identified by its commit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nmt.data.corpus import input_files, resolve
from nmt.data.reused_tokenizers import reused_tokenizers, tokenizer_sources
from nmt.data.store import REPORT_FILE, Split
from nmt.errors import UserError
from nmt.logs import progress, say, warn
from nmt.recipe import TERM_MARKERS, Corpus, HuggingFaceCorpus, Recipe
from nmt.storage.checksums import read_checked
from nmt.storage.run_folder import STAMPS
from nmt.storage.sealed import write_file
from nmt.text.lines import read_blocks

# Increment when the same recipe and text give a different prepared corpus.
FORMAT = 2

_REPORT_KEYS = {"recipe", "inputs", "train", "valid", "tokenizers", "files"}

Stamp = tuple[int, int, str]  # size, time of last change and path of an input file


def preparation_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options that determine a prepared corpus, as JSON values.

    Excludes the locations of files (`data.root`, folders in absolute paths). If tokenizers are reused, excludes the
    options for training them, including the mixture.
    """
    data = recipe.data.model_dump(mode="json", exclude={"root", "train", "valid", "test", "temperature", "workers"})
    if not recipe.data.reverse_target:
        del data["reverse_target"]  # absent from corpora prepared before the option existed
    if not recipe.data.context:
        del data["context"], data["context_sides"]  # likewise
    if recipe.data.long_sources == "drop":
        del data["long_sources"]  # likewise
    data["train"] = [_portable(corpus, exclude={"weight", "alignment"}) for corpus in recipe.data.train]
    data["valid"] = [
        _portable(corpus, exclude={"weight", "alignment", *(("tag",) if corpus.tag is None else ())})
        for corpus in recipe.data.valid
    ]
    trained = recipe.tokenizer.model_dump(mode="json", exclude={"start_from"})
    if recipe.train.glossary_markup:
        trained["markers"] = list(TERM_MARKERS)
    is_reused = bool(tokenizer_sources(recipe))
    return {
        "src_lang": recipe.src_lang,
        "tgt_lang": recipe.tgt_lang,
        "data": data,
        "tokenizer": "taken" if is_reused else trained,
        "model": {"max_positions": recipe.model.max_positions},
        "mixture": None if is_reused else _mixture_options(recipe),
    }


def recorded_options(recipe: Recipe, report: dict[str, Any]) -> dict[str, Any]:
    """Return `preparation_options`, comparable with those of a report.

    Omits the mixture if the report is from a version that did not record it. A corpus that repeats a language of the
    recipe equals one that omits it.
    """
    options, recorded = preparation_options(recipe), report["recipe"]
    if "mixture" not in recorded:
        del options["mixture"]
    for split in ("train", "valid"):
        if _with_languages(split, options) == _with_languages(split, recorded):
            options["data"][split] = recorded["data"][split]
    return options


def _with_languages(split: Split, options: dict[str, Any]) -> list[dict[str, Any]]:
    languages = {name: options[name] for name in ("src_lang", "tgt_lang")}
    return [languages | corpus for corpus in options["data"][split]]


def text_identity(report: dict[str, Any], recipe: Recipe) -> str:
    """Return the SHA-256 of everything that determines the prepared training text and its tokenizers."""
    content = [_training_options(report["recipe"]), _training_inputs(report, recipe), report["tokenizers"]]
    if report.get("commits", {}).get("train"):  # several commits may have the same text
        content.append({name: digest for name, digest in report["sha256"].items() if name.startswith("train.")})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def outdated_splits(recipe: Recipe, directory: Path, *, warns: bool = True, asks_hub: bool = True) -> set[Split]:
    """Return the splits of `directory` that are incomplete or depend on something that has changed.

    If the training text is outdated, so is the validation set. Raises UserError for a damaged report, an unreadable
    input file, and reused tokenizers that are corrupt.

    warns: warn of deleted input files; asks_hub: compare datasets with the Hub
    """
    both: set[Split] = {"train", "valid"}
    report = read_report(directory)
    if report is None:
        return both
    options = recorded_options(recipe, report)
    if _training_options(report["recipe"]) != _training_options(options):
        return both
    files = _all_files(recipe)
    recorded = recorded_inputs(recipe, directory, report)
    missing_files = [path for path in files if not path.exists()]
    missing_models = [path for path in tokenizer_sources(recipe) if not path.exists()]
    if not all(path in recorded for path in missing_files):
        return both  # a wrong path; reading it raises an error
    missing = missing_files + missing_models
    tokenizers = None if missing_models else reused_tokenizers(recipe)
    if tokenizers is not None and report["tokenizers"] != tokenizers.digests():
        return both
    current = read_inputs(recipe, recorded)
    inputs = [file.report() for file in current]
    if current != [recorded.get(path) for path in files] and not missing and inputs == report["inputs"]:
        with suppress(UserError):  # the directory may be read-only, or the disk full
            write_stamps(current, directory)
    if inputs[: len(_files(recipe.data.train, recipe))] != _training_inputs(report, recipe):
        return both
    if asks_hub and _changed_on_hub("train", recipe, report):
        return both
    if missing and warns:
        warn(f"{missing[0].absolute()} no longer exists; using the text prepared from it in {directory}")
    if options != report["recipe"] or inputs != report["inputs"]:
        return {"valid"}
    return {"valid"} if asks_hub and _changed_on_hub("valid", recipe, report) else set()


def describe_change(recipe: Recipe, report: dict[str, Any]) -> str:
    """Return what changed since the training text of a report was prepared: a file, an option or a dataset on the Hub.

    Raises UserError for an unreadable input file.
    """
    before = _training_inputs(report, recipe)
    files = _files(recipe.data.train, recipe)
    has_dataset = any(isinstance(corpus, HuggingFaceCorpus) for corpus in recipe.data.train)
    note = " (all files of a local dataset count as input)" if has_dataset else ""
    for file in _read_files(files):
        if file.report() not in before:
            return f"{file.path}{note}"
    names = {path.name for path in files}
    for entry in before:
        if entry["name"] not in names:
            root = f"(data.root is {recipe.data.root})"
            return f"the list of input files, which no longer has {entry['name']} {root}{note},"
    return _changed_option(recipe, report) or "a dataset of data.train"


def why_outdated(recipe: Recipe, directory: Path) -> str:
    """Return why the training text of `directory` is not up to date, without reading its input; "" if there is none.

    Raises UserError for a damaged report.
    """
    path = directory / REPORT_FILE
    if not path.exists():
        return ""
    report = read_checked(path)
    if not report:
        return f"{path} is unreadable"
    if not _is_complete(report):
        return f"{path} is incomplete or of another version of nmt"
    for name, size in report["files"].items():
        if not (directory / name).exists() or (directory / name).stat().st_size != size:
            return f"{directory / name} is missing or has another size than in {REPORT_FILE}"
    return f"{_changed_option(recipe, report) or 'its input or tokenizer'} has changed"


def _changed_option(recipe: Recipe, report: dict[str, Any]) -> str:
    """Return the first option of the training text that differs from that of the report; "" if none does."""
    recorded, options = _named_options(report["recipe"]), _named_options(recorded_options(recipe, report))
    changed = (name for name in recorded | options if recorded.get(name) != options.get(name))
    return next(changed, "")


def _named_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `_training_options` by full name; the tokenizer and the mixture are one entry each."""
    others = _training_options(options)
    data = {f"data.{name}": value for name, value in others.pop("data").items()}
    descriptions = {"tokenizer": "the tokenizer", "mixture": "data.temperature or a weight of data.train"}
    return data | {descriptions.get(name, name): value for name, value in others.items()}


def hub_commits(recipe: Recipe, split: Split) -> dict[str, str]:
    """Return the newest commit of each dataset on the Hub whose revision may change; "" if the Hub does not answer."""
    corpora = unpinned_datasets(recipe, recipe.data.train if split == "train" else recipe.data.valid)
    return {name: _hub_commit(corpus.dataset, corpus.revision) for name, corpus in corpora.items()}


def unpinned_datasets(recipe: Recipe, corpora: Iterable[Corpus]) -> dict[str, HuggingFaceCorpus]:
    """Return the datasets on the Hub whose revision may change, by name and revision."""
    datasets: dict[str, HuggingFaceCorpus] = {}
    for corpus in corpora:
        if not isinstance(corpus, HuggingFaceCorpus) or re.fullmatch("[0-9a-f]{40}", corpus.revision or ""):
            continue
        if not resolve(Path(corpus.dataset), recipe.data.root).is_dir():
            name = f"{corpus.dataset}@{corpus.revision}" if corpus.revision else corpus.dataset
            datasets[name] = corpus
    return datasets


def _hub_commit(dataset: str, revision: str | None) -> str:
    from huggingface_hub import HfApi  # noqa: PLC0415 - few corpora need it

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every connection attempt
    try:
        return HfApi().dataset_info(dataset, revision=revision, timeout=10).sha or ""
    except Exception:  # network packages raise many types; reading the dataset gives an error with the reason
        return ""


def _changed_on_hub(split: Split, recipe: Recipe, report: dict[str, Any]) -> bool:
    for name, commit in hub_commits(recipe, split).items():
        recorded = report.get("commits", {}).get(split, {}).get(name, "")
        if not (commit and recorded):
            why = "the Hub does not answer" if recorded else "its commit was not recorded"
            fix = "set its `revision` to a commit to pin its text"
            warn(f"cannot check whether dataset {name} has changed ({why}); using the text prepared from it; {fix}")
        elif commit != recorded:
            say(f"dataset {name} has changed on the Hub: prepared from commit {recorded[:12]}, now at {commit[:12]}")
            return True
    return False


def read_report(directory: Path) -> dict[str, Any] | None:
    """Return the report of a prepared corpus; raise UserError if it is damaged.

    Returns None if it is missing, incomplete or of another format, or if a file is missing or has another size.
    """
    report = read_checked(directory / REPORT_FILE)
    if not _is_complete(report):
        return None
    paths = {name: directory / name for name in report["files"]}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.exists()}
    return report if sizes == report["files"] else None


def _is_complete(report: dict[str, Any]) -> bool:
    return report.get("format") == FORMAT and report.keys() >= _REPORT_KEYS


@dataclass(frozen=True)
class InputFile:
    """Identity of an input file: size in bytes, SHA-256 and time of last change in nanoseconds."""

    path: Path
    size: int
    sha256: str
    modified: int

    def report(self) -> dict[str, str | int]:
        """Return the fields that do not depend on the machine."""
        return {"name": self.path.name, "bytes": self.size, "sha256": self.sha256}

    def stamp(self) -> Stamp:
        """Return the fields that identify the file without reading it."""
        return self.size, self.modified, str(self.path)


def read_inputs(recipe: Recipe, recorded: Mapping[Path, InputFile] = MappingProxyType({})) -> list[InputFile]:
    """Return the input files, in the order of the recipe; raise UserError if one is unreadable.

    recorded: files of the last preparation, see `recorded_inputs`; they are read only if they have changed
    """
    files = _all_files(recipe)
    changed = [
        path for path in files if path not in recorded or (path.exists() and recorded[path].stamp() != _stamp(path))
    ]
    known = dict(recorded) | {file.path: file for file in _read_files(changed)}
    return [known[path] for path in files]


def recorded_inputs(recipe: Recipe, directory: Path, report: dict[str, Any]) -> dict[Path, InputFile]:
    """Return the input files that `directory` was prepared from, by path; none if their record is damaged."""
    stamps = _read_stamps(directory, _all_files(recipe))
    return {
        Path(path): InputFile(Path(path), entry["bytes"], entry["sha256"], modified)
        for (_, modified, path), entry in zip(stamps, report["inputs"], strict=False)
    }


def _read_files(files: Sequence[Path]) -> list[InputFile]:
    total = sum(path.stat().st_size for path in files if path.exists())
    inputs: list[InputFile] = []
    with progress("computing checksums of the input", total, "bytes") as bar:
        for path in files:
            # Read the time before the contents: the next call then detects a change made during the read.
            modified = _modified(path) if path.exists() else 0
            digest, size = hashlib.sha256(), 0
            for block in read_blocks(path):
                digest.update(block)
                size += len(block)
                bar.advance(len(block))
            inputs.append(InputFile(path, size, digest.hexdigest(), modified))
    return inputs


def write_stamps(inputs: Sequence[InputFile], directory: Path) -> None:
    """Record sizes, times of last change and paths of the input files; raise UserError if that fails."""
    stamps = [file.stamp() for file in inputs]
    write_file(directory / STAMPS, (json.dumps(stamps) + "\n").encode())


def _training_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the preparation options that determine the training text, comparable across versions."""
    data = {key: value for key, value in options["data"].items() if key != "valid"}
    others = {key: value for key, value in options.items() if key != "model" and value is not None}
    return {**others, "data": data}


def _training_inputs(report: dict[str, Any], recipe: Recipe) -> list[Any]:
    """Return the recorded input files of the training text; early versions did not record their number."""
    num_files = report["train"].get("input_files", len(_files(recipe.data.train, recipe)))
    return list(report["inputs"][:num_files])


def _mixture_options(recipe: Recipe) -> dict[str, Any] | None:
    """Return the options of the mixture; None if an epoch contains every pair once, regardless of corpus sizes."""
    weights = [corpus.weight for corpus in recipe.data.train]
    temperature = recipe.data.temperature
    is_mixed = len(set(weights)) > 1 or (len(weights) > 1 and temperature != 1.0)
    return {"weights": weights, "temperature": temperature} if is_mixed else None


def _files(corpora: Sequence[Corpus], recipe: Recipe) -> list[Path]:
    return [path for corpus in corpora for path in input_files(corpus, recipe.data.root)]


def _all_files(recipe: Recipe) -> list[Path]:
    return _files((*recipe.data.train, *recipe.data.valid), recipe)


def _stamp(path: Path) -> Stamp:
    return path.stat().st_size, _modified(path), str(path)


def _modified(path: Path) -> int:
    """Return the time of the last change. Copies may preserve the modification time, but not the change time."""
    return max(path.stat().st_mtime_ns, path.stat().st_ctime_ns)


def _portable(corpus: Corpus, exclude: set[str]) -> dict[str, Any]:
    """Return the options of a corpus with absolute paths reduced to file names."""
    values = corpus.model_dump(mode="json", exclude=exclude)
    added = ("revision", "label_column", "label_field", "document_column", "document_field", "documents")
    for name in (*added, "src_lang", "tgt_lang", "src_locale", "tgt_locale"):
        if values.get(name) is None or values[name] is False:  # column 0 is not False
            values.pop(name, None)  # absent from corpora prepared before the option existed
    for name in values:
        value = getattr(corpus, name)
        if (name == "dataset" or isinstance(value, Path)) and resolve(Path(value), Path()).is_absolute():
            values[name] = Path(value).name
    return values


def _read_stamps(directory: Path, files: Sequence[Path]) -> list[Stamp]:
    """Return the recorded stamps; empty if the file is missing or damaged. An early version recorded no paths."""
    try:
        recorded = json.loads((directory / STAMPS).read_text(encoding="utf-8"))
        if recorded and all(len(stamp) == 2 for stamp in recorded):
            return [(0, 0, str(path)) for path in files]
        return [(int(size), int(modified), str(path)) for size, modified, path in recorded]
    except (OSError, ValueError, TypeError):
        return []
