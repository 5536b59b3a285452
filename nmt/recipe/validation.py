"""Error messages for invalid recipes: pydantic's errors on one line, with the names of the recipe file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nmt.recipe.corpora import CORPUS_KINDS, LANGUAGE_PATTERN, TAG_PATTERN
from nmt.recipe.documentation import DocumentedType
from nmt.recipe.former_options import REMOVED, RENAMED, RENAMED_KINDS
from nmt.recipe.sections import NAME_PATTERN, Recipe

# Descriptions of valid values, by the error types of pydantic.
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_parsing_size": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "path_type": "text in quotes",
    "empty_path": "a path that is not empty",
    "tuple_type": "a list in brackets",
    "dict_type": "a table such as { name = value }",
    "model_type": "a section of options",
    "model_attributes_type": "a table such as { name = value }",
}
_PATTERNS = {
    NAME_PATTERN: "letters, digits, '.', '_' and '-', starting with a letter or digit",
    LANGUAGE_PATTERN: "an ISO 639 code of two or three lowercase letters without region or script, such as 'de'",
    TAG_PATTERN: "a word in angle brackets, such as '<web>'",
}


def explain(error: ValidationError, root: type[BaseModel] = Recipe) -> str:
    """Format all errors of pydantic on one line. root: the section that was validated"""
    return " | ".join(phrase for _, phrase in _problems(error, root))


DocumentedType.explain = explain


def explain_with_origin(error: ValidationError, overrides: Sequence[str], where: str, root: type[BaseModel]) -> str:
    """Format all errors of pydantic on one line; prefix those that no override caused with `where`.

    root: the section of the whole file
    """
    keys = [override.partition("=")[0].strip() for override in overrides]
    keys = ["decode.bias" if key.startswith("decode.bias.") else key for key in keys]  # phrases may be quoted
    keys = [key.removesuffix(".kind") for key in keys]  # the kind determines which options are valid
    of_overrides: list[str] = []
    of_file: list[str] = []
    for option, phrase in _problems(error, root):
        is_overridden = any(_contains(option, key) or _contains(key, option) for key in keys)
        (of_overrides if is_overridden else of_file).append(phrase)
    return " | ".join(of_overrides + ([f"{where}: {' | '.join(of_file)}"] if of_file else []))


def _contains(outer: str, inner: str) -> bool:
    """Return whether `outer` is `inner` or a section that contains it; "" is the whole recipe."""
    return not outer or f"{inner}.".startswith(f"{outer}.")


def _problems(error: ValidationError, root: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield each invalid option, named as in the file, and a description of its error."""
    problems = error.errors()
    locations = [problem["loc"] for problem in problems]
    by_option: dict[str, list[ErrorDetails]] = {}
    for problem in problems:
        location = problem["loc"]
        # An error of a section may be just a consequence of errors of its options.
        if not any(other[: len(location)] == location and other != location for other in locations):
            by_option.setdefault(".".join(_written_names(location, root)), []).append(problem)
    for option, of_option in by_option.items():
        yield option, _describe_problem(option, of_option, root)


def _describe_problem(where: str, problems: Sequence[ErrorDetails], root: type[BaseModel]) -> str:
    """Describe the errors of an option. An option of a union type has one error for each type."""
    problem = problems[0]
    if problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
        kind = problem["input"].get("kind")
        if now := RENAMED_KINDS.get(str(kind)):
            return f"{where}.kind is {kind!r}, which no longer exists; use {now!r}"
        return f"{where}.kind is {kind!r}; it must be one of {', '.join(CORPUS_KINDS)}"
    if where in REMOVED:
        return f"unknown option {where!r}; {REMOVED[where]}; remove {where}"
    if where in RENAMED:
        return f"unknown option {where!r}; it is now {RENAMED[where]!r}; use that name"
    if problem["type"] == "extra_forbidden":
        return f"unknown option {where!r}; {_suggest(problem['loc'], root)}"
    if problem["type"] == "missing" and _is_section(_annotation(problem["loc"], root)):
        return f"section [{where}] is missing; every recipe needs one; `nmt config quickstart` prints an example"
    if problem["type"] == "missing":
        return f"option {where!r} is missing; set it"
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        is_named = _is_section(_annotation(problem["loc"], root)) or where.rpartition(".")[2] in message
        return message if is_named else f"{where}: {message}"
    return (
        f"{where} = {problem['input']!r}; it must {' or '.join(map(requirement, problems)).replace(' or be ', ' or ')}"
    )


def _suggest(location: Sequence[str | int], root: type[BaseModel]) -> str:
    """Suggest a known option of the same section, or else of another section."""
    section, name = location[:-1], str(location[-1])
    if near := _nearest(name, _known_names(section, root)):
        return f"did you mean {near!r}?"
    is_top_level = not section or (len(section) == 1 and section[0] in root.model_fields)
    for other in root.model_fields if is_top_level else ():
        if _is_section(_annotation((other,), root)) and (
            near := _nearest(name, _known_names((other,), root), similarity=0.8)
        ):
            return f"did you mean {f'{other}.{near}'!r}?"
    return f"known options: {', '.join(_known_names(section, root))}"


def _nearest(name: str, known: Sequence[str], similarity: float = 0.6) -> str | None:
    """Return the option with the most similar name, or with the initials `name` (`lr`, `learning_rate`)."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=similarity)
    initials = [option for option in known if "".join(word[0] for word in option.split("_")) == name and "_" in option]
    return next(iter(near + initials), None)


def requirement(problem: ErrorDetails) -> str:
    """Describe valid values, from the type and message of a pydantic error."""
    if problem["type"] in _EXPECTED:
        return f"be {_EXPECTED[problem['type']]}"
    match problem["type"]:
        case "too_short":
            return f"have {problem['ctx']['min_length']} or more items"
        case "too_long":
            return f"have at most {problem['ctx']['max_length']} items"
        case "string_pattern_mismatch":
            return f"be {_PATTERNS[problem['ctx']['pattern']]}"
        case _:
            return problem["msg"].partition(" should ")[2] or f"be valid ({problem['msg']})"


def _written_names(location: Sequence[str | int], root: type[BaseModel]) -> list[str]:
    """Return the names of a location as written in the file, such as `data.train.0.src`.

    Drops what pydantic adds: the kind of a corpus, and the type of a union.
    """
    is_corpus = location[:1] == ("data",) and len(location) > 3 and location[3] in CORPUS_KINDS
    return [
        str(part)
        for index, part in enumerate(location)
        if not (is_corpus and index == 3) and not (isinstance(part, str) and _is_union(location[:index], root))
    ]


def _is_union(location: Sequence[str | int], root: type[BaseModel]) -> bool:
    return get_origin(_annotation(location, root)) in (Union, UnionType)


def _annotation(location: Sequence[str | int], root: type[BaseModel]) -> Any:
    """Return the type of an option; pydantic adds the kind of a corpus to the location."""
    annotation: Any = root
    for part in location:
        if part in CORPUS_KINDS:
            annotation = CORPUS_KINDS[str(part)]
        elif _is_section(annotation) and part in annotation.model_fields:
            annotation = annotation.model_fields[str(part)].annotation
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_option(location: Sequence[str], root: type[BaseModel]) -> bool:
    """Return whether a section has an option of this name."""
    section = _annotation(location[:-1], root)
    return _is_section(section) and location[-1] in section.model_fields


def _known_names(location: Sequence[str | int], root: type[BaseModel]) -> list[str]:
    """Return the options of the section or corpus at a location."""
    section: type[BaseModel] = _annotation(location, root)
    return list(section.model_fields)
