"""Detection of tags, addresses and placeholders that translations lack and that `--keep` would preserve."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from nmt.keep.items import ItemGrammar
from nmt.logs import counted

_NAMES = {"markup": "tags", "urls": "URLs", "emails": "e-mail addresses", "placeholders": "placeholders"}
_GRAMMAR = ItemGrammar(("urls", "emails", "placeholders"), "en", "en")
# Closing and empty tags, and those with attributes. Others may be something else, as in "a<b and c>d".
_TAG = re.compile(r"</[A-Za-z][\w:.-]*\s*>|<[Bb][Rr]>|<[A-Za-z][\w:.-]*(?:\s+[\w:.-]+=[^<>]*|\s*/)>")
_FORMAT = re.compile(r"%(?:[\w(#+-]|\.\d)")  # the beginning of a placeholder such as %s, unlike 100%


@dataclass(frozen=True)
class LostItems:
    """Number of lines with items that their translations lack, and the kinds of the items, sorted."""

    lines: int = 0
    kinds: Sequence[str] = field(default_factory=list)

    @classmethod
    def find(cls, pairs: Iterable[tuple[str, str]], kept: Collection[str]) -> LostItems:
        """Compare texts with their translations. kept: kinds that need no check"""
        lines = 0
        kinds: set[str] = set()
        for text, translation in pairs:
            items: list[tuple[str, str]] = []
            # These tests take a fraction of the time of the patterns, and few lines pass them.
            if "<" in text:
                items += [("markup", tag[0]) for tag in _TAG.finditer(text)]
            may_have_url = "://" in text or "www." in text.lower()
            if "{" in text or "@" in text or may_have_url or ("%" in text and _FORMAT.search(text)):
                items += [(item.kind, item.text) for item in _GRAMMAR.find_source(text)]
            lost = {kind for kind, item in items if kind not in kept and item not in translation} if items else ()
            if lost:
                lines += 1
                kinds.update(lost)
        return cls(lines, sorted(kinds))

    def __add__(self, other: LostItems) -> LostItems:
        return LostItems(self.lines + other.lines, sorted({*self.kinds, *other.kinds}))

    def describe(self, kept: Collection[str]) -> str:
        """Return the text of the warning. kept: the kinds that `--keep` preserves already"""
        lost = [kind for kind in _NAMES if kind in self.kinds]
        *others, last = (_NAMES[kind] for kind in lost)
        names = f"{', '.join(others)} or {last}" if others else last
        has, their = ("has", "its translation lacks") if self.lines == 1 else ("have", "their translations lack")
        return f"{counted(self.lines, 'line')} {has} {names} that {their}; use --keep {','.join([*kept, *lost])}"
