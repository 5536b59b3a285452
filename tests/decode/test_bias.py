"""Biases by hand: what ranks, what is reported, and that nothing is gained by repeating."""

import math

import pytest
from test_search import Prefix, Table, TableModel, source_of

from nmt.decode.options import SearchOptions
from nmt.decode.search import Hypothesis, beam_search
from nmt.packed import PackedSequences
from nmt.special_ids import EOS_ID

Biases = tuple[tuple[Prefix, float], ...]


def weights_table(rows: dict[Prefix, dict[int, float]], otherwise: dict[int, float]) -> Table:
    """Probabilities of tokens behind the prefixes that are named, and behind all others."""

    def table(_source: Prefix, prefix: Prefix) -> list[float]:
        row = rows.get(prefix, otherwise)
        return [math.log(row[token]) if token in row else -math.inf for token in range(9)]

    return table


def best(table: Table, bias: Biases, length: int = 2, **options: int) -> Hypothesis:
    chosen = SearchOptions(**({"beam_size": 4} | options), length_penalty="none", max_extra_tokens=2, bias=bias)
    [[found]] = beam_search(TableModel(table), PackedSequences.from_lists([source_of(length, 0)]), chosen)
    return found


CHOICE = weights_table({(): {4: 0.7, 5: 0.3}}, {EOS_ID: 1.0})


@pytest.mark.parametrize("bias", [(((5,), 1.0),), (((4,), -1.0),), (((5,), 0.5), ((4,), -0.5))])
def test_a_bias_decides_and_the_log_probability_stays_true(bias: Biases) -> None:
    assert best(CHOICE, ()).tokens == [4]
    found = best(CHOICE, bias)
    assert found.tokens == [5]
    assert found.log_prob == pytest.approx(math.log(0.3), rel=1e-6)
    assert found.score == pytest.approx(math.log(0.3) + sum(value for p, value in bias if p == (5,)), rel=1e-6)


def test_a_bias_too_small_does_not_decide() -> None:
    assert best(CHOICE, (((5,), math.log(0.7 / 0.3) - 0.01),)).tokens == [4]
    assert best(CHOICE, (((5,), math.log(0.7 / 0.3) + 0.01),)).tokens == [5]


def test_repeating_does_not_pay() -> None:
    table = weights_table({}, {4: 0.5, 5: 0.1, EOS_ID: 0.4})
    found = best(table, (((5,), 6.0),))
    assert found.tokens == [5]
    assert found.score == pytest.approx(math.log(0.1 * 0.4) + 6.0, rel=1e-6)


def test_what_is_avoided_costs_each_time() -> None:
    table = weights_table({(): {4: 1.0}, (4,): {4: 0.6, 5: 0.4}}, {EOS_ID: 1.0})
    assert best(table, (((4,), -0.3),)).tokens == [4, 4]
    found = best(table, (((4,), -0.5),))
    assert found.tokens == [4, 5]
    assert found.score == pytest.approx(math.log(0.4) - 0.5, rel=1e-6)


def test_a_phrase_is_credited_while_it_grows_and_not_when_it_breaks_off() -> None:
    """4 5 6 begins with the least likely of four tokens, which a beam of two would drop at once."""
    path = {(): {7: 0.4, 8: 0.35, 5: 0.2, 4: 0.05}, (4,): {5: 0.9, 7: 0.1}, (4, 5): {6: 0.9, 7: 0.1}}
    table = weights_table(path, {EOS_ID: 1.0})
    assert best(table, (((4, 5, 6), 6.0),), beam_size=2).tokens == [4, 5, 6]
    broken = weights_table(path | {(4,): {7: 1.0}}, {EOS_ID: 1.0})
    found = best(broken, (((4, 5, 6), 6.0),), beam_size=2)
    assert found.tokens == [7]
    assert found.score == pytest.approx(math.log(0.4), rel=1e-6)


def test_phrases_that_merely_begin_alike_are_left_alone() -> None:
    table = weights_table({(): {4: 0.6, 5: 0.4}, (4,): {6: 0.9, 7: 0.1}}, {EOS_ID: 1.0})
    found = best(table, (((4, 7), -9.0),))
    assert found.tokens == [4, 6]
    assert found.score == pytest.approx(math.log(0.54), rel=1e-6)


def test_the_impossible_stays_impossible() -> None:
    assert best(CHOICE, (((6,), 50.0), ((5, 5), 50.0))).tokens == [4]


def test_it_still_stops_early() -> None:
    model = TableModel(weights_table({}, {4: 0.01, EOS_ID: 0.99}))
    options = SearchOptions(beam_size=2, bias=(((4,), 2.0),))
    [[found]] = beam_search(model, PackedSequences.from_lists([source_of(40, 0)]), options)
    assert found.tokens == []
    assert len(model.rows_per_step) <= 4
