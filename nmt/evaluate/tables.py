"""Tables of results as plain text, Markdown or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from rich.cells import cell_len

Style = Literal["text", "markdown", "latex"]

_LATEX_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
}


@dataclass(frozen=True)
class Table:
    """A table with what must be known to read it.

    columns: one letter for each column: `l` short text, `p` sentences, `r` figures
    header:  as many cells, empty for a table without one
    signatures: how the figures were counted, by metric
    notes:   sentences under the table
    """

    title: str
    columns: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    signatures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def format_tables(tables: Iterable[Table], style: Style) -> str:
    """The tables one below the other, an empty line between them; every line is closed by a line feed."""
    match style:
        case "text":
            lines = [_as_text(table) for table in tables]
        case "markdown":
            lines = [_as_markdown(table) for table in tables]
        case "latex":
            lines = [_as_latex(table) for table in tables]
        case _:
            assert_never(style)
    return "\n\n".join("\n".join(part) for part in lines) + "\n"


def markdown_rows(header: Sequence[str], rows: Iterable[Sequence[str]], columns: str = "") -> Iterator[str]:
    """The lines of a table of Markdown cells, right-aligned where `columns` says `r`."""
    yield f"| {' | '.join(header)} |"
    yield f"|{''.join('---:|' if column == 'r' else '---|' for column in columns or 'l' * len(header))}"
    for row in rows:
        cells = (cell.replace("|", r"\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it stands, on one line; an underscore inside a word needs no mark."""
    return re.sub(r"([\\`*\[\]<>#&~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands, on one line."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _as_text(table: Table) -> Iterator[str]:
    rows = [[re.sub(r"\s+", " ", cell) for cell in row] for row in (table.header, *table.rows) if row]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if table.title:
        yield table.title
    for row in rows:
        yield "  ".join(map(_padded, row, widths, table.columns)).rstrip()
    if table.signatures or table.notes:
        yield ""
    width = max((cell_len(metric) for metric, _ in table.signatures), default=0)
    for metric, signature in table.signatures:
        yield f"{_padded(metric, width, 'l')}  {signature}"
    yield from table.notes


def _padded(cell: str, width: int, column: str) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if column == "r" else cell + space


def _as_markdown(table: Table) -> Iterator[str]:
    if table.title:
        yield f"**{escape_markdown(table.title)}**"
        yield ""
    header = [escape_markdown(cell) for cell in table.header or [""] * len(table.columns)]
    yield from markdown_rows(header, ([escape_markdown(cell) for cell in row] for row in table.rows), table.columns)
    if table.signatures or table.notes:
        yield ""
    for metric, signature in table.signatures:
        yield f"- {metric}: `{signature}`"
    for note in table.notes:
        yield f"- {escape_markdown(note)}"


def _as_latex(table: Table) -> Iterator[str]:
    """A table of the `booktabs` package, which papers use."""
    yield r"\begin{table}"
    yield r"  \centering"
    if table.title:
        yield rf"  \caption{{{escape_latex(table.title)}}}"
    columns = table.columns.replace("p", r"p{0.75\textwidth}")
    yield rf"  \begin{{tabular}}{{{columns}}}"
    yield r"    \toprule"
    if table.header:
        yield _latex_row(table.header)
        yield r"    \midrule"
    for row in table.rows:
        yield _latex_row(row)
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    for metric, signature in table.signatures:
        yield rf"  \par\scriptsize {escape_latex(metric)}: \texttt{{{escape_latex(signature)}}}"
    for note in table.notes:
        yield rf"  \par\footnotesize {escape_latex(note)}"
    yield r"\end{table}"


def _latex_row(cells: Sequence[str]) -> str:
    return rf"    {' & '.join(map(escape_latex, cells))} \\"
