"""Which attention aligns best, found on development text without alignments by hand.

Each layer, at each place, is judged by how well its links agree with those of something else. Given a model of the
other direction, that is each layer and place of it, as in Chen et al. 2020, who take the pair of layers with the lowest
alignment error rate between the two. Otherwise it is a statistical aligner trained on the development text itself.
Within each layer, heads are then added to the best one as long as the agreement grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from nmt.alignment.attention import AttentionMap, ChosenAttention, Place, TokenPair, WordAligner
from nmt.alignment.lexical import agreed_links
from nmt.alignment.words import Links, link_words
from nmt.recipe import UserError

# The statistical aligner learns from this many pairs, and as many of them are compared: more would change nothing.
MOST_PAIRS, COMPARED_PAIRS = 5_000, 500

LinkSet = set[tuple[int, int]]


@dataclass(frozen=True)
class AttentionChoice:
    """What aligns best.

    attention: layer and heads; all heads where none is named
    agreement: F1 of its links and those that it was judged by, from 0 to 1
    of_layers: that of each layer and place, by the mean of all heads
    """

    attention: ChosenAttention
    agreement: float
    of_layers: dict[ChosenAttention, float]


def choose_attention(
    aligner: WordAligner, sources: Sequence[str], targets: Sequence[str], reverse: WordAligner | None = None
) -> AttentionChoice:
    """The layer, heads and place of the aligner's model that agree best on development text.

    reverse: the aligner of a model from target to source. Raises UserError where no pair has text and fits the models.
    """
    text = _readable_pairs(aligner, sources, targets)
    compared = text[:COMPARED_PAIRS]
    if reverse is not None:
        compared = [line for line in compared if reverse.fits(reverse.encode([line.target], [line.source])[0])]
    if not compared:
        raise UserError(
            "the development text has no pair of sentences that the models can hold; it must have some; give other text"
        )
    judges = [_statistical_links(text, len(compared))] if reverse is None else list(_links_back(reverse, compared))
    maps = aligner.maps([line.pair for line in compared])

    def judge(place: Place, layer: int, heads: Sequence[int]) -> float:
        chosen = ChosenAttention(layer, tuple(heads), place)
        found = [set(line.link(chosen.attended(one[:, layer]))) for line, one in zip(compared, maps, strict=True)]
        return max(agreement(found, links) for links in judges)

    _, num_layers, num_heads, *_ = maps[0].shape
    layers = [ChosenAttention(layer, (), place) for place in get_args(Place) for layer in range(num_layers)]
    of_layers = {one: judge(one.place, one.layer, ()) for one in layers}
    candidates = dict(of_layers)
    for one in layers:
        score, heads = _grow(partial(judge, one.place, one.layer), num_heads)
        candidates.setdefault(replace(one, heads=heads), score)
    best = max(candidates, key=lambda candidate: candidates[candidate])
    return AttentionChoice(best, candidates[best], of_layers)


def agreement(found: Sequence[LinkSet], others: Sequence[LinkSet]) -> float:
    """2 |A and B| / (|A| + |B|) over all pairs: 1 minus the alignment error rate between them (Och and Ney 2003)."""
    shared = sum(len(one & other) for one, other in zip(found, others, strict=True))
    return 2 * shared / max(sum(map(len, found)) + sum(map(len, others)), 1)


def _grow(judge: Callable[[Sequence[int]], float], num_heads: int) -> tuple[float, tuple[int, ...]]:
    """The best head and those whose addition, one after the other, raises what `judge` says; with that score."""
    heads: tuple[int, ...] = ()
    best = -1.0
    while len(heads) < num_heads:
        scores = [(judge((*heads, head)), -head) for head in range(num_heads) if head not in heads]
        score, head = max(scores)
        if score <= best:
            break
        best, heads = score, (*heads, -head)
    return best, tuple(sorted(heads))


@dataclass(frozen=True)
class _Line:
    """A pair of lines, its tokens, and the word of each source and target token."""

    source: str
    target: str
    pair: TokenPair
    words: tuple[list[int | None], list[int | None]]

    def link(self, attended: Sequence[int]) -> Links:
        return link_words(attended, *self.words)


def _readable_pairs(aligner: WordAligner, sources: Sequence[str], targets: Sequence[str]) -> list[_Line]:
    """The first pairs with text on both sides for which the model has positions."""
    pairs = aligner.encode(sources[:MOST_PAIRS], targets[:MOST_PAIRS])
    return [
        _Line(source, target, pair, aligner.words(source, target))
        for source, target, pair in zip(sources, targets, pairs, strict=False)
        if all(pair) and aligner.fits(pair)
    ]


def _statistical_links(text: Sequence[_Line], wanted: int) -> list[LinkSet]:
    """What the statistical aligner says of the first lines, in words."""
    links = agreed_links([line.pair for line in text])[:wanted]
    return [
        {
            (source, target)
            for i, j in tokens
            if (source := line.words[0][i]) is not None and (target := line.words[1][j]) is not None
        }
        for tokens, line in zip(links, text, strict=False)
    ]


def _links_back(reverse: WordAligner, text: Sequence[_Line]) -> Iterator[list[LinkSet]]:
    """What each place and layer of a model of the other direction says, in words, as links from source to target."""
    lines = _readable_pairs(reverse, [line.target for line in text], [line.source for line in text])
    maps: list[AttentionMap] = reverse.maps([line.pair for line in lines])
    for place in get_args(Place):
        for layer in range(maps[0].shape[1]):
            chosen = ChosenAttention(layer, (), place)
            yield [
                {(source, target) for target, source in line.link(chosen.attended(one[:, layer]))}
                for line, one in zip(lines, maps, strict=True)
            ]
