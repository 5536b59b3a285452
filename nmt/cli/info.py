"""`nmt info`: architecture, training, scores, files and engines of a model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nmt.cli.arguments import ModelArgument
from nmt.export.description import describe_model, description_lines
from nmt.storage.finite import finite
from nmt.storage.model_metadata import read_model_metadata, warn_of_run
from nmt.storage.run_folder import find_model


def info(model: ModelArgument, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Describe a model: architecture, training, scores, files and engines; verify the SHA-256 of each file."""
    description = describe_model(directory := find_model(model))
    warn_of_run(model, read_model_metadata(directory))
    if as_json:
        typer.echo(json.dumps(finite(description), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo("\n".join(description_lines(description)))
