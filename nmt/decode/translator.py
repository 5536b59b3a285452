"""Translate text with PyTorch models, by beam search or sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self, cast

import torch

from nmt.alignment.attention import AlignmentAttention, AttendingModel, WordAligner
from nmt.checkpoint import LoadedModel, load_model
from nmt.decode.arguments import require_list, require_options, require_precision
from nmt.decode.language_model import FusedLanguageModel, require_fusible
from nmt.decode.shortlist import Shortlist
from nmt.decode.task import Task
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Attention, Translation
from nmt.devices.allocator import keep_freed_memory
from nmt.devices.precision import choose_precision
from nmt.devices.transfer import to_device
from nmt.errors import UserError
from nmt.inference.prepare import SearchModel, prepare_for_search
from nmt.logs import warn
from nmt.packing.packed import PackedSequences
from nmt.processes.distributed import choose_device
from nmt.recipe import NO_CONTEXT, Context, DecodeRecipe, SearchPrecision, UnicodeForm
from nmt.search.batches import Batching, choose_batch_tokens, continuous_batches, static_batches
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.callback import CallbackModel
from nmt.search.constraints import ANY_TOKEN
from nmt.search.ensemble import Ensemble, is_refillable
from nmt.search.fusion import Fusion
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import max_output_length
from nmt.search.options import SearchOptions
from nmt.search.partial_word import PartialWordModel
from nmt.search.restricted import restrict
from nmt.search.sampling import sample
from nmt.search.trees import TreeConstraint, TreeTokens
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS, require_kind
from nmt.text.pair_encoder import PairEncoder
from nmt.text.splitting import Part
from nmt.text.subword_file import SPACE
from nmt.text.tokenizer import Tokenizers

_ATTENTION_DECIMALS = 4


class Translator(TextTranslator):
    """Translate lines of text with a model and its tokenizers, in order. See `TextTranslator`.

        translator = Translator.load("runs/mine")
        translator.translate(["Good morning!", "How are you?"])          # a list of two strings
        translator.translate_n_best(["Good morning!"], n_best=3)[0]      # three `Translation` objects: text, score, ...
        for (best,) in translator.stream(open_file, window=500): ...     # unbounded input, bounded memory

    num_parameters: number of parameters of the loaded models, tied ones counted once
    has_source:     False in the subclass for language models
    """

    has_source = True

    def __init__(
        self,
        model: StepModel[Any],
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        device: torch.device,
        reverse_target: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        precision: SearchPrecision = "auto",
        context: Context = NO_CONTEXT,
        languages: tuple[str, str] | None = None,
    ) -> None:
        """Wrap a model in memory; `load` reads one from disk. For further arguments see `TextTranslator`.

        Raises UserError for options of `decode` that the model or its tokenizers do not support, and if its shortlist
        or language model is unreadable or belongs to other tokenizers, and ValueError for a model in training mode.

        model:     in an `Ensemble`, `decode.ensemble_mean` replaces the mean
        device:    device of the model
        precision: precision of the language model of `decode.fusion`
        languages: source and target, which a shortlist and a language model must match; None if unknown
        """
        self._has_ensemble = isinstance(model, Ensemble)
        self._members = model.models if isinstance(model, Ensemble) else [model]
        if any(getattr(member, "training", False) for member in self._members):
            raise ValueError("the model is in training mode, in which dropout changes translations; call model.eval()")
        self.num_parameters = 0
        self._model, self._device, self._precision, self._languages = model, device, precision, languages
        self._language_model: FusedLanguageModel | None = None
        self._shortlist: Shortlist | None = None
        self._shortlist_path: Path | None = None
        super().__init__(
            tokenizers,
            decode,
            max_positions=max_positions,
            unicode_form=unicode_form,
            reverse_target=reverse_target,
            max_tokens=max_tokens,
            context=context,
        )

    def _set_decode(self, decode: DecodeRecipe) -> None:
        super()._set_decode(decode)
        if self._has_ensemble:
            self._model = Ensemble(self._members, decode.ensemble_mean)
        self._preferred = sorted({token for phrase, value in self._options.bias if value > 0 for token in phrase})
        self._restrict(decode.shortlist)
        self._tree_tokens = self._find_tree_tokens() if decode.trees else None
        self._fuse(decode.fusion if decode.fusion_weight else None)
        recipes = [member.recipe for member in self._members if isinstance(member, SearchModel)]
        if self._language_model is not None:
            recipes.append(self._language_model.recipe)
        sizes = [(recipe, self._tokenizers.tgt.vocab_size) for recipe in recipes]
        self._batching = Batching(choose_batch_tokens(decode, self._device, sizes), self._device)
        self._aligner = self._make_aligner() if decode.alignments else None

    def _find_tree_tokens(self) -> TreeTokens:
        if self._reverse_target or self._context.context.size:
            raise UserError(
                "decode.trees needs a model that decodes single sentences from left to right; set decode.trees to false"
            )
        return TreeTokens.find(self._tokenizers)

    def _restrict(self, path: Path | None) -> None:
        """Load a shortlist, unless it is loaded: translators with other options do not read a changed file."""
        if path is not None and path != self._shortlist_path:
            self._shortlist = Shortlist.load(path, self._tokenizers, self._languages)
        if path is None:
            self._shortlist = None
        self._shortlist_path = path

    def _fuse(self, path: Path | None) -> None:
        """Load the language model for shallow fusion, unless it is loaded, and limit outputs to its positions."""
        if path is None:
            self._language_model = None
            return
        if self._language_model is None or self._language_model.path != path:
            language = None if self._languages is None else self._languages[1]
            require_fusible(path, language, self._tokenizers.tgt, reverse_target=self._reverse_target)
            self._language_model = FusedLanguageModel.load(path, self._device, self._precision)
        self._encoder.limit_outputs(self._language_model.recipe.max_positions - 1)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: SearchPrecision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Self:
        """Load a model directory, a checkpoint or a run.

        path:      a directory with `model.toml`, or a run: its averaged model, or else its newest checkpoint
        device:    `auto` (a GPU if available), `cpu`, `cuda` or `cuda:N`
        precision: `fp32`, `bf16`, `fp16`, or `auto`, which is bf16 if the device supports it natively; on a CPU also
                   `int8`: 8-bit linear layers, attention of the decoder in bf16 if that is native, the rest in fp32.
                   Log-probabilities are fp32
        decode:    search options, such as `DecodeRecipe(beam_size=8, n_best=3, tag="<web>")`; the model's own recipe
                   sets the others. `help(DecodeRecipe)` documents them
        ensemble:  further ensemble members with the same tokenizers

        Raises UserError if a model or device does not exist, a file is damaged, or tokenizers differ, and ValueError
        for an unknown precision.
        """
        require_precision(precision)
        require_list("ensemble", ensemble, "paths")
        torch_device = choose_device(device)
        loaded = [load_model(Path(member), torch_device) for member in (path, *ensemble)]
        first, metadata = loaded[0], loaded[0].metadata
        for member in loaded:
            require_kind(member.directory, member.metadata, language_model=not cls.has_source)
        tokenizers = Tokenizers.load(first.directory, metadata.tgt_lang)
        for member in loaded[1:]:
            _require_compatible_member(member, first)
        options = metadata.decode
        if decode is not None:
            options = require_options(decode).over(metadata.decode, has_ensemble=len(loaded) > 1)
        num_parameters = sum(member.model.num_parameters() for member in loaded)
        models = prepare_for_search([member.model for member in loaded], precision, torch_device)
        translator = cls(
            models[0] if len(models) == 1 else Ensemble(models),
            tokenizers,
            options,
            max_positions=min(model.recipe.max_positions for model in models),
            unicode_form=metadata.unicode_form,
            device=torch_device,
            reverse_target=metadata.reverse_target,
            max_tokens=min(member.metadata.max_tokens for member in loaded),
            precision=precision,
            context=metadata.context,
            languages=(metadata.src_lang, metadata.tgt_lang),
        )
        translator.num_parameters = num_parameters
        longest_sources = [member.metadata.longest_source for member in loaded]
        translator.longest_source = min((length for length in longest_sources if length is not None), default=None)
        if torch_device.type == "cpu":
            keep_freed_memory()
        return translator

    @property
    def precision(self) -> SearchPrecision:
        """Compute type of matmuls, resolved for the device."""
        return choose_precision("auto", self._device) if self._precision == "auto" else self._precision

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search in batches of sentences of similar length; see `nmt.search.batches`."""
        if self._on_tokens is not None and len(tasks) > 1:  # otherwise the parts of a line could overwrite each other
            other = copy(self)
            other._on_tokens = None
            return other._search(tasks, options)
        # The batch size is chosen for the recipe's number of samples; a call may request more.
        factor = max(1, options.n_best // max(self._decode.beam_size, self._decode.n_best))
        lengths = [factor * (len(self._tag) + len(task.sentence) + 1) for task in tasks]
        plan = continuous_batches if self._can_refill(tasks) else static_batches

        def search(ids: list[int], batch_size: int, results: dict[int, list[Hypothesis]]) -> None:
            finished: dict[int, list[Hypothesis]] = {}
            try:
                self._search_batch([tasks[i] for i in ids], options, batch_size, finished)
            finally:
                results |= {ids[i]: self._in_reading_order(hypotheses) for i, hypotheses in finished.items()}

        return self._batching.run(plan, lengths, search)

    def _can_refill(self, tasks: Sequence[Task]) -> bool:
        """Return whether a search for these tasks supports continuous batching."""
        if self._decode.sampling or self._shortlist is not None or self._on_tokens is not None:
            return False
        if any(task.partial for task in tasks):
            return False
        language_model = self._language_model
        return is_refillable(self._model) and (language_model is None or is_refillable(language_model.model))

    def _search_batch(
        self, tasks: Sequence[Task], options: SearchOptions, batch_size: int, finished: dict[int, list[Hypothesis]]
    ) -> None:
        """Search sentences, `batch_size` at a time; `finished` receives the hypotheses of each by its index."""
        model = self._model_for(tasks, options)
        src = PackedSequences.from_lists([[*self._tag, *task.sentence, EOS_ID] for task in tasks]).to(self._device)
        prefixes = []
        for task in tasks:
            # A partial word has at most as many tokens as bytes.
            prefix = [*task.prefix, *[ANY_TOKEN] * len(task.partial)]
            prefixes.append(prefix[: max_output_length(options, task.prefix)])
        if self._decode.sampling:
            sample(model, src, options, self._decode, prefixes, finished)
        else:
            trees = None
            if self._tree_tokens is not None:
                trees = TreeConstraint(self._tree_tokens, [self._num_words(task) for task in tasks], self._device)
            required = [task.required for task in tasks]
            beam_search(model, src, options, prefixes, required, batch_size, finished, trees)

    def _num_words(self, task: Task) -> int:
        """Return the number of words of a source sentence."""
        return sum(piece.startswith(SPACE) for piece in self._tokenizers.src.pieces(task.sentence))

    def _model_for(self, tasks: Sequence[Task], options: SearchOptions) -> StepModel[Any]:
        """Return the model with shortlist, fusion, callback and partial words of these sentences."""
        model = self._model
        if self._shortlist is not None:
            needed = [self._constraint_tokens(task) for task in tasks]
            candidates = self._shortlist.candidates([task.sentence for task in tasks], needed)
            model = restrict(model, to_device(candidates, self._device))
        if self._language_model is not None:
            language_model = self._language_model
            model = Fusion(model, language_model.model, self._decode.fusion_weight, language_model.source)
        on_tokens = self._context.without_previous(self._on_tokens, tasks)
        if on_tokens is not None and options.beam_size == len(tasks) == 1:
            model = CallbackModel(model, on_tokens)
        if any(task.partial for task in tasks):
            prefixes = [task.prefix for task in tasks]
            model = PartialWordModel(model, self._spelling, prefixes, [task.partial for task in tasks])
        return model

    def _constraint_tokens(self, task: Task) -> list[int]:
        """Return the tokens that a shortlist needs for the constraints and biases of a task."""
        trees = self._tree_tokens
        tree_tokens = [] if trees is None else [*trees.words, *chain.from_iterable(trees.brackets)]
        required_tokens = chain.from_iterable(chain.from_iterable(task.required))
        # A token may spell only the beginning of a partial word; others then spell the rest.
        rests = (task.partial[start:] for start in range(len(task.partial)))
        partial_tokens = chain.from_iterable(self._spelling.agreeing(rest) for rest in rests)
        return [*task.prefix, *partial_tokens, *required_tokens, *self._preferred, *tree_tokens]

    @torch.inference_mode()
    def _next_tokens(self, task: Task, count: int) -> list[int]:
        """See `TextTranslator._next_tokens`."""
        model = self._model_for([task], self._options)
        src = PackedSequences.from_lists([[*self._tag, *task.sentence, EOS_ID]]).to(self._device)
        state = model.start(src, 1)
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
        for token in (BOS_ID, *task.prefix):
            log_probs = model.step(zero + token, state)[0, 0]  # (vocab,)
            state.reorder(zero)
        log_probs[: EOS_ID + 1] = -math.inf
        log_probs[self._options.forbidden_after(task.prefix)] = -math.inf
        best = log_probs.topk(min(count, len(log_probs)))
        candidates = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [token for token, log_prob in candidates if log_prob > -math.inf]

    def attention(self, line: str, translation: Translation) -> Attention:
        """See `TextTranslator.attention`.

        Raises TypeError unless the line is a string and the translation a Translation, and UserError if the line must
        be split.
        """
        if not isinstance(line, str):
            raise TypeError(f"line must be a string, got {type(line).__name__}; pass one line")
        if not isinstance(translation, Translation):
            got = type(translation).__name__
            raise TypeError(f"translation must be a Translation, got {got}; use one from translate_n_best")
        parts = self._split(line)
        if len(parts) > 1:
            raise UserError(f"the line is split into {len(parts)} parts; attention needs one part; send one sentence")
        source, target = parts[0].tokens if parts else [], self._tokenizers.tgt.ids(translation.pieces)
        (by_position,) = self._make_aligner().maps([(source, target)])
        pieces = [*self._tokenizers.src.pieces(source), "</s>"]
        return Attention(pieces, translation.pieces, by_position[0].round(_ATTENTION_DECIMALS).tolist())

    def _make_aligner(self) -> WordAligner:
        """Return an aligner that uses the attention of the model, or of the first ensemble member."""
        attending = cast(AttendingModel, self._members[0])
        encoder = PairEncoder(
            self._tokenizers,
            self._unicode_form,
            attending.recipe.max_positions - 1,
            self._tag,
            reverse_target=self._reverse_target,
        )
        return WordAligner(
            attending,
            encoder,
            AlignmentAttention.from_recipe(self._decode, attending.recipe),
            device=self._device,
            batch_tokens=self._batching.tokens,
        )

    def _align(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[list[Part]],
        outputs: Sequence[list[Hypothesis]],
        translations: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """See `TextTranslator._align`."""
        if self._aligner is None:
            return list(translations)
        tokens_and_texts = [
            [(hypothesis.tokens, translation.text) for hypothesis, translation in zip(*part, strict=True)]
            for part in zip(outputs, translations, strict=True)
        ]
        links = self._aligner.align_parts(lines, parts_of_lines, tokens_and_texts)
        return [
            [replace(translation, alignment=alignment) for translation, alignment in zip(*part, strict=True)]
            for part in zip(translations, links, strict=True)
        ]


def _require_compatible_member(member: LoadedModel, first: LoadedModel) -> None:
    """Raise UserError unless `member` can form an ensemble with `first`."""
    languages = f"{member.metadata.src_lang} to {member.metadata.tgt_lang}"
    first_languages = f"{first.metadata.src_lang} to {first.metadata.tgt_lang}"
    if languages != first_languages:
        raise UserError(
            f"{member.directory} translates from {languages}, and {first.directory} from {first_languages}; ensemble "
            "members must have the same languages; leave one out"
        )
    if Tokenizers.load(member.directory).files() != Tokenizers.load(first.directory).files():
        raise UserError(
            f"{member.directory} and {first.directory} have different tokenizers; ensemble members must share them; "
            "train with the same tokenizer (tokenizer.start_from)"
        )
    if member.metadata.reverse_target != first.metadata.reverse_target:
        raise UserError(
            f"{member.directory} and {first.directory} decode in opposite directions; ensemble members must decode in "
            "the same direction; rerank the n-best list of one with the other instead (nmt rerank)"
        )
    if member.metadata.context != first.metadata.context:
        raise UserError(
            f"{member.directory} and {first.directory} translate with different context; ensemble members must have "
            "the same data.context and data.context_sides; leave one out"
        )
    if member.metadata.unicode_form != first.metadata.unicode_form:
        warn(
            f"{member.directory} was trained on text in Unicode form {member.metadata.unicode_form}, but this ensemble "
            f"uses {first.metadata.unicode_form}, the form of {first.directory}"
        )
