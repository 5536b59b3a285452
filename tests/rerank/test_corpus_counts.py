"""Scores of summed counts against sacreBLEU's corpus scores."""

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.evaluate.sentence_counts import sentence_counts
from nmt.rerank.corpus_counts import CorpusMetric, score_of_counts

SACREBLEU: dict[CorpusMetric, BLEU | CHRF] = {"bleu": BLEU(), "chrf": CHRF()}
WORDS = ["der", "die", "das", "Haus,", "ein", "Auto.", "sieht", "3,5", "€-Stück", "nicht", "...", "猫"]


def corpora() -> list[list[tuple[str, str]]]:
    """Corpora of hypotheses and references of various lengths, some empty or without matches."""
    rng = random.Random(5)

    def line(longest: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(0, longest)))

    sizes = ((12, 30), (3, 4), (2, 1))
    sampled = [[(line(longest), line(longest) or "x") for _ in range(count)] for longest, count in sizes]
    texts = [line(20) for _ in range(20)]
    similar = [(text, text + " am Ende") for text in texts if text]
    single = [("a b c d", "x y z"), ("", "x y"), ("a", "a"), ("a b c d e", "a b"), ("ab", "ab c d e f")]
    return [*sampled, similar, *([pair] for pair in single)]


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_scores_of_summed_counts_equal_sacrebleu(metric: CorpusMetric) -> None:
    sums, expected = [], []
    for corpus in corpora():
        hypotheses, references = map(list, zip(*corpus, strict=True))
        sums.append(sentence_counts(SACREBLEU[metric], hypotheses, [references]).sum(axis=0))
        expected.append(SACREBLEU[metric].corpus_score(hypotheses, [references]).score)
    scores = score_of_counts(metric, np.array(sums))
    assert scores.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert len({round(score, 3) for score in expected}) > 3, "the corpora have different scores"
    assert score_of_counts(metric, np.array(sums)[None, :, None])[0, 2, 0] == scores[2]
