"""Translators of model directories: batches, precisions and arguments."""

import copy
import pickle
import random
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import pytest
import torch

from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.decode.arguments import translator_inputs
from nmt.decode.glossary import Glossary, Term
from nmt.decode.scoring import TextScorer
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.inference.quantized import supports_int8
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, SearchPrecision
from nmt.search.ensemble import Ensemble
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers
from tests.decode.copy_model import CPU, nasty_lines, text_lines

needs_int8 = pytest.mark.skipif(not supports_int8(CPU), reason="this processor has no AVX-512-VNNI")


@pytest.fixture(scope="module")
def model_directory(tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    recipe = ModelRecipe.model_validate(sizes | {"max_positions": 48})
    vocab = tokenizers.src.vocab_size
    model = Transformer(recipe, vocab, vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    decode = DecodeRecipe(beam_size=2, n_best=2, max_extra_tokens=4)
    metadata = ModelMetadata("en", "de", vocab, vocab, "NFC", decode, max_tokens=30)
    directory = tmp_path_factory.mktemp("run") / "model"
    write_directory(directory, model_files(recipe, model_tensors(model), tokenizers.files(), metadata))
    return directory


@pytest.mark.slow
def test_results_do_not_depend_on_batching(model_directory: Path) -> None:
    lines = [line[:200] for line in nasty_lines()[:100]]
    outputs = []
    for batch_tokens in (150, 5_000):
        loaded = load_model(model_directory, CPU)
        translator = Translator(
            loaded.model.double(),  # float64 rounding is too small to change a decision
            Tokenizers.load(model_directory),
            DecodeRecipe(beam_size=2, max_extra_tokens=4, batch_tokens=batch_tokens),
            max_positions=48,
            unicode_form="NFC",
            device=CPU,
        )
        outputs.append(translator.translate(lines))
    assert len(outputs[0]) == 100
    assert all(len(out.splitlines()) <= 1 for out in outputs[0])
    assert len(set(outputs[0])) > 50
    assert outputs[0] == outputs[1]
    order = random.Random(0).sample(range(100), 30)
    assert translator.translate([lines[i] for i in order]) == [outputs[0][i] for i in order]
    assert translator.translate([lines[20]]) == [outputs[0][20]]


@pytest.mark.slow
def test_load_uses_the_models_recipe(model_directory: Path) -> None:
    translator = Translator.load(str(model_directory), device="cpu", precision="fp32")
    lines = text_lines(5)
    for translations in translator.translate_n_best(lines):
        assert len(translations) == 2  # n_best of the model's recipe
        assert translations[0].score >= translations[1].score
        assert all(translation.text and translation.pieces for translation in translations)
        for translation in translations:
            assert len(translation.token_log_probs) == len(translation.pieces) + 1
            assert sum(translation.token_log_probs) == pytest.approx(translation.log_prob)
    assert translator.translate(lines) == [translations[0].text for translations in translator.translate_n_best(lines)]
    greedy = Translator.load(model_directory, device="cpu", precision="fp32", decode=DecodeRecipe(beam_size=1))
    assert [len(translations) for translations in greedy.translate_n_best(lines)] == [1] * 5
    with pytest.raises(UserError, match=r"n_best must be between 1 and beam_size \(1\), got 2"):
        greedy.translate_n_best(lines, n_best=2)


@pytest.mark.slow
def test_results_do_not_depend_on_the_default_dtype(model_directory: Path) -> None:
    lines = text_lines(5)
    outputs = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            translator = Translator.load(model_directory, device="cpu", precision="fp32")
            translations = translator.translate_n_best(lines)
            scores = TextScorer.load(model_directory, "cpu").score(lines, lines)
        finally:
            torch.set_default_dtype(torch.float32)
        outputs.append((translations, scores))
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.slow
def test_load_splits_at_the_models_max_tokens(model_directory: Path, tokenizers: Tokenizers, tmp_path: Path) -> None:
    line = " ".join(text_lines(9))
    translator = Translator.load(model_directory, device="cpu")
    translator.translate([line, "the cat"])
    assert translator.lines_split == 1
    parts = [part.tokens for part in translator._split(line)]
    assert len(parts) > 1 and all(len(tokens) <= 30 for tokens in parts)
    assert list(chain(*parts)) == tokenizers.src.encode(line)
    old = tmp_path / "old"  # without max_tokens in its metadata; it has 48 positions
    files = {path.name: path.read_bytes() for path in model_directory.iterdir() if path.name != "manifest.json"}
    files["model.toml"] = files["model.toml"].replace(b"max_tokens = 30\n", b"")
    write_directory(old, files)
    assert any(len(part.tokens) > 30 for part in Translator.load(old, device="cpu")._split(line))


@pytest.mark.slow
def test_fp16_is_closer_to_fp32_than_bf16(model_directory: Path) -> None:
    """fp16 has 11 significant bits and bf16 has 8, so fp16 errors are an eighth of bf16's; a quarter is allowed."""
    lines = text_lines(40)
    precisions: tuple[SearchPrecision, ...] = ("fp32", "fp16", "bf16")
    exact, fp16, bf16 = (
        [best for (best,) in Translator.load(model_directory, "cpu", precision).translate_n_best(lines, 1)]
        for precision in precisions
    )

    def errors(reduced: list[Translation]) -> list[float]:
        """Return the errors of the log-probabilities of all tokens in equal translations."""
        return [
            abs(a - b)
            for one, other in zip(exact, reduced, strict=True)
            if one.text == other.text
            for a, b in zip(one.token_log_probs, other.token_log_probs, strict=True)
        ]

    assert 0 < mean(errors(fp16)) < mean(errors(bf16)) / 4
    same = [one.text == other.text for one, other in zip(exact, fp16, strict=True)]
    assert sum(same) >= 36  # random weights leave some undecided


@pytest.mark.slow
@pytest.mark.parametrize("reduced", ["bf16", pytest.param("int8", marks=needs_int8)])
def test_reduced_precision_is_close_to_fp32(model_directory: Path, reduced: Literal["bf16", "int8"]) -> None:
    scores = []
    precisions: tuple[SearchPrecision, ...] = ("fp32", reduced)
    for precision in precisions:
        translator = Translator.load(model_directory, device="cpu", precision=precision)
        scores.append([translations[0].score for translations in translator.translate_n_best(text_lines(20))])
    differences = (torch.tensor(scores[0]) - torch.tensor(scores[1])).abs()
    # About 0.01; scores are about -20. The median, because random weights leave some decisions to rounding.
    assert 0.0 < differences.median() < 0.1


@pytest.mark.slow
@needs_int8
def test_int8_results_do_not_depend_on_the_batch(model_directory: Path) -> None:
    translator = Translator.load(model_directory, device="cpu", precision="int8")
    lines = text_lines(12)
    together = translator.translate_n_best(lines)
    alone = [translator.translate_n_best([line])[0] for line in lines]
    assert [[one.text for one in found] for found in together] == [[one.text for one in found] for found in alone]
    for found, same in zip(together, alone, strict=True):
        assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in same], abs=1e-4)


def test_int8_is_rejected_without_vnni(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu._is_vnni_supported", lambda: False)
    with pytest.raises(
        UserError, match="int8 needs a CPU with AVX-512-VNNI; device cpu is not one; use --precision fp32 or bf16"
    ):
        Translator.load(model_directory, device="cpu", precision="int8")


def test_a_translator_is_neither_pickled_nor_deep_copied(model_directory: Path) -> None:
    translator = Translator.load(model_directory, "cpu")
    assert copy.copy(translator).translate(["ab"]) == translator.translate(["ab"])
    for function in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a Translator can be neither pickled nor deep-copied; load one in each"):
            function(translator)


def test_a_model_in_training_mode_is_an_error(model_directory: Path, tokenizers: Tokenizers) -> None:
    loaded = load_model(str(model_directory), "cpu")
    for model in (loaded.model.train(), Ensemble([loaded.model])):
        with pytest.raises(ValueError, match=r"in training mode, .*; call model\.eval\(\)"):
            Translator(
                model, tokenizers, DecodeRecipe(), max_positions=9, unicode_form="NFC", device=torch.device("cpu")
            )


class Labeled(list[Any]):
    """A list that is indexed by labels, like a pandas Series after sorting."""

    def __getitem__(self, label: Any) -> Any:
        return super().__getitem__(len(self) - 1 - label)


def test_arguments_are_matched_by_position() -> None:
    inputs = translator_inputs(
        Labeled(["a", "b"]),
        Labeled(["c", "d"]),
        Labeled([["e"], ["f"]]),
        glossary=Labeled([Glossary([Term("g", ("h",))]), None]),
        context=Labeled([["i"], []]),
    )
    assert [(one.text, one.prefix, one.required, one.context) for one in inputs] == [
        ("a", "c", ("e",), ("i",)),
        ("b", "d", ("f",), ()),
    ]
    assert inputs[0].glossary is not None and inputs[1].glossary is None


def test_a_missing_model_and_an_unknown_device_are_errors(tmp_path: Path, model_directory: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        Translator.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="device 'abacus' is unknown"):
        Translator.load(model_directory, device="abacus")
