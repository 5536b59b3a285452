"""`nmt export` and `nmt import`: convert models to and from other formats."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import ModelArgument, missing_option, require_at_most_one
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.card import Target
from nmt.export.ctranslate2 import Quantization
from nmt.export.hub import push as push_to_hub
from nmt.export.hub import require_repository_name, require_token
from nmt.export.marian import import_marian
from nmt.logs import say
from nmt.text.format_warnings import read_plain_text


def export(
    model: ModelArgument,
    to: Annotated[Target, typer.Option(help="Format of the export.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="New directory for the export.")],
    quantization: Annotated[
        Quantization | None, typer.Option(help="Weight type for CTranslate2 (default: float32).")
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Sentences for the parity check, one per line; - is standard input (default: 24 validation sentences, "
            "or random tokens)."
        ),
    ] = None,
    license_id: Annotated[
        str | None, typer.Option("--license", help="License for the card, such as apache-2.0.")
    ] = None,
    push: Annotated[str | None, typer.Option(help="Upload to the Hugging Face Hub as OWNER/MODEL.")] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push: make the repository private.")] = False,
    no_parity_check: Annotated[
        bool,
        typer.Option(
            "--no-parity-check", help="Skip the check of --to huggingface; not allowed if transformers is installed."
        ),
    ] = False,
) -> None:
    """Write a model for CTranslate2 or Hugging Face transformers, with a model card.

    A parity check compares its log-probabilities (for CTranslate2, also its translations) with those of nmt; the export
    fails if they differ by more than the limits in the card. Hugging Face models are Marian models, or Pegasus models
    if pre-norm.
    """
    if quantization is not None and to != "ctranslate2":
        raise typer.BadParameter("--quantization has no effect on --to huggingface; leave out --quantization")
    if no_parity_check and to == "ctranslate2":
        raise typer.BadParameter(
            "--no-parity-check has no effect on --to ctranslate2, which needs package ctranslate2 even without the "
            "check; leave out --no-parity-check"
        )
    require_at_most_one({"--sample": sample is not None, "--no-parity-check": no_parity_check})
    if private and push is None:
        raise missing_option("--private", "--push")
    if license_id is not None and not re.fullmatch(r"[A-Za-z0-9.+-]+", license_id):
        raise typer.BadParameter(f"--license is {license_id!r}; it must be an identifier such as apache-2.0")
    if push is not None:
        require_repository_name(push)
        require_token()
    options = ExportOptions(
        target=to,
        quantization=quantization or "float32",
        sample=None if sample is None else list(read_plain_text(sample, allow_pipe=True)),
        license=license_id,
        check_parity=not no_parity_check,
        repository=push,
    )
    for note in export_model(model, out, options):
        say(note)
    typer.echo(push_to_hub(out, push, private=private) if push is not None else out)


def import_model(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="A Marian model for transformers: config.json, model.safetensors, ...")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="New model directory.")],
    src_lang: Annotated[str | None, typer.Option(help="Source language (default: from tokenizer_config.json).")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Target language (default: from tokenizer_config.json).")] = None,
) -> None:
    """Convert a Marian model for transformers (such as Helsinki-NLP's) to a model directory.

    Weights must be in model.safetensors; pytorch_model.bin is a pickle, which can run code, and is never read.
    """
    imported = import_marian(source, out, src_lang, tgt_lang)
    parameters = sum(tensor.numel() for tensor in imported.tensors.values())
    sizes = f"{imported.metadata.src_vocab_size:,} and {imported.metadata.tgt_vocab_size:,}"
    say(f"{parameters:,} parameters, vocabularies of {sizes} tokens")
    typer.echo(out)
