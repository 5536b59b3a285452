"""Detection of swapped sides, on token ids."""

import numpy as np
import pytest

from nmt.text.sides import Ids, are_swapped


def sample(seed: int, weights: list[float], count: int = 4000) -> Ids:
    """Sample token ids with probabilities proportional to the weights."""
    probabilities = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(len(weights), count, p=probabilities).astype(np.uint16)


ENGLISH, GERMAN, DUTCH = [5, 4, 1, 0.2, 0.1], [0.1, 0.3, 1, 5, 4], [0.3, 0.4, 1, 4, 5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ((ENGLISH, GERMAN), False),
        ((GERMAN, ENGLISH), True),
        ((GERMAN, GERMAN), False),  # only one side is wrong
        ((ENGLISH, ENGLISH), False),
    ],
)
def test_swapped_sides_must_each_match_the_other(text: tuple[list[float], list[float]], expected: bool) -> None:
    train = sample(1, ENGLISH), sample(2, GERMAN)
    assert are_swapped((sample(3, text[0]), sample(4, text[1])), train) == expected


def test_close_and_equal_languages_and_short_texts_have_too_little_evidence() -> None:
    assert not are_swapped((sample(3, DUTCH), sample(4, GERMAN)), (sample(1, GERMAN), sample(2, DUTCH)))
    assert not are_swapped((sample(3, GERMAN, 600), sample(4, GERMAN, 600)), (sample(1, GERMAN), sample(2, GERMAN)))
    assert not are_swapped((sample(3, GERMAN, 400), sample(4, ENGLISH)), (sample(1, ENGLISH), sample(2, GERMAN)))


def test_tokens_that_the_training_text_lacks_are_no_evidence() -> None:
    train = sample(1, ENGLISH), sample(2, GERMAN)
    unknown = np.full(1000, 60_000, dtype=np.uint16)
    assert not are_swapped((unknown, unknown), train)
