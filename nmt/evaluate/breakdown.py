"""Where translations are good and bad: by length of the source sentence, and by how often training saw a word."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nmt.recipe import UserError

# The highest number of words of each class of source sentences; one class more lies above the last.
LONGEST_OF_CLASS = (10, 20, 30, 40, 50, 60)
# The lowest frequency of each class of words but the first, which is 0: compare-mt's classes (Neubig et al. 2019).
RAREST_OF_CLASS = (1, 2, 3, 4, 5, 10, 100, 1000)


@dataclass(frozen=True)
class WordScore:
    """How well words of one frequency class are translated.

    frequency:      how often training has such words: `0`, `5 to 9`, `1,000 or more`
    in_reference:   running words of the class in the reference
    in_translation: running words of the class in the translation
    matched:        of these, how many stand in both, sentence by sentence
    """

    frequency: str
    in_reference: int
    in_translation: int
    matched: int

    @property
    def precision(self) -> float:
        """Per cent of the translation's words that the reference has too."""
        return 100.0 * self.matched / self.in_translation if self.in_translation else 0.0

    @property
    def recall(self) -> float:
        """Per cent of the reference's words that the translation has too."""
        return 100.0 * self.matched / self.in_reference if self.in_reference else 0.0

    @property
    def f_measure(self) -> float:
        """Harmonic mean of precision and recall, per cent."""
        words = self.in_reference + self.in_translation
        return 200.0 * self.matched / words if words else 0.0


def length_classes(sources: Sequence[str]) -> list[list[str]]:
    """The length class of each source sentence, as groups for `score_by_group`; words are what spaces divide.

    Sorted by name, the classes are sorted by length.
    """
    lengths = (len(line.split()) for line in sources)
    return [[_length_class(length)] for length in lengths]


def count_words(lines: Iterable[str], words: Callable[[str], Sequence[str]]) -> Counter[str]:
    """How often each word occurs in a text that `words` cuts into words."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(words(line))
    return counts


def read_word_counts(lines: Iterable[str], name: str) -> Counter[str]:
    """Word counts from lines `WORD COUNT`, divided by a tab or spaces; `name` stands in errors.

    Raises UserError, with the line number, for a line of another form.
    """
    counts: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        word, _, count = line.strip().replace("\t", " ").rpartition(" ")
        if not word or not count.isascii() or not count.isdigit():
            raise UserError(
                f"{name}, line {number}: {line[:40]!r} is no word with its count; each line must be WORD COUNT; "
                "mend it, or give the training text itself (--train-tgt)"
            )
        counts[word.strip()] += int(count)
    return counts


def score_words(
    hypotheses: Sequence[str],
    references: Sequence[str],
    frequencies: Mapping[str, int],
    words: Callable[[str], Sequence[str]],
) -> list[WordScore]:
    """Precision and recall of words by class of their frequency, rarest first.

    A word of a translation is right as often as the reference of the same sentence has it, wherever it stands there.
    Classes without a word are left out.
    """
    matched, in_ref, in_hyp = Counter[int](), Counter[int](), Counter[int]()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        hyp_words, ref_words = Counter(words(hypothesis)), Counter(words(reference))
        for counts, total in ((hyp_words, in_hyp), (ref_words, in_ref), (hyp_words & ref_words, matched)):
            for word, count in counts.items():
                total[bisect_right(RAREST_OF_CLASS, frequencies.get(word, 0))] += count
    return [
        WordScore(_frequency_class(place), in_ref[place], in_hyp[place], matched[place])
        for place in sorted(in_ref.keys() | in_hyp.keys())
    ]


def _length_class(words: int) -> str:
    lowest = 0
    for highest in LONGEST_OF_CLASS:
        if words <= highest:
            return f"{lowest} to {highest}"
        lowest = highest + 1
    return f"over {LONGEST_OF_CLASS[-1]}"


def _frequency_class(place: int) -> str:
    lowest = RAREST_OF_CLASS[place - 1] if place else 0
    if place == len(RAREST_OF_CLASS):
        return f"{lowest:,} or more"
    highest = RAREST_OF_CLASS[place] - 1
    return str(lowest) if lowest == highest else f"{lowest:,} to {highest:,}"
