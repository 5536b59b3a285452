"""ROUGE against its definition (Lin 2004), in reports, and without its package."""

import sys
from collections import Counter
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.evaluate.metrics import make_scorer, score_corpus
from nmt.evaluate.sentence_counts import score_from_counts, sentence_counts
from tests.calling import Nmt, one_line
from tests.extras import needs_rouge

# Words of up to three letters, which are not stemmed.
HYPOTHESES = ["The cat sat on a red mat. A dog ran.", "no one saw the man", "big red box big red"]
REFERENCES = ["A cat sat on the mat. The dog ran to it.", "the old man saw no one", "a big box"]
METRICS = ["rouge-1", "rouge-2", "rouge-l", "rouge-lsum"]


def words(text: str) -> list[str]:
    return text.lower().replace(".", "").split()


def f1(matched: int, found: int, expected: int) -> float:
    return 2 * matched / (found + expected)


def overlap(hypothesis: str, reference: str, order: int) -> float:
    counts = []
    for text in (hypothesis, reference):
        tokens = words(text)
        counts.append(Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1)))
    return f1((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def longest_common_subsequence(one: list[str], other: list[str]) -> int:
    @cache
    def length(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return 0
        if one[i - 1] == other[j - 1]:
            return length(i - 1, j - 1) + 1
        return max(length(i - 1, j), length(i, j - 1))

    return length(len(one), len(other))


def subsequence(hypothesis: str, reference: str) -> float:
    one, other = words(hypothesis), words(reference)
    return f1(longest_common_subsequence(one, other), len(one), len(other))


@pytest.mark.slow
@needs_rouge
def test_scores_are_means_of_the_definition() -> None:
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    expected = [
        sum(overlap(hypothesis, reference, 1) for hypothesis, reference in pairs),
        sum(overlap(hypothesis, reference, 2) for hypothesis, reference in pairs),
        sum(subsequence(hypothesis, reference) for hypothesis, reference in pairs),
    ]
    scores = score_corpus(HYPOTHESES, [REFERENCES], METRICS[:3], tgt_lang="en")
    assert [score.value for score in scores] == pytest.approx([100 * value / 3 for value in expected])
    assert len({score.value for score in scores}) == 3


@needs_rouge
@pytest.mark.slow
def test_rouge_lsum_compares_sentences() -> None:
    one, other = "the dog ran. a cat sat.", "A cat sat. The dog ran."
    plain, by_sentences = score_corpus([one.title()], [[other]], METRICS[2:], tgt_lang="en")
    assert plain.value == pytest.approx(100 * subsequence(one, other))
    assert by_sentences.value == 100
    assert "|sents:nmt|" in by_sentences.signature
    assert "sents" not in plain.signature


@needs_rouge
def test_words_are_stemmed_and_the_signature_says_so() -> None:
    (score,) = score_corpus(["it RUNS"], [["it running!"]], ["rouge-1"], tgt_lang="en")
    assert score.value == 100
    assert score.signature == f"rouge1|refs:1|stem:porter|tok:a-z0-9|version:rouge-score-{version('rouge-score')}"
    assert score.detail == "P 100.00, R 100.00"


@needs_rouge
def test_other_scripts_give_one_warning(tmp_path: Path, nmt: Nmt) -> None:
    warning = "ROUGE reads only the letters a to z and digits, which are absent in 1 of 1 references"
    for text, count in (("dog", 0), ("собака", 1)):
        for name in ("ref", "one", "other"):
            (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
        hypotheses = (tmp_path / "one", tmp_path / "other")
        status, _, err = nmt("evaluate", "--ref", tmp_path / "ref", *hypotheses, "-m", "rouge-1,rouge-2")
        assert status == 0
        assert err.count(warning) == count


@needs_rouge
def test_the_best_of_several_references_counts() -> None:
    (score,) = score_corpus(["a b", "c d"], [["a x", "c d"], ["a b", "y z"]], ["rouge-1"], tgt_lang="en")
    assert score.value == 100
    assert "|refs:2|" in score.signature


@needs_rouge
def test_intervals_and_counts_agree_with_the_score() -> None:
    scorer = make_scorer("rouge-2", tgt_lang="en")
    score = scorer.score(HYPOTHESES * 20, [REFERENCES * 20], resamples=200)
    assert score.mean == pytest.approx(score.value, abs=3)
    assert score.interval is not None
    assert 0 < score.interval < 20
    counts = sentence_counts(scorer.metric, HYPOTHESES, [REFERENCES])
    assert score_from_counts(scorer.metric, counts.sum(axis=0)[None]) == pytest.approx(score.value)
    assert not scorer.is_case_sensitive


@needs_rouge
def test_the_command_scores_summaries(tmp_path: Path, nmt: Nmt) -> None:
    for name, lines in (("hyp", HYPOTHESES), ("ref", REFERENCES)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    status, out, _ = nmt("evaluate", "--ref", tmp_path / "ref", tmp_path / "hyp", "-m", "rouge-1,rouge-lsum")
    assert status == 0
    assert "rougeLsum|refs:1" in out


@pytest.mark.slow
def test_a_missing_package_is_one_line(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"it is required here; pip install 'nmt\[summarize\]'$"):
        make_scorer("rouge-l", tgt_lang="en")
    status, _, err = nmt(
        *("run", "quickstart", 'evaluate.metrics=["rouge-1"]', f"run_dir={tmp_path / 'run'}", "train.device=cpu")
    )
    assert status != 0
    assert one_line(err.partition("\n")[2]).endswith("pip install 'nmt[summarize]'")
    assert not (tmp_path / "run" / "data").exists()  # before the preparation of data
