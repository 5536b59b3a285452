"""Tables as text, Markdown (read by a parser) and LaTeX."""

import re

from markdown_it import MarkdownIt
from rich.cells import cell_len

from nmt.evaluate.tables import Table, escape_latex, format_tables

TABLE = Table(
    title="scores of a_b",
    columns="lrp",
    header=("system", "bleu", "text"),
    rows=(("a|b & *c*", "27.30", "x\ty"), ("日本語", "3.1 ± 0.2", "100 % #1 {~^\\}")),
    signatures=(("bleu", "BLEU|nrefs:1|tok:13a"),),
    notes=("a note: 5 < 6",),
)


def test_text_columns_are_aligned_with_wide_characters() -> None:
    text = format_tables([TABLE], "text")
    title, header, first, second, empty, signature, note = text.removesuffix("\n").split("\n")
    assert title == "scores of a_b"
    assert first == "a|b & *c*      27.30  x y"
    ends = [
        cell_len(line[: line.index(cell) + len(cell)])
        for line, cell in ((header, "bleu"), (first, "27.30"), (second, "± 0.2"))
    ]
    assert len(set(ends)) == 1
    assert (empty, signature, note) == ("", "bleu  BLEU|nrefs:1|tok:13a", "a note: 5 < 6")


def test_markdown_shows_cells_verbatim() -> None:
    html = MarkdownIt("commonmark").enable("table").render(format_tables([TABLE], "markdown"))
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", html)]
    assert cells == [
        "system",
        "bleu",
        "text",
        "a|b &amp; *c*",
        "27.30",
        "x y",
        "日本語",
        "3.1 ± 0.2",
        "100 % #1 {~^\\}",
    ]
    assert "<code>BLEU|nrefs:1|tok:13a</code>" in html
    assert html.count('style="text-align:right"') == 3


def test_pipes_in_a_markdown_header_do_not_end_its_cells() -> None:
    table = Table("", "lr", ("label", "as Drama|War"), (("Drama|War", "3"),))
    html = MarkdownIt("commonmark").enable("table").render(format_tables([table], "markdown"))
    assert re.findall(r"<t[dh].*?>(.*?)</t[dh]>", html) == ["label", "as Drama|War", "Drama|War", "3"]


def test_latex_escapes_special_characters() -> None:
    assert escape_latex("100 % #1 {~^\\} a_b & $x$ ±") == (
        r"100 \% \#1 \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} a\_b \& \$x\$ $\pm$"
    )
    lines = format_tables([TABLE], "latex").splitlines()
    assert r"    a\textbar{}b \& *c* & 27.30 & x y \\" in lines
    assert lines.count(r"\begin{table}") == lines.count(r"\end{table}") == 1
    assert r"  \begin{tabular}{lrp{0.75\textwidth}}" in lines


def test_sentence_columns_share_the_width_of_a_latex_page() -> None:
    table = Table("", "pp", (), (("a test sentence", "a training sentence"),))
    assert r"\begin{tabular}{p{0.375\textwidth}p{0.375\textwidth}}" in format_tables([table], "latex")


def test_header_and_title_are_optional() -> None:
    bare = Table("", "lp", (), (("source", "a"), ("reference", "b")))
    assert format_tables([bare, bare], "text") == "source     a\nreference  b\n\nsource     a\nreference  b\n"
    assert format_tables([bare], "markdown").startswith("|  |  |\n|---|---|\n| source | a |\n")
    assert r"\midrule" not in format_tables([bare], "latex")
