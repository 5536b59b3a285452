"""Baselines without a model. Reports show their scores beside those of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.logs import counted
from nmt.text.sentences import split_sentences
from nmt.text.trees import is_linearized, read_tree


@dataclass(frozen=True)
class Baseline:
    """Outputs of a baseline for a test set, one per sentence, with its name and a description."""

    name: str
    description: str
    outputs: list[str]


def find_baseline(sources: Sequence[str], refs: Sequence[str], metrics: Sequence[str], lead: int) -> Baseline | None:
    """Return the baseline of the task: lead sentences if requested, right-branching trees for `bracket-f1`, or None."""
    if lead:
        return lead_baseline(sources, lead)
    return right_branching_baseline(refs) if "bracket-f1" in metrics else None


def lead_baseline(sources: Sequence[str], count: int) -> Baseline:
    """Return the first `count` sentences of each source as its summary."""
    description = f"the first {counted(count, 'sentence')} of each source as its summary"
    return Baseline(f"lead-{count}", description, [" ".join(split_sentences(src)[:count]) for src in sources])


def right_branching_baseline(trees: Sequence[str]) -> Baseline:
    """Return right-branching trees with the words of trees in either format of `nmt.text.trees`."""
    outputs = []
    for tree in trees:
        words = [token for token in _linearized(tree).split() if not token.startswith(("(", ")"))]
        outputs.append(" ".join([*(f"(S {word}" for word in words), *[")S"] * len(words)]))
    return Baseline("right-branching", "each word opens a bracket S that ends with the sentence", outputs)


def _linearized(tree: str) -> str:
    """Return a tree in linearized form; a malformed tree is unchanged, because scoring reports it."""
    try:
        return tree if is_linearized(tree) else read_tree(tree).linearized
    except ValueError:
        return tree
