"""Features and weighted sums, with stub models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from nmt.decode.scoring import TextScorer
from nmt.errors import UserError
from nmt.rerank.nbest import Candidate
from nmt.rerank.rerank import FeatureModel, best_first, feature_names, features, load_weights, save_weights


@dataclass
class StubScore:
    """The field of `TextScore` that features use."""

    log_prob: float


@dataclass
class LengthScorer:
    """The score is -(source characters) - (target characters) / 100; sides of at most 30 characters fit."""

    batches: list[int] = field(default_factory=list)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[StubScore]:
        self.batches.append(len(sources))
        assert all(self.fits(*pair) for pair in zip(sources, targets, strict=True))
        return [StubScore(-len(source) - len(target) / 100) for source, target in zip(sources, targets, strict=True)]

    def fits(self, source: str, target: str) -> bool:
        return max(len(source), len(target)) <= 30


def make_model(name: str, reverse: bool = False) -> FeatureModel:
    return FeatureModel(name, cast(TextScorer, LengthScorer()), reverse)


SOURCES = ["ab", "", "abc", "x" * 31]
LISTS = [
    [Candidate("a b c", -0.5), Candidate("d", -1.5)],
    [Candidate("", 0.0)],
    [Candidate("e f", -2.0), Candidate("y" * 31, -3.0)],
    [Candidate("g", -4.0)],
]


def test_features_are_score_length_and_log_probs(capsys: pytest.CaptureFixture[str]) -> None:
    models = [make_model("model"), make_model("reverse-model", reverse=True)]
    progress: list[int] = []
    found = features(SOURCES, LISTS, models, progress=progress.append)
    assert feature_names(models) == ["given", "length", "model", "reverse-model"]
    assert [one.shape for one in found] == [(2, 4), (1, 4), (2, 4), (1, 4)]
    np.testing.assert_allclose(found[0], [[-0.5, 3, -2.05, -5.02], [-1.5, 1, -2.01, -1.02]])
    np.testing.assert_allclose(found[1], [[0.0, 0, 0.0, 0.0]])
    # All candidates of a line get 0 if one of them does not fit.
    np.testing.assert_allclose(found[2], [[-2.0, 2, 0, 0], [-3.0, 1, 0, 0]])
    np.testing.assert_allclose(found[3], [[-4.0, 1, 0, 0]])
    assert sum(progress) == 2 * 6
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    expected = "in 2 lines (first: line 3), the source or a translation is too long for reverse-model; its feature is 0"
    assert expected in warnings[1]


def test_batched_scores_keep_the_order_of_candidates() -> None:
    lists = [[Candidate("z" * (1 + (i + j) % 29), 0.0) for j in range(140 if i == 9 else 7)] for i in range(60)]
    model = make_model("model")
    found = features(["ab"] * 60, lists, [model])
    for candidates, values in zip(lists, found, strict=True):
        np.testing.assert_allclose(values[:, 2], [-2 - len(one.text) / 100 for one in candidates])
    batches = cast(LengthScorer, model.scorer).batches
    assert batches == [64] * 8 + [41]  # long lists are split


def test_candidates_are_sorted_by_weighted_sum() -> None:
    candidates = [Candidate(text, 0.0) for text in "abc"]
    values = np.array([[1.0, 2.0], [3.0, 0.0], [3.0, 0.0]])
    ranked = best_first(candidates, values, np.array([1.0, 0.5]))
    assert ranked == [Candidate("b", 3.0), Candidate("c", 3.0), Candidate("a", 2.0)]
    assert best_first(candidates, values, np.array([0.0, 1.0]))[0].text == "a"


def test_saved_weights_are_loaded_in_the_order_of_the_features(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    save_weights(path, {"model-2": 1e-9, "given": 0.25, "length": -0.125}, {"metric": "bleu", "after": 12.5})
    np.testing.assert_array_equal(load_weights(path, [make_model("model-2")]), [0.25, -0.125, 1e-9])
    assert 'metric = "bleu"' in path.read_text()
    with pytest.raises(UserError, match=r"has weights for model-2, given, length; expected given, length;"):
        load_weights(path, [])


def test_all_zero_weights_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    path.write_text("[weights]\ngiven = 0\nlength = -0.0\n")
    with pytest.raises(UserError, match=r"has only weights of 0, .*; correct the file"):
        load_weights(path, [])


@pytest.mark.parametrize(
    "content",
    [
        "weights = 3",
        "[weights]\ngiven = 'x'",
        "[weights]\ngiven = nan",
        f"[weights]\ngiven = 1{'0' * 400}",
        "[other]",
        "no toml",
        b"\xff",
    ],
)
def test_a_file_without_weights_is_an_error(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "weights.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match="has no valid weights"):
        load_weights(path, [])


def test_unreadable_and_unwritable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*missing\.toml: No such file or directory; check the path"):
        load_weights(tmp_path / "missing.toml", [])
    with pytest.raises(UserError, match="cannot write"):
        save_weights(tmp_path / "no" / "weights.toml", {"given": 1.0}, {})
