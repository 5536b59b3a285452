"""The sentences on which two systems differ most."""

import sacrebleu

from nmt.evaluate.differences import largest_differences

REFERENCES = ["ein kleines Haus", "der große Hund bellt", "sie lesen Bücher", "alles ist gut", "wir gehen heim"]
FIRST = ["ein kleines Haus", "der Hund", "sie lesen Buch", "alles ist gut", "x"]
SECOND = ["ein Haus", "der große Hund bellt", "sie lesen Bücher", "alles ist gut", "y"]


def chrf(text: str, reference: str) -> float:
    return sacrebleu.sentence_chrf(text, [reference]).score


def test_each_system_is_shown_where_it_is_most_ahead() -> None:
    ahead, behind = largest_differences(FIRST, SECOND, [REFERENCES], None, 5)
    assert [difference.line for difference in ahead] == [1]
    gains = {
        line: chrf(SECOND[line - 1], REFERENCES[line - 1]) - chrf(FIRST[line - 1], REFERENCES[line - 1])
        for line in (2, 3)
    }
    assert [difference.line for difference in behind] == sorted(gains, key=lambda line: -gains[line])
    assert ahead[0].scores == (chrf(FIRST[0], REFERENCES[0]), chrf(SECOND[0], REFERENCES[0]))


def test_a_sentence_comes_with_all_that_is_said_about_it() -> None:
    others = [line.upper() for line in REFERENCES]
    _, (widest,) = largest_differences(FIRST, SECOND, [REFERENCES, others], ["s"] * 5, 1)
    assert widest.src == "s"
    assert widest.references == (REFERENCES[widest.line - 1], others[widest.line - 1])
    assert widest.translations == (FIRST[widest.line - 1], SECOND[widest.line - 1])


def test_equal_systems_do_not_differ() -> None:
    assert largest_differences(FIRST, FIRST, [REFERENCES], None, 3) == ([], [])
