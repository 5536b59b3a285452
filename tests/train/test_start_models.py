"""Training that starts from another model."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import read_tensors
from nmt.models import build_model
from nmt.recipe import ModelRecipe, load_recipe, load_saved_recipe
from nmt.storage.model_metadata import read_model_recipe
from nmt.storage.run_folder import find_model, list_checkpoints
from nmt.text.tokenizer import Tokenizers
from nmt.train.state import require_same_run
from nmt.train.warm_start import freeze, with_start_model
from tests.calling import Nmt, one_line
from tests.train.small_run import RECIPE, flip_a_bit
from tests.train.small_run import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.slow
def test_a_start_model_of_another_architecture_is_an_early_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    gru = "model={architecture='gru', d_model=16, num_encoder_layers=1, num_decoder_layers=1}"
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'gru'}", gru)
    assert status == 0, err
    transformer = "model={d_model=16, d_ff=32, num_encoder_layers=1, num_decoder_layers=1}"
    options = (f"run_dir={tmp_path / 'run'}", transformer, f"train.start_from={tmp_path / 'gru'}")
    status, _, err = nmt("train", recipe, *options)
    assert status == 1
    assert "model.d_ff is 2048 in the initial model and 32 in the recipe; they must be equal" in one_line(err)


@pytest.mark.parametrize(
    ("tied", "pattern", "frozen"),
    [
        ("three-way", "src_embedding.*", (True, True, True)),
        ("three-way", "*embedding*", (True, True, True)),
        ("decoder", "*embedding*", (True, True, True)),
        ("decoder", "tgt_embedding.*", (False, True, True)),
        ("decoder", "src_embedding.*", (True, False, False)),
    ],
)
def test_patterns_match_tied_embeddings_by_each_name(tied: str, pattern: str, frozen: tuple[bool, ...]) -> None:
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    recipe = ModelRecipe.model_validate({**sizes, "positions": "learned", "tied_embeddings": tied})
    model = build_model(recipe, 20, 20)
    freeze(model, (pattern,))
    names = ("src_embedding.weight", "tgt_embedding.weight", "output.weight")
    assert tuple(not model.get_parameter(name).requires_grad for name in names) == frozen


@pytest.mark.slow
def test_fine_tuning_reuses_the_architecture_of_the_initial_model(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, tuned = tmp_path / "first", tmp_path / "tuned"
    assert nmt("train", recipe, f"run_dir={first}", "decode.alignment_heads=[0]")[0] == 0
    plain = tmp_path / "plain.toml"
    plain.write_text(RECIPE.replace("FOLDER", str(tmp_path)))  # no model section, whose defaults are the base model
    start = f"train.start_from={first}"
    status, _, err = nmt("train", plain, f"run_dir={tuned}", start, "model.dropout=0.3", "tokenizer.vocab_size=5_000")
    assert status == 0, err
    assert f"the tokenizer of {first} is reused, so these options have no effect: tokenizer.vocab_size = 5000;" in err
    assert load_saved_recipe(tuned / "recipe.toml").tokenizer.vocab_size == 300
    found, expected = (read_model_recipe(list_checkpoints(run)[-1]) for run in (tuned, first))
    assert found == expected.model_copy(update={"dropout": 0.3})
    resumed_recipe = with_start_model(load_recipe(plain, [f"run_dir={tuned}", start, "model.dropout=0.3"]))
    assert resumed_recipe.decode.alignment_heads == (0,)
    of_earlier_version = resumed_recipe.tokenizer.model_copy(update={"vocab_size": 5_000})
    require_same_run(resumed_recipe.model_copy(update={"tokenizer": of_earlier_version}))
    entries = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    assert entries[0]["step"] == 0 and "valid/nll" in entries[0]
    assert nmt("train", plain, f"run_dir={tuned}", start, "model.dropout=0.3", "train.max_steps=4")[0] == 0

    moved = tmp_path / "moved"
    shutil.copytree(first, moved)
    of_moved = ("train", plain, f"run_dir={tuned}", f"train.start_from={moved}", "model.dropout=0.3")
    status, _, err = nmt(*of_moved, "train.max_steps=4")
    assert status == 0, err  # the same model at another path
    shutil.rmtree(moved)
    status, _, err = nmt(*of_moved, "train.max_steps=4")
    assert status != 0 and "train.start_from" in err

    damaged = list_checkpoints(tuned)[-1] / "model.toml"
    damaged.write_text("damaged")
    resumed = ("train", plain, f"run_dir={tuned}", start, "model.dropout=0.3", "train.max_steps=4")
    status, _, err = nmt(*resumed)
    assert status == 0, err
    assert "set aside as corrupt-step-00000004" in err

    status, _, err = nmt("train", plain, f"run_dir={tmp_path / 'other'}", start, "model.d_model=32")
    assert status != 0
    assert "model.d_model is 16 in the initial model and 32 in the recipe" in err
    assert not (tmp_path / "other").exists()

    status, _, err = nmt("train", plain, f"run_dir={tmp_path / 'other'}", start, "decode.tag=<web>")
    assert status == 1 and "tag '<web>' is unknown to the tokenizer; this model has no tags" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), [("prepare", "tokenizer.start_from"), ("train", "train.start_from")])
def test_options_of_a_reused_tokenizer_that_have_no_effect_are_named_once(
    command: str, option: str, recipe: Path, tmp_path: Path, nmt: Nmt
) -> None:
    first, tuned = tmp_path / "first", tmp_path / "tuned"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    start = (f"run_dir={tuned}", f"{option}={first}")
    chosen = ("tokenizer.character_coverage=0.99", "tokenizer.algorithm=char", "tokenizer.user_symbols=['<q>']")
    status, _, err = nmt(command, recipe, *start, *chosen, "tokenizer.training_pairs=5")
    assert status == 0, err
    overridden = 'tokenizer.algorithm = "char", tokenizer.character_coverage = 0.99'
    warning = f"warning: the tokenizer of {first} is reused, so these options have no effect: {overridden}, "
    assert err.count(f"{warning}tokenizer.training_pairs = 5; remove") == 1, err
    if command == "train":
        saved = load_saved_recipe(tuned / "recipe.toml").tokenizer
        assert (saved.algorithm, saved.character_coverage, saved.user_symbols) == ("bpe", 1.0, ("<q>",))
        assert saved.vocab_size == 301
    piece = next(piece for piece in Tokenizers.load(tuned / "data").src.all_pieces[260:] if piece.isalpha())
    symbols = f"tokenizer.user_symbols=['<q>', '{piece}']"
    err = nmt("prepare", recipe, f"run_dir={tmp_path / 'symbols'}", start[1], symbols)[2]
    assert f'no effect: tokenizer.user_symbols = ["{piece}"] (already ordinary tokens); remove them' in err
    file = tuned / "data" / "tokenizer.model"
    err = nmt("train", recipe, f"run_dir={tmp_path / 'file'}", f"train.start_from={file}", *chosen)[2]
    assert f"{file} is a file; expected a model directory" in one_line(err) and "have no effect" not in err
    status, _, err = nmt("train", recipe, *start, "tokenizer.user_symbols=['<q>']", "train.max_steps=4")
    assert status == 0 and "have no effect" not in err, err
    if command == "train":
        status, _, err = nmt("train", recipe, *start, "train.max_steps=4")
        assert status != 0 and "tokenizer.user_symbols is" in err


@pytest.mark.slow
def test_a_new_tag_starts_as_the_mean_of_the_other_tokens(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, tuned = tmp_path / "first", tmp_path / "tuned"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    start = ("train", recipe, f"run_dir={tuned}", f"train.start_from={first}", "tokenizer.user_symbols=['<new>']")
    status, _, err = nmt(*start, "train.start_optimizer=kept")
    assert status == 1 and "must have the same vocabulary; set start_optimizer to 'fresh'" in one_line(err)
    status, _, err = nmt(*start, "train.freeze=['embeddings']")
    assert status == 1 and "train.freeze includes the source embeddings, and tags or other symbols of the recipe" in err
    assert "remove the embeddings from train.freeze" in one_line(err) and not tuned.exists()
    other = f"run_dir={tmp_path / 'other'}"
    assert nmt(*start[:2], other, *start[3:], "train.freeze=['encoder']")[0] == 0
    status, _, err = nmt(*start, "train.learning_rate=1e-12", "train.warmup_steps=1")
    assert status == 0, err
    old, new = (read_tensors(list_checkpoints(run)[-1] / "model.safetensors") for run in (first, tuned))
    for name, tensor in old.items():
        found = new[name]
        if found.shape != tensor.shape:
            assert len(found) == len(tensor) + 1
            assert torch.allclose(found[-1], tensor.mean(dim=0), atol=1e-6)
        assert torch.allclose(found[: len(tensor)], tensor, atol=1e-6)
    shutil.rmtree(first)
    assert nmt(*start, "train.learning_rate=1e-12", "train.warmup_steps=1", "train.max_steps=4")[0] == 0
    assert Tokenizers.load(find_model(tuned)).src.tag_id("<new>") == 300
    again = (*start[:2], f"run_dir={tmp_path / 'again'}", f"train.start_from={tuned}", "tokenizer.vocab_size=300")
    status, _, err = nmt(*again)  # the size before `<new>` was added
    assert status == 0 and "have no effect" not in err, err


@pytest.mark.slow
def test_an_unusable_start_model_is_an_early_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    first, run = tmp_path / "first", tmp_path / "run"
    assert nmt("train", recipe, f"run_dir={first}")[0] == 0
    (saved,) = list_checkpoints(first)
    assert nmt("average", first, "--last", 1, "-o", tmp_path / "model")[0] == 0
    flip_a_bit(saved / "model.safetensors")
    messages = {first: "model.safetensors is missing or corrupt", tmp_path / "model": "has no optimizer state"}
    for start, message in messages.items():
        start_from = f"train.start_from={start}"
        status, _, err = nmt("train", recipe, f"run_dir={run}", start_from, "train.start_optimizer=kept")
        assert status == 1
        assert message in err.splitlines()[-1]
        assert not run.exists()
