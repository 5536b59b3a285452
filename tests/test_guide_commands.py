"""Every command line of README and guide: its options, recipes, overrides and tools exist."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nmt.cli.arguments import find_recipe
from nmt.cli.program import COMMANDS, app
from nmt.experiments.sweep import is_sweep, load_sweep, make_sweep
from nmt.recipe import DecodeRecipe, load_classification_recipe, load_recipe
from nmt.recipe.packaged import packaged_files
from nmt.recipe.toml import override_decode
from tests.test_readme import LANGUAGE_MODEL

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "nmt" / "guide").glob("*.md"))]
GLOBAL_OPTIONS = {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
# Recipes that the reader of the guide has written, and packaged recipes by the name of the reader's copy.
OWN_RECIPES = ("mine.toml", "first.toml", "RECIPE")
COPIED_RECIPES = {"reviews.toml": "imdb"}


def blocks(path: Path, languages: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^ *```(?:{languages})\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)


def shell_lines(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line, and those of commands in quotation marks."""
    for line in "".join(blocks(path, "ba?sh|sh")).replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        yield words
        yield from (shlex.split(word) for word in words if word.startswith("nmt "))


def nmt_arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of `nmt` in the words of a line, up to a pipe or redirection, with 1 for each variable."""
    if "nmt" not in words:
        return None
    words = words[words.index("nmt") + 1 :]
    words = words[: next((index for index, word in enumerate(words) if word in ("|", ">")), len(words))]
    return ["1" if word.startswith("$") else word for word in words]


def with_id(page: Path, words: list[str]) -> Any:
    """Return the words as a test parameter, whose id names the page."""
    return pytest.param(words, id=f"{page.stem}: {' '.join(words)}")


TYPED = [
    with_id(page, arguments)
    for page in PAGES
    for words in shell_lines(page)
    if (arguments := nmt_arguments(words)) is not None
]
MENTIONED = [
    with_id(page, shlex.split(text)[1:])
    for page in PAGES
    for text in re.findall(r"`(nmt [^`]+)`", page.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the recipes that the guide tells the reader to write."""
    path = tmp_path_factory.mktemp("reader")
    (path / "recipes").symlink_to(ROOT / "recipes")
    own = blocks(ROOT / "README.md", "toml")[0]
    (sweep,) = (text for text in blocks(ROOT / "nmt/guide/experiments.md", "toml") if "variants" in text)
    for name in OWN_RECIPES:
        (path / name).write_text(own)
    for name, packaged in COPIED_RECIPES.items():
        (path / name).write_bytes(find_recipe(packaged).read_bytes())
    (path / "lm.toml").write_text(LANGUAGE_MODEL)
    (path / "sweep.toml").write_text(sweep)
    return path


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that the words call after options of `nmt`, and its arguments."""
    while words[0] in GLOBAL_OPTIONS:
        words = words[1:]
    command = COMMANDS[words[0]].load(words[0])
    if hasattr(command, "commands") and len(words) > 1:
        return command.commands[words[1]], words[2:]
    return command, words[1:]


def check_recipe(name: str, recipe: Path, overrides: list[str], varied: list[str]) -> None:
    """Load a recipe as the command does; a missing recipe, an unknown option or a wrong value raises RecipeError."""
    if name == "repeat":
        if is_sweep(recipe):
            sweep = load_sweep(recipe, find_recipe, None, overrides)
        else:
            sweep = make_sweep(recipe, 1, overrides, varied)
        assert sweep.runs(Path("runs"))
    elif name == "train-classifier":
        load_classification_recipe(recipe, overrides)
    else:
        load_recipe(recipe, overrides)


@pytest.mark.slow
@pytest.mark.parametrize("words", TYPED)
def test_a_typed_command_parses_and_its_recipe_accepts_the_overrides(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    command, arguments = command_of(words)
    given = command.make_context(command.name, arguments).params
    recipe = Path(given.get("recipe") or given.get("model") or "")
    if "recipe" in given or recipe.suffix == ".toml":
        check_recipe(command.name, recipe, given.get("overrides") or [], given.get("vary") or [])
    if command.name == "recipes":
        assert given["name"] in (None, *packaged_files())
    if settings := given.get("settings"):
        override_decode(DecodeRecipe(), settings)


@pytest.mark.slow
@pytest.mark.parametrize("words", MENTIONED)
def test_a_mentioned_command_and_its_options_exist(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if set(words) <= GLOBAL_OPTIONS:
        return
    command, arguments = command_of(words)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in arguments if word.startswith("-")} <= known
    overrides = [word for word in arguments if "=" in word]
    if overrides:
        check_recipe(command.name, find_recipe(arguments[0]), overrides, [])


def test_extras_and_tools_of_command_lines_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    installed: list[str] = []
    tools: list[str] = []
    for page in PAGES:
        for named in re.findall(r"pip install (?:-e )?'(?:nmt|\.)\[([\w,]+)\]'", page.read_text(encoding="utf-8")):
            installed += named.split(",")
        for words in shell_lines(page):
            tools += [word for word in words if word.startswith("tools/")]
    assert installed and set(installed) <= set(extras)
    assert tools and [tool for tool in tools if not (ROOT / tool).is_file()] == []
