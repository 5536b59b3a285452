"""Constituency trees as target text (Vinyals et al. 2015), and their brackets for scoring.

The Penn Treebank tree `(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))` becomes the
source `The dog sleeps .` and the target `(S (NP XX XX )NP (VP XX )VP . )S`. Words become XX, so the model does not copy
them. Punctuation becomes its tag, because EVALB ignores punctuation. Function tags (`NP-SBJ`) and traces (`-NONE-`)
are removed, as in EVALB.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nmt.errors import UserError

WORD = "XX"
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
_TRACE = "-NONE-"
_ROOTS = frozenset({"ROOT", "TOP", ""})
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_PENN_TOKEN = re.compile(r"[()]|[^\s()]+")
_MAX_DEPTH = 200  # the functions for trees are recursive
# EVALB's default parameters treat these labels as equal.
_EQUAL_LABELS = {"PRT": "ADVP"}


@dataclass(frozen=True)
class Leaf:
    """A word with its part-of-speech tag."""

    tag: str
    word: str


@dataclass(frozen=True)
class Node:
    """A constituent. The label of an unlabeled root is ""."""

    label: str
    children: tuple[Node | Leaf, ...]


Bracket = tuple[str, int, int]


def read_tree(line: str) -> Node:
    """Parse a Penn Treebank tree; raise ValueError if it is malformed."""
    stack: list[tuple[str, list[Node | Leaf]]] = [("", [])]
    tokens = deque(_PENN_TOKEN.findall(line))
    while tokens:
        token = tokens.popleft()
        if token == "(":
            label = tokens.popleft() if tokens and tokens[0] not in "()" else ""
            stack.append((label, []))
            if len(stack) - 1 > _MAX_DEPTH:
                raise ValueError(f"it has more than {_MAX_DEPTH} open brackets")
            if tokens and tokens[0] not in "()":  # a word after its tag
                leaf = Leaf(label, tokens.popleft())
                if tokens and tokens[0] == ")":
                    tokens.popleft()
                    stack.pop()
                stack[-1][1].append(leaf)
        elif token == ")" and len(stack) > 1:
            label, children = stack.pop()
            if not children:
                raise ValueError(f"({label}) has no word")
            stack[-1][1].append(Node(label, tuple(children)))
        else:
            raise ValueError(f"unexpected {token!r}")
    roots = stack[0][1]
    if len(stack) > 1 or len(roots) != 1 or not isinstance(roots[0], Node):
        raise ValueError("the brackets do not enclose one tree")
    return roots[0]


def read_treebank(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Yield the words of each tree and the linearized tree. A tree may span several lines, as in treebanks.

    name: file name for errors. Raises UserError for a malformed tree.
    """
    tree_lines: list[str] = []
    first = depth = 0
    for number, line in enumerate(lines, start=1):
        if not tree_lines:
            if not line.strip():
                continue
            first = number
        tree_lines.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            yield _tree_pair(" ".join(tree_lines), f"{name}, line {first}")
            tree_lines, depth = [], 0
    if tree_lines:
        _tree_pair(" ".join(tree_lines), f"{name}, line {first}")  # raises: the tree is incomplete


def _tree_pair(text: str, where: str) -> tuple[str, str]:
    try:
        tree = read_tree(text)
    except ValueError as error:
        raise UserError(
            f"{where}: {error}; expected a tree such as (S (NP (NN dog)) (VP (VBZ sleeps))); correct the tree"
        ) from error
    return " ".join(words(tree)), linearize(tree)


def words(tree: Node) -> list[str]:
    """Return the words of a tree, with escaped brackets restored."""
    return [re.sub("-[LR][RCS]B-", lambda match: _ESCAPES[match[0]], leaf.word) for leaf in _leaves(tree)]


def linearize(tree: Node) -> str:
    """Return a tree as target text: labeled opening and closing brackets, and a symbol per word."""
    return " ".join(_linear(tree))


def is_linearized(line: str) -> bool:
    """Return whether a line is the output of `linearize`, not a Penn Treebank tree."""
    return not line.rstrip().endswith(")")


def brackets(line: str) -> tuple[list[Bracket], list[bool]]:
    """Return the labeled brackets (label, start, end) of a tree in either form, and whether each leaf is a word.

    Leaves are words and punctuation; start and end are positions of leaves. Follows EVALB: the root and part-of-speech
    tags do not count. A linearized tree has no root, so it may consist of several parts. Raises ValueError for a
    malformed tree.
    """
    if not is_linearized(line):
        line = linearize(read_tree(line))
    closed: list[Bracket] = []
    opened: list[tuple[str, int]] = []
    is_word: list[bool] = []
    for token in line.split():
        if token.startswith("(") and len(token) > 1:
            opened.append((token[1:], len(is_word)))
        elif token.startswith(")"):
            if not opened or opened[-1][0] != token[1:]:
                raise ValueError(f"{token} closes no open bracket")
            label, start = opened.pop()
            if label not in _ROOTS:
                closed.append((_EQUAL_LABELS.get(label, label), start, len(is_word)))
        elif token != WORD and token not in PUNCTUATION:
            raise ValueError(f"{token} is neither a bracket nor a word")
        else:
            is_word.append(token == WORD)
    if opened or not is_word:
        raise ValueError("a bracket is not closed" if opened else "there are no words")
    return closed, is_word


def without_punctuation(found: Sequence[Bracket], is_word: Sequence[bool]) -> list[Bracket]:
    """Return the brackets that have words, with positions of words instead of leaves. is_word: for each leaf"""
    words_before = [0, *accumulate(is_word)]
    spans = ((label, words_before[start], words_before[end]) for label, start, end in found)
    return [(label, start, end) for label, start, end in spans if end > start]


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
