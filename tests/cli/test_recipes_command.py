"""The recipes that come with nmt: listed, copied, called by name, and in the wheel."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from nmt import pipeline
from nmt.recipe import Recipe
from nmt.recipe.packaged import packaged_recipes
from tests.calling import Nmt, one_line

ROOT = Path(__file__).resolve().parents[2]


def test_all_are_listed_and_one_is_copied(nmt: Nmt, tmp_path: Path) -> None:
    _, listed, _ = nmt("recipes")
    names = {path.stem for path in (ROOT / "recipes").rglob("*.toml")}
    assert {line.split()[0] for line in listed.splitlines()} == names
    assert "  Multi30k English-German with the settings of Wu et al. 2021\n" in listed
    out = tmp_path / "mine.toml"
    assert nmt("recipes", "quickstart", "-o", out) == (0, f"{out}\n", "")
    shown = (ROOT / "recipes" / "quickstart.toml").read_text()
    assert out.read_text() == nmt("recipes", "quickstart")[1] == shown
    status, _, err = nmt("recipes", "tatoeba-en-de", "-o", out)
    assert status == 1 and "already exists" in one_line(err)
    assert out.read_text() == shown


def test_file_takes_precedence_over_packaged_recipe(nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = nmt("config", "quickstart")
    assert status == 0 and 'name = "quickstart"' in out
    assert err.startswith("quickstart comes with nmt; to edit a copy: nmt recipes quickstart -o ")
    (tmp_path / "quickstart").mkdir()
    assert nmt("config", "quickstart") == (status, out, err)
    (tmp_path / "quickstart").rmdir()
    (tmp_path / "quickstart").write_text(packaged_recipes()["tatoeba-en-de"].read_text())
    status, out, err = nmt("config", "quickstart")
    assert (status, err) == (0, "") and 'name = "tatoeba-en-de"' in out


def test_only_the_first_rank_says_where_a_recipe_comes_from(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        status, _, err = nmt("config", "quickstart")
        assert (status, err.count("quickstart comes with nmt")) == (0, lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipes", "nope"], "no such recipe; it must be one of "),
        (["recipes", "-o", "x.toml"], "needs the name of a recipe"),
        (["config", "nope"], "or a name that `nmt recipes` lists"),
        (["run", "quickstrat"], "quickstrat does not exist; did you mean quickstart, which `nmt recipes` lists?"),
    ],
    ids=str,
)
def test_a_wrong_call_is_one_line(nmt: Nmt, words: list[str], message: str) -> None:
    status, _, err = nmt(*words)
    assert status == 2 and message in one_line(err)


@pytest.mark.slow
def test_wheel_and_source_distribution_contain_what_is_needed(tmp_path: Path) -> None:
    """Build without network access, then unpack the wheel and use it from another folder."""
    building = "from setuptools import build_meta as b; print(b.build_wheel({0!r}), b.build_sdist({0!r}))"
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    for name in ("nmt", "recipes", "tests"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", building.format(str(tmp_path))], cwd=copy, check=True, capture_output=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    recipes = {f"nmt/recipes/{path.relative_to(copy / 'recipes')}" for path in (copy / "recipes").rglob("*.toml")}
    pages = {f"nmt/guide/{path.name}" for path in (copy / "nmt" / "guide").glob("*.md")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert recipes | pages | {"nmt/py.typed"} <= names
        assert not any(name.startswith(("tests/", "tools/")) for name in names)
        archive.extractall(tmp_path / "site")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert names >= recipes | pages | {"CHANGELOG.md"}
        assert not any(name.startswith("tests/") for name in names)  # incomplete without the helper modules
    used = [
        sys.executable,
        "-c",
        "import nmt, sys; sys.argv[1:] = ['config', 'quickstart']; from nmt.cli import main; main()",
    ]
    (tmp_path / "elsewhere").mkdir()
    called = subprocess.run(
        used, cwd=tmp_path / "elsewhere", env={"PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True
    )
    assert called.returncode == 0 and 'name = "quickstart"' in called.stdout


@pytest.mark.parametrize("command", ["run", "train"])
def test_seed_and_threads_are_overrides(command: str, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Recipe] = []
    monkeypatch.setattr(pipeline, command, given.append)
    assert nmt(command, "quickstart", "train.max_steps=7", "--seed", 5, "--threads", 3)[0] == 0
    assert (given[0].seed, given[0].train.threads, given[0].train.max_steps) == (5, 3, 7)
