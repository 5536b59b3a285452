"""Phrase bias: ranking, scores, credit, and rewards against a reference."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nmt.search.phrase_rewards
from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.bias import Bias, phrase_rewards
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import EOS_ID
from tests.search.reference_search import count, max_credit, total_bias
from tests.search.test_search import Prefix, Table, TableModel, source_of

Biases = tuple[tuple[Prefix, float], ...]


def weights_table(rows: dict[Prefix, dict[int, float]], otherwise: dict[int, float]) -> Table:
    """Return a table of token probabilities after the prefixes in `rows`, and after all others."""

    def table(_source: Prefix, prefix: Prefix) -> list[float]:
        row = rows.get(prefix, otherwise)
        return [math.log(row[token]) if token in row else -math.inf for token in range(9)]

    return table


def best(table: Table, bias: Biases, beam_size: int = 4) -> Hypothesis:
    options = SearchOptions(beam_size, length_penalty="none", max_extra_tokens=2, bias=bias)
    [[found]] = beam_search(TableModel(table), PackedSequences.from_lists([source_of(2, 0)]), options)
    return found


CHOICE = weights_table({(): {4: 0.7, 5: 0.3}}, {EOS_ID: 1.0})


@pytest.mark.parametrize("bias", [(((5,), 1.0),), (((4,), -1.0),), (((5,), 0.5), ((4,), -0.5))])
def test_a_bias_changes_the_ranking_but_not_the_log_probability(bias: Biases) -> None:
    assert best(CHOICE, ()).tokens == [4]
    found = best(CHOICE, bias)
    assert found.tokens == [5]
    assert found.log_prob == pytest.approx(math.log(0.3), rel=1e-6)
    assert found.score == pytest.approx(math.log(0.3) + sum(value for p, value in bias if p == (5,)), rel=1e-6)


def test_a_small_bias_does_not_change_the_result() -> None:
    assert best(CHOICE, (((5,), math.log(0.7 / 0.3) - 0.01),)).tokens == [4]
    assert best(CHOICE, (((5,), math.log(0.7 / 0.3) + 0.01),)).tokens == [5]


def test_a_positive_bias_counts_once() -> None:
    table = weights_table({}, {4: 0.5, 5: 0.1, EOS_ID: 0.4})
    found = best(table, (((5,), 6.0),))
    assert found.tokens == [5]
    assert found.score == pytest.approx(math.log(0.1 * 0.4) + 6.0, rel=1e-6)


def test_a_negative_bias_counts_each_time() -> None:
    table = weights_table({(): {4: 1.0}, (4,): {4: 0.6, 5: 0.4}}, {EOS_ID: 1.0})
    assert best(table, (((4,), -0.3),)).tokens == [4, 4]
    found = best(table, (((4,), -0.5),))
    assert found.tokens == [4, 5]
    assert found.score == pytest.approx(math.log(0.4) - 0.5, rel=1e-6)


def test_partial_phrases_earn_credit_until_they_break_off() -> None:
    """4 5 6 begins with the least probable of four tokens, which a beam of two drops without credit."""
    path = {(): {7: 0.4, 8: 0.35, 5: 0.2, 4: 0.05}, (4,): {5: 0.9, 7: 0.1}, (4, 5): {6: 0.9, 7: 0.1}}
    table = weights_table(path, {EOS_ID: 1.0})
    assert best(table, (((4, 5, 6), 6.0),), beam_size=2).tokens == [4, 5, 6]
    broken = weights_table(path | {(4,): {7: 1.0}}, {EOS_ID: 1.0})
    found = best(broken, (((4, 5, 6), 6.0),), beam_size=2)
    assert found.tokens == [7]
    assert found.score == pytest.approx(math.log(0.4), rel=1e-6)


def test_phrases_with_a_common_prefix_are_independent() -> None:
    table = weights_table({(): {4: 0.6, 5: 0.4}, (4,): {6: 0.9, 7: 0.1}}, {EOS_ID: 1.0})
    found = best(table, (((4, 7), -9.0),))
    assert found.tokens == [4, 6]
    assert found.score == pytest.approx(math.log(0.54), rel=1e-6)


def test_a_bias_does_not_make_impossible_tokens_possible() -> None:
    assert best(CHOICE, (((6,), 50.0), ((5, 5), 50.0))).tokens == [4]


def test_a_bias_keeps_early_stopping() -> None:
    model = TableModel(weights_table({}, {4: 0.01, EOS_ID: 0.99}))
    options = SearchOptions(beam_size=2, bias=(((4,), 2.0),))
    [[found]] = beam_search(model, PackedSequences.from_lists([source_of(40, 0)]), options)
    assert found.tokens == []
    assert len(model.rows_per_step) <= 4


# --- Many phrases -----------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")
phrases = st.lists(st.integers(4, 7), min_size=1, max_size=4).map(tuple)
bias_values = st.sampled_from((-2.0, -0.25, 0.5, 1.75, 6.0))
outputs = st.lists(st.integers(3, 8), min_size=1, max_size=12)


def max_total_bias(biases: Biases, output: Prefix) -> float:
    """Bias of an output that continues with every preferred phrase that it lacks."""
    missing = [value for phrase, value in biases if value > 0 and not count(phrase, output)]
    return total_bias(biases, output) + sum(missing)


@pytest.mark.slow
@given(
    biases=st.lists(st.tuples(phrases, bias_values), min_size=1, max_size=8).map(tuple),
    found=st.lists(outputs, min_size=2, max_size=2),
)
def test_rewards_equal_the_reference(biases: Biases, found: list[list[int]]) -> None:
    """Two hypotheses that swap at every step; the reference scans the whole output."""
    bias, length = Bias.start(biases, 1, 2, CPU), max(map(len, found))
    first, second = ([*output, *output * length][:length] for output in found)
    for step in range(length):
        parents = torch.tensor([[0, 0] if step == 0 else [1, 0]])
        now = [first, second] if step % 2 else [second, first]
        bias = bias.extend(parents, torch.tensor([[output[step] for output in now]]))
        so_far = [tuple(output[: step + 1]) for output in now]
        assert bias.earned.tolist() == [[pytest.approx(total_bias(biases, output)) for output in so_far]]
        assert bias.max_total().tolist() == [[pytest.approx(max_total_bias(biases, output)) for output in so_far]]
        log_probs = torch.linspace(-3.0, 0.0, 9).repeat(1, 2, 1)
        gains = bias.apply(log_probs) - log_probs + bias.earned[:, :, None]
        for row, output in zip(gains[0].tolist(), so_far, strict=True):
            grown = [(*output, token) for token in range(9)]
            expected = [total_bias(biases, one) + max_credit(biases, one) for one in grown]
            assert row == pytest.approx(expected, rel=1e-6, abs=1e-6)  # float32


def test_select_and_concat_keep_the_progress() -> None:
    parents = torch.zeros(3, 1, dtype=torch.int64)
    bias = Bias.start((((4, 5), 1.0), ((5,), -0.5)), 3, 1, CPU).extend(parents, torch.tensor([[4], [5], [6]]))
    bias = bias.select([2, 0], torch.tensor([2, 0])).concat(bias.select([1], torch.tensor([1])))
    assert bias.extend(parents, torch.tensor([[5]] * 3)).earned.tolist() == [[-0.5], [0.5], [-1.0]]


def test_concat_joins_sentences_that_have_met_different_numbers_of_phrases() -> None:
    biases: Biases = (((4,), 1.0), ((5,), 0.5), ((4, 5), 0.25))
    two, one = (Bias.start(biases, 1, 1, CPU) for _ in range(2))
    parent = torch.zeros(1, 1, dtype=torch.int64)
    for token in (4, 5):
        two = two.extend(parent, torch.tensor([[token]]))
    one = one.extend(parent, torch.tensor([[4]]))
    log_probs = torch.zeros(1, 1, 9)
    expected = torch.cat([one.apply(log_probs), two.apply(log_probs)])
    assert one.concat(two).apply(log_probs.repeat(2, 1, 1)).equal(expected)
    assert two.concat(one).apply(log_probs.repeat(2, 1, 1)).equal(expected.flip(0))
    assert one.concat(two).earned.tolist() == [[1.0], [1.75]]


def test_rewards_do_not_depend_on_the_bounded_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards are the same if the cache is dropped at each step."""
    rng = random.Random(0)
    biases = tuple((tuple(rng.choices(range(4, 9), k=rng.randint(1, 4))), 0.5) for _ in range(100))
    sizes: list[int] = []

    def rewards() -> Tensor:
        bias, applied = Bias.start(biases, 1, 1, CPU), []
        for token in random.Random(1).choices(range(4, 9), k=50):
            bias = bias.extend(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))
            applied.append(bias.apply(torch.zeros(1, 1, 9)))
        sizes.append(bias.phrases._next_tokens.size)
        return torch.cat(applied)

    expected = rewards()
    phrase_rewards.cache_clear()
    monkeypatch.setattr(nmt.search.phrase_rewards, "_CACHE_SIZE", 4)
    assert rewards().equal(expected)
    phrase_rewards.cache_clear()
    assert sizes[1] <= 5 < sizes[0]  # tokens after one node, and after all nodes


@pytest.mark.slow
def test_ten_thousand_phrases_equal_the_reference() -> None:
    rng = random.Random(0)
    biases = tuple(
        (tuple(rng.randrange(4, 60) for _ in range(rng.randint(1, 4))), rng.choice((-1.0, 0.5, 2.0)))
        for _ in range(10_000)
    )
    output = [rng.randrange(4, 60) for _ in range(20)]
    bias = Bias.start(biases, 1, 1, CPU)
    for token in output:
        bias = bias.extend(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))
    assert bias.earned.item() == pytest.approx(total_bias(biases, tuple(output)))
    for token in rng.sample(range(60), 5):
        grown = (*output, token)
        expected = total_bias(biases, grown) + max_credit(biases, grown)
        gain = bias.apply(torch.zeros(1, 1, 60))[0, 0, token] + bias.earned
        assert gain.item() == pytest.approx(expected)
