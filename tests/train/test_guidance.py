"""Guided alignment: the loss against plain loops in float64, and whole runs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention
from nmt.data.loader import make_batch, pack_links
from nmt.data.store import PairStore, PairWriter, SideStore
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.models import TranslationModel
from nmt.packing.packed import Batch, BatchShape
from nmt.recipe import ModelRecipe, Recipe, parse_recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.train.compilation import compile_layers
from nmt.train.guidance import Guidance
from nmt.train.loss import TrainingLoss
from nmt.train.state import require_same_run
from tests.train.run_tiny import final_files, metrics, train_in_processes, train_tiny, with_train, without_dropout

VOCAB = 40
# Pairs of the batch, in a different order from the store, to test offsets.
ORDER = [2, 0, 1]
PAIRS = [([7, 8, 9], [11, 12]), ([5], [13, 14, 15]), ([6, 6, 4, 9, 10], [4, 5, 6, 7])]
# (source, target) positions; the first target token of the last pair has three links, others have one or none.
LINKS = [[(0, 0), (2, 1)], [(0, 1)], [(0, 0), (1, 0), (4, 0), (3, 2)]]


def store_pairs(directory: Path, pairs: Any = PAIRS, links: Any = LINKS) -> tuple[PairStore, SideStore]:
    with PairWriter(directory, "train", {"src": np.dtype("u2"), "tgt": np.dtype("u2"), "links": np.dtype("u4")}) as new:
        for side, index in (("src", 0), ("tgt", 1)):
            sentences = [np.array(pair[index]) for pair in pairs]
            new.append(side, np.concatenate(sentences), np.array(list(map(len, sentences))))  # type: ignore[arg-type]
        packed = [pack_links(np.array(own, dtype=np.int64).reshape(-1, 2)) for own in links]
        new.append("links", np.concatenate(packed), np.array(list(map(len, packed))))
    return PairStore(directory, "train"), SideStore(directory, "train", "links")


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    store, links = store_pairs(tmp_path)
    return make_batch(store, np.array(ORDER), links)


def make_loss(at: Any = "output", rdrop: float = 0.0, **options: Any) -> TrainingLoss:
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1}
    torch.manual_seed(3)
    model = Transformer(ModelRecipe(**sizes | {"num_decoder_layers": 2, "dropout": 0.0} | options), VOCAB, VOCAB)
    return TrainingLoss(model.double(), 0.1, rdrop, Guidance(AlignmentAttention(1, (1,), at), 0.3)).train()


def loss_by_loops(model: TranslationModel, batch: Batch, at: str) -> Tensor:
    """Cross-entropy of the second head of the second layer, from the weights that `nmt align` uses."""
    weights = list(model.cross_attention(batch.src, batch.tgt))[1][:, 1]  # (num_sentences, tgt_len, src_len)
    loss = weights.new_zeros(())
    for sentence, pair in enumerate(ORDER):
        for source, target in LINKS[pair]:
            probability = 1 / sum(other == target for _, other in LINKS[pair])
            loss = loss - probability * weights[sentence, target + (at == "input"), source].log()
    return loss


def gradients(loss: Tensor, model: TranslationModel) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("at", ["output", "input"])
@pytest.mark.parametrize("options", [{}, {"norm_order": "pre", "d_head": 12}], ids=["post", "pre"])
def test_loss_and_gradient_equal_those_of_plain_loops(batch: Batch, at: str, options: dict[str, Any]) -> None:
    loss = make_loss(at, **options)
    plain = TrainingLoss(loss.model, 0.1).train()
    value, nll = loss(batch)
    assert not any(module._forward_pre_hooks for module in loss.modules()), "a hook would keep its inputs in memory"
    translation, plain_nll = plain(batch)
    expected = translation + 0.3 * loss_by_loops(loss.model, batch, at)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    assert torch.equal(nll, plain_nll)
    torch.testing.assert_close(gradients(value, loss.model), gradients(expected, loss.model), rtol=1e-9, atol=1e-12)


def test_rdrop_averages_both_passes(batch: Batch) -> None:
    loss = make_loss(rdrop=2.0)
    plain = TrainingLoss(loss.model, 0.1, 2.0).train()
    expected = plain(batch)[0] + 0.3 * loss_by_loops(loss.model, batch, "output")  # both passes are the same
    torch.testing.assert_close(loss(batch)[0], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "padded",
    [lambda batch: batch.pad_to_multiple(16), lambda batch: batch.pad_to_shape(BatchShape(20, 24, 6, 8))],
    ids=["multiple", "shape"],
)
def test_padding_does_not_change_the_loss(batch: Batch, padded: Any) -> None:
    loss = make_loss()
    longer = padded(batch)
    assert longer.src.total > batch.src.total
    torch.testing.assert_close(loss(longer), loss(batch), rtol=1e-12, atol=0)
    values = (gradients(loss(one)[0], loss.model) for one in (longer, batch))
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-12)


def test_activation_checkpointing_gives_the_same_bits_with_attention_dropout(batch: Batch) -> None:
    """The recomputed layers sample the same masks; guidance uses the weights before dropout."""
    results = []
    for checkpointing in (False, True):
        loss = make_loss(dropout=0.3, attention_dropout=0.5)
        loss.model.use_activation_checkpointing(checkpointing)
        torch.manual_seed(1)
        value = loss(batch)[0]
        results.append([value, *gradients(value, loss.model)])
    assert all(torch.equal(*both) for both in zip(*results, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_have_the_same_loss(batch: Batch, checkpointing: bool) -> None:
    plain, compiled = make_loss(), make_loss()
    compiled.model.use_activation_checkpointing(checkpointing)
    compile_layers(compiled.model, compiled.guidance, backend="eager")
    values = [loss(batch)[0] for loss in (plain, compiled)]
    torch.testing.assert_close(values[1], values[0], rtol=1e-12, atol=0)
    grads = (gradients(value, loss.model) for value, loss in zip(values, (plain, compiled), strict=True))
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)


def test_links_count_in_training_only(batch: Batch) -> None:
    loss = make_loss()
    plain = TrainingLoss(loss.model, 0.1)
    assert torch.equal(loss.eval()(batch)[0], plain.eval()(batch)[0])
    no_links = Batch(batch.src, batch.tgt, batch.labels)
    assert torch.equal(loss.train()(no_links)[0], plain.train()(no_links)[0])


def test_links_of_a_batch_are_packed(batch: Batch) -> None:
    assert batch.links is not None
    found = list(zip(batch.links.tgt.tolist(), batch.links.src.tolist(), batch.links.counts.tolist(), strict=True))
    assert found[:4] == [(0, 0, 3), (0, 1, 3), (0, 4, 3), (2, 3, 1)]
    assert found[4:] == [(5, 6, 1), (6, 8, 1), (9, 10, 1)]  # sources have 6, 4 and 2 tokens with EOS
    assert batch.labels[6] == 12 and batch.src.tokens[8] == 9
    twice = batch.links.repeated(batch.tgt.total, batch.src.total)
    again = batch.repeated()
    assert again.labels is batch.labels
    half = len(twice.tgt) // 2
    assert torch.equal(again.src.tokens[twice.src[half:]], batch.src.tokens[batch.links.src])
    assert twice.counts.tolist() == [2 * count for count in batch.links.counts.tolist()] * 2


def test_links_are_packed_up_to_the_limits_of_their_format() -> None:
    assert pack_links(np.array([[65535, 65535], [1, 0]])).tolist() == [2**32 - 1, 2**16]


# --- Runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def linked_data(tiny_data: Path, tmp_path: Path) -> Path:
    """The tiny data, in which target token j translates source token n - 1 - j."""
    directory = tmp_path / "linked"
    directory.mkdir()
    for path in tiny_data.iterdir():
        (directory / path.name).symlink_to(path)
    lengths = PairStore(tiny_data, "train").src.lengths
    with PairWriter(directory, "train", {"links": np.dtype("u4")}) as writer:
        for length in lengths.tolist():
            positions = np.arange(length)
            writer.append(
                "links", pack_links(np.stack([length - 1 - positions, positions], axis=1)), np.array([length])
            )
    return directory


def guided(recipe: Recipe, run_dir: Path, **options: Any) -> Recipe:
    return with_train(recipe, run_dir, guided_alignment=True, **options)


@pytest.mark.slow
def test_a_run_resumes_exactly(tiny_recipe: Recipe, linked_data: Path, tmp_path: Path) -> None:
    recipe = guided(tiny_recipe, tmp_path / "run", activation_checkpointing=True, max_steps=12)
    train_tiny(recipe, linked_data)
    files, losses = final_files(recipe), metrics(recipe, "train/loss")
    shutil.rmtree(list_checkpoints(recipe.directory)[-1])
    train_tiny(recipe, linked_data)
    assert final_files(recipe) == files
    assert metrics(recipe, "train/loss") == losses


@pytest.mark.slow
def test_two_processes_train_the_same_model(tiny_recipe: Recipe, linked_data: Path, tmp_path: Path) -> None:
    one = guided(without_dropout(tiny_recipe, tmp_path), tmp_path / "one", max_steps=6, micro_batches=2)
    two = guided(without_dropout(tiny_recipe, tmp_path), tmp_path / "two", max_steps=6, micro_batches=2)
    train_tiny(one, linked_data)
    train_in_processes(two, linked_data, 2)
    assert metrics(two, "train/loss") == pytest.approx(metrics(one, "train/loss"), rel=1e-5)


# --- Options ----------------------------------------------------------------------------------------------------------

RECIPE = """
name = "guided"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy" }]
valid = [{ kind = "toy", split = "valid" }]
[train]
guided_alignment = true
"""


def test_the_guided_head_aligns_by_default() -> None:
    recipe = parse_recipe(RECIPE)
    assert recipe.decode.alignment_heads == (0,)
    guidance = Guidance.from_recipe(recipe)
    assert guidance == Guidance(AlignmentAttention(4, (0,), "output"), 0.1)
    other = parse_recipe(
        RECIPE,
        [
            *("decode.alignment_layer=2", "decode.alignment_heads=[3]", "decode.alignment_at=input"),
            "train.guided_alignment_weight=0.5",
        ],
    )
    assert Guidance.from_recipe(other) == Guidance(AlignmentAttention(2, (3,), "input"), 0.5)
    plain = parse_recipe(RECIPE, ["train.guided_alignment=false"])
    assert plain.decode.alignment_heads == () and Guidance.from_recipe(plain) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["decode.alignment_heads=[0,1]"], "names 2 heads, but train.guided_alignment trains one"),
        (["train.subword_sampling=0.1"], "needs fixed tokens"),
        (
            [
                "src_lang=zxx",
                "data.train=[{kind='monolingual', path='a'}]",
                "data.valid=[{kind='monolingual', path='a'}]",
            ],
            "a language model has none; set it to false",
        ),
        (["train.guided_alignment=false", "train.guided_alignment_weight=0.5"], "has no effect without guided"),
        (["data.valid=[{kind='toy', alignment='links'}]"], "alignment has no effect; only training corpora"),
        (["data.max_tokens=70000", "model.max_positions=70001", "train.micro_batch_tokens=80000"], "at most 65535"),
    ],
)
def test_wrong_options(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_recipe(RECIPE, overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_head_of_a_run_cannot_change(tiny_recipe: Recipe, linked_data: Path, tmp_path: Path) -> None:
    recipe = guided(tiny_recipe, tmp_path / "run", max_steps=6)
    train_tiny(recipe, linked_data)
    decode = recipe.decode.model_copy(update={"alignment_heads": (1,)})
    require_same_run(guided(recipe, recipe.directory, guided_alignment_weight=0.2))
    with pytest.raises(UserError, match=r"decode.alignment_heads is \[1\], was \[0\]"):
        require_same_run(recipe.model_copy(update={"decode": decode}))
    with pytest.raises(UserError, match=r"train\.guided_alignment is False, was True"):
        require_same_run(with_train(recipe, guided_alignment=False))
