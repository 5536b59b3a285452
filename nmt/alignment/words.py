"""From tokens to words: which whitespace-separated word each token of a line helps to spell.

Visible characters are counted, those that are no white space. The tokens of text that was given begin where
SentencePiece says, which may normalize the text once more (imported models do). The tokens that a model wrote spell its
text, in whatever pieces and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from nmt.text.clean import UnicodeForm, normalize

Links = list[tuple[int, int]]

# How SentencePiece writes a space, and one byte of a character that has no piece.
_SPACE = "\u2581"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def words_as_given(line: str, form: UnicodeForm) -> list[int]:
    """The word of a line as it was given for each visible character that is left of it in normal form."""
    words = enumerate(line.split())
    return [place for place, word in words for _ in "".join(normalize(word, form).replace(_SPACE, " ").split())]


def words_as_printed(text: str) -> list[int]:
    """The word of each visible character of a text."""
    return [place for place, word in enumerate(text.split()) for _ in word]


def words_of_starts(text: str, starts: Sequence[int], words: Sequence[int]) -> list[int | None]:
    """The word of each token of a line in normal form; see `Tokenizer.encode_with_starts`.

    starts: the character of `text` where each token begins; words: see `words_as_given`
    A token that begins with a space belongs to the word behind it, or to none at the end.
    """
    visible = [0, *accumulate(not (character.isspace() or character == _SPACE) for character in text)]
    return [words[visible[start]] if visible[start] < len(words) else None for start in starts]


def words_of_pieces(pieces: Sequence[str], words: Sequence[int]) -> list[int | None]:
    """The word of each piece that a model wrote, given the word of each visible character that the pieces spell.

    A piece that begins within a word belongs to it, and a lone space to the word behind it, or to none at the end.
    """
    spelled = [_spell(piece) for piece in pieces]
    characters: list[int] = []  # for each byte, the visible characters before the one that it belongs to
    visible = 0
    # Each byte that is not part of a character counts as one, as it does when SentencePiece decodes.
    for character in b"".join(spelled).decode("utf-8", "surrogateescape"):
        characters += [visible] * len(character.encode("utf-8", "surrogateescape"))
        visible += not character.isspace()
    found: list[int | None] = []
    start = 0
    for part in spelled:
        first = characters[start] if part else visible
        found.append(words[first] if first < len(words) else None)
        start += len(part)
    return found


def _spell(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace(_SPACE, " ").encode()


def link_words(attended: Sequence[int], src_words: Sequence[int | None], tgt_words: Sequence[int | None]) -> Links:
    """The pairs of words (source, target), sorted, of which any two tokens are linked.

    attended: the source token that each target token is linked to, or nothing for a source without tokens;
    src_words, tgt_words: the word of each token
    """
    if not attended:
        return []
    links = {(src_words[source], word) for source, word in zip(attended, tgt_words, strict=True)}
    return sorted((source, target) for source, target in links if source is not None and target is not None)


def format_links(links: Sequence[tuple[int, int]]) -> str:
    """Pharaoh's way to write an alignment: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in links)
