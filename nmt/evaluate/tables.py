"""Tables as plain text, Markdown or LaTeX.

`tabulate` is not an alternative: it does not escape `|` in Markdown cells, misaligns wide characters without `wcwidth`,
and has no LaTeX paragraph columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

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
    """A table with metric signatures and notes below it.

    columns:    one letter per column: `l` short text, `p` sentences, `r` numbers
    header:     one cell per column, or empty for no header
    signatures: (metric, signature) pairs
    """

    title: str
    columns: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    signatures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def format_tables(tables: Iterable[Table], style: Style) -> str:
    """Format tables separated by empty lines, with a final line feed."""
    format_table = {"text": _text, "markdown": _markdown, "latex": _latex}[style]
    return "\n\n".join("\n".join(format_table(table)) for table in tables) + "\n"


def markdown_rows(header: Sequence[str], rows: Iterable[Sequence[str]], columns: str = "") -> Iterator[str]:
    """Yield the lines of a Markdown table; columns with letter `r` are right-aligned."""
    header, *rows = ([cell.replace("|", r"\|") for cell in row] for row in (header, *rows))
    yield f"| {' | '.join(header)} |"
    yield f"|{''.join('---:|' if column == 'r' else '---|' for column in columns or 'l' * len(header))}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def escape_markdown(text: str) -> str:
    """Escape Markdown syntax and join lines; underscores inside words need no escape."""
    return re.sub(r"([\\`*\[\]<>#&~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))


def escape_latex(text: str) -> str:
    """Escape LaTeX syntax and join lines."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _text(table: Table) -> Iterator[str]:
    rows = [[re.sub(r"\s+", " ", cell) for cell in row] for row in (table.header, *table.rows) if row]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if table.title:
        yield table.title
    for row in rows:
        yield "  ".join(map(_pad, row, widths, table.columns)).rstrip()
    if table.signatures or table.notes:
        yield ""
    width = max((cell_len(metric) for metric, _ in table.signatures), default=0)
    for metric, signature in table.signatures:
        yield f"{_pad(metric, width, 'l')}  {signature}"
    yield from table.notes


def _pad(cell: str, width: int, column: str) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if column == "r" else cell + space


def _markdown(table: Table) -> Iterator[str]:
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


def _latex(table: Table) -> Iterator[str]:
    """Yield a table in the style of the LaTeX package `booktabs`."""
    yield r"\begin{table}"
    yield r"  \centering"
    if table.title:
        yield rf"  \caption{{{escape_latex(table.title)}}}"
    width = 0.75 / max(table.columns.count("p"), 1)
    columns = table.columns.replace("p", rf"p{{{width:.3g}\textwidth}}")
    yield rf"  \begin{{tabular}}{{{columns}}}"
    yield r"    \toprule"
    if table.header:
        yield _latex_row(table.header)
        yield r"    \midrule"
    yield from map(_latex_row, table.rows)
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    for metric, signature in table.signatures:
        yield rf"  \par\scriptsize {escape_latex(metric)}: \texttt{{{escape_latex(signature)}}}"
    for note in table.notes:
        yield rf"  \par\footnotesize {escape_latex(note)}"
    yield r"\end{table}"


def _latex_row(cells: Sequence[str]) -> str:
    return rf"    {' & '.join(map(escape_latex, cells))} \\"
