"""Steps of a run: prepare, train, average, translate, score and report."""

from nmt.pipeline.averaging import average
from nmt.pipeline.steps import prepare, require_test_sets, run, train

__all__ = ["average", "prepare", "require_test_sets", "run", "train"]
