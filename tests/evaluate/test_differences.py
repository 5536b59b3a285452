"""The sentences on which two systems differ most."""

import sacrebleu

from nmt.evaluate.differences import largest_differences

REFERENCES = ["ein kleines Haus", "der große Hund bellt", "sie lesen Bücher", "alles ist gut", "wir gehen heim"]
FIRST = ["ein kleines Haus", "der Hund", "sie lesen Buch", "alles ist gut", "x"]
SECOND = ["ein Haus", "der große Hund bellt", "sie lesen Bücher", "alles ist gut", "y"]


def chrf(text: str, reference: str) -> float:
    return sacrebleu.sentence_chrf(text, [reference]).score


def test_differences_are_sorted_for_each_system() -> None:
    ahead, behind = largest_differences(FIRST, SECOND, [REFERENCES], None, 5)
    assert [difference.line for difference in ahead] == [1]
    gains = {
        line: chrf(SECOND[line - 1], REFERENCES[line - 1]) - chrf(FIRST[line - 1], REFERENCES[line - 1])
        for line in (2, 3)
    }
    assert [difference.line for difference in behind] == sorted(gains, key=lambda line: -gains[line])
    assert ahead[0].scores == (chrf(FIRST[0], REFERENCES[0]), chrf(SECOND[0], REFERENCES[0]))


def test_difference_has_source_references_and_translations() -> None:
    others = [line.upper() for line in REFERENCES]
    _, (largest,) = largest_differences(FIRST, SECOND, [REFERENCES, others], ["s"] * 5, 1)
    assert largest.src == "s"
    assert largest.references == (REFERENCES[largest.line - 1], others[largest.line - 1])
    assert largest.translations == (FIRST[largest.line - 1], SECOND[largest.line - 1])


def test_equal_systems_have_no_differences() -> None:
    assert largest_differences(FIRST, FIRST, [REFERENCES], None, 3) == ([], [])


def test_missing_references_do_not_count() -> None:
    alone = largest_differences(FIRST, SECOND, [REFERENCES], None, 3)
    assert largest_differences(FIRST, SECOND, [[""] * 5, REFERENCES], None, 3) == alone


def test_lowercased_differences_ignore_case() -> None:
    lowered = [[line.lower() for line in lines] for lines in (FIRST, SECOND, REFERENCES)]
    expected = largest_differences(lowered[0], lowered[1], [lowered[2]], None, 3)
    upper = [line.upper() for line in FIRST]
    found = largest_differences(upper, SECOND, [REFERENCES], None, 3, lowercase=True)
    for mine, theirs in zip(found, expected, strict=True):
        assert [(one.line, one.scores) for one in mine] == [(one.line, one.scores) for one in theirs]
        assert all(one.metric == "lowercased chrF2" for one in mine)
