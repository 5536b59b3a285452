"""Scores by source length and by word frequency in the training text."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nmt.errors import UserError
from nmt.text.lines import input_name, read_lines, read_plain_text

# Upper bounds of the length classes, in words; longer sentences form the last class.
_MAX_LENGTHS = (10, 20, 30, 40, 50, 60)
# Lower bounds of the frequency classes after the first, which is 0: those of compare-mt (Neubig et al. 2019).
_MIN_FREQUENCIES = (1, 2, 3, 4, 5, 10, 100, 1000)


@dataclass(frozen=True)
class WordScore:
    """Translation quality of the words of one frequency class.

    frequency:      range of the frequency in the training text: `0`, `5 to 9`, `1,000 or more`
    in_reference:   word tokens in the reference
    in_translation: word tokens in the translation
    matched:        word tokens in both, sentence by sentence
    """

    frequency: str
    in_reference: int
    in_translation: int
    matched: int

    @property
    def f_measure(self) -> float:
        """Harmonic mean of precision and recall in percent."""
        words = self.in_reference + self.in_translation
        return 200.0 * self.matched / words if words else 0.0


def length_classes(sources: Sequence[str]) -> list[list[str]]:
    """Return the length class of each source sentence, as groups for `score_groups`.

    Words are separated by spaces. The names of the classes sort by length.
    """
    return [[_length_class(len(line.split()))] for line in sources]


def count_words(lines: Iterable[str], words: Callable[[str], Sequence[str]]) -> Counter[str]:
    """Count the words of a text; `words` tokenizes a line."""
    return Counter(word for line in lines for word in words(line))


def read_word_counts(lines: Iterable[str], name: str) -> Counter[str]:
    """Parse lines `WORD COUNT`, separated by a tab or spaces; `name` is the file name for errors.

    Counts of a repeated word are added up, as for concatenated files.

    Raises UserError, with the line number, for a malformed line.
    """
    counts: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if len(fields) != 2 or not re.fullmatch("[0-9]{1,18}", fields[1]):
            raise UserError(
                f"{name}, line {number}: invalid word count {line[:40]!r}; each line must be WORD COUNT; "
                "fix the line, or give the training text instead (--train-tgt)"
            )
        word, count = fields
        counts[word] += int(count)
    return counts


def training_frequencies(
    train_tgt: Sequence[Path], word_counts: Path | None, words: Callable[[str], Sequence[str]], *, lowercase: bool
) -> Counter[str]:
    """Count the words of training text and add given counts.

    lowercase: whether `words` lowercases; if so, given counts of words that differ only in case are added up

    Warns if a text does not look like plain text. Raises UserError if there are no words, or a text is given twice.
    """
    if repeated := [path for path in train_tgt if list(train_tgt).count(path) > 1]:
        raise UserError(f"--train-tgt {repeated[0]} is given twice; its words would count twice; remove one")
    frequencies = count_words(chain.from_iterable(read_plain_text(path, allow_pipe=True) for path in train_tgt), words)
    if word_counts is not None:
        lines = read_lines(word_counts, allow_pipe=True)
        for word, count in read_word_counts(lines, input_name(word_counts)).items():
            frequencies[word.lower() if lowercase else word] += count
    if not any(frequencies.values()):
        files = train_tgt if word_counts is None else [*train_tgt, word_counts]
        names = ", ".join(map(str, files))
        raise UserError(f"no words in {names}; expected training text; check the files")
    return frequencies


def score_words(
    hypotheses: Sequence[str],
    references: Sequence[str],
    frequencies: Mapping[str, int],
    words: Callable[[str], Sequence[str]],
) -> list[WordScore]:
    """Score the words of each frequency class, rarest first; classes without words are omitted.

    A word matches at most as often as it occurs in the reference of the same sentence, in any position.
    """
    matched, in_ref, in_hyp = Counter[int](), Counter[int](), Counter[int]()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        hyp_words, ref_words = Counter(words(hypothesis)), Counter(words(reference))
        for counts, total in ((hyp_words, in_hyp), (ref_words, in_ref), (hyp_words & ref_words, matched)):
            for word, count in counts.items():
                total[bisect_right(_MIN_FREQUENCIES, frequencies.get(word, 0))] += count
    return [
        WordScore(_frequency_class(index), in_ref[index], in_hyp[index], matched[index])
        for index in sorted(in_ref.keys() | in_hyp.keys())
    ]


def _length_class(words: int) -> str:
    index = bisect_left(_MAX_LENGTHS, words)
    if index == len(_MAX_LENGTHS):
        return f"over {_MAX_LENGTHS[-1]}"
    shortest = _MAX_LENGTHS[index - 1] + 1 if index else 0
    return f"{shortest} to {_MAX_LENGTHS[index]}"


def _frequency_class(index: int) -> str:
    lowest = _MIN_FREQUENCIES[index - 1] if index else 0
    if index == len(_MIN_FREQUENCIES):
        return f"{lowest:,} or more"
    highest = _MIN_FREQUENCIES[index] - 1
    return str(lowest) if lowest == highest else f"{lowest:,} to {highest:,}"
