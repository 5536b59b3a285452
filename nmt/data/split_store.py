"""Writing a split of the prepared corpus, with counts for its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.encoding import EncodedChunk
from nmt.data.store import PairWriter, Sentences, Side, Split, token_dtype
from nmt.logs import warn
from nmt.text.subword_file import PieceKind, read_pieces
from nmt.text.tokenizer import Tokenizer, Tokenizers

_MAX_UNCOVERED = 0.05  # fraction of tokens


@dataclass
class SplitCounts:
    """Counts of a split: pairs per corpus; tokens and words per side; drops per reason.

    uncovered: byte and unknown tokens per side
    """

    pairs: Counter[int] = field(default_factory=Counter)
    tokens: Counter[Side] = field(default_factory=Counter)
    uncovered: Counter[Side] = field(default_factory=Counter)
    words: Counter[Side] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)

    def sides(self) -> dict[str, dict[str, float]]:
        """Return the entries of the report about each side."""
        return {
            side: {
                "tokens": self.tokens[side],
                "words": self.words[side],
                "average_length": round(self.tokens[side] / max(self.pairs.total(), 1), 4),
                "pieces_per_word": round(self.tokens[side] / max(self.words[side], 1), 4),
            }
            for side in ("src", "tgt")
        }

    def valid_report(self) -> dict[str, Any]:
        """Return the report of the validation set."""
        return {
            "pairs_read": self.pairs.total() + self.drops.total(),
            "too_long_for_model": self.drops["too many tokens"],
            "pairs": self.pairs.total(),
            **self.sides(),
        }

    def warn_of_uncovered(self, name: str) -> None:
        """Warn if more than 5% of the tokens of a side are bytes or unknown."""
        sides: tuple[tuple[Side, str], ...] = (("src", "source"), ("tgt", "target"))
        for side, kind in sides:
            fraction = self.uncovered[side] / max(self.tokens[side], 1)
            if fraction > _MAX_UNCOVERED:
                warn(
                    f"{fraction:.0%} of the {kind} tokens of {name} are bytes or unknown: the tokenizer does not cover "
                    "this text, so it is harder to learn; train a tokenizer on it, or start from another model"
                )


def write_split(
    directory: Path,
    split: Split,
    tokenizers: Tokenizers,
    chunks: Iterable[EncodedChunk],
    advance: Callable[[int], None] = lambda num_pairs: None,
) -> SplitCounts:
    """Write the chunks of a split; report the number of processed pairs to `advance`."""
    counts = SplitCounts()
    src_dtype, tgt_dtype = token_dtype(tokenizers.src.vocab_size), token_dtype(tokenizers.tgt.vocab_size)
    uncovered: dict[Side, NDArray[np.bool_]] = {"src": _uncovered(tokenizers.src), "tgt": _uncovered(tokenizers.tgt)}
    with PairWriter(directory, split, {"src": src_dtype, "tgt": tgt_dtype}) as writer:
        for chunk in chunks:
            counts.pairs[chunk.corpus] += len(chunk.src.lengths)
            counts.drops.update(chunk.drops)
            sides: tuple[tuple[Side, Sentences], ...] = (("src", chunk.src), ("tgt", chunk.tgt))
            for side, sentences in sides:
                writer.append(side, sentences.tokens, sentences.lengths)
                counts.tokens[side] += len(sentences.tokens)
                counts.uncovered[side] += int(np.count_nonzero(uncovered[side][sentences.tokens]))
                counts.words[side] += int(sentences.words.sum())
            advance(len(chunk.src.lengths) + chunk.drops.total())
    return counts


def _uncovered(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return whether each token is a byte or unknown, `(vocab_size,)`; all False for a byte tokenizer."""
    is_byte = tokenizer.options()["algorithm"] == "byte"
    kinds = () if is_byte else (PieceKind.byte, PieceKind.unknown)
    return np.array([piece.kind in kinds for piece in read_pieces(tokenizer.model)])
