"""Baselines without a model."""

import pytest

from nmt.evaluate.baselines import find_baseline, right_branching_baseline
from nmt.evaluate.metrics import make_scorer
from nmt.text.trees import brackets, without_punctuation


def test_right_branching_trees_have_the_words_of_the_reference() -> None:
    (tree,) = right_branching_baseline(["(S (NP XX XX )NP . )S"]).outputs
    assert tree == "(S XX (S XX (S . )S )S )S"
    assert without_punctuation(*brackets(tree)) == [("S", 1, 2), ("S", 0, 2)]


def test_references_may_be_penn_treebank_trees() -> None:
    tree, malformed = "(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))", "(S (NP (DT The)"
    baseline = right_branching_baseline([tree])
    assert baseline == right_branching_baseline(["(S (NP XX XX )NP (VP XX )VP . )S"])
    assert make_scorer("bracket-f1", tgt_lang="zxx").score(baseline.outputs, [[tree]]).value > 0
    assert right_branching_baseline([malformed]).outputs  # scoring names the line


@pytest.mark.parametrize(
    ("metrics", "lead", "name"),
    [(["rouge-1"], 2, "lead-2"), (["bracket-f1"], 0, "right-branching"), (["bleu"], 0, None)],
)
def test_the_baseline_is_that_of_the_task(metrics: list[str], lead: int, name: str | None) -> None:
    found = find_baseline(["A dog. A cat. A cow."], ["(S XX )S"], metrics, lead)
    assert (found and found.name) == name
    if lead:
        assert found is not None
        assert found.outputs == ["A dog. A cat."]
