"""The directory of a run: which files a run overwrites, reuses and reports."""

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nmt import pipeline
from nmt.bench.random_model import write_random_model
from nmt.errors import UserError
from nmt.recipe import Recipe, dump_recipe, load_recipe
from nmt.storage.run_folder import find_model
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, one_line

pytestmark = pytest.mark.usefixtures("no_curves")

RECIPE = """# mine
name = "tiny"
src_lang = "en"
tgt_lang = "de"
run_dir = "."
[data]
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 20 }]
[tokenizer]
vocab_size = 600
"""
TINY = """
[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
[train]
device = "cpu"
threads = 1
batch_tokens = 400
"""


@pytest.mark.parametrize("command", ["run", "train"])
def test_recipe_in_the_run_directory_is_not_overwritten(
    tmp_path: Path, nmt: Nmt, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"nmt.pipeline.{command}", lambda recipe: None)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    status, _, err = nmt(command, "recipe.toml")
    assert status == 1
    assert "recipe.toml is where training saves the recipe" in one_line(err)
    assert nmt(command, "recipe.toml", "run_dir=other")[0] == 0
    (tmp_path / "recipe.toml").write_text(dump_recipe(load_recipe(tmp_path / "recipe.toml")))
    assert nmt(command, "recipe.toml", "train.max_steps=9")[0] == 0  # one that training wrote
    lines = (tmp_path / "recipe.toml").read_text().splitlines(keepends=True)
    (tmp_path / "recipe.toml").write_text("".join(line for line in lines if not line.startswith("max_steps ")))
    assert nmt(command, "recipe.toml")[0] == 0  # one that training wrote before this option existed


@pytest.mark.parametrize("start", [pipeline.run, pipeline.train, pipeline.prepare])
def test_recipe_in_the_run_directory_is_not_overwritten_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Recipe], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE + TINY)
    with pytest.raises(UserError, match=r"recipe.toml is where training saves the recipe"):
        start(load_recipe(Path("recipe.toml"), ["train.max_steps=1"]))
    assert Path("recipe.toml").read_text() == RECIPE + TINY


def test_another_recipe_in_the_run_directory_is_an_error(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.pipeline.train", lambda recipe: None)
    (tmp_path / "mine.toml").write_text(RECIPE)
    (tmp_path / "recipe.toml").write_text("# another one\n" + RECIPE)
    status, _, err = nmt("train", "mine.toml")
    assert status == 1
    assert "recipe.toml is where training saves the recipe" in one_line(err)
    (tmp_path / "recipe.toml").write_text('name = "cut off by a cra')
    assert nmt("train", "mine.toml")[0] == 0


def test_a_run_does_not_remove_a_folder_that_is_not_a_model(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").write_text("years of work")
    status, _, err = nmt("run", "mine.toml")
    assert status == 1
    assert "model exists but is not a model, so it is not overwritten" in one_line(err)
    assert (tmp_path / "model" / "thesis.tex").read_text() == "years of work"
    assert not (tmp_path / "data").exists()  # before any work


@pytest.mark.slow
def test_a_run_does_not_remove_files_beside_its_model(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    assert nmt("run", "mine.toml", "train.max_steps=1")[0] == 0
    (tmp_path / "model" / "export").mkdir()
    (tmp_path / "model" / "export" / "thesis.tex").write_text("years of work")
    (tmp_path / "model" / "ctranslate2-2-0123456789abcdef-int8").mkdir()
    assert nmt("run", "mine.toml", "train.max_steps=1")[0] == 0
    status, _, err = nmt("run", "mine.toml", "train.max_steps=2")
    assert status == 1, err
    assert err.endswith("/model/export is not part of the model and would be lost; move it away, then rerun\n")
    (tmp_path / "model" / "export").rename(tmp_path / "export")
    assert nmt("run", "mine.toml", "train.max_steps=2")[0] == 0
    assert not (tmp_path / "model" / "ctranslate2-2-0123456789abcdef-int8").exists()


@pytest.mark.slow
def test_a_run_does_not_remove_the_model_of_another(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    other = tmp_path / "other"
    assert nmt("run", "mine.toml", "train.max_steps=1", f"run_dir={other}")[0] == 0
    (tmp_path / "model").symlink_to(other / "model")
    before = (other / "model" / "model.safetensors").read_bytes()
    status, _, err = nmt("run", "mine.toml", "train.max_steps=2")
    assert status == 1
    assert "model is a model, but . has no checkpoints, so it is not overwritten" in one_line(err)
    assert (other / "model" / "model.safetensors").read_bytes() == before
    shutil.copytree(other / "checkpoints", tmp_path / "checkpoints")
    status, _, err = nmt("run", "mine.toml", "train.max_steps=2")
    assert status == 1
    assert f"model is a link to the model of another run, {other}, which is not overwritten" in one_line(err)
    assert (other / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_a_partial_translation_of_a_killed_run_is_removed(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = "test.news = { kind = 'toy', split = 'test', pairs = 2 }\n"
    (tmp_path / "mine.toml").write_text(RECIPE.replace("[tokenizer]", test + "[tokenizer]") + TINY)
    (tmp_path / "translations").mkdir()
    (tmp_path / "translations" / ".news.de.part-1").write_text("of a killed process")
    status, _, err = nmt("run", "mine.toml", "train.max_steps=1", "decode.max_extra_tokens=0")
    assert status == 0, err
    assert {path.name for path in (tmp_path / "translations").iterdir()} == {"news.de"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_report_that_cannot_be_printed_is_an_error(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails
        monkeypatch.setattr(sys, "stdout", full)
        status, _, err = nmt("run", "mine.toml", "train.max_steps=1")
    assert (status, err.splitlines()[-1]) == (
        1,
        "nmt: the disk is full while writing standard output or a file; free some space, then rerun",
    )


@pytest.mark.slow
def test_translations_of_test_sets_that_are_gone_are_named(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = "test.{} = {{ kind = 'toy', split = 'test', pairs = 2 }}\n"
    for name, said in (("first", ""), ("second", "translations also has first.de from an earlier run")):
        (tmp_path / "mine.toml").write_text(RECIPE.replace("[tokenizer]", test.format(name) + "[tokenizer]") + TINY)
        status, _, err = nmt("run", "mine.toml", "train.max_steps=1", "decode.max_extra_tokens=0")
        assert status == 0, err
        assert said in err and ("also has" in err) == bool(said)
    assert {path.name for path in (tmp_path / "translations").iterdir()} == {"first.de", "second.de"}


@pytest.mark.slow
def test_symbolic_links_to_the_folders_of_a_run_stay(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    for name in ("data", "model"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    for steps in (1, 2):
        status, _, err = nmt("run", "mine.toml", f"train.max_steps={steps}", f"name=run-{steps}")
        assert status == 0, err
        assert (tmp_path / "data").is_symlink() and (tmp_path / "model").is_symlink()
        assert {path.name for path in (tmp_path / "disk").iterdir()} == {"data", "model"}
    assert (tmp_path / "disk" / "data" / "prepare.json").is_file()
    assert "step-00000002" in (tmp_path / "disk" / "model" / "model.toml").read_text()


@pytest.mark.slow
def test_a_run_within_a_checkpoint_or_its_text_is_an_error(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    assert nmt("run", "mine.toml", "train.max_steps=1")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, kind in (("checkpoints/step-00000001", "a model or"), ("model", "a model or"), ("data", "a prepared")):
        for command in ("run", "train", "prepare", "plan"):
            status, _, err = nmt(command, "mine.toml", f"run_dir={name}", "train.max_steps=2")
            assert status == 1
            assert f"{name} is {kind}" in one_line(err)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_file_in_place_of_a_folder_is_found_before_any_work(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    for name in ("data", "checkpoints", "tensorboard", "translations"):
        (tmp_path / name).write_text("mine")
        status, _, err = nmt("run", "mine.toml")
        assert (status, (tmp_path / name).read_text()) == (1, "mine")
        assert f"{name} is a file; the run needs a folder there; move it, or" in one_line(err)
        (tmp_path / name).unlink()
    for name in ("checkpoints", "tensorboard", "translations"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
        status, _, err = nmt("run", "mine.toml")
        assert status == 1
        assert f"{name} is a link to a missing folder; the run needs a folder there; move" in one_line(err)
        (tmp_path / name).unlink()
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.toml", ".lock"}


@pytest.mark.slow
def test_a_new_run_does_not_overwrite_files(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    for name in ("metrics.jsonl", "report.md", "curves.png", "leaks.json", "plan.json"):
        (tmp_path / name).write_text("mine")
        for command in ("run", "train", "prepare", "plan"):
            status, _, err = nmt(command, "mine.toml")
            assert (status, (tmp_path / name).read_text()) == (1, "mine")
            assert f". has {name} but no run; the new run would overwrite existing files; move them" in one_line(err)
            assert not (tmp_path / "data").exists()  # before any work
        (tmp_path / name).unlink()


@pytest.mark.slow
def test_test_sets_are_translated_again_only_if_something_changed(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = "test.news = { kind = 'toy', split = 'test', pairs = 2 }\n"
    (tmp_path / "mine.toml").write_text(RECIPE.replace("[tokenizer]", test + "[tokenizer]") + TINY)
    out = tmp_path / "translations" / "news.de"

    def run(*options: str) -> bool:
        status, _, err = nmt("run", "mine.toml", "train.max_steps=1", "decode.max_extra_tokens=0", *options)
        assert status == 0, err
        return "translations/news.de is up to date" in err

    assert not run()
    first = out.read_text()
    assert run("evaluate.metrics=['chrf']") and out.read_text() == first
    out.write_text("edited\n")
    assert not run() and out.read_text() == first
    rate = ("train.learning_rate=9", "train.warmup_steps=1")
    shutil.rmtree(tmp_path / "checkpoints")
    status, _, err = nmt("train", "mine.toml", "train.max_steps=1", *rate)
    assert status == 0, err  # the checkpoint has the name of the earlier one
    assert not run(*rate)
    assert run(*rate)
    assert not run("decode.beam_size=2", *rate)
    language_model = load_recipe(tmp_path / "recipe.toml").model_copy(update={"src_lang": "zxx"})
    write_random_model(tmp_path / "lm", language_model, Tokenizers.load(tmp_path / "model"))
    fusion = f"decode.fusion={tmp_path / 'lm'}"
    assert not run(fusion, *rate)
    assert run(fusion, *rate)
    shutil.rmtree(tmp_path / "lm")
    other = language_model.model_copy(update={"seed": 2})
    write_random_model(tmp_path / "lm", other, Tokenizers.load(tmp_path / "model"))
    assert not run(fusion, *rate)


@pytest.mark.slow
def test_translations_do_not_replace_files_of_a_run(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    (tmp_path / "in.txt").write_text("a dog\n")
    (tmp_path / "test.tsv").write_text("a dog\tein Hund\n")
    test_set = "data.test.news={kind='tsv', path='test.tsv'}"
    assert nmt("run", "mine.toml", "run_dir=run", "train.max_steps=1", test_set)[0] == 0
    (tmp_path / "report.json").write_text("{}")
    assert nmt("prepare", "mine.toml", "run_dir=prepared")[0] == 0
    files = ["report.json", "checkpoints/step-00000001/state.json", "model/model.toml", "data/prepare.json"]
    files += (f"translations/{path.name}" for path in (tmp_path / "run" / "translations").glob("news.*"))
    assert len(files) == 5
    for out in (*(f"run/{name}" for name in files), "prepared/data/prepare.json"):
        content = (tmp_path / out).read_text()
        status, _, err = nmt("translate", "run", "in.txt", "-o", out)
        assert status == 1
        assert "; it must be another file; choose a new one" in one_line(err)
        assert (tmp_path / out).read_text() == content
    shutil.copytree(tmp_path / "run" / "model", tmp_path / "average")
    (tmp_path / "memory.db").write_bytes(b"SQLite format 3\0")
    for out, wrong in (("average/model.toml", "is a file of "), ("memory.db", "memory.db is not a text file; ")):
        before = (tmp_path / out).read_bytes()
        status, _, err = nmt("translate", "run", "in.txt", "-o", out)
        assert (status, wrong in one_line(err), (tmp_path / out).read_bytes() == before) == (1, True, True)
    for out in ("run/out.de", "run/out.de", "run/translations/other.de", "run/translations/other.de", "report.json"):
        assert nmt("translate", "run", "in.txt", "-o", out)[0] == 0


@pytest.mark.slow
def test_a_model_that_cannot_be_replaced_remains(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    given = ("run", "mine.toml", "run_dir=run", "train.max_steps=2", "train.save_every=1")
    assert nmt(*given)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run" / "model").iterdir()}
    weights = tmp_path / "run" / "checkpoints" / "step-00000001" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    status, _, err = nmt(*given, "decode.beam_size=3")
    assert status == 1 and "step-00000001" in err
    assert {path: path.read_bytes() for path in (tmp_path / "run" / "model").iterdir()} == before
    assert not list((tmp_path / "run").glob(".model*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choices", "result"),
    [([], "translated in parts"), (["data.long_sources=truncate", "decode.long_lines=truncate"], "truncated")],
)
def test_long_test_sentences_are_counted(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, choices: list[str], result: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE + TINY)
    (tmp_path / "test.tsv").write_text(f"a dog\tein Hund\n{'a dog sees a cat ' * 20}\tein Hund\n")
    tests = [f"data.test.{name}={{kind='tsv', path='test.tsv'}}" for name in ("one", "two")]
    options = [*tests, *choices, "data.max_tokens=40", "train.max_steps=1"]
    options += ["decode.beam_size=1", "decode.max_extra_tokens=0"]
    status, _, err = nmt("run", "mine.toml", *options)
    assert status == 0, err
    for name in ("one", "two"):
        assert f"warning: 1 line of data.test.{name} was too long for the model and was {result}\n" in err


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.bin", "is an export to CTranslate2; expected an nmt model; use the model that was exported"),
        ("config.json", "is a Hugging Face model; expected an nmt model; convert it with nmt import"),
    ],
)
def test_a_model_of_another_system_is_named(file: str, message: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(UserError, match=message):
        find_model(tmp_path)


def test_a_damaged_model_is_not_replaced_by_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (tmp_path / "model").mkdir()
    assert find_model(tmp_path) == checkpoint
    (tmp_path / "model" / "manifest.json").write_text("{}")
    assert find_model(tmp_path) == tmp_path / "model"
