"""Rules of fine-tuning, without training: added tokens, frozen parameters and differences from the initial model."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt.errors import RecipeError, UserError
from nmt.models import build_model
from nmt.recipe import DecodeRecipe, ModelRecipe, Recipe, parse_recipe, revalidate
from nmt.recipe.context import Context
from nmt.storage.model_metadata import ModelMetadata
from nmt.train import warm_start
from nmt.train.warm_start import (
    _added_rows,
    _differences,
    _may_have_trained,
    _with_alignments_of,
    _with_new_tokens,
    freeze,
    text_differences,
    with_start_model,
)

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}


def model_of(vocab: int, **options: Any) -> Any:
    return build_model(ModelRecipe.model_validate(SIZES | options), vocab, vocab)


@pytest.mark.parametrize("tied", ["three-way", "none"])
def test_new_tokens_get_the_mean_of_the_others(tied: str) -> None:
    small, large = model_of(20, tied_embeddings=tied), model_of(22, tied_embeddings=tied)
    tensors = {name: torch.randn_like(parameter) for name, parameter in small.named_parameters()}
    found = _with_new_tokens(large, dict(tensors))
    for name, parameter in large.named_parameters():
        assert found[name].shape == parameter.shape
        assert torch.equal(found[name][: len(tensors[name])], tensors[name])
        for row in found[name][len(tensors[name]) :]:
            assert torch.allclose(row, tensors[name].mean(dim=0))


@pytest.mark.parametrize("tied", ["three-way", "none"])
def test_learned_positions_are_not_tokens(tied: str) -> None:
    model = model_of(20, tied_embeddings=tied, positions="learned", max_positions=64)
    for vocab, has_added in ((20, False), (18, True)):
        start: Any = SimpleNamespace(src_vocab_size=vocab, tgt_vocab_size=vocab)
        added = _added_rows(model, start)
        assert bool(added) is has_added
        assert not any(name.endswith("positions") for name in added)


def test_patterns_name_parts_of_the_model() -> None:
    for pattern, expected in (
        ("embeddings", {"src_embedding.weight", "tgt_embedding.weight", "output.weight"}),
        ("encoder", {"encoder."}),
        ("decoder", {"decoder."}),
    ):
        model = model_of(20, tied_embeddings="none")
        freeze(model, (pattern,))
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad is not any(name.startswith(prefix) for prefix in expected), name
    for tied in ("three-way", "none"):
        model = model_of(20, tied_embeddings=tied)
        with pytest.raises(UserError, match="leaves no parameters to train"):
            freeze(model, ("*",))
        assert all(parameter.requires_grad for parameter in model.parameters())
        with pytest.raises(UserError, match=r"'encoders' matches no parameter; it must be encoder, decoder"):
            freeze(model, ("encoders",))


def test_only_options_without_parameters_may_differ() -> None:
    for positions, expected in (
        ("sinusoidal", ""),
        ("learned", "model.max_positions is 512 in the initial model and 9 in the recipe"),
    ):
        start = ModelRecipe.model_validate(SIZES | {"positions": positions, "max_positions": 512})
        changed = {"dropout": 0.3, "attention_dropout": 0.3, "activation_dropout": 0.3, "max_positions": 9}
        found = _differences(start, start.model_copy(update=changed))
        assert found == expected
    found = _differences(start, start.model_copy(update={"num_heads": 4, "d_ff": 16}))
    assert "model.num_heads is 2 in the initial model and 4 in the recipe" in found and "model.d_ff is 8" in found


def test_alignments_come_from_the_initial_model_unless_the_recipe_chooses() -> None:
    start = DecodeRecipe(alignment_layer=1, alignment_heads=(3,), alignment_at="input", beam_size=9)
    assert _with_alignments_of(start, DecodeRecipe(beam_size=2)) == start.model_copy(update={"beam_size": 2})
    for chosen in ({"alignment_layer": 0}, {"alignment_heads": (0,)}, {"alignment_at": "output"}):
        decode = DecodeRecipe.model_validate(chosen)
        assert _with_alignments_of(start, decode) == decode


TUNED = """
name = "tuned"
src_lang = "en"
tgt_lang = "de"
data = { train = [{ kind = "toy" }], valid = [{ kind = "toy", split = "valid" }] }
train = { start_from = "start" }
"""


def test_guided_alignment_trains_the_head_of_the_initial_model_unless_the_recipe_chooses() -> None:
    start = DecodeRecipe(alignment_layer=1, alignment_heads=(3,), alignment_at="input")
    guided = parse_recipe(TUNED, ["train.guided_alignment=true"]).decode
    assert guided.alignment_heads == (0,)  # without an initial model
    found = _with_alignments_of(start, guided)
    assert (found.alignment_layer, found.alignment_heads, found.alignment_at) == (1, (3,), "input")
    chosen = parse_recipe(TUNED, ["train.guided_alignment=true", "decode.alignment_heads=[0]"]).decode
    assert _with_alignments_of(start, chosen) == chosen


@pytest.mark.parametrize(
    ("overrides", "model"),
    [
        (["decode.alignments=true", "decode.alignment_layer=8"], "num_decoder_layers=12"),
        (["decode.alignments=true", "decode.alignment_heads=[12]"], "num_heads=16"),
        (["data.max_tokens=1_500"], "max_positions=2_048"),
        (["tokenizer.joint=false"], "tied_embeddings=decoder"),
    ],
)
def test_options_are_compared_with_the_architecture_of_the_initial_model(overrides: list[str], model: str) -> None:
    recipe = parse_recipe(TUNED, overrides)  # the architecture is not known yet
    with pytest.raises(RecipeError):
        revalidate(recipe)
    assert revalidate(parse_recipe(TUNED, [*overrides, f"model.{model}"])).train.start_from == Path("start")
    with pytest.raises(RecipeError):
        parse_recipe(TUNED, [*overrides, "train.start_from="])


def test_a_dropout_option_of_the_other_architecture_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gru = ModelRecipe(architecture="gru", d_model=8)
    monkeypatch.setattr(warm_start, "_read_start", lambda *_: (gru, DecodeRecipe()))
    with pytest.raises(RecipeError) as raised:
        with_start_model(parse_recipe(TUNED, ["model.attention_dropout=0.1"]))
    assert str(raised.value).startswith("train.start_from start: model.attention_dropout has no effect on architecture")


def test_a_language_model_with_two_tokenizers_can_be_fine_tuned() -> None:
    """It reuses the tokenizers of a translation model."""
    corpora = "[{kind = 'monolingual', path = 'text'}]"
    overrides = ["src_lang=zxx", f"data.train={corpora}", f"data.valid={corpora}", "model.tied_embeddings=decoder"]
    recipe = parse_recipe(TUNED, [*overrides, "tokenizer.joint=false"])
    assert revalidate(recipe).is_language_model
    with pytest.raises(RecipeError, match=r"tokenizer\.joint is false; a language model has one language"):
        parse_recipe(TUNED, [*overrides, "tokenizer.joint=false", "train.start_from="])


@pytest.mark.parametrize("algorithm", ["bpe", "char"])
def test_a_vocabulary_size_may_be_that_before_symbols_were_added(algorithm: str) -> None:
    """301 tokens with one symbol; characters may be fewer than `vocab_size`."""
    tokenizers: Any = SimpleNamespace(tgt=SimpleNamespace(vocab_size=301, user_symbols=lambda: ["<x>"]))
    reused = {"algorithm": algorithm, "vocab_size": 301}
    found = [_may_have_trained(size, tokenizers, reused) for size in (None, 299, 300, 301, 302)]
    assert found == [False, False, True, True, algorithm == "char"]


def test_other_text_than_that_of_the_initial_model_is_described(
    tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = tiny_recipe.data.unicode_form
    (corpus,) = tiny_recipe.data.train

    def with_data(**data: Any) -> Recipe:
        return tiny_recipe.model_copy(update={"data": tiny_recipe.data.model_copy(update=data)})

    def with_corpus(**options: Any) -> Recipe:
        return with_data(train=(corpus.model_copy(update=options),))

    with_context, french, tagged = with_data(context=1), with_corpus(tgt_lang="fr"), with_corpus(tag="<c>")
    order = "data.reverse_target: True in the initial model and False in the recipe"
    both: dict[str, Any] = {
        "trained_directions": ("en to de", "en to fr"),
        "tags": {"<a>": "en to de", "<b>": "en to fr"},
    }
    cases: list[tuple[dict[str, Any], Recipe, str]] = [
        ({}, tiny_recipe, ""),
        ({}, with_context, ""),  # the initial model need not have used context
        ({"context": Context(1, "source")}, with_context, ""),
        (
            {"context": Context(1, "source")},
            tiny_recipe,
            "data.context: 1 in the initial model and 0 in the recipe",
        ),
        (
            {"context": Context(1, "both")},
            with_context,
            "data.context_sides: both in the initial model and source in the recipe",
        ),
        ({"tgt_lang": "fr"}, tiny_recipe, "languages: en to fr in the initial model and en to de in the recipe"),
        ({}, french, "languages: en to de in the initial model and en to fr in the recipe"),
        ({"tgt_lang": "fr"}, french, ""),
        ({"trained_directions": both["trained_directions"]}, french, ""),
        ({"reverse_target": True}, tiny_recipe, order),
        ({}, tagged, ""),
        (both, tagged, ""),
        (both, tiny_recipe, "tags of data.train: <a>, <b> in the initial model and none in the recipe"),
    ]
    for changes, recipe, expected in cases:
        metadata = replace(ModelMetadata("en", "de", 20, 20, form, DecodeRecipe()), **changes)
        monkeypatch.setattr(warm_start, "read_model_metadata", lambda _, metadata=metadata: metadata)
        assert text_differences(Path("start"), recipe) == expected
