"""The highest entries of rows are those that topk finds, however many stand in a row, and among equals too."""

import pytest
import torch

from nmt.search.extensions import highest


@pytest.mark.parametrize("vocab", [5, 63, 64, 1_024, 2_048, 2_111, 8_001])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_highest_finds_the_values_that_topk_finds(vocab: int, count: int) -> None:
    count = min(count, vocab)
    generator = torch.Generator().manual_seed(vocab)
    rows = torch.randn(6, 3, vocab, generator=generator)
    rows[1] = rows[1].round()  # many equals
    rows[2] = float("-inf")
    rows[3, :, :-2] = float("-inf")  # what counts stands behind the last whole block
    rows[4] = torch.linspace(0, 1, vocab)
    places = highest(rows, count)
    assert places.dtype == torch.int64
    assert (places.sort().values.diff() > 0).all(), "each is another"
    found = rows.gather(-1, places).sort(descending=True).values
    assert torch.equal(found, rows.topk(count).values)
