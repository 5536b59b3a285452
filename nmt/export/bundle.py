"""A whole export: converted, proved, described, and only then at its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.checkpoint import LoadedModel, load_model
from nmt.data.tokenizer import Tokenizers
from nmt.export.card import Card, Target, write_card
from nmt.export.ctranslate2 import Quantization, ctranslate2_files
from nmt.export.huggingface import huggingface_files
from nmt.export.packages import Package, is_installed
from nmt.export.proof import Proof, prove_ctranslate2, prove_huggingface, sample_sentences
from nmt.recipe import UserError
from nmt.storage.sealed import require_new

_PACKAGE_OF: dict[Target, Package] = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}


@dataclass(frozen=True)
class ExportOptions:
    """How to export.

    sample:   sentences for the proof; None takes embedded ones
    is_proved: False where the package that would prove it is not installed, and the user wants it nevertheless
    """

    target: Target
    quantization: Quantization = "float32"
    sample: Sequence[str] | None = None
    licence: str | None = None
    is_proved: bool = True


def export_model(path: Path, out: Path, options: ExportOptions) -> tuple[str, ...]:
    """Export the model that `path` means into the new directory `out`, and return what there is to say about it.

    Raises UserError when the format cannot hold the model, when the package for it is missing, and when the export is
    not proved to be the model; then there is no `out`.
    """
    require_new(out)
    _check_package(options)
    loaded = load_model(path, torch.device("cpu"))
    tokenizers = Tokenizers.load(loaded.directory)
    files, notes = _convert(loaded, tokenizers, options)
    with _unfinished(out) as folder:
        _write(folder, files)
        if options.is_proved:
            proof = _prove(loaded, tokenizers, folder, options)
            if not proof.passed:
                raise UserError(
                    f"the export is not the model: {proof.figures}; they must agree; {out} was not written; "
                    "give other sentences by --sample, or report this"
                )
            notes.append(f"Proved: {proof.figures}.")
        card = Card(options.target, options.licence, tuple(notes))
        _write(folder, {"README.md": write_card(loaded, card).encode()})
    return tuple(notes)


def _check_package(options: ExportOptions) -> None:
    package = _PACKAGE_OF[options.target]
    if not options.is_proved and is_installed(package):
        raise UserError(f"{package} is installed, so the export can be proved, and must be; leave out --no-proof")
    if options.is_proved and not is_installed(package):
        extra = "fast" if package == "ctranslate2" else "huggingface"
        way_out = "" if options.target == "ctranslate2" else ", or export without a proof by --no-proof"
        raise UserError(
            f"package {package} is not installed; it must be, to prove the export; pip install 'nmt[{extra}]'{way_out}"
        )


def _convert(
    loaded: LoadedModel, tokenizers: Tokenizers, options: ExportOptions
) -> tuple[Mapping[str, bytes], list[str]]:
    if options.target == "ctranslate2":
        files = ctranslate2_files(loaded.model, tokenizers, options.quantization, loaded.facts)
        return files, [f"Weights are stored as {options.quantization}."]
    files, lost = huggingface_files(loaded.model, tokenizers, loaded.facts)
    return files, [f"generation_config.json cannot express {one}." for one in lost]


def _prove(loaded: LoadedModel, tokenizers: Tokenizers, folder: Path, options: ExportOptions) -> Proof:
    lines = sample_sentences(loaded.facts.src_lang) if options.sample is None else options.sample
    if options.target == "ctranslate2":
        return prove_ctranslate2(loaded, tokenizers, folder, options.quantization, lines)
    return prove_huggingface(loaded, tokenizers, folder, lines)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


@contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that becomes `out` when all went well, and otherwise goes."""
    folder = out.with_name(f".{out.name}.part-{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        yield folder
        folder.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose a place that can be written to") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
