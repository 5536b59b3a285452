"""Scores against hand-made probabilities, and cached decoding against full forward passes."""

import math
from functools import cache
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.decode.scoring import score_pairs
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.search.beam_search import beam_search
from nmt.search.options import SearchOptions
from nmt.special_ids import BOS_ID, EOS_ID
from tests.vectors import load_vectors

VOCAB = 24


def make_batch(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Return a batch of the pairs, which are given without special tokens."""
    return Batch(
        src=PackedSequences.from_lists([[*src, EOS_ID] for src, _ in pairs]),
        tgt=PackedSequences.from_lists([[BOS_ID, *tgt] for _, tgt in pairs]),
        labels=torch.tensor([token for _, tgt in pairs for token in (*tgt, EOS_ID)]),
    )


class FixedLogits:
    """A forward model whose hidden states are the logits."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.num_chunks = 0

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        assert tgt.total == self.rows.shape[0]
        return self.rows

    def logits(self, hidden: Tensor) -> Tensor:
        self.num_chunks += 1
        return hidden


def test_scores_equal_those_of_fairseq() -> None:
    table = load_vectors("fairseq_scorer.json")
    expected = table["expected_positional_probs"]
    targets = [[4 + i % 3 for i in range(len(probs) - 1)] for probs in expected]
    batch = make_batch([([4, 5], target) for target in targets])
    rows = torch.empty(batch.tgt.total, 7)
    for row, label, p in zip(rows, batch.labels.tolist(), (p for probs in expected for p in probs), strict=True):
        row.fill_(math.log((1 - p) / 6) + 3.0)  # softmax ignores additive constants
        row[label] = math.log(p) + 3.0
    scores = score_pairs(FixedLogits(rows), batch)
    for score, probs, theirs in zip(scores, expected, table["score"], strict=True):
        assert [math.exp(x) for x in score.token_log_probs] == pytest.approx(probs, rel=1e-5)
        assert score.log_prob / len(probs) == pytest.approx(theirs, rel=1e-5)


def test_logits_are_computed_in_chunks() -> None:
    torch.manual_seed(0)
    lengths = [700, 0, 900, 650]  # chunks end within sentences
    targets = [torch.randint(4, VOCAB, (length,)).tolist() for length in lengths]
    batch = make_batch([([4], target) for target in targets])
    logits = torch.randn(batch.tgt.total, VOCAB) * 5
    expected = -F.cross_entropy(logits.double(), batch.labels, reduction="none")
    model = FixedLogits(logits)
    scores = score_pairs(model, batch)
    assert model.num_chunks > 1
    assert [x for score in scores for x in score.token_log_probs] == pytest.approx(
        expected.tolist(), rel=1e-5, abs=1e-6
    )
    sums = [part.sum().item() for part in expected.split([length + 1 for length in lengths])]  # with EOS
    assert [score.log_prob for score in scores] == pytest.approx(sums, rel=1e-6)


def random_transformer(norm_order: Literal["post", "pre"]) -> Transformer:
    torch.manual_seed(3)
    recipe = ModelRecipe(
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=2,
        num_decoder_layers=2,
        norm_order=norm_order,
        max_positions=40,
    )
    model = Transformer(recipe, VOCAB, VOCAB)
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter.mul_(1.7).add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


SOURCES = [[5, 6, 7, 8], [9], [], [10, 11, 12, 13, 14, 15, 16, 17, 18], [5, 5, 5], [20, 4]]


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_search_and_forward_agree_on_every_probability(norm_order: Literal["post", "pre"], beam_size: int) -> None:
    """Incremental steps with reordered and shrinking caches equal a full forward pass."""
    model = random_transformer(norm_order)
    options = SearchOptions(beam_size, n_best=beam_size, max_extra_tokens=20)
    found = beam_search(model, PackedSequences.from_lists([[*src, EOS_ID] for src in SOURCES]), options)
    pairs = [
        (src, hypothesis.tokens) for src, hypotheses in zip(SOURCES, found, strict=True) for hypothesis in hypotheses
    ]
    scores = score_pairs(model, make_batch(pairs))
    flat = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    assert len({len(hypothesis.tokens) for hypothesis in flat}) > 3, "the outputs should have several lengths"
    for hypothesis, score in zip(flat, scores, strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, rel=1e-4, abs=1e-4)
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, rel=1e-4, abs=1e-4)


def test_bf16_search_and_forward_agree_within_rounding() -> None:
    model = random_transformer("post").bfloat16()
    options = SearchOptions(beam_size=3, max_extra_tokens=10)
    found = beam_search(model, PackedSequences.from_lists([[*src, EOS_ID] for src in SOURCES]), options)
    scores = score_pairs(model, make_batch([(src, h.tokens) for src, [h] in zip(SOURCES, found, strict=True)]))
    for [hypothesis], score in zip(found, scores, strict=True):
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=0.3)
    differences = [
        abs(score.log_prob - h.log_prob) / (1 + len(h.tokens)) for [h], score in zip(found, scores, strict=True)
    ]
    assert max(differences) < 0.1


@pytest.mark.slow
def test_search_equals_the_reference_with_full_forward_passes() -> None:
    """The same hypotheses as a plain beam that runs the full model for every prefix."""
    model, beam_size = random_transformer("post").double(), 3
    options = SearchOptions(beam_size, n_best=beam_size, max_extra_tokens=6)

    @cache
    @torch.no_grad()
    def log_probs(src: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        batch = make_batch([(list(src), list(prefix))])
        last: list[float] = model.logits(model(batch.src, batch.tgt)[-1]).log_softmax(0).tolist()
        return last

    def plain(src: tuple[int, ...]) -> list[tuple[float, tuple[int, ...]]]:
        limit = len(src) + options.max_extra_tokens
        live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for n in range(1, limit + 2):  # number of tokens, EOS included
            allowed = range(EOS_ID, VOCAB) if n <= limit else [EOS_ID]
            grown = [(lp + log_probs(src, tokens)[t], (*tokens, t)) for lp, tokens in live for t in allowed]
            grown = sorted(grown, reverse=True)[: 2 * beam_size]
            penalty = ((5 + n) / 6) ** options.length_alpha
            ended += [(lp / penalty, tokens[:-1]) for lp, tokens in grown if tokens[-1] == EOS_ID]
            live = [(lp, tokens) for lp, tokens in grown if tokens[-1] != EOS_ID][:beam_size]
        return sorted(ended, reverse=True)[:beam_size]

    sources = [SOURCES[0], SOURCES[2], SOURCES[4]]
    found = beam_search(model, PackedSequences.from_lists([[*src, EOS_ID] for src in sources]), options)
    for src, hypotheses in zip(sources, found, strict=True):
        expected = plain(tuple(src))
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == [tokens for _, tokens in expected]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([s for s, _ in expected], rel=1e-5)
