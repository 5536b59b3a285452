"""Benchmark inputs from user options: training data, or a model and sentences to translate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from nmt.bench.corpora import WMT14, open_corpus, write_random_corpus
from nmt.bench.model_specs import PUBLISHED, ModelSpec, find_model_spec, named_path
from nmt.bench.random_model import numbered_word_sentences, numbered_word_tokenizers, write_random_model
from nmt.data.store import PairStore
from nmt.errors import CommandError, UserError
from nmt.logs import warn
from nmt.recipe import DecodeRecipe, TrainRecipe, ineffective_option, override_own_decode, overrides_by_name
from nmt.storage.model_metadata import read_model_metadata, read_model_recipe
from nmt.storage.run_folder import find_model, find_prepared
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizers

# Name of the built-in length distribution.
BUILT_IN_LENGTHS = "wmt14"

# Values that disable the options of the train section that need the corpora of the recipe.
_WITHOUT_CORPORA = {"guided_alignment": False, "glossary_markup": 0.0, "subword_sampling": 0.0}

# The speed does not depend on the initial weights, which fit only one vocabulary.
_RANDOM_WEIGHTS = {"start_from": None, "start_optimizer": "fresh"}

# Options of a recipe that name tokens or files of its own tokenizers.
_OF_TOKENIZERS = {"tag", "forbid", "require", "bias", "trees", "glossary_mode", "shortlist", "fusion"}


def prepare_training_data(
    spec: ModelSpec, lengths: str, folder: Path, updates: int, vocab_size: int | None
) -> tuple[ModelSpec, PairStore]:
    """Return the spec with its final vocabulary and a run directory in `folder`, and the training pairs.

    Training starts from random weights.

    lengths:    `wmt14` for random tokens, enough for `updates`, or a directory with a prepared corpus
    vocab_size: vocabulary size given by the user; None uses that of the corpus

    Raises UserError if there is no corpus or it does not fit the model.
    """
    _warn_of_unmeasured(spec.recipe.train)
    train = spec.recipe.train.model_copy(update=_WITHOUT_CORPORA | _RANDOM_WEIGHTS)
    recipe = spec.recipe.model_copy(update={"run_dir": folder / "run", "train": train})
    spec = replace(spec, recipe=recipe)
    if lengths == BUILT_IN_LENGTHS:
        store = write_random_corpus(
            folder,
            WMT14,
            tgt_tokens=updates * recipe.train.batch_tokens,
            longest=min(recipe.data.max_tokens, recipe.model.max_positions - 1),
            vocab_sizes=(spec.src_vocab_size, spec.tgt_vocab_size),
            seed=recipe.seed,
            has_source=not recipe.is_language_model,
        )
        return spec, store
    store, (src_size, tgt_size) = open_corpus(Path(lengths))
    longest = 1 + int(max(store.src.lengths.max(), store.tgt.lengths.max()))
    if longest > recipe.model.max_positions:
        raise UserError(
            f"the corpus has sentences of {longest} tokens; the model has {recipe.model.max_positions} positions; "
            f"set model.max_positions={longest}"
        )
    needed = max(src_size, tgt_size)
    if vocab_size is None:
        if recipe.model.tied_embeddings == "three-way" and src_size != tgt_size:
            raise UserError(
                f"the corpus has vocabularies of {src_size:,} and {tgt_size:,} tokens; "
                "three-way tied embeddings need one vocabulary; set model.tied_embeddings=decoder"
            )
        spec = replace(spec, src_vocab_size=src_size, tgt_vocab_size=tgt_size)
    elif vocab_size < needed:
        raise CommandError(f"--vocab-size must be at least {needed:,}, the corpus vocabulary size, got {vocab_size:,}")
    return spec, store


def _warn_of_unmeasured(train: TrainRecipe) -> None:
    """Warn of options that a benchmark disables, and of frozen parameters."""
    for name in _WITHOUT_CORPORA:
        if getattr(train, name):
            warn(f"the benchmark trains without train.{name}")
    if train.freeze:
        warn("model FLOP/s include the gradients of frozen parameters (train.freeze), which are not computed")


@dataclass(frozen=True)
class DecodingRequest:
    """User options of a decoding benchmark.

    model:         published name or recipe (random weights), or model directory
    source:        file of sentences; None generates random sentences, for random weights only
    tokenizer:     directory with the tokenizers of a random model; None makes one with the words w0, w1, ...
    num_sentences: sentences to read or generate
    vocab_size:    vocabulary size of a random model; None uses that of its published model or recipe
    output_tokens: exact length of every output; None lets a trained model decide and uses the source length with
                   random weights
    settings:      overrides of the `decode` section
    """

    model: str
    source: Path | None
    tokenizer: Path | None
    num_sentences: int
    vocab_size: int | None
    output_tokens: int | None
    settings: Sequence[str]


def prepare_decoding(request: DecodingRequest, folder: Path) -> tuple[Path, DecodeRecipe, tuple[str, ...]]:
    """Return the model directory (in `folder` for random weights), the search options and the sentences.

    Raises UserError for incompatible options.
    """
    path = named_path(request.model)
    if request.model in PUBLISHED or path.is_file():
        return _prepare_random_model(request, folder)
    model = find_model(path)
    if request.source is None:
        raise CommandError(f"{model} needs sentences to translate; use --input FILE")
    if request.tokenizer is not None or request.vocab_size is not None:
        raise CommandError(f"{model} has its own tokenizers; remove --tokenizer and --vocab-size")
    positions = read_model_recipe(model).max_positions
    metadata = read_model_metadata(model)
    _warn_of_context(metadata.context.size)
    decode = _decode(metadata.decode, request.settings, request.output_tokens, positions)
    return model, decode, _read(request.source, request.num_sentences)


def _prepare_random_model(request: DecodingRequest, folder: Path) -> tuple[Path, DecodeRecipe, tuple[str, ...]]:
    spec = find_model_spec(request.model, (), request.vocab_size)
    if spec.recipe.is_language_model:
        raise UserError(
            f"{request.model} trains a language model; it must train a translation model; choose another one"
        )
    _warn_of_context(spec.recipe.data.context)
    options = spec.recipe.decode
    if request.tokenizer is None:
        tokenizers = numbered_word_tokenizers(spec.tgt_vocab_size)
        options = DecodeRecipe.model_validate(options.model_dump(exclude=_OF_TOKENIZERS))
    elif request.vocab_size is not None:
        raise CommandError("--vocab-size and --tokenizer are mutually exclusive; give one of them")
    else:
        tokenizers = Tokenizers.load(find_prepared(request.tokenizer))
    if request.source is not None and request.tokenizer is None:
        raise CommandError("random weights need a tokenizer to read text; use --tokenizer, or remove --input")
    if request.source is None and request.tokenizer is not None:
        raise CommandError("--tokenizer has no effect without --input; use --input, or remove --tokenizer")
    given = overrides_by_name(request.settings)
    ratios = () if request.output_tokens else ("min_length_ratio", "max_length_ratio")
    lengths = [f"{name}=1.0" for name in ratios if name not in given]
    positions = spec.recipe.model.max_positions
    decode = _decode(options, [*lengths, *request.settings], request.output_tokens, positions)
    write_random_model(folder / "model", spec.recipe.model_copy(update={"decode": decode}), tokenizers)
    if request.source is not None:
        return folder / "model", decode, _read(request.source, request.num_sentences)
    longest = min(spec.recipe.data.max_tokens, spec.recipe.model.max_positions - 1)
    vocab_size, seed = tokenizers.src.vocab_size, spec.recipe.seed
    sentences = numbered_word_sentences(request.num_sentences, WMT14, longest, vocab_size, seed)
    return folder / "model", decode, tuple(sentences)


def _warn_of_context(size: int) -> None:
    if size:
        warn("the benchmark translates single sentences, without the context of this model (data.context)")


def _decode(
    decode: DecodeRecipe, settings: Sequence[str], output_tokens: int | None, max_positions: int
) -> DecodeRecipe:
    """Return the search options, as `nmt translate` resolves them.

    Raises CommandError for settings without effect, and unless `output_tokens` can be the length of every output.
    """
    names = overrides_by_name(settings)
    if output_tokens is not None:
        lengths = dict.fromkeys(("min_tokens", "max_tokens", "max_extra_tokens"), output_tokens)
        decode = decode.model_copy(update={**lengths, "max_length_ratio": None})
        if conflicting := [name for name in names if name in ("max_length_ratio", *lengths)]:
            raise CommandError(f"--output-tokens and --set {conflicting[0]} are mutually exclusive; give one of them")
        if output_tokens >= max_positions:
            raise CommandError(
                f"--output-tokens is {output_tokens:,}; the model has {max_positions:,} positions, one for EOS; "
                f"it must be at most {max_positions - 1:,}; lower it"
            )
    chosen = override_own_decode(decode, settings)
    ineffective = ineffective_option(names, chosen, has_ensemble=False, needs_alignments=chosen.alignments)
    if ineffective:
        option, reason = ineffective
        raise CommandError(f"--set {reason}; add that, or leave out {option}")
    return chosen


def _read(path: Path, num_sentences: int) -> tuple[str, ...]:
    sentences = tuple(islice(read_lines(path), num_sentences))
    if not sentences:
        raise UserError(f"{path} is empty; it must have one sentence per line")
    return sentences
