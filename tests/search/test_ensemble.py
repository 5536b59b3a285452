"""Ensembles against hand-computed means and a single model."""

import math

import pytest
import torch

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.ensemble import Ensemble, EnsembleMean
from nmt.search.options import SearchOptions
from nmt.special_ids import BOS_ID
from tests.search.test_search import TableModel, random_table, source_of

SOURCES = PackedSequences.from_lists([source_of(3, 0), source_of(2, 1), source_of(4, 2)])
OPTIONS = SearchOptions(beam_size=3, n_best=2, max_extra_tokens=2)


@pytest.mark.parametrize("mean", ["linear", "log"])
def test_the_first_step_is_the_mean_of_the_distributions(mean: EnsembleMean) -> None:
    tables = [random_table(seed, 4) for seed in (1, 2, 3)]
    ensemble = Ensemble([TableModel(table) for table in tables], mean)
    log_probs = ensemble.step(torch.full((3, 1), BOS_ID), ensemble.start(SOURCES, 1))
    for row, source in enumerate(SOURCES.to_lists()):
        members = [[math.exp(value) for value in table(tuple(source), ())] for table in tables]
        if mean == "linear":
            expected = [sum(column) / 3 for column in zip(*members, strict=True)]
        else:
            geometric = [math.prod(column) ** (1 / 3) for column in zip(*members, strict=True)]
            expected = [value / sum(geometric) for value in geometric]
        assert log_probs[row, 0].exp().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("mean", ["linear", "log"])
def test_an_ensemble_of_equal_models_is_that_model(mean: EnsembleMean) -> None:
    table = random_table(7, 5)
    alone = beam_search(TableModel(table), SOURCES, OPTIONS)
    together = beam_search(Ensemble([TableModel(table), TableModel(table)], mean), SOURCES, OPTIONS)
    for one, other in zip(alone, together, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-4)
