"""Descriptions of models: architecture, training, scores, files and engines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from nmt.export.capabilities import EngineDevice, supported_precisions, unsupported_options
from nmt.export.ctranslate2 import SUPPORTED
from nmt.export.packages import is_installed
from nmt.export.representable import unsupported_architecture
from nmt.logs import counted, format_duration
from nmt.recipe import NO_LANGUAGE, ModelRecipe, SearchPrecision
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata, read_model_recipe
from nmt.storage.run_folder import find_report
from nmt.storage.sealed import CorruptError, read_manifest, verify_directory
from nmt.text.tokenizer import Tokenizers
from nmt.train.state import TrainState

# Options that `ModelRecipe.description` shows.
_SHOWN = {
    "architecture",
    "attention",
    "d_ff",
    "d_model",
    "dropout",
    "input_feeding",
    "num_decoder_layers",
    "num_encoder_layers",
    "num_heads",
}


def describe_model(directory: Path) -> dict[str, Any]:
    """Describe a model directory as JSON values, None for unknown ones.

    Raises CorruptError if a file does not match its SHA-256.
    """
    files = verify_directory(directory)
    recipe = read_model_recipe(directory)
    metadata = read_model_metadata(directory)
    report = find_report(directory) or {}
    return {
        "model": str(directory),
        "languages": {"src": metadata.src_lang, "tgt": metadata.tgt_lang, "directions": metadata.directions},
        "architecture": recipe.model_dump(mode="json"),
        "parameters": _count_parameters(directory / "model.safetensors"),
        "vocabulary": {
            "src": metadata.src_vocab_size,
            "tgt": metadata.tgt_vocab_size,
            "joint": "tokenizer.model" in files,
            "user_symbols": list(Tokenizers.load(directory).src.user_symbols()),
        },
        "tag": metadata.decode.tag,
        "max_tokens": metadata.max_tokens,
        "context": metadata.context._asdict() if metadata.context.size else None,
        "training": _training(directory, metadata, report),
        "scores": [{"test_set": test["name"], **score} for test in report.get("tests", []) for score in test["scores"]],
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in files.items()},
        "conversions": {path.name: _size(path) for path in sorted(directory.glob("ctranslate2-*"))},
        "engines": {
            "torch": ["fp32", "bf16", "fp16", "int8"],
            "ctranslate2": _ctranslate2_precisions(recipe, metadata),
        },
    }


def _count_parameters(path: Path) -> int:
    """Count the parameters in a safetensors file without reading them."""
    try:
        with safe_open(path, framework="numpy") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CorruptError(f"{path} is not a readable safetensors file; copy it again") from error


def _training(directory: Path, metadata: ModelMetadata, report: Mapping[str, Any]) -> dict[str, Any]:
    """Collect training metadata from the checkpoint of the weights, or else from the report; None if unknown."""
    origin = metadata.origin
    averaged = origin.get("averaged", [])
    newest = averaged[-1] if averaged else origin.get("moving_average")
    checkpoint = directory if newest is None else directory.resolve().parent / "checkpoints" / str(newest)
    training = {**origin, "summary": report.get("summary"), "start_from": report.get("start_from")}
    if (checkpoint / "state.json").is_file() and _is_source(checkpoint, origin):
        state = TrainState.load(checkpoint)
        values = {name.removeprefix("valid/"): value for name, value in state.best_validation.items()}
        return training | {
            "step": state.step,
            "epochs": state.epochs,
            "tgt_tokens": state.tgt_tokens,
            "seconds": state.seconds,
            "best_validation": {"step": state.best_step, **values},
        }
    reported = report.get("training", {})
    return training | {
        "step": reported.get("steps", origin.get("step")),
        "best_validation": {"step": reported.get("valid_step"), "nll": reported.get("valid_nll")},
        **{name: reported.get(name) for name in ("epochs", "tgt_tokens", "seconds")},
    }


def _is_source(checkpoint: Path, origin: Mapping[str, Any]) -> bool:
    """Return whether a model comes from a checkpoint; one of the same name may belong to another run."""
    weights = origin.get("weights", [])[-1:]  # absent from models of earlier versions and from checkpoints
    return not weights or weights[0] in {digest for _, digest in read_manifest(checkpoint).values()}


def _ctranslate2_precisions(recipe: ModelRecipe, metadata: ModelMetadata) -> list[SearchPrecision] | str:
    """Return the precisions of CTranslate2 for this model on a CPU, or why it cannot run the model."""
    if not is_installed("ctranslate2"):
        return "not installed"
    decode = metadata.decode.model_copy(update={"alignments": False})  # as in `nmt translate`
    reasons = ["it is a language model"] if metadata.is_language_model else []
    reasons += unsupported_architecture(recipe, supported=SUPPORTED)
    reasons += [f"no support for {name}" for name in unsupported_options(decode)]
    if decode.no_repeat_ngram > 0 and metadata.context.has_target:
        reasons.append("no support for decode.no_repeat_ngram with previous translations")
    if reasons:
        return f"cannot run this model: {'; '.join(reasons)}"
    return supported_precisions(EngineDevice("cpu"))


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def description_lines(description: Mapping[str, Any]) -> Iterator[str]:
    """Format the result of `describe_model` as lines of labels and values."""
    languages, sizes, files = description["languages"], description["vocabulary"], description["files"]
    pair = ", ".join(languages["directions"])
    if languages["src"] == NO_LANGUAGE:
        pair = f"{pair.replace(f'{NO_LANGUAGE} to ', '')} (language model)"
    rows: list[tuple[str, str]] = [
        ("model", description["model"]),
        ("languages", pair),
        ("architecture", _architecture(ModelRecipe.model_validate(description["architecture"]))),
        ("parameters", f"{description['parameters']:,}"),
        ("vocabulary", f"{sizes['src']:,}, joint" if sizes["joint"] else f"{sizes['src']:,} and {sizes['tgt']:,}"),
    ]
    if symbols := sizes["user_symbols"]:
        default = "" if description["tag"] is None else f"; default tag: {description['tag']}"
        rows.append(("tags, symbols", ", ".join(symbols) + default))
    rows += _training_rows(description["training"])
    if context := description["context"]:
        translations = ", with translations" if context["sides"] == "both" else ""
        rows.append(("context", f"{counted(context['size'], 'previous sentence')}{translations}"))
    for score in description["scores"]:
        digits = 4 if score["name"] == "bits-per-byte" else 2  # as in reports
        value = "infinite" if score["value"] is None else f"{score['value']:.{digits}f}"  # perplexity after divergence
        rows.append((f"{score['test_set']} {score['name']}", f"{value}  {score['signature']}"))
    for engine, precisions in description["engines"].items():
        rows.append((engine, precisions if isinstance(precisions, str) else f"{', '.join(precisions)} (on a CPU)"))
    total = sum(entry["bytes"] for entry in files.values())
    rows.append(("files", f"{total:,} bytes, verified; SHA-256, bytes and name of each:"))
    rows += [("", f"{entry['sha256']}  {entry['bytes']:>13,}  {name}") for name, entry in files.items()]
    rows += [
        ("", f"{'conversion to CTranslate2':64}  {size:>13,}  {name}")
        for name, size in description["conversions"].items()
    ]
    width = max(len(label) for label, _ in rows) + 2
    return (f"{label:{width}}{value}" for label, value in rows)


def _architecture(recipe: ModelRecipe) -> str:
    """Return the sizes, and the other options that differ from the defaults."""
    others = recipe.model_dump(mode="json", exclude_defaults=True, exclude=_SHOWN)
    return ", ".join([recipe.description, *(f"{name} {value}" for name, value in others.items())])


def _training_rows(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("recipe", "seed", "imported"):
        if name in training:
            yield name, str(training[name])
    if training["start_from"] is not None:
        yield "initial model", training["start_from"]
    if training["step"] is not None:
        parts = [f"{training['step']:,} updates"]
        if training["tgt_tokens"] is not None:
            parts += [f"{training['epochs']:.1f} epochs", f"{training['tgt_tokens']:,} target tokens"]
            parts.append(format_duration(training["seconds"]))
        yield "trained", ", ".join(parts)
    if averaged := training.get("averaged"):
        if all(name.startswith("step-") for name in averaged):
            names = averaged[0] if len(averaged) == 1 else f"{averaged[0]} to {averaged[-1]}"
            yield "average of", f"{counted(len(averaged), 'checkpoint')}, {names}"
        else:
            yield "average of", f"{counted(len(averaged), 'model')}: {', '.join(averaged)}"
    if "moving_average" in training:
        yield "average of", f"all updates up to {training['moving_average']} (EMA)"
    if "kept_heads" in training:
        yield "pruned", "attention heads, after training and validation"
    best = training["best_validation"]
    if best["step"]:
        values = [
            f"{name.replace('average_', 'EMA ')} {value:.4g}"
            for name, value in best.items()
            if name != "step" and value is not None
        ]
        yield "best validation", f"update {best['step']:,}: {', '.join(values)}"
