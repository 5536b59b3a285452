"""Searches with CTranslate2 that reach the maximum length find the translations of nmt's own search."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nmt.checkpoint import load_model, model_files
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.export.engine import CTranslate2Translator
from nmt.grammar import ToyPair
from nmt.recipe import DecodeRecipe
from nmt.special_ids import BOS_ID, PAD_ID, UNK_ID
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers
from tests.export.conftest import MakeModel
from tests.extras import import_ctranslate2

import_ctranslate2()

BEAM_SIZE = 4


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    """A model that often repeats words up to the maximum length: in 12 (seed 2) and 28 (seed 5) of 30 lines.

    PAD, UNK and BOS are improbable, as in trained models: CTranslate2 excludes them before it computes probabilities.
    """
    directory = make_model(output_bias=True, seed=request.param)
    loaded, tokenizers = load_model(directory, torch.device("cpu")), Tokenizers.load(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["output.bias"][[PAD_ID, UNK_ID, BOS_ID]] = -60.0
    files = model_files(loaded.model.recipe, tensors, tokenizers.files(), loaded.metadata)
    changed = directory.parent / "repeats"
    write_directory(changed, files)
    return changed


def texts(n_best_lists: list[list[Translation]]) -> list[list[str]]:
    return [[translation.text for translation in n_best] for n_best in n_best_lists]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "n_best"), [(2, 1), (5, BEAM_SIZE)], indirect=["model"])
@pytest.mark.parametrize(
    "decode",
    [
        {"length_alpha": 1.0},
        {"length_penalty": "none"},
        {"length_penalty": "gnmt", "length_alpha": 0.6},
        {"stop": "patience", "patience": 1.5},
        {"max_extra_tokens": 0},
    ],
    ids=str,
)
def test_engines_agree_at_the_maximum_length(
    decode: dict[str, object], n_best: int, model: Path, lines: list[str]
) -> None:
    options = {"length_penalty": "power", "max_extra_tokens": 8, "beam_size": BEAM_SIZE, "n_best": n_best} | decode
    recipe = DecodeRecipe.model_validate(options).all_given()
    expected = Translator.load(model, "cpu", "fp32", recipe).translate_n_best(lines)
    tokenizer = Tokenizers.load(model).src
    limits = [len(tokenizer.encode(line)) + recipe.max_extra_tokens for line in lines]
    at_limit = [len(best.pieces) == limit for (best, *_), limit in zip(expected, limits, strict=True)]
    assert sum(at_limit) >= 10
    for scores in (True, False):
        translator = CTranslate2Translator.load(model, "cpu", "fp32", recipe, scores=scores)
        assert texts(translator.translate_n_best(lines)) == texts(expected)


PREFIXED: list[tuple[int, int, str, dict[str, object]]] = [
    (2, 4, "Julia ist", {"beam_size": 4, "length_penalty": "power", "length_alpha": 1.0, "max_extra_tokens": 0}),
    *(
        (2, line, prefix, {"beam_size": 5, "stop": "patience", "patience": 1.4, "max_extra_tokens": 3})
        for line, prefix in ((4, "Julia ist letzten"), (7, "Wird eine"), (9, "Julia will neun"), (10, "Du hast"))
    ),
    (5, 5, "Obwohl eine Frau", {"beam_size": 5, "stop": "patience", "patience": 1.4, "max_extra_tokens": 8}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "line", "prefix", "decode"), PREFIXED, indirect=["model"])
def test_long_outputs_with_a_prefix_are_not_dropped(
    line: int, prefix: str, decode: dict[str, object], model: Path, pairs: list[ToyPair]
) -> None:
    """If more hypotheses end than it returns, CTranslate2 drops some by scores that exclude the prefix."""
    options = {"length_penalty": "gnmt", "length_alpha": 0.6, "n_best": decode["beam_size"]} | decode
    recipe = DecodeRecipe.model_validate(options).all_given()
    ours, theirs = (
        engine.load(model, "cpu", "fp32", recipe).translate_n_best([pairs[line].src], prefixes=[prefix])
        for engine in (Translator, CTranslate2Translator)
    )
    assert texts(theirs) == texts(ours)
