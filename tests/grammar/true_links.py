"""The true word alignment of toy sentences, for content words.

A tree is realized once for each of its lexicon entries, with that entry marked: the marked words of both languages
are translations of each other. Function words have no links.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from nmt.grammar import ToyPair, translate
from nmt.grammar.entries import Adjective, Fixed, Modal, Noun, Verb
from nmt.grammar.syntax import Clause, Name, Pronoun, Relative, Sentence

_MARK = "¤"
_FORMS: dict[type, tuple[str, ...]] = {
    Noun: ("en", "en_plural", "de", "de_plural"),
    Verb: ("en", "en_past", "en_participle", "en_ing", "de", "prefix", "changed_stem", "participle"),
    Adjective: ("en", "de"),
    Fixed: ("en", "de"),
    Name: ("name",),
}

Links = set[tuple[int, int]]


def true_links(sentence: Sentence) -> tuple[ToyPair, Links]:
    """Return the pair of a tree, and the links of its content words; words are separated by spaces."""
    pair = translate(sentence)
    links: Links = set()
    for marked in map(translate, _marked_copies(sentence)):
        texts = (marked.src, marked.tgt)
        if list(map(_unmarked, texts)) == [_unmarked(pair.src), _unmarked(pair.tgt)]:  # a mark may change other words
            src, tgt = ([i for i, word in enumerate(text.split()) if _MARK in word] for text in texts)
            links |= {(source, target) for source in src for target in tgt}
    return pair, links


def sure_links(links: Links) -> Links:
    """Return the links whose two words have no other link."""
    sources, targets = ([link[side] for link in links] for side in (0, 1))
    return {link for link in links if sources.count(link[0]) == targets.count(link[1]) == 1}


def alignment_error_rate(found: list[Links], true: list[Links]) -> float:
    """Return the alignment error rate (Och and Ney 2003) over linked target words; `sure_links` are the sure ones."""
    hits = total = 0
    for own, possible in zip(found, true, strict=True):
        sure, targets = sure_links(possible), {target for _, target in possible}
        counted = {link for link in own if link[1] in targets}
        hits += len(counted & sure) + len(counted & possible)
        total += len(counted) + len(sure)
    return 1 - hits / total


def _unmarked(text: str) -> list[str]:
    """Return words without marks, and `a` for `an`: English chooses between them by the next letter, here a mark."""
    return ["a" if word == "an" else word for word in text.replace(_MARK, "").lower().split()]


def _marked_copies(node: Any) -> Iterator[Any]:
    """Yield copies of a part of a tree, each with one lexicon entry marked."""
    if type(node) in _FORMS:
        marks = {
            name: " ".join(_MARK + word for word in getattr(node, name).split())
            for name in _FORMS[type(node)]
            if getattr(node, name)
        }
        yield _replace(node, **marks)
    elif isinstance(node, (tuple, Clause)) and not isinstance(node, (Relative, Pronoun, Modal)):
        for name in _fields(node):
            for copy in _marked_copies(getattr(node, name)):
                yield _replace(node, **{name: copy})


def _fields(node: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else list(node._fields)


def _replace(node: Any, **changes: Any) -> Any:
    return node._replace(**changes) if hasattr(node, "_replace") else dataclasses.replace(node, **changes)
