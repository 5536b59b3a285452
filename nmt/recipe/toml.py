"""Recipes as TOML: loading, overrides, writing, documentation and error messages."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nmt.recipe.corpora import CORPUS_KINDS, TAG_PATTERN, Corpus, Section, TrainingOptions
from nmt.recipe.decoding import DecodeRecipe
from nmt.recipe.errors import RecipeError
from nmt.recipe.sections import LANGUAGE_PATTERN, NAME_PATTERN, DataRecipe, Recipe

# Options of earlier versions, which saved recipes and models may still have.
_REMOVED = {"decode.coverage_penalty": "the coverage penalty was removed because it lowers BLEU"}
_RENAMED = {
    "train.recompute": "train.activation_checkpointing",
    "decode.num_groups": "decode.beam_groups",
    "decode.diversity_strength": "decode.diversity_penalty",
    "decode.bayes_risk": "decode.mbr_metric",
    "decode.alignment_place": "decode.alignment_at",
}

# Corpus kinds of earlier versions.
_RENAMED_KINDS = {"embedded": "toy"}

# Descriptions of valid values, by the error types of pydantic.
_KINDS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "path_type": "text in quotes",
    "tuple_type": "a list in brackets",
    "dict_type": "a table such as { name = value }",
    "model_type": "a section of options",
    "model_attributes_type": "a table such as { name = value }",
}
# The table whose keys are phrases, which may contain dots and spaces.
_PHRASES = ("decode", "bias")
_PATTERNS = {
    NAME_PATTERN: "letters, digits, '.', '_' and '-', starting with a letter or digit",
    LANGUAGE_PATTERN: "an ISO 639 code of two or three lower-case letters, such as 'de'",
    TAG_PATTERN: "a word in angle brackets, such as '<web>'",
}


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a TOML recipe and apply overrides such as `train.max_steps=100`.

    Raises RecipeError for a missing file, invalid TOML, an unknown option or an invalid value.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # accepts a byte order mark
    except OSError as error:
        raise RecipeError(
            f"cannot read recipe {path}: {error.strerror}; give a TOML file, or a name that `nmt recipes` lists"
        ) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path} is not UTF-8 text; save it as UTF-8") from error
    return parse_recipe(text, overrides, where=str(path))


def load_saved_recipe(path: Path) -> Recipe:
    """Read a recipe that a run saved, possibly with an earlier version."""
    try:
        return parse_saved_recipe(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} is not a readable recipe; it must be as it was saved; copy it again") from error


def parse_saved_recipe(text: str) -> Recipe:
    """Parse a recipe that a run saved, possibly with an earlier version; raises ValueError if it is damaged."""
    tree = tomllib.loads(text)
    upgrade_options(tree)
    return Recipe.model_validate(tree)


def upgrade_options(tree: dict[str, Any]) -> list[str]:
    """Update the options of a saved recipe, in place: rename renamed ones and drop removed ones.

    Returns the removed options that were set.
    """
    for old, new in _RENAMED.items():
        section, key = old.split(".")
        options = tree.get(section)
        if isinstance(options, dict) and key in options:
            options.setdefault(new.removeprefix(f"{section}."), options.pop(key))
    ignored = []
    for name in _REMOVED:
        section, key = name.split(".")
        options = tree.get(section)
        if isinstance(options, dict) and options.pop(key, None):
            ignored.append(name)
    return ignored


def parse_recipe(text: str, overrides: Sequence[str] = (), where: str = "recipe") -> Recipe:
    """Parse a TOML recipe and apply overrides; see `load_recipe`."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where} is not valid TOML: {error}; fix that line") from error
    _apply_overrides(tree, overrides)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise RecipeError(_explain_with_origin(error, overrides, where)) from error


def revalidate(recipe: Recipe) -> Recipe:
    """Validate a recipe with replaced sections; raises RecipeError if the sections are inconsistent."""
    try:
        return Recipe.model_validate(recipe.model_dump())
    except ValidationError as error:
        raise RecipeError(f"recipe: {explain(error)}") from error


def override_decode(decode: DecodeRecipe, overrides: Sequence[str]) -> DecodeRecipe:
    """Apply overrides such as `beam_size=8` or `decode.beam_size=8`; raises RecipeError as `load_recipe` does."""
    tree = {"decode": decode.model_dump(mode="json", exclude_none=True)}
    names = [override.removeprefix("decode.") for override in overrides]
    _apply_overrides(tree, names, example="beam_size=8", section="decode.")
    try:
        return _DecodeSection.model_validate(tree).decode
    except ValidationError as error:
        raise RecipeError(explain(error)) from error


class _DecodeSection(Section):
    """The section in a recipe, for the locations in error messages."""

    decode: DecodeRecipe


def dump_recipe(recipe: Recipe) -> str:
    """Format a recipe as TOML with all options; `parse_recipe` restores it."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def is_dumped(text: str) -> bool:
    """Return whether a TOML text was written by a program, without comments that would be lost if it is replaced.

    Unlike a comparison with `dump_recipe`, this also holds for recipes of versions with other options.
    """
    return tomli_w.dumps(tomllib.loads(text)) == text


def dump_choices(recipe: Recipe) -> str:
    """Format a recipe as TOML without options that have their defaults; `parse_recipe` restores it."""
    tree = recipe.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    # `kind` is always a default, but it determines the type of a corpus.
    tree["data"]["train"] = [_corpus_choices(corpus) for corpus in recipe.data.train]
    tree["data"]["valid"] = [_corpus_choices(corpus) for corpus in recipe.data.valid]
    if recipe.data.test:
        tree["data"]["test"] = {name: _corpus_choices(corpus) for name, corpus in recipe.data.test.items()}
    return tomli_w.dumps(tree)


def _corpus_choices(corpus: Corpus | TrainingOptions) -> dict[str, Any]:
    return {
        "kind": type(corpus).model_fields["kind"].default,
        **corpus.model_dump(mode="json", exclude_defaults=True, exclude_none=True),
    }


def describe_recipe(recipe: Recipe) -> str:
    """Format a recipe as TOML with the documentation of each option in a comment above it."""
    return "\n".join(_describe_section(recipe, prefix="")) + "\n"


def _apply_overrides(
    tree: dict[str, Any], overrides: Sequence[str], example: str = "train.max_steps=1000", section: str = ""
) -> None:
    """Set each `section.key=value` in the tree; raises RecipeError for a repeated key.

    example: an override for error messages; section: prefix of all keys
    """
    given: set[str] = set()
    for override in overrides:
        option = _apply_override(tree, override, example, section)
        if option in given:
            raise RecipeError(f"override {override!r}: {option} is given twice; remove one")
        given.add(option)


def _apply_override(tree: dict[str, Any], override: str, example: str, section: str) -> str:
    """Set an option and return its name; a value that is not TOML is a string."""
    key, equals, raw = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r} has no value; it must be like {example}")
    *sections, name = f"{section}{key.strip()}".split(".")
    if tuple(sections[:2]) == _PHRASES:
        sections, (name, raw) = sections[:2], _phrase_and_value(override)
    for section_name in sections:
        inner = tree.setdefault(section_name, {})
        if not isinstance(inner, dict):
            raise RecipeError(
                f"override {override!r}: {section_name!r} is not a section; run `nmt config` to see the options"
            )
        tree = inner
    try:
        tree[name] = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        tree[name] = raw
    return ".".join([*sections, name])


def _phrase_and_value(override: str) -> tuple[str, str]:
    """Parse an override such as `bias.Dr. Smith=1`, where the phrase may be quoted as in TOML."""
    key, _, raw = override.rpartition("=")  # the phrase may contain equals signs
    phrase = key.partition("bias.")[2].strip()
    if not phrase.startswith(('"', "'")):
        return phrase, raw
    try:
        return str(tomllib.loads(f"phrase = {phrase}")["phrase"]), raw
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"override {override!r}: {phrase} has no closing quote; add it") from error


def explain(error: ValidationError) -> str:
    """Format all errors of pydantic on one line."""
    return " | ".join(phrase for _, phrase in _explain(error))


def _explain_with_origin(error: ValidationError, overrides: Sequence[str], where: str) -> str:
    """Format all errors of pydantic on one line, with `where` before those that no override has caused."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    keys = ["decode.bias" if key.startswith("decode.bias.") else key for key in keys]  # phrases may be quoted
    of_overrides: list[str] = []
    of_file: list[str] = []
    for option, phrase in _explain(error):
        is_overridden = any(_contains(option, key) or _contains(key, option) for key in keys)
        (of_overrides if is_overridden else of_file).append(phrase)
    return " | ".join(of_overrides + ([f"{where}: {' | '.join(of_file)}"] if of_file else []))


def _contains(outer: str, inner: str) -> bool:
    """Return whether an option is another one or a section that contains it; the whole recipe is ""."""
    return not outer or f"{inner}.".startswith(f"{outer}.")


def _explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield each invalid option, as written in the file, and its error."""
    problems = error.errors()
    locations = [problem["loc"] for problem in problems]
    by_option: dict[str, list[ErrorDetails]] = {}
    for problem in problems:
        location = problem["loc"]
        # An error of a section may only be a consequence of errors of its options.
        if not any(other[: len(location)] == location and other != location for other in locations):
            by_option.setdefault(".".join(_written_names(location)), []).append(problem)
    for option, of_option in by_option.items():
        yield option, _explain_option(option, of_option)


def _explain_option(where: str, problems: Sequence[ErrorDetails]) -> str:
    """Describe the errors of an option: one for each type of a union."""
    problem = problems[0]
    if problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
        kind = problem["input"].get("kind")
        if now := _RENAMED_KINDS.get(str(kind)):
            return f"{where}.kind is {kind!r}, which no longer exists; use {now!r}"
        return f"{where}.kind is {kind!r}; it must be one of {', '.join(CORPUS_KINDS)}"
    if where in _REMOVED:
        return f"unknown option {where!r}; {_REMOVED[where]}; leave it out"
    if where in _RENAMED:
        return f"unknown option {where!r}; it is now {_RENAMED[where]!r}; use that name"
    if problem["type"] == "extra_forbidden":
        return f"unknown option {where!r}; {_suggest(problem['loc'])}"
    if problem["type"] == "missing" and _is_section(_annotation(problem["loc"])):
        return f"section [{where}] is missing; every recipe needs one; recipes/quickstart.toml is an example"
    if problem["type"] == "missing":
        return f"option {where!r} is missing; set it"
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    return (
        f"{where} = {problem['input']!r}; it must {' or '.join(map(_requirement, problems)).replace(' or be ', ' or ')}"
    )


def _suggest(location: Sequence[str | int]) -> str:
    """Suggest a known option of the same section, or else of another section."""
    section, name = location[:-1], str(location[-1])
    if near := _nearest(name, _known_names(section)):
        return f"did you mean {near!r}?"
    for other in Recipe.model_fields if section in [(one,) for one in Recipe.model_fields] or not section else ():
        if _is_section(_annotation((other,))) and (near := _nearest(name, _known_names((other,)), similarity=0.8)):
            return f"did you mean {f'{other}.{near}'!r}?"
    return f"known options: {', '.join(_known_names(section))}"


def _nearest(name: str, known: Sequence[str], similarity: float = 0.5) -> str | None:
    """Return the option with the most similar name, or with the initials `name` (`lr`, `learning_rate`)."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=similarity)
    initials = [option for option in known if "".join(word[0] for word in option.split("_")) == name and "_" in option]
    return next(iter(near + initials), None)


def _requirement(problem: ErrorDetails) -> str:
    """Describe valid values, from the type and message of a pydantic error."""
    if problem["type"] in _KINDS:
        return f"be {_KINDS[problem['type']]}"
    match problem["type"]:
        case "too_short":
            return f"have {problem['ctx']['min_length']} or more parts"
        case "too_long":
            return f"have {problem['ctx']['max_length']} parts at most"
        case "string_pattern_mismatch":
            return f"be {_PATTERNS[problem['ctx']['pattern']]}"
        case _:
            return problem["msg"].partition(" should ")[2] or f"be another: {problem['msg']}"


def _written_names(location: Sequence[str | int]) -> list[str]:
    """Return the names of a location as written in the file, such as `data.train.0.src`.

    Drops what pydantic adds: the kind of a corpus, and the type of a union.
    """
    is_corpus = location[:1] == ("data",) and len(location) > 3 and location[3] in CORPUS_KINDS
    return [
        str(part)
        for index, part in enumerate(location)
        if not (is_corpus and index == 3) and not (isinstance(part, str) and _is_union(location[:index]))
    ]


def _is_union(location: Sequence[str | int]) -> bool:
    return get_origin(_annotation(location)) in (Union, UnionType)


def _annotation(location: Sequence[str | int]) -> Any:
    """Return the type of an option; pydantic adds the kind of a corpus to the location."""
    annotation: Any = Recipe
    for part in location:
        if part in CORPUS_KINDS:
            annotation = CORPUS_KINDS[str(part)]
        elif _is_section(annotation) and part in annotation.model_fields:
            annotation = annotation.model_fields[str(part)].annotation
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _known_names(location: Sequence[str | int]) -> list[str]:
    """Return the options of the section or corpus at a location."""
    section: type[BaseModel] = _annotation(location)
    return list(section.model_fields)


def _describe_section(section: Section, prefix: str) -> Iterator[str]:
    fields = type(section).model_fields
    simple = {name: field for name, field in fields.items() if not isinstance(getattr(section, name), Section)}
    if prefix:
        yield ""
        yield f"# {section.summary.splitlines()[0]}"
        yield f"[{prefix}]"
    for name, field in simple.items():
        if isinstance(section, DataRecipe) and name == "train":
            yield from _describe_corpora()
        yield from _describe_option(name, field, getattr(section, name))
    for name in fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _describe_section(value, f"{prefix}.{name}" if prefix else name)


def _describe_corpora() -> Iterator[str]:
    """Yield comments that document the kinds of corpora and their options."""
    yield "# Kinds of corpora; `*` marks required options:"
    for kind, section in CORPUS_KINDS.items():
        own = {name: field for name, field in section.model_fields.items() if name not in TrainingOptions.model_fields}
        options = ", ".join(_describe_key(name, field) for name, field in own.items() if name != "kind")
        yield f"#   kind = {toml_value(kind)}: {options}"
        yield f"#     {' '.join(section.summary.split())}"
    shared = ", ".join(_describe_key(name, field) for name, field in TrainingOptions.model_fields.items())
    yield f"#   Training corpora of every kind: {shared}"
    for name, field in TrainingOptions.model_fields.items():
        yield f"#     {name}: {' '.join((field.description or '').split())}"


def _describe_key(name: str, field: FieldInfo) -> str:
    """Format an option of a corpus with its default, such as `split = "train"`."""
    if field.is_required():
        return f"{name}*"
    return name if field.default is None else f"{name} = {toml_value(field.default)}"


def _describe_option(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    is_list = get_origin(field.annotation) is tuple
    annotation = get_args(field.annotation)[0] if is_list else field.annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    documentation = " ".join((field.description or "").split())
    yield f"# {documentation}" + (f" {'Any' if is_list else 'One'} of: {', '.join(choices)}." if choices else "")
    if value is None:
        yield f"# {name} ="
    else:
        yield f"{name} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """Format a value as inline TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case TrainingOptions():
            return toml_value(_corpus_choices(value))
        case Section():
            return toml_value(value.model_dump(mode="json", exclude_none=True))
        case dict():
            return "{ " + ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
        case tuple() | list():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case _:
            plain = str(value) if isinstance(value, Path) else value
            return tomli_w.dumps({"value": plain}).removeprefix("value = ").strip()


def _toml_key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
