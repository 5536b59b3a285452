"""`nmt shortlist` and `nmt translate --shortlist` as a user types them, with a prepared corpus and random weights."""

from pathlib import Path

import pytest
import torch

from nmt import Translator
from nmt.checkpoint import model_files, model_tensors, write_with_decode
from nmt.decode.shortlist import Shortlist
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, load_recipe
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, one_line
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 20 }]
""",
    name="tiny",
    vocab_size=600,
)
LINES = ["The woman buys a red car.", "", "The man sleeps.", "We work in the garden."]


@pytest.fixture
def run(tmp_path: Path, nmt: Nmt) -> Path:
    """A prepared run with a randomly initialized model, and its recipe beside it."""
    run = tmp_path / "run"
    (tmp_path / "tiny.toml").write_text(RECIPE + "[decode]\nmax_extra_tokens = 3\n", encoding="utf-8")
    status, _, err = nmt("prepare", tmp_path / "tiny.toml", f"run_dir={run}")
    assert status == 0, err
    torch.manual_seed(0)
    architecture = load_recipe(tmp_path / "tiny.toml").model
    model = Transformer(architecture, 600, 600)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    metadata = ModelMetadata("en", "de", 600, 600, "NFC", DecodeRecipe(max_extra_tokens=3))
    tokenizers = Tokenizers.load(run / "data")
    write_directory(run / "model", model_files(architecture, model_tensors(model), tokenizers.files(), metadata))
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return run


@pytest.mark.slow
def test_a_shortlist_is_created_and_used(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    path, source = tmp_path / "run list.safetensors", tmp_path / "in.txt"
    status, out, err = nmt("shortlist", run, "-o", path, "--best", 3, "--frequent", 5)
    assert (status, out) == (0, f"{path}\n")
    assert "of 600 target tokens" in err
    tokenizers = Tokenizers.load(run / "model")
    listed = Shortlist.load(path, tokenizers)
    assert len(listed.frequent) == 5
    assert max(listed.offsets[1:] - listed.offsets[:-1]) == 4  # three, and the piece itself

    _, plain, _ = nmt("translate", run, source)
    status, out, err = nmt("translate", run, source, "--shortlist", path)
    assert status == 0, err
    assert out.count("\n") == len(LINES)
    assert out != plain
    decode = read_model_metadata(run / "model").decode.model_copy(update={"shortlist": path})
    found = Translator.load(run, "cpu", decode=decode).translate_n_best(LINES)
    assert [best.text for best, *_ in found] == out.split("\n")[:-1]
    known = {piece: number for number, piece in enumerate(tokenizers.tgt.pieces(range(600)))}
    for line, (best, *_) in zip(LINES, found, strict=True):
        [own] = listed.candidates([tokenizers.src.encode(line)], [()])
        assert bool(own[[known[piece] for piece in best.pieces]].all())

    listed.save(tmp_path / "other", tokenizers, ("de", "en"))
    status, _, err = nmt("translate", run, source, "--shortlist", tmp_path / "other")
    assert (status, "other was made from a run that translates from de to en" in err) == (1, True)
    assert nmt("translate", run, source, "--set", f"shortlist={path}")[1] == out
    with_list = tmp_path / "with-list"
    write_with_decode(run / "model", decode, with_list)
    assert nmt("translate", with_list, source)[1] == out
    assert nmt("translate", with_list, source, "--shortlist", "")[1] == plain
    assert nmt("translate", run, source, "--shortlist", path, "--ensemble", run / "model")[1] == out
    status, aligned, err = nmt("translate", run, source, "--shortlist", path, "--with-alignments")
    assert status == 0, err
    assert [line.split("\t")[0] for line in aligned.split("\n")[:-1]] == out.split("\n")[:-1]
    for options in (("--set", "sampling=true", "--n-best", 3), ("--beam-size", 1)):
        status, _, err = nmt("translate", run, source, "--shortlist", path, *options)
        assert status == 0, err


def test_invalid_input_is_one_line(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    source = tmp_path / "in.txt"
    for arguments, status, expected in (
        (("shortlist", tmp_path / "nowhere", "-o", tmp_path / "x"), 1, "has no complete corpus of a translation model"),
        (("shortlist", tmp_path, "-o", tmp_path / "x"), 1, "has no complete corpus of a translation model"),
        (("shortlist", run, "-o", source / "x"), 1, "cannot write"),
        (("translate", run, source, "--shortlist", tmp_path / "none"), 1, "cannot be read as a shortlist"),
        (("translate", run, source, "--shortlist", run / "model" / "model.safetensors"), 1, "is not a shortlist"),
        (("translate", run, source, "--set", "shortlist=7"), 2, "shortlist"),
    ):
        found, out, err = nmt(*arguments)
        assert (found, out) == (status, "")
        assert expected in one_line(err)
    assert nmt("shortlist", run)[0] == 2
    assert nmt("shortlist", run, "-o", tmp_path / "x", "--best", 0)[0] == 2


def test_a_missing_output_folder_is_an_early_error(
    run: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in other commands, the folder is not created."""
    monkeypatch.delattr("nmt.cli.shortlist.make_shortlist")
    status, out, err = nmt("shortlist", run, "-o", tmp_path / "none" / "list")
    assert (status, out) == (1, "")
    assert "none is not a directory; -o must be" in one_line(err)
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_an_output_that_is_an_input_or_a_folder_is_an_error(
    run: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("nmt.cli.shortlist.make_shortlist")
    before = {path: path.read_bytes() for path in (run / "data").iterdir()}
    for out in before:
        status, _, err = nmt("shortlist", run, "-o", out)
        assert (status, "is the input" in one_line(err)) == (1, True)
    status, _, err = nmt("shortlist", run, "-o", run)
    assert (status, "it is a directory" in one_line(err)) == (1, True)
    assert {path: path.read_bytes() for path in (run / "data").iterdir()} == before


@pytest.mark.slow
def test_an_invalid_shortlist_is_an_error_before_training(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "list").write_bytes(b"no shortlist")
    status, _, err = nmt("train", tmp_path / "tiny.toml", f"run_dir={run}", f"decode.shortlist={tmp_path / 'list'}")
    assert status == 1
    assert "cannot be read as a shortlist" in err.strip().splitlines()[-1]
    assert not (run / "checkpoints").exists()


@pytest.mark.slow
def test_only_shortlists_are_overwritten(run: Path, nmt: Nmt, tmp_path: Path) -> None:
    status, _, err = nmt("shortlist", run, "-o", tmp_path / "in.txt")
    assert status == 1
    assert "in.txt was not written by this command" in one_line(err)
    assert (tmp_path / "in.txt").read_text().splitlines() == LINES
    for best in (1, 2):
        status, _, err = nmt("shortlist", run, "-o", tmp_path / "list", "--best", best)
        assert status == 0, err


def test_a_shortlist_of_damaged_text_is_an_error(run: Path, tmp_path: Path, nmt: Nmt) -> None:
    tokens = run / "data/train.tgt.tokens.npy"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])
    status, _, err = nmt("shortlist", run, "-o", tmp_path / "list")
    assert status == 1
    assert "train.tgt.tokens.npy is damaged: its SHA-256" in one_line(err)
    assert not (tmp_path / "list").exists()
