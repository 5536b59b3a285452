"""Linearized trees and their brackets."""

import pytest

from nmt.text.trees import Leaf, Node, brackets, linearize, read_tree, without_punctuation, words

DOG = "(ROOT (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))"


def test_a_linearized_tree_has_a_symbol_per_word_and_no_function_tags() -> None:
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
        ("( (S (NP (PRP It)) (VP (VBZ is))) )", "(S (NP XX )NP (VP XX )VP )S"),  # unlabeled root of the Penn Treebank
        ("(TOP (S (NP (-NONE- *)) (VP (VB Go))))", "(S (VP XX )VP )S"),  # constituents with only a trace are removed
        ("(ROOT (NP (NN a)) (NP (NN b)))", "(TOP (NP XX )NP (NP XX )NP )TOP"),
        ("(S (NP=2 (-LRB- -LRB-) (NN x)) (ADJP|ADVP (JJ y)))", "(S (NP XX XX )NP (ADJP XX )ADJP )S"),
        ("(S (`` ``) (VP (VB Go)) ('' '') (: --))", "(S `` (VP XX )VP '' : )S"),
    ],
)
def test_traces_and_function_tags_are_removed(line: str, target: str) -> None:
    assert linearize(read_tree(line)) == target


def test_a_constituent_may_have_the_label_of_its_only_tag() -> None:
    assert linearize(read_tree("(S (NP (NP dogs)) (VP (VBZ sleep)))")) == "(S (NP XX )NP (VP XX )VP )S"


def test_escaped_brackets_in_words_are_restored() -> None:
    assert words(read_tree("(NP (NN Re-LRB-a-RRB-d) (-LRB- -LRB-) (NN {x}) (-RRB- -RRB-))")) == [
        "Re(a)d",
        "(",
        "{x}",
        ")",
    ]


def test_brackets_are_those_that_evalb_scores() -> None:
    """The root, tags, punctuation and empty brackets do not count; ADVP equals PRT."""
    line = "(ROOT (S (PRT (RB So)) (, ,) (NP (PRP it)) (VP (VBZ is)) (X (. .))))"
    found, is_word = brackets(line)
    assert (found, is_word) == brackets(linearize(read_tree(line)))
    assert found == [("ADVP", 0, 1), ("NP", 2, 3), ("VP", 3, 4), ("X", 4, 5), ("S", 0, 5)]
    assert is_word == [True, False, True, True, False]
    assert without_punctuation(found, is_word) == [("ADVP", 0, 1), ("NP", 1, 2), ("VP", 2, 3), ("S", 0, 3)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "there are no words"),
        ("(S", "a bracket is not closed"),
        ("(S XX", "a bracket is not closed"),
        ("(S XX )NP", r"\)NP closes no open bracket"),
        ("XX )S", r"\)S closes no open bracket"),
        ("(S )S", "there are no words"),
        ("(S (NP (NN dog))", "the brackets do not enclose one tree"),
        ("(S (NN dog)))", r"unexpected '\)'"),
        ("dog)", "unexpected 'dog'"),
        ("()", r"\(\) has no word"),
        ("(S (NP (DT The) (NN)))", r"\(NN\) has no word"),
        (")(", r"\)\( closes no open bracket"),
        ("XX y", "y is neither a bracket nor a word"),
        ("(S " * 200 + "(NN dog" + ")" * 201, "it has more than 200 open brackets"),
        ("(S " * 1_000 + "(NN dog" + ")" * 1_001, "it has more than 200 open brackets"),
    ],
)
def test_a_malformed_tree_is_an_error(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        brackets(line)


def test_a_tree_may_have_200_open_brackets() -> None:
    assert brackets("(S " * 199 + "(NN dog" + ")" * 200) == ([("S", 0, 1)] * 199, [True])
