"""Vocabulary shortlists: restrict decoding to the target tokens proposed for the source tokens.

A shortlist contains the most frequent target tokens, and for each source token its most probable translations according
to a statistical aligner. With a joint vocabulary, it also contains the source token itself, because names are often
copied. Marian's `--shortlist` combines the same three sets, but for a batch as a whole. EOS and the tokens of prefixes,
of required and preferred phrases, and of trees (`decode.trees`) are added for each sentence.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from nmt.alignment.lexical import Pairs, estimate_lexicon
from nmt.alignment.pair_chunks import in_chunks, read_pairs
from nmt.data.store import PairStore, SideStore
from nmt.errors import UserError
from nmt.special_ids import EOS_ID
from nmt.storage.sealed import write_file
from nmt.text.lines import reject_pipe
from nmt.text.tokenizer import Tokenizers

_FORMAT = "nmt-shortlist-1"
_ARRAYS = ("frequent", "offsets", "pieces")

# Tokens per chunk when counting.
_CHUNK_TOKENS = 1 << 22

Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Shortlist:
    """Candidate target tokens for each source token.

    frequent: (count,) int32, candidates of every sentence
    offsets:  (src_vocab + 1,) int32, start of each source token's list in `pieces`
    pieces:   (total,) int32, concatenated lists of target tokens
    """

    tgt_vocab_size: int
    frequent: Ints
    offsets: Ints
    pieces: Ints

    def candidates(self, sentences: Sequence[Sequence[int]], needed: Sequence[Iterable[int]]) -> Tensor:
        """Return the candidates of each sentence, (num_sentences, tgt_vocab_size) bool.

        sentences: source token ids; needed: additional candidates of each sentence
        """
        candidates = np.zeros((len(sentences), self.tgt_vocab_size), dtype=np.bool_)
        candidates[:, self.frequent] = True
        candidates[:, EOS_ID] = True
        for row, sentence, needed_tokens in zip(candidates, sentences, needed, strict=True):
            for token in set(sentence):
                row[self.pieces[self.offsets[token] : self.offsets[token + 1]]] = True
            row[list(needed_tokens)] = True
        return torch.from_numpy(candidates)

    def save(self, path: Path, tokenizers: Tokenizers, languages: tuple[str, str] | None = None) -> None:
        """Write a safetensors file with fingerprints of the tokenizers; raises UserError if it cannot be written.

        languages: source and target
        """
        arrays = {name: np.ascontiguousarray(getattr(self, name), dtype=np.int32) for name in _ARRAYS}
        metadata = {"format": _FORMAT, "sha256": _digest(arrays), "tokenizers": _fingerprint(tokenizers)}
        if languages is not None:
            metadata["languages"] = " to ".join(languages)
        write_file(path, _with_sorted_header(save(arrays, metadata=metadata)))

    @classmethod
    def load(cls, path: Path, tokenizers: Tokenizers, languages: tuple[str, str] | None = None) -> Shortlist:
        """Read and verify a file.

        Raises UserError if it is damaged, not a shortlist, or for other languages or tokenizers. Comparing tokenizers
        is not enough, because several languages may share them. Files of earlier versions do not name their languages.
        """
        try:
            with safe_open(reject_pipe(path), framework="numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT or set(file.keys()) != set(_ARRAYS):
                    raise UserError(
                        f"{path} is not a shortlist of this version; expected {_FORMAT}; run `nmt shortlist` again"
                    )
                arrays = {name: file.get_tensor(name) for name in _ARRAYS}
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} cannot be read as a shortlist ({error}); expected output of `nmt shortlist`; check the path"
            ) from error
        if metadata.get("sha256") != _digest(arrays):
            raise UserError(f"{path} is damaged; its SHA-256 must match its contents; run `nmt shortlist` again")
        expected = metadata.get("languages") if languages is None else " to ".join(languages)
        if metadata.get("languages", expected) != expected:
            raise UserError(
                f"{path} was made from a run that translates from {metadata['languages']}; the model translates from "
                f"{expected}; create it from the model's run"
            )
        if metadata.get("tokenizers") != _fingerprint(tokenizers):
            raise UserError(
                f"{path} belongs to other tokenizers; expected those of the model; create it from the model's run"
            )
        return cls(tokenizers.tgt.vocab_size, **arrays)


def make_shortlist(
    store: PairStore,
    tokenizers: Tokenizers,
    *,
    best: int = 100,
    frequent: int = 100,
    max_pairs: int = 100_000,
    reverse_target: bool = False,
    progress: Callable[[int], None] = lambda pairs: None,
) -> Shortlist:
    """Create a shortlist from prepared pairs.

    best:           most probable target tokens per source token; a joint vocabulary adds the source token itself
    frequent:       target tokens for every sentence
    max_pairs:      pairs to align, spread evenly over the corpus; bounds time and memory
    reverse_target: whether target sentences are stored in reverse
    progress:       called with the number of pairs read; each pair is read `nmt.alignment.lexical.PASSES` times

    Raises UserError if the pairs have no source, like those of a language model.
    """
    if not len(store.src.tokens):
        raise UserError(
            "the training text has no source; a shortlist needs source tokens; use the run of a translation model"
        )
    src_size, tgt_size = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    vocab = max(src_size, tgt_size)
    ids = np.linspace(0, len(store) - 1, min(len(store), max_pairs)).astype(np.int64)
    chunks = in_chunks(store, ids)

    def read() -> Iterator[Pairs]:
        for chunk in chunks:
            yield read_pairs(store, chunk, reverse_target=reverse_target)
            progress(len(chunk))

    keys = estimate_lexicon(read, vocab).best(best)
    if tokenizers.joint:
        keys = np.union1d(keys, np.arange(EOS_ID + 1, src_size) * (vocab + 1))
    offsets = np.searchsorted(keys, np.arange(src_size + 1) * vocab)
    counts = _count(store.tgt, tgt_size)
    by_count = np.argsort(-counts, kind="stable")[: min(frequent, np.count_nonzero(counts))]
    pieces = keys % vocab
    return Shortlist(tgt_size, by_count.astype(np.int32), offsets.astype(np.int32), pieces.astype(np.int32))


def coverage(shortlist: Shortlist, store: PairStore) -> tuple[float, float]:
    """Return the mean number of candidates per sentence, and the fraction of target tokens that are candidates."""
    num_candidates = num_covered = num_tokens = 0
    for chunk in in_chunks(store, np.arange(len(store))):
        for src, tgt in read_pairs(store, chunk):
            is_candidate = shortlist.candidates([src], [()])[0]
            num_candidates += int(is_candidate.sum())
            num_covered += int(is_candidate[tgt].sum())
            num_tokens += len(tgt)
    return num_candidates / max(len(store), 1), num_covered / max(num_tokens, 1)


def _count(side: SideStore, vocab_size: int) -> Ints:
    """Count each token of a side, (vocab_size,)."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(side.tokens), _CHUNK_TOKENS):
        counts += np.bincount(side.tokens[start : start + _CHUNK_TOKENS], minlength=vocab_size)
    return counts


def _with_sorted_header(content: bytes) -> bytes:
    """Sort the header of a safetensors file, whose metadata is in random order: equal lists must be equal files."""
    start = struct.calcsize("<Q")
    end = start + struct.unpack("<Q", content[:start])[0]
    header = json.dumps(json.loads(content[start:end]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)  # aligns the arrays
    return struct.pack("<Q", len(header)) + header + content[end:]


def _fingerprint(tokenizers: Tokenizers) -> str:
    return json.dumps(tokenizers.digests(), sort_keys=True)


def _digest(arrays: Mapping[str, Ints]) -> str:
    """Return the SHA-256 of the arrays with their names, dtypes and shapes."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
