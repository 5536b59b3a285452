"""Constituency trees as text for a sequence-to-sequence model (Vinyals et al. 2015), and their brackets for scoring.

A tree in the form of the Penn Treebank, `(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))`, becomes the
source `The dog sleeps .` and the target `(S (NP XX XX )NP (VP XX )VP . )S`. Every word is XX, since the model need not
copy it. Punctuation is its tag, because EVALB leaves it out where it counts brackets. Function tags (`NP-SBJ`) and
traces (`-NONE-`) go, as EVALB drops them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORD = "XX"
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
_TRACE = "-NONE-"
_ROOTS = frozenset({"ROOT", "TOP", ""})
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_PENN_TOKEN = re.compile(r"[()]|[^\s()]+")
# The same label, says EVALB's usual file of parameters.
_EQUAL_LABELS = {"PRT": "ADVP"}


@dataclass(frozen=True)
class Leaf:
    """A word with its part-of-speech tag."""

    tag: str
    word: str


@dataclass(frozen=True)
class Node:
    """A constituent; a label of "" is that of a root without one."""

    label: str
    children: tuple[Node | Leaf, ...]


Bracket = tuple[str, int, int]


def read_tree(line: str) -> Node:
    """The tree on a line in the form of the Penn Treebank; ValueError where it is malformed."""
    stack: list[tuple[str, list[Node | Leaf]]] = [("", [])]
    tokens = _PENN_TOKEN.findall(line)
    place = 0
    while place < len(tokens):
        if tokens[place] == "(":
            label = tokens[place + 1] if place + 1 < len(tokens) and tokens[place + 1] not in "()" else ""
            stack.append((label, []))
            place += 1 + bool(label)
            if tokens[place : place + 1] not in ([], ["("], [")"]):  # a word behind its tag
                stack[-1][1].append(Leaf(label, tokens[place]))
                place += 1
        elif tokens[place] == ")" and len(stack) > 1:
            label, children = stack.pop()
            is_leaf = len(children) == 1 and isinstance(children[0], Leaf) and children[0].tag == label
            stack[-1][1].append(children[0] if is_leaf else Node(label, tuple(children)))
            place += 1
        else:
            raise ValueError(f"unexpected {tokens[place]!r}")
    roots = stack[0][1]
    if len(stack) > 1 or len(roots) != 1 or not isinstance(roots[0], Node):
        raise ValueError("the brackets do not enclose one tree")
    return roots[0]


def words(tree: Node) -> list[str]:
    """The words of a tree, brackets among them as they are written in text."""
    return [re.sub("-[LR][RCS]B-", lambda found: _ESCAPES[found[0]], leaf.word) for leaf in _leaves(tree)]


def linearize(tree: Node) -> str:
    """A tree as the target of a model: opening and closing brackets with their labels, and a symbol for each word."""
    return " ".join(_linear(tree))


def has_form_of_target(line: str) -> bool:
    """Whether a line is written as `linearize` writes trees, and not as the Penn Treebank does."""
    return not any(token == ")" for token in _PENN_TOKEN.findall(line)[-1:])


def brackets(line: str) -> tuple[list[Bracket], int]:
    """The labelled brackets of a tree in either form, and its number of words; ValueError where it is malformed.

    As EVALB counts them: (label, first word, end), with punctuation left out of the words, without the root, empty
    brackets and part-of-speech tags.
    """
    if not has_form_of_target(line):
        line = linearize(read_tree(line))
    found: list[Bracket] = []
    opened: list[tuple[str, int]] = []
    counted = leaves = 0
    for token in line.split():
        if token.startswith("(") and len(token) > 1:
            opened.append((token[1:], counted))
        elif token.startswith(")"):
            if not opened or opened[-1][0] != token[1:]:
                raise ValueError(f"{token} closes what is not open")
            label, start = opened.pop()
            if counted > start and label not in _ROOTS:
                found.append((_EQUAL_LABELS.get(label, label), start, counted))
        elif token != WORD and token not in PUNCTUATION:
            raise ValueError(f"{token} is neither a bracket nor a word")
        else:
            leaves += 1
            counted += token not in PUNCTUATION
    if opened or not leaves:
        raise ValueError("a bracket is not closed" if opened else "there is no word")
    return found, leaves


def right_branching(target: str, label: str = "S") -> str:
    """A baseline with the words of a target: each word opens a bracket that reaches to the end of the sentence."""
    leaves = [token for token in target.split() if not token.startswith(("(", ")"))]
    return " ".join([*(f"({label} {leaf}" for leaf in leaves), *[f"){label}"] * len(leaves)])


def _leaves(tree: Node | Leaf) -> Iterator[Leaf]:
    if isinstance(tree, Leaf):
        if tree.tag != _TRACE:
            yield tree
        return
    for child in tree.children:
        yield from _leaves(child)


def _linear(tree: Node | Leaf) -> Iterator[str]:
    if isinstance(tree, Leaf):
        if tree.tag != _TRACE:
            yield tree.tag if tree.tag in PUNCTUATION else WORD
        return
    inside = [token for child in tree.children for token in _linear(child)]
    label = re.split("[-=|]", tree.label)[0]
    if not inside or (label in _ROOTS and len(tree.children) == 1):
        yield from inside
        return
    label = "TOP" if label in _ROOTS else label
    yield f"({label}"
    yield from inside
    yield f"){label}"
