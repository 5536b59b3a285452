"""Is one system better than another, or was it luck? sacreBLEU's paired tests, for every metric that is offered.

Only the p-value of approximate randomization is counted here: see `_randomization`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sacrebleu.significance import PairedTest, Result

from nmt.evaluate.brackets import BracketF1, f1
from nmt.evaluate.metrics import Scorer, check_aligned, check_seed
from nmt.evaluate.sentence_counts import score_from_counts, sentence_counts
from nmt.recipe import UserError

# Differences of scores (0 to 100) that are equal but for rounding: their sums were added in another order.
_EQUAL = 1e-9


@dataclass(frozen=True)
class PairedScore:
    """One system on one metric, beside the baseline.

    score:           the score on the whole test set
    mean, interval:  mean over bootstrap resamples, and half the width of the 95 % interval around it
    difference:      to the baseline's score; None for the baseline itself, as are both p-values
    p_bootstrap:     by paired bootstrap resampling (Koehn 2004)
    p_randomization: by paired approximate randomization (Riezler and Maxwell 2005)

    What belongs to a test that was not asked for is None.
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
    """All systems on one metric, the baseline first; `signatures` are those of the tests, bootstrap first."""

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
    """Each system beside the first one, the baseline: a paired bootstrap of `resamples`, randomization by `trials`.

    0 leaves a test out. The seed is that of the environment variable SACREBLEU_SEED, 12345 by default. The bootstrap
    equals `sacrebleu --paired-bs` to the digit; randomization makes the trials of `--paired-ar`, but counts ties.
    Raises UserError for fewer than two systems, streams that differ in length, and a seed that these tests cannot keep.
    """
    if len(systems) < 2:
        raise UserError("there is one system; a comparison must have a baseline and others; give another file")
    if not resamples and not trials:
        raise UserError("both tests are left out; a comparison must have one; give --resamples or --trials above 0")
    check_seed()
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.isdigit() and int(seed) == 0:
        raise UserError("SACREBLEU_SEED is 0, which sacreBLEU's paired tests take for no seed; give another number")
    check_aligned({**systems, **{f"reference {n}": lines for n, lines in enumerate(references, start=1)}})
    return _compare(systems, references, scorer, resamples, trials)


def _compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    scorer: Scorer,
    resamples: int,
    trials: int,
) -> Comparison:
    prepared = [(name, [scorer.prepare(line) for line in lines]) for name, lines in systems.items()]
    refs = [[scorer.prepare(line) for line in stream] for stream in references]
    bootstrap = _bootstrap(prepared, refs, scorer, resamples)
    randomization = _randomization(prepared, refs, scorer, trials)
    pairs = zip(bootstrap.results, randomization.results, strict=True)
    rows = [_paired_score(name, *pair) for name, pair in zip(systems, pairs, strict=True)]
    baseline = rows[0].score
    return Comparison(
        scorer.name,
        tuple(test.signature for test in (bootstrap, randomization) if test.signature),
        (rows[0], *(replace(row, difference=row.score - baseline) for row in rows[1:])),
    )


def _paired_score(system: str, by_bootstrap: Result | None, by_trials: Result | None) -> PairedScore:
    found = by_bootstrap or by_trials
    assert found is not None
    return PairedScore(
        system=system,
        score=float(found.score),
        mean=_number(found.mean),
        interval=_number(found.ci),
        difference=None,
        p_bootstrap=_number(by_bootstrap.p_value) if by_bootstrap else None,
        p_randomization=_number(by_trials.p_value) if by_trials else None,
    )


@dataclass(frozen=True)
class _Test:
    """What sacreBLEU found: one result for each system; no signature and no results for a test that was left out."""

    signature: str
    results: Sequence[Result | None]


def _bootstrap(
    prepared: Sequence[tuple[str, Sequence[str]]], references: Sequence[Sequence[str]], scorer: Scorer, resamples: int
) -> _Test:
    if not resamples:
        return _Test("", [None] * len(prepared))
    scorer.counter.n_bootstrap = scorer.counter.seed = None
    if isinstance(scorer.counter, BracketF1):
        return _bootstrap_of_trees(prepared, references, scorer, scorer.counter, resamples)
    test = PairedTest(list(prepared), {scorer.name: scorer.counter}, references, test_type="bs", n_samples=resamples)
    signatures, scores = test()
    ((name, signature),) = signatures.items()
    return _Test(scorer.sign(name, signature), [result for result in scores[name] if isinstance(result, Result)])


def _bootstrap_of_trees(
    prepared: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    scorer: Scorer,
    counter: BracketF1,
    resamples: int,
) -> _Test:
    """What sacreBLEU's paired bootstrap does, for a metric that sacreBLEU does not have."""
    whole = [counter.corpus_score(lines, references, n_bootstrap=resamples) for _, lines in prepared]
    counts = [counter.count(lines, references) for _, lines in prepared]
    generator = np.random.default_rng(None if counter.seed == "none" else int(counter.seed or 0))
    drawn = generator.choice(len(counts[0]), size=(resamples, len(counts[0])), replace=True)
    scores = [np.array([float(f1(own[rows].sum(axis=0))) for rows in drawn]) for own in counts]
    results = []
    for own, found in zip(scores, whole, strict=True):
        difference = np.abs(own - scores[0])
        as_wide = difference - difference.mean() > abs(found.score - whole[0].score)
        p_value = None if own is scores[0] else (int(as_wide.sum()) + 1) / (resamples + 1)
        results.append(Result(found.score, p_value, found.mean, found.interval))
    return _Test(scorer.sign(whole[0].name, counter.get_signature()), results)


def _randomization(
    prepared: Sequence[tuple[str, Sequence[str]]], references: Sequence[Sequence[str]], scorer: Scorer, trials: int
) -> _Test:
    """Swap the outputs of each sentence with probability 1/2 in each trial; p is how often that differs as much.

    sacreBLEU counts only trials that differ more. Where few sentences differ, most trials differ exactly as much as the
    systems do: of one such sentence, sacreBLEU's p is 1 / (trials + 1), and the right one 1.
    """
    if not trials:
        return _Test("", [None] * len(prepared))
    counter = scorer.counter
    counter.n_bootstrap = counter.seed = None
    counts = [sentence_counts(counter, lines, references) for _, lines in prepared]  # (sentences, counts) each
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    generator = np.random.default_rng(None if seed == "none" else int(seed))
    swapped = generator.integers(2, size=(trials, len(counts[0])), dtype=bool)
    results = [Result(float(counter.corpus_score(prepared[0][1], references).score))]
    for (_, lines), own in zip(prepared[1:], counts[1:], strict=True):
        found = counter.corpus_score(lines, references)
        gained = swapped @ (own - counts[0])  # (trials, counts): what the baseline gains and the system loses
        first, second = (score_from_counts(counter, sums) for sums in (counts[0].sum(0) + gained, own.sum(0) - gained))
        as_wide = np.abs(first - second) >= abs(found.score - results[0].score) - _EQUAL
        results.append(Result(float(found.score), (int(as_wide.sum()) + 1) / (trials + 1)))
    signature = counter.get_signature()
    if isinstance(signature, str):
        return _Test(scorer.sign(found.name, signature, ar=str(trials), seed=seed, ties="counted"), results)
    signature.update("seed", seed)
    signature.update("ar", trials)
    return _Test(scorer.sign(found.name, signature, ties="counted"), results)


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
