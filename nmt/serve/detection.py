"""Source language detection with py3langid, a naive Bayes classifier over byte n-grams."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

from nmt.errors import UserError
from nmt.export.packages import load_package

_MAX_CHARACTERS = 2_000  # more would block other requests without changing the result


class Detected(NamedTuple):
    """A language and its probability among the candidates, in percent, as in LibreTranslate."""

    language: str
    confidence: float


def rank_languages(languages: Collection[str], texts: Sequence[str]) -> list[Detected]:
    """Rank languages by their probability for texts that are all in the same language, most probable first.

    Only the primary subtag of a language code counts, such as `pt` of `pt-BR`. A single language needs no classifier.
    Raises UserError if the classifier does not know a language or cannot distinguish two.
    """
    if len(languages) < 2:
        return [Detected(language, 100.0) for language in languages]
    identifier = _identifier()
    identifier.set_languages(None)  # all
    by_code: dict[str, str] = {}
    for language in sorted(languages):
        code = language.replace("_", "-").partition("-")[0].lower()
        if code not in identifier.labels or code in by_code:
            reason = f"it has the same code as {by_code[code]!r}" if code in by_code else "it is unknown"
            raise UserError(f"language {language!r} cannot be detected: {reason}; name the source language")
        by_code[code] = language
    identifier.set_languages(by_code)
    ranked = identifier.rank("\n".join(texts)[:_MAX_CHARACTERS])
    return [Detected(by_code[code], round(100.0 * float(probability), 1)) for code, probability in ranked]


@cache
def _identifier() -> Any:
    """Load the classifier, which takes half a second."""
    module = load_package("py3langid", "langid")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
