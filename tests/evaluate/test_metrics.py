"""Scores against plain implementations of BLEU and chrF, TER by hand, and published values."""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import pytest
from sacrebleu.metrics.bleu import BLEU

from nmt.errors import UserError
from nmt.evaluate.inputs import ReferenceSet
from nmt.evaluate.metrics import (
    GroupScore,
    bleu_tokenizer,
    check_aligned,
    make_scorer,
    score_corpus,
    score_groups,
)
from nmt.evaluate.significance import compare_systems
from nmt.recipe import BleuTokenizer, EvaluateRecipe, Metric
from tests.evaluate.multi30k import needs_multi30k, read_lines

# `bracket-f1` scores trees, and ROUGE needs an optional package; see their own tests.
TEXT_METRICS = tuple(name for name in get_args(Metric) if not name.startswith(("bracket", "rouge")))

HYPOTHESES = [
    "the cat sat on the mat today",
    "there is a dog in the small garden",
    "he reads the old book in the evening",
    "they went home",
]
REFERENCES = [
    "the cat sat on the red mat today",
    "there is a dog in the garden",
    "she reads the old book every evening",
    "then they all went home early",
]


def ngrams(items: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[i : i + order]) for i in range(len(items) - order + 1))


def plain_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Papineni et al. 2002 over space-separated tokens, one reference; every precision must be above zero."""
    pairs = [(hyp.split(), ref.split()) for hyp, ref in zip(hypotheses, references, strict=True)]
    log_precision = 0.0
    for order in range(1, 5):
        matched = sum((ngrams(hyp, order) & ngrams(ref, order)).total() for hyp, ref in pairs)
        log_precision += math.log(matched / sum(ngrams(hyp, order).total() for hyp, _ in pairs)) / 4
    hyp_length, ref_length = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    return 100 * math.exp(log_precision + min(0.0, 1 - ref_length / hyp_length))


def plain_chrf(hypotheses: list[str], references: list[str], word_order: int) -> float:
    """Popovic 2015 and 2017: F2 of the mean n-gram precision and recall, characters without spaces."""
    precisions, recalls = [], []
    views: list[tuple[int, Callable[[str], Sequence[str]]]] = [
        (6, lambda line: line.replace(" ", "")),
        (word_order, str.split),
    ]
    for highest, view in views:
        for order in range(1, highest + 1):
            pairs = [
                (ngrams(view(h), order), ngrams(view(r), order)) for h, r in zip(hypotheses, references, strict=True)
            ]
            matched = sum((h & r).total() for h, r in pairs)
            precisions.append(matched / sum(h.total() for h, _ in pairs))
            recalls.append(matched / sum(r.total() for _, r in pairs))
    precision, recall = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    return 100 * 5 * precision * recall / (4 * precision + recall)


def by_group(
    hypotheses: list[str], references: list[list[str]], groups: list[list[str]], *metrics: str, lowercase: bool = False
) -> list[GroupScore]:
    scorers = [make_scorer(name, tgt_lang="en", lowercase=lowercase) for name in metrics]
    return score_groups(hypotheses, references, groups, scorers, lowercase=lowercase)


def value(metric: str, hypotheses: list[str], references: list[str]) -> float:
    return score_corpus(hypotheses, [references], [metric], tgt_lang="en")[0].value


@pytest.mark.parametrize("metric", ["bleu", "bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split"])
def test_bleu_equals_a_plain_implementation(metric: str) -> None:
    # Without punctuation, capitals and hyphens, all tokenizers split at spaces.
    assert value(metric, HYPOTHESES, REFERENCES) == pytest.approx(plain_bleu(HYPOTHESES, REFERENCES), abs=1e-9)


@pytest.mark.parametrize(("metric", "word_order"), [("chrf", 0), ("chrf++", 2)])
def test_chrf_equals_a_plain_implementation(metric: str, word_order: int) -> None:
    expected = plain_chrf(HYPOTHESES, REFERENCES, word_order)
    assert value(metric, HYPOTHESES, REFERENCES) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "edits", "length"),
    [
        ("a b c d", "a b c d", 0, 4),
        ("a b x d", "a b c d", 1, 4),  # one substitution
        ("d a b c", "a b c d", 1, 4),  # one shift
        ("a b", "a b c d", 2, 4),  # two insertions
        ("A B C D", "a b c d", 0, 4),  # TER ignores case
    ],
)
def test_ter_counts_edits(hypothesis: str, reference: str, edits: int, length: int) -> None:
    assert value("ter", [hypothesis], [reference]) == pytest.approx(100 * edits / length)


@pytest.mark.parametrize("language", ["zh", "zho"])
def test_ter_counts_characters_of_chinese(language: str) -> None:
    (score,) = score_corpus(["我喜欢读书。"], [["我喜欢书。"]], ["ter"], tgt_lang=language)
    assert score.value == pytest.approx(100 / 5)
    assert "|norm:yes|punct:yes|asian:yes|" in score.signature


def test_a_second_reference_raises_bleu_and_is_in_the_signature() -> None:
    one = score_corpus(HYPOTHESES, [REFERENCES], ["bleu"], tgt_lang="en")[0]
    two = score_corpus(HYPOTHESES, [REFERENCES, HYPOTHESES], ["bleu"], tgt_lang="en")[0]
    assert one.value < two.value == pytest.approx(100)
    assert "nrefs:1|" in one.signature
    assert "nrefs:2|" in two.signature


@pytest.mark.parametrize("metric", TEXT_METRICS)
def test_blank_references_count_only_if_all_of_a_sentence_are_blank(metric: str) -> None:
    """A sentence with missing references scores as it does with the others alone; sacreBLEU's command line differs."""
    blank = [" "] * len(REFERENCES)
    (alone,) = score_corpus(HYPOTHESES, [REFERENCES], [metric], tgt_lang="en")
    for references in ([REFERENCES, blank], [blank, REFERENCES], [["", *REFERENCES[1:]], [REFERENCES[0], "", "", ""]]):
        (found,) = score_corpus(HYPOTHESES, references, [metric], tgt_lang="en", resamples=10)
        assert found.value == alone.value
        assert "nrefs:1|" in found.signature
        systems = {"first": HYPOTHESES, "second": REFERENCES}
        compared = compare_systems(systems, references, make_scorer(metric, tgt_lang="en"), resamples=5, trials=5)
        assert compared.systems[0].score == alone.value
    some = [REFERENCES, [REFERENCES[0], "", "", ""]]
    (mixed,) = score_corpus(HYPOTHESES, some, [metric], tgt_lang="en")
    assert mixed.value == alone.value and "nrefs:var|" in mixed.signature
    scorer = make_scorer(metric, tgt_lang="en")
    assert scorer.score_sentences(HYPOTHESES, some)[0] == scorer.score_sentences(HYPOTHESES, [REFERENCES])[0]
    assert "nrefs:var|" in scorer.score_sentences(HYPOTHESES, some)[1]
    (group,) = by_group(["", *HYPOTHESES[1:]], [REFERENCES, blank], [["all"]] * 4, metric)
    assert group.exact == 0.0


def test_signatures_have_options_and_versions() -> None:
    signatures = {
        score.name: score.signature for score in score_corpus(HYPOTHESES, [REFERENCES], TEXT_METRICS, tgt_lang="de")
    }
    sacremoses, sacrebleu = version("sacremoses"), version("sacrebleu")
    norm, unipunct = (f"tok:moses.de.{kind}.sacremoses-{sacremoses}" for kind in ("norm", "unipunct"))
    assert signatures == {
        "bleu": f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu}",
        "chrf": f"chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu}",
        "chrf++": f"chrF2++|nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|version:{sacrebleu}",
        "ter": f"TER|nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{sacrebleu}",
        "bleu-tokenized": f"BLEU|nrefs:1|case:mixed|eff:no|{norm}|smooth:none|version:{sacrebleu}",
        "bleu-tokenized-lc": f"BLEU|nrefs:1|case:lc|eff:no|{norm}|smooth:none|version:{sacrebleu}",
        "bleu-compound-split": f"BLEU|nrefs:1|case:mixed|eff:no|{unipunct}|smooth:none|compounds:split|"
        f"version:{sacrebleu}",
    }


def test_tokenize_and_lowercase_change_score_and_signature() -> None:
    upper = [line.upper() for line in HYPOTHESES]
    for metric in ("bleu", "chrf", "chrf++"):
        cased, lowered = (
            score_corpus(upper, [HYPOTHESES], [metric], tgt_lang="en", lowercase=lowercase)[0]
            for lowercase in (False, True)
        )
        assert cased.value < 50
        assert lowered.value == pytest.approx(100)
        assert "case:lc" in lowered.signature
    characters = score_corpus(HYPOTHESES, [REFERENCES], ["bleu"], tgt_lang="en", tokenize="char")[0]
    assert "tok:char" in characters.signature
    assert characters.value > value("bleu", HYPOTHESES, REFERENCES)


@pytest.mark.parametrize("language", ["german", "DE", "de-AT", ""])
def test_a_language_name_is_an_error(language: str) -> None:
    for metric in ("bleu", "bleu-tokenized"):
        with pytest.raises(UserError, match=f"tgt_lang is '{language}'; it must be an ISO 639 code such as de"):
            score_corpus(HYPOTHESES, [REFERENCES], [metric], tgt_lang=language)
    assert score_corpus(HYPOTHESES, [REFERENCES], ["chrf"], tgt_lang=language)


@pytest.mark.parametrize(("tokenize", "warns"), [(None, True), ("none", False)])
def test_sacrebleu_warns_of_tokenized_text_unless_no_tokenizer_is_chosen(
    tokenize: BleuTokenizer | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["the cat sat ."] * 200
    score_corpus(lines, [lines], ["bleu"], tokenize=tokenize, tgt_lang="en")
    assert ("forgot to detokenize" in caplog.text) == warns


def test_bleu_tokenized_lc_ignores_case() -> None:
    upper = [line.upper() for line in HYPOTHESES]
    assert value("bleu-tokenized-lc", upper, HYPOTHESES) == pytest.approx(100)
    assert value("bleu-tokenized", upper, HYPOTHESES) < 1


def test_detail_has_the_reference_length() -> None:
    score = score_corpus(HYPOTHESES, [REFERENCES], ["bleu"], tgt_lang="en")[0]
    assert score.detail.endswith(f"ref_len = {sum(len(line.split()) for line in REFERENCES)})")


# --- Published values ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_multi30k
def test_the_reference_length_of_test2016_is_the_published_one() -> None:
    references = read_lines("test_2016_flickr.de")
    (score,) = score_corpus(references, [references], ["bleu-tokenized-lc"], tgt_lang="de")
    assert score.value == pytest.approx(100)
    assert "ref_len = 12103" in score.detail  # Wu et al. 2021


# --- Groups ---------------------------------------------------------------------------------------------------------


def test_groups_are_scored_separately() -> None:
    hypotheses = [*HYPOTHESES, "all right here at last"]
    references = [*REFERENCES, "all right here at last"]
    groups = [["long", "animal"], ["long", "animal"], ["long"], [], ["right", "right"]]
    long, animal, right = (
        next(group for group in by_group(hypotheses, [references], groups, "bleu", "chrf") if group.group == name)
        for name in ("long", "animal", "right")
    )
    assert (long.sentences, animal.sentences, right.sentences) == (3, 2, 1)
    assert long.scores[0].value == pytest.approx(plain_bleu(HYPOTHESES[:3], REFERENCES[:3]))
    assert animal.scores[1].value == pytest.approx(plain_chrf(HYPOTHESES[:2], REFERENCES[:2], 0))
    assert (long.exact, right.exact) == (0.0, 100.0)


@pytest.mark.parametrize("metric", TEXT_METRICS)
def test_group_score_equals_the_corpus_score_of_its_sentences(metric: str) -> None:
    references = [REFERENCES, [line.upper() for line in REFERENCES]]
    groups = [["even"], ["odd", "late"], ["even", "late"], ["late", "odd"]]
    scored = by_group(HYPOTHESES, references, groups, metric)
    assert {group.group for group in scored} == {"odd", "even", "late"}
    for group in scored:
        chosen = [number for number, names in enumerate(groups) if group.group in names]
        alone = [[stream[number] for number in chosen] for stream in (HYPOTHESES, *references)]
        assert group.scores == tuple(score_corpus(alone[0], alone[1:], [metric], tgt_lang="en"))


def test_exact_match_with_any_reference() -> None:
    (group,) = by_group(["a", "b", "c"], [["a", "x", "x"], ["x", "b", "x"]], [["all"]] * 3, "chrf")
    assert group.exact == pytest.approx(200 / 3)


def test_recipe_has_every_tokenizer_of_sacrebleu() -> None:
    assert set(get_args(BleuTokenizer)) == set(BLEU.TOKENIZERS)


def test_exact_match_may_ignore_case() -> None:
    texts = (["das haus", "ein Hund"], [["Das Haus", "ein Hund"]], [["all"], ["all"]])
    assert by_group(*texts, "chrf")[0].exact == 50.0
    assert by_group(*texts, "chrf", lowercase=True)[0].exact == 100.0


def test_exact_matches_ignore_trailing_white_space() -> None:
    (group,) = by_group(["A b\r", "c ", "d"], [["A b", "c", "e"], ["x", "x", "d\r"]], [["all"]] * 3, "chrf")
    assert group.exact == 100.0


def test_no_private_api_of_sacrebleu_is_used() -> None:
    """Except for the methods that a subclass of its `Metric` must override."""
    private = re.compile(r"(?<!self)(?<!cls)(?<!super\(\))\._[a-z]\w*|\bimport [^#\n]*\b_[a-z]\w*")
    for path in (Path(__file__).parents[2] / "nmt" / "evaluate").glob("*.py"):
        assert not private.findall(path.read_text(encoding="utf-8")), path.name


# --- User errors ---------------------------------------------------------------------------------------------------


def test_different_lengths_are_an_error_with_names_and_counts() -> None:
    with pytest.raises(UserError, match=r"the hypothesis has 3 lines and reference 2 has 4"):
        score_corpus(HYPOTHESES[:3], [REFERENCES[:3], REFERENCES], ["bleu"], tgt_lang="en")
    with pytest.raises(UserError, match=r"out\.de has 2 lines and ref\.de has 1,500"):
        check_aligned({"out.de": ["a", "b"], "ref.de": ["a"] * 1500})
    with pytest.raises(UserError, match="groups has 1"):
        by_group(HYPOTHESES, [REFERENCES], [["x"]], "bleu")


def test_empty_streams_are_an_error() -> None:
    with pytest.raises(UserError, match="the hypothesis is empty"):
        score_corpus([], [[]], ["bleu"], tgt_lang="en")
    with pytest.raises(UserError, match="references must have at least one stream, got none"):
        score_corpus(["a"], [], ["bleu"], tgt_lang="en")
    with pytest.raises(UserError, match=r"ref\.de is empty"):
        check_aligned({"out.de": ["a"], "ref.de": []})


def test_empty_sentences_are_valid() -> None:
    for metric in TEXT_METRICS:
        assert value(metric, ["", *HYPOTHESES], ["x", *REFERENCES]) > 0
        assert value(metric, ["", ""], ["", ""]) >= 0


@pytest.mark.parametrize(
    ("metric", "tokenize", "message"),
    [
        ("blue", None, "unknown metric 'blue'; it must be one of bleu, chrf,"),
        ("bleu", "14a", "unknown tokenizer '14a'; it must be one of none, zh, 13a,"),
    ],
)
def test_unknown_names_are_a_one_line_error(metric: str, tokenize: str | None, message: str) -> None:
    with pytest.raises(UserError) as error:
        make_scorer(metric, tgt_lang="de", tokenize=tokenize)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_every_metric_of_recipes_has_a_scorer() -> None:
    for metric in EvaluateRecipe(metrics=TEXT_METRICS).metrics:
        assert make_scorer(metric, tgt_lang="de").score(HYPOTHESES, [HYPOTHESES]).name == metric


# --- Intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interval_contains_most_resamples() -> None:
    plain, with_interval = (
        score_corpus(HYPOTHESES, [REFERENCES], ["bleu"], tgt_lang="en", resamples=resamples)[0]
        for resamples in (0, 500)
    )
    assert (plain.mean, plain.interval) == (None, None)
    assert plain.value == with_interval.value
    assert plain.detail == with_interval.detail
    assert "|bs:500|seed:12345|" in with_interval.signature
    assert with_interval.mean is not None
    assert with_interval.interval is not None
    rng = random.Random(3)
    scores = []
    for _ in range(400):
        chosen = [rng.randrange(4) for _ in range(4)]
        scores.append(value("bleu", [HYPOTHESES[i] for i in chosen], [REFERENCES[i] for i in chosen]))
    inside = sum(abs(score - with_interval.mean) <= 1.2 * with_interval.interval for score in scores)
    assert inside / len(scores) > 0.9


def test_signature_has_no_trace_of_an_earlier_interval() -> None:
    scorer = make_scorer("chrf", tgt_lang="de")
    assert "bs:20" in scorer.score(HYPOTHESES, [REFERENCES], resamples=20).signature
    assert "bs:" not in scorer.score(HYPOTHESES, [REFERENCES]).signature


def test_perfect_output_has_an_interval_of_zero() -> None:
    (score,) = score_corpus(HYPOTHESES[:3], [HYPOTHESES[:3]], ["bleu-tokenized"], tgt_lang="en", resamples=50)
    assert [score.value, score.mean, score.interval] == pytest.approx([100, 100, 0])


def test_tokenized_bleu_is_not_smoothed() -> None:
    # multi-bleu.perl returns 0 without matching 4-grams; sacreBLEU smooths.
    smoothed, plain = score_corpus(["a b c d x"], [["a b c y d"]], ["bleu", "bleu-compound-split"], tgt_lang="en")
    assert smoothed.value > 0 == plain.value


def test_bleu_tokenizer_lowercases_and_has_a_name() -> None:
    words, name = bleu_tokenizer(tgt_lang="de", lowercase=True)
    assert words("Das „Haus“, 1,5 km.") == ["das", "„haus“", ",", "1,5", "km", "."]
    assert name == "lowercased tokens of sacreBLEU's 13a"


@pytest.mark.parametrize("language", ["zh", "zho", "cmn", "yue"])
def test_language_selects_the_tokenizer_of_sacrebleu(language: str) -> None:
    (score,) = score_corpus(["我们去学校"], [["我们去学校吧"]], ["bleu"], tgt_lang=language)
    assert "|tok:zh|" in score.signature


@pytest.mark.slow
def test_three_letter_code_selects_the_rules_of_moses() -> None:
    for code, language in (("zho", "zh"), ("fra", "fr")):
        (score,) = score_corpus(["我们"], [["我们"]], ["bleu-tokenized"], tgt_lang=code)
        assert f"moses.{language}." in score.signature


@pytest.mark.parametrize("metric", TEXT_METRICS)
def test_resamples_may_have_zero_scores(metric: str) -> None:
    # sacreBLEU cannot average such resamples: "don't know how to coerce float and float32".
    (score,) = score_corpus(["xyz", "a cat sat"], [["uvw", "a cat sat"]], [metric], tgt_lang="en", resamples=100)
    assert score.mean is not None
    assert score.interval is not None
    assert "bs:100|seed:12345" in score.signature
    if metric == "chrf":  # a quarter of the resamples have only the first sentence
        assert score.interval == pytest.approx(50)
        assert 40 < score.mean < 70


def test_streams_that_are_not_lists_of_strings_are_errors() -> None:
    wrong: tuple[tuple[Any, Any], ...] = (("a", [["b"]]), (["a"], ["b"]), ([1], [["b"]]), (["a"], [[None]]))
    for hypotheses, references in wrong:
        with pytest.raises(TypeError, match=r"must be (a list of )?strings, got"):
            score_corpus(hypotheses, references, ["bleu"], tgt_lang="de")
    with pytest.raises(TypeError, match=r"^metrics must be strings, got int"):
        score_corpus(["a"], [["b"]], [1], tgt_lang="German")  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"metrics must be a list of strings"):
        score_corpus(["a"], [["b"]], "bleu", tgt_lang="de")


def test_single_references_are_the_first_that_are_not_blank() -> None:
    test = ReferenceSet({"a": ["", "b", " "], "b": ["c", "d", ""]}, (), None, None)
    assert test.first_references == ["c", "b", ""]
