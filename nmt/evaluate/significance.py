"""Paired significance tests of corpus scores: bootstrap and approximate randomization.

Both draw the samples of sacreBLEU. `_p_bootstrap` and `_p_randomization` explain why the p-values are not its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sacrebleu.significance import estimate_ci

from nmt.errors import CommandError, UserError
from nmt.evaluate.metrics import Scorer, check_aligned, check_seed
from nmt.evaluate.sentence_counts import SentenceMetric, score_from_counts, sentence_counts
from nmt.rerank.corpus_counts import Counts

# Score differences (0 to 100) within this tolerance are equal: their sums were added in different orders.
_TOLERANCE = 1e-9
# Chunks of the randomization trials, and bootstrap resamples per chunk; both bound memory.
_PARTS = 20
_RESAMPLES_PER_PART = 50


@dataclass(frozen=True)
class PairedScore:
    """Score of one system, compared with the baseline. Fields of a test that was not run are None.

    mean, interval:  mean over bootstrap resamples and half width of the 95% interval
    difference:      from the baseline; None for the baseline, as are the p-values
    p_bootstrap:     paired bootstrap resampling (Koehn 2004), two-sided
    p_randomization: paired approximate randomization (Riezler and Maxwell 2005)
    """

    system: str
    score: float
    mean: float | None = None
    interval: float | None = None
    difference: float | None = None
    p_bootstrap: float | None = None
    p_randomization: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All systems on one metric, the baseline first; signatures of the tests, bootstrap first."""

    metric: str
    signatures: tuple[str, ...]
    systems: tuple[PairedScore, ...]


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    scorer: Scorer,
    *,
    resamples: int = 1000,
    trials: int = 10_000,
) -> Comparison:
    """Compare systems with the first one, the baseline.

    resamples: number of bootstrap resamples, the same as those of `sacrebleu --paired-bs`; 0 skips the test
    trials:    number of randomization trials, the same as those of `sacrebleu --paired-ar`; 0 skips the test

    The seed is the environment variable SACREBLEU_SEED (default: 12345). Raises UserError for fewer than two systems,
    streams of different lengths and unsupported seeds.
    """
    if len(systems) < 2:
        raise UserError(f"a comparison needs at least two systems, got {len(systems)}; add one")
    if not resamples and not trials:
        raise CommandError("a comparison needs a test; set --resamples or --trials above 0")
    if resamples == 1:
        raise CommandError("1 resample has no interval; --resamples must be 0 or at least 2; correct it")
    check_seed()
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed.isdigit() and int(seed) == 0:
        raise UserError("SACREBLEU_SEED must not be 0, which sacreBLEU's paired tests treat as unset")
    check_aligned({**systems, **{f"reference {n}": lines for n, lines in enumerate(references, start=1)}})
    metric = scorer.metric
    metric.n_bootstrap = metric.seed = None  # otherwise the signature shows those of an earlier call
    refs = scorer.prepare_references(references)
    outputs = [[scorer.prepare(line) for line in lines] for lines in systems.values()]
    counts = [sentence_counts(metric, lines, refs) for lines in outputs]
    results = [metric.corpus_score(lines, refs) for lines in outputs]
    scores = [float(result.score) for result in results]
    rows = [PairedScore(name, score) for name, score in zip(systems, scores, strict=True)]
    rows[1:] = [replace(row, difference=row.score - scores[0]) for row in rows[1:]]
    signatures: list[str] = []

    def sign(test: str, samples: int, note: dict[str, str]) -> None:
        signature = metric.get_signature()
        signature.update("seed", seed)
        signature.update(test, samples)
        signatures.append(scorer.sign(results[0].name, signature, **note))

    if resamples:
        resampled = _resample(metric, counts, resamples, seed)
        for index, sampled in enumerate(resampled):
            mean, interval = map(float, estimate_ci(sampled))
            p = _p_bootstrap(sampled - resampled[0], scores[index] - scores[0]) if index else None
            rows[index] = replace(rows[index], mean=mean, interval=interval, p_bootstrap=p)
        sign("bs", resamples, {"p": "two-sided"})
    if trials:
        for index, p in enumerate(_p_randomization(metric, counts, scores, trials, seed), start=1):
            rows[index] = replace(rows[index], p_randomization=p)
        sign("ar", trials, {"ties": "counted"})
    return Comparison(scorer.name, tuple(signatures), tuple(rows))


def _resample(metric: SentenceMetric, counts: Sequence[Counts], resamples: int, seed: str) -> list[Counts]:
    """Return the scores (resamples,) of each system on the same resamples of the sentences. counts: (sentences, ...)"""
    size = len(counts[0])
    generator = _generator(seed)
    sums: list[list[Counts]] = [[] for _ in counts]
    for first in range(0, resamples, _RESAMPLES_PER_PART):
        chosen = generator.choice(size, size=(min(_RESAMPLES_PER_PART, resamples - first), size), replace=True)
        weights = np.array([np.bincount(sentences, minlength=size) for sentences in chosen], dtype=np.float64)
        for parts, system_counts in zip(sums, counts, strict=True):
            parts.append(weights @ system_counts)
    return [score_from_counts(metric, np.concatenate(parts)) for parts in sums]


def _p_bootstrap(differences: Counts, observed: float) -> float:
    """Return the fraction of resampled differences that, centered at their mean, are at least as large as the observed.

    sacreBLEU centers absolute differences and excludes ties. Its p is about half of this one, and less if few sentences
    differ.
    """
    return _fraction(np.abs(differences - differences.mean()), observed)


def _p_randomization(
    metric: SentenceMetric, counts: Sequence[Counts], scores: Sequence[float], trials: int, seed: str
) -> list[float]:
    """Swap the outputs of each sentence with probability 1/2; p is the fraction of trials that differ at least as much.

    sacreBLEU counts only trials that differ more. If the systems differ in few sentences, most trials differ exactly as
    much as the systems do: with one such sentence, sacreBLEU's p is 1 / (trials + 1), while the correct one is 1.
    """
    baseline, *others = counts
    swapped = _generator(seed).integers(2, size=(trials, len(baseline)), dtype=bool)
    result = []
    for system, score in zip(others, scores[1:], strict=True):
        # (trials, counts), from the system to the baseline; in parts, because matmul converts `swapped` to float64.
        moved = np.concatenate([part @ (system - baseline) for part in np.array_split(swapped, _PARTS)])
        baseline_scores = score_from_counts(metric, baseline.sum(axis=0) + moved)
        system_scores = score_from_counts(metric, system.sum(axis=0) - moved)
        result.append(_fraction(np.abs(baseline_scores - system_scores), score - scores[0]))
    return result


def _generator(seed: str) -> np.random.Generator:
    return np.random.default_rng(None if seed == "none" else int(seed))


def _fraction(differences: Counts, observed: float) -> float:
    """Return the fraction of differences that are at least the observed one, which counts as one of them."""
    return (int((differences >= abs(observed) - _TOLERANCE).sum()) + 1) / (len(differences) + 1)
