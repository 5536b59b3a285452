"""Translations that rounding may change, found by translating with randomly perturbed weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from nmt.checkpoint import load_model, model_files
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers

# Relative change of each weight. It changes log-probabilities by about 1e-4; a different summation order, by 1e-6.
PERTURBATION = 2e-5
NUM_COPIES = 4


def perturbed_copies(model: Path, folder: Path) -> list[Path]:
    """Write copies of a model with randomly perturbed weights."""
    loaded, tokenizers = load_model(model, torch.device("cpu")), Tokenizers.load(model)
    random = torch.Generator().manual_seed(0)
    copies = []
    for number in range(NUM_COPIES):
        tensors = {
            name: weight * (1 + PERTURBATION * torch.randn(weight.shape, generator=random))
            for name, weight in load_file(loaded.directory / "model.safetensors").items()
        }
        copies.append(folder / f"perturbed-{number}")
        write_directory(copies[-1], model_files(loaded.model.recipe, tensors, tokenizers.files(), loaded.metadata))
    return copies


def stable_lines(
    copies: list[Path], decode: DecodeRecipe, lines: list[str], prefixes: list[str] | None = None
) -> list[int]:
    """Return the indices of the lines that all copies translate identically; fail if they are under 80% of all."""
    pieces_of_copies = []
    for copy in copies:
        n_best_lists = Translator.load(copy, "cpu", "fp32", decode).translate_n_best(lines, prefixes=prefixes)
        pieces_of_copies.append([best.pieces for best, *_ in n_best_lists])
    first, *others = pieces_of_copies
    stable = [i for i in range(len(lines)) if all(pieces[i] == first[i] for pieces in others)]
    assert len(stable) >= 0.8 * len(lines)
    return stable
