"""From what the user asks for to what is measured: the text to train on, the model and sentences to translate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nmt.bench.corpora import WMT14, PreparedCorpus, open_corpus, write_random_corpus
from nmt.bench.model_specs import PUBLISHED, ModelSpec, find_model_spec
from nmt.bench.random_model import number_sentences, number_tokenizers, write_random_model
from nmt.data.store import PairStore
from nmt.recipe import DecodeRecipe, UserError, override_decode
from nmt.storage.model_facts import read_model_facts
from nmt.storage.run_folder import find_model
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizers

# The name of the built-in distribution of sentence lengths.
BUILT_IN_LENGTHS = "wmt14"


def prepare_training_data(
    spec: ModelSpec, lengths: str, folder: Path, updates: int, vocab_size: int | None
) -> tuple[ModelSpec, PairStore]:
    """The spec, with the vocabulary that it is measured with and a run directory in `folder`, and its pairs.

    lengths: `wmt14`, for random tokens enough for so many updates, or a folder that `nmt prepare` filled
    vocab_size: as the user gave it. Raises UserError where the corpus is not there or the model cannot hold it.
    """
    recipe = spec.recipe.model_copy(update={"run_dir": folder / "run"})
    spec = replace(spec, recipe=recipe)
    if lengths == BUILT_IN_LENGTHS:
        store = write_random_corpus(
            folder,
            WMT14,
            tgt_tokens=updates * recipe.train.batch_tokens,
            longest=min(recipe.data.max_tokens, recipe.model.max_positions - 1),
            vocab_sizes=(spec.src_vocab_size, spec.tgt_vocab_size),
            seed=recipe.seed,
        )
        return spec, store
    corpus = open_corpus(Path(lengths))
    _require_positions(corpus.store, recipe.model.max_positions)
    return _with_vocabulary(spec, corpus, vocab_size), corpus.store


def _with_vocabulary(spec: ModelSpec, corpus: PreparedCorpus, vocab_size: int | None) -> ModelSpec:
    """The spec with the corpus's pieces, or with more of them where the user wants that."""
    if vocab_size is None:
        return replace(spec, src_vocab_size=corpus.src_vocab_size, tgt_vocab_size=corpus.tgt_vocab_size)
    needed = max(corpus.src_vocab_size, corpus.tgt_vocab_size)
    if vocab_size < needed:
        raise UserError(f"--vocab-size is {vocab_size:,}; the corpus has {needed:,} pieces; give at least as many")
    return spec


def _require_positions(store: PairStore, max_positions: int) -> None:
    longest = 1 + int(max(store.src.lengths.max(), store.tgt.lengths.max()))
    if longest > max_positions:
        raise UserError(
            f"the corpus has sentences of {longest} tokens; the model has {max_positions} positions; "
            f"set model.max_positions={longest}"
        )


@dataclass(frozen=True)
class DecodingRequest:
    """What the user asks to be translated, and how.

    model:         a published name or recipe, which get random weights, or the path of a model
    source:        file of sentences; None: random ones, which only random weights can read
    tokenizer:     folder with the tokenizers of a random model; None: tokens are numbers
    num_sentences: so many sentences, the first of the file
    output_tokens: every output has exactly so many; None: as many as a trained model wants, as the source with random
                   weights
    """

    model: str
    source: Path | None
    tokenizer: Path | None
    num_sentences: int
    vocab_size: int | None
    output_tokens: int | None
    settings: Sequence[str]


def prepare_decoding(request: DecodingRequest, folder: Path) -> tuple[Path, DecodeRecipe, tuple[str, ...]]:
    """The model directory, in `folder` if it has random weights, how it searches, and the sentences.

    Raises UserError where the parts do not fit together.
    """
    path = Path(request.model)
    if request.model not in PUBLISHED and not path.is_file():
        return _trained(request, find_model(path))
    spec = find_model_spec(request.model, (), request.vocab_size)
    tokenizers = _tokenizers(request, spec)
    if request.source is not None and request.tokenizer is None:
        raise UserError(
            "random weights cannot read text without a tokenizer; give the folder of one by --tokenizer, "
            "or leave out --input"
        )
    lengths = [] if request.output_tokens else ["min_length_ratio=1.0", "max_length_ratio=1.0"]
    own = spec.recipe.decode
    if request.tokenizer is None:
        own = own.model_copy(update={"shortlist": None})  # which is of the pieces of text, not of numbers
    decode = _decode(own, [*lengths, *request.settings], request.output_tokens)
    write_random_model(folder / "model", spec.recipe.model_copy(update={"decode": decode}), tokenizers)
    if request.source is not None:
        return folder / "model", decode, _read(request.source, request.num_sentences)
    if request.tokenizer is not None:
        raise UserError("--tokenizer is for sentences of a file; name it by --input, or leave out --tokenizer")
    longest = min(spec.recipe.data.max_tokens, spec.recipe.model.max_positions - 1)
    vocab_size, seed = tokenizers.src.vocab_size, spec.recipe.seed
    sentences = number_sentences(request.num_sentences, WMT14, longest, vocab_size, seed)
    return folder / "model", decode, tuple(sentences)


def _trained(request: DecodingRequest, model: Path) -> tuple[Path, DecodeRecipe, tuple[str, ...]]:
    if request.source is None:
        raise UserError(f"{model} needs sentences to translate; name a file of them by --input")
    if request.tokenizer is not None or request.vocab_size is not None:
        raise UserError(f"{model} has its own tokenizers; leave out --tokenizer and --vocab-size")
    decode = _decode(read_model_facts(model).decode, request.settings, request.output_tokens)
    return model, decode, _read(request.source, request.num_sentences)


def _tokenizers(request: DecodingRequest, spec: ModelSpec) -> Tokenizers:
    if request.tokenizer is None:
        return number_tokenizers(spec.tgt_vocab_size)
    if request.vocab_size is not None:
        raise UserError("--vocab-size and --tokenizer exclude each other; leave out one")
    folder = request.tokenizer
    return Tokenizers.load(folder / "data" if (folder / "data").is_dir() else folder)


def _decode(decode: DecodeRecipe, settings: Sequence[str], output_tokens: int | None) -> DecodeRecipe:
    alone = decode.model_copy(update={"n_best": 1})
    if output_tokens is not None:
        exact = {"min_tokens": output_tokens, "max_tokens": output_tokens, "max_extra_tokens": output_tokens}
        alone = alone.model_copy(update={**exact, "max_length_ratio": None})
    return override_decode(alone, settings)


def _read(path: Path, num_sentences: int) -> tuple[str, ...]:
    sentences = tuple(line for _, line in zip(range(num_sentences), read_lines(path), strict=False))
    if not sentences:
        raise UserError(f"{path} is empty; it must hold one sentence a line; check the file")
    return sentences
