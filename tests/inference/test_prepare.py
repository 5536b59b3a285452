"""Models prepared for search."""

import os
import subprocess
import sys

import pytest
import torch

NUM_SHAPES = 200
SHAPES_TWICE = f"""
import torch
from nmt.inference.prepacked import PrepackedLinear
from nmt.inference.prepare import prepare_for_search
from nmt.models import build_model
from nmt.recipe import ModelRecipe

recipe = ModelRecipe(d_model=16, d_ff=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
[model] = prepare_for_search([build_model(recipe, 20, 20)], "fp32", torch.device("cpu"))
layer = next(module for module in model._model.modules() if isinstance(module, PrepackedLinear))
for rows in [*range(1, {NUM_SHAPES} + 1)] * 2:
    layer(torch.zeros(rows, 16))
"""


def compiled_kernels(environment: dict[str, str]) -> int:
    """Count the kernels that oneDNN compiles for a layer and `NUM_SHAPES` batch sizes, each of which occurs twice."""
    inherited = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    command = [sys.executable, "-c", SHAPES_TWICE]
    verbose = inherited | {"OMP_NUM_THREADS": "1", "ONEDNN_VERBOSE": "profile_create"} | environment
    shown = subprocess.run(command, env=verbose, capture_output=True, text=True, check=True).stdout
    return shown.count("create:cache_miss")


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN")
def test_a_search_keeps_few_compiled_kernels() -> None:
    """Memory stays small, and users can change the number of kernels. Packing the weights compiles a few more."""
    assert compiled_kernels({}) > 2 * NUM_SHAPES  # none is kept until its shape occurs again
    assert NUM_SHAPES < compiled_kernels({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1000"}) < 1.5 * NUM_SHAPES  # all are
