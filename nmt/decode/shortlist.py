"""The vocabulary shortlist: for each sentence the few target pieces that it may be translated with.

These are the most frequent pieces of the target side, and for each piece of the source those that most probably
translate it, as a statistical aligner finds in the training text; besides the piece itself where both sides have one
vocabulary, since names are copied. Marian's `--shortlist` makes the same choice. Whatever a sentence needs is added
when it is translated: the end token, and the tokens of prefixes, required phrases and preferred ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from nmt.alignment.lexical import Pairs, estimate_lexicon
from nmt.data.store import PairStore, SideStore
from nmt.recipe import UserError
from nmt.special_ids import EOS_ID
from nmt.storage.sealed import write_file
from nmt.text.tokenizer import Tokenizers

_FORMAT = "nmt-shortlist-1"
_ARRAYS = ("frequent", "offsets", "pieces")

# The aligner looks at so many (source token, target token) places at a time, and tokens are counted so many at a time.
_CELLS_AT_A_TIME = 4_000_000
_TOKENS_AT_A_TIME = 1 << 22

Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Shortlist:
    """Which target pieces may translate each source piece.

    tgt_vocab_size: number of target pieces
    frequent:       (count,) int32, pieces that may stand in any translation
    offsets:        (source pieces + 1,) int32, where the list of each source piece begins; the last entry is total
    pieces:         (total,) int32, the lists end to end
    """

    tgt_vocab_size: int
    frequent: Ints
    offsets: Ints
    pieces: Ints

    def candidates(self, sentences: Sequence[Sequence[int]], needed: Sequence[Iterable[int]]) -> Tensor:
        """The pieces that each sentence may be translated with, (num_sentences, tgt_vocab_size) bool.

        sentences: the source tokens of each; needed: what each may be translated with besides
        """
        found = np.zeros((len(sentences), self.tgt_vocab_size), dtype=np.bool_)
        found[:, self.frequent] = True
        found[:, EOS_ID] = True
        for row, sentence, more in zip(found, sentences, needed, strict=True):
            for piece in set(sentence):
                row[self.pieces[self.offsets[piece] : self.offsets[piece + 1]]] = True
            row[list(more)] = True
        return torch.from_numpy(found)

    def save(self, path: Path, tokenizers: Tokenizers) -> None:
        """Write a safetensors file that knows the tokenizers it is for; UserError where it cannot be written."""
        arrays = {name: np.ascontiguousarray(getattr(self, name), dtype=np.int32) for name in _ARRAYS}
        about = {"format": _FORMAT, "sha256": _digest(arrays), "tokenizers": _fingerprint(tokenizers)}
        write_file(path, save(arrays, metadata=about))

    @classmethod
    def load(cls, path: Path, tokenizers: Tokenizers) -> Shortlist:
        """Read and verify a file; UserError where it is none, is damaged, or was made for other tokenizers."""
        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} cannot be read as a shortlist ({error}); it must be a file that `nmt shortlist` wrote; "
                "correct the name or make it anew"
            ) from error
        if about.get("format") != _FORMAT or set(arrays) != set(_ARRAYS):
            raise UserError(f"{path} holds no shortlist of this version; `nmt shortlist` writes one; make it anew")
        if about.get("sha256") != _digest(arrays):
            raise UserError(
                f"{path} is damaged (its SHA-256 is not the one in it); it must be the file that was written; copy it "
                "again or make it anew"
            )
        if about.get("tokenizers") != _fingerprint(tokenizers):
            raise UserError(
                f"{path} is the shortlist of other tokenizers than the model's; it must be made from the run that the "
                "model is of; make one by `nmt shortlist`, or leave it out (decode.shortlist)"
            )
        return cls(tokenizers.tgt.vocab_size, **arrays)


def make_shortlist(
    store: PairStore,
    tokenizers: Tokenizers,
    *,
    best: int = 100,
    frequent: int = 100,
    most_pairs: int = 100_000,
    reverse_target: bool = False,
    done: Callable[[int], None] = lambda pairs: None,
) -> Shortlist:
    """The shortlist that prepared pairs suggest.

    best:           target pieces for each source piece, its own not counted
    frequent:       target pieces for every sentence
    most_pairs:     so many pairs, spread evenly over the corpus, are aligned, which bounds time and memory
    reverse_target: whether target sentences are stored in reverse
    done:           is told how many pairs have been read, `PASSES` times each
    """
    src_size, tgt_size = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    vocab = max(src_size, tgt_size)
    ids = np.linspace(0, len(store) - 1, min(len(store), most_pairs)).astype(np.int64)
    chunks = _in_chunks(store, ids)

    def read() -> Iterator[Pairs]:
        for chunk in chunks:
            yield _read_pairs(store, chunk, -1 if reverse_target else 1)
            done(len(chunk))

    keys = estimate_lexicon(read, vocab).best(best)
    if tokenizers.joint:
        keys = np.union1d(keys, np.arange(EOS_ID + 1, src_size) * (vocab + 1))
    offsets = np.searchsorted(keys, np.arange(src_size + 1) * vocab)
    counts = _count(store.tgt, tgt_size)
    by_count = np.argsort(-counts, kind="stable")[: min(frequent, np.count_nonzero(counts))]
    return Shortlist(tgt_size, *(array.astype(np.int32) for array in (by_count, offsets, keys % vocab)))


def coverage(shortlist: Shortlist, store: PairStore) -> tuple[float, float]:
    """The mean number of candidates of a sentence, and the share of target tokens that are among those of theirs."""
    sizes, covered, total = 0, 0, 0
    for chunk in _in_chunks(store, np.arange(len(store))):
        for src, tgt in _read_pairs(store, chunk):
            own = shortlist.candidates([src], [()])[0]
            sizes, total = sizes + int(own.sum()), total + len(tgt)
            covered += int(own[list(tgt)].sum())
    return sizes / max(len(store), 1), covered / max(total, 1)


def _in_chunks(store: PairStore, ids: Ints) -> list[Ints]:
    """The pairs in chunks that the aligner can hold in memory."""
    cells = (store.src.lengths[ids].astype(np.int64) + 1) * store.tgt.lengths[ids]
    numbers = np.cumsum(cells) // _CELLS_AT_A_TIME
    return np.split(ids, np.flatnonzero(np.diff(numbers)) + 1)


def _read_pairs(store: PairStore, ids: Ints, tgt_step: int = 1) -> Pairs:
    """Source and target tokens of some pairs; those of the target in steps of `tgt_step`."""
    src, tgt = (_read_side(side, ids) for side in (store.src, store.tgt))
    return [(source, target[::tgt_step]) for source, target in zip(src, tgt, strict=True)]


def _read_side(side: SideStore, ids: Ints) -> list[list[int]]:
    tokens, lengths = side.gather(ids)
    flat = tokens.tolist()
    return [flat[start:end] for start, end in pairwise([0, *np.cumsum(lengths).tolist()])]


def _count(side: SideStore, vocab_size: int) -> Ints:
    """How often each piece stands in a side, (vocab_size,)."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(side.tokens), _TOKENS_AT_A_TIME):
        counts += np.bincount(side.tokens[start : start + _TOKENS_AT_A_TIME], minlength=vocab_size)
    return counts


def _fingerprint(tokenizers: Tokenizers) -> str:
    return json.dumps(tokenizers.digests(), sort_keys=True)


def _digest(arrays: Mapping[str, Ints]) -> str:
    """The SHA-256 of the arrays with their names, types and sizes."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
