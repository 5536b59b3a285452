"""The Python interface of a classifier, with random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmt.classify.model import Classifier
from nmt.classify.text_classifier import ClassifierMetadata, TextClassifier
from nmt.recipe import ModelRecipe, TokenizerRecipe
from nmt.storage.description import read_description
from nmt.storage.sealed import CorruptError
from nmt.text.tokenizer import Tokenizer, train_tokenizer


def test_invalid_values_of_a_description_are_an_error(tmp_path: Path) -> None:
    valid = 'format = 1\nlabels = ["good", "bad"]\ntexts = 1\nunicode_form = "NFC"\nmax_tokens = 20\n[model]\n'
    path = tmp_path / "classifier.toml"
    path.write_text(valid)
    read_description(path, ClassifierMetadata)
    for old, new in (("texts = 1", "texts = 3"), ("max_tokens = 20", "max_tokens = 'x'"), ('["good", "bad"]', "2")):
        path.write_text(valid.replace(old, new))
        key = new.partition(" ")[0] if "=" in new else "labels"
        with pytest.raises(
            CorruptError, match=f"classifier.toml is not a valid model description: {key} = [^\n]*; copy"
        ):
            read_description(path, ClassifierMetadata)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    return train_tokenizer(["a dog sees a cat", "the cat sleeps"] * 9, TokenizerRecipe(vocab_size=300), path)


def make_classifier(tokenizer: Tokenizer, num_texts: int) -> TextClassifier:
    recipe = ModelRecipe(d_model=16, d_ff=32, num_heads=2, num_encoder_layers=1)
    torch.manual_seed(1)
    model = Classifier(recipe, tokenizer.vocab_size, 2)
    metadata = ClassifierMetadata(
        labels=("good", "bad"), texts=num_texts, unicode_form="NFC", max_tokens=20, model=recipe
    )
    return TextClassifier(model, tokenizer, metadata, torch.device("cpu"), "fp32")


def test_examples_are_tuples_or_lists(tokenizer: Tokenizer) -> None:
    classifier: Any = make_classifier(tokenizer, 1)
    expected = classifier.probabilities([("a dog",), ("",)])
    assert expected.shape == (2, 2)
    assert np.array_equal(classifier.probabilities((["a dog"], [""])), expected)
    assert make_classifier(tokenizer, 2).probabilities([("a dog", "a cat")]).shape == (1, 2)
    assert classifier.probabilities([]).shape == (0, 2)


def test_an_unknown_precision_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision must be one of auto, fp32, bf16, fp16, got 'int8'"):
        TextClassifier.load(tmp_path, "cpu", "int8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_texts", "examples", "expected"),
    [
        (1, "abc", "examples must be a list of tuples of strings, got str; use [(text,)]"),
        (2, {"a": "b"}, "examples must be a list of tuples of strings, got dict; use [(source, target)]"),
        (1, (("a",) for _ in "b"), "examples must be a list of tuples of strings, got generator; use [(text,)]"),
        (1, ["a dog"], "example 1 must be a tuple of strings, got str; use [(text,)]"),
        (2, [("a", "b"), "ab"], "example 2 must be a tuple of strings, got str; use [(source, target)]"),
        (1, [(5,)], "example 1 must be a tuple of strings, got a tuple with int; use [(text,)]"),
        (2, [["a", None]], "example 1 must be a tuple of strings, got a list with NoneType; use [(source, target)]"),
    ],
)
def test_other_types_are_an_error(tokenizer: Tokenizer, num_texts: int, examples: Any, expected: str) -> None:
    with pytest.raises(TypeError) as raised:
        make_classifier(tokenizer, num_texts).probabilities(examples)
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    ("num_texts", "examples", "expected"),
    [
        (1, [("a", "b")], "example 1 has 2 texts, but the classifier needs 1; use [(text,)]"),
        (1, [("a",), ()], "example 2 has 0 texts, but the classifier needs 1; use [(text,)]"),
        (2, [("a",)], "example 1 has 1 text, but the classifier needs 2; use [(source, target)]"),
    ],
)
def test_a_wrong_number_of_texts_is_an_error(
    tokenizer: Tokenizer, num_texts: int, examples: Any, expected: str
) -> None:
    with pytest.raises(ValueError) as raised:
        make_classifier(tokenizer, num_texts).probabilities(examples)
    assert str(raised.value) == expected
