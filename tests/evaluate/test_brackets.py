"""Bracket F1 against a plain implementation, with intervals, significance tests and errors."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.evaluate.hints import check_scoring
from nmt.evaluate.metrics import make_scorer, score_corpus
from nmt.evaluate.significance import compare_systems
from nmt.text.trees import read_tree
from tests.calling import Nmt, one_line

LABELS = ["S", "NP", "VP", "PP", "ADVP", "PRT"]
TAGS = ["NN", "VB", "DT", ",", ".", ":", "``", "''", "-LRB-"]


def random_tree(rng: random.Random, tags: list[str], depth: int = 0) -> list[object]:
    """Return a tree over leaves with these tags, as nested lists: [label, child...] or [tag, word]."""
    if len(tags) == 1 and (depth > 3 or rng.random() < 0.6):
        return [tags[0], "w"]
    splits = sorted(rng.sample(range(1, len(tags)), min(rng.randrange(3), len(tags) - 1)))
    parts = [tags[start:end] for start, end in pairwise([0, *splits, len(tags)])]
    return [rng.choice(LABELS), *(random_tree(rng, part, depth + 1) for part in parts)]


def written(tree: list[object] | str) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(written(part) for part in tree)})"  # type: ignore[arg-type]


def plain_brackets(tree: list[object]) -> Counter[tuple[str, frozenset[int]]]:
    """Count labels with the sets of words below them: a direct implementation of EVALB's rules."""
    found: Counter[tuple[str, frozenset[int]]] = Counter()
    words: list[str] = []

    def visit(node: list[object]) -> frozenset[int]:
        label = str(node[0])
        if len(node) == 2 and isinstance(node[1], str):
            if label in {",", ".", ":", "``", "''"}:
                return frozenset()
            words.append(label)
            return frozenset({len(words)})
        below = frozenset[int]().union(*(visit(child) for child in node[1:]))  # type: ignore[arg-type]
        if below:
            found["ADVP" if label == "PRT" else label, below] += 1
        return below

    visit(tree)
    return found


@pytest.mark.slow
def test_scores_equal_a_plain_implementation() -> None:
    rng = random.Random(3)
    trees: list[tuple[list[object], list[object]]] = []
    for _ in range(300):
        tags = rng.choices(TAGS, k=rng.randrange(1, 12))
        gold = random_tree(rng, tags)
        found = random_tree(rng, tags) if rng.random() < 0.5 else gold
        trees.append((["S", gold], ["NP", found]))
    counts = [(plain_brackets(gold), plain_brackets(found)) for gold, found in trees]
    matched = sum((gold & found).total() for gold, found in counts)
    total = sum(gold.total() + found.total() for gold, found in counts)
    gold_lines, found_lines = ([f"(ROOT {written(tree)})" for tree in side] for side in zip(*trees, strict=True))
    (score,) = score_corpus(found_lines, [gold_lines], ["bracket-f1"], tgt_lang="tree")
    assert 30 < score.value < 70  # some brackets match, but not all
    assert score.value == pytest.approx(200 * matched / total)
    targets = [[read_tree(line).linearized for line in side] for side in (found_lines, gold_lines)]
    assert score_corpus(targets[0], [targets[1]], ["bracket-f1"], tgt_lang="tree") == [score]


GOLD = "(S (NP XX XX )NP (VP XX )VP . )S"


@pytest.mark.parametrize(
    ("found", "value", "detail"),
    [
        (GOLD, 100.0, "P 100.00, R 100.00, exact 100.0%, malformed 0 of 1"),
        ("(S (NP XX )NP (VP XX XX )VP . )S", 100 / 3, "P 33.33, R 33.33, exact 0.0%, malformed 0 of 1"),
        ("(S XX XX XX . )S", 50.0, "P 100.00, R 33.33, exact 0.0%, malformed 0 of 1"),
        ("(S (S (NP XX XX )NP (VP XX )VP . )S )S", 6 / 7 * 100, "P 75.00, R 100.00, exact 0.0%, malformed 0 of 1"),
        ("(S (NP XX XX )NP (VP XX )VP .", 0.0, "P 0.00, R 0.00, exact 0.0%, malformed 1 of 1"),
        ("(S (NP XX XX )NP (VP XX XX )VP . )S", 0.0, "P 0.00, R 0.00, exact 0.0%, malformed 1 of 1"),
        ("(S (NP XX , )NP (VP XX )VP XX )S", 100.0, "P 100.00, R 100.00, exact 100.0%, malformed 0 of 1"),
        ("", 0.0, "P 0.00, R 0.00, exact 0.0%, malformed 1 of 1"),
    ],
)
def test_one_tree_has_the_expected_value_and_detail(found: str, value: float, detail: str) -> None:
    (score,) = score_corpus([found], [[GOLD]], ["bracket-f1"], tgt_lang="tree")
    assert score.value == pytest.approx(value) and score.detail == detail
    assert score.signature.startswith("BracketF1|rules:evalb|punct:ref|malformed:wrong|version:nmt-")


def test_the_best_reference_counts_and_the_signature_has_their_number() -> None:
    flat = "(S XX XX XX . )S"
    (score,) = score_corpus([GOLD], [[flat], [GOLD]], ["bracket-f1"], tgt_lang="tree")
    assert score.value == 100.0 and score.signature.startswith("BracketF1|refs:2|rules:evalb|")
    (score,) = score_corpus([GOLD, GOLD], [[flat, flat], [GOLD, ""]], ["bracket-f1"], tgt_lang="tree")
    assert score.value < 100.0 and score.signature.startswith("BracketF1|refs:var|rules:evalb|")


@pytest.mark.slow
def test_bracket_f1_has_intervals_and_paired_tests() -> None:
    rng = random.Random(5)
    worse = "(S (NP XX )NP (VP XX XX )VP . )S"
    base = [GOLD if rng.random() < 0.5 else worse for _ in range(200)]
    systems = {"base": base, "better": [line if rng.random() < 0.5 else GOLD for line in base], "same": base[::-1]}
    (score,) = score_corpus(systems["base"], [[GOLD] * 200], ["bracket-f1"], tgt_lang="tree", resamples=400)
    assert score.mean == pytest.approx(score.value, abs=1.0)
    # One sentence scores 100 or 33.3; the mean of 200 of them varies by this much.
    assert score.interval == pytest.approx(1.96 * 66.7 * 0.5 / 200**0.5, rel=0.2)
    found = compare_systems(
        systems, [[GOLD] * 200], make_scorer("bracket-f1", tgt_lang="tree"), resamples=400, trials=400
    )
    first, better, same = found.systems
    assert first.p_bootstrap is None and first.mean == pytest.approx(score.mean)
    assert better.p_bootstrap is not None and better.p_bootstrap < 0.01
    assert better.p_randomization is not None and better.p_randomization < 0.01
    assert same.p_bootstrap is not None and same.p_bootstrap > 0.05
    assert all("BracketF1|rules:evalb|" in signature and "seed:12345" in signature for signature in found.signatures)


def test_malformed_reference_is_an_error(tmp_path: Path, nmt: Nmt) -> None:
    with pytest.raises(UserError, match="line 2 of the reference is not a tree: a bracket is not closed"):
        score_corpus([GOLD, GOLD], [[GOLD, "(S XX"]], ["bracket-f1"], tgt_lang="tree")
    options = {"tgt_lang": "tree", "tokenize": None, "lowercase": False}
    with pytest.raises(UserError, match="line 2 of the reference is not a tree"):  # before training
        check_scoring("data.test.trees", [[GOLD, "(S XX"]], ["bracket-f1"], options)
    (tmp_path / "ref").write_text("The dog sleeps.\n")
    (tmp_path / "hyp").write_text(f"{GOLD}\n")
    status, _, err = nmt("evaluate", "--ref", tmp_path / "ref", tmp_path / "hyp", "--metrics", "bracket-f1")
    assert status == 1 and "line 1 of the reference is not a tree" in one_line(err)
