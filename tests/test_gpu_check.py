"""`tools/gpu-check` without a GPU: a dry run of all stages, the driver, the checks and the packages."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bench.__main__ import _parser as bench_parser
from bench.comparison import Comparison, Measurement
from bench.environments import PEERS
from bench.goals import BY_NAME, GOALS, Goal
from bench.ledger import add_entries, comparison_entry
from bench.ratio import Ratio
from gpu_check import driver, measured_goals, packages, speed_stage
from gpu_check.driver import GPU_GOALS, STAGES, Driver, Stage
from gpu_check.losses_stage import LIMITS, _distances
from gpu_check.measured_goals import training_command
from gpu_check.outcome import Check, Outcome, Results, Verdict, read_outcome
from gpu_check.report import all_passed, format_report, format_table
from gpu_check.settings import Settings
from gpu_check.speed_stage import other_system
from gpu_check.tests_stage import _read
from gpu_check.translate_stage import equal_fraction

from nmt.recipe import Recipe
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "NMT_PYTHON": sys.executable}


def command(*arguments: object) -> list[str]:
    return [str(ROOT / "tools" / "gpu-check"), *map(str, arguments)]


def gpu_check(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )


# --- Whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_dry_run_resumes(tmp_path: Path) -> None:
    dry = ("--device", "cpu", "--small", "--out", tmp_path)
    results = tmp_path / "results"
    with subprocess.Popen(command(*dry), env=ENVIRONMENT, stderr=subprocess.PIPE, start_new_session=True) as killed:
        deadline = time.monotonic() + 120
        while (outcome := read_outcome(results, "tests")) is None:
            assert time.monotonic() < deadline and killed.poll() is None
            time.sleep(0.05)
        killed.kill()
    assert outcome.status == "unfinished"
    machine = (results / "machine.json").read_bytes()
    assert "tests                            unfinished" in gpu_check("--list", "--out", tmp_path).stdout

    last = gpu_check(*dry)
    assert last.returncode == 0, last.stdout + last.stderr
    assert (results / "machine.json").read_bytes() == machine, "a finished stage must not be repeated"
    outcomes = {stage.name: read_outcome(results, stage.name) for stage in STAGES}
    assert all(outcome is not None and outcome.status == "done" and outcome.checks for outcome in outcomes.values())
    assert "Not run yet" not in last.stdout and "| failed |" not in last.stdout
    for row in (
        "| machine | F.linear of tiny in bf16 | at least 2 times float32 |  | not measured: no GPU |",
        "| compile | graphs of model and loss after warm-up | 1 | 1 | passed |",
        "| translate | nmt translate and the Python translator | 100% of lines | 100.0% | passed |",
        "| speed:train-gpu-big | big, WMT14 lengths, H200 bf16: fraction of the F.linear rate (0.28 million tokens/s) "
        "| at least 45% |  | not measured: no GPU; measured on the CPU |",
    ):
        assert row in last.stdout.split("\n")
    assert (tmp_path / "report.md").read_text().startswith("# GPU check\n")
    entries = json.loads((tmp_path / "ledger" / "results.json").read_text())
    assert [entry["goal"] for entry in entries] == [
        "train-gpu-big",
        "decode-gpu-batch32",
        "file-gpu-float16",
    ]
    curves = json.loads((results / "losses-of-each-update.txt").read_text())
    assert set(curves["0"]) == {"cpu fp32", "cpu bf16", "cpu fp16"} and curves["0"].keys() == curves["0.1"].keys()
    assert curves["0"]["cpu fp32"] != curves["0"]["cpu bf16"] != curves["0"]["cpu fp16"]


@pytest.mark.slow
def test_a_stage_that_times_out_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    names = "memory,speed:train-gpu-base"
    done = gpu_check("--device", "cpu", "--small", "--out", tmp_path, "--stages", names, "--limit", 0.8)
    assert done.returncode == 1
    assert "| memory | the stage completes | done | timed out after 1 s | failed |" in done.stdout
    assert "| speed:train-gpu-base |" in done.stdout
    assert "Not run yet: machine, tests" in done.stdout
    outcome = read_outcome(tmp_path / "results", "memory")
    assert outcome is not None and outcome.status == "timed out"


@pytest.mark.slow
def test_results_with_other_options_are_not_reused(tmp_path: Path) -> None:
    stages = ("--stages", "speed:train-gpu-base", "--out", tmp_path)  # a dry run does not measure this stage
    assert gpu_check("--device", "cpu", "--small", *stages).returncode == 0
    found = (tmp_path / "results" / "speed-train-gpu-base.json").read_bytes()
    for other in (("--device", "cpu"), ("--small",)):
        done = gpu_check(*other, *stages)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"{tmp_path} has results with " in done.stderr
    assert (tmp_path / "results" / "speed-train-gpu-base.json").read_bytes() == found
    assert gpu_check("--device", "cpu", "--small", *stages).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "training"], "unknown stage 'training'; it must be one of machine, tests"),
        (["--stages", ""], "unknown stage ''; it must be one of machine, tests"),
        (["--limit", "0"], "must be finite numbers above 0"),
        (["--limit", "nan"], "must be finite numbers above 0"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--wheels", "nowhere"], "nowhere is not a folder"),
        (["--budget"], "unrecognized arguments: --budget"),
    ],
)
def test_argument_errors_are_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = gpu_check(*arguments, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu-check: ") and done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_report_needs_results(tmp_path: Path) -> None:
    done = gpu_check("--report", "--out", tmp_path)
    assert done.returncode == 1 and "has no results; run stages first" in done.stderr


# --- Driver -------------------------------------------------------------------------------------------------------


class FakeStage(Stage):
    @property
    def module(self) -> str:
        return f"fake_stages.{self.name}"


def run_stages(out: Path, *bodies: str, seconds: float = 1, limit: float = 60, budget: float | None = None) -> Outcome:
    """Run stages with these function bodies; return the outcome of the last."""
    modules = out / "modules" / "fake_stages"
    modules.mkdir(parents=True, exist_ok=True)
    for number, body in enumerate(bodies):
        text = f"import os, subprocess, sys, time\ndef run(settings, results, part):\n    {body}\n"
        (modules / f"stage_{number}.py").write_text(text)
    path = os.pathsep.join(map(str, [out / "modules", ROOT, ROOT / "tools"]))
    environment = {**os.environ, "PYTHONPATH": path}
    stages = [FakeStage(f"stage_{number}", "a test stage", seconds) for number in range(len(bodies))]
    Driver(Settings("cpu", False, str(out)), environment, limit, budget, time.monotonic()).run(stages, again=False)
    return read_outcome(out / "results", stages[-1].name) or Outcome(stages[-1].name)


@pytest.mark.slow
def test_the_budget_ends_between_stages_and_the_next_call_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bodies = "results.check('a', 'b', str(time.time()), True)", "results.check('c', 'd', 'e', True)"
    assert run_stages(tmp_path, *bodies, seconds=100, budget=60).checks == []
    assert "stopping before stage_1; rerun to resume" in capfd.readouterr().err
    first = read_outcome(tmp_path / "results", "stage_0")
    assert first is not None and first.status == "done"
    assert run_stages(tmp_path, *bodies, seconds=100, budget=60).status == "done"
    assert read_outcome(tmp_path / "results", "stage_0") == first


@pytest.mark.slow
def test_a_stage_that_exceeds_the_budget_is_repeated_unless_it_had_the_whole_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = time.monotonic()
    # For the driver no time passes, so every stage has the whole budget as its time limit.
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: now))
    bodies, budget = ("pass", "time.sleep(600)"), driver._TABLE_SECONDS + 1
    assert run_stages(tmp_path, *bodies, seconds=0, budget=budget).status == "unfinished"
    assert "stage_1 exceeded the budget; the next call repeats it" in capfd.readouterr().err
    assert run_stages(tmp_path, *bodies, seconds=0, budget=budget).status == "timed out"


@pytest.mark.slow
def test_a_failing_stage_keeps_its_checks(tmp_path: Path) -> None:
    outcome = run_stages(tmp_path, "results.check('a', 'b', 'c', True); raise ValueError('a reason')")
    assert outcome.status == "failed"
    assert outcome.checks[0] == Check("a", "b", "c", "passed")
    assert outcome.checks[1].verdict == "failed" and "ValueError: a reason" in outcome.checks[1].actual
    assert run_stages(tmp_path, "pass").status == "failed", "a failed stage must not be repeated"


@pytest.mark.slow
def test_processes_of_a_stage_end_with_it(tmp_path: Path) -> None:
    child = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); time.sleep(600)"
    outcome = run_stages(tmp_path, child, limit=8)
    assert outcome.status == "timed out"
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    wait_until(lambda: not state.exists() or " Z " in state.read_text())


@pytest.mark.slow
def test_an_interrupted_stage_is_repeated(tmp_path: Path) -> None:
    Results("stage_0", tmp_path / "results").check("a", "b", "c", True)
    assert run_stages(tmp_path, "results.check('d', 'e', 'f', False)").checks == [Check("d", "e", "f", "failed")]


@pytest.mark.slow
def test_terminating_the_command_ends_its_stage(tmp_path: Path) -> None:
    call = command("--device", "cpu", "--small", "--out", tmp_path, "--stages", "losses")
    with subprocess.Popen(call, env=ENVIRONMENT) as process:
        while read_outcome(tmp_path / "results", "losses") is None:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    found = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert found == ""


# --- Checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_small", "on_gpu"), [(True, False), (False, True)])
def test_commands_of_goals_repeat_no_option(is_small: bool, on_gpu: bool) -> None:
    commands = [words for goal in GOALS if (words := shlex.split(goal.command))[:3] == ["nmt", "bench", "train"]]
    assert commands
    for words in commands:
        changed = training_command(words, Path("out.json"), is_small=is_small, on_gpu=on_gpu)
        options = [word for word in changed if word.startswith("--")]
        assert len(options) == len(set(options))
        assert changed[changed.index("--json") + 1] == "out.json"
        assert ("--compile" in changed) == ("--compile" in words and on_gpu)


def test_different_losses_fail() -> None:
    reference = np.linspace(8, 3, 200)
    for dropout in (0.0, 0.1):
        for scale in (1.0, 1.05, np.nan):
            compared = _distances(LIMITS["fp32"], reference, list(reference * scale), dropout)
            for name, limit, distance in compared:
                assert distance is not None and (distance <= limit) == (scale == 1.0), name
    assert [distance for *_, distance in _distances(LIMITS["fp32"], reference, None, 0.0)] == [None, None]


def test_failed_and_skipped_tests_are_counted(tmp_path: Path) -> None:
    case = '<testcase classname="tests.gpu.test_x" name="test_a_b[{}]">{}</testcase>'
    cases = [case.format(1, ""), case.format(2, '<failure message="no"/>'), case.format(3, '<skipped message="why"/>')]
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    ((name, counts),) = _read(tmp_path / "tests.xml").items()
    assert (name, counts.passed, counts.failed, counts.skipped) == ("test_x: a b", 1, ["test_a_b[2]"], ["why"])


def test_the_equal_fraction_is_that_of_equal_lines() -> None:
    assert equal_fraction(["a", "b", "c", "d"], ["a", "x", "c", "d"]) == 0.75


def test_success_needs_a_measured_check_and_no_failure() -> None:
    verdicts: tuple[Verdict, ...] = ("passed", "failed", "not measured")
    passed, failed, not_measured = (Check("n", "e", "s", verdict) for verdict in verdicts)
    assert all_passed([Outcome("a", checks=[passed, not_measured]), Outcome("b")])
    assert not all_passed([Outcome("a", checks=[passed]), Outcome("b", checks=[failed])])
    assert not all_passed([Outcome("a", checks=[not_measured])])


def test_the_table_has_a_row_per_check_and_the_report_only_stages_with_notes() -> None:
    checks = [Check("a|b", "e", "two\nlines", "passed"), Check("n", "e", "s", "not measured")]
    table = format_table([Outcome("machine", "done", checks=checks)])
    assert "| machine | a\\|b | e | two lines | passed |\n| machine | n | e |  | not measured: s |" in table
    assert "Not run yet: tests, " in table
    assert "## machine" not in format_report([Outcome("machine", "done")])


def test_every_gpu_goal_is_a_stage_with_a_valid_command() -> None:
    expected = [goal for goal in GOALS if "-gpu-" in goal.name]
    assert list(GPU_GOALS) == expected and len(expected) >= 8
    assert [stage.name for stage in STAGES if stage.name.startswith("speed:")] == [f"speed:{g.name}" for g in expected]
    for goal in expected:
        peer = other_system(goal)
        if peer is not None:
            options = bench_parser().parse_args(goal.command.split()[1:])
            assert peer in PEERS and options.goal == goal.name and options.device == "cuda"
            assert options.theirs.partition(":")[0] == peer


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("goal", [goal for goal in GPU_GOALS if goal.name.startswith("file-")], ids=lambda g: g.name)
def test_goals_of_files_translate_with_the_quickstart_model(
    goal: Goal, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes, commands = list[Recipe](), list[Sequence[str]]()

    def train(recipe: Recipe) -> Path:
        recipes.append(recipe)
        return tmp_path / "model"

    def run(command: Sequence[str]) -> str:
        commands.append(command)
        side = Measurement("nmt", {"BLEU": "95.00"}, {}, 0.0, [1.5, 1.5])
        comparison = Comparison(side, side, Ratio(5.0, 5.0, 5.0))
        work = {"task": "file", "num_lines": 3, "beam_size": 5}
        add_entries([comparison_entry(goal.name, work, comparison, "command", "")], tmp_path / "ledger")
        return ""

    monkeypatch.setattr(measured_goals, "trained_model", train)
    monkeypatch.setattr(measured_goals, "_run", run)
    results = Results(f"speed:{goal.name}", tmp_path / "results")
    measured_goals.measure(Settings(device, True, str(tmp_path)), results, goal)
    assert recipes[0].train.device == device
    options = bench_parser().parse_args(commands[0][len(measured_goals._BENCH) :])
    assert (options.device, options.model, options.rounds) == (device, tmp_path / "model", 2)
    source, ref = (path.read_text().splitlines() for path in (options.source, options.ref))
    assert len(source) == len(ref) == 3 and not set(source) & set(ref)
    assert options.loaded == ("--loaded" in goal.command)
    own = bench_parser().parse_args(shlex.split(goal.command)[1:])
    systems = (own.ours, own.theirs) if device == "cuda" else ("nmt", other_system(goal))
    assert (options.ours, options.theirs) == systems
    assert results.outcome.notes[:2] == ["nmt: 2.00 s (median), BLEU 95.00."] * 2
    assert [check.verdict for check in results.outcome.checks] == ["passed" if device == "cuda" else "not measured"]


def test_a_system_that_is_missing_or_fails_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, settings = Results("speed", tmp_path / "results"), Settings("cuda", False, str(tmp_path))
    monkeypatch.setattr(speed_stage, "find_spec", lambda _: None)
    speed_stage.run(settings, results, "file-gpu-int8")
    monkeypatch.setattr(measured_goals, "_file_options", lambda _: [])
    output = "bench: ctranslate2 failed: python failed with exit status 1; its last output:\n  no libcublas"
    script = f"import sys; sys.exit({output!r})"
    monkeypatch.setattr(measured_goals, "_BENCH", (sys.executable, "-c", script))
    measured_goals.measure(settings, results, BY_NAME["file-gpu-int8"])
    assert [(check.verdict, check.actual) for check in results.outcome.checks] == [
        ("not measured", "ctranslate2 is not installed"),
        ("not measured", f"{output.partition(chr(10))[0]} no libcublas"),
    ]


# --- Packages ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_missing_and_outdated_packages_are_found() -> None:
    required = packages.requirements()
    assert {"torch", "sacremoses", "tomli-w", "pytest", "hypothesis"} <= {one.name for one in required}
    assert packages.missing(required, packages.installed()) == []
    present = {**packages.installed(), "typer": "0.9.4"}
    del present["sacremoses"]
    lacking = packages.missing(required, present)
    assert [str(one) for one in lacking] == ["sacremoses>=0.1.1", "typer>=0.29"]
    own, peers = packages.download_commands(lacking)
    assert own.startswith("python3 -m pip download --only-binary=:all: ")
    assert own.endswith("--dest=wheels 'sacremoses>=0.1.1' 'typer>=0.29'")
    assert "--no-deps" in peers and "torch" not in f"{own} {peers}"
    with pytest.raises(ValueError, match="must have the form"):
        packages.Requirement.parse("torch==2.13.0")


@pytest.mark.parametrize(
    ("version", "words"), [(None, "torch is not installed"), ("2.10.0", "the checks are written for 2.11 to 2.13")]
)
def test_unsupported_torch_gives_a_warning(version: str | None, words: str) -> None:
    assert words in (packages.torch_problem({} if version is None else {"torch": version}) or "")
    assert packages.torch_problem({"torch": "2.11.0+cu130"}) is None


def test_other_systems_are_pinned_as_in_bench() -> None:
    pinned = {peer.package for peer in PEERS.values()} | {
        name for peer in PEERS.values() for name in peer.dependencies.split()
    }
    unknown = [name for name in packages.PEER_PACKAGES if name not in pinned]
    assert unknown == []
    for goal in GPU_GOALS:
        peer = other_system(goal)
        assert peer is None or any(name.startswith(f"{peer}==") for name in packages.PEER_PACKAGES)


def write_wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_wheels_of_missing_packages_are_installed_but_never_torch(tmp_path: Path) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "packages"
    wheels.mkdir()
    for name, version in (
        ("missing_one", "2.0"),
        ("old_one", "3.0"),
        ("there", "9.9"),
        ("torch", "2.99"),
        ("nvidia_x", "1"),
    ):
        write_wheel(wheels, name, version)
    required = [packages.Requirement.parse(text) for text in ("missing-one>=2.0", "old-one>=3.0", "there>=1.0")]
    assert packages.install(wheels, target, required, {"old-one": "1.0", "there": "1.5"}) is None
    assert packages.installed([str(target)]) == {"missing-one": "2.0", "old-one": "3.0"}
    (wheels / "bad-1.0-py3-none-any.whl").write_text("no zip")
    assert packages.install(wheels, target, required, {"old-one": "1.0"}) is not None
