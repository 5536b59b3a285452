"""Which translations rounding may change: those that weights changed by a little change."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from nmt.checkpoint import load_model, model_files
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers

# Of each weight, relatively. Rounding to float32 is 6e-8 of a number; sums in another order change log probabilities by
# about 1e-6, and this changes them by about 1e-4.
CHANGE = 2e-5
COPIES = 4


def changed_copies(model: Path, folder: Path) -> list[Path]:
    """Copies of a model, the weights of each changed at random."""
    loaded, tokenizers = load_model(model, torch.device("cpu")), Tokenizers.load(model)
    random = torch.Generator().manual_seed(0)
    copies = []
    for number in range(COPIES):
        tensors = {
            name: weight * (1 + CHANGE * torch.randn(weight.shape, generator=random))
            for name, weight in load_file(loaded.directory / "model.safetensors").items()
        }
        copies.append(folder / f"changed-{number}")
        write_directory(copies[-1], model_files(loaded.model.recipe, tensors, tokenizers.files(), loaded.facts))
    return copies


def decided_lines(
    copies: list[Path], decode: DecodeRecipe, lines: list[str], prefixes: list[str] | None = None
) -> list[int]:
    """Numbers of the lines that all copies of a model translate alike, so that rounding does not decide.

    Most lines must be; a test that compares only these would otherwise compare nothing.
    """
    found = [
        [
            best.pieces
            for best, *_ in Translator.load(copy, "cpu", "fp32", decode).translate_n_best(lines, prefixes=prefixes)
        ]
        for copy in copies
    ]
    decided = [number for number, pieces in enumerate(zip(*found, strict=True)) if all(p == pieces[0] for p in pieces)]
    assert len(decided) >= 0.8 * len(lines)
    return decided
