"""Noisy copies of translation pairs, from which classifiers learn to find bad translations."""

from collections import Counter
from typing import get_args

import pytest

from nmt.classify.noise import TRANSLATION, with_noise
from nmt.recipe import Noise
from nmt.text.clean import Pair

KINDS = get_args(Noise)
PAIRS: list[Pair] = [(f"source {n} has words .", f"Ziel {n} hat viele verschiedene Wörter .") for n in range(200)]


def noisy(kind: Noise, pairs: list[Pair] = PAIRS) -> list[tuple[Pair, Pair]]:
    """Return each pair that has a noisy copy of this kind, and that copy."""
    labeled = list(with_noise(pairs, [kind], seed=1))
    return [(labeled[i - 1][0], pair) for i, (pair, label) in enumerate(labeled) if label == kind]


def test_every_pair_is_kept_and_followed_by_a_noisy_copy_of_a_random_kind() -> None:
    labeled = list(with_noise(PAIRS, KINDS, seed=1))
    assert [pair for pair, label in labeled if label == TRANSLATION] == PAIRS
    counts = Counter(label for _, label in labeled)
    assert all(30 < counts[kind] < 70 for kind in KINDS)
    assert labeled == list(with_noise(PAIRS, KINDS, seed=1))
    assert labeled != list(with_noise(PAIRS, KINDS, seed=2))


def test_shuffled_targets_have_the_same_words_in_another_order() -> None:
    found = noisy("shuffled")
    assert len(found) == len(PAIRS)
    for (src, tgt), (noisy_src, noisy_tgt) in found:
        assert noisy_src == src
        assert noisy_tgt != tgt
        assert sorted(noisy_tgt.split()) == sorted(tgt.split())


def test_truncated_targets_are_a_prefix_with_or_without_the_full_stop() -> None:
    found = noisy("truncated")
    for (src, tgt), (noisy_src, noisy_tgt) in found:
        assert noisy_src == src
        assert tgt.startswith(noisy_tgt.removesuffix("."))
        assert 1 <= len(noisy_tgt.removesuffix(".").split()) <= 5 < len(tgt.split())
    assert 60 < sum(pair[1].endswith(".") for _, pair in found) < 140
    # The carriage return of a CRLF line ending is not part of the sentence.
    with_line_end = noisy("truncated", [(src, f"{tgt}\r") for src, tgt in PAIRS])
    assert [pair for _, pair in with_line_end] == [pair for _, pair in found]
    hindi = noisy("truncated", [(src, tgt.replace(".", "\u0964")) for src, tgt in PAIRS])
    assert [pair[1].replace("\u0964", ".") for _, pair in hindi] == [pair[1] for _, pair in found]


def test_wrong_language_is_the_source_or_another_source() -> None:
    found = noisy("wrong-language")
    sources = {src for src, _ in PAIRS}
    assert all(pair[1] in sources for _, pair in found)
    assert 60 < sum(pair[0] == pair[1] for _, pair in found) < 140


def test_misaligned_targets_belong_to_other_pairs() -> None:
    targets = {tgt for _, tgt in PAIRS}
    found = noisy("misaligned")
    assert len(found) > 190
    assert all(pair[1] in targets and pair[1] != tgt and pair[0] == src for (src, tgt), pair in found)


@pytest.mark.parametrize("kind", ["shuffled", "truncated"])
def test_short_targets_have_no_noisy_copy(kind: Noise) -> None:
    assert noisy(kind, [("Go now .", "Geh jetzt ."), ("", "")]) == []


def test_equal_words_cannot_be_shuffled_and_one_pair_cannot_be_misaligned() -> None:
    assert noisy("shuffled", [("a", "ha ha ha ha")]) == []
    assert noisy("misaligned", [("a", "b")]) == []
    assert noisy("misaligned", [("a", "b"), ("a", "c")]) == []


def test_a_target_equal_to_its_translation_is_not_in_the_wrong_language() -> None:
    assert noisy("wrong-language", [("Taxi", "Taxi")] * 20) == []
    found = noisy("wrong-language", [("Taxi", "Ein Taxi"), ("Ein Taxi", "Taxi")] * 20)
    assert found
    assert all(pair != given for given, pair in found)
