"""Pruned models against models with masks, and the pairs that measure heads."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt.alignment.attention import AlignmentAttention
from nmt.checkpoint import LoadedModel, load_model, model_files, model_tensors
from nmt.heads.importance import nll_without
from nmt.heads.masks import AttentionId, Head, HeadMasks, all_heads
from nmt.heads.pairs import Pairs
from nmt.heads.pruning import most_important, prune, write_pruned
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, TokenizerRecipe
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.heads.test_importance import CPU, POSITIONS, batches, random_model

VALUES = [0.3, 0.1, 0.2]


def kept_heads(model: Transformer, kept: int, encoder: int = 0) -> dict[AttentionId, list[int]]:
    """Choose heads to keep, different ones in each attention layer."""
    importance = {
        head: VALUES[(head.index + head.attention.layer + len(head.attention.kind)) % 3] for head in all_heads(model)
    }
    return most_important(importance, encoder or kept, kept)


def test_most_important_heads_are_kept_in_order() -> None:
    first, second = AttentionId("cross", 0), AttentionId("encoder", 1)
    importance = {Head(first, 0): 2.0, Head(first, 1): 1.0, Head(first, 2): 3.0}
    importance |= {Head(second, 1): 1.0, Head(second, 0): 1.0, Head(second, 2): 0.0}
    assert most_important(importance, 2, 2) == {first: [0, 2], second: [0, 1]}
    assert most_important(importance, 1, 2) == {first: [0, 2], second: [0]}
    assert most_important(importance, 2, 1) == {first: [2], second: [0, 1]}


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "encoder"), [(1, 1), (2, 2), (2, 1), (1, 3)])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_pruned_model_equals_the_masked_model(positions: str, kept: int, encoder: int) -> None:
    model = random_model(positions=positions, tied_embeddings="decoder", output_bias=True)
    keep = kept_heads(model, kept, encoder)
    removed = [head for head in all_heads(model) if head.index not in keep[head.attention]]
    pruned = prune(model, keep)
    assert (pruned.recipe.encoder_heads, pruned.recipe.num_heads, pruned.recipe.head_width) == (encoder, kept, 4)
    assert pruned.num_parameters() < model.num_parameters()
    masked = copy.deepcopy(model)
    (expected,) = nll_without(masked, HeadMasks(masked), batches(), [removed])
    (found,) = nll_without(pruned, HeadMasks(pruned), batches(), [[]])
    assert found == pytest.approx(expected, rel=1e-6)  # parameters of the pruned model are float32
    src, bos = PackedSequences.from_lists([[5, 6, EOS_ID], [7, EOS_ID]]), torch.full((2, 1), BOS_ID)
    with torch.inference_mode(), HeadMasks(model).removed(removed):
        log_probs = model.step(bos, model.start(src, 1))
        torch.testing.assert_close(pruned.step(bos, pruned.start(src, 1)), log_probs.float(), atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    options = TokenizerRecipe(vocab_size=280, user_symbols=("<web>",))
    tokenizer = train_tokenizer(["a cat sees a dog"] * 20, options, folder / "tokenizer.model")
    tokenizers = Tokenizers(tokenizer, tokenizer)
    torch.manual_seed(0)
    recipe = random_model().recipe
    model = Transformer(recipe, tokenizer.vocab_size, tokenizer.vocab_size)
    decode = DecodeRecipe(alignment_layer=1, alignment_heads=(0, 2))
    metadata = ModelMetadata("en", "de", tokenizer.vocab_size, tokenizer.vocab_size, "NFC", decode, origin={"seed": 1})
    write_directory(folder / "model", model_files(recipe, model_tensors(model), tokenizers.files(), metadata))
    return load_model(folder / "model", CPU)


def test_pairs_are_measured_in_the_order_of_the_model(loaded: LoadedModel) -> None:
    tokenizers = Tokenizers.load(loaded.directory, "de")
    source, target = tokenizers.src.encode("a cat"), tokenizers.tgt.encode("a dog sees")
    metadata = replace(loaded.metadata, decode=DecodeRecipe(tag="<web>"), reverse_target=True)
    found = Pairs.encode(replace(loaded, metadata=metadata), tokenizers, ["a cat"], ["a dog sees"])
    tagged = [tokenizers.src.tag_id("<web>"), *source]
    assert len(target) > 1
    assert found == Pairs([tagged], [target[::-1]], tag_length=1, reverse_target=True)


@pytest.mark.parametrize(("cross", "heads"), [([1, 2], (1,)), ([0, 2], (0, 1)), ([0, 1], (0,))])
def test_heads_for_alignments_are_renumbered(
    loaded: LoadedModel, tmp_path: Path, cross: list[int], heads: tuple[int, ...]
) -> None:
    keep = kept_heads(loaded.transformer, 2) | {AttentionId("cross", 1): cross}
    written = write_pruned(loaded, keep, tmp_path / "pruned")
    found = load_model(tmp_path / "pruned", CPU)
    assert found.metadata.decode.alignment_heads == heads
    assert AlignmentAttention.from_recipe(found.metadata.decode, found.model.recipe) == AlignmentAttention(1, heads)
    assert found.metadata.origin["kept_heads"]["cross"][1] == cross
    assert found.metadata.origin["seed"] == 1
    for name, tensor in model_tensors(found.model).items():
        assert torch.equal(tensor, model_tensors(written)[name])


def test_alignments_use_all_heads_if_theirs_are_removed(
    loaded: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = kept_heads(loaded.transformer, 1) | {AttentionId("cross", 1): [1]}
    write_pruned(loaded, keep, tmp_path / "pruned")
    assert load_model(tmp_path / "pruned", CPU).metadata.decode.alignment_heads == ()
    err = capsys.readouterr().err
    assert "warning: heads 0, 2 of decoder layer 1 aligned words" in err
    assert "alignments now use all heads of that layer" in err


def test_a_removed_head_for_alignments_is_named(
    loaded: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = kept_heads(loaded.transformer, 2)
    write_pruned(loaded, keep | {AttentionId("cross", 1): [1, 2]}, tmp_path / "without-0")
    err = capsys.readouterr().err
    assert "head 0 of decoder layer 1 aligned words" in err
    assert "the remaining ones of decode.alignment_heads" in err
    write_pruned(loaded, keep | {AttentionId("cross", 1): [0, 2]}, tmp_path / "without-1")
    assert capsys.readouterr().err == ""
