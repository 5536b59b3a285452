"""The documentation of the options: the string below each field of a section, read on demand.

pydantic can read these strings too, but only while it creates the classes, which delays each command by 60 ms.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent, indent
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import BaseModel, ValidationError


@cache
def option_documentation(section: type[BaseModel]) -> dict[str, str]:
    """Return the documentation of each option of a section by its name."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            found |= _own_documentation(base)
    return {name: found.get(name, "") for name in section.model_fields}


def _own_documentation(section: type[BaseModel]) -> dict[str, str]:
    """Return the strings below the fields that a class defines itself."""
    documentation = {}
    for field, text in pairwise(_definition(section).body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                documentation[name] = cleandoc(words)
    return documentation


def _definition(section: type[BaseModel]) -> ast.ClassDef:
    (definition,) = ast.parse(dedent(getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    return definition


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class DocumentedType(ModelMetaclass):
    """The metaclass of sections: their `__doc__`, which `help()` prints, also documents each option and its default.

    An invalid option of a new section raises a one-line ValueError; pydantic's error spans several lines.
    """

    explain: ClassVar[Callable[[ValidationError, type[BaseModel]], str]]
    """Formats an error of pydantic for a section; set by `nmt.recipe.validation`, which imports the sections."""

    if not TYPE_CHECKING:  # type checkers know the options from `ModelMetaclass`

        def __call__(self, *args: object, **options: object) -> BaseModel:
            """Create a section."""
            try:
                return super().__call__(*args, **options)
            except ValidationError as error:
                raise ValueError(DocumentedType.explain(error, self)) from None

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        section = cast("type[BaseModel]", self)
        documentation = option_documentation(section)
        options = []
        for name, field in section.model_fields.items():
            default = "" if field.is_required() or field.default_factory else f" = {field.default!r}"
            options.append(f"{name}{default}\n" + indent(documentation[name], "    "))
        return "\n\n".join([self.summary, *options])

    @property
    def summary(self) -> str:
        """The docstring of the section alone; not from `__doc__`, which is None under `python -OO`."""
        return ast.get_docstring(_definition(cast("type[BaseModel]", self))) or ""
