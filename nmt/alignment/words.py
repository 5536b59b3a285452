"""Map tokens to words, and token links to word links. Words are separated by white space.

Words and tokens are matched by counting visible (non-space) characters. The tokenizer reports where the tokens of a
text begin, because SentencePiece may normalize the text again, as in imported models. The pieces of an output spell its
text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from unicodedata import category

from nmt.errors import UserError
from nmt.recipe import UnicodeForm
from nmt.text.clean import normalize
from nmt.text.subword_file import SPACE, spell

Links = list[tuple[int, int]]


def words_as_given(line: str, form: UnicodeForm) -> list[int]:
    """Return the index of the word in the original line for each visible character of its normalized form."""
    words = enumerate(line.split())
    return [index for index, word in words for _ in "".join(normalize(word, form).replace(SPACE, " ").split())]


def words_as_printed(text: str) -> list[int]:
    """Return the index of the word of each visible character of a text."""
    return [index for index, word in enumerate(text.split()) for _ in word]


def words_of_starts(text: str, starts: Sequence[int], words: Sequence[int]) -> list[int | None]:
    """Return the index of the word of each token of a normalized line.

    A token that begins with a space belongs to the next word, or to none at the end of the line.

    starts: index in `text` where each token begins, see `Tokenizer.encode_with_starts`; words: see `words_as_given`
    """
    visible = [0, *accumulate(not (character.isspace() or character == SPACE) for character in text)]
    return [words[visible[start]] if visible[start] < len(words) else None for start in starts]


def words_of_pieces(pieces: Sequence[str], words: Sequence[int]) -> list[int | None]:
    """Return the index of the word of each piece of an output. words: index for each visible character.

    A lone space belongs to the next word, or to none at the end of the line.
    """
    spelled = [spell(piece) for piece in pieces]
    visible_before: list[int] = []  # for each byte, the number of visible characters before its character
    visible = 0
    # An invalid byte counts as one character, as in SentencePiece's decoder.
    for character in b"".join(spelled).decode("utf-8", "surrogateescape"):
        visible_before += [visible] * len(character.encode("utf-8", "surrogateescape"))
        visible += not character.isspace()
    indices: list[int | None] = []
    start = 0
    for part in spelled:
        first = visible_before[start] if part else visible
        indices.append(words[first] if first < len(words) else None)
        start += len(part)
    return indices


def drop_punctuation(words: Sequence[int | None], pieces: Sequence[str]) -> list[int | None]:
    """Return `words` with None for punctuation in words that have other pieces, such as the comma of `house,`.

    A comma often attends to the next clause, so it would link the word before it to a wrong one.

    words: word of each piece
    """
    is_mark = [all(character == SPACE or category(character)[0] == "P" for character in piece) for piece in pieces]
    with_text = {word for word, mark in zip(words, is_mark, strict=True) if not mark}
    return [None if mark and word in with_text else word for word, mark in zip(words, is_mark, strict=True)]


def link_words(attended: Sequence[int], src_words: Sequence[int | None], tgt_words: Sequence[int | None]) -> Links:
    """Return the sorted (source, target) pairs of words that have linked tokens.

    attended: source token of each target token, empty for an empty source; src_words, tgt_words: word of each token
    """
    if not attended:
        return []
    links = {(src_words[source], word) for source, word in zip(attended, tgt_words, strict=True)}
    return sorted((source, target) for source, target in links if source is not None and target is not None)


def parse_links(line: str, num_words: tuple[int, int], where: str, separators: str = "-") -> Links:
    """Parse an alignment in Pharaoh format; raise UserError for anything else, and for words that do not exist.

    num_words: of source and target; where: file and line, for the message; separators: characters between positions
    """
    links = []
    for item in line.split():
        positions = re.fullmatch(rf"(\d+)[{separators}](\d+)", item)
        if positions is None:
            raise UserError(f"{where}: {item[:20]!r} is not a link; expected links such as 0-0 1-2; correct the line")
        link = int(positions[1]), int(positions[2])
        if link[0] >= num_words[0] or link[1] >= num_words[1]:
            raise UserError(
                f"{where}: link {item} is out of range for {num_words[0]} source and {num_words[1]} target words; "
                "positions count from 0 and words are separated by spaces; correct the line"
            )
        links.append(link)
    return links


def format_links(links: Sequence[tuple[int, int]]) -> str:
    """Format an alignment in Pharaoh format: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in links)
