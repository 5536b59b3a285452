"""Paired tests against samples, and all possible swaps, scored by sacreBLEU."""

import tracemalloc
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmt.evaluate.metrics import make_scorer
from nmt.evaluate.significance import compare_systems

METRICS = {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}
REFERENCE = [
    "the old man buys a red car in the town",
    "we work in the garden on every day of the week",
    "she reads a long book about the history of music",
    "they drive to the sea when the sun is shining",
    "the dog sleeps under the big table in the kitchen",
    "nobody knows where the small key of the door is",
]
FIRST = [
    "the old man buys a red car in a town",
    "we work in the garden on each day of the week",
    "she reads a book about the history of music",
    "they drive to the sea when the sun shines",
    "a dog sleeps under a big table in a kitchen",
    "nobody knows where the key of the door is",
]
SECOND = [
    "the old man buys a car of red in a town",
    "we work in the garden on every day of a week",
    "she reads one book on the history of music",
    "they go to the sea when the sun shines",
    "the dog sleeps under a table in the kitchen",
    "nobody knows where the key of a door may be",
]
TRIALS = 2_000


def p_randomization(metric: str, first: list[str], second: list[str], references: list[list[str]]) -> float:
    comparison = compare_systems(
        {"first": first, "second": second},
        references,
        make_scorer(metric, tgt_lang="en"),
        resamples=0,
        trials=TRIALS,
    )
    (signature,) = comparison.signatures
    assert f"|ar:{TRIALS}|seed:12345|" in signature and "|ties:counted|" in signature
    p = comparison.systems[1].p_randomization
    assert p is not None
    return p


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("number_of_references", [1, 3])
def test_p_value_agrees_with_all_swaps_and_the_trials_of_sacrebleu(metric: str, number_of_references: int) -> None:
    references = [REFERENCE, FIRST[::-1], SECOND[::-1]][:number_of_references]
    sentences = list(zip(FIRST, SECOND, strict=True))

    def difference(swaps: tuple[bool, ...]) -> float:
        swapped = [pair[::-1] if swap else pair for pair, swap in zip(sentences, swaps, strict=True)]
        first, second = ([pair[side] for pair in swapped] for side in (0, 1))
        score = METRICS[metric].corpus_score
        return float(round(abs(score(first, references).score - score(second, references).score), 9))

    differences = {swaps: difference(swaps) for swaps in product((False, True), repeat=len(sentences))}
    observed = differences[(False,) * len(sentences)]
    exact = sum(found >= observed for found in differences.values()) / len(differences)
    p = p_randomization(metric, FIRST, SECOND, references)
    assert abs(p - exact) < 4 * np.sqrt(exact * (1 - exact) / TRIALS)  # four standard deviations
    # sacreBLEU draws its trials with the same generator, shape and seed.
    drawn = np.random.default_rng(12345).integers(2, size=(TRIALS, len(sentences)), dtype=bool)
    extreme = sum(differences[tuple(swaps)] >= observed for swaps in drawn.tolist())
    assert p == (extreme + 1) / (TRIALS + 1)


@pytest.mark.parametrize("metric", METRICS)
def test_one_different_sentence_is_no_evidence(metric: str) -> None:
    """sacreBLEU returns its smallest p-value, because no swap increases the difference."""
    first, second, reference = FIRST * 5, [SECOND[0], *(FIRST * 5)[1:]], REFERENCE * 5
    assert p_randomization(metric, first, second, [reference]) == 1.0
    named: list[tuple[str, Sequence[str]]] = [("first", first), ("second", second)]
    _, scores = PairedTest(named, {metric: METRICS[metric]}, [reference], test_type="ar", n_samples=TRIALS)()
    (theirs,) = (rows[1] for rows in scores.values() if isinstance(rows[1], Result))
    assert theirs.p_value == 1 / (TRIALS + 1)


@pytest.mark.parametrize("metric", METRICS)
def test_different_outputs_of_equal_score_are_no_evidence(metric: str) -> None:
    first, second = ["a b c d e", "v w x y z"], ["v w x y z", "a b c d e"]
    assert p_randomization(metric, first, second, [["a b c d e", "a b c d e"]]) == 1.0


def p_bootstrap(metric: str, first: list[str], second: list[str], references: list[list[str]], resamples: int) -> float:
    systems, scorer = {"first": first, "second": second}, make_scorer(metric, tgt_lang="en")
    comparison = compare_systems(systems, references, scorer, resamples=resamples, trials=0)
    assert f"|bs:{resamples}|seed:12345|" in comparison.signatures[0] and "|p:two-sided|" in comparison.signatures[0]
    p = comparison.systems[1].p_bootstrap
    assert p is not None
    return p


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("number_of_references", [1, 3])
def test_bootstrap_agrees_with_resampled_text_scored_by_sacrebleu(metric: str, number_of_references: int) -> None:
    references = [REFERENCE, FIRST[::-1], SECOND[::-1]][:number_of_references]

    def score(lines: list[str], chosen: Sequence[int]) -> float:
        refs = [[stream[i] for i in chosen] for stream in references]
        return float(METRICS[metric].corpus_score([lines[i] for i in chosen], refs).score)

    # sacreBLEU draws its resamples with the same generator, shape and seed.
    drawn = np.random.default_rng(12345).choice(len(REFERENCE), size=(120, len(REFERENCE)), replace=True).tolist()
    differences = np.array([score(SECOND, chosen) - score(FIRST, chosen) for chosen in drawn])
    observed = score(SECOND, range(6)) - score(FIRST, range(6))
    extreme = np.abs(differences - differences.mean()) >= abs(observed) - 1e-9
    assert p_bootstrap(metric, FIRST, SECOND, references, 120) == (extreme.sum() + 1) / 121


@pytest.mark.parametrize("metric", METRICS)
def test_bootstrap_of_one_different_sentence_is_no_evidence(metric: str) -> None:
    """sacreBLEU returns a p-value below 0.2."""
    first, second, reference = FIRST * 5, [SECOND[0], *(FIRST * 5)[1:]], REFERENCE * 5
    assert p_bootstrap(metric, first, second, [reference], 500) > 0.4
    assert p_bootstrap(metric, first, [f"{line} " for line in first], [reference], 50) == 1.0


@pytest.mark.slow
def test_randomization_needs_less_than_four_bytes_for_each_trial_and_sentence() -> None:
    """float64 swaps would need eight. Few sentences and many trials, because TER is slow."""
    trials, first, second, reference = 100_000, FIRST * 10, SECOND * 10, REFERENCE * 10
    scorer = make_scorer("ter", tgt_lang="en")
    tracemalloc.start()
    try:
        compare_systems({"first": first, "second": second}, [reference], scorer, resamples=0, trials=trials)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * trials * len(reference)
