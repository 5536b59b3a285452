"""Trees as targets, and their brackets."""

import pytest

from nmt.text.trees import Leaf, Node, brackets, linearize, read_tree, right_branching, words

DOG = "(ROOT (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))"


def test_a_tree_becomes_words_and_labelled_brackets() -> None:
    tree = read_tree(DOG)
    assert tree.label == "ROOT"
    assert tree.children[0] == Node(
        "S",
        (
            Node("NP-SBJ", (Leaf("DT", "The"), Leaf("NN", "dog"))),
            Node("VP", (Leaf("VBZ", "sleeps"),)),
            Leaf(".", "."),
        ),
    )
    assert words(tree) == ["The", "dog", "sleeps", "."]
    assert linearize(tree) == "(S (NP XX XX )NP (VP XX )VP . )S"


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("( (S (NP (PRP It)) (VP (VBZ is))) )", "(S (NP XX )NP (VP XX )VP )S"),  # the Penn Treebank's own root
        ("(TOP (S (NP (-NONE- *)) (VP (VB Go))))", "(S (VP XX )VP )S"),  # what dominates nothing but a trace goes
        ("(ROOT (NP (NN a)) (NP (NN b)))", "(TOP (NP XX )NP (NP XX )NP )TOP"),
        ("(S (NP=2 (-LRB- -LRB-) (NN x)) (ADJP|ADVP (JJ y)))", "(S (NP XX XX )NP (ADJP XX )ADJP )S"),
        ("(S (`` ``) (VP (VB Go)) ('' '') (: --))", "(S `` (VP XX )VP '' : )S"),
    ],
)
def test_what_evalb_ignores_is_left_out(line: str, target: str) -> None:
    assert linearize(read_tree(line)) == target


def test_brackets_in_words_are_written_as_in_text() -> None:
    assert words(read_tree("(NP (NN Re-LRB-a-RRB-d) (-LRB- -LRB-) (NN {x}) (-RRB- -RRB-))")) == [
        "Re(a)d",
        "(",
        "{x}",
        ")",
    ]


def test_brackets_are_counted_as_evalb_counts_them() -> None:
    """Without root, tags, punctuation and empty brackets; ADVP and PRT are one label."""
    line = "(ROOT (S (PRT (RB So)) (, ,) (NP (PRP it)) (VP (VBZ is)) (X (. .))))"
    expected = [("ADVP", 0, 1), ("NP", 1, 2), ("VP", 2, 3), ("S", 0, 3)]
    assert brackets(line) == (expected, 5)
    assert brackets(linearize(read_tree(line))) == (expected, 5)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "(S",
        "(S XX",
        "(S XX )NP",
        "XX )S",
        "(S )S",
        "(S (NP (NN dog))",
        "(S (NN dog)))",
        "dog)",
        "()",
        ")(",
        "XX y",
    ],
)
def test_a_malformed_tree_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        brackets(line)


def test_the_baseline_branches_to_the_right() -> None:
    assert right_branching("(S (NP XX XX )NP . )S") == "(S XX (S XX (S . )S )S )S"
    assert brackets(right_branching("(S (NP XX XX )NP . )S"))[0] == [("S", 1, 2), ("S", 0, 2)]
