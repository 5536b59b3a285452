"""What CTranslate2 offers on a device: precisions, and the search options that it has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from nmt.export.packages import load_package
from nmt.recipe import DecodeRecipe, UserError

EnginePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

_COMPUTE_TYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}

PRECISION_OF: Mapping[str, str] = {name: own for own, name in _COMPUTE_TYPES.items()}
"""Our name of each of CTranslate2's compute types."""


class Place(NamedTuple):
    """A device as CTranslate2 names it."""

    kind: Literal["cpu", "cuda"]
    number: int = 0


def choose_place(device: str) -> Place:
    """What `auto`, `cpu`, `cuda` or `cuda:N` means to CTranslate2; UserError for anything else."""
    name, _, index = device.partition(":")
    if name == "auto":
        count = load_package("ctranslate2").get_cuda_device_count()
        return Place("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count) if count else Place("cpu")
    if (name == "cpu" and index in ("", "0")) or (name == "cuda" and re.fullmatch("[0-9]*", index)):
        own = os.environ.get("LOCAL_RANK", "0") if name == "cuda" else "0"  # under torchrun each has a GPU of its own
        return Place("cuda" if name == "cuda" else "cpu", int(index or own))
    raise UserError(f"device {device!r} is unknown; it must be auto, cpu, cuda or cuda:N; correct it")


def refuse_options(
    decode: DecodeRecipe,
    precision: EnginePrecision = "auto",
    place: Place | None = None,
    ensemble: Sequence[str | Path] = (),
) -> None:
    """Raise UserError that names all that CTranslate2 does not have, if there is anything; without place, anywhere."""
    if problems := missing_options(decode, precision, place, ensemble):
        raise UserError(f"--engine ctranslate2 has no {'; no '.join(problems)}; change that, or use --engine torch")


def missing_options(
    decode: DecodeRecipe,
    precision: EnginePrecision = "auto",
    place: Place | None = None,
    ensemble: Sequence[str | Path] = (),
) -> list[str]:
    """What CTranslate2 does not have of what is asked for, in words."""
    asked_for = {
        "decode.stop 'exact' (it ends a search by the number of ended hypotheses)": decode.stop == "exact",
        "sampling (its samples depend on more than seed and line)": decode.sampling,
        "groups of the beam": decode.num_groups > 1,
        "bias of words": bool(decode.bias),
        "required phrases": bool(decode.require),
        "shortlist (decode.shortlist, --shortlist)": decode.shortlist is not None,
        "alignments (they are read from the attention of torch)": decode.alignments,
        "ensemble (it holds one model)": bool(ensemble),
        "n-best lists longer than decode.patience lets end": decode.stop == "patience"
        and decode.n_best > max(1, int(decode.beam_size * decode.patience)),
    }
    missing = [name for name, is_asked_for in asked_for.items() if is_asked_for]
    possible = precisions_on(place) if place is not None else []
    if place is not None and PRECISION_OF[choose_compute_type(precision, place)] not in possible:
        missing.append(f"precision {precision} (on this {place.kind} it has {', '.join(possible)})")
    return missing


def choose_compute_type(precision: EnginePrecision, place: Place) -> str:
    """CTranslate2's name of a precision, whether or not it has it on the device."""
    if precision != "auto":
        return _COMPUTE_TYPES[precision]
    if place.kind == "cpu":
        return "int8"
    return "bfloat16" if "bfloat16" in _supported_types(place) else "float32"


def precisions_on(place: Place) -> list[str]:
    """The precisions, by our names, that CTranslate2 has on a device."""
    return [own for own, name in _COMPUTE_TYPES.items() if name in _supported_types(place)]


def _supported_types(place: Place) -> set[str]:
    try:
        supported: set[str] = load_package("ctranslate2").get_supported_compute_types(place.kind, place.number)
    except (RuntimeError, ValueError) as error:
        raise engine_failure(error) from error
    return supported


def engine_failure(error: Exception) -> UserError:
    """What CTranslate2 said, in one line."""
    detail = " ".join(str(error).split())
    return UserError(f"CTranslate2 failed: {detail}; the model and its options must fit it; try --engine torch")
