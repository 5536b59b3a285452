"""Labeled examples: read from corpora, encoded, in memory."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nmt.classify.noise import TRANSLATION, with_noise
from nmt.data.corpus import ReadOptions, read_labels, read_pairs
from nmt.errors import UserError
from nmt.logs import counted, say, warn
from nmt.packing.packed import PackedSequences
from nmt.recipe import ClassificationRecipe, Corpus, UnicodeForm, has_label
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.clean import normalize
from nmt.text.segmentation import gather
from nmt.text.tokenizer import Tokenizer

_HELD_OUT = 10  # one in this many examples is for validation
_MAX_SHOWN = 3  # labels in a warning

Texts = tuple[str, ...]
"""The one or two texts of an example."""

LabeledTexts = tuple[Texts, str]
"""An example and its label."""


@dataclass
class TextEncoder:
    """Encodes examples: normalizes each text and truncates it to its first `max_tokens` tokens.

    One text is followed by EOS. Two texts are separated by BOS, which no text contains, and followed by EOS.

    num_truncated: number of texts truncated so far
    """

    tokenizer: Tokenizer
    unicode_form: UnicodeForm
    max_tokens: int
    num_truncated: int = 0

    def __call__(self, examples: Sequence[Texts]) -> list[list[int]]:
        """Return the token ids of each example."""
        encoded = [
            self.tokenizer.encode_batch([normalize(text, self.unicode_form) for text in side])
            for side in zip(*examples, strict=True)
        ]
        self.num_truncated += sum(len(ids) > self.max_tokens for side in encoded for ids in side)
        return [self._join(texts) for texts in zip(*encoded, strict=True)]

    def _join(self, texts: Sequence[list[int]]) -> list[int]:
        first, *others = (ids[: self.max_tokens] for ids in texts)
        tokens = list(first)
        for ids in others:
            tokens += [BOS_ID, *ids]
        return [*tokens, EOS_ID]

    def report_truncated(self) -> None:
        """Print how many texts were truncated, if any."""
        if self.num_truncated:
            say(
                f"truncated {counted(self.num_truncated, 'text')} to the first {self.max_tokens:,} tokens "
                "(data.max_tokens)"
            )


@dataclass(frozen=True)
class Examples:
    """Encoded examples.

    tokens: (total,) int32; ends: (num_examples,) end of each example in `tokens`; labels: (num_examples,) class indices
    """

    tokens: NDArray[np.int32]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]

    @classmethod
    def encode(cls, examples: Sequence[Texts], labels: Sequence[int], encoder: TextEncoder) -> Examples:
        """Encode examples with their class indices."""
        ids = encoder(examples)
        tokens = np.fromiter((token for example in ids for token in example), dtype=np.int32)
        return cls(tokens, np.cumsum([len(example) for example in ids], dtype=np.int64), np.array(labels, np.int64))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, (num_examples,)."""
        return np.diff(self.ends, prepend=0)

    def gather(self, ids: NDArray[np.integer]) -> PackedSequences:
        """Return examples on the CPU, in the order of `ids`."""
        lengths = self.lengths[ids]
        return PackedSequences.from_arrays(gather(self.tokens, self.ends[ids] - lengths, lengths), lengths)

    def digest(self) -> str:
        """Return the SHA-256 of all tokens, lengths and labels."""
        return hashlib.sha256(b"".join(part.tobytes() for part in (self.tokens, self.ends, self.labels))).hexdigest()


def read_labeled(corpora: Iterable[Corpus], recipe: ClassificationRecipe, split: str) -> list[LabeledTexts]:
    """Read the examples of a split, with noise if the recipe has it.

    Raises UserError if there are no examples, and as `read_pairs` does.
    """
    # Texts have no languages; the fields of a dataset from the Hub must be named.
    options = ReadOptions(
        recipe.data.root, "src", "tgt", recipe.data.invalid_utf8, accept_integers=not recipe.data.has_pairs
    )
    examples: list[LabeledTexts] = []
    for index, corpus in enumerate(corpora):
        pairs = list(read_pairs(corpus, options))
        if recipe.data.noise:
            seed = int.from_bytes(hashlib.sha256(f"{recipe.seed} {split} {index}".encode()).digest()[:8], "little")
            examples += with_noise(pairs, recipe.data.noise, seed)
        elif has_label(corpus):
            labels = read_labels(corpus, options)
            assert labels is not None, "the corpus has labels"
            examples += zip(pairs, map(" ".join, labels), strict=True)
        else:
            examples += [((text,), label.removesuffix("\r")) for text, label in pairs]  # CR: of a file with CRLF
    if not examples:
        raise UserError(f"data.{split} has no examples; it must have at least one; correct data.{split}")
    if num_empty := sum(not all(map(str.strip, texts)) for texts, _ in examples):
        warn(f"data.{split} has empty texts in {num_empty:,} of {counted(len(examples), 'example')}; remove them")
    return examples


def held_out(examples: Sequence[LabeledTexts], seed: int) -> tuple[list[LabeledTexts], list[LabeledTexts]]:
    """Divide examples at random into nine tenths for training and one tenth for validation.

    Raises UserError if there is only one example.
    """
    order = np.random.default_rng(seed % (1 << 64)).permutation(len(examples)).tolist()
    size = math.ceil(len(order) / _HELD_OUT)
    train, valid = ([examples[i] for i in sorted(indices)] for indices in (order[size:], order[:size]))
    if not train:
        raise UserError("data.train has one example; it must have more, as one in ten is for validation; add some")
    return train, valid


@dataclass(frozen=True)
class TrainingOverlap:
    """Number of examples of a set, and how many of them also occur in the training text."""

    examples: int
    in_training: int


def training_overlap(
    splits: Mapping[str, Sequence[LabeledTexts]], recipe: ClassificationRecipe
) -> dict[str, TrainingOverlap]:
    """Count the examples of each split except `train` whose normalized texts occur in `train`, and warn of them.

    The comparison is case-sensitive unless the model lowercases, and ignores labels. A pair matches if both texts are
    those of one training example.
    """

    def normalized(split: str) -> Iterator[Texts]:
        for example, _ in splits[split]:
            texts = tuple(normalize(text, recipe.data.unicode_form) for text in example)
            yield tuple(text.lower() for text in texts) if recipe.tokenizer.lowercase else texts

    searched = {split: list(normalized(split)) for split in splits if split != "train"}
    missing = set().union(*searched.values())
    missing.difference_update(normalized("train"))
    counts = {
        split: TrainingOverlap(len(examples), sum(example not in missing for example in examples))
        for split, examples in searched.items()
    }
    for split, count in counts.items():
        if count.in_training:
            is_held_out = split == "valid" and not recipe.data.valid
            name = "the validation set held out from data.train" if is_held_out else f"data.{split}"
            examples = counted(count.examples, "example")
            warn(f"{name} shares {count.in_training:,} of {examples} with the training text")
    return counts


def class_names(recipe: ClassificationRecipe, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes; raises UserError for fewer than two, and for a name with a tab or line break.

    labels: of the training examples
    """
    if recipe.data.noise:
        return (TRANSLATION, *dict.fromkeys(recipe.data.noise))
    names = sorted(recipe.data.labels or set(labels))
    if wrong := [name for name in names if "\t" in name or "\n" in name]:
        raise UserError(
            f"label {wrong[0]!r} has a tab or a line break; `nmt classify` prints it as a column; rename it"
        )
    if recipe.data.labels:
        return recipe.data.labels
    if len(names) < 2:
        raise UserError(
            f"data.train has only the label {names[0]!r}; a classifier needs two or more; correct data.train"
        )
    for first, second in pairwise(sorted(names, key=_fold)):
        if _fold(first) == _fold(second):
            warn(f"labels {first!r} and {second!r} of data.train differ only in case or spaces; they are two classes")
    _warn_of_single(labels)
    return tuple(names)


def _warn_of_single(labels: Sequence[str]) -> None:
    """Warn of labels that occur once, such as a header or a misspelled label."""
    if single := [label for label, count in Counter(labels).items() if count == 1]:
        which = "class" if len(single) == 1 else "each of the classes"
        shown = ", ".join(map(repr, single[:_MAX_SHOWN]))
        more = f" and {len(single) - _MAX_SHOWN:,} more" if len(single) > _MAX_SHOWN else ""
        warn(
            f"data.train has one example of {which} {shown}{more}; if a label is a header or misspelled, correct it; "
            "otherwise, list the classes in data.labels"
        )


def _fold(label: str) -> str:
    """Return a casefolded label without white space."""
    return "".join(label.split()).casefold()


def class_indices(labels: Sequence[str], names: Sequence[str], split: str, *, accept_indices: bool = True) -> list[int]:
    """Return the class index of each label, a name or an index; raises UserError for an unknown or empty label."""
    known = {name: index for index, name in enumerate(names)}
    if accept_indices and not any(name.isdecimal() for name in names):
        known |= {str(index): index for index in range(len(names))}
    for number, label in enumerate(labels, start=1):
        if not label.strip():
            raise UserError(
                f"{split}, example {number:,}, has no label; it must have one; correct or remove the example"
            )
        if label not in known:
            raise UserError(
                f"{split}, example {number:,}, has label {label!r}; it must be one of {', '.join(names)}; correct it"
            )
    return [known[label] for label in labels]
