"""Ranking: the top entries of a row, and the upper bound of live hypotheses."""

import pytest
import torch

from nmt.search.beam import Beam
from nmt.search.options import SearchOptions
from nmt.search.ranking import Ranker, top_indices

CPU = torch.device("cpu")


@pytest.mark.parametrize("vocab", [5, 63, 64, 1_024, 2_048, 2_111, 8_001])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_top_indices_have_the_values_of_topk(vocab: int, count: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    values, offsets = torch.randn(7, 3, vocab, generator=generator), torch.randn(7, 3, generator=generator)
    values[1], offsets[1] = values[1].round(), offsets[1].round()  # ties
    values[2] = float("-inf")
    values[3, :, :-2] = float("-inf")  # the highest values follow the last whole block
    values[4] = torch.linspace(0, 1, vocab)
    offsets[5, 1:] = float("-inf")  # as before the first step
    offsets[6, 2] = 1e6  # the highest values are all in one part
    indices = top_indices(values, offsets, count)
    assert indices.dtype == torch.int64
    assert (indices.sort().values.diff() > 0).all(), "indices are distinct"
    sums = (values + offsets[:, :, None]).flatten(1)
    found = sums.gather(1, indices).sort(descending=True).values
    assert torch.equal(found, sums.topk(count).values)


@pytest.mark.parametrize(
    ("bias", "expected"), [(None, -1.0 / 10), (3.0, (3.0 - 1.0) / 2), (0.5, (0.5 - 1.0) / 10), (-3.0, -1.0 / 10)]
)
def test_the_upper_bound_is_that_of_the_best_live_hypothesis(bias: float | None, expected: float) -> None:
    """The bound is that of the best hypothesis, not the first; the score of a positive total decreases with length."""
    biases = () if bias is None else (((4,), bias),)
    options = SearchOptions(beam_size=2, length_penalty="power", length_alpha=1.0, bias=biases)
    beam = Beam.start(options, torch.tensor([10]), capacity=10, required=None, trees=None, ids=[0], clock=0)
    beam.advance()
    beam.log_prob = torch.tensor([[-5.0, -1.0]])
    assert Ranker(options, 10, CPU).upper_bound(beam).tolist() == [[pytest.approx(expected)]]


@pytest.mark.parametrize(("beam_size", "patience", "count"), [(5, 0.5, 3), (4, 0.5, 2), (3, 0.1, 1)])
def test_patience_rounds_half_up_as_in_ctranslate2(beam_size: int, patience: float, count: int) -> None:
    assert SearchOptions(beam_size=beam_size, stop="patience", patience=patience).max_finished == count
