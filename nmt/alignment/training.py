"""Word alignments of the training text, for guided alignment and markup of terms.

They are computed after the text is prepared, and stored with it in `alignment`. They link tokens of the token store.
Corpora with an alignment file use its word links: all tokens of linked words are linked. The statistical aligner aligns
the other corpora. It is trained on all of these together.

The pairs of a corpus with an alignment file are matched to the stored pairs by comparing tokens. This is exact, because
preparation drops pairs, but keeps their order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from nmt.alignment.lexical import PASSES, LexicalAligner, Pairs
from nmt.alignment.pair_chunks import Ids, in_chunks
from nmt.alignment.stored_pairs import PairReader, StoredCorpus, TokenLink, stored_corpora
from nmt.alignment.words import Links, parse_links, words_as_given, words_of_starts
from nmt.data.corpus import ReadOptions, alignment_file, count_pairs, read_pairs
from nmt.data.loader import pack_links
from nmt.data.prepare import Prepared
from nmt.data.store import PairStore, PairWriter, SideStore
from nmt.errors import UserError
from nmt.logs import counted, progress, say, warn
from nmt.processes.cores import num_cores
from nmt.processes.parallel import map_in_order
from nmt.recipe import Corpus, JsonLinesCorpus, Recipe
from nmt.storage.checksums import require_undamaged, sha256_of, write_report
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import new_directory, reporting_disk_errors
from nmt.text.clean import Cleaner
from nmt.text.lines import count_lines, read_lines

LINKS_FOLDER, _REPORT_FILE = "alignment", "alignment.json"

# Warn if less than this fraction of the target tokens is linked.
_MIN_LINKED = 0.1

# Increment when the same text gives different links.
_FORMAT = 1

# Maximum number of pairs to train the statistical aligner, spread evenly over the text; bounds time and memory.
_MAX_PAIRS = 200_000

# For fewer pairs, starting processes costs more time than it saves.
_MIN_PAIRS_FOR_PROCESSES = 150_000


def prepare_links(prepared: Prepared, recipe: Recipe) -> None:
    """Update the links of the training text; `recipe` must be the recipe of the prepared corpus.

    Identical text and files yield identical bytes. Raises UserError for an unreadable or invalid alignment file.
    """
    folder = prepared.directory / LINKS_FOLDER
    current = read_json_object(folder / _REPORT_FILE).get("made_from", {})
    known = dict(enumerate(current.get("alignments", ())))
    files = [_digest(corpus, recipe.data.root, known.get(i)) for i, corpus in enumerate(recipe.data.train)]
    made_from = {**identify_text(prepared), "alignments": files}
    if current == made_from:
        return
    corpora = stored_corpora(prepared, recipe)
    num_links = num_targets = 0
    with reporting_disk_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with new_directory(folder) as new:
            with PairWriter(new, "train", {"links": np.dtype(np.uint32)}) as writer:
                for links in _Builder(prepared, recipe, corpora, new).links():
                    pairs = [np.array(sorted(pair_links), dtype=np.int64).reshape(-1, 2) for pair_links in links]
                    writer.append("links", pack_links(np.concatenate(pairs)), np.array(list(map(len, pairs))))
                    num_links += sum(map(len, links))
                    num_targets += sum(len({target for _, target in pair_links}) for pair_links in links)
            write_report(new, _REPORT_FILE, {"made_from": made_from, "links": num_links})
    fraction = num_targets / max(len(PairStore(prepared.directory, "train").tgt.tokens), 1)
    found = f"word alignments: {num_links:,} links, for {fraction:.1%} of the target tokens"
    if fraction < _MIN_LINKED:
        warn(f"{found}, which are too few to learn from; check the text and the alignment files")
    else:
        say(found)


def changed_alignment(recipe: Recipe) -> str:
    """Return the option of the first corpus whose alignment file differs from that of the stored links, or ""."""
    uses_links = recipe.train.guided_alignment or recipe.train.glossary_markup
    report = read_json_object(recipe.data_directory / LINKS_FOLDER / _REPORT_FILE) if uses_links else {}
    for i, known in enumerate(report.get("made_from", {}).get("alignments", ())):
        if _digest(recipe.data.train[i], recipe.data.root, known, warns=False) != known:
            return f"data.train.{i}.alignment"
    return ""


def require_alignment_files(recipe: Recipe) -> None:
    """Raise UserError, before the text is prepared, if no links exist and an alignment file is missing or does not fit.

    It must have a line for each pair. This is checked only if counting the pairs is fast.
    """
    if (recipe.data_directory / LINKS_FOLDER).exists():  # stored links are used even if their files were deleted
        return
    for index, corpus in enumerate(recipe.data.train):
        try:
            path = alignment_file(corpus, recipe.data.root)
        except UserError as error:
            raise UserError(f"data.train.{index}.alignment: {error}") from error
        if path is None or isinstance(corpus, JsonLinesCorpus):  # JSON Lines may have blank lines
            continue
        num_pairs = count_pairs(corpus, recipe.data.root)
        if num_pairs is None:
            continue
        num_lines = count_lines(path)
        if num_lines != num_pairs:
            raise UserError(
                f"data.train.{index}.alignment: {path} has {counted(num_lines, 'line')}, and the corpus {num_pairs:,} "
                "pairs; the file must have a line for each pair; correct the file"
            )


def _digest(corpus: Corpus, root: Path, known: str | None, *, warns: bool = True) -> str | None:
    """Return the SHA-256 of a corpus's alignment file, `known` if the file was deleted; None if the corpus has none."""
    try:
        path = alignment_file(corpus, root)
    except UserError:
        if known is None:
            raise
        if warns:
            warn(
                f"{corpus.alignment} no longer exists; the word alignments made from it are used as long as the "
                "text is unchanged"
            )
        return known
    return None if path is None else sha256_of([path])[path.name]


def open_links(prepared: Prepared) -> tuple[SideStore, str]:
    """Open the links of a prepared corpus, see `nmt.data.loader.pack_links`; return them and their fingerprint.

    Raises UserError if they are missing or damaged, or belong to another text.
    """
    folder = prepared.directory / LINKS_FOLDER
    report = read_json_object(folder / _REPORT_FILE)
    made_from = report.get("made_from", {})
    if made_from != {**identify_text(prepared), "alignments": made_from.get("alignments")}:
        raise UserError(f"{folder} has no word alignments for this text; training needs them; run `nmt prepare`")
    require_undamaged(folder, report["sha256"], _REPORT_FILE)
    return SideStore(folder, "train", "links"), json.dumps(report["sha256"], sort_keys=True)


def identify_text(prepared: Prepared) -> dict[str, Any]:
    """Return the checksums of the training text, for the report."""
    digests = prepared.report.get("sha256", prepared.report["files"])  # early versions have no checksums
    return {
        "format": _FORMAT,
        "text": {name: digest for name, digest in digests.items() if not name.startswith("valid.")},
    }


# --- Links of each corpus ---------------------------------------------------------------------------------------------


class _ChunkAligner:
    """Aligns chunks of a corpus in a worker process. lexicons: folder written by `LexicalAligner.save`."""

    def __init__(self, directory: Path, reverse_target: bool, lexicons: Path, vocab: int) -> None:
        self._reader = PairReader(directory, reverse_target)
        self._aligner = LexicalAligner.load(lexicons, vocab)

    def __call__(self, job: tuple[Ids, bool]) -> list[set[TokenLink]]:
        ids, tagged = job
        pairs = self._reader.pairs(ids, tagged)
        links = zip(self._aligner.links(pairs), pairs, strict=True)
        return [self._reader.as_stored(pair_links, tagged, len(tgt)) for pair_links, (_, tgt) in links]


class _Builder:
    """Aligns the pairs of a prepared corpus. temporary: folder for temporary files"""

    def __init__(self, prepared: Prepared, recipe: Recipe, corpora: Sequence[StoredCorpus], temporary: Path) -> None:
        self._recipe, self._corpora, self._tokenizers = recipe, corpora, prepared.tokenizers
        self._directory, self._lexicons = prepared.directory, temporary / "lexicons"
        self._reader = PairReader(prepared.directory, recipe.data.reverse_target)
        self._store = self._reader.store
        self._vocab = max(prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size)

    def links(self) -> Iterator[list[set[TokenLink]]]:
        """Yield the links of the stored tokens of each pair, in chunks."""
        self._train_aligner().save(self._lexicons)
        workers = self._recipe.data.workers or (1 if len(self._store) < _MIN_PAIRS_FOR_PROCESSES else num_cores())
        make = partial(_ChunkAligner, self._directory, self._recipe.data.reverse_target, self._lexicons, self._vocab)
        with progress("aligning", len(self._store), "pairs") as bar:
            for corpus in self._corpora:
                if corpus.file is not None:
                    chunks = self._file_chunks(corpus, corpus.file)
                else:
                    jobs = [(ids, corpus.tagged) for ids in in_chunks(self._store, corpus.ids())]
                    chunks = map_in_order(make, jobs, min(workers, max(len(jobs), 1)))
                with closing(chunks):
                    for links in chunks:
                        yield links
                        bar.advance(len(links))
        shutil.rmtree(self._lexicons)

    def _train_aligner(self) -> LexicalAligner:
        """Train the statistical aligner on the corpora without a file."""
        corpora = [corpus for corpus in self._corpora if corpus.file is None]
        total = sum(corpus.stop - corpus.start for corpus in corpora)
        fraction = min(1.0, _MAX_PAIRS / max(total, 1))
        with progress("training the aligner", round(2 * PASSES * total * fraction), "pairs") as bar:

            def read() -> Iterator[Pairs]:
                for corpus in corpora:
                    for ids in in_chunks(self._store, corpus.ids(fraction)):
                        yield self._reader.pairs(ids, corpus.tagged)
                        bar.advance(len(ids))

            return LexicalAligner.train(read, self._vocab)

    def _file_chunks(self, corpus: StoredCorpus, path: Path) -> Generator[list[set[TokenLink]]]:
        """Yield the links of a corpus with an alignment file, in chunks."""
        links_of_pairs = self._file_links(corpus, path)
        for ids in in_chunks(self._store, corpus.ids()):
            lengths = self._store.tgt.lengths[ids].tolist()
            links = islice(links_of_pairs, len(ids))
            yield list(map(self._reader.as_stored, links, repeat(corpus.tagged), lengths))
        next(links_of_pairs, None)  # compares the number of lines

    def _file_links(self, corpus: StoredCorpus, path: Path) -> Iterator[set[TokenLink]]:
        """Yield the links of the tokens of each stored pair from an alignment file."""
        recipe = self._recipe
        cleaner = Cleaner(recipe.data, *corpus.corpus.languages(recipe))
        longest = recipe.data.max_tokens - int(corpus.tagged) if recipe.data.long_sources == "truncate" else None
        chunks = in_chunks(self._store, corpus.ids())
        stored = (pair for ids in chunks for pair in self._reader.pairs(ids, corpus.tagged))
        expected = next(stored, None)
        pairs = read_pairs(corpus.corpus, ReadOptions.from_recipe(recipe))
        for number, (pair, line) in enumerate(zip_longest(pairs, read_lines(path)), start=1):
            if pair is None or line is None:
                few, many = ("the corpus", path) if pair is None else (path, "the corpus")
                raise UserError(
                    f"{few} ends at pair {number - 1:,}, before {many}; {path} must have a line for each pair of the "
                    "corpus; correct the file"
                )
            links = parse_links(line, (len(pair[0].split()), len(pair[1].split())), f"{path}, line {number}")
            clean = cleaner.clean(*pair)
            if isinstance(clean, str):  # dropped
                continue
            src_text, tgt_text = clean
            src, src_starts = self._tokenizers.src.encode_with_starts(src_text)
            tgt, tgt_starts = self._tokenizers.tgt.encode_with_starts(tgt_text)
            if (src[:longest], tgt) == expected:
                form = recipe.data.unicode_form
                src_words = words_of_starts(src_text, src_starts[:longest], words_as_given(pair[0], form))
                tgt_words = words_of_starts(tgt_text, tgt_starts, words_as_given(pair[1], form))
                yield link_tokens(links, src_words, tgt_words)
                expected = next(stored, None)
        if expected is not None:
            raise UserError(f"{path} does not match the prepared text: the corpus has changed; prepare the text again")


def link_tokens(links: Links, src_words: Sequence[int | None], tgt_words: Sequence[int | None]) -> set[TokenLink]:
    """Link all tokens of linked words. src_words, tgt_words: word of each token, see `words_of_starts`."""
    linked = set(links)
    return {
        (source, target)
        for source, src_word in enumerate(src_words)
        for target, tgt_word in enumerate(tgt_words)
        if (src_word, tgt_word) in linked
    }
