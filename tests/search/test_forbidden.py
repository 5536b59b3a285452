"""Forbidden phrases against a scan of the whole output."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.search.forbidden import ForbiddenPhrases

CPU = torch.device("cpu")
VOCAB = 8


def expected(phrases: list[tuple[int, ...]], output: list[int], vocab: int) -> list[bool]:
    """Return whether each token completes a phrase; True for PAD_ID, which is always impossible."""
    grown = [(*output, token) for token in range(vocab)]
    return [token == 0 or any(o[-len(p) :] == p for p in phrases) for token, o in enumerate(grown)]


def found(phrases: list[tuple[int, ...]], outputs: list[list[int]], vocab: int, padded: bool) -> list[list[bool]]:
    """Return which tokens `ForbiddenPhrases` makes impossible after hypotheses of one sentence and equal length.

    padded: use the implementation for GPUs
    """
    forbidden = ForbiddenPhrases(phrases, CPU)
    if padded:
        forbidden.forbid_listed = forbidden.forbid_padded  # type: ignore[method-assign]
    log_probs = torch.zeros(1, len(outputs), vocab)
    log_probs[:, :, 0] = float("-inf")
    nodes = torch.zeros(1, len(outputs), dtype=torch.int64)
    for tokens in torch.tensor([outputs]).unbind(2):
        nodes = forbidden.matcher.step(nodes, tokens)
    forbidden.apply(log_probs, nodes)
    assert ((log_probs == 0) | log_probs.isinf()).all()
    return log_probs[0].isinf().tolist()


tokens = st.integers(3, VOCAB - 1)


@pytest.mark.slow
@given(
    phrases=st.lists(st.lists(tokens, min_size=2, max_size=5).map(tuple), min_size=1, max_size=8),
    outputs=st.integers(1, 12).flatmap(
        lambda length: st.lists(st.lists(tokens, min_size=length, max_size=length), min_size=1, max_size=3)
    ),
)
@pytest.mark.parametrize("padded", [False, True])
def test_tokens_that_complete_a_phrase_are_impossible(
    phrases: list[tuple[int, ...]], outputs: list[list[int]], padded: bool
) -> None:
    assert found(phrases, outputs, VOCAB, padded) == [expected(phrases, output, VOCAB) for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_ten_thousand_phrases_equal_the_scan(padded: bool) -> None:
    rng = random.Random(0)
    phrases = [tuple(rng.randrange(3, 60) for _ in range(rng.randint(2, 4))) for _ in range(10_000)]
    outputs = [[rng.randrange(3, 60) for _ in range(9)] for _ in range(5)]
    assert found(phrases, outputs, 60, padded) == [expected(phrases, output, 60) for output in outputs]
