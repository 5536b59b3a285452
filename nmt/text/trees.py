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
from typing import NamedTuple

from nmt.errors import UserError

WORD = "XX"
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
_TRACE = "-NONE-"
_ROOTS = frozenset({"ROOT", "TOP", ""})
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_ESCAPE = re.compile("-[LR][RCS]B-")
_PENN_TOKEN = re.compile(r"[()]|[^\s()]+")
# EVALB's default parameters treat these labels as equal.
_EQUAL_LABELS = {"PRT": "ADVP"}


Bracket = tuple[str, int, int]


class Tree(NamedTuple):
    """The words of a tree, with escaped brackets restored, and its labeled brackets with a symbol per word."""

    words: list[str]
    linearized: str


@dataclass
class _Constituent:
    """An open constituent; `start` is the index of its opening bracket in the linearized tree."""

    label: str
    start: int
    num_children: int = 0


def read_tree(line: str) -> Tree:
    """Parse a Penn Treebank tree; raise ValueError if it is malformed."""
    words: list[str] = []
    linearized: list[str] = []
    root = _Constituent("", 0)
    stack, has_constituent = [root], False
    tokens = deque(_PENN_TOKEN.findall(line))
    while tokens:
        token = tokens.popleft()
        if token == "(":
            label = tokens.popleft() if tokens and tokens[0] not in "()" else ""
            if tokens and tokens[0] not in "()":  # a word after its tag
                word = tokens.popleft()
                if tokens and (following := tokens.popleft()) != ")":
                    raise ValueError(f"unexpected {following!r}")
                stack[-1].num_children += 1
                if label != _TRACE:
                    words.append(_ESCAPE.sub(lambda match: _ESCAPES[match[0]], word))
                    linearized.append(label if label in PUNCTUATION else WORD)
            else:
                stack.append(_Constituent(label, len(linearized)))
                linearized.append("")  # its bracket, set when it is closed
        elif token == ")" and len(stack) > 1:
            closed, has_constituent = stack.pop(), True
            if not closed.num_children:
                raise ValueError(f"({closed.label}) has no word")
            stack[-1].num_children += 1
            _close(linearized, closed)
        else:
            raise ValueError(f"unexpected {token!r}")
    if len(stack) > 1 or root.num_children != 1 or not has_constituent:
        raise ValueError("the brackets do not enclose one tree")
    return Tree(words, " ".join(linearized))


def _close(linearized: list[str], closed: _Constituent) -> None:
    """Write the brackets of a constituent; none if it has only traces, or is a root with one child."""
    label = re.split("[-=|]", closed.label)[0]
    is_root = label in _ROOTS
    if len(linearized) == closed.start + 1 or (is_root and closed.num_children == 1):
        del linearized[closed.start]
    else:
        label = "TOP" if is_root else label
        linearized[closed.start] = f"({label}"
        linearized.append(f"){label}")


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
    return " ".join(tree.words), tree.linearized


def is_linearized(line: str) -> bool:
    """Return whether a line is linearized, not a Penn Treebank tree."""
    return not line.rstrip().endswith(")")


def brackets(line: str) -> tuple[list[Bracket], list[bool]]:
    """Return the labeled brackets (label, start, end) of a tree in either form, and whether each leaf is a word.

    Leaves are words and punctuation; start and end are positions of leaves. Follows EVALB: the root and part-of-speech
    tags do not count. A linearized tree has no root, so it may consist of several parts. Raises ValueError for a
    malformed tree.
    """
    if not is_linearized(line):
        line = read_tree(line).linearized
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
