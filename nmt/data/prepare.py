"""Preparation: from the corpora of a recipe to a tokenizer and a token store.

Two passes over the training text. The first cleans it and writes it, compressed, to disk; then repeated pairs are found
and the tokenizer is trained on an even sample of what an epoch shows; the second pass encodes. Both are shared among
processes, and none needs more memory for a larger corpus, but for one bit a pair. When the tokenizer is taken from a
model, the first pass encodes already, and the second has only to leave out what is repeated or too long. All is
built in a folder of its own that takes its name when it is complete.

Corpora stay apart on their way: they lie in the store one after the other, and the report says how many pairs each has.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, compress, pairwise, repeat
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.checksums import damaged_files, sha256_of
from nmt.data.chunks import (
    ChunkCleaner,
    ChunkEncoder,
    EncodedChunk,
    Frame,
    PairEncoder,
    StoredForm,
    decompress_pairs,
    read_frames,
    unpack,
    write_frame,
)
from nmt.data.corpus import Pair, count_pairs
from nmt.data.corpus_chunks import Look, read_chunks
from nmt.data.duplicates import Bitmap, DuplicateFinder
from nmt.data.epoch_plan import Mixture
from nmt.data.fingerprint import (
    FORMAT,
    REPORT_FILE,
    InputFile,
    known_part,
    outdated_splits,
    read_inputs,
    read_report,
    recipe_part,
    write_stamps,
)
from nmt.data.folder import link_or_copy, replacing
from nmt.data.start_from import taken_tokenizers, tokenizer_digests
from nmt.data.store import PairWriter, Side, Split, token_dtype
from nmt.data.test_sets import TestSet
from nmt.logs import format_duration, progress, say
from nmt.processes.parallel import map_in_order, num_cores
from nmt.recipe import Recipe, UserError
from nmt.special_ids import EOS_ID, UNK_ID
from nmt.text.clean import DROP_REASONS, normalize
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizer, Tokenizers, train_tokenizers

_ALL_DROP_REASONS = (*DROP_REASONS, "duplicate", "too many tokens")
_VALID_SRC_FILE, _VALID_TGT_FILE = "valid.src.txt", "valid.tgt.txt"

# Below this many pairs, starting processes takes longer than they save.
_FEW_PAIRS = 150_000


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus.

    directory:  folder of the token store
    tokenizers: tokenizers of both sides
    report:     what `prepare.json` says: inputs, counts, drops for each reason, tokens
    """

    directory: Path
    tokenizers: Tokenizers
    report: dict[str, Any]

    def valid_set(self) -> TestSet:
        """The development text as it stands in the corpus, pairs too long for the model included."""
        src, tgt = (list(read_lines(self.directory / name)) for name in (_VALID_SRC_FILE, _VALID_TGT_FILE))
        return TestSet("valid", src, [tgt])

    def valid_identity(self) -> str:
        """SHA-256 of the validation text, whichever files it came from."""
        digests = sha256_of([self.directory / name for name in (_VALID_SRC_FILE, _VALID_TGT_FILE)])
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    @property
    def has_checksums(self) -> bool:
        """Whether `verify` can tell; not for a corpus that an earlier version prepared."""
        return "sha256" in self.report

    def verify(self) -> None:
        """Read all files; raises UserError for one that is not, bit for bit, what was prepared."""
        if damaged := damaged_files(self.directory, self.report.get("sha256", {})):
            raise UserError(
                f"{damaged[0]} is damaged: its SHA-256 is not the one in {REPORT_FILE}; each file must be as it was "
                f"prepared; remove {self.directory}, then rerun: the text is prepared again"
            )

    def mixture(self, recipe: Recipe) -> Mixture:
        """How often an epoch of the recipe, which this was prepared with, shows the pairs of each training corpus."""
        return _mixture(recipe, [corpus["pairs"] for corpus in self.report["train"]["corpora"]])


def prepare(recipe: Recipe, look: Look | None = None) -> Prepared:
    """Make the folder `recipe.data_directory`, or leave it as it is when it is up to date.

    Where the training text is read for that, `look` is shown its pairs, as they are in their files. The same recipe and
    the same input give the same bytes. Raises UserError for input that cannot be read or does not fit together, when
    nothing is left to learn from, and when the folder cannot be written.
    """
    directory, started = recipe.data_directory, monotonic()
    outdated = outdated_splits(recipe, directory)
    if "train" in outdated:
        with replacing(directory) as unfinished:
            report = _build(recipe, unfinished, look)
        say(_summary(report, monotonic() - started))
    elif outdated:
        with replacing(directory) as unfinished:
            report = _build_valid(recipe, directory, unfinished)
        say(f"prepared {report['valid']['pairs']:,} other validation pairs; the training text is up to date")
    else:
        say(f"{directory} is up to date")
    return load_prepared(directory)


def load_prepared(directory: Path) -> Prepared:
    """Open a folder that `prepare` made; raises UserError when it is missing or damaged."""
    report = read_report(directory)
    if report is None:
        raise UserError(f"{directory} holds no prepared corpus, or a damaged one; run `nmt prepare` with its recipe")
    return Prepared(directory, Tokenizers.load(directory), report)


def tag_ids(recipe: Recipe, tokenizer: Tokenizer) -> dict[int, int]:
    """The token that stands before each source sentence of a tagged training corpus, by the place of the corpus.

    Raises UserError for a tag that the source tokenizer does not know as one token.
    """
    tags = {place: corpus.tag for place, corpus in enumerate(recipe.data.train) if corpus.tag is not None}
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))} if tags else {}
    for place, tag in tags.items():
        # Neither a special token nor a byte comes from text, though each has a written form like a tag.
        if ids.get(tag, UNK_ID) <= EOS_ID or ids[tag] not in tokenizer.encode(tag):
            wrong = f"data.train.{place}.tag is {tag}, which the tokenizer does not know as one token of text"
            raise UserError(
                f"{wrong}; it must be one of its user symbols; choose another, or train a tokenizer with it"
            )
    return {place: ids[tag] for place, tag in tags.items()}


def _mixture(recipe: Recipe, sizes: Sequence[int]) -> Mixture:
    """How often an epoch shows the pairs of each training corpus, where they have so many."""
    return Mixture.from_weights(sizes, [corpus.weight for corpus in recipe.data.train], recipe.data.temperature)


# --- The two passes -------------------------------------------------------------------------------------------------


@dataclass
class _Cleaned:
    """What the first pass found.

    num_read: pairs of each corpus
    num_kept: those of them that are clean and no repetitions
    drops:    how many of the others there are, by reason
    kept:     which of the clean pairs, in their order, are no repetitions
    """

    num_read: Counter[int]
    num_kept: list[int]
    drops: Counter[str]
    kept: Bitmap


@dataclass
class _SplitTotals:
    """Sums over a split while it is written; `num_pairs_of` counts the pairs of each corpus."""

    num_pairs_of: Counter[int] = field(default_factory=Counter)
    num_tokens: Counter[str] = field(default_factory=Counter)
    num_words: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)

    @property
    def num_pairs(self) -> int:
        return self.num_pairs_of.total()

    def add(self, chunk: EncodedChunk) -> None:
        self.num_pairs_of[chunk.corpus] += len(chunk.src.lengths)
        self.drops.update(chunk.drops)
        for side, encoded in (("src", chunk.src), ("tgt", chunk.tgt)):
            self.num_tokens[side] += len(encoded.tokens)
            self.num_words[side] += int(encoded.words.sum())

    def report(self, side: str) -> dict[str, float]:
        tokens, words = self.num_tokens[side], self.num_words[side]
        return {
            "tokens": tokens,
            "words": words,
            "average_length": round(tokens / max(self.num_pairs, 1), 4),
            "pieces_per_word": round(tokens / max(words, 1), 4),
        }


def _build(recipe: Recipe, directory: Path, look: Look | None) -> dict[str, Any]:
    """Prepare into an empty folder; the report."""
    taken = _take_tokenizers(recipe, directory)
    total = _count_pairs(recipe)
    inputs = read_inputs(recipe)
    workers = recipe.data.workers or (1 if total is not None and total < _FEW_PAIRS else num_cores())
    cleaned = _clean(recipe, directory, total, workers, look, encodes=taken is not None)
    num_read = cleaned.num_read.total()
    _require_pairs(cleaned.kept.num_kept, num_read, cleaned.drops)
    tokenizers = taken or _train_tokenizers(recipe, directory, cleaned)
    train = _encode_train(recipe, directory, cleaned.kept, tokenizers, workers, encoded=taken is not None)
    drops = cleaned.drops + train.drops
    _require_pairs(train.num_pairs, num_read, drops)
    valid = _encode_valid(recipe, directory, tokenizers)
    _frames_file(directory).unlink()
    report: dict[str, Any] = {
        "format": FORMAT,
        "recipe": recipe_part(recipe),
        "inputs": [],
        "train": {
            "pairs_read": num_read,
            "drops": {reason: drops[reason] for reason in _ALL_DROP_REASONS},
            "pairs": train.num_pairs,
            "corpora": [
                {"pairs_read": cleaned.num_read[place], "pairs": train.num_pairs_of[place]}
                for place in range(len(recipe.data.train))
            ],
            "src": train.report("src"),
            "tgt": train.report("tgt"),
        },
        "valid": _valid_report(valid),
        "vocab_size": {"src": tokenizers.src.vocab_size, "tgt": tokenizers.tgt.vocab_size},
        "tokenizers": tokenizer_digests(tokenizers),
    }
    return _complete(report, inputs, directory)


def _build_valid(recipe: Recipe, current: Path, directory: Path) -> dict[str, Any]:
    """Prepare only the validation text into an empty folder, with the training text of `current`; the report."""
    report = load_prepared(current).report
    inputs = read_inputs(recipe)
    for name in report["files"]:
        if not name.startswith("valid."):
            link_or_copy(current / name, directory / name)
    valid = _encode_valid(recipe, directory, Tokenizers.load(directory))
    known = {name: digest for name, digest in report.get("sha256", {}).items() if not name.startswith("valid.")}
    changed = {"recipe": known_part(recipe, report), "valid": _valid_report(valid)}
    return _complete({**report, **changed}, inputs, directory, known)


def _valid_report(valid: _SplitTotals) -> dict[str, Any]:
    return {
        "pairs_read": valid.num_pairs + valid.drops.total(),
        "too_long_for_model": valid.drops["too many tokens"],
        "pairs": valid.num_pairs,
        "src": valid.report("src"),
        "tgt": valid.report("tgt"),
    }


def _complete(
    report: dict[str, Any], inputs: Sequence[InputFile], directory: Path, known: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write the report of a folder that holds everything else; `known` is the SHA-256 of some of its files."""
    paths = sorted(directory.iterdir())
    known = known or {}
    digests = {**known, **sha256_of([path for path in paths if path.name not in known])}
    report |= {
        "inputs": [file.report() for file in inputs],
        "files": {path.name: path.stat().st_size for path in paths},
        "sha256": {path.name: digests[path.name] for path in paths},
    }
    write_stamps(inputs, directory)  # Not among the files of the report: it may be written again.
    (directory / REPORT_FILE).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def _count_pairs(recipe: Recipe) -> int | None:
    """Training pairs of the recipe, where they can be counted; finds sides of different length early."""
    counts = [count_pairs(corpus, recipe.data) for corpus in (*recipe.data.train, *recipe.data.valid)]
    train = [count for count in counts[: len(recipe.data.train)] if count is not None]
    return sum(train) if len(train) == len(recipe.data.train) else None


def _clean(
    recipe: Recipe, directory: Path, total: int | None, workers: int, look: Look | None, *, encodes: bool
) -> _Cleaned:
    """First pass: normalise and filter all training text, perhaps encode it too, and find the repeated pairs."""
    data = recipe.data
    cleaner = partial(ChunkCleaner, data, recipe.src_lang, recipe.tgt_lang, directory if encodes else None)
    num_read: Counter[int] = Counter()
    num_clean = [0] * len(data.train)
    drops: Counter[str] = Counter()
    with (
        _frames_file(directory).open("wb") as frames,
        DuplicateFinder(directory) as duplicates,
        progress("cleaning and encoding" if encodes else "cleaning", total, "pairs") as bar,
    ):
        for chunk in map_in_order(cleaner, read_chunks(data.train, recipe, look), workers):
            write_frame(frames, chunk.frame)
            duplicates.add(chunk.hashes)
            drops.update(chunk.drops)
            num_read[chunk.frame.corpus] += chunk.num_read
            num_clean[chunk.frame.corpus] += chunk.frame.num_pairs
            bar.advance(chunk.num_read)
        kept = duplicates.first_occurrences() if data.drop_duplicates else Bitmap(sum(num_clean))
    drops["duplicate"] = sum(num_clean) - kept.num_kept
    bounds = pairwise(accumulate(num_clean, initial=0))
    return _Cleaned(num_read, [kept.count(start, stop) for start, stop in bounds], drops, kept)


def _take_tokenizers(recipe: Recipe, directory: Path) -> Tokenizers | None:
    """Copy the tokenizers that the recipe takes from a model; None when they are to be trained."""
    tokenizers = taken_tokenizers(recipe)
    if tokenizers is not None:
        say(f"taking the tokenizer of {tokenizers.src.path.parent}")
        tag_ids(recipe, tokenizers.src)  # A tag that it does not know shall be found before the text is cleaned.
        tokenizers.save(directory)
    return tokenizers


def _train_tokenizers(recipe: Recipe, directory: Path, cleaned: _Cleaned) -> Tokenizers:
    wanted = min(recipe.tokenizer.training_pairs, cleaned.kept.num_kept)
    say(f"training the tokenizer on {wanted:,} pairs")
    tags = (corpus.tag for corpus in recipe.data.train if corpus.tag is not None)
    sample = partial(_even_sample, directory, cleaned.kept, _mixture(recipe, cleaned.num_kept), wanted)
    return train_tokenizers(sample, recipe.tokenizer, directory, tuple(tags))


def _even_sample(directory: Path, kept: Bitmap, mixture: Mixture, wanted: int) -> Iterator[Pair]:
    """So many pairs, at even distances in an epoch of the mixture, which shows a pair several times or not at all.

    The epoch is taken as if each pair of a corpus were shown the same fraction of times.
    """
    total, starts = sum(mixture.shares), list(accumulate(mixture.shares, initial=0))
    seen: Counter[int] = Counter()
    for frame, mask in _kept_frames(directory, kept):
        start, share, size = starts[frame.corpus], mixture.shares[frame.corpus], mixture.sizes[frame.corpus]
        for pair in compress(decompress_pairs(frame), mask):
            # The pair fills the epoch from `start + seen * share / size` on, a length of `share / size`.
            first, last = (
                (start * size + place * share) * wanted // (size * total)
                for place in (seen[frame.corpus], seen[frame.corpus] + 1)
            )
            yield from repeat(pair, last - first)
            seen[frame.corpus] += 1


def _encode_train(
    recipe: Recipe, directory: Path, kept: Bitmap, tokenizers: Tokenizers, workers: int, *, encoded: bool
) -> _SplitTotals:
    """Second pass: write the kept pairs as token ids, which they are already if `encoded`."""
    data = recipe.data
    form = StoredForm(1, data.max_tokens, tag_ids(recipe, tokenizers.src), data.reverse_target)
    frames = _kept_frames(directory, kept)
    chunks: Iterator[EncodedChunk]
    if encoded:
        chunks = (form(frame.corpus, *(side.select(mask) for side in unpack(frame))) for frame, mask in frames)
    else:
        chunks = map_in_order(partial(ChunkEncoder, directory, form), frames, workers)
    totals = _SplitTotals()
    with (
        _pair_writer(directory, "train", tokenizers) as writer,
        progress("writing" if encoded else "encoding", kept.num_kept, "pairs") as bar,
    ):
        for chunk in chunks:
            _write(writer, chunk)
            totals.add(chunk)
            bar.advance(len(chunk.src.lengths) + chunk.drops.total())
    return totals


def _encode_valid(recipe: Recipe, directory: Path, tokenizers: Tokenizers) -> _SplitTotals:
    """Write the development text as it is, and as token ids without the pairs that the model could not hold."""
    form = recipe.data.unicode_form
    limit = recipe.model.max_positions - 1  # One place is for the end token.
    encode = PairEncoder(tokenizers)
    stored = StoredForm(0, limit, {}, recipe.data.reverse_target)
    totals = _SplitTotals()
    with (
        (directory / _VALID_SRC_FILE).open("w", encoding="utf-8", newline="\n") as src_file,
        (directory / _VALID_TGT_FILE).open("w", encoding="utf-8", newline="\n") as tgt_file,
        _pair_writer(directory, "valid", tokenizers) as writer,
    ):
        for place, chunk in read_chunks(recipe.data.valid, recipe):
            src_file.writelines(f"{src}\n" for src, _ in chunk)
            tgt_file.writelines(f"{tgt}\n" for _, tgt in chunk)
            encoded = stored(place, *encode([(normalize(src, form), normalize(tgt, form)) for src, tgt in chunk]))
            _write(writer, encoded)
            totals.add(encoded)
    if totals.num_pairs == 0:
        raise UserError("data.valid has no sentence that the model can hold; it must have some; correct data.valid")
    return totals


def _frames_file(directory: Path) -> Path:
    return directory / "cleaned.bin"


def _kept_frames(directory: Path, kept: Bitmap) -> Iterator[tuple[Frame, NDArray[np.bool_]]]:
    """The cleaned pairs frame by frame, and which of them are kept."""
    start = 0
    for frame in read_frames(_frames_file(directory)):
        yield frame, kept[start : start + frame.num_pairs]
        start += frame.num_pairs


def _pair_writer(directory: Path, split: Split, tokenizers: Tokenizers) -> PairWriter:
    sizes: dict[Side, int] = {"src": tokenizers.src.vocab_size, "tgt": tokenizers.tgt.vocab_size}
    return PairWriter(directory, split, {side: token_dtype(size) for side, size in sizes.items()})


def _write(writer: PairWriter, chunk: EncodedChunk) -> None:
    writer.append("src", chunk.src.tokens, chunk.src.lengths)
    writer.append("tgt", chunk.tgt.tokens, chunk.tgt.lengths)


def _require_pairs(num_pairs: int, num_read: int, drops: Counter[str]) -> None:
    if num_pairs:
        return
    if not num_read:
        raise UserError("data.train has no sentences; it must have some to learn from; correct data.train")
    reason, count = drops.most_common(1)[0]
    found = f"all {num_read:,} training pairs were dropped, {count:,} of them as {reason!r}"
    raise UserError(f"{found}; some must be left to learn from; check the languages, the files and section data")


def _summary(report: dict[str, Any], seconds: float) -> str:
    train = report["train"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in train["drops"].items() if count) or "none"
    tokens = " and ".join(f"{train[side]['tokens']:,}" for side in ("src", "tgt"))
    speed = f"{format_duration(seconds)}, {train['pairs_read'] / max(seconds, 1e-9):,.0f} pairs/s"
    return (
        f"prepared {train['pairs']:,} of {train['pairs_read']:,} training pairs ({tokens} tokens; dropped: {dropped}) "
        f"and {report['valid']['pairs']:,} development pairs in {speed}"
    )
