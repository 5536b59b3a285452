"""Scores of summed counts against sacreBLEU's corpus scores."""

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.evaluate.sentence_counts import score_from_counts, sentence_counts

METRICS: dict[str, BLEU | CHRF | TER] = {
    "bleu": BLEU(),
    "bleu-lowercase-intl": BLEU(lowercase=True, tokenize="intl"),
    "bleu-tokenized-unsmoothed": BLEU(tokenize="none", force=True, smooth_method="none"),
    "chrf": CHRF(),
    "chrf-lowercase": CHRF(lowercase=True),
    "chrf++": CHRF(word_order=2),
    "ter": TER(),
}
WORDS = [
    "Der",
    "die",
    "das",
    "Haus,",
    "ein",
    "Auto.",
    "sieht",
    "3,5",
    "€-Stück",
    "(nicht)",
    "...",
    "„ja“",
    "!",
    "猫",
    "",
]


def corpora() -> list[tuple[list[str], list[list[str]]]]:
    """Corpora with three references: of different lengths, with few or no matches, empty."""
    rng = random.Random(5)

    def lines(longest: int, count: int) -> list[str]:
        return [" ".join(rng.choices(WORDS, k=rng.randint(0, longest))) for _ in range(count)]

    pairs = []
    for longest, count in ((12, 40), (3, 4), (2, 1)):
        hypotheses, *references = (lines(longest, count) for _ in range(4))
        pairs.append((hypotheses, references))
    copied = lines(20, 20)
    pairs.append((copied, [[f"{line} am Ende" for line in copied], copied, copied[::-1]]))
    pairs.append(([line.replace("das", "Haus") for line in copied], [copied, copied[1:] + copied[:1], copied]))
    for hypothesis, reference in (("", ""), ("", "x y"), ("a b", ""), ("a b c d", "x y z"), ("a", "a")):
        pairs.append(([hypothesis], [[reference]] * 3))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
@pytest.mark.parametrize("number_of_references", [1, 3])
def test_scores_of_sums_equal_the_corpus_scores_of_sacrebleu(
    metric: BLEU | CHRF | TER, number_of_references: int
) -> None:
    sums, expected = [], []
    for hypotheses, streams in corpora():
        references = streams[:number_of_references]
        counts = sentence_counts(metric, hypotheses, references)
        assert len(counts) == len(hypotheses)
        sums.append(counts.sum(axis=0))
        expected.append(metric.corpus_score(hypotheses, references).score)
    assert score_from_counts(metric, np.array(sums)).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert len({round(score, 3) for score in expected}) > 2, "the corpora have different scores"
