"""Models and checkpoints in run folders."""

from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.storage.run_folder import (
    CLASSIFIER,
    checkpoint_directory,
    checkpoint_step,
    find_model,
    list_checkpoints,
    require_own_files,
)


def make_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "model.toml").write_text("")
    return directory


def test_checkpoints_are_ordered_by_step(tmp_path: Path) -> None:
    directories = [make_model(checkpoint_directory(tmp_path, step)) for step in (900, 10_000, 1)]
    (tmp_path / "checkpoints" / ".step-00000002.part-1").mkdir()
    (tmp_path / "checkpoints" / "corrupt-step-00000003").mkdir()
    (tmp_path / "checkpoints" / "step-00000004").write_text("a file")
    assert list_checkpoints(tmp_path) == [directories[2], directories[0], directories[1]]
    assert [checkpoint_step(directory) for directory in list_checkpoints(tmp_path)] == [1, 900, 10_000]
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_a_path_may_be_a_model_a_checkpoint_or_a_run(tmp_path: Path) -> None:
    older, newer = (make_model(checkpoint_directory(tmp_path, step)) for step in (5, 10))
    assert find_model(older) == older
    assert find_model(tmp_path) == newer
    model = make_model(tmp_path / "model")
    assert find_model(tmp_path) == find_model(model) == model


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "does not exist"), ("", "has no model")])
def test_a_missing_model_is_a_one_line_error(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{problem}; expected a model directory") as caught:
        find_model(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_prepared_run_has_no_model(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stamps.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a run without checkpoints; .*; train it with nmt run"):
        find_model(tmp_path)
    with pytest.raises(UserError, match=r"has no model; expected a model directory \(with classifier\.toml\)"):
        find_model(tmp_path, CLASSIFIER)


@pytest.mark.parametrize("name", ["report.json", "report.md"])
def test_a_report_next_to_the_recipe_of_a_user_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("# my notes\nseed = 1\n")
    (tmp_path / "metrics.jsonl").write_text("")  # of a run that was killed before its first checkpoint
    require_own_files(tmp_path, (), keeps_recipe=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"has {name} but no run; the new run would overwrite existing files"):
        require_own_files(tmp_path, (), keeps_recipe=True)
    checkpoint_directory(tmp_path, 1).mkdir(parents=True)
    require_own_files(tmp_path, (), keeps_recipe=True)
