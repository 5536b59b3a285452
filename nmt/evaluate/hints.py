"""Hints and warnings about text that lowers scores by its form: case, spaces, Unicode forms, invisible characters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER

from nmt.evaluate.brackets import BracketF1
from nmt.evaluate.inputs import ReferenceSet
from nmt.evaluate.metrics import Scorer, check_seed, make_scorer
from nmt.evaluate.rouge import Rouge, warn_of_other_scripts
from nmt.logs import counted, say, warn
from nmt.text.clean import describe_invisible_characters
from nmt.text.languages import HAN, KANA
from nmt.text.words import has_spaces

_MAX_OTHER_FORMS = 0.01  # fraction of lines
_MIN_KANA = 0.1  # fraction of Chinese characters; Japanese has about as many kana
_MAX_CASED = 0.01  # fraction of lines; lowercased text may still contain a few names
# Advice by metric that separates words at spaces, for references without spaces.
_REMEDIES = {
    "bleu": "for bleu, use --tokenize char",
    "ter": "leave out ter",
    **dict.fromkeys(("bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split"), "compute bleu instead"),
}


def hint_at_forms(
    systems: Mapping[str, Sequence[str]], text: ReferenceSet, scorers: Sequence[Scorer], others: Sequence[str] = ()
) -> None:
    """Log hints if a system differs from the references in case, Unicode form or invisible characters.

    Also logs a hint if the first reference has no spaces, and warns of references that ROUGE cannot read.

    others: names of other results that depend on case
    """
    _hint_at_case(systems, text, [*(scorer.name for scorer in scorers if scorer.is_case_sensitive), *others])
    _hint_at_missing_spaces("the reference", text.streams[0], scorers, _remedies(text.streams[0]))
    _warn_of_rouge(text.streams, scorers)
    for name, lines in systems.items():
        hint_at_unicode_form(name, lines, text.streams)
        _hint_at_invisible_characters(name, lines, text.streams[0])


def check_scoring(
    name: str, references: Sequence[Sequence[str]], metrics: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Raise UserError if a test set of a recipe cannot be scored; log a hint if the first reference has no spaces.

    Warns of metrics that do not ignore the case of a reference if the model writes lowercase text, and of references
    that ROUGE cannot read.

    options: of `make_scorer`
    """
    check_seed()
    first = [stream[:1] for stream in references]
    scorers = [make_scorer(metric, **options) for metric in metrics]
    for scorer in scorers:
        scored = references if isinstance(scorer.metric, BracketF1) else first  # any reference may be malformed
        scorer.score(scored[0], scored)
    _warn_of_rouge(references, scorers)
    if options["lowercase"]:
        warn_of_case(name, references, scorers, "evaluate.metrics")
    remedies = _REMEDIES | {
        "bleu": "for bleu, set evaluate.tokenize to 'char'",
        "ter": "omit ter from evaluate.metrics",
    }
    _hint_at_missing_spaces(f"the reference of {name}", references[0], scorers, remedies)


def _warn_of_rouge(references: Sequence[Sequence[str]], scorers: Sequence[Scorer]) -> None:
    if any(isinstance(scorer.metric, Rouge) for scorer in scorers):
        warn_of_other_scripts(references)


# --- Case -------------------------------------------------------------------------------------------------------------


def hint_at_lowercase_output(
    name: str, lines: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str], **options: Any
) -> None:
    """Log a hint if a model whose tokenizer keeps case writes only lower case and a metric is case-sensitive.

    options: of `make_scorer`; with `lowercase`, `warn_of_case` warns instead
    """
    scorers = [make_scorer(metric, **options) for metric in metrics]
    cased = [scorer.name for scorer in scorers if scorer.is_case_sensitive]
    if cased and not options["lowercase"] and _is_lowered(lines, references):
        say(
            f"hint: the translations of {name} are lowercased and the reference is not, which lowers "
            f"{', '.join(cased)}; train on text with capitals, or compute bleu-tokenized-lc (evaluate.metrics)"
        )


def warn_of_case(name: str, references: Sequence[Sequence[str]], scorers: Sequence[Scorer], option: str) -> None:
    """Warn of metrics that do not ignore the case of a reference, for a model that writes lowercase text.

    option: the one that sets the metrics
    """
    cased = [scorer.name for scorer in scorers if scorer.name.startswith("bleu") and scorer.is_case_sensitive]
    if cased and any(map(_has_upper_case, references)):
        do = "does" if len(cased) == 1 else "do"
        warn(
            f"the model writes lowercase text, and {' and '.join(cased)} of {name} {do} not ignore case, which lowers "
            f"the score; compute bleu or bleu-tokenized-lc instead ({option}), or lowercase the references"
        )


def _hint_at_case(systems: Mapping[str, Sequence[str]], text: ReferenceSet, case_sensitive: Sequence[str]) -> None:
    """Log a hint for each system that is lowercased while the references are not, or vice versa."""
    if not case_sensitive:
        return
    pairs = [(name, "the reference") for name, lines in systems.items() if _is_lowered(lines, text.streams)]
    if all(map(_is_lower_cased, text.streams)):
        pairs = [("the reference", name) for name, lines in systems.items() if _is_cased(lines)]
    for lower, cased in pairs:
        say(
            f"hint: {lower} is lowercased and {cased} is not, which lowers {', '.join(case_sensitive)}; "
            "to ignore case, use --lowercase (bleu, exact matches, words), --chrf-lowercase (chrf, "
            "chrf++) or --metrics bleu-tokenized-lc with --lang"
        )


def _is_lowered(lines: Sequence[str], references: Sequence[Sequence[str]]) -> bool:
    """Return whether translations are in lower case and have words that a reference writes with capitals.

    Without such words, as in the output of a model that has learned little, case does not change the scores.
    """
    if not _is_lower_cased(lines) or not any(map(_is_cased, references)):
        return False
    for line, *line_references in zip(lines, *references, strict=True):
        words = {word for reference in line_references for word in reference.split()}
        lowered = {word.lower() for word in words if word != word.lower()}
        if not lowered.isdisjoint(line.split()):
            return True
    return False


def _is_lower_cased(lines: Sequence[str]) -> bool:
    """Return whether lines have lowercase letters and hardly any others; many scripts have no case."""
    return not _is_cased(lines) and any(line != line.upper() for line in lines)


def _is_cased(lines: Sequence[str]) -> bool:
    return sum(line != line.lower() for line in lines) > _MAX_CASED * len(lines)


def _has_upper_case(lines: Iterable[str]) -> bool:
    return any(line != line.lower() for line in lines)


# --- Spaces -----------------------------------------------------------------------------------------------------------


def _hint_at_missing_spaces(
    name: str, reference: Sequence[str], scorers: Sequence[Scorer], remedies: Mapping[str, str]
) -> None:
    """Log a hint if a reference has no spaces and a metric does not split its clauses. remedies: advice by metric"""
    if has_spaces(reference):
        return
    unsplit = [scorer.name for scorer in scorers if scorer.name in remedies and _joins_words(scorer, reference)]
    if unsplit:
        metrics = " and ".join(unsplit)
        advice = ", and ".join(dict.fromkeys(remedies[metric] for metric in unsplit))
        say(f"hint: {name} has no spaces between words, so whole clauses are words for {metrics}; {advice}")


def _remedies(reference: Sequence[str]) -> dict[str, str]:
    """Return advice by metric for a reference without spaces, with --lang if it is Chinese or Japanese."""
    text = "".join(reference)
    num_kana, num_han = len(re.findall(f"[{KANA}]", text)), len(re.findall(f"[{HAN}]", text))
    if num_kana + num_han <= len(text) / 2:
        return _REMEDIES
    if num_kana > _MIN_KANA * num_han:
        return _REMEDIES | {"bleu": "for bleu, use --tokenize char or --lang ja"}
    return _REMEDIES | {"bleu": "for bleu, use --tokenize char or --lang zh", "ter": "for ter, use --lang zh"}


def _joins_words(scorer: Scorer, reference: Sequence[str]) -> bool:
    """Return whether a metric of `_REMEDIES` does not separate the words of a reference without spaces."""
    if not isinstance(scorer.metric, BLEU | TER) or scorer.name not in ("bleu", "ter"):
        return True
    return not has_spaces([scorer.metric.tokenizer(line) for line in reference])


# --- Unicode ----------------------------------------------------------------------------------------------------------


def hint_at_unicode_form(name: str, lines: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Log a hint if translations are in a different Unicode form than their references."""
    count = 0
    for line, *line_references in zip(lines, *references, strict=True):
        if any(_differ_in_form(line, reference) for reference in line_references):
            count += 1
    if count > _MAX_OTHER_FORMS * len(lines):
        say(
            f"hint: in {count:,} of {counted(len(lines), 'line')}, {name} and the reference have the same letters in "
            "different Unicode forms, which metrics count as errors; normalize the files to NFC"
        )


def _differ_in_form(first: str, second: str) -> bool:
    """Return whether two lines have a character in common only after normalization."""
    if unicodedata.is_normalized("NFC", first) and unicodedata.is_normalized("NFC", second):
        return False
    common = set(first) & set(second)
    common_in_nfc = set(unicodedata.normalize("NFC", first)) & set(unicodedata.normalize("NFC", second))
    return not common_in_nfc <= common


def _hint_at_invisible_characters(name: str, lines: Sequence[str], reference: Sequence[str]) -> None:
    """Log a hint if a reference has characters that translations of nmt never have, and the translations do not."""
    found = describe_invisible_characters(reference)
    if found and not describe_invisible_characters(lines):
        say(f"hint: the reference has {found}, and {name} does not, which metrics count as errors; remove them")


# --- Training text ----------------------------------------------------------------------------------------------------


def hint_at_training_text_form(
    frequencies: Mapping[str, int], text: ReferenceSet, words: Callable[[str], Sequence[str]]
) -> None:
    """Log hints if the training text is lowercased or in a different Unicode form than the words of the reference."""
    unseen = Counter(word for line in text.streams[0] for word in words(line) if word not in frequencies)
    count = 0
    if unseen:
        known = {unicodedata.normalize("NFC", word) for word in frequencies if not word.isascii()}
        count = sum(number for word, number in unseen.items() if unicodedata.normalize("NFC", word) in known)
    if count > _MAX_OTHER_FORMS * len(text.streams[0]):
        say(
            f"hint: the training text has {counted(count, 'word')} of the reference in another Unicode form, "
            "counted as unseen; normalize the files to NFC"
        )
    if not _has_upper_case(frequencies) and any(_has_upper_case(words(line)) for line in text.streams[0]):
        say(
            "hint: the training text is lowercased and the reference is not, so words with capitals count as unseen; "
            "to ignore case, use --lowercase"
        )
