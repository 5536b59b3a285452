"""Scripts, `tools/parity`, pinned versions, environments and `tools/load-balance`."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import load_balance
import parity_table
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nmt.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    *sorted(f"tools/{path.name}" for path in (ROOT / "tools").iterdir() if path.is_file() and not path.suffix),
    "tools/bench/run",
    ".ci/run",
]
CONSTRAINTS = [
    line
    for line in (ROOT / "tools/constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PINNED = dict(line.split("==") for line in CONSTRAINTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_strict_bash(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    subprocess.run(["bash", "-n", path], check=True)


def test_parity_reports_a_missing_file_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["parity", "model", str(tmp_path / "src"), str(tmp_path / "ref")])
    assert parity_table.main() == 1
    assert capsys.readouterr().err.startswith(f"parity: cannot read {tmp_path / 'src'}: ")


@pytest.mark.parametrize(
    ("src", "ref", "options", "message"),
    [
        ("a\nb\n", "a\n", ["--lines", "1"], "has 2 lines and {}/ref has 1; they must match line by line; check both"),
        ("", "", [], "{}/src is empty; it must have one sentence per line; check the file"),
        ("a\n", "a\n", ["--lines", "0"], "--lines must be at least 1, got 0"),
        ("a\n", "a\n", ["--beam-size", "0"], "--beam-size must be at least 1, got 0"),
        ("a\n", "a\n", ["--length-alpha", "-1"], "--length-alpha must be between 0 and 10, got -1.0"),
    ],
)
def test_parity_rejects_wrong_arguments(
    src: str,
    ref: str,
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "src").write_text(src)
    (tmp_path / "ref").write_text(ref)
    monkeypatch.setattr(sys, "argv", ["parity", "model", str(tmp_path / "src"), str(tmp_path / "ref"), *options])
    try:
        assert parity_table.main() == 1
    except SystemExit as ended:
        assert ended.code == 2
    assert capsys.readouterr().err.endswith(f"{message.format(tmp_path)}\n")


def test_quickstart_rejects_unknown_options() -> None:
    wrong, usage = (
        subprocess.run([ROOT / "tools/quickstart", option], capture_output=True, text=True, check=False)
        for option in ("--lines", "--help")
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines() == [
        "quickstart: unknown option --lines; the arguments are sentences; see tools/quickstart --help"
    ]
    assert usage.returncode == 0 and "translates your sentences, one per argument" in usage.stdout


def test_continuous_integration_runs_tools_test() -> None:
    assert "tools/test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_constraints_are_exact_and_sorted() -> None:
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line) for line in CONSTRAINTS)
    assert [name.lower() for name in PINNED] == sorted(name.lower() for name in PINNED)
    assert len(PINNED) == len(CONSTRAINTS)
    assert PINNED["torch"] == "2.13.0"


def test_constraints_satisfy_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    required = [*project["project"]["dependencies"], *(name for extra in extras for name in extra)]
    pinned = {canonicalize_name(name): version for name, version in PINNED.items()}
    for requirement in map(Requirement, [*required, *project["build-system"]["requires"]]):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_oldest_constraints_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    lines = (ROOT / "tools/constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    bounds = {one.name: str(one.specifier).removeprefix(">=") for one in map(Requirement, required)}
    for name in bounds.keys() - {"torch", "mypy", "ruff"}:  # torch: see the file; mypy and ruff are not tested
        assert pinned[name] in (bounds[name], f"{bounds[name]}.0", f"{bounds[name]}.0.0"), name


def fake_python(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """Make an environment whose Python only logs its arguments.

    Returns the folder of the environment, the log, and the environment variables that select the environment. With the
    variable FAIL, installations fail.
    """
    venv, log = tmp_path / "venv", tmp_path / "log"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$*" >>"{log}"\n[[ -z ${{FAIL-}} || $* != *install* ]]\n')
    python.chmod(0o755)
    return venv, log, {**os.environ, "NMT_VENV": str(venv)}


def test_the_environment_is_created_once(tmp_path: Path) -> None:
    venv, log, environment = fake_python(tmp_path)

    def make() -> tuple[str, list[str]]:
        log.write_text("")
        done = subprocess.run(
            [ROOT / "tools/environment"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout, [line for line in log.read_text().splitlines() if "pip install" in line]

    printed, installs = make()
    assert printed == f"{venv}\n"
    assert "torch==2.13.0" in installs[0], "torch must be installed first, with its exact version"
    assert "--editable" in installs[1]
    assert all(f"--constraint {ROOT / 'tools/constraints.txt'}" in line for line in installs)
    assert make() == (f"{venv}\n", [])


def test_an_environment_is_incomplete_after_a_failed_installation(tmp_path: Path) -> None:
    venv, _, environment = fake_python(tmp_path)
    tool = [ROOT / "tools/environment"]
    subprocess.run(tool, env=environment, capture_output=True, check=True)
    (tmp_path / "other.txt").write_text("torch==1.0\n")
    changed = {**environment, "NMT_CONSTRAINTS": str(tmp_path / "other.txt"), "FAIL": "yes"}
    assert subprocess.run(tool, env=changed, capture_output=True, check=False).returncode == 1
    repaired = subprocess.run(tool, env=environment, capture_output=True, text=True, check=True)
    assert "installing nmt" in repaired.stderr and repaired.stdout == f"{venv}\n"


def test_arguments_of_tools_test_go_to_pytest_and_coverage_is_reported(tmp_path: Path) -> None:
    _, log, environment = fake_python(tmp_path)
    for arguments, started in (
        (["tests/model", "-x"], ["-m pytest tests/model -x"]),
        (
            ["--coverage", "tests/model"],
            ["-m coverage run -m pytest tests/model", "-m coverage combine", "-m coverage report"],
        ),
    ):
        log.write_text("")
        subprocess.run([ROOT / "tools/test", *arguments], env=environment, capture_output=True, check=True)
        lines = log.read_text().splitlines()
        ran = lines[lines.index("-m mypy --strict") + 1 :]
        assert len(ran) == len(started) and all(map(str.startswith, ran, started))


def test_an_old_python_is_a_one_line_error(tmp_path: Path) -> None:
    for tool in ("bash", "cat", "cksum", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
    old = tmp_path / "python3"
    old.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    old.chmod(0o755)
    environment = {"PATH": str(tmp_path), "NMT_VENV": str(tmp_path / "venv")}
    done = subprocess.run(
        ["bash", ROOT / "tools/environment"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("environment: found no Python 3.11 or newer")
    assert done.stderr.count("\n") == 1


def test_load_balance_prints_a_row_per_number_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(ROOT / "recipes/wmt14-en-de-big.toml")
    assert load_balance.main([recipe, "1", "8", "--set", "train.batch_tokens=5_000"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    processes, micro_batches, _, _, useful = zip(*cells, strict=True)
    assert processes == ("1", "8")
    assert micro_batches == ("1.00", "8.00")
    assert all(float(percentage.rstrip("%")) > 97 for percentage in useful)


def test_random_lengths_of_a_language_model_have_no_source_tokens(tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "recipes/tatoeba-en-lm.toml", [f"run_dir={tmp_path}", "train.batch_tokens=100"])
    store, _ = load_balance.lengths_of(recipe, None, tmp_path)
    assert store.src.lengths.sum() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.toml"], "cannot read recipe missing.toml"),
        (["{}", "0"], "PROCESSES must be at least 1, got 0"),
        (["{}", "3", "--set", "train.micro_batches=8"], "with 3 processes; it must be a multiple of 3"),
        (["{}", "--set", "train.micro_batch_tokens=auto"], "it must be a number here"),
        (["{}", "--lengths", "nowhere"], "nowhere"),
    ],
)
def test_load_balance_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(ROOT / "recipes/wmt14-en-de-big.toml")
    assert load_balance.main([argument.replace("{}", recipe) for argument in arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
