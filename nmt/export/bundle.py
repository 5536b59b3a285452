"""Exports: convert a model, check parity, write the model card, and publish the folder atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.checkpoint import LoadedModel, load_model
from nmt.errors import CommandError, UserError
from nmt.export.card import Target, write_card
from nmt.export.ctranslate2 import Quantization, ctranslate2_files
from nmt.export.huggingface import huggingface_files
from nmt.export.packages import EXTRA_OF, Package, is_installed
from nmt.export.parity import Parity, Sample, check_ctranslate2, check_huggingface, default_sample
from nmt.export.usage import ctranslate2_usage, huggingface_usage, lost_by_ctranslate2
from nmt.processes.interruption import interruptible
from nmt.storage.model_metadata import require_kind, warn_of_run
from nmt.storage.sealed import new_directory, reporting_disk_errors, require_new, write_synced
from nmt.text.tokenizer import Tokenizers

_PACKAGE_OF: dict[Target, Package] = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    sample:       sentences for the parity check; None for those of `default_sample`
    check_parity: False to export without the package that the parity check needs
    repository:   Hugging Face repository named on the model card; None for the local folder
    """

    target: Target
    quantization: Quantization = "float32"
    sample: Sequence[str] | None = None
    license: str | None = None
    check_parity: bool = True
    repository: str | None = None


def export_model(path: Path, out: Path, options: ExportOptions) -> tuple[str, ...]:
    """Export a model to the new directory `out`, and return notes on the export.

    Raises UserError if the format cannot represent the model, a package is missing, or the parity check fails; `out` is
    then not written.
    """
    require_new(out)
    _check_package(options)
    loaded = load_model(path, torch.device("cpu"))
    warn_of_run(path, loaded.metadata)
    require_kind(loaded.directory, loaded.metadata, language_model=False)
    tokenizers = Tokenizers.load(loaded.directory, loaded.metadata.tgt_lang)
    files, notes = _convert(loaded, tokenizers, options)
    with interruptible(), reporting_disk_errors(out), new_directory(out) as folder:
        _write(folder, files)
        if options.check_parity:
            parity = _check_parity(loaded, tokenizers, folder, options)
            if not parity.passed:
                raise UserError(
                    f"the parity check failed: {parity.summary}; all values must be within the limits; {out} was not "
                    f"written; {'report this' if options.quantization == 'float32' else 'try another --quantization'}"
                )
            notes.append(f"Parity check passed: {parity.summary}.")
        if options.target == "ctranslate2":
            positions = loaded.model.recipe.max_positions
            usage = ctranslate2_usage(loaded.metadata, tokenizers, out, options.repository, positions)
        else:
            generation = json.loads(files["generation_config.json"])
            usage = huggingface_usage(generation, options.repository or str(out), loaded.metadata, tokenizers)
        card = write_card(loaded, options.target, options.license, usage, notes)
        _write(folder, {"README.md": card.encode()})
        require_new(out)  # another process may have created it in the meantime
    return tuple(notes)


def _check_package(options: ExportOptions) -> None:
    package = _PACKAGE_OF[options.target]
    if not options.check_parity and is_installed(package):
        raise CommandError(f"{package} is installed, so the parity check is required; omit --no-parity-check")
    if options.check_parity and not is_installed(package):
        extra = EXTRA_OF[package]
        alternative = "" if package == "ctranslate2" else ", or skip the check with --no-parity-check"
        raise UserError(
            f"package {package} is not installed; the parity check needs it; pip install 'nmt[{extra}]'{alternative}"
        )


def _convert(
    loaded: LoadedModel, tokenizers: Tokenizers, options: ExportOptions
) -> tuple[Mapping[str, bytes], list[str]]:
    """Return the files of the export, and notes on what it does not preserve."""
    if options.target == "ctranslate2":
        files = ctranslate2_files(loaded.transformer, tokenizers, options.quantization, loaded.metadata)
        notes = [f"CTranslate2 does not support {name}." for name in lost_by_ctranslate2(loaded.metadata.decode)]
        return files, [f"Weights are stored as {options.quantization}.", *notes]
    files, lost = huggingface_files(loaded.transformer, tokenizers, loaded.metadata)
    return files, [f"generation_config.json cannot express {name}." for name in lost]


def _check_parity(loaded: LoadedModel, tokenizers: Tokenizers, folder: Path, options: ExportOptions) -> Parity:
    if options.sample is None:
        sample = default_sample(loaded, tokenizers.src)
    else:
        sample = Sample(list(options.sample), "the given sample")
    if options.target == "ctranslate2":
        return check_ctranslate2(loaded, tokenizers, folder, options.quantization, sample)
    return check_huggingface(loaded, tokenizers, folder, sample)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_synced(folder / name, content)
