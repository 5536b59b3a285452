"""Alignment error rate: by hand, in special cases, and errors in gold files."""

from pathlib import Path

import pytest

from nmt.alignment.error_rate import AlignmentScore, GoldLinks, read_gold
from nmt.errors import UserError

SOURCES, TARGETS = ["a b c", "d"], ["x y", "z"]


def test_precision_recall_and_error_rate() -> None:
    score = AlignmentScore()
    score.add([(0, 0), (1, 1), (2, 1)], GoldLinks({(0, 0), (2, 0)}, {(0, 0), (2, 0), (1, 1)}))
    score.add([(0, 0)], GoldLinks({(0, 0)}, {(0, 0)}))
    assert (score.found, score.found_sure, score.found_possible, score.sure) == (4, 2, 3, 3)
    assert (score.precision, score.recall) == (3 / 4, 2 / 3)
    assert score.error_rate == pytest.approx(1 - 5 / 7)


def test_the_gold_alignment_has_no_error_and_none_has_only_errors() -> None:
    gold = GoldLinks({(0, 0)}, {(0, 0), (1, 0)})
    for links, expected in (([(0, 0)], 0.0), ([(0, 0), (1, 0)], 0.0), ([(2, 2)], 1.0), ([], 1.0)):
        score = AlignmentScore()
        score.add(links, gold)
        assert score.error_rate == expected
    assert AlignmentScore().error_rate == 1.0


def test_gold_links_are_sure_or_possible(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("0-0 1?1 2p1\n\n")
    first, second = read_gold(tmp_path / "gold", SOURCES, TARGETS)
    assert first == GoldLinks({(0, 0)}, {(0, 0), (1, 1), (2, 1)}) and second == GoldLinks()


def test_gold_links_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gold").write_text("0-0\n0-0\n")
    with (tmp_path / "gold").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert read_gold(Path("-"), SOURCES, TARGETS) == [GoldLinks({(0, 0)}, {(0, 0)})] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n", "gold has 1 line for 2 sentence pairs; it must have one line per pair"),
        ("0-0\n1-0\n", "gold, line 2: link 1-0 is out of range for 1 source and 1 target words"),
        ("0:0\n\n", "gold, line 1: '0:0' is not a link"),
        ("0?x\n\n", r"gold, line 1: '0\?x' is not a link"),
        ("0-0\n0p1\n", "gold, line 2: link 0p1 is out of range"),
        ("0?0\n\n", "gold has no sure links; it must have some"),
    ],
)
def test_wrong_gold_files_are_errors(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "gold").write_text(text)
    with pytest.raises(UserError, match=message):
        read_gold(tmp_path / "gold", SOURCES, TARGETS)
