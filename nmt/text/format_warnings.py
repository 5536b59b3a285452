"""Warnings of text that is probably in another format, such as TSV, or has empty lines, a header or equal sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from nmt.logs import counted, warn
from nmt.text.lines import input_name, read_lines, uncompressed_extension

_NUM_CHECKED = 1000  # lines that are checked for other formats
_JSON_ARRAY = re.compile(r'\[\s*(?:\{\s*"|"(?:[^"\\]|\\.)*"\s*[,\]])')
_XML = re.compile(r"\s*<(?:srcset|refset|tstset|dataset|(tmx))\b", re.IGNORECASE)
_MARKUP = re.compile(r"</[A-Za-z][\w.-]*>|<br ?/?>|&(?:amp|quot|apos|lt|gt|nbsp|#[0-9]+);")
_SUBWORDS = re.compile(r"\u2581|\uffed|\w@@(?= \w)")  # of SentencePiece, of OpenNMT, of subword-nmt
_MIN_MARKED = 0.1  # fraction of the lines
_SEPARATOR = re.compile('[,;"]')  # CSV column separator or quote
_COLUMN_NAMES = {"source", "target", "src", "tgt", "reference", "ref"}
# One of these is not sufficient for a header, because a text may begin with any of them.
_NAME_IN_HEADER = re.compile(
    "(source|src|target|tgt|english|german|french|spanish|italian|russian|chinese|japanese)([ _-](text|sentence))?|"
    "reference|ref|id|index|line|doc[ _-]id|domain|label|score|text|sentence|segment|translation|hypothesis|hyp|mt"
)
_LANGUAGE = re.compile(
    "ar|bg|cs|da|de|el|en|es|et|fi|fr|ga|hi|hr|hu|it|ja|ko|lt|lv|nl|no|pl|pt|ro|ru|sk|sl|sv|tr|uk|zh"
)


# --- One text ---------------------------------------------------------------------------------------------------------


def warn_of_fields(
    name: str, lines: Sequence[str], *, translations: Sequence[str] = (), checks_markup: bool = False
) -> None:
    """Warn of plain text that has a header or looks like TSV, JSON, subwords, an n-best list, a WMT test set or TMX.

    translations:  aligned with the lines, if known
    checks_markup: whether to also warn of tags and entities, as in training and validation sets
    """
    filled = [line for line in lines if line.strip()]
    if not filled:
        return
    _warn_of_header(name, filled, translations)
    if all("\t" in line for line in filled):
        warn(f"all lines of {name} have tabs; columns such as scores count as text; extract the text first (cut -f)")
    elif all(line.startswith("{") and line.rstrip().endswith("}") for line in filled):
        warn(f"all lines of {name} are JSON, which counts as text; extract the text first (jq -r .translation)")
    elif kind := describe_format(filled):
        warn(f"{name} looks like {kind}; extract the text first")
    elif found := _describe_matches(_SUBWORDS, filled):
        warn(
            f"{name} has subword marks {found}; it must be plain text; decode it (spm_decode, or for @@: sed -E "
            "'s/@@( |$)//g')"
        )
    elif checks_markup and (found := _describe_matches(_MARKUP, filled)):
        warn(f"{name} has tags or entities {found}; they count as text; remove or unescape them, unless you want this")


def _warn_of_header(name: str, lines: Sequence[str], translations: Sequence[str]) -> None:
    """Warn of a first line that is a column name, or a language code if the translations begin with a different one."""
    first = lines[0].strip()
    if len(lines) > 1 and is_header(first, translations[:1]):
        warn(
            f"{name} begins with {first!r}, which looks like a column name but counts as text; remove this line, "
            "or, in a TSV corpus, give columns by name (src_column, tgt_column)"
        )


def is_header(text: str, others: Iterable[str]) -> bool:
    """Return whether a text is a cell of a header row, given the other cells; cells may be in quotes.

    Returns True in any of these cases: all cells are column names, and they are not all the same; the text is a name
    such as `src` that rarely begins a text; the text is a column name and another cell is such a name; the text and
    another cell are different language codes.
    """
    text, *others = (cell.strip().strip('"') for cell in (text, *others))
    names = {cell.lower() for cell in (text, *others)}
    if len(names) > 1 and all(map(_NAME_IN_HEADER.fullmatch, names)):
        return True
    if _NAME_IN_HEADER.fullmatch(text.lower()) and names & _COLUMN_NAMES:
        return True
    if text.lower() in _COLUMN_NAMES:
        return True
    is_language = _LANGUAGE.fullmatch(text) is not None
    return is_language and any(_LANGUAGE.fullmatch(other) and other != text for other in others)


def describe_format(filled: Sequence[str]) -> str:
    """Describe the format of nonempty lines: an n-best list, a JSON array, a WMT test set or TMX; "" for others."""
    if filled and all(line.count(" ||| ") >= 2 for line in filled):
        return "a Moses n-best list, whose indices and scores count as text"
    if found := next(filter(None, map(_XML.match, filled[:5])), None):
        return f"{'a TMX file' if found[1] else 'an SGM or XML test set'}, whose markup counts as text"
    if _JSON_ARRAY.match("\n".join(filled[:3])):
        return "a JSON array, whose brackets and field names count as text"
    return ""


def _describe_matches(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """Describe the matches of a pattern; return "" if it matches less than a tenth of the lines."""
    matches = [found[0] for found in map(pattern.search, lines) if found]
    if len(matches) < max(_MIN_MARKED * len(lines), 1):
        return ""
    return f"such as {matches[0]} in {len(matches):,} of {counted(len(lines), 'line')}"


def warn_of_csv(
    name: str,
    lines: Iterable[str],
    use: str = "read",
    remedy: str = "extract the text first, or rename the file if it is plain text",
) -> None:
    """Warn of plain text with a CSV file name if a line has a separator or a quote."""
    if has_csv_name(Path(name)) and any(map(_SEPARATOR.search, lines)):
        warn(f"{name} is {use} as plain text, including commas and quotes; {remedy}")


def is_csv_quoted(text: str) -> bool:
    """Return whether a column is in quotes and has doubled quotes inside, as `csv` and pandas write it."""
    inner = text[1:-1]
    return text[:1] == text[-1:] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def has_csv_name(path: Path) -> bool:
    """Return whether the extension of a file, ignoring that of a compression format, is .csv."""
    return uncompressed_extension(path) == ".csv"


def read_plain_text(path: Path, *, allow_pipe: bool = False) -> Iterator[str]:
    """Read lines like `read_lines`; warn if the first ones look like another format."""
    lines = read_lines(path, allow_pipe=allow_pipe)
    first = list(islice(lines, _NUM_CHECKED))
    warn_of_fields(f"{input_name(path)}, lines 1 to {len(first):,},", first)
    warn_of_csv(input_name(path), first)
    return chain(first, lines)


# --- A text and its translation ---------------------------------------------------------------------------------------


def warn_of_empty(name: str, lines: Sequence[str], others: Sequence[Sequence[str]], remark: str) -> None:
    """Warn of empty lines of a text, with their number, the first one and a remark.

    others: aligned texts, if any; lines that are empty in all of them do not count
    """
    empty = [
        number
        for number, (line, *other) in enumerate(zip(lines, *others, strict=True), start=1)
        if not line.strip() and (not other or any(map(str.strip, other)))
    ]
    if empty:
        verb = "is" if len(empty) == 1 else "are"
        found = f"{len(empty):,} of {counted(len(lines), 'line')} of {name} {verb} empty"
        warn(f"{found} (first: line {empty[0]:,}); {remark}")


def warn_of_equal(src: Path, sources: Sequence[str], tgt: Path, targets: Sequence[str]) -> None:
    """Warn of a translation that is equal to its source."""
    if sources == targets and src == tgt:
        warn(f"{input_name(src)} is given as both source and translation; they must be different files; correct one")
    elif sources == targets:
        warn(f"{input_name(tgt)} is identical to {input_name(src)}; it must be the translation; is it the right file?")


def warn_of_pairs(src: Path, sources: Sequence[str], tgt: Path | None, targets: Sequence[str]) -> None:
    """Warn if two files look like TSV, JSON, CSV or similar, or are equal; `tgt` is None if there is only one."""
    warn_of_fields(input_name(src), sources, translations=targets if tgt is not None else ())
    warn_of_csv(input_name(src), sources)
    if tgt is not None:
        warn_of_fields(input_name(tgt), targets)
        warn_of_csv(input_name(tgt), targets)
        warn_of_equal(src, sources, tgt, targets)


def warn_of_sides(name: str, src: Sequence[str] | None, tgt: Sequence[str], remark: str) -> None:
    """Warn of empty lines (with a remark), other formats and equal sides of a text; `src` is None without a source."""
    sides = {"target": tgt} if src is None else {"source": src, "target": tgt}
    for side, lines in sides.items():
        others = [other for key, other in sides.items() if key != side]
        warn_of_empty(f"the {side} of {name}", lines, others, remark)
        warn_of_fields(f"the {side} of {name}", lines, translations=others[0] if others else (), checks_markup=True)
    if src == tgt:
        warn(f"the target of {name} is identical to the source; is it the right file?")


def with_format_warnings(
    name: str, on_read: Callable[[int, Sequence[tuple[str, str]]], None] | None
) -> Callable[[int, Sequence[tuple[str, str]]], None]:
    """Wrap a callback that receives pairs of several corpora; call `warn_of_fields` for the first pairs of each."""
    seen: set[int] = set()

    def receive(index: int, pairs: Sequence[tuple[str, str]]) -> None:
        if index not in seen:
            seen.add(index)
            sources, targets = zip(*pairs, strict=True)
            where = f"{name}.{index}, lines 1 to {len(pairs):,},"
            warn_of_fields(f"the source of {where}", sources, translations=targets, checks_markup=True)
            warn_of_fields(f"the target of {where}", targets, translations=sources, checks_markup=True)
        if on_read is not None:
            on_read(index, pairs)

    return receive
