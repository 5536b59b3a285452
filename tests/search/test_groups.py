"""Beam groups: their n-best lists and their diversity. `test_all_options` compares them with a reference."""

import pytest

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import EOS_ID
from tests.search.test_search import TableModel, random_table, reference_penalty, source_of

SOURCES = [source_of(length, name) for name, length in enumerate([3, 5, 2, 6])]
TABLE = random_table(7, 6)


def search_groups(groups: int, penalty: float, width: int = 2, n_best: int = 1) -> list[list[Hypothesis]]:
    options = SearchOptions(width * groups, n_best, beam_groups=groups, diversity_penalty=penalty, max_extra_tokens=4)
    return beam_search(TableModel(TABLE), PackedSequences.from_lists(SOURCES), options)


def test_groups_without_penalty_are_equal() -> None:
    alone = search_groups(1, 0.5, n_best=2)
    assert search_groups(3, 0.0, n_best=2) == alone
    assert search_groups(3, 0.0, n_best=6) == alone  # duplicates are merged


def test_the_first_group_is_a_plain_beam() -> None:
    plain, groups = search_groups(1, 0.5, n_best=2), search_groups(3, 0.5, n_best=6)
    for own, others in zip(plain, groups, strict=True):
        assert len(own) == 2
        assert all(hypothesis in others for hypothesis in own)


def test_the_penalty_makes_outputs_diverse() -> None:
    def first_tokens(penalty: float) -> int:
        """Number of distinct first tokens of the best outputs of four groups, over all sentences."""
        found = search_groups(4, penalty, width=1, n_best=4)
        return sum(len({tuple(h.tokens[:1]) for h in hypotheses}) for hypotheses in found)

    assert first_tokens(0.0) == len(SOURCES)
    assert first_tokens(50.0) > 2 * len(SOURCES)


@pytest.mark.parametrize("n_best", [1, 3, 6])
def test_the_penalty_does_not_change_scores(n_best: int) -> None:
    for source, hypotheses in zip(SOURCES, search_groups(3, 2.0, n_best=n_best), strict=True):
        assert 1 <= len(hypotheses) <= n_best
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            steps = [TABLE(source, tuple(h.tokens[:i]))[token] for i, token in enumerate([*h.tokens, EOS_ID])]
            assert h.log_prob == pytest.approx(sum(steps), rel=1e-5)
            assert h.score == pytest.approx(sum(steps) / reference_penalty(len(steps), SearchOptions()), rel=1e-5)
