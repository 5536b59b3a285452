"""Markup of a line: its text, and its tags in a translation."""

import random
from xml.etree import ElementTree

import pytest
from keep_check.marked_lines import marked_line

from nmt.keep.markup import MarkedText, apply_edits


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("a <b>red</b> car", "a red car"),
        ("1 &lt; 2 &amp; 3&nbsp;&gt; &#x41;", "1 < 2 & 3\u00a0> A"),
        ("Hello<br/>world", "Hello world"),
        ("un<wbr>usual<!-- <b> -->", "unusual"),
        ('<a title="x > y" href=\'"\'>go</a>', "go"),
        ("2 < 3 and <3", "2 < 3 and <3"),
        ("R&D at AT&T &product; now", "R&D at AT&T  now"),
        ("<a>one</a><a><b>two</b></a> <b>Yes</b><b>No</b><b>.</b>", "one two Yes No."),
        ("<b>W</b><b>ord</b> <b>un</b><b>do</b> <a>x</a><a>.</a>", "Word undo x."),
        ("a.<sup>1</sup> H<sub>2</sub>O m<sup>2</sup> 1<sup>st</sup> x<sup>2</sup>y", "a. H2O m 1st x2y"),
        ("<link>a</link> <link>b", "a b"),  # as in XML
        ("In <title>a</title>, (<title>b</title>) <p>c</p>d", "In a, (b) c d"),
        ("&copy 2020 http://a.org/?b&copy=1", "\u00a9 2020 http://a.org/?b&copy=1"),
        (f"&#{5000 * '1'}; &#65;", f"&#{5000 * '1'}; A"),  # too long for int()
    ],
)
def test_text_has_no_tags_and_no_entities(line: str, text: str) -> None:
    assert MarkedText.parse(line).text == text


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ('see <b translate="no">Big <i>Apple</i></b> now', ("Big Apple",)),
        ("type <code>ls -l</code>, <KBD>Enter</KBD> and <code>ls -l</code>", ("ls -l", "Enter", "ls -l")),
        ("<span translate=no>Word  Pad", ("Word Pad",)),
        ('<b translate="yes">a</b> <b title="translate=no">b</b> <br translate="no"/> <i translate="no"> </i>', ()),
        ("<code>&amp;&amp;</code> or <kbd>+</kbd>", ("&&", "+")),
        ("<kbd>Ctrl</kbd>+<kbd>C</kbd> <kbd>D</kbd>/<code>e</code><kbd>f</kbd>, g", ("Ctrl+C", "D/ef")),
        ("<kbd>a</kbd><b>+</b><kbd>b</kbd> <b><kbd>c</kbd></b>+<kbd>d</kbd>", ("a", "b", "c", "d")),
        ("<kbd>a</kbd> <kbd> </kbd>+<kbd>b</kbd>", ("a", "b")),
        ("<code>a</code> b<sup><code>1</code></sup> c", ("a",)),
    ],
)
def test_content_that_is_not_translated(line: str, fixed: tuple[str, ...]) -> None:
    assert tuple(item.text for item in MarkedText.parse(line).fixed.items()) == fixed


@pytest.mark.slow
def test_many_elements_and_few_words_take_linear_time() -> None:
    """With quadratic time, this would take minutes."""
    count = 40_000
    inserted = MarkedText.parse("<b>a</b>" * count).insert("v w x y z", [])
    assert inserted.count("<b>") == inserted.count("</b>") == count


def test_long_tag_names_without_an_end_take_linear_time() -> None:
    line = "<" + "a" * 200_000
    assert MarkedText.parse(line).text == line


WORD_BY_WORD = [(i, i) for i in range(20)]


@pytest.mark.parametrize(
    ("line", "translation", "links", "expected"),
    [
        (
            "a <b>red car</b>, now",
            "jetzt ein rotes Auto!",
            [(2, 3), (1, 2), (0, 1), (3, 0)],
            "jetzt ein <b>rotes Auto</b>!",
        ),
        (
            "<p>“<b>Hi</b>,” he said</p>",
            "“Hallo,” sagte er",
            [(0, 0), (1, 2), (2, 1)],
            "<p>“<b>Hallo</b>,” sagte er</p>",
        ),
        ("<b>a <i>b</i></b> c", "C B A", [(0, 2), (1, 1), (2, 0)], "C <b><i>B</i> A</b>"),
        ("a <b>b</b> <i>c</i>", "A C B", [(0, 0), (1, 2), (2, 1)], "A <i>C</i> <b>B</b>"),
        ("a <b>b</b> c", "x y z w", [], "x <b>y</b> z w"),  # without links, on the diagonal
        ("a <b>b</b> c d", "A x B C D", [(0, 0), (1, 2), (2, 3), (1, 4)], "A x <b>B</b> C D"),  # a wrong link
        ("x &amp; <b>&lt;y&gt;</b>", "X & <Y>", WORD_BY_WORD, "X &amp; <b>&lt;Y&gt;</b>"),
        ("a<br/>b", "A B", WORD_BY_WORD, "A<br/> B"),
        ("a <br/> b", "A B", WORD_BY_WORD, "A <br/> B"),
        ("<br/> a b", "A B", WORD_BY_WORD, "<br/> A B"),
        ("<br/>a b", "A B", WORD_BY_WORD, "<br/>A B"),
        ("a <img src='1'/>b", "A B", WORD_BY_WORD, "A <img src='1'/>B"),
        ("a b<hr>", "A B", WORD_BY_WORD, "A B<hr>"),
        ("a &product; b", "A B", WORD_BY_WORD, "A &product; B"),
        ("</p>a <b>b", "A B", WORD_BY_WORD, "</p>A <b>B"),  # tags that continue in other lines
        ("a <b>b</b> c", "", [], "<b></b>"),
        ("<b> </b>", "", [], "<b></b>"),
        ("<b>a b</b> c", "A B, C", WORD_BY_WORD, "<b>A B</b>, C"),  # punctuation that only the translation has
        ("a <b>b</b>", "A B.", WORD_BY_WORD, "A <b>B</b>."),
        ("<p>a</p> <p>b</p>", "A B.", WORD_BY_WORD, "<p>A</p> <p>B.</p>"),
        ("<b>a</b> b", "3. B", WORD_BY_WORD, "<b>3.</b> B"),  # an ordinal
        ("<b>a</b> b?", "\u00bfA B?", WORD_BY_WORD, "\u00bf<b>A</b> B?"),
        ("<b>a b</b>", "A B!", WORD_BY_WORD, "<b>A B!</b>"),
        ("a<sup>1</sup> b c", "B A, C", [(0, 1), (1, 0), (2, 2)], "B A<sup>1</sup>, C"),
        ("a<sup><a>[1]</a></sup>.", "A B.", [(0, 1)], "A B<sup><a>[1]</a></sup>."),
        ("a.<sup>1</sup> <sup>2</sup>b", "A. B", WORD_BY_WORD, "A.<sup>1</sup> <sup>2</sup>B"),
        ("<b>un</b><i>do</i> it", "mach rückgängig", [(0, 1), (1, 0)], "<i>mach</i> <b>rückgängig</b>"),
        ("a <B CLASS=x\ty>b</B>", "A B", WORD_BY_WORD, "A <B CLASS=x y>B</B>"),
        ("a <kbd>b</kbd>+<kbd id=1>c<br></kbd> d", "A X D", WORD_BY_WORD, "A <kbd>X</kbd><kbd id=1><br></kbd> D"),
    ],
)
def test_tags_enclose_the_words_linked_to_their_text(
    line: str, translation: str, links: list[tuple[int, int]], expected: str
) -> None:
    assert MarkedText.parse(line).insert(translation, links) == expected


@pytest.mark.parametrize(
    ("line", "translation", "expected"),
    [
        ("a &amp; b > c", "A & B > C <", "A &amp; B > C &lt;"),
        ("a > b & c < d", "A > B & C < D", "A > B & C < D"),
        ("a & b <i>&lt;b&gt; &amp;lt;</i>", "A & B <B> &lt;", "A & B <i>&lt;B> &amp;lt;</i>"),  # no new tag or entity
        ("a & b &amp;copy c &amp;#60 d", "A & B &copy C &#60 D", "A & B &amp;copy C &amp;#60 D"),
    ],
)
def test_characters_of_lines_that_are_not_well_formed_stay(line: str, translation: str, expected: str) -> None:
    assert MarkedText.parse(line).insert(translation, WORD_BY_WORD) == expected


@pytest.mark.parametrize(
    ("line", "translation", "expected"),
    [
        ("a <code> x&nbsp;=  &quot;b\n c&quot; </code>", 'A x = "b c"', "A <code> x&nbsp;=  &quot;b  c&quot; </code>"),
        ("a <kbd>&amp;&amp;</kbd> b", "A && B", "A <kbd>&amp;&amp;</kbd> B"),
        ("<b translate=no>A <i>b</i><br></b> c", "A B C", "<b translate=no>A <i>b</i><br></b> C"),
        ("a <code>b <i>c", "A B c", "A <code>b <i>c"),
        ("a <code>&nbsp;</code>", "A", "A <code>&nbsp;</code>"),
        ("a<sup translate=no>2</sup> b", "A B", "A<sup translate=no>2</sup> B"),
    ],
)
def test_content_that_is_not_translated_stays_as_written(line: str, translation: str, expected: str) -> None:
    assert MarkedText.parse(line).insert(translation, WORD_BY_WORD) == expected


def test_tags_enclose_edited_text() -> None:
    marked = MarkedText.parse("for <b>1,234.5</b> euros")
    assert marked.insert("für 1,234.5 Euro", WORD_BY_WORD, [(4, 11, "1\u202f234,5")]) == "für <b>1\u202f234,5</b> Euro"


def test_offsets_move_with_edits() -> None:
    assert apply_edits("abcdef", [(1, 3, "-"), (4, 5, "+++")], [0, 1, 2, 3, 4, 5, 6]) == (
        "a-d+++f",
        [0, 1, 2, 2, 3, 6, 7],
    )


def test_an_ampersand_without_entities_is_plain_text() -> None:
    marked = MarkedText.parse("<i>R&amp;D</i> & x", is_subtitle=True)
    assert marked.insert("F&amp;E & x", WORD_BY_WORD) == "<i>F&amp;E</i> & x"


def test_override_tags_of_subtitles_are_markup() -> None:
    line = r"a {\i1}red{\i0} car{\pos(1, 2)}"
    assert MarkedText.parse(line).text == line
    marked = MarkedText.parse(line, is_subtitle=True)
    assert marked.text == "a red car"
    links = [(0, 0), (1, 2), (2, 1)]
    assert marked.insert("une voiture rouge", links) == r"une voiture {\i1}rouge{\i0}{\pos(1, 2)}"


def test_a_very_deep_line_is_kept() -> None:
    for line in ("<b>" * 5_000 + "x" + "</b>" * 5_000, "x</b>" * 5_000):
        marked = MarkedText.parse(line)
        assert marked.text == ""
        assert marked.insert("", []) == line


@pytest.mark.slow
@pytest.mark.parametrize("links", [[], [(i, i) for i in range(20_000)]])
def test_many_elements_take_linear_time(links: list[tuple[int, int]]) -> None:
    line = " ".join(f"<a>{i}</a> and<br/>" for i in range(10_000))
    found = MarkedText.parse(line).insert(" ".join(f"{i} und" for i in range(10_000)), links)
    assert found.count("<a>") == found.count("<br/>") == 10_000


def tags(line: str) -> list[str]:
    root = ElementTree.fromstring(f"<r>{line}</r>")
    return sorted(f"{node.tag} {sorted(node.attrib.items())}" for node in root.iter())


def ancestors(line: str) -> dict[str, list[str]]:
    """Return the enclosing tags of each tag, by the `id` of the generator."""
    root = ElementTree.fromstring(f"<r>{line}</r>")
    parents = {child: parent for parent in root.iter() for child in parent}
    found = {}
    for node in parents:
        chain, parent = [], parents[node]
        while parent is not root:
            chain.append(parent.attrib["id"])
            parent = parents[parent]
        found[node.attrib["id"]] = chain
    return found


def test_random_links_give_well_formed_lines_with_the_same_tree() -> None:
    """The reference is ElementTree, an XML parser."""
    for seed in range(300):
        rng = random.Random(seed)
        line = marked_line(rng)
        marked = MarkedText.parse(line)
        words = ["".join(rng.choices("abc&<>.,", k=rng.randint(1, 5))) for _ in range(rng.randint(0, 12))]
        num_words = len(marked.text.split())
        num_links = rng.randint(0, 15) if words and num_words else 0
        links = [(rng.randrange(num_words), rng.randrange(len(words))) for _ in range(num_links)]
        result = marked.insert(" ".join(words), links)
        assert tags(result) == tags(line), seed
        assert ancestors(result) == ancestors(line), seed
        text = "".join(ElementTree.fromstring(f"<r>{result}</r>").itertext())
        assert "".join(text.split()) == "".join(words), seed
