"""The translator: lines of text in, lines of text out, by beam search or sampling with models of this project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast, get_args

import torch

from nmt.alignment.attention import AttendingModel, ChosenAttention, WordAligner
from nmt.checkpoint import load_model
from nmt.decode.shortlist import Shortlist
from nmt.decode.text_translator import Task, TextTranslator
from nmt.decode.translation import Translation
from nmt.devices.allocator import keep_freed_memory
from nmt.devices.precision import SearchPrecision, choose_precision, torch_dtype
from nmt.devices.transfer import to_device
from nmt.inference.captured import CapturedModel, can_capture
from nmt.inference.prepacked import prepack
from nmt.inference.quantized import QuantizedLinear
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.processes.distributed import choose_device
from nmt.recipe import DecodeRecipe, UserError
from nmt.search.batches import Batching, batches, choose_batch_tokens, crowds
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.ensemble import Ensemble, is_open
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.search.sampling import SamplingOptions, sample
from nmt.special_ids import EOS_ID
from nmt.storage.model_facts import USUAL_MAX_TOKENS
from nmt.text.clean import UnicodeForm
from nmt.text.cutting import Part
from nmt.text.tokenizer import Tokenizers


class Translator(TextTranslator):
    """A model with all that stands between it and text: strings go in, and as many come out, in the same order.

        translator = Translator.load("runs/mine")
        translator.translate(["Good morning!", "How are you?"])          # a list of two strings
        translator.translate_n_best(["Good morning!"], n_best=3)[0]      # three of `Translation`: text, score, ...
        for (best,) in translator.stream(open_file, window=500): ...     # endless input, little memory

    What it accepts, and what it does with it, is said at `TextTranslator`.

    num_parameters: number of weights of the models that were loaded, tied ones counted once
    """

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
        max_tokens: int = USUAL_MAX_TOKENS,
    ) -> None:
        """Translate with `model`, which lies on `device` and accepts sentences of `max_positions` tokens.

        max_tokens: the longest sentence that it has seen in training; longer lines are cut, since a model translates
        badly what is longer than all that it has seen
        reverse_target: whether it writes from right to left; text comes out in the order of reading all the same
        Raises UserError when `decode` asks for a tag that the source tokenizer does not know, or for a shortlist that
        cannot be read or is of other tokenizers. To translate with a model on disk, use `load`.
        """
        self.num_parameters = 0
        self._model, self._device = model, device
        super().__init__(
            tokenizers,
            decode,
            max_positions=max_positions,
            unicode_form=unicode_form,
            reverse_target=reverse_target,
            max_tokens=max_tokens,
        )

    def _set_decode(self, decode: DecodeRecipe) -> None:
        super()._set_decode(decode)
        self._preferred = sorted({token for phrase, value in self._options.bias if value > 0 for token in phrase})
        self._shortlist = None if decode.shortlist is None else Shortlist.load(decode.shortlist, self._tokenizers)
        self._sampling = SamplingOptions.from_recipe(decode) if decode.sampling else None
        members = self._model.models if isinstance(self._model, Ensemble) else [self._model]
        known = (one.recipe for one in members if isinstance(one, Transformer | CapturedModel))
        sized = [(recipe, self._tokenizers.tgt.vocab_size) for recipe in known]
        self._batching = Batching(choose_batch_tokens(decode, self._device, sized), self._device)
        self._aligner = self._make_aligner(decode) if decode.alignments else None

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: SearchPrecision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Translator:
        """The translator of a model directory, a checkpoint or a run.

        path:      as on the command line: a directory with `model.toml`, or a run, whose averaged model is taken
        device:    `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`
        precision: of the weights and all computation up to the logits: `fp32`, `bf16`, `fp16`, or `auto`, which takes
                   bf16 where it is native; `int8`, on a CPU, for products of 8-bit integers and all else in fp32
        decode:    how to search, e.g. `DecodeRecipe(beam_size=8, n_best=3, tag="<web>")`; options that are not given
                   are those of the model's own recipe. `help(DecodeRecipe)` documents them
        ensemble:  further models with the same tokenizers, which decide together with the first

        Raises UserError, in one line that says what to do, where there is no such model or device, where a file of the
        model is damaged, or where the tokenizers differ; ValueError for a precision that is none of these.
        """
        if precision not in get_args(SearchPrecision):
            raise ValueError(f"precision must be one of {', '.join(get_args(SearchPrecision))}, got {precision!r}")
        place = choose_device(device)
        loaded = [load_model(Path(one), place) for one in (path, *ensemble)]
        first, facts = loaded[0], loaded[0].facts
        tokenizers = Tokenizers.load(first.directory)
        for other in loaded[1:]:
            if Tokenizers.load(other.directory).files() != tokenizers.files():
                raise UserError(
                    f"{other.directory} has other tokenizers than {first.directory}; models of an ensemble must share "
                    "them; train them with the same tokenizer (tokenizer.start_from)"
                )
            if other.facts.reverse_target != facts.reverse_target:
                raise UserError(
                    f"{other.directory} and {first.directory} write in opposite directions; models of an ensemble must "
                    "write in the same; let one rerank what the other writes (nmt rerank)"
                )
        options = facts.decode if decode is None else decode.over(facts.decode)
        num_parameters = sum(one.model.num_parameters() for one in loaded)
        models = [_prepacked(one.model, precision, place) for one in loaded]
        # On a GPU starting the kernels of a step takes longer than the step itself: see `nmt.inference.captured`.
        records = place.type == "cuda" and all(map(can_capture, models))
        steppers: list[StepModel[Any]] = [CapturedModel(model) if records else model for model in models]
        translator = cls(
            steppers[0] if len(steppers) == 1 else Ensemble(steppers, options.ensemble_mean),
            tokenizers,
            options,
            max_positions=min(model.recipe.max_positions for model in models),
            unicode_form=cast(UnicodeForm, facts.unicode_form),
            device=place,
            reverse_target=facts.reverse_target,
            max_tokens=min(one.facts.max_tokens for one in loaded),
        )
        translator.num_parameters = num_parameters
        if place.type == "cpu":
            keep_freed_memory()
        return translator

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Search sentences of about equal length together; see `nmt.search.batches`."""
        lengths = [len(self._tag) + len(task.sentence) + 1 for task in tasks]
        all_may_join = self._sampling is None and self._shortlist is None and is_open(self._model)

        def search(ids: list[int], rows: int, found: dict[int, list[Hypothesis]]) -> None:
            finished: dict[int, list[Hypothesis]] = {}
            try:
                self._search_batch([tasks[i] for i in ids], options, rows, finished)
            finally:
                found |= {ids[place]: [self._as_read(one) for one in own] for place, own in finished.items()}

        return self._batching.run(crowds if all_may_join else batches, lengths, search)

    def _search_batch(
        self, tasks: Sequence[Task], options: SearchOptions, rows: int, finished: dict[int, list[Hypothesis]]
    ) -> None:
        """Search some sentences, `rows` at a time; `finished` gets the hypotheses of each by its number."""
        model = self._model_for(tasks)
        src = PackedSequences.from_lists([[*self._tag, *task.sentence, EOS_ID] for task in tasks]).to(self._device)
        prefixes = [task.prefix for task in tasks]
        if self._sampling is not None:
            found = sample(model, src, options, self._sampling, prefixes, finished)
        else:
            found = beam_search(model, src, options, prefixes, [task.required for task in tasks], rows, finished)
        finished.update(enumerate(found))

    def _model_for(self, tasks: Sequence[Task]) -> StepModel[Any]:
        """The model; with a shortlist, restricted to the candidates of these sentences."""
        if self._shortlist is None:
            return self._model
        needed = [chain(task.prefix, *task.required, self._preferred) for task in tasks]
        candidates = self._shortlist.candidates([task.sentence for task in tasks], needed)
        return restrict(self._model, to_device(candidates, self._device))

    def _make_aligner(self, decode: DecodeRecipe) -> WordAligner:
        """What aligns words by the attention of the model, or of the first of an ensemble."""
        model = self._model.models[0] if isinstance(self._model, Ensemble) else self._model
        attending = cast(AttendingModel, model)
        return WordAligner(
            attending,
            self._tokenizers,
            ChosenAttention.from_recipe(decode, attending.recipe),
            unicode_form=self._unicode_form,
            device=self._device,
            batch_tokens=self._batching.tokens,
            tag=self._tag,
            reverse_target=self._reverse_target,
        )

    def _align(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[list[Part]],
        found: Sequence[list[Hypothesis]],
        read: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """The translations of each part of the lines with their links, where these are asked for."""
        if self._aligner is None:
            return list(read)
        outputs = [
            [(hypothesis.tokens, translation.text) for hypothesis, translation in zip(*both, strict=True)]
            for both in zip(found, read, strict=True)
        ]
        links = self._aligner.align_parts(lines, parts_of_lines, outputs)
        return [
            [replace(translation, alignment=own) for translation, own in zip(*both, strict=True)]
            for both in zip(read, links, strict=True)
        ]


def _prepacked(model: Transformer, precision: SearchPrecision, device: torch.device) -> Transformer:
    """The model as search multiplies its weights fastest; UserError where the device has no such arithmetic."""
    if precision == "int8":
        return prepack(model, QuantizedLinear)
    return prepack(model.to(torch_dtype(choose_precision(precision, device))))
