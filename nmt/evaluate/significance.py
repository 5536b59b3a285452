"""Paired significance tests: sacreBLEU's bootstrap, and approximate randomization that counts ties.

`_randomization` explains why its p-value is not sacreBLEU's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sacrebleu.significance import PairedTest, Result

from nmt.errors import CommandError, UserError
from nmt.evaluate.metrics import Scorer, check_aligned, check_seed
from nmt.evaluate.sentence_counts import score_from_counts, sentence_counts
from nmt.logs import warn

# Score differences (0 to 100) within this tolerance are equal: their sums were added in different orders.
_TOLERANCE = 1e-9
# Number of chunks in which trials are processed; bounds memory.
_PARTS = 20

Systems = Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class PairedScore:
    """Score of one system, compared with the baseline. Fields of a test that was not run are None.

    mean, interval:  mean over bootstrap resamples and half width of the 95% interval
    difference:      from the baseline; None for the baseline, as are the p-values
    p_bootstrap:     paired bootstrap resampling (Koehn 2004); None also if the scores are equal in each resample
    p_randomization: paired approximate randomization (Riezler and Maxwell 2005)
    """

    system: str
    score: float
    mean: float | None
    interval: float | None
    difference: float | None
    p_bootstrap: float | None
    p_randomization: float | None


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

    resamples: of the paired bootstrap, which equals `sacrebleu --paired-bs` exactly; 0 skips it
    trials:    of approximate randomization, the same as those of `sacrebleu --paired-ar`; 0 skips it

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
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.isdigit() and int(seed) == 0:
        raise UserError("SACREBLEU_SEED must not be 0, which sacreBLEU's paired tests treat as unset")
    check_aligned({**systems, **{f"reference {n}": lines for n, lines in enumerate(references, start=1)}})
    prepared = [(name, [scorer.prepare(line) for line in lines]) for name, lines in systems.items()]
    refs = [[scorer.prepare(line) for line in stream] for stream in references]
    signatures: list[str] = []
    bootstrap: list[Result | None] = [None] * len(systems)
    randomization: list[Result | None] = [None] * len(systems)
    if resamples:
        signature, bootstrap = _bootstrap(prepared, refs, scorer, resamples)
        signatures.append(signature)
    if trials:
        signature, randomization = _randomization(prepared, refs, scorer, trials, seed)
        signatures.append(signature)
    rows: list[PairedScore] = []
    for name, by_bootstrap, by_trials in zip(systems, bootstrap, randomization, strict=True):
        score = _get(by_bootstrap or by_trials, "score")
        assert score is not None
        rows.append(
            PairedScore(
                name,
                score,
                mean=_get(by_bootstrap, "mean"),
                interval=_get(by_bootstrap, "ci"),
                difference=score - rows[0].score if rows else None,
                p_bootstrap=_get(by_bootstrap, "p_value"),
                p_randomization=_get(by_trials, "p_value"),
            )
        )
    for index, row in enumerate(rows[1:], start=1):
        # If the scores are equal in each resample, too, sacreBLEU's bootstrap returns its smallest p-value.
        if row.difference == 0 and row.p_bootstrap is not None and row.p_bootstrap < 2 / (resamples + 1):
            rows[index] = replace(row, p_bootstrap=None)
            if prepared[index][1] != prepared[0][1]:
                warn(f"{row.system} has the same {scorer.name} as the baseline; it has no p-value by bootstrap")
    return Comparison(scorer.name, tuple(signatures), tuple(rows))


def _bootstrap(
    systems: Systems, references: Sequence[Sequence[str]], scorer: Scorer, resamples: int
) -> tuple[str, list[Result | None]]:
    scorer.metric.n_bootstrap = scorer.metric.seed = None
    test = PairedTest(list(systems), {scorer.name: scorer.metric}, references, test_type="bs", n_samples=resamples)
    signatures, scores = test()
    ((kind, signature),) = signatures.items()
    return scorer.sign(kind, signature), [result for result in scores[kind] if isinstance(result, Result)]


def _randomization(
    systems: Systems, references: Sequence[Sequence[str]], scorer: Scorer, trials: int, seed: str
) -> tuple[str, list[Result | None]]:
    """Swap the outputs of each sentence with probability 1/2; p is the fraction of trials that differ at least as much.

    sacreBLEU counts only trials that differ more. If the systems differ in few sentences, most trials differ exactly as
    much as the systems do: with one such sentence, sacreBLEU's p is 1 / (trials + 1), while the correct one is 1.
    """
    metric = scorer.metric
    metric.n_bootstrap = metric.seed = None
    counts = [sentence_counts(metric, lines, references) for _, lines in systems]  # (sentences, counts) each
    generator = np.random.default_rng(None if seed.lower() == "none" else int(seed))
    swapped = generator.integers(2, size=(trials, len(counts[0])), dtype=bool)
    scores = [metric.corpus_score(lines, references) for _, lines in systems]
    baseline, baseline_counts = scores[0], counts[0]
    results: list[Result | None] = [Result(float(baseline.score))]
    for score, system_counts in zip(scores[1:], counts[1:], strict=True):
        # (trials, counts), from the system to the baseline; in parts, because matmul converts `swapped` to float64.
        moved = np.concatenate([part @ (system_counts - baseline_counts) for part in np.array_split(swapped, _PARTS)])
        baseline_scores = score_from_counts(metric, baseline_counts.sum(axis=0) + moved)
        system_scores = score_from_counts(metric, system_counts.sum(axis=0) - moved)
        is_extreme = np.abs(baseline_scores - system_scores) >= abs(score.score - baseline.score) - _TOLERANCE
        results.append(Result(float(score.score), (int(is_extreme.sum()) + 1) / (trials + 1)))
    signature = metric.get_signature()
    signature.update("seed", seed.lower())
    signature.update("ar", trials)
    return scorer.sign(baseline.name, signature, ties="counted"), results


def _get(result: Result | None, field: str) -> float | None:
    value = getattr(result, field, None)
    return None if value is None else float(value)
