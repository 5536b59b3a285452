"""Sweeps: variants of a recipe, each run with several seeds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from pydantic import Field, ValidationError

from nmt.errors import CommandError, RecipeError
from nmt.logs import say
from nmt.recipe import Recipe, explain, load_recipe
from nmt.recipe.corpora import Section

# A comma outside of brackets, braces and quotation marks.
_COMMA = re.compile(r""",(?=(?:[^\[\]{}"']|\[[^\[\]]*\]|\{[^{}]*\}|"[^"]*"|'[^']*')*$)""")


class SweepFile(Section):
    """A sweep file."""

    recipe: str
    """Recipe: a name from `nmt recipes`, or a path relative to this file."""
    seeds: int = Field(3, gt=0)
    """Runs per variant, with consecutive seeds starting at the recipe's."""
    overrides: list[str] = Field(default_factory=list)
    """Options of all variants: section.key=value."""
    variants: dict[str, list[str]] = Field(min_length=1)
    """Options by variant name. The first variant is the baseline."""


@dataclass(frozen=True)
class Run:
    """One run of a sweep.

    number:    position in the sweep, counted from 1
    overrides: all differences from the recipe file, including seed and run directory
    recipe:    recipe with these overrides
    """

    number: int
    variant: str
    recipe_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.variant}, seed {self.recipe.seed}"


@dataclass(frozen=True)
class Sweep:
    """Variants of a recipe, with the options of each by name; the first is the baseline."""

    recipe_file: Path
    seeds: int
    overrides: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]

    def runs(self, directory: Path) -> list[Run]:
        """Return all runs, in subdirectories of `directory`.

        All variants run with one seed before the next, which allows a comparison after each seed. Raises RecipeError
        for invalid variants.
        """
        folders = {name: re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "variant" for name in self.variants}
        if len({folder.casefold() for folder in folders.values()}) < len(folders):
            raise RecipeError(f"two of the variants {', '.join(folders)} map to the same directory name; rename one")
        recipes = {name: self._load(name)[1] for name in self.variants}
        for name, other in combinations(recipes, 2):
            if recipes[name].model_dump(exclude={"name"}) == recipes[other].model_dump(exclude={"name"}):
                raise RecipeError(f"variants {name} and {other} have the same options; correct or remove one of them")
        runs: list[Run] = []
        for index in range(self.seeds):
            for name in self.variants:
                seed = recipes[name].seed + index
                run_dir = directory / folders[name] / f"seed-{seed}"
                overrides, recipe = self._load(name, f"seed={seed}", f"run_dir={run_dir}")
                runs.append(Run(len(runs) + 1, name, self.recipe_file, overrides, recipe))
        return runs

    def _load(self, variant: str, *more: str) -> tuple[tuple[str, ...], Recipe]:
        if "seed" in map(_key, self.variants[variant]):
            raise RecipeError(
                f"variant {variant} sets seed; all variants have the same seeds; remove it, or set it for all"
            )
        overrides = merge_overrides(self.overrides, self.variants[variant])
        if "run_dir" in map(_key, overrides):
            raise RecipeError(
                "run_dir cannot be set; each run has its own directory; choose the parent directory with -o"
            )
        overrides = merge_overrides(overrides, more)
        try:
            return overrides, load_recipe(self.recipe_file, overrides)
        except RecipeError as error:
            if not self.variants[variant]:
                raise
            raise RecipeError(f"variant {variant}: {error}") from error


def is_sweep(path: Path) -> bool:
    """Return whether a file is a sweep rather than a recipe."""
    try:
        return not {"recipe", "variants"}.isdisjoint(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError):
        return False


def load_sweep(path: Path, find_recipe: Callable[[str], Path], seeds: int | None, overrides: Sequence[str]) -> Sweep:
    """Load a sweep file; `seeds` and `overrides` take precedence over its own, but not over the options of a variant.

    Raises RecipeError for an invalid file, and if every variant sets an overridden option.

    find_recipe: returns the path of a packaged recipe, or the path itself
    """
    try:
        file = SweepFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except ValidationError as error:
        raise RecipeError(
            f"{path}: {explain(error, SweepFile)}; a sweep has recipe, seeds, overrides and [variants]"
        ) from error
    relative = path.parent / file.recipe
    recipe = relative if relative.is_file() else find_recipe(file.recipe)
    variants = {name: tuple(options) for name, options in file.variants.items()}
    _require_effect(overrides, variants)
    return Sweep(recipe, seeds or file.seeds, merge_overrides(file.overrides, overrides), variants)


def make_sweep(recipe: Path, seeds: int, overrides: Sequence[str], varied: Sequence[str]) -> Sweep:
    """Create a sweep over all combinations of `key=A,B,...`, or over the recipe alone if `varied` is empty.

    Raises RecipeError for a malformed entry or a repeated key.
    """
    choices = [_split_values(text) for text in varied]
    keys = [_key(text) for text in varied]
    if repeated := {key for key in keys if keys.count(key) > 1}:
        raise RecipeError(f"--vary {min(repeated)} is given twice; give all its values at once, as KEY=A,B")
    if "seed" in keys:
        raise RecipeError("--vary seed is not supported; each variant has the same seeds; use --seeds N")
    variants = {" ".join(map(_short_name, options)) or recipe.stem: options for options in product(*choices)}
    _require_effect(overrides, variants)
    return Sweep(recipe, seeds, tuple(overrides), variants)


def _require_effect(overrides: Sequence[str], variants: Mapping[str, Sequence[str]]) -> None:
    """Log which variants set an overridden option themselves; raise RecipeError if all do."""
    for override in overrides:
        setting = [name for name, options in variants.items() if _key(override) in map(_key, options)]
        if len(setting) == len(variants):
            raise RecipeError(f"{override} has no effect, because every variant sets {_key(override)}; leave it out")
        if setting:
            say(f"{override} does not apply to variants that set {_key(override)} themselves: {', '.join(setting)}")


def merge_overrides(earlier: Sequence[str], later: Sequence[str]) -> tuple[str, ...]:
    """Concatenate overrides; later ones replace earlier ones of the same key."""
    keys = set(map(_key, later))
    return (*(override for override in earlier if _key(override) not in keys), *later)


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _split_values(text: str) -> list[str]:
    """Split `key=A,B,...` into the overrides `key=A`, `key=B`, ...; an empty A stands for the default."""
    key, sign, values = text.partition("=")
    first, *others = parts = [part.strip() for part in _COMMA.split(values)]
    is_valid = (first or others) and all(others) and len(set(parts)) == len(parts)
    if not sign or not key.strip() or not is_valid:
        raise RecipeError(
            f"--vary {text}: it must be KEY=A,B with different values, such as model.num_heads=4,8; only A may be empty"
        )
    return [f"{key.strip()}={value}" for value in parts]


def _short_name(override: str) -> str:
    """Return an override without the section of its key; an empty value is written as `default`."""
    key, _, value = override.partition("=")
    return f"{key.rpartition('.')[2]}={value or 'default'}"


def require_translations(runs: Sequence[Run]) -> None:
    """Raise CommandError for a language model, whose runs have no translations to compare."""
    if models := [run for run in runs if run.recipe.is_language_model]:
        raise CommandError(
            f"{models[0].recipe_file} trains a language model; nmt repeat compares translations; run each seed with "
            "`nmt run`, whose reports have the perplexities"
        )


def require_own_folder(folder: Path, runs: Sequence[Run]) -> None:
    """Raise CommandError if the report of a sweep would overwrite that of a run, or another file."""
    if (folder / "recipe.toml").exists():
        raise CommandError(
            f"{folder} is a run, whose report would be lost; -o must be a separate folder; choose another"
        )
    names = "report.md", "report.json", *(f"{test}.png" for test in runs[0].recipe.data.test)
    reports = [name for name in names if (folder / name).exists()]
    if reports and not any(run.recipe.directory.exists() for run in runs):
        raise CommandError(
            f"{folder} has {' and '.join(reports)}, which this command would overwrite; -o must be a separate "
            "folder; choose another"
        )
