"""Resources of parallel runs."""

from pathlib import Path

import pytest

from nmt.experiments import launch
from nmt.experiments.sweep import make_sweep

RECIPE = """
name = "tiny"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy" }]
valid = [{ kind = "toy" }]
[train]
device = "cpu"
"""


@pytest.mark.parametrize("first", ["0", "2"])
def test_cores_are_divided_among_runs_that_set_no_threads(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "num_cores", lambda: 8)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    values = dict.fromkeys((first, "0", "2"))
    runs = make_sweep(tmp_path / "tiny.toml", 1, (), [f"train.threads={','.join(values)}"]).runs(tmp_path)
    slot, _ = launch._slots(runs[0].recipe, 2, len(runs))
    given = [[one for one in slot.overrides(run) if one.startswith("train.threads=")] for run in runs]
    assert given == [[{"0": "train.threads=4", "2": "train.threads=2"}[value]] for value in values]
    (alone,) = launch._slots(runs[0].recipe, None, len(runs))
    assert alone.overrides(runs[0]) == runs[0].overrides
