"""The promises of the embedded corpus: the same for everyone, all distinct, and splits that test what they say."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest

from nmt.data.embedded import EmbeddedPair, distinct, generate
from nmt.data.embedded.combinations import combinations
from nmt.data.embedded.english import english
from nmt.data.embedded.german import german
from nmt.data.embedded.modifiers import ADJECTIVES
from nmt.data.embedded.nouns import NOUNS
from nmt.data.embedded.sampler import Sampler
from nmt.data.embedded.splits import DigestSet, Split, is_held_out
from nmt.data.embedded.syntax import Clause, NounPhrase, Sentence
from nmt.data.embedded.verbs import VERBS
from nmt.data.embedded.vocabulary import vocabulary
from nmt.recipe import UserError

PHENOMENA = {
    *("verb-second", "verb-final", "separable-verb", "case", "adjective-agreement", "numbers", "dates", "names"),
    *("relative-clause", "negation", "question", "modal", "perfect", "future", "two-way-preposition", "possessive"),
    *("comparison", "coordination", "passive", "infinitive", "command", "reflexive", "time-manner-place"),
}


@pytest.fixture(scope="module")
def train() -> list[EmbeddedPair]:
    return list(generate("train", 50_000, seed=1))


@pytest.fixture(scope="module")
def test() -> list[EmbeddedPair]:
    return list(generate("test", 2_000, seed=1))


def sentences(split: Split, count: int) -> Iterator[Sentence]:
    """Trees as they are drawn, before the corpus leaves out repetitions and what belongs to another split."""
    sampler = Sampler(split, seed=3)
    return (sampler.sentence() for _ in range(count))


# --- The same for everyone ------------------------------------------------------------------------------------------


def test_fewer_pairs_are_the_first_of_more(train: list[EmbeddedPair]) -> None:
    assert list(generate("train", 300, seed=1)) == train[:300]


def test_other_seeds_and_splits_give_other_pairs() -> None:
    firsts = [tuple(islice(generate(split, 5, seed), 5)) for split in ("train", "test", "nested") for seed in (1, 2)]
    assert len(set(firsts)) == len(firsts)


def test_pairs_do_not_depend_on_the_hash_seed(train: list[EmbeddedPair]) -> None:
    script = "from nmt.data.embedded import generate\nfor pair in generate('train', 100, 1): print(ascii(pair))"
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [ascii(pair) for pair in train[:100]]


def test_english_has_one_german() -> None:
    translations: dict[str, str] = {}
    for split in ("train", "test"):
        for tree in sentences(split, 10_000):
            target = german(tree)[0]
            assert translations.setdefault(english(tree), target) == target


# --- Distinct -------------------------------------------------------------------------------------------------------


def test_pairs_are_distinct(train: list[EmbeddedPair]) -> None:
    assert len(train) == 50_000
    assert len({pair.src for pair in train}) == 50_000


def test_digest_set_agrees_with_a_set() -> None:
    draw = random.Random(0)
    seen, expected = DigestSet(3_000), set()
    for _ in range(6_000):
        value = draw.randrange(1, 3_000) << draw.choice((0, 20, 40))
        if len(expected) < 3_000:
            assert seen.add(value) == (value not in expected)
            expected.add(value)


def test_a_supply_that_ends_or_repeats_itself_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(sentences("train", 20))
    with pytest.raises(UserError, match=r"ran out of train pairs; it has \d+ of the 30 asked for; ask for fewer"):
        list(distinct(iter(few), "train", 30))
    monkeypatch.setattr("nmt.data.embedded._PATIENCE", 1_000)
    endless = (few[0] for _ in iter(int, 1))
    with pytest.raises(UserError, match="ran out of"):
        list(distinct(endless, "train", 2))


# --- Splits ---------------------------------------------------------------------------------------------------------


def test_no_sentence_is_in_two_splits(train: list[EmbeddedPair], test: list[EmbeddedPair]) -> None:
    seen = {pair.src for pair in train}
    others = {"test": test, "valid": generate("valid", 500, seed=1), "nested": generate("nested", 500, seed=1)}
    for name, pairs in others.items():
        sources = {pair.src for pair in pairs}
        assert not sources & seen, name
        seen |= sources
    assert not {pair.src for pair in generate("valid", 200, seed=7)} & {pair.src for pair in train}


def test_train_has_no_held_out_combination_and_nested_neither() -> None:
    assert not any(is_held_out(one) for tree in sentences("train", 5_000) for one in combinations(tree))
    assert not any(is_held_out(one) for tree in sentences("valid", 500) for one in combinations(tree))
    assert not any(is_held_out(one) for tree in sentences("nested", 500) for one in combinations(tree))


def held_out_descriptions() -> set[str]:
    """Adjective and noun side by side, found without the grammar's own account of combinations."""
    return {
        f"{adjective.en} {form}"
        for adjective in ADJECTIVES
        for noun in NOUNS
        if is_held_out(("adjective", adjective.en, noun.en))
        for form in (noun.en, noun.en_plural)
        if form
    }


def test_held_out_descriptions_are_in_test_alone(train: list[EmbeddedPair], test: list[EmbeddedPair]) -> None:
    held_out = held_out_descriptions()

    def described(pair: EmbeddedPair) -> set[str]:
        words = re.sub("[^a-zA-Z' -]", " ,", pair.src).lower().split(" ")
        return {f"{first} {second}" for first, second in pairwise(words)} & held_out

    assert not any(map(described, train))
    assert sum(bool(described(pair)) for pair in test) > 300


def test_each_test_sentence_has_a_held_out_combination() -> None:
    drawn = list(sentences("test", 400))
    sources = {english(tree): tree for tree in drawn}
    kept = list(distinct(iter(drawn), "test", 80))
    assert all(any(map(is_held_out, combinations(sources[pair.src]))) for pair in kept)
    kinds = Counter(one[0] for pair in kept for one in combinations(sources[pair.src]) if is_held_out(one))
    assert kinds["subject"] and kinds["object"] and kinds["adjective"] and kinds["number"] + kinds["date"]


def test_about_one_combination_in_ten_is_held_out() -> None:
    drawn = [is_held_out(("object", verb.infinitive, noun.en)) for verb in VERBS for noun in NOUNS]
    assert 0.08 < sum(drawn) / len(drawn) < 0.12
    assert not any(is_held_out(("number", str(number), "")) for number in [*range(21), *range(30, 1_000, 10)])


NUMBER_PART = "|".join(
    sorted(
        [
            "ein",
            "eins",
            "zwei",
            "drei",
            "vier",
            "fünf",
            "sechs",
            "sieben",
            "acht",
            "neun",
            "zehn",
            "elf",
            "zwölf",
            "dreizehn",
            "vierzehn",
            "fünfzehn",
            "sechzehn",
            "siebzehn",
            "achtzehn",
            "neunzehn",
            "zwanzig",
            "dreißig",
            "vierzig",
            "fünfzig",
            "sechzig",
            "siebzig",
            "achtzig",
            "neunzig",
            "hundert",
            "tausend",
            "und",
            "st",
            "t",
            "en",
        ],
        key=len,
        reverse=True,
    )
)


def words(text: str) -> Iterator[str]:
    """The words of a sentence; German numbers, which are one word however long, are taken apart."""
    for word in re.findall(r"[\w']+", text):
        lower = word if word[0].islower() else word[0].lower() + word[1:]
        if re.fullmatch(f"(?:{NUMBER_PART})+", lower):
            yield from re.findall(NUMBER_PART, lower)
        else:
            yield word


def test_every_word_form_of_test_is_seen_in_training(train: list[EmbeddedPair], test: list[EmbeddedPair]) -> None:
    for side in ("src", "tgt"):
        seen = {word.lower() for pair in train for word in words(getattr(pair, side))}
        unseen = {word for pair in test for word in words(getattr(pair, side)) if word.lower() not in seen}
        assert not unseen


def depth(clause: Clause | None) -> int:
    """How many clauses with a finite verb lie inside one another below this one."""
    if clause is None:
        return 0
    inside = [0]
    if clause.adjunct is not None:
        inside.append(1 + depth(clause.adjunct.clause))
    if clause.complement is not None:
        is_finite = clause.complement.conjunction is not None or clause.complement.clause.front is not None
        inside.append(is_finite + depth(clause.complement.clause))
    for phrase in (clause.subject, clause.direct, clause.indirect, clause.oblique):
        if isinstance(phrase, NounPhrase) and phrase.relative is not None:
            inside.append(1 + depth(phrase.relative))
    return max(inside)


def test_clauses_nest_deeper_in_nested_than_in_train() -> None:
    shallow = Counter(max(depth(tree.clause), depth(tree.second)) for tree in sentences("train", 3_000))
    assert set(shallow) == {0, 1, 2}
    assert {depth(tree.clause) for tree in sentences("nested", 200)} == {3, 4}


# --- What the sentences are like ------------------------------------------------------------------------------------


def test_every_phenomenon_is_frequent(train: list[EmbeddedPair], test: list[EmbeddedPair]) -> None:
    counts = Counter(phenomenon for pair in test for phenomenon in pair.phenomena)
    assert set(counts) == PHENOMENA == {phenomenon for pair in train for phenomenon in pair.phenomena}
    assert min(counts.values()) >= 100, counts.most_common()[-3:]


def test_sentences_are_of_natural_length(train: list[EmbeddedPair]) -> None:
    lengths = sorted(len(pair.src.split()) for pair in train)
    assert 8 < sum(lengths) / len(lengths) < 12
    assert lengths[len(lengths) // 20] <= 4
    assert 18 <= lengths[-len(lengths) // 20] <= 25


def test_sentences_are_well_formed(train: list[EmbeddedPair]) -> None:
    for pair in train:
        for text in (pair.src, pair.tgt):
            assert text[0].isupper() and text[-1] in ".?!"
            assert not re.search(r"  | [,.?!]|,,|,[.?!]|,\w|[.?!].", text), text
        assert (pair.src[-1], "question" in pair.phenomena) == (pair.tgt[-1], pair.src[-1] == "?")
        assert pair.phenomena == tuple(sorted(set(pair.phenomena)))


def test_every_word_of_the_lexicon_is_used(train: list[EmbeddedPair]) -> None:
    seen = Counter(word for pair in train for word in words(pair.src))
    entries = [noun.en for noun in NOUNS] + [adjective.en for adjective in ADJECTIVES]
    entries += [verb.en_participle.split()[0] for verb in VERBS if verb.en not in ("be", "have")]
    assert min((seen[word], word) for word in entries) > (5, "")


@pytest.mark.parametrize("with_held_out", [False, True])
def test_there_is_always_a_word_to_draw(with_held_out: bool) -> None:
    """The sampler draws until it finds a fitting word, so there must always be one."""
    choices = vocabulary(with_held_out)
    assert all(choices.patterns[noun] for noun in NOUNS)
    for verb in VERBS:
        assert not verb.objects or all(set(choices.objects[verb]) - {noun} for noun in verb.subjects), verb.infinitive
    assert all(found for (pattern, _), found in choices.subjects.items() if pattern != "weather")
    people = [noun for noun in NOUNS if noun.kind in ("person", "animal")]
    assert all(noun in choices.actions and choices.adjectives[noun] for noun in people)
    assert all(("that", noun) in choices.verbs_of_subject for noun in people if noun.kind == "person")
