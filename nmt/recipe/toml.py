"""Recipes as TOML: loading, overrides and writing."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError

from nmt.errors import RecipeError, advice_on_encoding
from nmt.recipe.classification import ClassificationRecipe
from nmt.recipe.corpora import Corpus, CorpusOptions, Section
from nmt.recipe.decoding import DecodeRecipe, FinalDecodeRecipe
from nmt.recipe.former_options import upgrade_options
from nmt.recipe.packaged import packaged_files
from nmt.recipe.sections import SAVED, Recipe
from nmt.recipe.validation import explain, explain_with_origin, is_option

# The table whose keys are phrases, which may contain dots and spaces.
_PHRASES = ("decode", "bias")
# Keys that a recipe of a classifier does not have.
_TRANSLATION_KEYS = {"src_lang", "tgt_lang", "decode", "evaluate"}

Root = TypeVar("Root", bound=Section)


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a TOML recipe and apply overrides such as `train.max_steps=100`.

    path: a file, or the name of a recipe that comes with nmt, even if a directory has the same name

    Raises RecipeError for a missing file, invalid TOML, an unknown option or an invalid value, and TypeError for
    overrides that are not a list of strings.
    """
    return parse_recipe(_read(path), overrides, where=str(path))


def load_classification_recipe(path: Path | str, overrides: Sequence[str] = ()) -> ClassificationRecipe:
    """Load the recipe of a classifier; see `load_recipe`."""
    return _parse(ClassificationRecipe, _read(path), overrides, where=str(path))


def load_any_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe | ClassificationRecipe:
    """Load the recipe of a translation model or of a classifier; see `load_recipe`."""
    text, where = _read(path), str(path)
    tree = _tree(text, where)
    keys = tree.keys() | {override.partition("=")[0].partition(".")[0].strip() for override in overrides}
    if _is_for_classifier(tree) or ("data" in tree and keys.isdisjoint(_TRANSLATION_KEYS)):
        return _parse(ClassificationRecipe, text, overrides, where)
    return _parse(Recipe, text, overrides, where)


def _read(name: Path | str) -> str:
    path = Path(name)
    if path.is_dir() or not path.exists():
        path = packaged_files().get(str(name), path)
    try:
        return path.read_text(encoding="utf-8-sig")  # accepts a byte order mark
    except OSError as error:
        saved = path / "recipe.toml"
        file = saved if saved.is_file() else "a TOML file"
        raise RecipeError(
            f"cannot read recipe {path}: {error.strerror}; give {file}, or a name that `nmt recipes` lists"
        ) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path} is not UTF-8 text; save it as UTF-8") from error


def load_saved_recipe(path: Path) -> Recipe:
    """Read a recipe that a run saved, possibly with an earlier version."""
    try:
        return parse_saved_recipe(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"{path} is not a readable recipe; it must be unchanged since it was saved; copy it again"
        ) from error


def parse_saved_recipe(text: str) -> Recipe:
    """Parse a recipe that a run saved, possibly with an earlier version; raises ValueError if it is damaged."""
    tree = tomllib.loads(text)
    upgrade_options(tree)
    return Recipe.model_validate(tree, context=SAVED)


def parse_recipe(text: str, overrides: Sequence[str] = (), where: str = "recipe") -> Recipe:
    """Parse a TOML recipe and apply overrides; see `load_recipe`."""
    return _parse(Recipe, text, overrides, where)


def _tree(text: str, where: str) -> dict[str, Any]:
    """Parse TOML; raises RecipeError if it is invalid or a sweep."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where} is not valid TOML: {error}; fix that line") from error
    if "variants" in tree:
        raise RecipeError(f"{where} is a sweep; it must be a recipe; use nmt repeat")
    return tree


def _is_for_classifier(tree: dict[str, Any]) -> bool:
    data = tree.get("data")
    return isinstance(data, dict) and not data.keys().isdisjoint({"noise", "labels"})


def _parse(root: type[Root], text: str, overrides: Sequence[str], where: str) -> Root:
    tree = _tree(text, where)
    _apply_overrides(root, tree, overrides)
    for override in overrides:
        _require_utf8(override)
    if root is Recipe and _is_for_classifier(tree):
        raise RecipeError(f"{where} is for a classifier; it must be for a translation model; use nmt train-classifier")
    if root is ClassificationRecipe and "src_lang" in tree:
        raise RecipeError(f"{where} is for a translation model; it must be for a classifier; use nmt run")
    try:
        return root.model_validate(tree)
    except ValidationError as error:
        message = explain_with_origin(error, overrides, where, root)
        if root is Recipe and {"src_lang", "tgt_lang"}.isdisjoint(tree):
            message += "; if it is for a classifier, use nmt train-classifier"
        raise RecipeError(message) from error


def _require_utf8(override: str) -> None:
    """Raise RecipeError for the bytes of a path that a saved recipe cannot contain."""
    try:
        override.encode()
    except UnicodeEncodeError as error:
        raise RecipeError(
            f"override '{override}' is not UTF-8, in which recipes are saved; {advice_on_encoding(error)}"
        ) from error


def revalidate(recipe: Recipe) -> Recipe:
    """Validate a recipe with replaced sections; raises RecipeError if the sections are inconsistent."""
    try:
        return Recipe.model_validate(recipe.model_dump())
    except ValidationError as error:
        raise RecipeError(f"recipe: {explain(error)}") from error


def override_decode(decode: DecodeRecipe, overrides: Sequence[str]) -> DecodeRecipe:
    """Apply overrides such as `beam_size=8` or `decode.beam_size=8`; raises RecipeError as `load_recipe` does."""
    tree = {"decode": decode.model_dump(mode="json", exclude_none=True)}
    settings = [override.lstrip().removeprefix("decode.") for override in overrides]
    _apply_overrides(_DecodeSection, tree, settings, example="beam_size=8", section="decode.")
    try:
        return _DecodeSection.model_validate(tree).decode
    except ValidationError as error:
        raise RecipeError(explain(error)) from error


def override_own_decode(own: DecodeRecipe, overrides: Sequence[str]) -> DecodeRecipe:
    """Apply overrides to the search options of a model; see `override_decode`.

    The model's own `alignments` is ignored, and so is its `n_best` unless it is the number of candidates for MBR.
    """
    mbr_metric = overrides_by_name(overrides).get("mbr_metric", own.mbr_metric).strip(" '\"") or "none"
    ignored: dict[str, Any] = {"alignments": False}
    if mbr_metric == "none":
        ignored["n_best"] = 1
    return override_decode(own.model_copy(update=ignored), overrides)


def overrides_by_name(overrides: Sequence[str]) -> dict[str, str]:
    """Return the values of overrides such as `beam_size=8` or `decode.beam_size=8` by name in the decode section."""
    parts = [override.partition("=") for override in overrides]
    return {key.strip().removeprefix("decode."): value for key, _, value in parts}


class _DecodeSection(Section):
    """The section in a recipe, for the locations in error messages."""

    decode: FinalDecodeRecipe


def dump_recipe(recipe: Recipe | ClassificationRecipe) -> str:
    """Format a recipe as TOML with all options; loading it restores the recipe."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def is_dumped(text: str) -> bool:
    """Return whether a TOML text was written by a program, without comments that would be lost if it is replaced.

    Unlike a comparison with `dump_recipe`, this also works for recipes of versions with other options.
    """
    return tomli_w.dumps(tomllib.loads(text)) == text


def dump_choices(recipe: Recipe) -> str:
    """Format a recipe as TOML without options that have their defaults; `parse_recipe` restores it."""
    tree = recipe.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    # `kind` is always a default, but it determines the type of a corpus.
    tree["data"]["train"] = [_corpus_choices(corpus) for corpus in recipe.data.train]
    tree["data"]["valid"] = [_corpus_choices(corpus) for corpus in recipe.data.valid]
    # Options whose default depends on others.
    if recipe.train.glossary_markup:
        tree.setdefault("decode", {})["glossary_mode"] = recipe.decode.glossary_mode
    if recipe.train.start_from is not None:
        tree["model"] = recipe.model.model_dump(mode="json", exclude_none=True)
    if recipe.data.test:
        tree["data"]["test"] = {name: _corpus_choices(corpus) for name, corpus in recipe.data.test.items()}
    return tomli_w.dumps(tree)


def _corpus_choices(corpus: Corpus | CorpusOptions) -> dict[str, Any]:
    return {
        "kind": type(corpus).model_fields["kind"].default,
        **corpus.model_dump(mode="json", exclude_defaults=True, exclude_none=True),
    }


def _apply_overrides(
    root: type[Section],
    tree: dict[str, Any],
    overrides: Sequence[str],
    example: str = "train.max_steps=1000",
    section: str = "",
) -> None:
    """Set each `section.key=value` in the tree.

    example: an override for error messages; section: prefix of all keys

    Raises RecipeError for a repeated key, and TypeError unless `overrides` is a list of strings.
    """
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)  # an iterator is read only once
    if not is_list or not all(isinstance(override, str) for override in overrides):
        raise TypeError(f"overrides must be a list of strings, such as [{example!r}], got {overrides!r}")
    given: set[tuple[str, ...]] = set()
    for override in overrides:
        location = _apply_override(root, tree, override, example, section)
        option = ".".join(location)
        if location in given:
            raise RecipeError(f"override {override!r}: {option} is given twice; remove one")
        if replaced := sorted(other for other in given if other[: len(location)] == location):
            raise RecipeError(
                f"override {override!r} replaces {'.'.join(replaced[0])}, which comes before it; give {option} first"
            )
        given.add(location)


def _apply_override(
    root: type[Section], tree: dict[str, Any], override: str, example: str, section: str
) -> tuple[str, ...]:
    """Set an option; return its sections and name.

    Invalid TOML is read as a string. An empty value restores the default.
    """
    key, equals, raw = override.partition("=")
    if not equals or not key.strip():
        missing = "name" if equals else "value"
        raise RecipeError(f"override {override!r} has no {missing}; it must have the form {example}")
    *sections, name = f"{section}{key.strip()}".split(".")
    if tuple(sections[:2]) == _PHRASES:
        sections, (name, raw) = sections[:2], _phrase_and_value(override)
    for section_name in sections:
        inner = tree.setdefault(section_name, {})
        if isinstance(inner, list):
            raise RecipeError(
                f"override {override!r}: {section_name!r} is a list; an override cannot change one of its items; give "
                "the whole list, or change the recipe"
            )
        if not isinstance(inner, dict):
            raise RecipeError(
                f"override {override!r}: {section_name!r} is not a section; run `nmt config` to see the options"
            )
        tree = inner
    location = (*sections, name)
    if not raw.strip() and (name in tree or is_option(location, root)):
        tree.pop(name, None)
        return location
    try:
        tree[name] = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        tree[name] = raw.strip()
    return location


def _phrase_and_value(override: str) -> tuple[str, str]:
    """Parse an override such as `bias.Dr. Smith=1`, where the phrase may be quoted as in TOML."""
    key, _, raw = override.rpartition("=")  # the phrase may contain equals signs
    phrase = key.partition("bias.")[2].strip()
    if not phrase.startswith(('"', "'")):
        return phrase, raw
    try:
        return str(tomllib.loads(f"phrase = {phrase}")["phrase"]), raw
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(
            f"override {override!r}: {phrase} is not a quoted string of TOML; correct its quotes and escapes"
        ) from error


def toml_value(value: Any) -> str:
    """Format a value as inline TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case CorpusOptions():
            return toml_value(_corpus_choices(value))
        case Section():
            return toml_value(value.model_dump(mode="json", exclude_none=True))
        case dict():
            items = ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items())
            return f"{{ {items} }}" if items else "{}"
        case tuple() | list():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case _:
            plain = str(value) if isinstance(value, Path) else value
            return tomli_w.dumps({"value": plain}).removeprefix("value = ").strip()


def _toml_key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
