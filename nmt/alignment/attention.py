"""Word alignment from the cross-attention of the decoder.

A second forward pass reads the complete translation (teacher forcing). Each target token is linked to the source token
with the highest attention, EOS excluded. Two words are linked if any of their tokens are.

A target token can be aligned by the attention of either of two decoder positions: the position that predicts it
(`output`), or the next one, which reads it (`input`). The best layer and position depend on the model. With `output`,
the second-to-last layer is usually best (Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
Models"). With `input`, a lower layer of a deep decoder aligns even better, because the decoder has seen the token
(Shift-Att of Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation"). In a shallow
decoder that position already attends to the next token. `nmt.alignment.choice` selects layer and position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.alignment.words import (
    Links,
    drop_punctuation,
    link_words,
    words_as_given,
    words_as_printed,
    words_of_pieces,
    words_of_starts,
)
from nmt.checkpoint import load_model
from nmt.data.epoch_plan import plan_by_length
from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.processes.distributed import choose_device
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.search.batches import choose_batch_tokens
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.storage.model_metadata import require_kind, warn_of_run
from nmt.text.clean import normalize
from nmt.text.pair_encoder import PairEncoder, TokenPair
from nmt.text.splitting import Part
from nmt.text.tokenizer import Tokenizer, Tokenizers

# Decoder position whose attention aligns a target token: the one that predicts it, or the one that reads it.
AlignmentAt = Literal["output", "input"]
POSITIONS: tuple[AlignmentAt, ...] = ("output", "input")
# (positions, layers, heads, tgt_tokens, src_tokens + 1): attention of each target token to the source and EOS, for each
# of `POSITIONS`.
AttentionMap = NDArray[np.floating[Any]]


class AttendingModel(Protocol):
    """A model with cross-attention, such as the Transformer."""

    @property
    def recipe(self) -> ModelRecipe:
        """See `Transformer.recipe`."""

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """See `Transformer.cross_attention`."""


@dataclass(frozen=True)
class AlignmentAttention:
    """The attention that aligns words.

    layer: decoder layer, counted from 0
    heads: heads to average, counted from 0; all if empty
    at:    decoder position that aligns a target token
    """

    layer: int
    heads: tuple[int, ...] = ()
    at: AlignmentAt = "output"

    @classmethod
    def from_recipe(cls, decode: DecodeRecipe, model: ModelRecipe) -> AlignmentAttention:
        """Create from the options of a recipe; by default all heads of the second-to-last layer (Garg et al. 2019).

        Raises UserError if the model has no such layer or head.
        """
        layers, heads = model.cross_attentions
        layer = max(layers - 2, 0) if decode.alignment_layer is None else decode.alignment_layer
        if layer >= layers:
            raise UserError(f"alignment_layer must be between 0 and {layers - 1} (the last decoder layer), got {layer}")
        if invalid := [head for head in decode.alignment_heads if head >= heads]:
            raise UserError(f"alignment_heads must be between 0 and {heads - 1}, got {invalid[0]}")
        return cls(layer, decode.alignment_heads, decode.alignment_at)

    def weights(self, layer_map: AttentionMap) -> AttentionMap:
        """Return the mean of the heads, (tgt_tokens, src_tokens + 1).

        layer_map: (positions, heads, tgt_tokens, src_tokens + 1)
        """
        heads = layer_map[POSITIONS.index(self.at)]
        mean: AttentionMap = (heads[list(self.heads)] if self.heads else heads).mean(axis=0)
        return mean

    def attended(self, layer_map: AttentionMap) -> list[int]:
        """Return the most attended source token of each target token; an empty list for an empty source.

        layer_map: see `weights`
        """
        weights = self.weights(layer_map)[:, :-1]  # without EOS
        attended: list[int] = weights.argmax(axis=1).tolist() if weights.shape[1] else []
        return attended


@torch.inference_mode()
def attention_maps(
    model: AttendingModel, pairs: Sequence[TokenPair], device: torch.device, only_layer: int | None = None
) -> list[AttentionMap]:
    """Return the map of each pair, of all layers or only one, computed as one batch."""
    first, end = (0, None) if only_layer is None else (only_layer, only_layer + 1)
    src = PackedSequences.from_lists([[*source, EOS_ID] for source, _ in pairs]).to(device)
    tgt = PackedSequences.from_lists([[BOS_ID, *target] for _, target in pairs]).to(device)
    by_layer = [weights.cpu() for weights in islice(model.cross_attention(src, tgt), first, end)]
    weights = torch.stack(by_layer).numpy()  # (layers, num_sentences, heads, tgt_len, src_len)
    maps = []
    for sentence, (source, target) in enumerate(pairs):
        sentence_weights = weights[:, sentence, :, : len(target) + 1, : len(source) + 1]
        maps.append(np.stack([sentence_weights[:, :, :-1], sentence_weights[:, :, 1:]]))  # output, input
    return maps


class WordAligner:
    """Aligns the words of sentence pairs with a model, its tokenizers and its normalization."""

    def __init__(
        self,
        model: AttendingModel,
        encoder: PairEncoder,
        attention: AlignmentAttention,
        *,
        device: torch.device,
        batch_tokens: int,
    ) -> None:
        """Wrap a model in memory; `load` reads one from disk.

        device: device of the model; batch_tokens: maximum tokens of a side in a batch
        """
        self.encoder, self.attention = encoder, attention
        self._model, self._device, self._batch_tokens = model, device, batch_tokens

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", decode: DecodeRecipe | None = None) -> WordAligner:
        """Load a model directory, a checkpoint or a run; raises UserError if there is no such model, layer or head.

        decode: options that replace those of the model
        """
        torch_device = choose_device(device)
        loaded = load_model(Path(path), torch_device)
        require_kind(loaded.directory, loaded.metadata, language_model=False)
        warn_of_run(Path(path), loaded.metadata)
        options = loaded.metadata.decode
        if decode is not None:
            options = decode.over(options, needs_alignments=True)
        tokenizers = Tokenizers.load(loaded.directory)
        return cls(
            loaded.model,
            loaded.pair_encoder(tokenizers, options.tag),
            AlignmentAttention.from_recipe(options, loaded.model.recipe),
            device=torch_device,
            batch_tokens=choose_batch_tokens(options, torch_device, [(loaded.model.recipe, tokenizers.tgt.vocab_size)]),
        )

    def align(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        first_line: int = 1,
        names: tuple[str, str] = ("source", "target"),
    ) -> list[Links]:
        """Return the links between the words of the given lines, for each pair.

        Raises UserError for a sentence that does not fit the model's positions.

        first_line: line number of the first pair; names: names of both sides in errors
        """
        pairs = [self.encoder.encode(source, target) for source, target in zip(sources, targets, strict=True)]
        self.encoder.require_fit(pairs, first_line, names)
        lines = zip(self.attended(pairs), sources, targets, strict=True)
        return [link_words(attended, *self.words(source, target)) for attended, source, target in lines]

    def words(self, source: str, target: str) -> tuple[list[int | None], list[int | None]]:
        """Return the index of the word of each source and target token in the given lines; see `drop_punctuation`."""
        return self._words(self.encoder.tokenizers.src, source), self._words(self.encoder.tokenizers.tgt, target)

    def _words(self, tokenizer: Tokenizer, line: str) -> list[int | None]:
        text = normalize(line, self.encoder.unicode_form)
        ids, starts = tokenizer.encode_with_starts(text)
        words = words_of_starts(text, starts, words_as_given(line, self.encoder.unicode_form))
        return drop_punctuation(words, tokenizer.pieces(ids))

    def align_parts(
        self,
        lines: Sequence[str],
        parts_of_lines: Sequence[Sequence[Part]],
        outputs: Sequence[Sequence[tuple[Sequence[int], str]]],
    ) -> list[list[Links]]:
        """Return the links between the words of each line and the words of the translations of its parts.

        parts_of_lines: the parts of each line, in order
        outputs: token ids and text of each translation of each part; parts of all lines in order
        """
        pairs: list[TokenPair] = []
        for part, translations in zip(chain.from_iterable(parts_of_lines), outputs, strict=True):
            pairs += [(part.tokens, tokens) for tokens, _ in translations]
        attended = iter(self.attended(pairs))
        words_of_parts: list[list[int | None]] = []
        for line, parts in zip(lines, parts_of_lines, strict=True):
            words_of_parts += self._words_of_parts(line, parts)
        links: list[list[Links]] = []
        for src_words, translations in zip(words_of_parts, outputs, strict=True):
            links.append([])
            for tokens, text in translations:
                pieces = self.encoder.tokenizers.tgt.pieces(tokens)
                tgt_words = drop_punctuation(words_of_pieces(pieces, words_as_printed(text)), pieces)
                links[-1].append(link_words(next(attended), src_words, tgt_words))
        return links

    def _words_of_parts(self, line: str, parts: Sequence[Part]) -> list[list[int | None]]:
        """Return the word of the line for each token of each part."""
        text, line_words = normalize(line, self.encoder.unicode_form), words_as_given(line, self.encoder.unicode_form)
        tokenizer, words = self.encoder.tokenizers.src, []
        for part in parts:
            ids, starts = tokenizer.encode_with_starts(part.text)
            starts = [part.start + start for start in starts[: len(part.tokens)]]
            pieces = tokenizer.pieces(ids[: len(starts)])
            words.append(drop_punctuation(words_of_starts(text, starts, line_words), pieces))
        return words

    def attended(self, pairs: Sequence[TokenPair]) -> list[list[int]]:
        """Return the most attended source token of each target token of each pair."""
        attended: list[list[int]] = [[] for _ in pairs]
        for index, layers in self._maps(pairs, self.attention.layer):
            attended[index] = self.attention.attended(layers[:, 0])
        return attended

    def maps(self, pairs: Sequence[TokenPair]) -> list[AttentionMap]:
        """Return the map of all layers and heads for each pair."""
        maps = dict(self._maps(pairs))
        return [maps[index] for index in range(len(pairs))]

    def _maps(self, pairs: Sequence[TokenPair], only_layer: int | None = None) -> Iterator[tuple[int, AttentionMap]]:
        """Yield index and map of each pair, in batches of similar length."""
        lengths = [np.array([len(pair[side]) for pair in pairs], dtype=np.int64) for side in (0, 1)]
        for ids in plan_by_length(*lengths, micro_batch_tokens=self._batch_tokens):
            batch = [self.encoder.in_model_order(pairs[i]) for i in ids]
            maps = attention_maps(self._model, batch, self._device, only_layer)
            yield from zip(ids.tolist(), (self._in_reading_order(attention_map) for attention_map in maps), strict=True)

    def _in_reading_order(self, attention_map: AttentionMap) -> AttentionMap:
        attention_map = attention_map[..., len(self.encoder.tag) :]
        return attention_map[:, :, :, ::-1] if self.encoder.reverse_target else attention_map
