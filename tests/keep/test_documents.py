"""Text of HTML pages and of subtitles."""

import tracemalloc

import pytest

from nmt.keep.documents import DocumentSegment, html_segments, srt_segments

PAGE = """<!DOCTYPE html>
<html><head><title>A page</title><style>p > a { color: red }</style></head>
<body class="a > b">
<!-- a comment -->
<p>First <b>line</b>,
on two lines.</p><p>Second</p>
<script>if (a < b) { x("<p>no text</p>"); }</script>
<ul><li>One &amp; two<li><a href="x">Three</a></ul>
<pre>kept  as
it is</pre>
<table><tr><td>&nbsp;</td><td>1,234</td><td>a<br>b</td></tr></table>
Loose <i>text
</body></html>
"""


def test_html_is_separated_into_text_and_markup() -> None:
    segments = list(html_segments(PAGE))
    assert [segment.text for segment in segments] == [
        "A page",
        "First <b>line</b>,\non two lines.",
        "Second",
        "One &amp; two",
        '<a href="x">Three</a>',
        "a",
        "b",
        "Loose <i>text",
        "",
    ]
    assert "".join(segment.before + segment.text for segment in segments) == PAGE


def test_elements_that_must_not_be_translated_are_copied() -> None:
    texts = {
        '<p translate="no">One</p><p>Two</p>': ["Two", ""],
        '<p><b translate="no">One</b> 2</p><p><code>One</code> two</p>': ["<code>One</code> two", ""],
        "<div class='x' TRANSLATE=No><div>One</div><p>Two</p></div>Three": ["Three", ""],
        '<p title=" translate=no">One</p><p translate="yes">Two</p>': ["One", "Two", ""],
        'One<br translate="no">Two<hr translate="no"/>': ["One", "Two", ""],
        "<table><col class=notranslate><td>One</table><map><area translate=no></map><p>Two": ["One", "Two", ""],
        "<?xml version='1.0'?><a><link translatable='false'>One</link><b>Two</b></a>": ["Two", ""],
        '<p class="a notranslate b">One</p><p class=notranslate>Two</p><p class="notranslated">3 x</p>': ["3 x", ""],
        "<p class='notranslate'>One</p><p data-class='notranslate'>Two</p><p class='no translate'>Three</p>": [
            "Two",
            "Three",
            "",
        ],
        "<svg><svg></svg><text>One</text></svg>Two": ["Two", ""],
        "<script>'<script>'</script >One": ["One", ""],
        "<script>'<!--'</script><p>One</p><!-- Two --><textarea>'<!--'</textarea>3 x": ["One", "3 x", ""],
        '<div translate="no">One<div title="1 < 2">Two</div>Three</div>Four': ["Four", ""],
        "<div translate=no>One<!-- </div> -->Two</div><pre><!-- </pre> --></pre>Three": ["Three", ""],
        "<x[ translate=no>One</x[><c++ translate=no>Two</c++>": [""],
        "<x.y translate=no>One</x-y></x.y><p>Two</p>": ["Two", ""],
    }
    for text, expected in texts.items():
        segments = list(html_segments(text))
        assert [segment.text for segment in segments] == expected
        assert "".join(segment.before + segment.text for segment in segments) == text


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            "<?xml version='1.0'?><!-- x --><resources>\n<string name='a'>Hi <x:g id='1'>%s</x:g>!</string>\n"
            "<string translatable='false'>App</string><item>One</item><item>Two</item></resources>",
            ["Hi <x:g id='1'>%s</x:g>!", "One", "Two"],
        ),
        ("<p>\n<seg id=1>A dog.</seg>\n<seg id=2>A cat.</seg>\n</p>", ["A dog.", "A cat."]),
        (
            "<?xml version='1.0'?><para>One <em>two</em>:<list><item><para><em>A <em><link>b</link></em></em> c</para>"
            "</item></list> <link/>d<note><para>E.</para></note></para>",
            ["One <em>two</em>:", "<em>A <em><link>b</link></em></em> c", "<link/>d", "E."],
        ),
        ("<?xml version='1.0'?><s>I am.</s><s>You <b>are</b>.</s><q>Yes?</q>", ["I am.", "You <b>are</b>.", "Yes?"]),
        ("<?xml version='1.0'?><html><p><s>I</s> <q>am</q></p></html>", ["<s>I</s> <q>am</q>"]),
        ("<!-- x -->\n<xliff version='2.0'><source>A dog.</source><mrk>A cat.</mrk></xliff>", ["A dog.", "A cat."]),
        (
            "<x-a><x-b>One!</x-b><x-b>Two</x-b></x-a><p>Open <x-b>three</x-b></x-c> now",
            ["One!", "Two", "Open <x-b>three</x-b></x-c> now"],
        ),
        ("<x-a>One</x-a> and two", ["<x-a>One</x-a> and two"]),
    ],
)
def test_elements_that_html_does_not_know_are_inline_next_to_text(document: str, expected: list[str]) -> None:
    segments = list(html_segments(document))
    assert [segment.text for segment in segments[:-1]] == expected
    assert "".join(segment.before + segment.text for segment in segments) == document


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("<a>one</a> <a>two</a> | <a>three</a>", ["one", "two", "three"]),
        ("<i>One</i><b>Two</b><b>3 x</b>", ["One", "Two", "3 x"]),
        ("<h1>One</h1><a>two</a> <a>three</a><h2>Four</h2><b>Five</b>", ["One", "two", "three", "Four", "<b>Five</b>"]),
        ("<b>One</b>\n<b>Two</b>", ["One", "Two"]),
        ("<b>CO</b><sub>2</sub><i>O</i>", None),
        ("<b>I</b> <i>Can</i>", None),
        ("<b>One </b><b>Two</b>", None),
        ("<b>Th</b><b>ree</b>", None),
        ("x: <a>one</a> <a>two</a>", None),
        ("x: <b><a>one</a><a>two</a></b>", None),
    ],
)
def test_inline_elements_without_text_between_them_may_be_a_list(line: str, expected: list[str] | None) -> None:
    assert [segment.text for segment in html_segments(f"<p>{line}</p>")][:-1] == (expected or [line])


def test_text_after_the_last_tag_counts_as_text_next_to_inline_elements() -> None:
    line = "<a>Click</a> <a>here</a> now"
    assert [segment.text for segment in html_segments(line)] == [line, ""]


def test_empty_elements_take_linear_memory() -> None:
    document = "<td> </td>\n" * 2_000 + "<td> a</td>"
    tracemalloc.start()
    try:
        assert [segment.text for segment in html_segments(document)] == ["a", ""]
        assert tracemalloc.get_traced_memory()[1] < 200 * len(document)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_unusual_documents_take_linear_time() -> None:
    for text in ("<x>a", "<x>", "</x>", "<x><y>", "<x>a</x>", "<p>a<x>"):
        document = text * 10_000 + "</x>"
        assert "".join(segment.before + segment.text for segment in html_segments(document)) == document


SUBTITLES = """1
00:00:01,000 --> 00:00:02,500
<i>A first line
and a second.</i>

2
00:00:03,000 --> 00:00:04,000
{\\an8}- Who is there?
- It is I & you.

3
00:00:05,000 --> 00:00:06,000
\u266a 17 \u266a

4
00:00:07.000 --> 00:00:08.000 X1:0
The end"""


@pytest.mark.parametrize("line_feed", ["\n", "\r\n"])
def test_subtitles_are_separated_into_text_and_times(line_feed: str) -> None:
    document = SUBTITLES.replace("\n", line_feed)
    segments = list(srt_segments(document))
    assert [(segment.text, segment.num_lines) for segment in segments] == [
        (f"<i>A first line{line_feed}and a second.</i>", 2),
        ("Who is there?", 1),
        ("It is I & you.", 1),
        ("The end", 1),
        ("", 1),
    ]
    assert "".join(segment.before + segment.text for segment in segments) == document


def test_dashes_separate_speakers_in_italics() -> None:
    start = "1\n00:00:01,000 --> 00:00:02,500\n"
    texts = {
        "<i>- Who is there?</i>\n<i>- It is I.</i>\n": ["Who is there?</i>", "It is I.</i>", ""],
        "{\\an8}<i>- Who is there?\n- It is I.</i>\n": ["Who is there?", "It is I.</i>", ""],
        "\u266a{\\i1}{\\i0}\n": [""],
        "<i>Who is\nthere</i> - I\n": ["<i>Who is\nthere</i> - I", ""],
    }
    for text, expected in texts.items():
        segments = list(srt_segments(start + text))
        assert [segment.text for segment in segments] == expected
        assert "".join(segment.before + segment.text for segment in segments) == start + text


@pytest.mark.parametrize("times", ["00:01.000 --> 00:02.000", "00:00:01 --> 00:00:02 X1:0", "0:0:1,5 -> 0:0:2,5"])
def test_subtitle_times_may_be_incomplete(times: str) -> None:
    assert [segment.text for segment in srt_segments(f"1\n{times}\nA dog.\n\n2\n")] == ["A dog.", ""]


@pytest.mark.parametrize("line_feed", ["\n", "\r\n"])
def test_text_of_misplaced_blank_lines_is_translated(line_feed: str) -> None:
    first, second = "00:00:01,000 --> 00:00:02,000", "00:00:03,000 --> 00:00:04,000"
    texts = {
        f"1\n{first}\nA dog.\n2\n{second}\nA cat.\n": ["A dog.", "A cat.", ""],
        f"{first}\nA dog.\n{second}\nA cat.": ["A dog.", "A cat.", ""],
        f"1\n{first}\nA dog\n\nand a cat.\n\n2\n{second}\n\nA bird.\n": ["A dog", "and a cat.", "A bird.", ""],
        f"{first}\nA dog.\n\nname\n{second}\n7\n": ["A dog.", ""],
        f"1\n{first}\n2\n{second}\nA cat.\n": ["A cat.", ""],
    }
    for text, expected in texts.items():
        document = text.replace("\n", line_feed)
        segments = list(srt_segments(document))
        assert [segment.text for segment in segments] == expected
        assert "".join(segment.before + segment.text for segment in segments) == document


@pytest.mark.parametrize("text", ["", "no markup", "<", "<p", "<script>", "</p>", "1\n2\n", "<!-- <p>x</p>", "\n\n"])
def test_damaged_documents_lose_no_text(text: str) -> None:
    for read in (html_segments, srt_segments):
        assert "".join(segment.before + segment.text for segment in read(text)) == text


@pytest.mark.parametrize("start", ["<!--", "<?", "<!x", "<![CDATA["])
def test_comments_and_declarations_without_an_end_extend_to_the_end(start: str) -> None:
    segments = list(html_segments(f"<p>One</p>{start} x Two " + start * 100_000))  # in linear time
    assert [segment.text for segment in segments] == ["One", ""]


def test_long_runs_of_spaces_in_subtitles_take_linear_time() -> None:
    text = "a" + " " * 100_000 + "b"
    segments = list(srt_segments(f"00:00:01,000 --> 00:00:02,000\n{text}  \n"))
    assert [segment.text for segment in segments] == [text, ""]


def test_lines_of_tags_in_subtitles_take_linear_time() -> None:
    text = "00:00:01,000 --> 00:00:02,000\n" + "<i>\n" * 20_000
    assert [segment.before for segment in srt_segments(text)] == [text]


def test_rendering_restores_the_number_of_lines() -> None:
    text = '<i>Eine erste</i> <b class="x y">Zeile</b> und eine zweite.'
    rendered = DocumentSegment("2\n", "a\nb", 2).render(text)
    assert rendered == '2\n<i>Eine erste</i> <b class="x y">Zeile</b>\nund eine zweite.'
    assert DocumentSegment("", "a\r\nb", 2).render("ein Wort") == "ein\r\nWort"
    assert DocumentSegment("", "a\nb", 2).render("kurz") == "kurz"
    assert DocumentSegment("", "a\nb", 2).render(r"ein {\move(1, 2, 3)}Wort") == "ein\n{\\move(1, 2, 3)}Wort"
    three_lines = DocumentSegment("", "a", 3).render("a b c d e f")
    assert three_lines.replace("\n", " ") == "a b c d e f"
    assert three_lines.count("\n") == 2
