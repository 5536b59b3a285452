"""Resources of parallel runs."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.alignment.training import prepare_links
from nmt.data.prepare import prepare
from nmt.decode.requirements import decoding_files
from nmt.experiments import launch
from nmt.experiments.sweep import make_sweep
from nmt.logs import progress
from nmt.processes.interruption import Interrupted, interruptible
from nmt.recipe import dump_choices, parse_recipe

RECIPE = """
name = "tiny"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy" }]
valid = [{ kind = "toy" }]
[train]
device = "cpu"
"""


@pytest.mark.parametrize(("varied", "threads"), [("0,2", [4, 2]), ("2,0", [2, 4])])  # 0: not set
def test_cores_are_divided_among_runs_that_set_no_threads(
    varied: str, threads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "num_cores", lambda: 8)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    runs = make_sweep(tmp_path / "tiny.toml", 1, (), [f"train.threads={varied}"]).runs(tmp_path)
    slot, _ = launch._slots(runs, 2)
    for run, expected in zip(runs, threads, strict=True):
        overrides = [override for override in slot.overrides(run) if override.startswith("train.threads=")]
        assert overrides == [f"train.threads={expected}"]
    (alone,) = launch._slots(runs, None)
    assert alone.overrides(runs[0]) == runs[0].overrides


def test_each_slot_has_one_gpu_unless_a_run_names_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "num_cores", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "tiny.toml").write_text(RECIPE.replace('[train]\ndevice = "cpu"\n', ""))
    runs = make_sweep(tmp_path / "tiny.toml", 1, (), ["train.device=cpu,cuda:1,cuda,auto"]).runs(tmp_path)
    slots = launch._slots(runs, None)
    assert len(slots) == 2
    for slot, gpu in zip(slots, "01", strict=True):
        visible = {"CUDA_VISIBLE_DEVICES": gpu}
        assert [slot.environment(run) for run in runs] == [{}, {}, visible, visible]
        divides = [slot.overrides(run)[-1] == "train.threads=4" for run in runs]
        assert divides == [True, True, False, False]


def test_a_signal_during_a_start_ends_the_started_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    runs = make_sweep(tmp_path / "tiny.toml", 1, (), []).runs(tmp_path)
    started = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(launch, "_start", start)
    with pytest.raises(Interrupted, match="incomplete: 1 run;"), interruptible(), progress("runs", 1, "runs") as bar:
        launch._execute(runs, [launch._Slot()], bar)
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.slow
def test_runs_do_not_import_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typer.py").write_text("raise SystemExit('imported')\n")
    with (tmp_path / "log").open("ab") as log:
        assert launch._popen(["--version"], {}, log).wait() == 0
    assert (tmp_path / "log").read_text().startswith("nmt ")


@pytest.mark.slow
def test_text_is_not_the_same_after_its_word_alignments_change(tmp_path: Path) -> None:
    """A deleted file leaves the alignments that were made from it."""
    text = {"train.en": "the dog sees {} cats", "train.de": "der Hund sieht {} Katzen", "links": "0-0 1-1 2-2 3-3 4-4"}
    for name, line in text.items():
        (tmp_path / name).write_text("".join(f"{line.format(n)}\n" for n in range(300)))
    corpus = "kind='text', src='train.en', tgt='train.de'"
    options = [f"run_dir='{tmp_path / 'run'}'", f"data.root='{tmp_path}'", f"data.valid=[{{{corpus}}}]"]
    options += ["tokenizer.vocab_size=300", "train.guided_alignment=true", "data.workers=1"]
    recipe = parse_recipe(RECIPE, [*options, f"data.train=[{{{corpus}, alignment='links'}}]"])
    prepare_links(prepare(recipe), recipe)
    (tmp_path / "run" / "model").mkdir()
    (tmp_path / "run" / "model" / "model.toml").touch()
    assert launch._has_same_text(recipe)
    (tmp_path / "links").write_text("0-0\n" * 300)
    assert not launch._has_same_text(recipe)
    (tmp_path / "links").unlink()
    assert launch._has_same_text(recipe)


@pytest.mark.parametrize("option", ["shortlist", "fusion"])
def test_a_run_is_incomplete_after_a_file_of_its_search_options_changes(option: str, tmp_path: Path) -> None:
    """A deleted file does not make a run incomplete, and neither does the report of an earlier version."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    path = tmp_path / "lists" if option == "shortlist" else tmp_path / "lm" / "manifest.json"
    overrides = [f"decode.{option}={tmp_path / path.relative_to(tmp_path).parts[0]}"]
    (run,) = make_sweep(tmp_path / "tiny.toml", 1, overrides, ()).runs(tmp_path / "out")
    (run.recipe.directory / "model").mkdir(parents=True)
    path.parent.mkdir(exist_ok=True)
    for file in (run.recipe.directory / "model" / "model.toml", path.with_name("model.toml")):
        file.touch()
    path.write_text("before")
    files = decoding_files(run.recipe.decode)
    assert list(files) == [f"decode.{option}"]
    report = {"recipe": dump_choices(run.recipe), "decoding_files": files}
    (run.recipe.directory / "report.json").write_text(json.dumps(report))
    assert launch.is_complete(run)
    path.write_text("after")
    assert not launch.is_complete(run)
    path.unlink()
    path.with_name("model.toml").unlink()
    assert launch.is_complete(run)
    path.write_text("after")
    path.with_name("model.toml").touch()
    (run.recipe.directory / "report.json").write_text(json.dumps({"recipe": report["recipe"]}))
    assert launch.is_complete(run)
