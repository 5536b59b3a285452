"""Alignment error rate against gold alignments (Och and Ney 2003)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nmt.alignment.words import parse_links
from nmt.errors import UserError
from nmt.logs import counted
from nmt.text.lines import input_name, read_lines


@dataclass
class GoldLinks:
    """Gold links of a sentence pair: `sure` ones, and `possible` ones, which include the sure ones."""

    sure: set[tuple[int, int]] = field(default_factory=set)
    possible: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class AlignmentScore:
    """Counts of links, summed over sentence pairs."""

    found: int = 0
    found_sure: int = 0
    found_possible: int = 0
    sure: int = 0

    def add(self, links: Iterable[tuple[int, int]], gold: GoldLinks) -> None:
        """Add the links of a sentence pair."""
        found = set(links)
        self.found += len(found)
        self.found_sure += len(found & gold.sure)
        self.found_possible += len(found & gold.possible)
        self.sure += len(gold.sure)

    @property
    def precision(self) -> float:
        """Fraction of the links that are possible; 0 without links."""
        return self.found_possible / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Fraction of the sure links that were found; 0 without sure links."""
        return self.found_sure / self.sure if self.sure else 0.0

    @property
    def error_rate(self) -> float:
        """AER; 1 without any link."""
        total = self.found + self.sure
        return 1.0 - (self.found_sure + self.found_possible) / total if total else 1.0


def read_gold(path: Path, sources: Sequence[str], targets: Sequence[str]) -> list[GoldLinks]:
    """Read gold alignments in Pharaoh format, `0-0 1?2`, a line per sentence pair; `?` or `p` marks possible links.

    Raises UserError for another format, another number of lines, and words that do not exist.
    """
    gold = []
    name, lines = input_name(path), list(read_lines(path, allow_pipe=True))
    if len(lines) != len(sources):
        problem = f"{name} has {counted(len(lines), 'line')} for {counted(len(sources), 'sentence pair')}"
        raise UserError(f"{problem}; it must have one line per pair; check both")
    for number, (line, source, target) in enumerate(zip(lines, sources, targets, strict=True), start=1):
        num_words, where = (len(source.split()), len(target.split())), f"{name}, line {number}"
        links = parse_links(line, num_words, where, separators="-?p")
        sure = {link for link, item in zip(links, line.split(), strict=True) if "-" in item}
        gold.append(GoldLinks(sure, set(links)))
    if not any(links.sure for links in gold):
        raise UserError(f"{name} has no sure links; it must have some, such as 0-0; check that it is the right file")
    return gold
