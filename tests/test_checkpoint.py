"""Sealed directories, damaged files, and models."""

import errno
import hashlib
import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.checkpoint import (
    Checkpoint,
    load_model,
    load_tensors,
    model_files,
    model_tensors,
    newest_checkpoint,
    prune_checkpoints,
    read_tensors,
    remove_leftovers,
    save_checkpoint,
)
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.models import build_model
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.storage import sealed
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata
from nmt.storage.run_folder import list_checkpoints
from nmt.storage.sealed import CorruptError, link_or_copy, new_directory, verify_directory, write_directory, write_file
from nmt.train.state import TrainState

CPU = torch.device("cpu")
FILES = {"weights": b"12345678", "state": b"{}"}
TINY = ModelRecipe(d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_positions=16)
METADATA = ModelMetadata("en", "de", 11, 11, "NFC", DecodeRecipe(beam_size=3), {"recipe": "tiny", "step": 7})


def write_model(directory: Path, seed: int) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(TINY, 11, 11).eval()
    write_directory(directory, model_files(TINY, model_tensors(model), {"tokenizer.model": b"pieces"}, METADATA))
    return model


def write_run(run: Path, steps: list[int]) -> None:
    for step in steps:
        torch.manual_seed(step)
        model = Transformer(TINY, 11, 11)
        files = model_files(TINY, model_tensors(model), {"tokenizer.model": b"pieces"}, METADATA)
        state = Checkpoint(model_tensors(model), {"exp_avg/x": torch.ones(3)}, {}, {"step": step})
        save_checkpoint(run, step, state, files, "name = 'x'\n")


# --- Models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tying", ["three-way", "decoder", "none"])
def test_a_loaded_model_equals_the_saved_one(tmp_path: Path, tying: str) -> None:
    torch.manual_seed(1)
    recipe = TINY.model_copy(update={"tied_embeddings": tying})
    model = Transformer(recipe, 11, 11).eval()
    write_directory(tmp_path / "m", model_files(recipe, model_tensors(model), {"tokenizer.model": b"t"}, METADATA))
    loaded = load_model(tmp_path / "m", CPU)
    src, tgt = PackedSequences.from_lists([[4, 5, 3]]), PackedSequences.from_lists([[2, 6]])
    assert torch.equal(loaded.model(src, tgt), model(src, tgt))
    assert loaded.model.num_parameters() == model.num_parameters()
    assert loaded.metadata == METADATA
    assert (tmp_path / "m" / "tokenizer.model").read_bytes() == b"t"
    saved = model_tensors(model)
    torch.nn.init.zeros_(model.output.weight)
    assert saved["output.weight"].any(), "must be a copy: later updates run while the checkpoint is written"


@pytest.mark.parametrize(
    "recipe",
    [
        TINY,
        TINY.model_copy(update={"positions": "learned"}),
        TINY.model_copy(update={"positions": "relative"}),
        ModelRecipe(architecture="gru", d_model=8),
    ],
    ids=["sinusoidal", "learned", "relative", "gru"],
)
def test_loading_draws_no_random_numbers(tmp_path: Path, recipe: ModelRecipe) -> None:
    """Initializing a base model takes half a second, and loading must not change the state of a seeded generator."""
    model = build_model(recipe, 11, 11)
    write_directory(tmp_path / "m", model_files(recipe, model_tensors(model), {"tokenizer.model": b"t"}, METADATA))
    before = torch.get_rng_state()
    loaded = load_model(tmp_path / "m", CPU).model
    assert torch.equal(torch.get_rng_state(), before)
    for (name, parameter), (_, saved) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(parameter, saved), name
    for (name, buffer), (_, built) in zip(loaded.named_buffers(), model.named_buffers(), strict=True):
        assert torch.equal(buffer, built), name


@pytest.mark.parametrize(("value", "warnings"), [("0.0", 0), ("0.2", 1)])
def test_a_model_with_a_removed_option_loads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], value: str, warnings: int
) -> None:
    write_model(tmp_path / "new", seed=1)
    names = ("model.safetensors", "model.toml", "tokenizer.model")
    files = {name: (tmp_path / "new" / name).read_bytes() for name in names}
    old = files["model.toml"].replace(b"[decode]\n", b"[decode]\ncoverage_penalty = %s\n" % value.encode())
    assert old != files["model.toml"]
    write_directory(tmp_path / "old", files | {"model.toml": old})
    for _ in range(2):
        assert load_model(tmp_path / "old", CPU).metadata == METADATA
    lines = [line for line in capfd.readouterr().err.splitlines() if "coverage_penalty" in line]
    assert len(lines) == warnings, "expected one warning for two loads, and none if the option had no effect"


def test_a_model_with_renamed_options_loads(tmp_path: Path) -> None:
    write_model(tmp_path / "new", seed=1)
    path = tmp_path / "old" / "model.toml"
    path.parent.mkdir()
    text = (tmp_path / "new" / "model.toml").read_text()
    path.write_text(text.replace("alignment_at", "alignment_place").replace("mbr_metric", "bayes_risk"))
    assert path.read_text() != text
    assert read_model_metadata(path.parent) == METADATA


def test_all_mismatched_weights_are_listed(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", 1)
    tensors = model_tensors(model)
    tensors["extra"] = torch.zeros(1)
    del tensors["decoder.layers.0.attention.qkv.bias"]
    tensors["output.weight"] = torch.zeros(3, 8)
    with pytest.raises(UserError) as caught:
        load_tensors(model, tensors)
    for part in ("extra is unknown", "decoder.layers.0.attention.qkv.bias is missing", "must be (11, 8)"):
        assert part in str(caught.value)


def as_in_earlier_versions(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a tensor as earlier versions saved it: q, k and v separately, and `output_weight` for `output.weight`."""
    owner, _, kind = name.rpartition(".")
    if "." not in owner:
        return {f"{owner}_{kind}": tensor}
    if not owner.endswith((".attention.qkv", ".cross_attention.kv")):
        return {name: tensor}
    attention, _, letters = owner.rpartition(".")
    parts = tensor.chunk(len(letters))
    return {f"{attention}.{letter}.{kind}": part for letter, part in zip(letters, parts, strict=True)}


def test_weights_and_moments_of_earlier_versions_are_fused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", 1)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    own = model_tensors(model)
    older: dict[str, Tensor] = {}
    for name, tensor in own.items():
        older |= as_in_earlier_versions(name, tensor)
    older |= {f"exp_avg/{name}": 2 * tensor for name, tensor in older.items()}
    older["step/decoder.layers.0.attention.q.bias"] = torch.tensor(7.0)
    assert {"output_weight", "decoder.layers.0.cross_attention.v.weight"} < older.keys()
    save_file({name: tensor.contiguous() for name, tensor in older.items()}, tmp_path / "older.safetensors")
    found = read_tensors(tmp_path / "older.safetensors")
    assert found.pop("step/decoder.layers.0.attention.qkv.bias") == 7.0
    assert found.keys() == own.keys() | {f"exp_avg/{name}" for name in own}
    for name, tensor in own.items():
        assert torch.equal(found[name], tensor) and torch.equal(found[f"exp_avg/{name}"], 2 * tensor)


# --- Damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_flipped_bits_and_truncations_are_detected(tmp_path: Path) -> None:
    write_run(tmp_path, [3])
    (directory,) = list_checkpoints(tmp_path)
    verify_directory(directory)
    generator = torch.Generator().manual_seed(0)
    for file in sorted(directory.iterdir()):
        content = file.read_bytes()
        for _ in range(15):
            index = int(torch.randint(len(content), (), generator=generator))
            flipped = bytearray(content)
            flipped[index] ^= 1 << int(torch.randint(8, (), generator=generator))
            for damaged in (bytes(flipped), content[:index]):
                file.write_bytes(damaged)
                with pytest.raises(CorruptError):
                    verify_directory(directory)
        file.unlink()
        with pytest.raises(CorruptError):
            verify_directory(directory)
        file.write_bytes(content)
    verify_directory(directory)


def test_a_checkpoint_that_training_removes_is_not_called_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, [3])
    (directory,) = list_checkpoints(tmp_path)

    def remove_after_reading(path: Path) -> str:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.rmtree(directory, ignore_errors=True)
        return digest

    monkeypatch.setattr(sealed, "file_sha256", remove_after_reading)
    with pytest.raises(CorruptError, match="was removed while it was read; training removes old checkpoints"):
        verify_directory(directory)
    with pytest.raises(CorruptError, match="was removed while it was read"):
        read_tensors(directory / "model.safetensors")


def test_the_newest_intact_checkpoint_is_used_and_the_corrupt_one_renamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, [1, 2])
    (tmp_path / "checkpoints" / "step-00000002" / "optimizer.safetensors").write_bytes(b"")
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found[1].state == {"step": 1}
    assert (tmp_path / "checkpoints" / "corrupt-step-00000002").is_dir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    (tmp_path / "checkpoints" / "step-00000001" / "optimizer.safetensors").write_bytes(b"")
    assert newest_checkpoint(tmp_path) is None
    messages = capsys.readouterr().err.splitlines()
    assert all(message.startswith("warning: ") and "optimizer.safetensors" in message for message in messages)
    assert [message.rpartition("; ")[2] for message in messages] == [
        "using the previous checkpoint",
        "no other checkpoint is left",
    ]


class MaliciousPickle:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", ["model.safetensors", "model.toml", "manifest.json"])
def test_a_pickle_in_place_of_a_file_is_an_error_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m", 1)
    (tmp_path / "m" / name).write_bytes(pickle.dumps(MaliciousPickle()))
    if name != "manifest.json":  # an attacker can forge the manifest
        files = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir() if path.name != "manifest.json"}
        write_directory(tmp_path / "evil", files)
        with pytest.raises(CorruptError):
            load_model(tmp_path / "evil", CPU)
    with pytest.raises(CorruptError):
        load_model(tmp_path / "m", CPU)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("failing_write", [1, 2, 3, 4])
def test_a_full_disk_is_an_error_and_leaves_no_partial_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_write: int
) -> None:
    write_run(tmp_path, [1])
    write_synced, written = sealed.write_synced, list[Path]()

    def write(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) == failing_write:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_synced(path, data)

    monkeypatch.setattr(sealed, "write_synced", write)
    with pytest.raises(UserError, match="disk is full"):
        write_run(tmp_path, [2])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    verify_directory(list_checkpoints(tmp_path)[0])


def test_an_existing_model_is_not_overwritten(tmp_path: Path) -> None:
    write_model(tmp_path / "m", 1)
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="already exists"):
        write_model(tmp_path / "m", 2)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before


def test_an_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot write"):
        write_model(tmp_path / "file" / "m", 1)


def test_single_files_are_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "file"
    with pytest.raises(UserError, match=r"cannot write .*No such file or directory;"):
        write_file(path, b"")
    path.parent.mkdir()
    write_file(path, b"first")
    write_file(path, b"second")
    assert path.read_bytes() == b"second"
    with pytest.raises(UserError, match=r"cannot write .*;"):
        write_file(path / "below", b"")

    def fill_disk(path: Path, data: bytes, replaces: Path | None = None) -> None:
        path.write_bytes(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sealed, "write_synced", fill_disk)
    with pytest.raises(UserError, match="disk is full"):
        write_file(path, b"third")
    assert [(one.name, one.read_bytes()) for one in path.parent.iterdir()] == [("file", b"second")]


class Killed(BaseException):
    """Simulates SIGKILL: no cleanup code runs."""


def test_replacing_a_checkpoint_is_crash_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt before each rename and after the last: exactly the old or the new checkpoint must be intact."""
    real, found = Path.rename, []
    for renames in range(3):
        run = tmp_path / str(renames)
        write_run(run, [1, 2])
        (run / "checkpoints" / "step-00000002").rename(run / "checkpoints" / "step-00000001x")
        shutil.rmtree(run / "checkpoints" / "step-00000001")
        (run / "checkpoints" / "step-00000001x").rename(run / "checkpoints" / "step-00000001")
        done: list[Path] = []

        def rename(path: Path, target: Path, done: list[Path] = done, limit: int = renames) -> Path:
            if len(done) == limit:
                raise Killed
            done.append(path)
            return real(path, target)

        with monkeypatch.context() as patched, suppress(Killed):
            patched.setattr(Path, "rename", rename)
            patched.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None)
            write_run(run, [1])
        remove_leftovers(run)
        newest = newest_checkpoint(run)
        assert newest is not None
        found.append(newest[1].state["step"])
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]
    assert found == [2, 2, 1]  # the original checkpoint is from step 2


def test_incomplete_models_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    for name in (".model.part-7", ".model.old-7", "model"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_replacing_a_checkpoint_removes_no_other_files(tmp_path: Path) -> None:
    write_run(tmp_path, [1])
    notes = tmp_path / "checkpoints" / "step-00000001" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(UserError, match=r"notes.txt is not part of the model and would be lost"):
        write_run(tmp_path, [1])
    assert notes.read_text() == "mine"


def test_a_model_remains_until_its_replacement_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_directory(tmp_path / "m", FILES)
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if ".part-" in path.name:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(UserError, match="Directory not empty"):
            write_directory(tmp_path / "m", {"weights": b"new"}, replaces=True)
    assert verify_directory(tmp_path / "m").keys() == FILES.keys()
    write_directory(tmp_path / "m", {"weights": b"new"}, replaces=True)
    assert (tmp_path / "m" / "weights").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_damaged_manifest_does_not_allow_other_files_to_be_removed(tmp_path: Path) -> None:
    write_model(tmp_path / "m", 1)
    (tmp_path / "m" / "manifest.json").write_bytes(b"")
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.tex is not part of the model and would be lost"):
        write_directory(tmp_path / "m", FILES, replaces=True)
    (tmp_path / "m" / "thesis.tex").unlink()
    write_directory(tmp_path / "m", FILES, replaces=True)
    assert verify_directory(tmp_path / "m").keys() == FILES.keys()


def test_an_interruption_right_after_creation_removes_the_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Path.mkdir

    def interrupted(path: Path, parents: bool) -> None:
        create(path, parents=parents)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", interrupted)
        with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "data"):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "state",
    [
        *(b"\x80\x04N.", b"[1]", b'{"of": "another version"}', b'{"changes": null}', b'{"step": "ten"}'),
        *(b'{"changes": [{"of": "another"}]}', b'{"scores": {"10": []}}'),
    ],
)
def test_an_unreadable_state_is_an_error(tmp_path: Path, state: bytes) -> None:
    (tmp_path / "state.json").write_bytes(state)
    with pytest.raises(UserError, match=r"state\.json"):
        TrainState.load(tmp_path)


def test_a_model_among_the_checkpoints_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, [1])
    model = tmp_path / "checkpoints" / "step-00000002"
    write_model(model, 1)
    with pytest.raises(UserError, match="step-00000002 is a model without training state; move it out"):
        newest_checkpoint(tmp_path)
    assert model.is_dir()


def test_a_folder_without_a_step_is_not_a_checkpoint(tmp_path: Path) -> None:
    write_run(tmp_path, [1])
    (tmp_path / "checkpoints" / "step-original").mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]


def test_pruning_keeps_the_last_and_the_listed(tmp_path: Path) -> None:
    write_run(tmp_path, [1, 2, 3, 4, 5])
    prune_checkpoints(tmp_path, keep_last=2, keep_steps=[1])
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["1", "4", "5"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_a_relative_link_is_not_linked_as_such(tmp_path: Path) -> None:
    (tmp_path / "array").write_text("1 2 3")
    (tmp_path / "link").symlink_to("array")
    (tmp_path / "folder").mkdir()
    link_or_copy(tmp_path / "link", tmp_path / "folder" / "copy")
    assert (tmp_path / "folder" / "copy").read_text() == "1 2 3"
