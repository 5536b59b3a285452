"""Right-to-left models against left-to-right models with the same weights and reversed text."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt.alignment.attention import WordAligner
from nmt.bench.random_model import numbered_word_tokenizers
from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.decode.scoring import TextScorer, score_pairs
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.search.hypothesis import in_reading_order
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt

LINES = ["w1 w2 w3 w4 w5 w6", "", "w7 w8 w9", "w10 w4 w11 w7 w4 w1 w8 w3 w12 w4 w11 w7"]
DECODE = DecodeRecipe(beam_size=3, n_best=2, max_extra_tokens=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two model directories with the same weights, one left-to-right and one right-to-left."""
    folder, tokenizers = tmp_path_factory.mktemp("right-to-left"), numbered_word_tokenizers(320)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2}
    recipe = ModelRecipe.model_validate(sizes | {"max_positions": 64})
    model = Transformer(recipe, 320, 320)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    for reverse in (False, True):
        metadata = ModelMetadata("en", "de", 320, 320, "NFC", DECODE, reverse_target=reverse)
        files = model_files(recipe, model_tensors(model), tokenizers.files(), metadata)
        write_directory(folder / str(reverse), files)
    return folder / "False", folder / "True"


def test_metadata_has_the_direction_and_old_models_load(models: tuple[Path, Path], tmp_path: Path) -> None:
    assert [read_model_metadata(model).reverse_target for model in models] == [False, True]
    text = (models[0] / "model.toml").read_text()
    (tmp_path / "model.toml").write_text(text.replace("reverse_target = false\n", ""))
    assert "reverse_target" not in (tmp_path / "model.toml").read_text()
    assert not read_model_metadata(tmp_path).reverse_target


@pytest.mark.slow
def test_text_is_in_reading_order(models: tuple[Path, Path]) -> None:
    forwards, backwards = (Translator.load(model, "cpu", "fp32").translate_n_best(LINES) for model in models)
    tokenizer = Tokenizers.load(models[0]).tgt
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(320)))}
    for expected_list, found_list in zip(forwards, backwards, strict=True):
        assert [found.log_prob for found in found_list] == [expected.log_prob for expected in expected_list]
        for expected, found in zip(expected_list, found_list, strict=True):
            assert found.pieces == expected.pieces[::-1]
            *log_probs, end = expected.token_log_probs or [0.0]
            assert (found.token_log_probs or [0.0]) == [*log_probs[::-1], end]
            assert found.text.split() == tokenizer.decode([ids[piece] for piece in found.pieces]).split()
    assert any(len(translations[0].pieces) > 3 for translations in forwards)


@pytest.mark.slow
def test_streamed_text_is_in_reading_order(models: tuple[Path, Path]) -> None:
    translator = Translator.load(models[1], "cpu", "fp32", DecodeRecipe(beam_size=1, n_best=1))
    for line in filter(None, LINES):
        texts: list[str] = []
        (final,) = translator.with_callback(texts.append).translate([line])
        assert len(texts) > 2
        assert all(final.endswith(text.lstrip()) for text in texts)
        assert texts[-1] == final


def test_scores_equal_those_of_reversed_targets(models: tuple[Path, Path]) -> None:
    sources, targets = LINES, ["w7 w8 w4 w1 w3", "w10", "", "w12 w2 w4"]
    tokenizer = Tokenizers.load(models[0]).tgt
    reversed_ids = [tokenizer.encode(target)[::-1] for target in targets]
    batch = Batch(
        src=PackedSequences.from_lists([[*tokenizer.encode(source), EOS_ID] for source in sources]),
        tgt=PackedSequences.from_lists([[BOS_ID, *ids] for ids in reversed_ids]),
        labels=PackedSequences.from_lists([[*ids, EOS_ID] for ids in reversed_ids]).tokens,
    )
    expected = score_pairs(load_model(models[0], torch.device("cpu")).model, batch)
    found = TextScorer.load(models[1], "cpu").score(sources, targets)
    for one, other, ids in zip(found, expected, reversed_ids, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-6)
        assert one.pieces == [*tokenizer.pieces(ids[::-1]), "</s>"]
        assert one.token_log_probs[-1] == other.token_log_probs[-1]
        assert one.token_log_probs[:-1] == other.token_log_probs[:-1][::-1]
    in_order = TextScorer.load(models[0], "cpu").score(sources, targets)
    assert abs(in_order[0].log_prob - found[0].log_prob) > 1e-3


def test_search_and_scorer_agree(models: tuple[Path, Path]) -> None:
    ((found,),) = Translator.load(models[1], "cpu", "fp32").translate_n_best(LINES[2:3], n_best=1)
    (scored,) = TextScorer.load(models[1], "cpu").score(LINES[2:3], [found.text])
    assert scored.token_log_probs == pytest.approx(found.token_log_probs, rel=1e-4)


def test_alignment_uses_reading_order(models: tuple[Path, Path]) -> None:
    forwards, backwards = (WordAligner.load(model, "cpu") for model in models)
    pair = forwards.encoder.encode("w1 w2 w3", "w7 w13 w8 w4")
    (found,) = backwards.maps([pair])
    (expected,) = forwards.maps([(pair[0], pair[1][::-1])])
    np.testing.assert_array_equal(found, expected[:, :, :, ::-1])


@pytest.mark.slow
def test_constraints_are_reversed_and_prefixes_rejected(models: tuple[Path, Path]) -> None:
    decode = DECODE.model_copy(update={"no_repeat_ngram": 1})
    plain = Translator.load(models[1], "cpu", "fp32", decode)
    first, second, *_ = plain.translate(LINES[3:])[0].split()
    forbidding = plain.with_decode(DecodeRecipe(forbid=(f"{first} {second}",)))
    assert (first, second) not in pairwise(forbidding.translate(LINES[3:])[0].split())
    (required,) = plain.translate(LINES[3:], required=[[f"{second} {first}"]])
    assert (second, first) in pairwise(required.split())
    with pytest.raises(UserError, match="from right to left"):
        plain.translate(["a"], prefixes=["w1"])
    assert plain.translate([""], prefixes=[""]) == [""]
    assert plain.translate(LINES[2:3], prefixes=["\r"]) == plain.translate(LINES[2:3])  # of a blank line with CRLF


def test_ensembles_of_both_directions_are_rejected(models: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="opposite directions"):
        Translator.load(models[0], "cpu", ensemble=[models[1]])


def test_reading_order_keeps_eos_last_and_needs_no_scores() -> None:
    assert in_reading_order([-1.0, -2.0, -3.0]) == [-2.0, -1.0, -3.0]
    assert in_reading_order([-1.0]) == [-1.0]
    assert in_reading_order([]) == []  # CTranslate2 without scores


def test_prefixes_are_rejected_before_any_line(models: tuple[Path, Path], nmt: Nmt, tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"text": "w1"}\n{"text": "w1", "prefix": "w2"}\n')
    code, out, err = nmt("translate", models[1], lines, "--window", 1, "--device", "cpu")
    assert (code, out) == (1, "")
    assert "the model decodes from right to left; prefixes need a left-to-right model; remove the prefixes" in err
