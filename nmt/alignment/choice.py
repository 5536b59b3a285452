"""Choose the attention that aligns best on the validation set; no gold alignments are required.

Each decoder layer and position is rated by its agreement with a reference. With a reverse model, the references are the
links of all its layers and positions, as in Chen et al. 2020, who choose the pair of layers with the lowest alignment
error rate between the two models. Otherwise the reference is a statistical aligner trained on the validation set.
Heads of each layer are then selected greedily while the agreement improves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nmt.alignment.attention import POSITIONS, AlignmentAttention, AttentionMap, WordAligner
from nmt.alignment.lexical import agreed_links
from nmt.alignment.words import link_words
from nmt.errors import UserError
from nmt.text.pair_encoder import TokenPair

# Maximum number of pairs for training the statistical aligner and for comparison; bounds the time.
MAX_PAIRS, COMPARED_PAIRS = 5_000, 500

LinkSet = set[tuple[int, int]]


@dataclass(frozen=True)
class AttentionChoice:
    """The attention that aligns best.

    attention: layer, heads and position
    agreement: F1 of its links against those of the reference, 0 to 1
    by_layer:  agreement of the mean of all heads, for each layer and position
    """

    attention: AlignmentAttention
    agreement: float
    by_layer: dict[AlignmentAttention, float]


def choose_attention(
    aligner: WordAligner, sources: Sequence[str], targets: Sequence[str], reverse: WordAligner | None = None
) -> AttentionChoice:
    """Choose the layer, heads and position of the aligner's model with the highest agreement on the validation set.

    Raises UserError if no pair has text on both sides and fits the models.

    reverse: aligner of a target-to-source model
    """
    lines = _usable_lines(aligner, sources, targets)
    compared = lines[:COMPARED_PAIRS]
    if reverse is not None:
        compared = [line for line in compared if _usable_lines(reverse, [line.target], [line.source])]
    if not compared:
        raise UserError("the validation set has no pair that fits the models; it must have one; use different text")
    references = [_statistical_links(lines, len(compared))] if reverse is None else _reverse_links(reverse, compared)
    maps = aligner.maps([line.pair for line in compared])

    def rate(attention: AlignmentAttention) -> float:
        links = [line.links(attention, attention_map) for line, attention_map in zip(compared, maps, strict=True)]
        return max(agreement(links, reference) for reference in references)

    num_heads = maps[0].shape[2]
    layers = _layers(maps)
    by_layer = {layer: rate(layer) for layer in layers}
    candidates = dict(by_layer)
    for layer in layers:
        attention, rating = _select_heads(rate, layer, num_heads)
        candidates.setdefault(attention, rating)
    best = max(candidates, key=lambda candidate: candidates[candidate])
    return AttentionChoice(best, candidates[best], by_layer)


def _layers(maps: Sequence[AttentionMap]) -> list[AlignmentAttention]:
    """Return the mean attention of each layer at each position."""
    return [AlignmentAttention(layer, (), position) for position in POSITIONS for layer in range(maps[0].shape[1])]


def agreement(links: Sequence[LinkSet], others: Sequence[LinkSet]) -> float:
    """Return 2 |A and B| / (|A| + |B|) over all pairs: 1 minus the alignment error rate (Och and Ney 2003)."""
    shared = sum(len(linked & other) for linked, other in zip(links, others, strict=True))
    return 2 * shared / max(sum(map(len, links)) + sum(map(len, others)), 1)


def _select_heads(
    rate: Callable[[AlignmentAttention], float], layer: AlignmentAttention, num_heads: int
) -> tuple[AlignmentAttention, float]:
    """Add heads of a layer greedily while the rating improves; return the attention and its rating."""
    heads: tuple[int, ...] = ()
    best = -1.0
    while len(heads) < num_heads:
        ratings = {head: rate(replace(layer, heads=(*heads, head))) for head in range(num_heads) if head not in heads}
        best_head = max(ratings, key=lambda head: ratings[head])  # the lowest of equally good ones
        if ratings[best_head] <= best:
            break
        best = ratings[best_head]
        heads = (*heads, best_head)
    return replace(layer, heads=tuple(sorted(heads))), best


@dataclass(frozen=True)
class _Line:
    """A pair of lines, its token ids, and the word of each source and target token."""

    source: str
    target: str
    pair: TokenPair
    words: tuple[list[int | None], list[int | None]]

    def links(self, attention: AlignmentAttention, attention_map: AttentionMap) -> LinkSet:
        return set(link_words(attention.attended(attention_map[:, attention.layer]), *self.words))


def _usable_lines(aligner: WordAligner, sources: Sequence[str], targets: Sequence[str]) -> list[_Line]:
    """Return those of the first `MAX_PAIRS` pairs that have text on both sides and fit the model's positions."""
    lines = []
    for source, target in zip(sources[:MAX_PAIRS], targets[:MAX_PAIRS], strict=True):
        pair = aligner.encoder.encode(source, target)
        if all(pair) and aligner.encoder.fits(pair):
            lines.append(_Line(source, target, pair, aligner.words(source, target)))
    return lines


def _statistical_links(lines: Sequence[_Line], count: int) -> list[LinkSet]:
    """Return the word links of the first `count` lines from a statistical aligner trained on all."""
    links_of_lines: list[LinkSet] = []
    token_links = agreed_links([line.pair for line in lines])
    for line, linked_tokens in zip(lines[:count], token_links[:count], strict=True):
        src_words, tgt_words = line.words
        links = {(src_words[i], tgt_words[j]) for i, j in linked_tokens}
        links_of_lines.append({(i, j) for i, j in links if i is not None and j is not None})
    return links_of_lines


def _reverse_links(reverse: WordAligner, compared: Sequence[_Line]) -> list[list[LinkSet]]:
    """Return the source-to-target word links of each position and layer of a reverse model."""
    lines = _usable_lines(reverse, [line.target for line in compared], [line.source for line in compared])
    maps = reverse.maps([line.pair for line in lines])
    return [
        [
            {(source, target) for target, source in line.links(attention, attention_map)}
            for line, attention_map in zip(lines, maps, strict=True)
        ]
        for attention in _layers(maps)
    ]
