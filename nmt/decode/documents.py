"""Translation of documents in order, with their previous lines as context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nmt.decode.task import Previous
from nmt.decode.text_translator import TextTranslator


def document_rounds(continues: Sequence[int]) -> list[list[int]]:
    """Group lines into rounds to translate in order, each with at most one line of each document.

    continues: true or nonzero for each line that continues the document of the line before it
    """
    rounds: list[list[int]] = []
    position = -1
    for line, is_continuation in enumerate(continues):
        position = position + 1 if is_continuation else 0
        if position == len(rounds):
            rounds.append([])
        rounds[position].append(line)
    return rounds


def translate_documents(
    translator: TextTranslator,
    lines: Sequence[str],
    previous: Sequence[int] | None,
    window: int,
    advance: Callable[[int], None] = lambda num_lines: None,
) -> list[str]:
    """Translate lines of documents. Context is previous lines and, for context on both sides, their translations.

    previous: number of lines before each line that are its context; None without context
    window:   number of lines translated together
    advance:  called with the number of lines translated since its last call
    """
    outputs = [""] * len(lines)
    if previous is None:
        for i, translations in enumerate(translator.stream(lines, window)):
            outputs[i] = translations[0].text
            advance(1)
        return outputs
    has_target = translator.context.has_target
    rounds = document_rounds(previous) if has_target else [list(range(len(lines)))]
    for indices in rounds:
        for start in range(0, len(indices), window):
            batch = indices[start : start + window]
            contexts: list[list[Previous]] = []
            for i in batch:
                before = slice(i - previous[i], i)
                contexts.append([*zip(lines[before], outputs[before], strict=True)] if has_target else [*lines[before]])
            n_best_lists = translator.translate_n_best([lines[i] for i in batch], context=contexts)
            for i, translations in zip(batch, n_best_lists, strict=True):
                outputs[i] = translations[0].text
            advance(len(batch))
    return outputs
