"""Linearized trees and their brackets."""

import pytest

from nmt.text.trees import brackets, read_tree, without_punctuation

DOG = "(ROOT (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))"


def test_a_linearized_tree_has_a_symbol_per_word_and_no_function_tags() -> None:
    tree = read_tree(DOG)
    assert tree.words == ["The", "dog", "sleeps", "."]
    assert tree.linearized == "(S (NP XX XX )NP (VP XX )VP . )S"


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
    assert read_tree(line).linearized == target


def test_a_constituent_may_have_the_label_of_its_only_tag() -> None:
    assert read_tree("(S (NP (NP dogs)) (VP (VBZ sleep)))").linearized == "(S (NP XX )NP (VP XX )VP )S"


def test_escaped_brackets_in_words_are_restored() -> None:
    assert read_tree("(NP (NN Re-LRB-a-RRB-d) (-LRB- -LRB-) (NN {x}) (-RRB- -RRB-))").words == [
        "Re(a)d",
        "(",
        "{x}",
        ")",
    ]


def test_brackets_are_those_that_evalb_scores() -> None:
    """The root, tags, punctuation and empty brackets do not count; ADVP equals PRT."""
    line = "(ROOT (S (PRT (RB So)) (, ,) (NP (PRP it)) (VP (VBZ is)) (X (. .))))"
    found, is_word = brackets(line)
    assert (found, is_word) == brackets(read_tree(line).linearized)
    assert found == [("ADVP", 0, 1), ("NP", 2, 3), ("VP", 3, 4), ("X", 4, 5), ("S", 0, 5)]
    assert is_word == [True, False, True, True, False]
    assert brackets("(ROOT (NP (NN a)) (NP (NN b)))")[0] == [("NP", 0, 1), ("NP", 1, 2)]
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
        ("(S (NN big dog))", "unexpected 'dog'"),
        ("(S (NP dog (NN cat)))", r"unexpected '\('"),
        ("(S (-NONE- * (NN dog)))", r"unexpected '\('"),
        ("dog)", "unexpected 'dog'"),
        ("()", r"\(\) has no word"),
        ("(S (NP (DT The) (NN)))", r"\(NN\) has no word"),
        (")(", r"\)\( closes no open bracket"),
        ("XX y", "y is neither a bracket nor a word"),
    ],
)
def test_a_malformed_tree_is_an_error(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        brackets(line)


def test_a_tree_may_have_any_depth() -> None:
    assert brackets("(S " * 2_000 + "(NN dog" + ")" * 2_001) == ([("S", 0, 1)] * 2_000, [True])
