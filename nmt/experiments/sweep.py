"""What an experiment consists of: variants of one recipe, and a run of each variant with each seed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import Field, ValidationError

from nmt.recipe import Recipe, RecipeError, load_recipe
from nmt.recipe.corpora import Section

# A comma that no bracket and no quotation mark encloses.
_COMMA = re.compile(r""",(?=(?:[^\[\]"']|\[[^\[\]]*\]|"[^"]*"|'[^']*')*$)""")


class SweepFile(Section):
    """A file that describes an experiment."""

    recipe: str
    """A recipe: the name of one of `nmt recipes`, or a file, relative to this one."""
    seeds: int = Field(3, gt=0)
    """Runs of each variant, with consecutive seeds from that of the recipe on."""
    overrides: list[str] = Field(default_factory=list)
    """Options for all variants: section.key=value."""
    variants: dict[str, list[str]] = Field(min_length=1)
    """Options of each variant, by its name; the first variant is the one that the others are compared with."""


@dataclass(frozen=True)
class Run:
    """One run of an experiment.

    number:    its place among all, from 1
    overrides: all that differs from the recipe file, seed and run directory included
    recipe:    the recipe with these options
    """

    number: int
    variant: str
    recipe_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return f"{self.variant}, seed {self.recipe.seed}"


@dataclass(frozen=True)
class Sweep:
    """An experiment: options of each variant by its name, the baseline first."""

    recipe_file: Path
    seeds: int
    overrides: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]

    def runs(self, directory: Path) -> list[Run]:
        """All runs, each seed of every variant before the next seed, in subfolders of `directory`.

        So the table is complete after each seed. Raises RecipeError where a variant makes no valid recipe.
        """
        folders = {name: re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "variant" for name in self.variants}
        if len({folder.casefold() for folder in folders.values()}) < len(folders):
            raise RecipeError(f"variants {', '.join(folders)} have names too much alike for folders; rename one")
        first = {name: self._load(name).seed for name in self.variants}
        return [
            self._run(number, name, first[name] + place, directory / folders[name])
            for number, (place, name) in enumerate(product(range(self.seeds), self.variants), start=1)
        ]

    def _run(self, number: int, variant: str, seed: int, directory: Path) -> Run:
        place = directory / f"seed-{seed}"
        own = (f"seed={seed}", f"run_dir={place}")
        return Run(number, variant, self.recipe_file, (*self._overrides(variant), *own), self._load(variant, own))

    def _load(self, variant: str, own: tuple[str, ...] = ()) -> Recipe:
        try:
            return load_recipe(self.recipe_file, (*self._overrides(variant), *own))
        except RecipeError as error:
            raise RecipeError(f"variant {variant}: {error}") from error

    def _overrides(self, variant: str) -> tuple[str, ...]:
        """The options of a variant; those of its own replace those for all."""
        own = self.variants[variant]
        replaced = {one.partition("=")[0] for one in own}
        return (*(one for one in self.overrides if one.partition("=")[0] not in replaced), *own)


def is_sweep(path: Path) -> bool:
    """Whether a file is a sweep and no recipe."""
    try:
        return "variants" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False


def load_sweep(path: Path, find_recipe: Callable[[str], Path], seeds: int | None, overrides: Sequence[str]) -> Sweep:
    """The experiment that a file describes; `seeds` and `overrides` come on top. Raises RecipeError.

    find_recipe: the file of a recipe that comes with nmt, or the path itself
    """
    try:
        file = SweepFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecipeError(
            f"{path}: {where}: {first['msg']}; a sweep has recipe, seeds, overrides and [variants]; correct it"
        ) from error
    beside = path.parent / file.recipe
    recipe = beside if beside.is_file() else find_recipe(file.recipe)
    variants = {name: tuple(own) for name, own in file.variants.items()}
    return Sweep(recipe, seeds or file.seeds, _replaced(file.overrides, overrides), variants)


def make_sweep(recipe: Path, seeds: int, overrides: Sequence[str], varied: Sequence[str]) -> Sweep:
    """The experiment of all combinations of `key=A,B,...`; without any, the recipe itself.

    Raises RecipeError where a text is not of this form or names a key twice.
    """
    choices = [list(_choices(one)) for one in varied]
    keys = [choice[0].partition("=")[0] for choice in choices]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise RecipeError(f"--vary {min(twice)} is given twice; give all its values at once, as KEY=A,B")
    variants = {" ".join(map(_short, one)) or recipe.stem: one for one in product(*choices)}
    return Sweep(recipe, seeds, tuple(overrides), variants)


def _replaced(earlier: Sequence[str], later: Sequence[str]) -> tuple[str, ...]:
    """Both lists of overrides; where they name the same option, the later one counts."""
    names = {one.partition("=")[0] for one in later}
    return (*(one for one in earlier if one.partition("=")[0] not in names), *later)


def _choices(text: str) -> Iterator[str]:
    """The overrides of `key=A,B,...`."""
    key, sign, values = text.partition("=")
    parts = [part.strip() for part in _COMMA.split(values)]
    if not sign or not key.strip() or not all(parts) or len(set(parts)) < len(parts):
        raise RecipeError(
            f"--vary {text}: it must be KEY=A,B, all values different, as model.num_heads=4,8; correct it"
        )
    for value in parts:
        yield f"{key.strip()}={value}"


def _short(override: str) -> str:
    """An override without the section of its key, for the name of a variant."""
    key, _, value = override.partition("=")
    return f"{key.rpartition('.')[2]}={value}"
