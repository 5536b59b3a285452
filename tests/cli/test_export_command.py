"""`nmt export`, `nmt import` and `nmt translate --engine` as a user types them."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import model_files, model_tensors
from nmt.grammar import generate
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import train_tokenizers
from tests.calling import Nmt, PipeIn, one_line
from tests.extras import needs_ctranslate2, needs_transformers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    pairs = list(generate("train", 100, seed=1))
    tokenizers = train_tokenizers(
        lambda: ((pair.src, pair.tgt) for pair in pairs), TokenizerRecipe(vocab_size=350), folder
    )
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    recipe = ModelRecipe.model_validate(sizes)
    model = Transformer(recipe, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    decode = DecodeRecipe(beam_size=1, max_extra_tokens=5)
    metadata = ModelMetadata("en", "de", tokenizers.src.vocab_size, tokenizers.tgt.vocab_size, "NFC", decode)
    write_directory(folder / "model", model_files(recipe, model_tensors(model), tokenizers.files(), metadata))
    return folder / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("The woman buys a car.\n\nA dog.\n")
    return tmp_path / "in.txt"


@needs_ctranslate2
def test_an_export_to_ctranslate2_has_all_files_and_is_not_overwritten(
    model: Path, text: Path, tmp_path: Path, nmt: Nmt
) -> None:
    status, out, err = nmt("export", model, "--to", "ctranslate2", "-o", tmp_path / "fast", "--sample", text)
    assert (status, out) == (0, f"{tmp_path / 'fast'}\n"), err
    assert "2 of 2 greedy translations are the same" in err
    names = {path.name for path in (tmp_path / "fast").iterdir()}
    assert names == {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model", "README.md"}
    status, _, err = nmt("export", model, "--to", "ctranslate2", "-o", tmp_path / "fast")
    assert status == 1
    assert "already exists" in one_line(err)


@pytest.mark.slow
@needs_ctranslate2
def test_the_sample_may_be_standard_input(model: Path, tmp_path: Path, nmt: Nmt, pipe_in: PipeIn) -> None:
    pipe_in(lambda write: write(b"The woman buys a car.\n"))
    status, _, err = nmt("export", model, "--to", "ctranslate2", "-o", tmp_path / "fast", "--sample", "-")
    assert status == 0, err


@pytest.mark.slow
@needs_ctranslate2
def test_export_warns_of_a_sample_in_another_format(model: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "a dog"}\n' * 3)
    command = ("export", model, "--to", "ctranslate2", "-o", tmp_path / "out", "--sample", tmp_path / "text.jsonl")
    assert "text.jsonl, lines 1 to 3," in nmt(*command)[2]


@pytest.mark.slow
@needs_ctranslate2
def test_export_warns_of_newer_checkpoints(model: Path, text: Path, tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    (run / "report.json").write_text(json.dumps({"training": {"steps": 1_000}}))

    def warnings(path: Path) -> list[str]:
        status, _, err = nmt("export", path, "--to", "ctranslate2", "-o", tmp_path / "out", "--sample", text)
        assert status == 0, err
        shutil.rmtree(tmp_path / "out")
        return [line for line in err.splitlines() if line.startswith("warning: ")]

    (run / "checkpoints" / "step-00001000").mkdir(parents=True)
    assert warnings(run) == []
    (run / "checkpoints" / "step-00001200").mkdir()
    assert warnings(run) == [
        f"warning: {run / 'model'} was averaged at step 1,000, but the run has a checkpoint of step 1,200; update "
        f"it with `nmt run`, or use the output of `nmt average {run}`"
    ]
    assert warnings(run / "model") == []


@pytest.mark.slow
@needs_transformers
def test_export_to_hugging_face_and_import_keep_the_translations(
    model: Path, text: Path, tmp_path: Path, nmt: Nmt
) -> None:
    status, out, err = nmt("export", model, "--to", "huggingface", "-o", tmp_path / "hf", "--license", "cc-by-4.0")
    assert (status, out) == (0, f"{tmp_path / 'hf'}\n"), err
    assert "gnmt" in err  # a length penalty that Hugging Face lacks
    assert "Parity check passed: 24 sentences of random pieces" in err
    assert "license: cc-by-4.0" in (tmp_path / "hf" / "README.md").read_text()
    status, out, err = nmt("import", tmp_path / "hf", "-o", tmp_path / "back", "--src-lang", "nl")
    assert (status, out) == (0, f"{tmp_path / 'back'}\n"), err
    same = ("--beam-size", 1, "--set", "max_extra_tokens=5")
    before, after = (nmt("translate", path, text, *same)[:2] for path in (model, tmp_path / "back"))
    assert before == after
    assert 'src = "nl"' in (tmp_path / "back" / "model.toml").read_text()


@needs_ctranslate2
@pytest.mark.slow
def test_both_engines_give_the_same_translations(model: Path, text: Path, nmt: Nmt) -> None:
    options = ("translate", model, text, "--device", "cpu", "--length-penalty", "none")
    common = (*options, "--precision", "fp32")
    status, ours, _ = nmt(*common, "--engine", "torch")
    assert status == 0
    status, theirs, err = nmt(*common)
    assert (status, theirs) == (0, ours)
    note = err.splitlines()[-1]
    assert note.endswith(f" with {model} on cpu; engine: CTranslate2, fp32, the fastest on a CPU")
    status, again, err = nmt(*common, "--engine", "ctranslate2", "--with-scores")
    assert status == 0
    assert err.endswith(f" with {model} on cpu; engine: CTranslate2, fp32\n")
    assert [line.split("\t")[1] for line in again.splitlines()] == ours.splitlines()
    assert nmt(*options, "--engine", "ctranslate2", "--precision", "int8")[0] == 0


def test_search_in_fp16_changes_only_the_scores(model: Path, text: Path, nmt: Nmt) -> None:
    found = {}
    for precision in ("fp32", "fp16"):
        options = ("--device", "cpu", "--precision", precision, "--with-scores")
        status, out, _ = nmt("translate", model, text, *options)
        assert status == 0
        found[precision] = [line.split("\t") for line in out.splitlines()]
    assert [line for _, line in found["fp16"]] == [line for _, line in found["fp32"]]
    assert [score for score, _ in found["fp16"]] != [score for score, _ in found["fp32"]]


@needs_ctranslate2
def test_unsupported_options_of_the_engine_are_one_line(model: Path, text: Path, nmt: Nmt) -> None:
    options = ("--length-alpha", 0.5, "--with-scores", "--ensemble", model, "--set", "sampling=true")
    status, out, err = nmt("translate", model, text, "--engine", "ctranslate2", *options)
    assert (status, out) == (2, "")
    assert all(word in one_line(err) for word in ("ensemble", "sampling", "--engine torch"))


def test_wrong_options_of_export_are_one_line(
    model: Path, text: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    for options, status, expected in (
        (("--push", "me/model"), 1, "HF_TOKEN"),
        (("--push", "me/my model"), 2, "it must be OWNER/MODEL"),
        (("--push", "model"), 2, "--push model has no owner; it must be OWNER/MODEL; add your user name"),
        (("--private",), 2, "--private has no effect without --push"),
        (("--license", "mit\ntags: [x]"), 2, r"--license is 'mit\ntags: [x]'; it must be an identifier"),
        (("--quantization", "int8"), 2, "--quantization has no effect on --to huggingface"),
        (("--sample", text, "--no-parity-check"), 2, "--sample and --no-parity-check are mutually exclusive"),
    ):
        found, out, err = nmt("export", model, "-o", tmp_path / "out", "--to", "huggingface", *options)
        assert (found, out) == (status, "")
        assert expected in one_line(err)
    command = ("export", model, "-o", tmp_path / "out", "--to", "ctranslate2", "--no-parity-check")
    assert "--no-parity-check has no effect on --to ctranslate2, which needs package" in one_line(nmt(*command)[2])
    assert not (tmp_path / "out").exists()


@needs_transformers
def test_the_parity_check_cannot_be_skipped_if_it_can_run(model: Path, tmp_path: Path, nmt: Nmt) -> None:
    status, _, err = nmt("export", model, "-o", tmp_path / "out", "--to", "huggingface", "--no-parity-check")
    assert status == 2
    assert "the parity check is required; omit --no-parity-check" in one_line(err)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_hugging_face_model_is_not_imported(tmp_path: Path, nmt: Nmt) -> None:
    status, _, err = nmt("import", tmp_path, "-o", tmp_path / "out")
    assert status == 1
    assert "lacks config.json" in one_line(err)
    assert not (tmp_path / "out").exists()


def test_unknown_formats_and_precisions_are_one_line(model: Path, text: Path, tmp_path: Path, nmt: Nmt) -> None:
    for command, expected in (
        (("export", model, "--to", "marian", "-o", tmp_path / "out"), "'marian' is not one of 'ctranslate2', 'hugging"),
        (("translate", model, text, "--precision", "fp8"), "'fp8' is not one of 'auto', 'fp32'"),
    ):
        status, out, err = nmt(*command)
        assert (status, out) == (2, "")
        assert expected in one_line(err)
