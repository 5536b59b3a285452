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


@pytest.mark.parametrize(("varied", "threads"), [("0,2", [4, 2]), ("2,0", [2, 4])])  # 0: not set
def test_cores_are_divided_among_runs_that_set_no_threads(
    varied: str, threads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "num_cores", lambda: 8)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    runs = make_sweep(tmp_path / "tiny.toml", 1, (), [f"train.threads={varied}"]).runs(tmp_path)
    slot, _ = launch._slots(runs[0].recipe, 2, len(runs))
    for run, expected in zip(runs, threads, strict=True):
        overrides = [override for override in slot.overrides(run) if override.startswith("train.threads=")]
        assert overrides == [f"train.threads={expected}"]
    (alone,) = launch._slots(runs[0].recipe, None, len(runs))
    assert alone.overrides(runs[0]) == runs[0].overrides
