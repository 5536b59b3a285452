"""The subword tokenizer: SentencePiece, trained and used with the special ids of this project.

Text is normalised before it comes here (`nmt.text.clean.normalize`), so SentencePiece itself changes nothing, unless it
is to lower-case: that is written into its model, so that whoever uses the model does the same. What has no piece of its
own is spelled in bytes: no character ever becomes the unknown token.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from nmt.recipe import TokenizerRecipe, UserError
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.clean import valid_unicode
from nmt.text.subword_file import (
    SPACE,
    Algorithm,
    PieceKind,
    is_plain_bpe,
    read_algorithm,
    read_encoded,
    read_pieces,
    without_rule_file,
)

_JOINT_FILE, _SRC_FILE, _TGT_FILE = "tokenizer.model", "tokenizer.src.model", "tokenizer.tgt.model"

# Fixed, whatever machine trains: the result of training may depend on how the text is shared out among the threads.
_TRAINING_THREADS = 16


@dataclass(frozen=True)
class Vocabulary:
    """What a subword model is made of.

    algorithm: how it was trained, and how it puts text together from its pieces
    pieces:    written form of each piece, `▁` for a space
    scores:    of bpe, the earlier a piece was merged the higher; of unigram, log-probabilities in nats
    ordinary:  whether a piece is a string of characters like any other: no special token, user symbol or byte
    """

    algorithm: Algorithm
    pieces: list[str]
    scores: list[float]
    ordinary: list[bool]


class Tokenizer:
    """A trained subword model.

    path:       the file that it was read from or written to
    model:      the content of that file
    vocab_size: number of pieces, special tokens included
    """

    def __init__(self, model: bytes, path: Path) -> None:
        self.model = model
        self.path = path
        self._processor = _processor(model, path)
        self.vocab_size: int = self._processor.get_piece_size()

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `.model` file; raises UserError when it is missing, damaged or of other special tokens."""
        try:
            return cls(path.read_bytes(), path)
        except OSError as error:
            wrong = f"cannot read tokenizer {path}: {error.strerror}"
            raise UserError(f"{wrong}; it must be a SentencePiece model; prepare the data first") from error

    def encode(self, text: str) -> list[int]:
        """The token ids of one sentence, without begin or end token; a lone surrogate counts as U+FFFD."""
        ids: list[int] = self._processor.encode(valid_unicode(text), out_type=int)
        return ids

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The token ids as `encode` gives them, and the character of `text` where each token begins.

        The text may be of any form: SentencePiece counts before it normalizes. A token that spells only a part of a
        character, such as a byte or a letter of a ligature, begins where the character does.
        """
        text = valid_unicode(text)
        ids, begins = read_encoded(self._processor.encode(text, out_type="serialized_proto"))
        characters = [place for place, character in enumerate(text) for _ in character.encode()]
        return ids, [[*characters, len(text)][begin] for begin in begins]

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """The token ids of many sentences, computed by `num_threads` threads (-1: one for each core)."""
        valid = [valid_unicode(text) for text in texts]
        ids: list[list[int]] = self._processor.encode(valid, out_type=int, num_threads=num_threads) if valid else []
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any token ids, on one line; an id outside the vocabulary counts as the unknown token."""
        known = [int(i) if 0 <= i < self.vocab_size else UNK_ID for i in ids]
        text: str = self._processor.decode(known) if known else ""
        # Byte pieces can spell any byte, line ends too; a translation must stay on its line.
        return text.replace("\n", " ").replace("\r", " ")

    def decode_batch(self, batch: Iterable[Sequence[int]]) -> list[str]:
        """The text of each list of token ids; see `decode`."""
        return [self.decode(ids) for ids in batch]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The written form of each token, `▁` for the space before a word; for people and for alignments."""
        return [self._processor.id_to_piece(int(i) if 0 <= i < self.vocab_size else UNK_ID) for i in ids]

    def lowercases(self) -> bool:
        """Whether upper case is not told from lower case."""
        return str(self._processor.normalize("A")) == f"{SPACE}a"

    def encodes_by_words(self) -> bool:
        """Whether the ids of a normalised sentence are those of its words end to end, bit for bit; see `encoding`."""
        pieces = self._processor.id_to_piece(list(range(self.vocab_size)))
        return (
            is_plain_bpe(self.model)
            and self._processor.normalize("a b") == f"{SPACE}a{SPACE}b"
            and SPACE in pieces
            and not any(SPACE in piece[1:] or " " in piece for piece in pieces)
        )

    def user_symbols(self) -> dict[str, int]:
        """The pieces that are always one token, such as the tags of corpora, with their ids."""
        pieces = enumerate(read_pieces(self.model))
        return {piece.text: token for token, piece in pieces if piece.kind == PieceKind.user_symbol}

    def tag_id(self, tag: str) -> int:
        """The id of a tag, which stands before a source; UserError, with all that there are, for an unknown one."""
        known = self.user_symbols()
        if tag not in known:
            those = f"one of {', '.join(known)}" if known else "left out, for this model has none"
            raise UserError(f"tag {tag!r} is unknown to the tokenizer; it must be {those}; correct the tag")
        return known[tag]

    def vocabulary(self) -> Vocabulary:
        """The pieces of the model; raises UserError when it is neither bpe nor unigram."""
        algorithm = read_algorithm(self.model)
        if algorithm is None:
            wrong = f"tokenizer {self.path} is neither a bpe nor a unigram model"
            raise UserError(f"{wrong}; only these can be sampled; set train.subword_sampling to 0")
        pieces = read_pieces(self.model)
        return Vocabulary(
            algorithm,
            pieces=[piece.text for piece in pieces],
            scores=[piece.score for piece in pieces],
            ordinary=[piece.kind == PieceKind.ordinary for piece in pieces],
        )


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of the two sides: one and the same object when they are joint."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.src is self.tgt

    @classmethod
    def load(cls, directory: Path) -> Tokenizers:
        """Read `tokenizer.model`, or else `tokenizer.src.model` and `tokenizer.tgt.model`; raises UserError."""
        if (directory / _SRC_FILE).exists() and not (directory / _JOINT_FILE).exists():
            return cls(Tokenizer.load(directory / _SRC_FILE), Tokenizer.load(directory / _TGT_FILE))
        joint = Tokenizer.load(directory / _JOINT_FILE)
        return cls(joint, joint)

    def files(self) -> dict[str, bytes]:
        """Name and content of the files that `load` reads."""
        if self.joint:
            return {_JOINT_FILE: self.src.model}
        return {_SRC_FILE: self.src.model, _TGT_FILE: self.tgt.model}

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the contents of `files`, by name."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.files().items()}

    def save(self, directory: Path) -> None:
        """Write the files that `load` reads."""
        for name, content in self.files().items():
            (directory / name).write_bytes(content)


def train_tokenizer(lines: Iterable[str], recipe: TokenizerRecipe, path: Path) -> Tokenizer:
    """Train a subword model on normalised lines and write it to `path`, a `.model` file.

    The same lines and recipe give the same bytes on every machine. Raises UserError when the vocabulary size does not
    fit the text. Source: Sennrich et al. 2016 (bpe), Kudo 2018 (unigram), Kudo and Richardson 2018 (SentencePiece).
    """
    written = io.BytesIO()
    try:
        with _normalization(recipe.lowercase) as normalization:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(valid_unicode(line) for line in lines),
                model_writer=written,
                model_type=recipe.algorithm,
                vocab_size=recipe.vocab_size,
                character_coverage=recipe.character_coverage,
                user_defined_symbols=list(recipe.user_symbols),
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                byte_fallback=True,
                **normalization,
                num_threads=_TRAINING_THREADS,
                minloglevel=2,
            )
    except (RuntimeError, ValueError) as error:
        raise UserError(_explain_training_error(str(error), recipe)) from error
    path.write_bytes(without_rule_file(written.getvalue()))
    return Tokenizer.load(path)


def train_tokenizers(
    sample: Callable[[], Iterable[tuple[str, str]]], recipe: TokenizerRecipe, directory: Path, tags: Iterable[str] = ()
) -> Tokenizers:
    """Train the tokenizers of both sides on normalised pairs, joint or apart, and write them to `directory`.

    `sample` gives the pairs each time it is called; `tags` are further user symbols, of the source side. Raises
    UserError as `train_tokenizer` does.
    """
    with_tags = recipe.model_copy(update={"user_symbols": tuple(dict.fromkeys((*recipe.user_symbols, *tags)))})
    if recipe.joint:
        joint = train_tokenizer((text for pair in sample() for text in pair), with_tags, directory / _JOINT_FILE)
        return Tokenizers(joint, joint)
    return Tokenizers(
        src=train_tokenizer((pair[0] for pair in sample()), with_tags, directory / _SRC_FILE),
        tgt=train_tokenizer((pair[1] for pair in sample()), recipe, directory / _TGT_FILE),
    )


@contextmanager
def _normalization(lowercase: bool) -> Iterator[dict[str, Any]]:
    """What tells SentencePiece's trainer how to take text: as it is, or with each letter in lower case.

    Every letter becomes one letter, so that pieces and text still have the same number of characters; for the dotted
    capital I, the only one that Unicode would make two of, it is the i.
    """
    if not lowercase:
        yield {"normalization_rule_name": "identity"}
        return
    pairs = ((code, chr(code).lower()) for code in range(sys.maxunicode + 1))
    rules = [f"{code:X}\t{ord(lower[0]):X}\n" for code, lower in pairs if lower != chr(code)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lower.tsv"
        path.write_text("".join(rules), encoding="ascii")
        yield {"normalization_rule_tsv": str(path)}


def _explain_training_error(message: str, recipe: TokenizerRecipe) -> str:
    """One line that says which vocabulary size would do, drawn from the trainer's own message."""
    wrong = f"tokenizer.vocab_size is {recipe.vocab_size}"
    if too_high := re.search(r"value <= (\d+)", message):
        return f"{wrong}; this text allows at most {too_high[1]} pieces; set it to {too_high[1]} or less, or add text"
    if too_low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        needed = f"its characters, 256 bytes and the special tokens alone need {too_low[1]}"
        return f"{wrong}; {needed}; set it well above that, or lower tokenizer.character_coverage"
    detail = " ".join(message.split())
    return (
        f"the tokenizer cannot be trained ({detail}); it needs text and a vocabulary that fits; check section tokenizer"
    )


def _processor(model: bytes, path: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"tokenizer {path} is damaged; it must be a SentencePiece model; restore or remake it"
        ) from error
    if special != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise UserError(
            f"tokenizer {path} numbers pad, unknown, begin and end as {special}; "
            f"they must be {(PAD_ID, UNK_ID, BOS_ID, EOS_ID)}; use a tokenizer that nmt trained"
        )
    return processor
