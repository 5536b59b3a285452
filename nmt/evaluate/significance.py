"""Is one system better than another, or was it luck? sacreBLEU's paired tests, for every metric that is offered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sacrebleu.significance import PairedTest, Result

from nmt.evaluate.metrics import Scorer, check_aligned, check_seed
from nmt.recipe import UserError


@dataclass(frozen=True)
class PairedScore:
    """One system on one metric, beside the baseline.

    score:           the score on the whole test set
    mean, interval:  mean over bootstrap resamples, and half the width of the 95 % interval around it
    difference:      to the baseline's score; None for the baseline itself, as are both p-values
    p_bootstrap:     by paired bootstrap resampling (Koehn 2004)
    p_randomization: by paired approximate randomisation (Riezler and Maxwell 2005)

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
    """Each system beside the first one, the baseline: a paired bootstrap of `resamples`, a randomisation of `trials`.

    0 leaves a test out. The seed is that of the environment variable SACREBLEU_SEED, 12345 by default, so everything is
    as `sacrebleu --paired-bs` and `--paired-ar` give it, to the digit. Raises UserError for fewer than two systems,
    streams that differ in length, and a seed that these tests cannot keep.
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
    bootstrap = _paired_test(prepared, refs, scorer, "bs", resamples)
    randomization = _paired_test(prepared, refs, scorer, "ar", trials)
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


def _paired_test(
    prepared: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    scorer: Scorer,
    kind: str,
    samples: int,
) -> _Test:
    if not samples:
        return _Test("", [None] * len(prepared))
    scorer.counter.n_bootstrap = scorer.counter.seed = None
    test = PairedTest(list(prepared), {scorer.name: scorer.counter}, references, test_type=kind, n_samples=samples)
    signatures, scores = test()
    ((name, signature),) = signatures.items()
    return _Test(scorer.sign(name, signature), [result for result in scores[name] if isinstance(result, Result)])


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
