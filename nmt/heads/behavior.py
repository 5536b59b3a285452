"""What attention heads attend to (Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5).

All values except `alignment` are means over the positions that attend (queries). A query's most attended key is the
one with the highest weight. The boundary token is EOS for keys of the source and BOS for those of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAt
from nmt.alignment.choice import MAX_PAIRS, LinkSet, agreement
from nmt.alignment.lexical import agreed_links
from nmt.heads.masks import AttentionId, Head
from nmt.heads.pairs import Pairs
from nmt.heads.weights import reading_weights
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.special_ids import BOS_ID, EOS_ID

# A positional head attends to one offset from 90% of the positions (Voita et al.). The other roles need half.
POSITIONAL = 0.9
MOSTLY = 0.5
_OFFSETS = {"previous": -1, "same": 0, "next": 1}
Role = Literal["previous token", "same token", "next token", "boundary", "alignment", "rare tokens", ""]


@dataclass(frozen=True)
class Behavior:
    """What a head attends to. Measures that do not apply, or apply to no position of the text, are None.

    previous, same, next: of the queries with a key at this offset, the fraction that attend to it most
    distance:  mean distance to the keys in tokens, weighted by attention
    boundary:  weight of the boundary token
    rare:      fraction of queries whose most attended key is the visible token that is rarest in the text
    entropy:   of the weights, in nats
    alignment: F1 of the most attended source tokens against the links of a statistical aligner, at the better position
               `at`
    at:        decoder position that predicts a target token (`output`) or reads it (`input`)
    """

    previous: float | None
    same: float | None
    next: float | None
    distance: float | None
    boundary: float | None
    rare: float | None
    entropy: float | None
    alignment: float | None = None
    at: AlignmentAt | None = None

    @property
    def role(self) -> Role:
        """Return the first role whose measure is high enough, or "" for none."""
        roles: tuple[tuple[Role, float | None, float], ...] = (
            ("previous token", self.previous, POSITIONAL),
            ("same token", self.same, POSITIONAL),
            ("next token", self.next, POSITIONAL),
            ("boundary", self.boundary, MOSTLY),
            ("alignment", self.alignment, MOSTLY),
            ("rare tokens", self.rare, MOSTLY),
        )
        return next((role for role, value, least in roles if value is not None and value >= least), "")


@torch.inference_mode()
def measure_behavior(
    model: Transformer, pairs: Pairs, device: torch.device, advance: Callable[[], None] = lambda: None
) -> dict[Head, Behavior]:
    """Measure all heads on sentence pairs. advance: called after each batch"""
    collected = _Collector(_frequencies(pairs.sources, device), _frequencies(pairs.targets, device), pairs.tag_length)
    with reading_weights(model, collected.read):
        for ids, batch in pairs.batches(device):
            collected.pairs = ids
            model(batch.src, batch.tgt)
            advance()
    links = _reference_links(pairs)
    behavior: dict[Head, Behavior] = {}
    for key, means in collected.means().items():
        for index, measured in enumerate(means):
            if key.kind == "cross":
                measured["alignment"], measured["at"] = _agreement(pairs, links, collected.attended[key], index)
            behavior[Head(key, index)] = Behavior(**measured)
    return behavior


class _Collector:
    """Sums over the queries of all batches.

    src_frequency, tgt_frequency: occurrences of each token, as a table by token id
    pairs:    indices of the pairs of the current batch
    attended: most attended source token for each cross-attention and pair, (num_heads, queries)
    """

    def __init__(self, src_frequency: Tensor, tgt_frequency: Tensor, tag_length: int) -> None:
        self._frequency = {"encoder": src_frequency, "decoder": tgt_frequency, "cross": src_frequency}
        self._tag_length = tag_length
        self._sums: dict[AttentionId, dict[str, Tensor]] = {}
        self._counts: dict[AttentionId, dict[str, int]] = {}
        self.pairs: list[int] = []
        self.attended: dict[AttentionId, dict[int, list[list[int]]]] = {}

    def read(self, key: AttentionId, weights: Tensor, queries: PackedSequences, keys: PackedSequences) -> None:
        """Add the weights of an attention layer, (num_sentences, num_heads, queries, keys), to the sums."""
        query = torch.arange(weights.shape[2], device=weights.device)
        position = torch.arange(weights.shape[3], device=weights.device)
        is_decoder = key.kind == "decoder"
        lengths = keys.lengths[:, None]
        # The first query of the decoder's self-attention has only one key, itself.
        counted = (query < queries.lengths[:, None]) & (query >= int(is_decoder))  # (num_sentences, queries)
        is_word = (position > 0) & (position < lengths) if is_decoder else position < lengths - 1
        most = weights.argmax(dim=-1)  # (num_sentences, num_heads, queries)
        measures = {
            "entropy": (torch.special.entr(weights).sum(dim=-1), counted),
            "boundary": (weights[..., 0] if is_decoder else _weights_of_key(weights, keys.lengths - 1), counted),
            "rare": self._rare(key, keys, is_word, most, counted),
        }
        if key.kind == "cross":
            words = weights.masked_fill(~(is_word & (position >= self._tag_length))[:, None, None, :], -1.0)
            self.attended.setdefault(key, {}).update(zip(self.pairs, words.argmax(dim=-1).tolist(), strict=True))
        else:
            distance = (position - query[:, None]).abs().to(weights.dtype)
            measures["distance"] = ((weights * distance).sum(dim=-1), counted)
            for name, offset in _OFFSETS.items():
                exists = (query + offset >= 0) & (query + offset < lengths) & (offset <= 0 or not is_decoder)
                measures[name] = (most - query == offset, counted & exists)
        sums, counts = self._sums.setdefault(key, {}), self._counts.setdefault(key, {})
        for name, (values, where) in measures.items():
            total = (values * where[:, None]).sum(dim=(0, 2), dtype=torch.float64).cpu()
            sums[name] = sums.get(name, torch.zeros_like(total)) + total
            counts[name] = counts.get(name, 0) + int(where.sum())

    def _rare(
        self, key: AttentionId, keys: PackedSequences, is_word: Tensor, most: Tensor, counted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return whether the most attended key is the rarest visible one, and the queries that see a word."""
        tokens = keys.tokens[keys.one_per_row.tokens[:, : is_word.shape[1]]]
        frequency = self._frequency[key.kind][tokens].masked_fill(~is_word, float("inf"))  # (num_sentences, keys)
        if key.kind == "decoder":
            rarest = frequency.cummin(dim=1).values
        else:
            rarest = frequency.min(dim=1, keepdim=True).values.expand_as(counted)
        attended = frequency.gather(1, most.flatten(1)).view_as(most)
        return attended == rarest[:, None], counted & rarest.isfinite()

    def means(self) -> dict[AttentionId, list[dict[str, Any]]]:
        """Return the means of each head; None where nothing was counted."""
        names = ("previous", "same", "next", "distance", "boundary", "rare", "entropy")
        means: dict[AttentionId, list[dict[str, Any]]] = {}
        for key, sums in self._sums.items():
            counts = self._counts[key]
            means[key] = [
                {name: float(sums[name][head]) / counts[name] if counts.get(name) else None for name in names}
                for head in range(len(sums["entropy"]))
            ]
        return means


def _weights_of_key(weights: Tensor, key: Tensor) -> Tensor:
    """Return the weights of one key per sentence, (num_sentences, num_heads, queries). key: (num_sentences,)"""
    index = key[:, None, None, None].expand(*weights.shape[:3], 1)
    return weights.gather(3, index).squeeze(3)


def _frequencies(sentences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return the number of occurrences of each token id, float32, up to the highest id."""
    tokens = torch.tensor(list(chain.from_iterable(sentences)), dtype=torch.int64)
    return tokens.bincount(minlength=1 + max(BOS_ID, EOS_ID)).float().to(device)


def _reference_links(pairs: Pairs) -> list[LinkSet]:
    """Return (source, target) token links of the first pairs from a statistical aligner, in reading order."""
    order = slice(None, None, -1 if pairs.reverse_target else 1)
    sources = [source[pairs.tag_length :] for source in pairs.sources[:MAX_PAIRS]]
    return agreed_links([(source, target[order]) for source, target in zip(sources, pairs.targets, strict=False)])


def _agreement(
    pairs: Pairs, links: Sequence[LinkSet], attended: Mapping[int, list[list[int]]], head: int
) -> tuple[float, AlignmentAt]:
    """Return the agreement of a head's links with the reference at the better position, and that position."""
    first_queries: dict[AlignmentAt, int] = {"output": 0, "input": 1}  # of the first target token
    results = []
    for at, first in first_queries.items():
        head_links = [_head_links(pairs, number, attended[number][head][first:]) for number in range(len(links))]
        results.append((agreement(head_links, links), at))
    return max(results)


def _head_links(pairs: Pairs, number: int, attended: Sequence[int]) -> LinkSet:
    """Return the (source, target) links of a pair in reading order. attended: source position of each target token"""
    tag = pairs.tag_length
    last = len(pairs.targets[number]) - 1
    if len(pairs.sources[number]) <= tag:
        return set()
    linked = enumerate(attended[: last + 1])
    return {(source - tag, last - target if pairs.reverse_target else target) for target, source in linked}
