"""Which program searches, and what it needs: torch is imported only where it is the one.

Importing torch takes longer than translating a page with CTranslate2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, cast

from nmt.cli.arguments import Engine, Precision
from nmt.decode.text_translator import TextTranslator
from nmt.export.cache import can_cache
from nmt.export.capabilities import (
    PRECISION_OF,
    EngineDevice,
    EnginePrecision,
    select_compute_type,
    select_device,
    unsupported_options,
)
from nmt.export.engine import CTranslate2Translator
from nmt.export.packages import load_package
from nmt.processes.interruption import interruptible
from nmt.recipe import DecodeRecipe, UserError
from nmt.streams.answers import Alone, Team

if TYPE_CHECKING:
    from nmt.decode.scoring import Scorer


@dataclass(frozen=True)
class Chosen:
    """The program that searches, its precision, and why it was chosen, where the choice was left open.

    reason: why it was chosen; "" where the user chose
    translator: of CTranslate2 where the choice was left open; it is loaded then, because that may fail
    """

    engine: Engine
    precision: Precision
    reason: str = ""
    translator: TextTranslator | None = None

    @property
    def note(self) -> str:
        """What the user is told of the choice."""
        name = "CTranslate2" if self.engine is Engine.ctranslate2 else "torch"
        reason = f", {self.reason}" if self.reason else ""
        return f"engine: {name}, {self.precision.value}{reason}"


def choose_engine(
    engine: Engine,
    precision: Precision,
    device: str,
    decode: DecodeRecipe,
    models: Sequence[Path],
    load: Callable[[Chosen], TextTranslator],
    *,
    required: bool,
) -> Chosen:
    """The engine that was asked for; with `auto`, CTranslate2 on a CPU wherever it has what is asked for, and loads.

    load: loads the translator, see `load_translator`; required: whether phrases are required of single lines
    """
    if engine is Engine.ctranslate2:
        compute_type = select_compute_type(precision.value, select_device(device))
        return Chosen(engine, Precision(PRECISION_OF[compute_type]))
    if engine is Engine.torch:
        return Chosen(engine, _precision_of_torch(precision, device))
    why_not = _why_not_ctranslate2(precision, device, decode, models, required=required)
    if not why_not:
        own = Precision.int8 if precision is Precision.auto else precision
        chosen = Chosen(Engine.ctranslate2, own, "the fastest on a CPU")
        try:
            with interruptible():  # it may convert the model
                return replace(chosen, translator=load(chosen))
        except UserError as error:
            why_not = str(error).partition(";")[0]
    return Chosen(Engine.torch, _precision_of_torch(precision, device), f"because {why_not}")


def _why_not_ctranslate2(
    precision: Precision, device: str, decode: DecodeRecipe, models: Sequence[Path], *, required: bool
) -> str:
    """What keeps CTranslate2 from being chosen; "" where nothing does, though it may still fail to load the model."""
    try:
        load_package("ctranslate2")
    except UserError:
        return "CTranslate2 is not installed"
    if _under_torchrun() or device not in ("auto", "cpu") or (device == "auto" and _may_have_gpu()):
        return "there are several processes or a GPU"
    if precision in (Precision.bf16, Precision.fp16):
        return f"{precision.value} was asked for"
    if required:
        return "CTranslate2 does not support required phrases"
    if missing := unsupported_options(decode, cast(EnginePrecision, precision.value), EngineDevice("cpu"), models[1:]):
        return f"CTranslate2 does not support {'; '.join(missing)}"
    if can_cache(models[0], "float32" if precision is Precision.fp32 else "int8"):
        return ""
    return f"{models[0]} cannot be written to, so no conversion can be kept"


def _precision_of_torch(precision: Precision, device: str) -> Precision:
    """That with which torch computes."""
    if precision is not Precision.auto:
        return precision
    from nmt.devices.precision import choose_precision  # noqa: PLC0415
    from nmt.processes.distributed import choose_device  # noqa: PLC0415

    return Precision(choose_precision("auto", choose_device(device)))


def _may_have_gpu() -> bool:
    """Whether there is a GPU that CTranslate2 sees, or that torch may see."""
    return select_device("auto").kind != "cpu" or any(Path(f"/dev/{name}").exists() for name in ("nvidia0", "kfd"))


def _under_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def start_team(engine: Engine, device: str, processes: int, threads: int | None = None) -> AbstractContextManager[Team]:
    """The processes that translate, for the length of a `with` block.

    CTranslate2 has threads that share one model where torch has processes. Raises UserError for processes that the
    device does not allow.

    threads: of this process, where torch searches
    """
    if engine is Engine.ctranslate2 and not _under_torchrun():
        place = select_device(device)
        return nullcontext(Alone("cpu" if place.kind == "cpu" else f"cuda:{place.index}"))
    from nmt.cli.torch_team import start_torch_team  # noqa: PLC0415

    return start_torch_team(device, 1 if engine is Engine.ctranslate2 else processes, threads)


def load_translator(
    models: Sequence[Path], device: str, decode: DecodeRecipe, processes: int, scores: bool, chosen: Chosen
) -> TextTranslator:
    """The translator that searches with the chosen program.

    processes: for CTranslate2, batches that are decoded at a time; 0 takes as many as there are cores
    scores: whether scores are written
    """
    if chosen.translator is not None:
        return chosen.translator
    model, *ensemble = models
    match chosen.engine:
        case Engine.torch:
            from nmt.decode.translator import Translator  # noqa: PLC0415

            return Translator.load(model, device, chosen.precision.value, decode, ensemble)
        case Engine.ctranslate2:
            return CTranslate2Translator.load(
                model, device, chosen.precision.value, decode, ensemble, translators=processes, scores=scores
            )
        case Engine.auto:
            raise AssertionError("the choice was made before")
        case _:
            assert_never(chosen.engine)


def load_scorer(model: Path, device: str, tag: str | None) -> Scorer:
    """What scores given translations, always with torch; see `Scorer.load`."""
    from nmt.decode.scoring import Scorer  # noqa: PLC0415

    return Scorer.load(model, device, tag)
