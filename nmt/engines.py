"""Choose and load the decoding engine; torch is imported only if it is used.

Importing torch takes longer than translating a page with CTranslate2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, assert_never

from nmt.decode.glossary import Glossary
from nmt.decode.text_translator import TextTranslator
from nmt.errors import CommandError, UserError
from nmt.export.cache import can_cache
from nmt.export.capabilities import EngineDevice, resolve_precision, select_device, unsupported_options
from nmt.export.engine import CTranslate2Translator
from nmt.export.packages import load_package
from nmt.keep.translator import PreservingTranslator
from nmt.processes.environment import world_size
from nmt.processes.interruption import interruptible
from nmt.recipe import DecodeRecipe, SearchPrecision
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import file_sha256, manifest_digest
from nmt.streams.records import RecordWriter
from nmt.streams.workers import AnyTranslator, WindowTranslator, Workers

if TYPE_CHECKING:
    from nmt.decode.scoring import TextScorer

LoadedEngine = Literal["torch", "ctranslate2"]
Engine = Literal["auto", "torch", "ctranslate2"]


@dataclass(frozen=True)
class EngineChoice:
    """A decoding engine and its precision.

    reason:     why `auto` selected the engine; "" if the user did
    translator: the CTranslate2 translator that `auto` loaded to check that it works
    """

    engine: LoadedEngine
    precision: SearchPrecision
    reason: str = ""
    translator: TextTranslator | None = None

    @property
    def note(self) -> str:
        """The log message about the choice."""
        name = "CTranslate2" if self.engine == "ctranslate2" else "torch"
        reason = f", {self.reason}" if self.reason else ""
        return f"engine: {name}, {self.precision}{reason}"


@dataclass(frozen=True)
class TranslatorRequest:
    """A translator to load.

    models:    directories of the model and of the other models of its ensemble; not runs, as in `decode.fusion`
    processes: batches that CTranslate2 decodes in parallel; 0 is one per core on a CPU, one on a GPU
    scores:    whether the output depends on scores
    memory:    file of the translation memory, if any, for at most `memory_limit` translations
    """

    models: Sequence[Path]
    decode: DecodeRecipe
    device: str
    processes: int
    scores: bool
    memory: Path | None = None
    memory_limit: int | None = None


def resolve_fusion(decode: DecodeRecipe) -> DecodeRecipe:
    """Replace the run of a language model with its model directory, because a run that trains saves newer checkpoints.

    Raises UserError if there is no model.
    """
    return decode if decode.fusion is None else decode.model_copy(update={"fusion": find_model(decode.fusion)})


def choose_engine(
    engine: Engine, precision: SearchPrecision, request: TranslatorRequest, *, required: bool
) -> EngineChoice:
    """Return the requested engine; `auto` selects CTranslate2 on a CPU if it supports all options and loads the model.

    required: whether lines have required phrases or glossary terms
    """
    if engine == "ctranslate2":
        if required:
            raise CommandError(
                "--engine ctranslate2 does not support required phrases and glossaries; they need torch; leave out "
                "both, or use --engine torch"
            )
        return EngineChoice(engine, resolve_precision(precision, select_device(request.device)))
    if engine == "torch":
        return EngineChoice(engine, _torch_precision(precision, request.device))
    obstacle = _ctranslate2_obstacle(precision, request, required=required)
    if not obstacle:
        choice = EngineChoice("ctranslate2", resolve_precision(precision, EngineDevice("cpu")), "the fastest on a CPU")
        try:
            with interruptible():  # may convert the model
                return replace(choice, translator=load_translator(request, choice))
        except UserError as error:
            obstacle = str(error).partition(";")[0]
    return EngineChoice("torch", _torch_precision(precision, request.device), f"because {obstacle}")


def _ctranslate2_obstacle(precision: SearchPrecision, request: TranslatorRequest, *, required: bool) -> str:
    """Return why `auto` cannot select CTranslate2, "" if it can; loading may still fail."""
    try:
        load_package("ctranslate2")
    except UserError:
        return "CTranslate2 is not installed"
    if world_size() > 1:
        return "there are several processes"
    if request.device not in ("auto", "cpu"):
        return f"the device is {request.device}"
    if request.device == "auto" and _may_have_gpu():
        return "there may be a GPU"
    if precision in ("bf16", "fp16"):
        return f"{precision} was requested"
    if required:
        return "CTranslate2 does not support required phrases and glossaries"
    model, *ensemble = request.models
    unsupported = unsupported_options(request.decode, precision, EngineDevice("cpu"), ensemble)
    if unsupported:
        return f"CTranslate2 does not support {'; '.join(unsupported)}"
    if can_cache(model, "float32" if precision == "fp32" else "int8"):
        return ""
    return f"{model} is not writable, so the converted model cannot be stored"


def _torch_precision(precision: SearchPrecision, device: str) -> SearchPrecision:
    if precision != "auto":
        return precision
    from nmt.devices.precision import choose_precision  # noqa: PLC0415
    from nmt.processes.distributed import choose_device  # noqa: PLC0415

    return choose_precision("auto", choose_device(device))


def _may_have_gpu() -> bool:
    """Return whether CTranslate2 finds a GPU, or device files suggest one for torch."""
    return select_device("auto").kind != "cpu" or any(Path(f"/dev/{name}").exists() for name in ("nvidia0", "kfd"))


def start_workers(
    engine: Engine, device: str, processes: int | None, threads: int | None
) -> AbstractContextManager[Workers]:
    """Provide the processes that translate, for a `with` block.

    processes: see `start_torch_workers`; CTranslate2 has threads that share one model instead
    threads:   of the current process, with torch

    Raises UserError if the device does not allow several processes.
    """
    if engine == "ctranslate2" and not world_size() > 1:
        ct2_device = select_device(device)
        on_gpu = ct2_device.kind != "cpu"
        name = f"cuda:{ct2_device.index}" if on_gpu else "cpu"
        return nullcontext(Workers(device=name, on_gpu=on_gpu))
    from nmt.streams.torch_workers import start_torch_workers  # noqa: PLC0415

    return start_torch_workers(device, 1 if engine == "ctranslate2" else processes, threads)


def load_translator(request: TranslatorRequest, choice: EngineChoice) -> TextTranslator:
    """Load the requested translator with the chosen engine, without the translation memory."""
    if choice.translator is not None:
        return choice.translator
    model, *ensemble = request.models
    decode = request.decode.all_given()
    match choice.engine:
        case "torch":
            from nmt.decode.generator import TextGenerator  # noqa: PLC0415
            from nmt.decode.translator import Translator  # noqa: PLC0415

            is_language_model = read_model_metadata(model).is_language_model
            translator_class = TextGenerator if is_language_model else Translator
            return translator_class.load(model, request.device, choice.precision, decode, ensemble)
        case "ctranslate2":
            return CTranslate2Translator.load(
                model,
                request.device,
                choice.precision,
                decode,
                ensemble,
                translators=request.processes,
                scores=request.scores,
            )
        case _:
            assert_never(choice.engine)


def load_window_translator(
    request: TranslatorRequest,
    choice: EngineChoice,
    keep: Collection[str],
    writer: RecordWriter,
    glossary: Glossary | None,
) -> WindowTranslator:
    """Load the translator of windows, with the requested translation memory. keep: kinds of items, see `nmt.keep`"""
    translator: AnyTranslator
    if request.memory is None:
        translator = load_translator(request, choice)
    else:
        from nmt.decode.memory import DEFAULT_LIMIT, MemoryTranslator, TranslationMemory  # noqa: PLC0415

        settings, _ = model_settings(request.models, request.decode, choice)
        settings |= request.decode.search_settings() | {"scores": request.scores}
        # Before the model, which takes longer.
        memory = TranslationMemory(request.memory, request.memory_limit or DEFAULT_LIMIT)
        translator = MemoryTranslator(load_translator(request, choice), memory, settings)
    if keep:
        metadata = read_model_metadata(request.models[0])
        languages = (metadata.src_lang, metadata.tgt_lang)
        translator = PreservingTranslator(translator, keep, languages, is_subtitle=writer.format == "srt")
    return WindowTranslator(translator, writer, glossary)


def model_settings(
    models: Sequence[Path], decode: DecodeRecipe, choice: EngineChoice
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings that determine a translation, apart from those of `decode`, and paths by digest.

    models, decode: with model directories, not runs
    """
    digests = [manifest_digest(model) for model in models]
    names = {digest: str(model) for digest, model in zip(digests, models, strict=True)}
    settings: dict[str, Any] = {"model": digests[0], "ensemble": digests[1:]}
    if decode.shortlist is not None and decode.shortlist.is_file():
        settings["shortlist"] = file_sha256(decode.shortlist)
        names[settings["shortlist"]] = str(decode.shortlist)
    if decode.fusion is not None:
        settings["fusion"] = manifest_digest(decode.fusion)
        names[settings["fusion"]] = str(decode.fusion)
    return settings | {"engine": choice.engine, "precision": choice.precision}, names


def load_scorer(model: Path, digest: str, device: str, tag: str | None) -> TextScorer:
    """Load the scorer of a served model, which always uses torch. tag: None for no tag, even if the model has one

    Raises UserError if the files of the model no longer have this digest.
    """
    if manifest_digest(find_model(model)) != digest:
        problem = "was replaced after the server loaded it; scores need the same model; restart the server"
        raise UserError(f"{model} {problem}")
    from nmt.decode.scoring import TextScorer  # noqa: PLC0415

    return TextScorer.load(model, device, tag, own_tag=False)
