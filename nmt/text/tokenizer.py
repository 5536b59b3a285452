"""The subword tokenizer: SentencePiece with the special ids of this project.

`nmt.text.clean.normalize` normalizes text before tokenization. SentencePiece only lowercases, if requested: the rule
is part of its model, so other programs that use the model apply it too. Characters without a piece are encoded as
bytes, never as the unknown token. Models of other programs may normalize further, and may lack bytes.
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
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from nmt.errors import UserError, message_of
from nmt.recipe import SEPARATOR, TERM_MARKERS, Recipe, TokenizerRecipe
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.clean import valid_unicode
from nmt.text.languages import WITHOUT_SPACES
from nmt.text.splitting import is_unspaced
from nmt.text.subword_file import (
    SPACE,
    Algorithm,
    Piece,
    PieceKind,
    has_whole_words,
    is_plain_bpe,
    read_algorithm,
    read_coverage,
    read_encoded,
    read_pieces,
    read_sentencepiece,
    spell,
    with_pieces,
    with_special_pieces,
    without_unused_settings,
)
from nmt.text.words import has_digits

_JOINT_FILE, _SRC_FILE, _TGT_FILE = "tokenizer.model", "tokenizer.src.model", "tokenizer.tgt.model"

# Fixed on every machine, because the trained model may depend on the number of threads.
_TRAINING_THREADS = 16

# SentencePiece ignores longer lines, by default those of more than 4,192 bytes. This is the highest limit.
_MAX_TRAINING_BYTES = 1 << 30

_NO_PIECE = "\ue000"  # a private-use character, which no piece joins to letters

# Special tokens, bytes, and the space.
_BYTE_VOCAB_SIZE = 4 + 256 + 1


class Tokenizer:
    """A trained subword model.

    model:      serialized SentencePiece model
    path:       file that it was read from, whose special tokens and user symbols may differ
    vocab_size: number of pieces, including special tokens
    has_spaces: whether the language of the texts has spaces between words
    """

    def __init__(self, model: bytes, path: Path, *, has_spaces: bool = True) -> None:
        self.model = model
        self.path = path
        self.has_spaces = has_spaces
        self._processor = _processor(model, path)
        self.vocab_size: int = self._processor.get_piece_size()

    @classmethod
    def load(cls, path: Path, *, has_spaces: bool = True) -> Tokenizer:
        """Read a `.model` file; raise UserError if it is missing, damaged or has unexpected special ids."""
        try:
            return cls(path.read_bytes(), path, has_spaces=has_spaces)
        except OSError as error:
            raise UserError(
                f"cannot read tokenizer {path}: {error.strerror}; it must be in a model directory or in folder data "
                "of a run; correct the path, or prepare the data first"
            ) from error

    @classmethod
    def from_sentencepiece(cls, path: Path, *, has_spaces: bool = True) -> Tokenizer:
        """Read a model that another program trained; its special tokens get the ids of this project.

        Raises UserError if it is not a SentencePiece model of subwords, or does not mark the beginning of words.
        """
        model = read_sentencepiece(path)
        if has_whole_words(model):
            raise UserError(f"{path} is a word model; it must have subwords; train it with --model_type=unigram or bpe")
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if processor.normalize("A b").lower() != f"{SPACE}a{SPACE}b":
            raise UserError(
                f"{path} does not mark the beginning of each word with {SPACE}; it must; train it without "
                "--add_dummy_prefix=false, --treat_whitespace_as_suffix and --escape_whitespaces=false"
            )
        return cls(with_special_pieces(model), path, has_spaces=has_spaces)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a sentence, without BOS and EOS. Lone surrogates become U+FFFD."""
        ids: list[int] = self._processor.encode(valid_unicode(text), out_type=int)
        return ids

    def encode_phrase(self, phrase: str) -> list[list[int]]:
        """Return the token ids of a phrase in each form that it may have: after a space, or directly after other text.

        The second form is only for languages without spaces and for phrases that begin in a script without them. If the
        first form is a space token followed by the second, only the second is returned.
        """
        after_space = self.encode(phrase)
        if not phrase.strip() or (self.has_spaces and not is_unspaced(phrase[:1])):
            return [after_space]
        within = self.encode(_NO_PIECE + phrase)[len(self.encode(_NO_PIECE)) :]
        if self.pieces(after_space[:1]) == [SPACE] and after_space[1:] == within:
            return [within]
        return [after_space, within]

    def encode_forbidden(self, phrase: str) -> list[list[int]]:
        """Return the forms of `encode_phrase` and, in scripts without spaces, each token that contains the phrase."""
        forms = self.encode_phrase(phrase)
        if not is_unspaced(phrase[:1]):
            return forms
        text = str(self._processor.normalize(phrase)).lstrip(SPACE)
        containing = [[token] for token, piece in enumerate(self.all_pieces) if text in piece]
        return forms + [token for token in containing if token not in forms]

    def tokens_with_digits(self) -> list[int]:
        """Return the token ids of all pieces with decimal digits, in any script, or single-character fractions."""
        spelled = [text.decode(errors="ignore") for text in self.spelled()]
        return [token for token, text in enumerate(spelled) if has_digits(text)]

    @cached_property
    def all_pieces(self) -> list[str]:
        """The piece of each token, by id; do not modify this list."""
        return [self._processor.id_to_piece(token) for token in range(self.vocab_size)]

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Return the token ids and the index of the character of `text` where each token starts.

        The text need not be normalized: positions refer to the text before SentencePiece normalizes it. A token
        for a part of a character, such as a byte or a letter of a ligature, starts at that character.
        """
        text = valid_unicode(text)
        ids, byte_offsets = read_encoded(self._processor.encode(text, out_type="serialized_proto"))
        character_of_byte = [index for index, character in enumerate(text) for _ in character.encode()]
        character_of_byte.append(len(text))
        return ids, [character_of_byte[offset] for offset in byte_offsets]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode sentences."""
        valid = [valid_unicode(text) for text in texts]
        ids: list[list[int]] = self._processor.encode(valid, out_type=int, num_threads=1) if valid else []
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids as one line. Ids outside the vocabulary decode as the unknown token."""
        known = [int(i) if 0 <= i < self.vocab_size else UNK_ID for i in ids]
        text: str = self._processor.decode(known) if known else ""
        # Byte pieces can spell line breaks.
        return text.replace("\n", " ").replace("\r", " ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each token; `▁` stands for the space before a word."""
        return [self.all_pieces[i if 0 <= i < self.vocab_size else UNK_ID] for i in ids]

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Return the token ids of pieces; inverse of `pieces`."""
        return [self._processor.piece_to_id(piece) for piece in pieces]

    def spelled(self) -> list[bytes]:
        """Return the bytes that each token adds to a text, by id; none for special tokens, user symbols and <0x20>."""
        spelled = []
        for piece in read_pieces(self.model):
            text = spell(piece.text)
            is_text = piece.kind == PieceKind.ordinary or (piece.kind == PieceKind.byte and text != b" ")
            spelled.append(text if is_text else b"")
        return spelled

    def lowercases(self) -> bool:
        """Return whether the model lowercases text."""
        return str(self._processor.normalize("A")) == f"{SPACE}a"

    def options(self) -> dict[str, Any]:
        """Return the options that describe the model, by their names in the tokenizer section."""
        pieces = read_pieces(self.model)
        is_byte = all(piece.text == SPACE for piece in pieces if piece.kind == PieceKind.ordinary)
        return {
            "algorithm": read_algorithm(self.model) or ("byte" if is_byte else "char"),
            "vocab_size": self.vocab_size,
            "character_coverage": read_coverage(self.model),
            "lowercase": self.lowercases(),
        }

    def encodes_by_words(self) -> bool:
        """Return whether encoding a normalized sentence always equals encoding its words one by one."""
        return (
            is_plain_bpe(self.model)
            and self._processor.normalize("a b") == f"{SPACE}a{SPACE}b"
            and SPACE in self.all_pieces
            and not any(SPACE in piece[1:] or " " in piece for piece in self.all_pieces)
        )

    def has_piece(self, piece: str) -> bool:
        """Return whether the vocabulary has a piece of any type; False for the unknown token."""
        return int(self._processor.piece_to_id(piece)) != UNK_ID

    def user_symbols(self) -> dict[str, int]:
        """Return the ids of the pieces that are always one token, such as corpus tags."""
        return dict(self._user_symbols)

    @cached_property
    def _user_symbols(self) -> dict[str, int]:
        pieces = enumerate(read_pieces(self.model))
        return {piece.text: token for token, piece in pieces if piece.kind == PieceKind.user_symbol}

    def with_symbols(self, symbols: Iterable[str]) -> Tokenizer:
        """Return the tokenizer with the user symbols that it lacks appended to its vocabulary."""
        missing = [symbol for symbol in dict.fromkeys(symbols) if not self.has_piece(symbol)]
        if not missing:
            return self
        added = (Piece(symbol, kind=PieceKind.user_symbol) for symbol in missing)
        model = with_pieces(self.model, [*read_pieces(self.model), *added])
        return Tokenizer(model, self.path, has_spaces=self.has_spaces)

    def tag_id(self, tag: str) -> int:
        """Return the id of a tag; raise UserError, which lists all tags, if it is unknown.

        A language code of an imported model, such as `>>deu<<`, is a piece with a preceding space.
        """
        tag = tag.removeprefix(SPACE)
        ids = {piece.removeprefix(SPACE): token for piece, token in self.user_symbols().items()}
        if tag not in ids:
            expected = f"it must be one of {', '.join(ids)}" if ids else "this model has no tags"
            raise UserError(f"tag {tag!r} is unknown to the tokenizer; {expected}; correct the tag, or leave it out")
        return ids[tag]

    def vocabulary(self) -> tuple[Algorithm, list[Piece]]:
        """Return the algorithm and the pieces of the model; raise UserError if it is neither bpe nor unigram."""
        algorithm = read_algorithm(self.model)
        if algorithm is None:
            raise UserError(
                f"tokenizer {self.path} is neither a bpe nor a unigram model; subword sampling needs one of them; "
                "set train.subword_sampling to 0"
            )
        return algorithm, read_pieces(self.model)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; the same object if they are joint."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one tokenizer."""
        return self.src is self.tgt

    @classmethod
    def load(cls, directory: Path | str, tgt_lang: str = "") -> Tokenizers:
        """Read `tokenizer.model`, or `tokenizer.src.model` and `tokenizer.tgt.model`.

        directory: a model directory or a prepared corpus, or a path for which `is_sentencepiece` is true
        tgt_lang:  target language; determines how `encode_phrase` tokenizes target phrases
        """
        directory = Path(directory)
        has_spaces = tgt_lang not in WITHOUT_SPACES
        read = Tokenizer.from_sentencepiece if is_sentencepiece(directory) else Tokenizer.load
        if (directory / _SRC_FILE).exists() and not (directory / _JOINT_FILE).exists():
            return cls(read(directory / _SRC_FILE), read(directory / _TGT_FILE, has_spaces=has_spaces))
        joint = read(directory if directory.is_file() else directory / _JOINT_FILE, has_spaces=has_spaces)
        return cls(joint, joint)

    def with_symbols(self, symbols: Sequence[str], tags: Sequence[str]) -> Tokenizers:
        """Return the tokenizers with the user symbols that they lack, and on the source side the tags, appended."""
        src = self.src.with_symbols((*symbols, *tags))
        return Tokenizers(src, src if self.joint else self.tgt.with_symbols(symbols))

    def files(self) -> dict[str, bytes]:
        """Return the names and contents of the files that `load` reads."""
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


def is_sentencepiece(path: Path) -> bool:
    """Return whether a path is a file, which must be a model, or a directory of only one model or one per side."""
    names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    return path.is_file() or names in ({_JOINT_FILE}, {_SRC_FILE, _TGT_FILE})


def planned_vocab_size(recipe: TokenizerRecipe, num_symbols: int) -> int:
    """Return the size of the vocabulary to train; an upper bound for `char`. num_symbols: user symbols and tags."""
    return _BYTE_VOCAB_SIZE + num_symbols if recipe.algorithm == "byte" else recipe.vocab_size


def planned_symbols(recipe: Recipe) -> tuple[str, ...]:
    """Return the user symbols of the tokenizer to train, without the tags of corpora."""
    symbols = recipe.tokenizer.user_symbols
    if recipe.data.context:
        symbols = (*symbols, SEPARATOR)
    elif recipe.train.glossary_markup:
        symbols = (*symbols, *TERM_MARKERS)
    return tuple(dict.fromkeys(symbols))


def train_tokenizer(lines: Iterable[str], recipe: TokenizerRecipe, path: Path) -> Tokenizer:
    """Train a subword model on normalized lines and write it to `path`, a `.model` file.

    The same lines and recipe give the same bytes on every machine. Raises UserError if the vocabulary size does not
    fit the text. Source: Sennrich et al. 2016 (bpe), Kudo 2018 (unigram), Kudo and Richardson 2018 (SentencePiece).
    """
    written = io.BytesIO()
    is_byte = recipe.algorithm == "byte"
    # A byte tokenizer is a character model of only one character: the space, the most frequent one.
    sentences: Iterator[str] = iter(["a b c"]) if is_byte else map(valid_unicode, lines)
    try:
        with _normalization(recipe.lowercase) as normalization:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences,
                model_writer=written,
                model_type="char" if is_byte else recipe.algorithm,
                vocab_size=planned_vocab_size(recipe, len(recipe.user_symbols)),
                character_coverage=recipe.character_coverage,
                user_defined_symbols=list(recipe.user_symbols),
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                byte_fallback=True,
                **normalization,
                num_threads=_TRAINING_THREADS,
                max_sentence_length=_MAX_TRAINING_BYTES,
                minloglevel=2,
            )
    except (RuntimeError, ValueError) as error:
        raise UserError(_explain_training_error(message_of(error), recipe)) from error
    path.write_bytes(without_unused_settings(written.getvalue()))
    return Tokenizer.load(path)


def train_tokenizers(
    sample: Callable[[], Iterable[tuple[str, str]]],
    recipe: TokenizerRecipe,
    directory: Path,
    tags: Iterable[str] = (),
    tgt_words: Sequence[str] = (),
) -> Tokenizers:
    """Train one joint tokenizer or one per side on normalized pairs, and write them to `directory`.

    sample:    returns the pairs; called once per tokenizer
    tags:      additional user symbols of the source side
    tgt_words: words of a closed target vocabulary: each is one token with the space before it, and other text is
               encoded as bytes; no effect on a joint tokenizer

    Raises UserError as `train_tokenizer` does.
    """
    with_tags = recipe.model_copy(update={"user_symbols": tuple(dict.fromkeys((*recipe.user_symbols, *tags)))})
    if recipe.joint:
        joint = train_tokenizer((text for pair in sample() for text in pair), with_tags, directory / _JOINT_FILE)
        return Tokenizers(joint, joint)
    tgt_recipe = recipe
    if tgt_words:
        symbols = (*recipe.user_symbols, *(SPACE + word for word in tgt_words))
        tgt_recipe = recipe.model_copy(update={"algorithm": "byte", "lowercase": False, "user_symbols": symbols})
    return Tokenizers(
        src=train_tokenizer((pair[0] for pair in sample()), with_tags, directory / _SRC_FILE),
        tgt=train_tokenizer((pair[1] for pair in sample()), tgt_recipe, directory / _TGT_FILE),
    )


@contextmanager
def _normalization(lowercase: bool) -> Iterator[dict[str, Any]]:
    """Yield the normalization options of SentencePiece's trainer: identity or lowercase.

    Lowercasing maps each character to one character, so lengths stay the same. The dotted capital I, whose lowercase
    form has two characters, becomes i.
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
    """Return an error message with the vocabulary size that the trainer's message suggests."""
    wrong = f"tokenizer.vocab_size is {recipe.vocab_size}"
    if too_high := re.search(r"value <= (\d+)", message):
        return f"{wrong}; this text allows at most {too_high[1]} pieces; set vocab_size to {too_high[1]}, or add text"
    if too_low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        minimum = f"the characters of the text, 256 bytes and the special tokens need {too_low[1]}"
        return f"{wrong}; {minimum}; set vocab_size well above that, or lower tokenizer.character_coverage"
    return f"cannot train the tokenizer ({message}); it needs text and a suitable size; check the tokenizer section"


def _processor(model: bytes, path: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"tokenizer {path} is damaged; expected a SentencePiece model; restore it or train it again"
        ) from error
    if special != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise UserError(
            f"tokenizer {path} has ids {special} for padding, unknown, BOS and EOS; "
            f"they must be {(PAD_ID, UNK_ID, BOS_ID, EOS_ID)}; use a tokenizer that nmt trained"
        )
    return processor
