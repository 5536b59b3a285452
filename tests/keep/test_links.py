"""Tags around words that a translation copies, without links of the model."""

import pytest

from nmt.keep.links import link_equal_words
from nmt.keep.markup import MarkedText

WORD_BY_WORD = [(word, word) for word in range(9)]


@pytest.mark.parametrize(
    ("line", "translation", "expected"),
    [
        ("He saw <a>Tom</a>.", "Er hat Tom gesehen.", "Er hat <a>Tom</a> gesehen."),
        ("I drink <b>H2O</b> today.", "Heute trinke ich H2O.", "Heute trinke ich <b>H2O</b>."),
        ("“<b>Tom</b>” is here", "Hier ist „Tom“", "Hier ist „<b>Tom</b>“"),
        ("I drink H<sub>2</sub>O today.", "Heute trinke ich H2O.", "Heute trinke ich H<sub>2</sub>O."),
        ("H<sub>2</sub>O", "H20", "<sub>H20</sub>"),  # not copied
        ("CO<sub>2</sub> levels", "CO2-Werte", "CO<sub>2</sub>-Werte"),
        ("<code>max</code> function", "max-Funktion", "<code>max</code>-Funktion"),
        ("<code>id</code> column", "Valid-id", "Valid-<code>id</code>"),
        ("<b>max</b> function", "max-Funktion", "<b>max-Funktion</b>"),
    ],
)
def test_tags_enclose_copied_words(line: str, translation: str, expected: str) -> None:
    marked = MarkedText.parse(line)
    assert marked.insert(translation, link_equal_words(marked.text, translation, [], [])) == expected
    if "Tom" in line[5:] or "2" in line:  # wrong links to the first word are replaced
        wrong = [(word, 0) for word in range(len(line.split()))]
        assert marked.insert(translation, link_equal_words(marked.text, translation, wrong, [])) == expected


@pytest.mark.parametrize(
    ("line", "translation", "links", "expected"),
    [
        ("He has a red <b>hat</b>.", "Er hat einen roten Hut.", WORD_BY_WORD, "Er hat einen roten <b>Hut</b>."),
        (
            "They <b>die</b> young",
            "Sie sterben, die jungen",
            [(0, 0), (1, 1), (2, 3)],
            "Sie <b>sterben</b>, die jungen",
        ),
    ],
)
def test_links_of_the_model_are_kept(line: str, translation: str, links: list[tuple[int, int]], expected: str) -> None:
    marked = MarkedText.parse(line)
    assert marked.insert(translation, link_equal_words(marked.text, translation, links, [])) == expected
