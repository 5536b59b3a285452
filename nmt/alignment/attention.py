"""Word alignments, read from the attention of the decoder to the source.

The translation passes through the model once more, all of it known (teacher forcing). A target token is linked to the
source token that its place attends to most, the end token left aside; two words are linked if any of their tokens are.

There are two places for a token: where it is the output of the decoder, and one further, where it is its input. Which
layer and place tell the alignment depends on the model. With the output it is mostly the last layer but one (Garg et
al. 2019, "Jointly Learning to Align and Translate with Transformer Models"). With the input, where the decoder has seen
what is to be aligned, a lower layer of a deep decoder aligns better still (Shift-Att of Chen et al. 2020, "Accurate
Word Alignment Induction from Neural Machine Translation"); a shallow decoder is by then busy with the next token.
`nmt.alignment.choice` finds out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.alignment.words import Links, link_words, words_as_given, words_as_printed, words_of_pieces, words_of_starts
from nmt.checkpoint import load_model
from nmt.data.epoch_plan import plan_by_length
from nmt.packing.packed import PackedSequences
from nmt.processes.distributed import choose_device
from nmt.recipe import DecodeRecipe, ModelRecipe, UserError
from nmt.search.batches import choose_batch_tokens
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.clean import UnicodeForm, normalize
from nmt.text.splitting import Part
from nmt.text.tokenizer import Tokenizer, Tokenizers

# The tokens of a source and of its translation, without begin and end token, in the order of reading.
TokenPair = tuple[Sequence[int], Sequence[int]]
# (places, layers, heads, tgt_tokens, src_tokens + 1): how much the place of a target token attends to each source token
# and to the end token; first the place where it is the output, then the place where it is the input.
AttentionMap = NDArray[np.floating[Any]]
Place = Literal["output", "input"]
_PLACES: tuple[Place, ...] = ("output", "input")


class AttendingModel(Protocol):
    """A model whose attention can be looked at, such as the Transformer."""

    @property
    def recipe(self) -> ModelRecipe:
        """How many layers and heads there are."""

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """See `Transformer.cross_attention`."""


@dataclass(frozen=True)
class ChosenAttention:
    """Which attention tells the alignment.

    layer: of the decoder, from 0
    heads: of that layer, from 0, whose mean is taken; all of them where none is named
    place: where a target token is aligned: where it is the input of the decoder, or where it is the output
    """

    layer: int
    heads: tuple[int, ...] = ()
    place: Place = "output"

    @classmethod
    def from_recipe(cls, decode: DecodeRecipe, model: ModelRecipe) -> ChosenAttention:
        """What the options say; by default all heads of the last layer but one (Garg et al. 2019).

        Raises UserError where the model has no such layer or head.
        """
        layers, heads = model.num_decoder_layers, model.num_heads
        layer = max(layers - 2, 0) if decode.alignment_layer is None else decode.alignment_layer
        if layer >= layers:
            raise UserError(f"alignment_layer is {layer}; the decoder has layers 0 to {layers - 1}; choose one of them")
        if too_high := [head for head in decode.alignment_heads if head >= heads]:
            raise UserError(
                f"alignment_heads names head {too_high[0]}; a layer has heads 0 to {heads - 1}; choose of them"
            )
        return cls(layer, decode.alignment_heads, decode.alignment_place)

    def weights(self, layer_map: AttentionMap) -> AttentionMap:
        """(tgt_tokens, src_tokens + 1), from the map (places, heads, tgt_tokens, src_tokens + 1) of the layer."""
        heads = layer_map[_PLACES.index(self.place)]
        mean: AttentionMap = (heads[list(self.heads)] if self.heads else heads).mean(axis=0)
        return mean

    def attended(self, layer_map: AttentionMap) -> list[int]:
        """The source token that each target token is linked to; none without source tokens. See `weights`."""
        source_tokens = self.weights(layer_map)[:, :-1]
        attended: list[int] = source_tokens.argmax(axis=1).tolist() if source_tokens.shape[1] else []
        return attended


@torch.inference_mode()
def attention_maps(
    model: AttendingModel, pairs: Sequence[TokenPair], device: torch.device, only_layer: int | None = None
) -> list[AttentionMap]:
    """The maps of all layers, or of one alone, for each pair, together as one batch."""
    first, end = (0, None) if only_layer is None else (only_layer, only_layer + 1)
    src = PackedSequences.from_lists([[*source, EOS_ID] for source, _ in pairs]).to(device)
    tgt = PackedSequences.from_lists([[BOS_ID, *target] for _, target in pairs]).to(device)
    found = islice(model.cross_attention(src, tgt), first, end)
    # (layers, num_sentences, heads, tgt_len, src_len)
    weights = torch.stack([weight.cpu() for weight in found]).numpy()
    maps = []
    for number, (source, target) in enumerate(pairs):
        one = weights[:, number, :, : len(target) + 1, : len(source) + 1]
        maps.append(np.stack([one[:, :, :-1], one[:, :, 1:]]))  # the place behind a token's output has it as its input
    return maps


class WordAligner:
    """A model with all that stands between it and the words of text.

    attention: what it goes by
    tokenizers, unicode_form: those of the model
    """

    def __init__(
        self,
        model: AttendingModel,
        tokenizers: Tokenizers,
        attention: ChosenAttention,
        *,
        unicode_form: UnicodeForm,
        device: torch.device,
        batch_tokens: int,
        tag: Sequence[int] = (),
        reverse_target: bool = False,
    ) -> None:
        """Align with `model`, which lies on `device`, `batch_tokens` tokens of a side at a time.

        tag: ids that stand before each source; reverse_target: whether the model writes from right to left
        """
        self._tag = tuple(tag)
        self.attention = attention
        self.tokenizers, self.unicode_form = tokenizers, unicode_form
        self._model, self._device, self._batch_tokens = model, device, batch_tokens
        self._limit = model.recipe.max_positions - 1
        self._reverse_target = reverse_target

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", decode: DecodeRecipe | None = None) -> WordAligner:
        """The aligner of a model directory, a checkpoint or a run, by default with the attention that it names.

        Raises UserError where there is no such model, layer or head.
        """
        place = choose_device(device)
        loaded = load_model(Path(path), place)
        options = loaded.facts.decode if decode is None else decode.over(loaded.facts.decode)
        tokenizers = Tokenizers.load(loaded.directory)
        return cls(
            loaded.model,
            tokenizers,
            ChosenAttention.from_recipe(options, loaded.model.recipe),
            unicode_form=cast(UnicodeForm, loaded.facts.unicode_form),
            device=place,
            batch_tokens=choose_batch_tokens(options, place, [(loaded.model.recipe, tokenizers.tgt.vocab_size)]),
            tag=() if options.tag is None else [tokenizers.src.tag_id(options.tag)],
            reverse_target=loaded.facts.reverse_target,
        )

    def align(self, sources: Sequence[str], targets: Sequence[str], first_line: int = 1) -> list[Links]:
        """The links between the words of each target and those of its source, as they were given.

        Raises UserError for a sentence longer than the model's positions; `first_line` is the number to call it by.
        """
        pairs = self.encode(sources, targets)
        for number, pair in enumerate(pairs, start=first_line):
            if not self.fits(pair):
                longest = max(map(len, pair))
                wrong = f"line {number} has {longest} tokens; the model holds {self._limit}"
                raise UserError(f"{wrong}; split the sentence")
        lines = zip(self.attended(pairs), sources, targets, strict=True)
        return [link_words(attended, *self.words(source, target)) for attended, source, target in lines]

    def encode(self, sources: Sequence[str], targets: Sequence[str]) -> list[TokenPair]:
        """The tokens of pairs of lines."""
        src, tgt = self.tokenizers.src, self.tokenizers.tgt
        form = self.unicode_form
        return [
            (src.encode(normalize(source, form)), tgt.encode(normalize(target, form)))
            for source, target in zip(sources, targets, strict=True)
        ]

    def fits(self, pair: TokenPair) -> bool:
        """Whether the model has positions for both sides."""
        return max(map(len, pair)) <= self._limit

    def words(self, source: str, target: str) -> tuple[list[int | None], list[int | None]]:
        """The word, as given, of each source and of each target token."""
        return self._words(self.tokenizers.src, source), self._words(self.tokenizers.tgt, target)

    def _words(self, tokenizer: Tokenizer, line: str) -> list[int | None]:
        text = normalize(line, self.unicode_form)
        _, starts = tokenizer.encode_with_starts(text)
        return words_of_starts(text, starts, words_as_given(line, self.unicode_form))

    def align_parts(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[Sequence[Part]],
        outputs: Sequence[Sequence[tuple[Sequence[int], str]]],
    ) -> list[list[Links]]:
        """The links of the translations of each part, between the words of its whole line and those of its text.

        parts_of_lines: the parts that each line was cut into, or the line as its one part
        outputs: tokens and text of all translations of each part, one part of the lines after the other
        """
        parts = [part for parts in parts_of_lines for part in parts]
        pairs = [(part.tokens, tokens) for part, found in zip(parts, outputs, strict=True) for tokens, _ in found]
        attended = iter(self.attended(pairs))
        words = [
            words
            for line, parts in zip(lines, parts_of_lines, strict=True)
            for words in self._words_of_parts(line, parts)
        ]
        tgt = self.tokenizers.tgt
        return [
            [
                link_words(next(attended), src_words, words_of_pieces(tgt.pieces(tokens), words_as_printed(text)))
                for tokens, text in found
            ]
            for src_words, found in zip(words, outputs, strict=True)
        ]

    def _words_of_parts(self, line: str, parts: Sequence[Part]) -> list[list[int | None]]:
        """The word of the line that each token of each of its parts belongs to."""
        text, given = normalize(line, self.unicode_form), words_as_given(line, self.unicode_form)
        found = []
        for part in parts:
            _, starts = self.tokenizers.src.encode_with_starts(part.text)
            starts = [part.start + start for start in starts[: len(part.tokens)]]
            found.append(words_of_starts(text, starts, given))
        return found

    def attended(self, pairs: Sequence[TokenPair]) -> list[list[int]]:
        """The source token that each target token of each pair is linked to."""
        found: list[list[int]] = [[] for _ in pairs]
        for place, layers in self._maps(pairs, self.attention.layer):
            found[place] = self.attention.attended(layers[:, 0])
        return found

    def maps(self, pairs: Sequence[TokenPair]) -> list[AttentionMap]:
        """The maps of all layers and heads for each pair."""
        found = dict(self._maps(pairs))
        return [found[place] for place in range(len(pairs))]

    def _maps(self, pairs: Sequence[TokenPair], only_layer: int | None = None) -> Iterator[tuple[int, AttentionMap]]:
        """The maps of each pair with its place, in batches of about equal length."""
        lengths = [np.array([len(pair[side]) for pair in pairs], dtype=np.int64) for side in (0, 1)]
        for ids in plan_by_length(*lengths, micro_batch_tokens=self._batch_tokens):
            batch = [self._in_order_of_model(pairs[i]) for i in ids]
            maps = attention_maps(self._model, batch, self._device, only_layer)
            yield from zip(ids.tolist(), (self._in_order_of_reading(one) for one in maps), strict=True)

    def _in_order_of_model(self, pair: TokenPair) -> TokenPair:
        return [*self._tag, *pair[0]], pair[1][::-1] if self._reverse_target else pair[1]

    def _in_order_of_reading(self, attention_map: AttentionMap) -> AttentionMap:
        attention_map = attention_map[..., len(self._tag) :]
        return attention_map[:, :, :, ::-1] if self._reverse_target else attention_map
