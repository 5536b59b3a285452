"""Test sets and translations of systems, read from files and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, get_args

from nmt.errors import UserError
from nmt.evaluate.metrics import check_aligned
from nmt.logs import warn
from nmt.recipe import Metric
from nmt.text.format_warnings import warn_of_csv, warn_of_empty, warn_of_equal, warn_of_fields
from nmt.text.lines import input_name, read_lines


@dataclass(frozen=True)
class ReferenceSet:
    """References of a test set by file name, and its source."""

    references: dict[str, list[str]]
    reference_files: tuple[Path, ...]
    source: list[str] | None
    tgt_lang: str | None

    @property
    def streams(self) -> list[list[str]]:
        """The lines of each reference."""
        return list(self.references.values())

    @property
    def first_references(self) -> list[str]:
        """The first reference of each sentence that is not blank; "" if all are."""
        return [next(filter(str.strip, refs), "") for refs in zip(*self.streams, strict=True)]

    @classmethod
    def read(cls, ref: Sequence[Path], src: Path | None, tgt_lang: str | None) -> Self:
        """Read references and source; raises UserError if line counts differ, or a reference is given twice.

        Warns of lines that are empty on one side or look like a table, and of references that are equal to the source.
        """
        files = tuple(ref)
        if repeated := [path for path in files if files.count(path) > 1]:
            raise UserError(f"--ref {repeated[0]} is given twice; references must be different files; remove one")
        references = {input_name(path): list(read_lines(path, allow_pipe=True)) for path in files}
        source = None if src is None else list(read_lines(src, allow_pipe=True))
        check_aligned(references if src is None or source is None else {**references, input_name(src): source})
        remark = "any translation of such a line counts as wrong; is it the right file?"
        if len(files) > 1:
            remark = "translations count as wrong only if all references are empty; is it the right file?"
        for name, lines in references.items():
            _warn_of_text(name, lines, [] if source is None else [source], remark)
        if src is not None and source is not None:
            for path, lines in zip(files, references.values(), strict=True):
                warn_of_equal(src, source, path, lines)
            _warn_of_text(input_name(src), source, [*references.values()], "is it the right file?")
        return cls(references, files, source, tgt_lang)


def read_systems(files: Sequence[Path], text: ReferenceSet) -> dict[str, list[str]]:
    """Read the translations of each system, by file name; raises UserError if they cannot belong to the test set.

    Warns of files that have empty lines or look like a table, or are equal to a reference or the source.
    """
    systems: dict[str, list[str]] = {}
    for path in files:
        system = input_name(path)
        if system in systems:
            raise UserError(f"{path} is given twice; systems must have different files; remove one")
        if str(path) in get_args(Metric) and not path.exists():
            raise UserError(f"there is no file {path}; {path} is a metric; separate metrics by commas: -m bleu,{path}")
        lines = list(read_lines(path, allow_pipe=True))
        if any(path.resolve() == reference.resolve() for reference in text.reference_files):
            raise UserError(f"{path} is both a translation and the reference; they must be two files; correct --ref")
        check_aligned({**text.references, system: lines})
        _warn_of_text(system, lines, text.streams, "is it the right file, and complete?")
        for name, others in {**text.references, "the source": text.source}.items():
            if others is not None and _is_same_text(lines, others):
                warn(f"{system} is identical to {name}; is it the right file?")
        systems[system] = lines
    return systems


def _warn_of_text(name: str, lines: Sequence[str], others: Sequence[Sequence[str]], remark: str) -> None:
    """Warn of lines that look like a table, and of those that are empty although a line of `others` is not."""
    warn_of_fields(name, lines)
    warn_of_csv(name, lines)
    warn_of_empty(name, lines, others, remark)


def _is_same_text(lines: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether lines are equal except for white space at their ends, such as CR, which metrics ignore."""
    return [line.rstrip() for line in lines] == [line.rstrip() for line in others]


def warn_of_identical(systems: Mapping[str, Sequence[str]], where: str = "") -> None:
    """Warn of systems that are identical to the first one, the baseline."""
    baseline, *others = systems
    for name in others:
        if _is_same_text(systems[name], systems[baseline]):
            warn(f"{where}{name} is identical to the baseline; check that it is the intended file")
