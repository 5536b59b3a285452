"""Coverage of the intervals of `nmt repeat` in simulations; see `tools/interval-coverage`."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence

import numpy as np

from nmt.experiments.intervals import Floats, RunScores, estimate

SENTENCES, RESAMPLES = 150, 200
SEED = 7
DIFFERENCE = 0.4
SEEDS = (2, 3, 5, 8)
# Standard deviations of a run's score by source: seed, sentences, and their interaction.
SOURCES = ((0.5, 0.5, 0.3), (0.0, 0.1, 0.8), (0.3, 0.6, 0.3), (0.5, 0.0, 0.1))

EPILOG = """\
Each experiment simulates the sentence scores of two systems, each trained with several seeds, whose true difference is
0.4. The first columns are the number of seeds of each system and the standard deviation of a run's score by source: the
training seed, the choice of test sentences, and their interaction. The last columns are the fractions of intervals that
contain the true difference, and the true mean of the first system. They should be near 95%.

exit status: 0 success, 2 invalid command line
"""


def coverage(seeds: int, deviations: Sequence[float], experiments: int, ratio: float = 1.0) -> tuple[float, float]:
    """Return the fractions of experiments whose 95% intervals contain the true difference, and the true mean.

    deviations: standard deviations of a run's score by source, as in SOURCES
    ratio:      deviation of the second system over seeds, relative to the first
    """
    of_seed, of_sentence, of_both = deviations
    generator, root = np.random.default_rng(SEED), math.sqrt(SENTENCES)
    uniform = np.full(SENTENCES, 1 / SENTENCES)
    weights = generator.multinomial(SENTENCES, uniform, size=RESAMPLES).T / SENTENCES  # (sentences, resamples)
    differences = means = 0
    for _ in range(experiments):
        shared = generator.normal(0, root, SENTENCES)  # hard sentences are hard for both
        systems, alone = [], []
        for mean, scale in ((DIFFERENCE, 1.0), (0.0, ratio)):
            own = generator.normal(0, of_sentence * root, SENTENCES)
            each = generator.normal(0, of_both * root, (seeds, SENTENCES))
            offsets = generator.normal(0, of_seed, (seeds, 1))
            scores = mean + own + scale * (each + offsets)  # (seeds, sentences)
            alone.append(_run_scores(scores, weights))
            systems.append(_run_scores(scores + shared, weights))
        found = estimate(*systems)
        differences += abs(found.value - DIFFERENCE) <= found.half_width
        found = estimate(alone[0])
        means += abs(found.value - DIFFERENCE) <= found.half_width
    return differences / experiments, means / experiments


def _run_scores(scores: Floats, weights: Floats) -> RunScores:
    return RunScores(scores.mean(axis=1), scores @ weights)


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/interval-coverage",
        description="Show how many 95% intervals of nmt repeat contain the true value in simulations.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--experiments", type=int, default=20_000, metavar="N", help="per row (default: %(default)s)")
    parser.add_argument(
        "--ratio",
        type=float,
        default=1.0,
        help="deviation of the second system over seeds, relative to the first (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.experiments < 1 or not 0 <= options.ratio < math.inf:
        parser.error("--experiments must be at least 1, and --ratio finite and at least 0")
    sys.stdout.write(
        "| seeds | by seed | by sentences | by interaction | differences | means |\n|---|---|---|---|---|---|\n"
    )
    for deviations in SOURCES:
        for seeds in SEEDS:
            differences, means = coverage(seeds, deviations, options.experiments, options.ratio)
            sources = " | ".join(f"{one:.1f}" for one in deviations)
            sys.stdout.write(f"| {seeds} | {sources} | {differences:.1%} | {means:.1%} |\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback
    sys.exit(main(sys.argv[1:]))
