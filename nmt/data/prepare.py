"""Preparation: from the corpora of a recipe to tokenizers and a token store.

The stages are read (`corpus`), clean (`cleaning`), tokenize (`nmt.text.tokenizer`), encode (`encoding`) and store
(`store`). Cleaning and encoding run in parallel worker processes. Memory grows with the corpus by about one byte per
pair, to find duplicates. Cleaned text stays in a temporary file until it is encoded. Everything is built in a new
directory that replaces the old one when complete.

Corpora are consecutive in the store; the report has the number of pairs of each.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, get_args

from nmt.data.cleaning import ChunkCleaner, CleanText, clean_corpora
from nmt.data.corpus import OnRead, ReadOptions, count_pairs, input_files, read_chunks, require_files
from nmt.data.encoding import CorpusEncoder, EncodedChunk, FrameEncoder, PairFormat
from nmt.data.fingerprint import (
    FORMAT,
    InputFile,
    hub_commits,
    outdated_splits,
    preparation_options,
    read_inputs,
    read_report,
    recorded_inputs,
    recorded_options,
    why_outdated,
    write_stamps,
)
from nmt.data.folder import remove_leftovers, replacing
from nmt.data.mixture import Mixture
from nmt.data.reused_tokenizers import reused_tokenizers
from nmt.data.split_store import SplitCounts, write_split
from nmt.data.store import REPORT_FILE, PairStore, Split
from nmt.data.test_sets import TestSet
from nmt.errors import UserError
from nmt.logs import counted, format_duration, progress, say, warn
from nmt.processes.cores import num_cores
from nmt.processes.parallel import map_in_order
from nmt.recipe import Corpus, Recipe, has_tree_vocabulary, named_files
from nmt.special_ids import EOS_ID
from nmt.storage.checksums import require_undamaged, sha256_of, write_checked
from nmt.storage.sealed import link_or_copy
from nmt.text.clean import DROP_REASONS, Pair, warn_of_form, warn_of_unknown_scripts
from nmt.text.context import (
    count_previous,
    find_separators,
    is_blank_pair,
    last_lines,
    last_sentence,
    normalize_joined,
    say_documents,
)
from nmt.text.format_warnings import warn_of_sides, with_format_warnings
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizer, Tokenizers, planned_symbols, train_tokenizers

_ALL_DROP_REASONS = (*DROP_REASONS, "duplicate", "too many tokens")
_OPTIONS_OF_REASONS = {
    "too long": "data.max_tokens",
    "too many tokens": "data.max_tokens",
    "length ratio": "data.max_length_ratio",
    "identical sides": "data.drop_identical",
    "wrong script": "data.drop_wrong_script",
}
_VALID_FILES = ("valid.src.txt", "valid.tgt.txt")
_VALID_PREVIOUS = "valid.previous.txt"  # number of sentences in the context of each line
_VALID_TAGS = "valid.tags.txt"  # tag of each line, "" for none

# For fewer pairs, starting processes costs more time than it saves.
_MIN_PAIRS_FOR_PROCESSES = 150_000


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus.

    directory: the token store
    report:    contents of `prepare.json`: options, inputs, counts, drops per reason, tokens
    """

    directory: Path
    tokenizers: Tokenizers
    report: dict[str, Any]

    def valid_set(self) -> TestSet:
        """Return the unmodified validation set, including pairs too long for the model."""
        src, tgt = (list(read_lines(self.directory / name)) for name in _VALID_FILES)
        path, tags = self.directory / _VALID_PREVIOUS, self.directory / _VALID_TAGS
        previous = [int(count) for count in read_lines(path)] if path.exists() else None
        return TestSet("valid", src, [tgt], None, previous, list(read_lines(tags)) if tags.exists() else None)

    def valid_identity(self) -> str:
        """Return the SHA-256 of the validation set, of the lengths of its context and of its tags."""
        paths = (self.directory / name for name in (*_VALID_FILES, _VALID_PREVIOUS, _VALID_TAGS))
        digests = sha256_of([path for path in paths if path.exists()])
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    @property
    def has_checksums(self) -> bool:
        """Whether `verify` has checksums to compare; False if an early version prepared the corpus."""
        return "sha256" in self.report

    def verify(self) -> None:
        """Compare all files with their checksums; raise UserError if one is damaged."""
        require_undamaged(self.directory, self.report.get("sha256", {}), REPORT_FILE)

    def mixture(self, recipe: Recipe) -> Mixture:
        """Return the mixture of the training corpora; `recipe` must be the recipe of this corpus."""
        sizes = [corpus["pairs"] for corpus in self.report["train"]["corpora"]]
        num_stored = len(PairStore(self.directory, "train"))
        if sum(sizes) != num_stored:
            raise UserError(
                f"{self.directory / REPORT_FILE} is damaged: it has {sum(sizes):,} training pairs and the token store "
                f"{num_stored:,}; remove {self.directory}, then rerun to prepare the text again"
            )
        return _mixture(recipe, sizes)


def prepare(recipe: Recipe, on_read: OnRead | None = None) -> Prepared:
    """Bring the directory `recipe.data_directory` up to date.

    The same recipe and input give the same bytes, except for the times and paths in `stamps.json`.

    on_read: receives the unmodified training pairs if the training text is read

    Raises UserError for unreadable or inconsistent input, if no training pair is left, and if the directory cannot be
    written.
    """
    started = monotonic()
    directory = recipe.data_directory
    _warn_of_unused_documents(recipe)
    _warn_of_missing_tags(recipe)
    outdated = outdated_splits(recipe, directory)
    if "train" in outdated:
        if reason := why_outdated(recipe, directory):
            say(f"preparing the text again: {reason}")
        if recipe.data.drop_wrong_script:
            warn_of_unknown_scripts(_languages(recipe))
        with replacing(directory) as new:
            report = _prepare_all(recipe, new, on_read)
        say(_summary(report, monotonic() - started))
        if len(recipe.data.train) > 1:
            counts = [f"{corpus['pairs']:,} of {corpus['pairs_read']:,}" for corpus in report["train"]["corpora"]]
            say(f"pairs kept of each corpus in data.train: {', '.join(counts)}")
    elif outdated:
        with replacing(directory) as new:
            report = _prepare_valid(recipe, directory, new)
            for name in ("alignment", "markup"):  # of the training text
                if (directory / name).is_dir():
                    shutil.copytree(directory / name, new / name, copy_function=link_or_copy)
        say(f"prepared {report['valid']['pairs']:,} new validation pairs; the training text is up to date")
    else:
        remove_leftovers(directory)
        say(f"{directory} is up to date")
    return load_prepared(directory)


def load_prepared(directory: Path | str) -> Prepared:
    """Open a directory that `prepare` made; raise UserError if it is missing or incomplete."""
    directory = Path(directory)
    report = read_report(directory)
    if report is None:
        raise UserError(
            f"{directory} has no complete corpus of a translation model; correct the path, or run `nmt prepare` with "
            "its recipe"
        )
    try:
        tokenizers = Tokenizers.load(directory, report["recipe"]["tgt_lang"])
    except UserError:
        digests = {name: sha256 for name, sha256 in report.get("sha256", {}).items() if name.startswith("tokenizer")}
        require_undamaged(directory, digests, REPORT_FILE)  # its error says how to create the corpus again
        raise
    return Prepared(directory, tokenizers, report)


def tag_ids(corpora: Sequence[Corpus], tokenizer: Tokenizer, split: Split = "train") -> dict[int, int]:
    """Return the token id of the tag of each tagged corpus of a split, by corpus index.

    Raises UserError for a tag that is not a single token of the source tokenizer.
    """
    tags = {index: corpus.tag for index, corpus in enumerate(corpora) if corpus.tag is not None}
    if not tags:
        return {}
    ids = {piece: i for i, piece in enumerate(tokenizer.all_pieces)}
    for index, tag in tags.items():
        # Special tokens and bytes are written like tags, but `encode` never returns them for their written form.
        if tag not in ids or ids[tag] <= EOS_ID or ids[tag] not in tokenizer.encode(tag):
            known = ", ".join(tokenizer.user_symbols()) or "none"
            raise UserError(
                f"data.{split}.{index}.tag is {tag}, which is not a single token of the tokenizer; it must be one of "
                f"its user symbols ({known}); choose another, or train another tokenizer"
            )
    return {index: ids[tag] for index, tag in tags.items()}


def _mixture(recipe: Recipe, sizes: Sequence[int]) -> Mixture:
    return Mixture.from_weights(sizes, [corpus.weight for corpus in recipe.data.train], recipe.data.temperature)


# --- Stages ---------------------------------------------------------------------------------------------------------


def _prepare_all(recipe: Recipe, directory: Path, on_read: OnRead | None) -> dict[str, Any]:
    """Prepare both splits in an empty directory and return the report."""
    data = recipe.data
    tokenizers = reused_tokenizers(recipe)
    if tokenizers is not None:
        say(f"reusing the tokenizer {tokenizers.src.path}, {tokenizers.src.vocab_size:,} tokens")
        _pair_format(recipe, tokenizers)  # fails early for an unknown tag and without a separator
        _valid_format(recipe, tokenizers)
        tokenizers.save(directory)
    num_pairs = _count_training_pairs(recipe)
    _require_valid(recipe)
    inputs = read_inputs(recipe)
    commits = {split: hub_commits(recipe, split) for split in get_args(Split)}
    workers = data.workers or (1 if num_pairs is not None and num_pairs < _MIN_PAIRS_FOR_PROCESSES else num_cores())
    text = _clean(recipe, directory, on_read, workers=workers, total=num_pairs)
    tokenizers = tokenizers or _train_tokenizers(recipe, text, directory)
    make_encoder = partial(FrameEncoder, directory, _pair_format(recipe, tokenizers))
    encoded = map_in_order(make_encoder, text.frames(), workers)
    with progress("encoding", sum(text.num_kept), "pairs") as bar:
        train = write_split(directory, "train", tokenizers, encoded, bar.advance)
    drops = text.drops + train.drops
    _require_pairs(train.pairs.total(), text, drops)
    _warn_of_empty_corpora(recipe, text.num_read, train.pairs)
    train.warn_of_uncovered("data.train")
    valid = _encode_valid(recipe, directory, tokenizers)
    text.path.unlink()

    report: dict[str, Any] = {
        "format": FORMAT,
        "recipe": preparation_options(recipe),
        "train": {
            "pairs_read": sum(text.num_read),
            "drops": {reason: drops[reason] for reason in _ALL_DROP_REASONS},
            "pairs": train.pairs.total(),
            "corpora": [{"pairs_read": read, "pairs": train.pairs[i]} for i, read in enumerate(text.num_read)],
            "input_files": sum(len(input_files(corpus, data.root)) for corpus in data.train),
            **train.sides(),
        },
        "valid": valid.valid_report(),
        "vocab_size": {"src": tokenizers.src.vocab_size, "tgt": tokenizers.tgt.vocab_size},
        "tokenizers": tokenizers.digests(),
    }
    if any(commits.values()):
        report["commits"] = commits
    return _write_report(report, inputs, directory)


def _clean(recipe: Recipe, directory: Path, on_read: OnRead | None, *, workers: int, total: int | None) -> CleanText:
    """Read and clean the training text."""
    data, context = recipe.data, recipe.data.context_options
    on_read = with_format_warnings("data.train", on_read)
    chunks = read_chunks(data.train, ReadOptions.from_recipe(recipe), on_read, context)
    text = clean_corpora(
        say_documents(chunks, context, "data.train"),
        partial(ChunkCleaner, data, [corpus.languages(recipe) for corpus in data.train]),
        directory,
        num_corpora=len(data.train),
        drop_duplicates=data.drop_duplicates,
        workers=workers,
        total=total,
    )
    _require_pairs(sum(text.num_kept), text, text.drops)
    return text


def _pair_format(recipe: Recipe, tokenizers: Tokenizers) -> PairFormat:
    """Return the length limits and stored form of training pairs."""
    data = recipe.data
    return PairFormat(
        min_tokens=(0 if recipe.is_language_model else 1, 1),
        max_tokens=data.max_tokens,
        tags=tag_ids(data.train, tokenizers.src),
        reverse_target=data.reverse_target,
        separators=find_separators(tokenizers, data.context_options),
        truncates_src=data.long_sources == "truncate",
    )


def _valid_format(recipe: Recipe, tokenizers: Tokenizers) -> PairFormat:
    """Return the stored form of validation pairs, which are dropped only if they do not fit the model."""
    return replace(
        _pair_format(recipe, tokenizers),
        min_tokens=(0, 0),
        tags=tag_ids(recipe.data.valid, tokenizers.src, "valid"),
        limit=recipe.model.max_positions - 1,  # one position is for EOS
    )


def _prepare_valid(recipe: Recipe, current: Path, directory: Path) -> dict[str, Any]:
    """Prepare only the validation set in an empty directory; reuse the other files of `current`."""
    report = load_prepared(current).report
    _require_valid(recipe)
    inputs = read_inputs(recipe, recorded_inputs(recipe, current, report))
    commits = hub_commits(recipe, "valid")
    for name in report["files"]:
        if not name.startswith("valid."):
            link_or_copy(current / name, directory / name)
    valid = _encode_valid(recipe, directory, Tokenizers.load(directory))
    known = {name: digest for name, digest in report.get("sha256", {}).items() if not name.startswith("valid.")}
    changed = {"recipe": recorded_options(recipe, report), "valid": valid.valid_report()}
    if commits or "commits" in report:
        changed["commits"] = {**report.get("commits", {"train": {}}), "valid": commits}
    return _write_report({**report, **changed}, inputs, directory, known)


def _warn_of_unused_documents(recipe: Recipe) -> None:
    if recipe.data.context:
        return
    for name, corpus in recipe.data.corpora("train", "valid", "test").items():
        for option in ("document_column", "document_field"):
            if getattr(corpus, option, None) is not None:
                warn(f"{name}.{option} has no effect if data.context is 0; remove {option}, or raise data.context")


def _warn_of_missing_tags(recipe: Recipe) -> None:
    """Warn of validation and test sets without a tag if all training corpora have one."""
    if any(corpus.tag is None for corpus in recipe.data.train):
        return
    splits: tuple[Split | Literal["test"], ...] = ("valid", "test") if recipe.decode.tag is None else ("valid",)
    if missing := [name for name, corpus in recipe.data.corpora(*splits).items() if corpus.tag is None]:
        problem = "has none; set one" if len(missing) == 1 else "have none; set one for each"
        warn(f"all corpora of data.train have a tag, but {', '.join(missing)} {problem}")


def _languages(recipe: Recipe) -> dict[str, str]:
    """Return the languages of the training corpora, by option."""
    languages = {"src_lang": recipe.src_lang, "tgt_lang": recipe.tgt_lang}
    for name, corpus in recipe.data.corpora("train").items():
        own = {"src_lang": corpus.src_lang, "tgt_lang": corpus.tgt_lang}
        languages |= {f"{name}.{option}": language for option, language in own.items() if language is not None}
    return languages


def _count_training_pairs(recipe: Recipe) -> int | None:
    """Return the number of training pairs if it is known without reading; detect sides of different lengths early."""
    require_files(recipe.data.train, recipe.data.root)
    counts = [count_pairs(corpus, recipe.data.root) for corpus in recipe.data.train]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _require_valid(recipe: Recipe) -> None:
    """Raise UserError for validation corpora that are empty or cannot be read, before preparing the training text."""
    data = recipe.data
    chunks = read_chunks(data.valid, ReadOptions.from_recipe(recipe), context=data.context_options)
    nonempty = {index for index, _ in chunks}
    for index in range(len(data.valid)):
        if index not in nonempty:
            raise UserError(f"data.valid.{index} has no sentences; it must have at least one; correct or remove it")


def _train_tokenizers(recipe: Recipe, text: CleanText, directory: Path) -> Tokenizers:
    num_pairs = min(recipe.tokenizer.training_pairs, sum(text.num_kept))
    if text.drops.total():
        say(f"kept {sum(text.num_kept):,} of {sum(text.num_read):,} pairs (dropped: {_drops(text.drops)})")
    say(f"training the tokenizer on {num_pairs:,} pairs")
    mixture = _mixture(recipe, text.num_kept)

    def sample() -> Iterator[Pair]:
        for src, tgt in text.sample(num_pairs, mixture):
            yield last_sentence(src), last_sentence(tgt)

    options = recipe.tokenizer.model_copy(update={"user_symbols": planned_symbols(recipe)})
    tree_tokens: set[str] = set()
    if has_tree_vocabulary(recipe):
        for frame, mask in text.frames():  # the sample may skip pairs with rare brackets
            tree_tokens.update(token for _, tree in frame.select(mask) for token in last_sentence(tree).split())
    return train_tokenizers(sample, options, directory, recipe.data.tags, sorted(tree_tokens))


def _encode_valid(recipe: Recipe, directory: Path, tokenizers: Tokenizers) -> SplitCounts:
    """Write the unmodified validation set, and store the encoded pairs that fit the model."""
    counts = write_split(directory, "valid", tokenizers, _valid_chunks(recipe, directory, tokenizers))
    if not counts.pairs.total():
        raise UserError(
            "data.valid has no sentence that fits the model; it must have at least one; correct data.valid, or raise "
            "model.max_positions"
        )
    if dropped := counts.drops.total():
        omitted = f"{counted(dropped, 'pair')} with more than {recipe.model.max_positions - 1:,} tokens"
        warn(f"the validation loss omits {omitted}; raise model.max_positions to include them")
    src, tgt = (list(read_lines(directory / name)) for name in _VALID_FILES)
    remark = "they make the loss and BLEU wrong; correct them"
    warn_of_sides("data.valid", None if recipe.is_language_model else src, tgt, remark)
    if recipe.train.validate_bleu_every:
        warn_of_form("the target of data.valid", tgt, recipe.data.unicode_form)
    return counts


def _valid_chunks(recipe: Recipe, directory: Path, tokenizers: Tokenizers) -> Iterator[EncodedChunk]:
    data, form, context = recipe.data, recipe.data.unicode_form, recipe.data.context_options
    pair_format = _valid_format(recipe, tokenizers)
    encode = CorpusEncoder(tokenizers, pair_format.separators)
    src_path, tgt_path = (directory / name for name in _VALID_FILES)
    previous: list[int] = []
    tags: list[str] = []
    with (
        src_path.open("w", encoding="utf-8", newline="\n") as src_file,
        tgt_path.open("w", encoding="utf-8", newline="\n") as tgt_file,
    ):
        chunks = read_chunks(data.valid, ReadOptions.from_recipe(recipe), context=context)
        for corpus, pairs in say_documents(chunks, context, "data.valid"):
            current = list(map(last_lines, pairs))
            tags += [data.valid[corpus].tag or ""] * len(pairs)
            src_file.writelines(f"{src}\n" for src, _ in current)
            tgt_file.writelines(f"{tgt}\n" for _, tgt in current)
            if context.size:
                previous += map(count_previous, pairs)
                pairs = [pair for pair in pairs if not is_blank_pair(pair)]
            normalized = [normalize_joined(pair, form, context) for pair in pairs]
            yield pair_format.apply(corpus, *encode(normalized))
    if context.size:
        (directory / _VALID_PREVIOUS).write_text("".join(f"{count}\n" for count in previous))
    if any(tags):
        (directory / _VALID_TAGS).write_text("".join(f"{tag}\n" for tag in tags), encoding="utf-8")


# --- Report ---------------------------------------------------------------------------------------------------------


def _write_report(
    report: dict[str, Any], inputs: Sequence[InputFile], directory: Path, known: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Complete and write the report; the directory has all other files, and `known` the SHA-256 of some of them."""
    paths = sorted(directory.iterdir())
    known = known or {}
    digests = {**known, **sha256_of([path for path in paths if path.name not in known])}
    report |= {
        "inputs": [file.report() for file in inputs],
        "files": {path.name: path.stat().st_size for path in paths},
        "sha256": {path.name: digests[path.name] for path in paths},
    }
    write_stamps(inputs, directory)  # not in the report: they may be rewritten later
    write_checked(directory / REPORT_FILE, report)
    return report


def _require_pairs(num_pairs: int, text: CleanText, drops: Counter[str]) -> None:
    if num_pairs:
        return
    num_read = sum(text.num_read)
    if not num_read:
        raise UserError("data.train has no sentences; it must have at least one; correct data.train")
    reason, count = drops.most_common(1)[0]
    options = f"{_OPTIONS_OF_REASONS[reason]}, " if reason in _OPTIONS_OF_REASONS else ""
    raise UserError(
        f"all {num_read:,} training pairs were dropped, {count:,} of them as {reason!r}; at least one must remain; "
        f"check {options}the languages, files and columns"
    )


def _warn_of_empty_corpora(recipe: Recipe, num_read: Sequence[int], num_kept: Counter[int]) -> None:
    for index, (corpus, count) in enumerate(zip(recipe.data.train, num_read, strict=True)):
        if not num_kept[index]:
            files = ", ".join(path.name for path in named_files(corpus))
            wrong = f"every pair was dropped ({count:,} in total)" if count else "it is empty"
            tag = f"; its tag {corpus.tag} is not trained" if corpus.tag is not None else ""
            warn(
                f"data.train.{index} ({files or corpus.kind}) has no pair in the training text: {wrong}{tag}; "
                "correct or remove this corpus"
            )


def _drops(drops: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in drops.items() if count)


def _summary(report: dict[str, Any], seconds: float) -> str:
    train = report["train"]
    dropped = _drops(train["drops"]) or "none"
    tokens = " and ".join(f"{train[side]['tokens']:,}" for side in ("src", "tgt"))
    speed = f"{format_duration(seconds)}, {train['pairs_read'] / max(seconds, 1e-9):,.0f} pairs/s"
    return (
        f"prepared {train['pairs']:,} of {train['pairs_read']:,} training pairs ({tokens} tokens; dropped: {dropped}) "
        f"and {report['valid']['pairs']:,} validation pairs in {speed}"
    )
