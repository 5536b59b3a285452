"""Sentences with their context: the previous sentences of the same document.

`join_lines` prepends the context to each side of a pair, as lines. Cleaning replaces the line breaks with CLEAN_BREAK.
In the model input, a separator token follows each previous sentence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, TypeVar

from nmt.errors import UserError
from nmt.logs import say
from nmt.recipe import SEPARATOR, Context, UnicodeForm
from nmt.text.clean import DropReason, Pair, normalize
from nmt.text.tokenizer import Tokenizer, Tokenizers

Item = TypeVar("Item")

CLEAN_BREAK = "\x1e"
"""Separates the sentences of cleaned text, which has no control characters."""


class Separators(NamedTuple):
    """Token ids of the separator; that of the target is None if the target has no context."""

    src: int
    tgt: int | None


def find_separators(tokenizers: Tokenizers, context: Context) -> Separators | None:
    """Return the ids of the separator, or None without context; raise UserError if a tokenizer has none."""
    if not context.size:
        return None
    return Separators(_separator(tokenizers.src), _separator(tokenizers.tgt) if context.has_target else None)


def _separator(tokenizer: Tokenizer) -> int:
    ids = tokenizer.user_symbols()
    if SEPARATOR not in ids:
        raise UserError(
            f"tokenizer {tokenizer.path} has no piece {SEPARATOR}, which data.context needs; set data.context to 0, or "
            f"train the tokenizer with tokenizer.user_symbols = ['{SEPARATOR}']"
        )
    return ids[SEPARATOR]


def with_previous(
    items: Iterable[Item],
    size: int,
    is_boundary: Callable[[Item], bool],
    documents: Iterable[Hashable] | None = None,
) -> Iterator[tuple[Item, tuple[Item, ...]]]:
    """Yield each item with at most `size` previous items of its document, oldest first.

    is_boundary: whether an item, such as an empty line, ends a document; such items are never context
    documents:   identifies the document of each item; None if only boundaries separate documents
    """
    recent: deque[Item] = deque(maxlen=size)
    current: Hashable = None
    for item, document in zip(items, repeat(None) if documents is None else documents, strict=False):
        if document != current:
            recent.clear()
            current = document
        yield item, tuple(recent)
        if is_boundary(item):
            recent.clear()
        else:
            recent.append(item)


def is_blank(line: str) -> bool:
    """Return whether a line is blank; blank lines end documents."""
    return not line.strip()


def is_blank_pair(pair: Pair) -> bool:
    """Return whether the last lines of both sides of a pair are blank; such pairs end documents."""
    src, tgt = last_lines(pair)
    return not (src.strip() or tgt.strip())


def join_lines(pairs: Iterable[Pair], context: Context, documents: Iterable[Hashable] | None) -> Iterator[Pair]:
    """Yield unmodified pairs, each side with the lines of its context before its own line."""
    for pair, previous in with_previous(pairs, context.size, is_blank_pair, documents):
        src, tgt = zip(*previous, pair, strict=True)
        yield "\n".join(src), "\n".join(tgt)


def last_lines(pair: Pair) -> Pair:
    """Return a pair from `join_lines` without its context."""
    return pair[0].rpartition("\n")[2], pair[1].rpartition("\n")[2]


def clean_joined(
    clean: Callable[[str, str], Pair | DropReason], context: Context, src: str, tgt: str
) -> Pair | DropReason:
    """Clean a pair from `join_lines`, and separate its sentences with CLEAN_BREAK.

    Context pairs that `clean` drops are left out.
    """
    *previous, pair = zip(src.split("\n"), tgt.split("\n"), strict=True)
    cleaned = clean(*pair)
    if isinstance(cleaned, str):
        return cleaned
    previous_results = [clean(*lines) for lines in previous]
    kept = [result for result in previous_results if not isinstance(result, str)]
    sources, targets = zip(*kept, cleaned, strict=True)
    return CLEAN_BREAK.join(sources), CLEAN_BREAK.join(targets) if context.has_target else cleaned[1]


def normalize_joined(pair: Pair, form: UnicodeForm, context: Context) -> Pair:
    """Normalize a pair from `join_lines`, and separate its sentences with CLEAN_BREAK."""
    src, tgt = (CLEAN_BREAK.join(normalize(line, form) for line in side.split("\n")) for side in pair)
    return src, tgt if context.has_target else last_sentence(tgt)


def count_previous(pair: Pair) -> int:
    """Return the number of sentences in the context of a pair from `join_lines`."""
    return pair[0].count("\n")


def say_documents(
    chunks: Iterable[tuple[int, list[Pair]]], context: Context, where: str
) -> Iterator[tuple[int, list[Pair]]]:
    """Yield chunks of pairs from `join_lines` with the index of their corpus, then log how many documents each has.

    where: the option with the corpora, such as `data.train`
    """
    counts: Counter[int] = Counter()
    for corpus, pairs in chunks:
        if context.size:  # only the first sentence of a document has no previous ones
            counts[corpus] += sum(not (count_previous(pair) or is_blank_pair(pair)) for pair in pairs)
        yield corpus, pairs
    if counts:
        say("documents: " + ", ".join(f"{count:,} in {where}.{corpus}" for corpus, count in sorted(counts.items())))


def last_sentence(text: str) -> str:
    """Return the sentence of cleaned text without its context."""
    return text.rpartition(CLEAN_BREAK)[2]


def after_last(tokens: Sequence[int], separator: int | None) -> int:
    """Return the index of the first token after the last separator; 0 if there is none."""
    return next((i for i in range(len(tokens), 0, -1) if tokens[i - 1] == separator), 0)
