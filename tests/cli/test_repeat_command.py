"""`nmt repeat`: runs of variants and seeds, their shared text, and the table of their scores."""

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.experiments import launch
from nmt.experiments.results import read_results
from nmt.experiments.sweep import make_sweep
from nmt.processes.run_lock import run_lock
from nmt.storage.run_folder import list_checkpoints
from tests.calling import Nmt, one_line
from tests.cli import forked_commands
from tests.forked import PROCESSES
from tests.recipes import small_recipe
from tests.waiting import wait_until

RECIPE = (
    small_recipe(
        """
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 20 }]
""",
        """
max_steps = 2
batch_tokens = 400
""",
        name="tiny",
        vocab_size=600,
    )
    + """
[data.test.heldout]
kind = "toy"
split = "test"
pairs = 6
[decode]
beam_size = 1
max_length_ratio = 1.0
max_extra_tokens = 2
[evaluate]
metrics = ["chrf"]
"""
)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("tiny.toml").write_text(RECIPE)
    return Path("tiny.toml")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of the runs. `test_sigterm_stops_all_processes` starts them as a user does."""
    monkeypatch.setattr(launch, "_popen", forked_commands.popen)
    monkeypatch.setattr(launch, "_POLL_SECONDS", 0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_files_of_the_same_name_in_other_folders_are_other_text(recipe: Path, nmt: Nmt) -> None:
    for folder in ("raw", "clean"):
        Path(folder).mkdir()
        Path(folder, "train.tsv").write_text("".join(f"{n} {folder} dogs\t{n} Hunde\n" for n in range(300)))
    corpora = ",".join(f"[{{kind='tsv', path='{Path.cwd() / folder}/train.tsv'}}]" for folder in ("raw", "clean"))
    options = ("--vary", f"data.train={corpora}", "tokenizer.vocab_size=300", "--seeds", 1, "-o", "out")
    status, _, err = nmt("repeat", recipe, *options, "--prepare-only")
    assert status == 0, err
    reports = [json.loads(path.read_text()) for path in Path("out").glob("*/seed-1/data/prepare.json")]
    assert len({report["inputs"][0]["sha256"] for report in reports}) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_variants_are_run_on_the_same_text_and_compared(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (recipe, "--seeds", 2, "--vary", "model.d_ff=32,64", "-o", "out")
    status, out, err = nmt("repeat", *options, "--jobs", 2)
    assert status == 0, err
    assert Path("out/heldout.png").exists() != ("no plot: " in err)
    assert "Sentences with a match in the training text: none of " in out
    assert "heldout: chrf" in out and "chrf  chrF2|" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("d_ff=")]
    assert [row[0] for row in rows] == ["d_ff=32", "d_ff=64"]
    assert [row[2] for row in rows] == ["2", "2"]
    assert rows[0][-1] != "significant" and rows[1][-1] == "significant"  # or "not significant"
    seeds = [Path("out") / variant / f"seed-{seed}" for variant in ("d_ff=32", "d_ff=64") for seed in (1, 2)]
    names = {path.name for path in (seeds[0] / "data").iterdir()}
    assert all({path.name for path in (run / "data").iterdir()} == names for run in seeds)
    largest = max((seeds[0] / "data").iterdir(), key=lambda path: path.stat().st_size).name
    assert len({(run / "data" / largest).stat().st_ino for run in seeds}) == 1  # prepared once
    document = json.loads(Path("out/report.json").read_text())
    (test,) = document["tests"]
    scores = [json.loads((run / "report.json").read_text())["tests"][0]["scores"][0]["value"] for run in seeds]
    assert [score for variant in test["variants"] for score in variant["scores"]] == pytest.approx(scores)
    report = Path("out/report.md").read_text()
    assert "| d_ff=64 |" in report
    assert "| d_ff=64, seed 2 | model.d_ff=64 seed=2 run_dir=out/d_ff=64/seed-2 |" in report and "torch" in report
    monkeypatch.setattr(launch, "_popen", None)  # nothing is run again
    status, again, _ = nmt("repeat", *options, "--format", "json")
    assert status == 0 and json.loads(again) == document
    assert nmt("repeat", *options, "--only", 2) == (0, "", "nothing to run: 1 run already complete\n")
    listed = nmt("repeat", *options, "--list")[1].splitlines()
    assert [line.split("\t")[:3] for line in listed[:2]] == [
        ["1", "d_ff=32, seed 1", "complete"],
        ["2", "d_ff=64, seed 1", "complete"],
    ]
    assert listed[0].endswith("nmt run tiny.toml model.d_ff=32 seed=1 run_dir=out/d_ff=32/seed-1")
    assert nmt("repeat", *options, "--list", "--only", 2)[1].splitlines() == listed[1:2]
    Path("out").rename("moved")
    assert nmt("repeat", *options[:-1], "moved", "--only", 2)[2] == "nothing to run: 1 run already complete\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_run_is_complete_until_its_text_or_start_model_changes(recipe: Path, nmt: Nmt) -> None:
    pairs = {"train": [f"{n} dog s\t{n} Hund e" for n in range(300)], "test": ["a dog\tein Hund\t1", "dogs\tHunde\t1"]}
    for name, lines in pairs.items():
        Path(f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    overrides = [
        "data.train=[{kind='tsv', path='train.tsv'}]",
        "data.test={t={kind='tsv', path='test.tsv', document_column=2}}",
    ]
    tuned = [*overrides, "train.start_from=out/tiny/seed-1"]  # which gives the architecture
    text = RECIPE[: RECIPE.index("[model]")] + RECIPE[RECIPE.index("[train]") :]
    Path("tuned.toml").write_text(text)
    (run,) = make_sweep(recipe, 1, [*overrides, "data.context=1", "decode.max_length_ratio="], ()).runs(Path("out"))
    (other,) = make_sweep(Path("tuned.toml"), 1, tuned, ()).runs(Path("out"))
    for one in (run, other):
        status, _, err = nmt(*launch.command(one))
        assert status == 0, err
        assert launch.is_complete(one)
    for name, lines in pairs.items():
        Path(f"{name}.tsv").write_text("".join(f"{line}\n" for line in [lines[1], lines[0], *lines[2:]]))
        assert not launch.is_complete(run) and not launch.is_complete(other)
        with pytest.raises(UserError, match="no run is complete"):
            read_results([run])
        Path(f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
        assert launch.is_complete(run) and launch.is_complete(other)
    Path("test.tsv").write_text("a dog\tein Hund\t1\ndogs\tHunde\t2\n")  # other documents
    assert not launch.is_complete(run) and launch.is_complete(other)
    Path("test.tsv").write_text("".join(f"{line}\n" for line in pairs["test"]))
    Path("train.tsv").unlink()
    assert launch.is_complete(run)
    output = run.recipe.directory / "translations" / "t.de"
    translated = output.read_bytes()
    output.write_bytes(translated * 2)
    assert not launch.is_complete(run)
    output.write_bytes(translated)
    (run.recipe.directory / "model" / "model.toml").unlink()
    assert not launch.is_complete(run)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_changes_during_training_are_noted(recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.cli.repeat.draw_scores", lambda *_: None)
    options = (recipe, "--seeds", 1, "-o", "out", "train.schedule=constant", "train.start_from=runs/start")
    changed = (*options, "train.max_steps=4", "train.clip_norm=1")
    assert nmt("train", recipe, "name=start")[0] == 0
    for unchanged in (options, (*options, "train.max_steps=3")):
        status, _, err = nmt("repeat", *unchanged)
        assert status == 0, err
        assert "changed during training" not in err
    status, _, err = nmt("repeat", *changed)
    assert status == 0, err
    note = "tiny, seed 1: train.clip_norm changed during training"
    assert note in " ".join(err.split()) and note in Path("out/report.md").read_text()
    (noted,) = json.loads(Path("out/report.json").read_text())["notes"]
    assert noted.startswith(note)
    report = Path("out/tiny/seed-1/report.json")
    content = json.loads(report.read_text())
    report.write_text(json.dumps(content | {"training": content["training"] | {"valid_nll": None}}))  # as if diverged
    err = nmt("repeat", *changed)[2]
    assert "tiny, seed 1: no validation has a finite score, as after divergence" in " ".join(err.split())
    report.write_text(json.dumps(content))
    assert nmt("train", recipe, "name=start", "train.max_steps=3")[0] == 0
    err = nmt("repeat", *changed)[2]
    note = "tiny, seed 1: runs/start is no longer the model that out/tiny/seed-1 started from; the run keeps its own"
    assert note in " ".join(err.split())


@pytest.mark.parametrize("mode", [(), ("--list",), ("--prepare-only",), ("--only", 1)])
def test_a_language_model_is_refused_before_any_work(recipe: Path, nmt: Nmt, mode: tuple[object, ...]) -> None:
    Path("lines.txt").write_text("a\n")
    corpora = [
        "data.train=[{kind='monolingual', path='lines.txt'}]",
        "data.valid=[{kind='monolingual', path='lines.txt'}]",
    ]
    options = ("src_lang=zxx", *corpora, "data.test={}", "evaluate.metrics=", "decode.max_length_ratio=")
    status, out, err = nmt("repeat", recipe, *options, *mode)
    assert (status, out) == (2, "")
    assert "tiny.toml trains a language model; nmt repeat compares translations; run each seed with" in one_line(err)
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_failed_runs_are_named_after_all_runs(recipe: Path, nmt: Nmt) -> None:
    options = (recipe, "--seeds", 1, "--vary", "tokenizer.vocab_size=60000,70000", "-o", "out")
    status, out, err = nmt("repeat", *options)
    assert (status, out) == (1, "")
    assert "nmt: 2 of 2 runs failed: vocab_size=60000, seed 1; vocab_size=70000, seed 1; the lines" in err
    assert "failed with exit status 1: nmt: " in err and "the log is out/vocab_size=60000/seed-1.log" in err
    assert not Path("out/report.md").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_failed_run_does_not_prevent_the_report_of_the_others(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.cli.repeat.draw_scores", lambda *_: None)
    status, out, err = nmt("repeat", recipe, "--seeds", 1, "--vary", "tokenizer.vocab_size=60000,600", "-o", "out")
    assert status == 1
    assert "nmt: 1 of 2 runs failed: vocab_size=60000, seed 1; the lines above say why" in err
    assert "vocab_size=600" in out and "| vocab_size=600 |" in Path("out/report.md").read_text()


def test_the_error_of_a_failed_run_is_not_that_of_another_process(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of a killed sweep still writes to the log."""

    class Failed:
        def wait(self) -> int:
            return 1

    (run,) = make_sweep(recipe, 1, (), ()).runs(Path("out"))
    log = Path("out/tiny/seed-1.log")
    log.parent.mkdir(parents=True)
    log.write_text("$ nmt run\nnmt: earlier\n")
    monkeypatch.setattr(launch, "_popen", lambda arguments, environment, file: Failed())
    process = launch._start("run", run, launch._Slot())
    for text, error in (("step 1\nstep 2\n", "step 2"), ("nmt: in use\nstep 3\n", "nmt: in use")):
        with log.open("a") as file:
            file.write(text)
        assert not launch._succeeds(process, run)
        assert f"failed with exit status 1: {error}; the log is {log}" in " ".join(capsys.readouterr().err.split())
    assert "\n$ nmt run tiny.toml seed=1 run_dir=out/tiny/seed-1\n" in log.read_text()


@pytest.mark.parametrize("option", ["train.start_from", "tokenizer.start_from", "decode.fusion", "decode.shortlist"])
def test_a_missing_file_of_a_later_variant_is_an_error_before_any_work(
    option: str, recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_popen", None)  # nothing is run
    variants = f"variants.a = ['train.max_steps=1']\nvariants.b = ['{option}=missing']\n"
    Path("sweep.toml").write_text(f"recipe = 'tiny.toml'\nseeds = 1\n{variants}")
    status, out, err = nmt("repeat", "sweep.toml", "-o", "out")
    assert (status, out) == (1, "")
    assert one_line(err).startswith("b, seed 1: ") and "missing" in err
    assert not Path("out").exists()


@pytest.mark.slow
def test_variants_with_other_tokenizers_do_not_share_text(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("one", 600), ("two", 700)):
        status, _, err = nmt("train", recipe, f"name={name}", f"tokenizer.vocab_size={size}", "train.max_steps=1")
        assert status == 0, err
    shutil.copytree("runs/one", "runs/three")
    prepared: list[str] = []
    monkeypatch.setattr(launch, "_start", lambda name, run, slot: prepared.append(run.variant))
    monkeypatch.setattr(launch, "_succeeds", lambda process, run: True)
    monkeypatch.setattr(launch, "_copy_data", lambda source, target: None)
    runs = make_sweep(recipe, 1, (), ["tokenizer.start_from=runs/one,runs/two,runs/three"]).runs(Path("out"))
    launch.prepare_data(runs)
    assert prepared == ["start_from=runs/one", "start_from=runs/two"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--vary", "model.num_head=1"), "variant num_head=1: "),
        (("--only", 9, "--list"), "--only 9: the last is 3; give a number that --list shows"),
        (("--only", 9), "--only 9: the last is 3; give a number that --list shows"),
        (("--seeds", 0), "'--seeds': it must be greater than or equal to 1"),
        (("--list", "--prepare-only"), "--list and --prepare-only are mutually exclusive; give one of them"),
        (("--jobs", 2, "--list"), "--jobs and --list are mutually exclusive; give one of them"),
        (("--jobs", 2, "--prepare-only"), "--jobs and --prepare-only are mutually exclusive; give one of them"),
        (("--jobs", 2, "--only", 1), "--jobs and --only are mutually exclusive; give one of them"),
        (("--vary", "seed=1,2"), "--vary seed is not supported; each variant has the same seeds; use --seeds N"),
        (("--metric", "blue", "--list"), "--metric blue: unknown metric; it must be one of bleu, "),
        (("--metric", "bleu", "--only", 1), "--metric, --format and --json have no effect without a report"),
        (("--format", "json", "--prepare-only"), "--metric, --format and --json have no effect without a report"),
        (("-o", "other"), "other is a run, whose report would be lost; -o must be a separate folder"),
        (("-o", "notes"), "notes has report.md, which this command would overwrite; -o must be a separate folder"),
        (("-o", "plots"), "plots has heldout.png, which this command would overwrite; -o must be a separate folder"),
    ],
)
def test_wrong_options_are_refused_before_any_work(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], reason: str
) -> None:
    Path("other").mkdir()
    Path("other", "recipe.toml").write_text(RECIPE)
    Path("notes").mkdir()
    Path("notes", "report.md").write_text("mine")
    Path("plots").mkdir()
    Path("plots", "heldout.png").write_text("mine")
    monkeypatch.setattr(launch, "_popen", None)  # nothing is run
    status, out, err = nmt("repeat", recipe, *options)
    assert (status, out) == (2, "")
    assert reason in one_line(err)
    assert not Path("runs").exists()


def test_runs_are_listed_for_a_folder_with_another_report(recipe: Path, nmt: Nmt) -> None:
    Path("notes").mkdir()
    Path("notes", "report.md").write_text("mine")
    status, out, err = nmt("repeat", recipe, "-o", "notes", "--seeds", 1, "--list")
    assert status == 0, err
    assert out.startswith("1\ttiny, seed 1\t\tnmt run tiny.toml seed=1 run_dir=notes/tiny/seed-1")


def test_a_sweep_file_defines_the_variants(recipe: Path, nmt: Nmt) -> None:
    Path("sweep.toml").write_text('recipe = "tiny.toml"\nseeds = 2\n[variants]\nbase = []\nwide = ["model.d_ff=64"]\n')
    status, out, err = nmt("repeat", "sweep.toml", "--list")
    assert status == 0, err
    assert [line.split("\t")[1] for line in out.splitlines()] == [
        "base, seed 1",
        "wide, seed 1",
        "base, seed 2",
        "wide, seed 2",
    ]
    status, _, err = nmt("repeat", "sweep.toml", "--vary", "model.d_ff=1,2")
    assert status == 2 and "leave out --vary" in one_line(err)


@pytest.mark.slow
def test_sigterm_stops_all_processes(recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (recipe, "train.max_steps=1000000", "train.threads=1", "--seeds", 2, "-o", "out")
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_popen", forked_commands.popen)
        assert nmt("repeat", *options, "--prepare-only")[0] == 0
    monkeypatch.setenv("PYTHONPATH", str(Path(launch.__file__).parents[2]))
    command = [sys.executable, "-m", "nmt", "repeat", *map(str, options), "--jobs", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = [Path("out/tiny") / f"seed-{seed}" / "metrics.jsonl" for seed in (1, 2)]
    deadline = time.monotonic() + 120
    while not all(path.exists() and path.stat().st_size for path in metrics):
        if time.monotonic() > deadline:
            process.terminate()
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "incomplete: 2 runs; rerun the command to continue" in err.splitlines()[-1]
    for seed in (1, 2):
        assert list_checkpoints(Path("out/tiny", f"seed-{seed}")), "each run has saved a checkpoint"


def is_free(run: Path) -> bool:
    """Return whether no process writes to a run."""
    with suppress(UserError), run_lock(run):
        return True
    return False


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_killed_sweep_resumes_and_ends_in_the_table(recipe: Path, nmt: Nmt) -> None:
    options = ("train.max_steps=6", "train.save_every=2", "train.log_every=2", "--seeds", "2", "-o", "out")
    first, second = (Path("out/tiny") / f"seed-{seed}" for seed in (1, 2))
    sweep = PROCESSES.Process(target=forked_commands.run_killed_sweep, args=([str(recipe), *options], Path.cwd()))
    sweep.start()
    sweep.join(120)
    assert sweep.exitcode == -signal.SIGKILL, Path("sweep.log").read_text()
    assert [path.name for path in list_checkpoints(second)] == ["step-00000002"]
    assert not (second / "report.json").exists()
    complete = (first / "report.json").stat().st_mtime_ns
    wait_until(lambda: is_free(second))  # the run is killed just after the sweep
    status, out, err = nmt("repeat", recipe, *options)
    assert status == 0, err
    assert "tiny, seed 2: complete" in err and "tiny, seed 1" not in err
    assert (first / "report.json").stat().st_mtime_ns == complete
    assert "resuming from out/tiny/seed-2/checkpoints/step-00000002" in second.with_name("seed-2.log").read_text()
    steps = [json.loads(line)["step"] for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 6
    (row,) = [line.split() for line in out.splitlines() if line.startswith("tiny ")]
    assert row[2] == "2"
    assert len(json.loads(Path("out/report.json").read_text())["tests"][0]["variants"][0]["scores"]) == 2


@pytest.mark.parametrize("options", [(), ("--prepare-only",), ("--only", 2)])
def test_a_run_in_progress_is_an_error_before_any_work(recipe: Path, nmt: Nmt, options: tuple[object, ...]) -> None:
    with run_lock(Path("out/tiny/seed-2")):
        status, out, err = nmt("repeat", recipe, "--seeds", 2, "-o", "out", *options)
    assert (status, out) == (1, "") and "out/tiny/seed-2 is in use by another thread of this process" in one_line(err)
    assert not Path("out/tiny/seed-1.log").exists()


@pytest.mark.parametrize("option", ["--prepare-only", "--jobs=2"])
def test_torchrun_is_refused(recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr(launch, "_popen", None)  # nothing is run
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, out, err = nmt("repeat", recipe, option)
    assert (status, out) == (2, "")
    assert (
        "nmt repeat must run as one process, which starts the runs, got 2 processes; run it without torchrun"
        in one_line(err)
    )


def test_runs_that_the_new_report_will_not_have_are_named(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("out/d_ff=32/seed-1").mkdir(parents=True)
    earlier = [{"name": name, "seeds": [1, 2]} for name in ("d_ff=32", "d_ff=64")]
    Path("out/report.json").write_text(json.dumps({"tests": [{"variants": earlier}]}))
    monkeypatch.setattr("nmt.cli.repeat.execute", lambda runs, jobs: [])
    monkeypatch.setattr("nmt.cli.repeat.read_results", lambda runs, metric: [])
    status, _, err = nmt("repeat", recipe, "--vary", "model.d_ff=32,128", "--seeds", 1, "-o", "out")
    assert status == 0, err
    lost = "d_ff=32, seed 2; d_ff=64, seed 1; d_ff=64, seed 2"
    assert f"warning: out/report.md has {lost}; it will be replaced by a report without them" in err
    status, _, err = nmt("repeat", recipe, "--vary", "model.d_ff=32,128", "--seeds", 1, "-o", "out")
    assert status == 0 and "it will be replaced" not in err  # the report has been replaced


def test_datasets_whose_text_may_have_changed_are_named(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete runs do not query the Hub."""
    Path("out").mkdir()
    commit = "1" * 40
    train = f"[{{kind='huggingface', dataset='a/b'}}, {{kind='huggingface', dataset='c/d', revision='{commit}'}}]"
    monkeypatch.setattr("nmt.cli.repeat.execute", lambda runs, jobs: [])
    monkeypatch.setattr("nmt.cli.repeat.read_results", lambda runs, metric: [])
    status, _, err = nmt("repeat", recipe, f"data.train={train}", "-o", "out")
    assert status == 0, err
    assert "no fixed revision of dataset a/b; the runs may have been trained on different text" in err
    assert "c/d" not in err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("data.test={t={kind='tsv', path='no.tsv'}}",), "no.tsv: No such file"),
        (("--vary", "data.test.heldout.pairs=5,6"), "variants must have the same test sets to be compared"),
        (
            ("data.test={t={kind='tsv', path='t.tsv'}}", "--vary", "data.root=one,two"),
            "data.test.t has different text in another data.root; variants must have the same test sets",
        ),
        (("--vary", "data.test.heldout.pairs=5,6", "--only=1"), "variants must have the same test sets"),
        (
            ("data.test={t={kind='tsv', path='t.tsv'}}", "--vary", "data.root=one,two", "--prepare-only"),
            "data.test.t has different text in another data.root",
        ),
        (("--vary", 'evaluate.metrics=["bleu"],["chrf"]'), "variants use different metrics, bleu BLEU|nrefs:1|"),
        (("--vary", "evaluate.tokenize=13a,char", "--metric", "bleu"), "tok:char|smooth:exp"),
        (("--vary", "tokenizer.lowercase=false,true"), "they must use the same one to be compared; select a --metric"),
        (("train.device=cuda:99",), "device 'cuda:99' does not exist"),
        (("tgt_lang=ja", "--metric", "bleu"), "tokenizer 'ja-mecab' needs a package"),
    ],
)
def test_inputs_of_the_comparison_are_checked_before_any_work(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], reason: str
) -> None:
    for name in ("MeCab", "ipadic"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    for root, text in (("one", "a\tb\n"), ("two", "a\tc\n")):
        Path(root).mkdir()
        Path(root, "t.tsv").write_text(text)
    monkeypatch.setattr(launch, "_popen", None)  # nothing is run
    status, out, err = nmt("repeat", recipe, *options, "-o", "out")
    assert (status, out) == (1, "")
    assert reason in one_line(err)
    assert not Path("out").exists()


def test_a_missing_test_set_is_a_warning_before_training(
    recipe: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.cli.repeat.execute", lambda runs, jobs: runs)  # all fail
    _, _, err = nmt("repeat", recipe, "data.test={}")
    assert "tiny.toml has no test set; the table will be empty" in err.splitlines()[0]
