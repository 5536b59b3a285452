"""A whole export: converted, compared with the model, described, and only then at its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.checkpoint import LoadedModel, load_model
from nmt.export.card import Card, Target, write_card
from nmt.export.ctranslate2 import Quantization, ctranslate2_files
from nmt.export.huggingface import huggingface_files
from nmt.export.marian import read_json
from nmt.export.packages import Package, is_installed
from nmt.export.parity import Parity, check_ctranslate2, check_huggingface
from nmt.export.sentences import Sentences, sample_sentences
from nmt.export.usage import Place, ctranslate2_usage, huggingface_usage, lost_by_ctranslate2
from nmt.recipe import UserError
from nmt.storage.sealed import require_new
from nmt.text.tokenizer import Tokenizers

_PACKAGE_OF: dict[Target, Package] = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}


@dataclass(frozen=True)
class ExportOptions:
    """How to export.

    sample:     sentences for the parity check; None takes the run's validation text, see `sample_sentences`
    is_checked: False where the package for the parity check is not installed, and the user wants no check
    repository: on the Hugging Face hub, where the card says that the export is; None for the folder
    """

    target: Target
    quantization: Quantization = "float32"
    sample: Sequence[str] | None = None
    licence: str | None = None
    is_checked: bool = True
    repository: str | None = None


def export_model(path: Path, out: Path, options: ExportOptions) -> tuple[str, ...]:
    """Export the model that `path` means into the new directory `out`, and return what there is to say about it.

    Raises UserError when the format cannot hold the model, when the package for it is missing, and when the export does
    not pass the parity check; then there is no `out`.
    """
    require_new(out)
    _check_package(options)
    loaded = load_model(path, torch.device("cpu"))
    tokenizers = Tokenizers.load(loaded.directory)
    files, notes = _convert(loaded, tokenizers, options)
    with _unfinished(out) as folder:
        _write(folder, files)
        if options.is_checked:
            parity = _check(loaded, tokenizers, folder, options)
            if not parity.passed:
                raise UserError(
                    f"the parity check failed: {parity.figures}; all must be within the limits; {out} was not written; "
                    + ("report this" if options.quantization == "float32" else "try another --quantization")
                )
            notes.append(f"Parity check passed: {parity.figures}.")
        usage = _usage(loaded, tokenizers, folder, Place(out, options.repository), options.target)
        card = Card(options.target, options.licence, usage, tuple(notes))
        _write(folder, {"README.md": write_card(loaded, card).encode()})
    return tuple(notes)


def _check_package(options: ExportOptions) -> None:
    package = _PACKAGE_OF[options.target]
    if not options.is_checked and is_installed(package):
        raise UserError(f"{package} is installed, so the parity check must be made; leave out --no-parity-check")
    if options.is_checked and not is_installed(package):
        extra = "fast" if package == "ctranslate2" else "huggingface"
        way_out = "" if options.target == "ctranslate2" else ", or export without it by --no-parity-check"
        raise UserError(
            f"package {package} is not installed; the parity check needs it; pip install 'nmt[{extra}]'{way_out}"
        )


def _convert(
    loaded: LoadedModel, tokenizers: Tokenizers, options: ExportOptions
) -> tuple[Mapping[str, bytes], list[str]]:
    if options.target == "ctranslate2":
        files = ctranslate2_files(loaded.model, tokenizers, options.quantization, loaded.facts)
        notes = [f"CTranslate2 does not have {one}." for one in lost_by_ctranslate2(loaded.facts.decode)]
        return files, [f"Weights are stored as {options.quantization}.", *notes]
    files, lost = huggingface_files(loaded.model, tokenizers, loaded.facts)
    return files, [f"generation_config.json cannot express {one}." for one in lost]


def _check(loaded: LoadedModel, tokenizers: Tokenizers, folder: Path, options: ExportOptions) -> Parity:
    if options.sample is None:
        sentences = sample_sentences(loaded, tokenizers.src)
    else:
        sentences = Sentences(list(options.sample), "of the given sample")
    if options.target == "ctranslate2":
        return check_ctranslate2(loaded, tokenizers, folder, options.quantization, sentences)
    return check_huggingface(loaded, tokenizers, folder, sentences)


def _usage(loaded: LoadedModel, tokenizers: Tokenizers, folder: Path, place: Place, target: Target) -> str:
    if target == "ctranslate2":
        return ctranslate2_usage(loaded.facts, tokenizers, place)
    return huggingface_usage(read_json(folder / "generation_config.json"), place)


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
