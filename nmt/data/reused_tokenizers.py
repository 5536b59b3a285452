"""Tokenizers reused from a trained model; reused weights need the vocabulary that they were trained with."""

from __future__ import annotations

from pathlib import Path

from nmt.data.store import REPORT_FILE
from nmt.errors import UserError
from nmt.recipe import Recipe, has_tree_vocabulary
from nmt.storage.checksums import read_checked
from nmt.storage.run_folder import find_model, find_prepared
from nmt.storage.sealed import MANIFEST, CorruptError, read_manifest
from nmt.text.term_markup import TermMarkers
from nmt.text.tokenizer import Tokenizers, is_sentencepiece, planned_symbols, planned_vocab_size


def tokenizer_sources(recipe: Recipe) -> list[Path]:
    """Return the paths of the models whose tokenizers a recipe reuses; none if it trains its own."""
    paths = (recipe.train.start_from, recipe.tokenizer.start_from)
    return list(dict.fromkeys(path for path in paths if path is not None))


def reused_tokenizers(recipe: Recipe) -> Tokenizers | None:
    """Load the tokenizers that a recipe reuses, with its symbols; return None if it trains its own.

    Raises UserError if a model or its tokenizers are missing or corrupt, if two models have different tokenizers, or
    if they lack what `train.glossary_markup` or `train.subword_sampling` needs.
    """
    loaded = [load_verified_tokenizers(_find(path, recipe)) for path in tokenizer_sources(recipe)]
    if any(tokenizers.files() != loaded[0].files() for tokenizers in loaded):
        raise UserError(
            f"tokenizer.start_from ({recipe.tokenizer.start_from}) and train.start_from ({recipe.train.start_from}) "
            "have different tokenizers; weights need their own tokenizer; remove tokenizer.start_from"
        )
    if not loaded:
        return None
    tokenizers = with_symbols_of(recipe, loaded[0])
    if recipe.train.glossary_markup:
        TermMarkers.find(tokenizers, "train.glossary_markup")
    if recipe.train.subword_sampling:
        sides = {"src": (tokenizers.src,), "tgt": (tokenizers.tgt,), "both": (tokenizers.src, tokenizers.tgt)}
        for tokenizer in sides[recipe.train.subword_sampling_sides]:
            tokenizer.vocabulary()  # raises an error for characters and bytes
    return tokenizers


def with_symbols_of(recipe: Recipe, tokenizers: Tokenizers) -> Tokenizers:
    """Append the user symbols and tags of a recipe that reused tokenizers lack."""
    return tokenizers.with_symbols(planned_symbols(recipe), recipe.data.tags)


def find_tokenizers(path: Path) -> Path:
    """Return a path for `Tokenizers.load`.

    That is the path itself if `is_sentencepiece`, the directory that `find_model` returns, or else a prepared corpus:
    that of a run without a model, or the path itself. Raises UserError if none of them exists.
    """
    if is_sentencepiece(path):
        return path
    prepared = find_prepared(path)
    try:
        return find_model(path)
    except UserError:
        if read_checked(prepared / REPORT_FILE):
            return prepared
        raise


def _find(path: Path, recipe: Recipe) -> Path:
    try:
        return find_tokenizers(path)
    except UserError as error:
        if path == recipe.train.start_from:
            raise UserError(f"train.start_from is {path.absolute()}: {error}") from error
        message = f"tokenizer.start_from is {path.absolute()}: {error}, or name a SentencePiece model"
        raise UserError(message) from error


def expected_vocab_sizes(recipe: Recipe) -> tuple[int, int]:
    """Return the sizes of the source and the target vocabulary before the text is prepared."""
    all_exist = all(path.exists() for path in tokenizer_sources(recipe))  # not needed to resume a run
    tokenizers = reused_tokenizers(recipe) if all_exist else None
    if tokenizers is not None:
        return tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    symbols = planned_symbols(recipe)
    src = planned_vocab_size(recipe.tokenizer, len({*symbols, *recipe.data.tags}))
    return src, src if recipe.tokenizer.joint else planned_vocab_size(recipe.tokenizer, len(symbols))


def is_vocab_size_known(recipe: Recipe) -> bool:
    """Return whether `expected_vocab_sizes` is exact: not for characters, nor for trees with a token per bracket."""
    return recipe.reuses_tokenizer or not (recipe.tokenizer.algorithm == "char" or has_tree_vocabulary(recipe))


def load_verified_tokenizers(directory: Path) -> Tokenizers:
    """Load the tokenizers that `find_tokenizers` finds; raise CorruptError if they do not match their checksums."""
    if is_sentencepiece(directory):
        return Tokenizers.load(directory)
    expected, file = read_checked(directory / REPORT_FILE).get("tokenizers"), REPORT_FILE
    if expected is None:
        manifest, file = read_manifest(directory), MANIFEST
        expected = {name: sha256 for name, (_, sha256) in manifest.items() if name.startswith("tokenizer")}
    tokenizers = Tokenizers.load(directory)
    if tokenizers.digests() != expected:
        raise CorruptError(
            f"the tokenizer of {directory} is corrupt (its SHA-256 differs from {file}); copy the directory again"
        )
    return tokenizers
