"""What CTranslate2 supports: devices, precisions and search options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal, assert_never

from nmt.errors import CommandError, UserError, message_of
from nmt.export.packages import load_package
from nmt.processes.environment import local_rank
from nmt.recipe import DecodeRecipe, SearchPrecision
from nmt.search.options import SearchOptions

COMPUTE_TYPES: Mapping[SearchPrecision, str] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
}
"""CTranslate2's names for the precisions."""

# Search options that CTranslate2 supports only at their defaults; `unsupported_search_options` has the exceptions.
_UNSUPPORTED: Mapping[str, str] = {
    "stop": "decode.stop 'exact' (it stops after a number of finished hypotheses)",
    "sampling": "sampling (its samples are not a function of seed and line)",
    "beam_groups": "beam groups (decode.beam_groups)",
    "bias": "word bias (decode.bias)",
    "require": "required phrases (decode.require)",
    "trees": "well-formed trees (decode.trees)",
    "shortlist": "shortlists (decode.shortlist, --shortlist)",
    "fusion": "shallow fusion (decode.fusion, --fusion)",
    "alignments": "alignments (they need torch's attention weights)",
}
_DEFAULTS = DecodeRecipe()

# Exponent of a length penalty of 1. With 0, CTranslate2 would stop at the first EOS of its best hypothesis.
_NO_PENALTY = 1e-12
# n^(0.8 alpha) is proportional to ((5 + n) / 6)^alpha within 8% for an alpha of at most 1 and 10 to 100 tokens.
GNMT_EXPONENT = 0.8

# CPU flags that CTranslate2 requires for AVX-512.
_AVX512_FLAGS = {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}


@dataclass(frozen=True)
class EngineDevice:
    """A device in CTranslate2's terms."""

    kind: Literal["cpu", "cuda"]
    index: int = 0


def select_device(device: str) -> EngineDevice:
    """Parse `auto`, `cpu`, `cuda` or `cuda:N`; under torchrun, each process has its own GPU. Raises UserError."""
    name, _, index = str(device).partition(":")
    if device in ("auto", "cuda"):
        count = load_package("ctranslate2").get_cuda_device_count()
        if count:
            return EngineDevice("cuda", local_rank() % count)  # a process may see only its own GPU
        if device == "cuda":
            raise UserError("device 'cuda' does not exist (CUDA devices found: 0); use cpu")
        return EngineDevice("cpu")
    if name == "cpu" and index in ("", "0"):
        return EngineDevice("cpu")
    if name == "cuda" and re.fullmatch("[0-9]+", index):
        return EngineDevice("cuda", int(index))
    raise UserError(f"device {device!r} is unknown; it must be auto, cpu, cuda or cuda:N; choose one")


def enable_avx512(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Let CTranslate2 use AVX-512 where it is faster; its default on all processors is AVX2.

    AVX-512 saves 9% of the time on an AMD EPYC and 6% on an Intel Xeon with AMX. Older Intel processors, which lower
    their clock rate for AVX-512, were not measured. Call it before CTranslate2 loads a model. The user's
    CT2_FORCE_CPU_ISA takes precedence.
    """
    if not cpuinfo.exists():
        return
    with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
        first_core = "".join(takewhile(str.strip, lines))
    flags = set(first_core.split())
    if not flags.isdisjoint({"AuthenticAMD", "amx_tile"}) and flags >= _AVX512_FLAGS:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")


def require_supported(
    decode: DecodeRecipe,
    precision: SearchPrecision = "auto",
    device: EngineDevice | None = None,
    ensemble: Sequence[str | Path] = (),
) -> None:
    """Raise CommandError with all `unsupported_options`, if any."""
    if unsupported := unsupported_options(decode, precision, device, ensemble):
        names = "; ".join(unsupported)
        raise CommandError(f"--engine ctranslate2 does not support {names}; change these options or use --engine torch")


def unsupported_options(
    decode: DecodeRecipe,
    precision: SearchPrecision = "auto",
    device: EngineDevice | None = None,
    ensemble: Sequence[str | Path] = (),
) -> list[str]:
    """Describe the requested options that CTranslate2 does not support.

    device: None skips the check of precision
    """
    unsupported = [_UNSUPPORTED[name] for name in unsupported_search_options(decode)]
    if ensemble:
        unsupported.append("ensembles")
    if device is not None:
        supported = supported_precisions(device)
        if resolve_precision(precision, device) not in supported:
            name = "CPU" if device.kind == "cpu" else "GPU"
            unsupported.append(f"precision {precision} (this {name} supports {', '.join(supported)})")
    return unsupported


def unsupported_search_options(decode: DecodeRecipe) -> list[str]:
    """Return the names of the requested search options that CTranslate2 does not support."""
    supported = {
        "stop": decode.stop in ("first", "patience") or decode.beam_size == 1,  # greedy search stops at EOS
        "fusion": decode.fusion is None or not decode.fusion_weight,
    }
    return [name for name in _UNSUPPORTED if not supported.get(name, getattr(decode, name) == getattr(_DEFAULTS, name))]


def search_patience(options: SearchOptions | DecodeRecipe) -> float:
    """Return CTranslate2's patience; 1, its default, in greedy search."""
    return options.patience if options.stop == "patience" and options.beam_size > 1 else 1.0


def max_hypotheses(options: SearchOptions | DecodeRecipe) -> int:
    """Return the maximum number of hypotheses that CTranslate2 returns: below the beam size for a patience below 1."""
    return max(1, min(options.beam_size, int(options.beam_size * search_patience(options))))


def length_exponent(options: SearchOptions | DecodeRecipe) -> float:
    """Return the exponent of CTranslate2's length penalty."""
    if not options.length_alpha:
        return _NO_PENALTY
    match options.length_penalty:
        case "gnmt":
            return options.length_alpha * GNMT_EXPONENT
        case "power":
            return options.length_alpha
        case "none":
            return _NO_PENALTY
        case _:
            assert_never(options.length_penalty)


def resolve_precision(precision: SearchPrecision, device: EngineDevice) -> SearchPrecision:
    """Return the precision, or the one that `auto` selects, without checking that the device supports it."""
    if precision != "auto":
        return precision
    if device.kind == "cpu":
        return "int8"
    return "bf16" if "bf16" in supported_precisions(device) else "fp32"


def supported_precisions(device: EngineDevice) -> list[SearchPrecision]:
    """List the precisions that CTranslate2 supports on a device."""
    with engine_errors():
        supported = load_package("ctranslate2").get_supported_compute_types(device.kind, device.index)
    return [precision for precision, compute_type in COMPUTE_TYPES.items() if compute_type in supported]


@contextmanager
def engine_errors() -> Iterator[None]:
    """Convert exceptions of CTranslate2 to one-line UserErrors."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"CTranslate2 failed: {message_of(error)}; it must support the model and options; try --engine torch"
        ) from error
