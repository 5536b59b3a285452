"""Scores by source length and by word frequency in the training text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nmt.errors import UserError
from nmt.text.format_warnings import read_plain_text

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


def training_frequencies(train_tgt: Sequence[Path], words: Callable[[str], Sequence[str]]) -> Counter[str]:
    """Count the words of training text; `words` tokenizes a line.

    Warns if a text does not look like plain text. Raises UserError if there are no words, or a text is given twice.
    """
    if repeated := [path for path in train_tgt if list(train_tgt).count(path) > 1]:
        raise UserError(f"--train-tgt {repeated[0]} is given twice; its words would count twice; remove one")
    lines = chain.from_iterable(read_plain_text(path, allow_pipe=True) for path in train_tgt)
    frequencies = Counter(word for line in lines for word in words(line))
    if not frequencies:
        names = ", ".join(map(str, train_tgt))
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
