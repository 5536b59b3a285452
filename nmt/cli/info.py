"""`nmt info`: architecture, training, scores, files and engines of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from nmt.cli.arguments import ModelArgument
from nmt.export.description import describe_model
from nmt.logs import counted, format_duration
from nmt.recipe import ModelRecipe
from nmt.storage.run_folder import find_model

# Options of the architecture that are always shown.
_SIZES = {"d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "dropout"}


def info(
    model: ModelArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a model: architecture, training, scores, files and engines; verify the SHA-256 of each file."""
    description = describe_model(find_model(model))
    if as_json:
        typer.echo(json.dumps(description, indent=1, ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(description)))


def _lines(description: Mapping[str, Any]) -> Iterator[str]:
    """Format the description as labels and values."""
    languages, sizes, files = description["languages"], description["vocabulary"], description["files"]
    rows: list[tuple[str, str]] = [
        ("model", description["model"]),
        ("languages", f"{languages['src']} to {languages['tgt']}"),
        ("architecture", _architecture(ModelRecipe.model_validate(description["architecture"]))),
        ("parameters", f"{description['parameters']:,}"),
        ("vocabulary", f"{sizes['src']:,}, joint" if sizes["joint"] else f"{sizes['src']:,} and {sizes['tgt']:,}"),
        *_training_rows(description["training"]),
    ]
    for score in description["scores"]:
        rows.append((f"{score['test_set']} {score['name']}", f"{score['value']:.2f}  {score['signature']}"))
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
    """Return the sizes, and other options that are not the defaults."""
    others = recipe.model_dump(mode="json", exclude_defaults=True, exclude=_SIZES)
    return ", ".join(
        [
            f"Transformer of {recipe.num_encoder_layers}+{recipe.num_decoder_layers} layers",
            f"d_model {recipe.d_model}, d_ff {recipe.d_ff}, {recipe.num_heads} heads, dropout {recipe.dropout:g}",
            *(f"{name} {value}" for name, value in others.items()),
        ]
    )


def _training_rows(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("recipe", "seed", "imported"):
        if name in training:
            yield name, str(training[name])
    if training["step"] is not None:
        parts = [f"{training['step']:,} updates"]
        if training["tgt_tokens"] is not None:
            parts += [f"{training['epochs']:.1f} epochs", f"{training['tgt_tokens']:,} target tokens"]
            parts.append(format_duration(training["seconds"]))
        yield "trained", ", ".join(parts)
    if averaged := training.get("averaged"):
        yield "average of", f"{counted(len(averaged), 'checkpoint')}, {averaged[0]} to {averaged[-1]}"
    if "moving_average" in training:
        yield "average of", f"all updates up to {training['moving_average']} (EMA)"
    best = training["best_validation"]
    if best["step"]:
        values = [f"{name} {value:.4g}" for name, value in best.items() if name != "step" and value is not None]
        yield "best validation", f"update {best['step']:,}: {', '.join(values)}"
