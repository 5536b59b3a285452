"""The built-in toy corpus: reproducible, distinct pairs, properties of the splits, coverage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice, pairwise

import pytest

from nmt.errors import UserError
from nmt.grammar import ToyPair, generate, source_files, translate
from nmt.grammar.modifiers import ADJECTIVES
from nmt.grammar.nouns import COMPOUNDS, NOUN, NOUNS
from nmt.grammar.phrases import ADJECTIVES_OF
from nmt.grammar.sampler import PERSONAL_OBJECT, SUBJECTS, VERBS_OF_OBJECT, VERBS_OF_SUBJECT, Sampler
from nmt.grammar.splits import Split, is_held_out
from nmt.grammar.syntax import Clause, Coordination, NounPhrase, Phrase, Prepositional, Sentence
from nmt.grammar.verbs import VERBS

LABELS = {
    *("verb-second", "verb-final", "separable-verb", "case", "adjective-agreement", "compound", "numbers", "dates"),
    *("names", "relative-clause", "negation", "question", "modal", "perfect", "future", "two-way-preposition"),
    *("possessive", "coordination", "passive", "infinitive", "reflexive"),
}


@pytest.fixture(scope="module")
def all_train() -> list[ToyPair]:
    return list(generate("train", 50_000, seed=1))


@pytest.fixture(scope="module")
def train(all_train: list[ToyPair]) -> list[ToyPair]:
    return all_train[:20_000]


@pytest.fixture(scope="module")
def test() -> list[ToyPair]:
    return list(generate("test", 2_000, seed=1))


def sentences(split: Split, count: int) -> Iterator[Sentence]:
    """Sample trees, without removing duplicates or sentences of other splits."""
    sampler = Sampler(split, seed=3)
    return (sampler.sentence() for _ in range(count))


# --- Reproducibility --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fewer_pairs_are_a_prefix(train: list[ToyPair]) -> None:
    assert list(generate("train", 300, seed=1)) == train[:300]


def test_seeds_and_splits_give_different_pairs() -> None:
    firsts = [tuple(islice(generate(split, 5, seed), 5)) for split in ("train", "test", "nested") for seed in (1, 2)]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.slow
def test_pairs_do_not_depend_on_the_hash_seed(train: list[ToyPair]) -> None:
    script = "from nmt.grammar import generate\nfor pair in generate('train', 100, 1): print(ascii(pair))"
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [ascii(pair) for pair in train[:100]]


@pytest.mark.slow
def test_each_english_sentence_has_one_translation() -> None:
    translations: dict[str, str] = {}
    for split in ("train", "test"):
        for tree in sentences(split, 4_000):
            src, tgt, _ = translate(tree)
            assert translations.setdefault(src, tgt) == tgt


def test_source_files_lists_all_modules() -> None:
    names = {module.partition("grammar.")[2] for module in sys.modules if module.startswith("nmt.grammar.")}
    assert {path.stem for path in source_files()} == {"__init__", *names}


@pytest.mark.slow
def test_pairs_are_distinct(train: list[ToyPair]) -> None:
    assert len(train) == len({pair.src for pair in train}) == 20_000


def test_an_exhausted_grammar_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = sentences("train", 1)
    monkeypatch.setattr(Sampler, "sentence", lambda self: only)
    monkeypatch.setattr("nmt.grammar._MAX_REJECTED", 1_000)
    with pytest.raises(UserError, match="has only 1 nested pairs, but 2 were requested; request fewer"):
        list(generate("nested", 2, seed=1))


# --- Splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_splits_are_disjoint(train: list[ToyPair], test: list[ToyPair]) -> None:
    seen = {pair.src for pair in train}
    others = {"test": test, "valid": generate("valid", 500, seed=1), "nested": generate("nested", 500, seed=1)}
    for name, pairs in others.items():
        sources = {pair.src for pair in pairs}
        assert not sources & seen, name
        seen |= sources
    assert not {pair.src for pair in generate("valid", 200, seed=7)} & {pair.src for pair in train}


def held_out_words() -> set[str]:
    """Return the held-out bigrams: adjective and noun, or the two parts of a compound."""
    modifiers = {modifier.en for modifiers in COMPOUNDS.values() for modifier in modifiers}
    # A noun that may be a compound modifier is ambiguous: a small kitchen table has no small kitchen.
    adjectives = [("adjective", adj.en, noun) for adj in ADJECTIVES for noun in adj.nouns if noun.en not in modifiers]
    compounds = [("compound", modifier.en, noun) for noun, own in COMPOUNDS.items() for modifier in own]
    held_out = [(first, noun) for kind, first, noun in adjectives + compounds if is_held_out(kind, first, noun.en)]
    return {f"{first} {form}" for first, noun in held_out for form in (noun.en, noun.en_plural) if form}


@pytest.mark.slow
def test_held_out_bigrams_only_occur_in_test(train: list[ToyPair], test: list[ToyPair]) -> None:
    held_out = held_out_words()

    def bigrams(pair: ToyPair) -> set[str]:
        words = re.sub("[^a-zA-Z' -]", " ,", pair.src).lower().split(" ")
        return {f"{first} {second}" for first, second in pairwise(words)} & held_out

    assert not any(map(bigrams, train))
    assert not any(map(bigrams, generate("nested", 1_000, 1)))
    assert sum(bool(bigrams(pair)) for pair in test) > 300


def combinations(clause: Clause) -> Iterator[tuple[str, str, str]]:
    """Yield the word combinations of a clause and its nested clauses."""
    phrases = [clause.subject, clause.object, clause.receiver]
    phrases += [place.phrase for place in (clause.place, clause.company) if isinstance(place, Prepositional)]
    for phrase in phrases:
        yield from in_phrase(phrase)
    patient = clause.subject if clause.passive else clause.object
    if patient is not None and patient.noun is not None:
        yield "object", clause.verb.infinitive, patient.noun.en
    if clause.predicate is not None:
        yield "adjective", clause.predicate.en, (clause.subject.noun or NOUN["woman"]).en
    for subordinate in (clause.complement, clause.adjunct):
        if subordinate is not None:
            yield from combinations(subordinate.clause)


def in_phrase(phrase: Phrase | None) -> Iterator[tuple[str, str, str]]:
    if isinstance(phrase, Coordination):
        yield from (*in_phrase(phrase.first), *in_phrase(phrase.second))
    if isinstance(phrase, NounPhrase):
        for kind, first in (("adjective", phrase.adjective), ("compound", phrase.modifier)):
            if first is not None:
                yield kind, first.en, phrase.noun.en
        if phrase.number > 20 and phrase.number % 10:
            yield "number", str(phrase.number), ""
        if phrase.relative is not None:
            yield from combinations(phrase.relative)


def has_held_out(tree: Sentence) -> bool:
    clauses = [tree.clause] if tree.second is None else [tree.clause, tree.second]
    return any(is_held_out(*words) for clause in clauses for words in combinations(clause))


@pytest.mark.slow
def test_has_held_out_matches_the_sampled_tree() -> None:
    for split in ("train", "valid", "nested"):
        assert not any(map(has_held_out, sentences(split, 2_000)))
    sampler = Sampler("test", seed=3)
    flags = [(has_held_out(sampler.sentence()), sampler.has_held_out) for _ in range(2_000)]
    assert all(expected == actual for expected, actual in flags)
    assert 200 < sum(expected for expected, _ in flags) < 1_000


def test_about_ten_percent_of_the_combinations_are_held_out() -> None:
    held_out = [is_held_out("object", verb.infinitive, noun.en) for verb in VERBS for noun in NOUNS]
    assert 0.08 < sum(held_out) / len(held_out) < 0.12


NUMBER_PARTS = """
    dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig
    achtzig neunzig hundert eins zwei drei vier fünf sechs sieben acht neun zehn zwölf elf ein und st en t"""
NUMBER_PART = "|".join(NUMBER_PARTS.split())
COMPOUND_PART = "|".join(
    sorted({modifier.de for modifiers in COMPOUNDS.values() for modifier in modifiers}, key=len, reverse=True)
)


def words(text: str) -> Iterator[str]:
    """Yield the lowercase words of a sentence; German numbers and compounds are split."""
    for word in re.findall(r"[\w']+", text):
        yield from parts(word)


@cache
def parts(word: str) -> list[str]:
    """Return the parts of a German number or compound, or else the word, in lower case."""
    if re.fullmatch(f"(?:{NUMBER_PART})+", word.lower()):
        return re.findall(NUMBER_PART, word.lower())
    compound = re.fullmatch(f"({COMPOUND_PART})(.+)", word)
    return [part.lower() for part in compound.groups()] if compound else [word.lower()]


@pytest.mark.slow
def test_all_word_forms_of_test_occur_in_train(all_train: list[ToyPair], test: list[ToyPair]) -> None:
    for side in ("src", "tgt"):
        seen = {word for pair in all_train for word in words(getattr(pair, side))}
        assert not {word for pair in test for word in words(getattr(pair, side))} - seen


def depth(clause: Clause) -> int:
    """Return the nesting depth of finite clauses in a clause."""
    inside = [1 + depth(clause.adjunct.clause)] if clause.adjunct is not None else []
    if clause.complement is not None:
        inside.append((clause.complement.conjunction is not None) + depth(clause.complement.clause))
    phrases = (phrase for phrase in (clause.subject, clause.object) if isinstance(phrase, NounPhrase))
    return max([0, *inside, *(1 + depth(phrase.relative) for phrase in phrases if phrase.relative is not None)])


def test_nested_documents_are_an_error() -> None:
    with pytest.raises(UserError, match="toy documents have no nested clauses; documents must be false"):
        next(generate("nested", 2, seed=1, documents=True))


def test_nested_sentences_are_deeper_than_those_of_train() -> None:
    assert {depth(tree.clause) for tree in sentences("train", 1_000)} == {0, 1, 2}
    assert {depth(tree.clause) for tree in sentences("nested", 200)} == {3, 4}


# --- Sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_label_is_frequent(train: list[ToyPair], test: list[ToyPair]) -> None:
    counts = Counter(label for pair in test for label in pair.labels)
    assert set(counts) == LABELS == {label for pair in train for label in pair.labels}
    assert min(counts.values()) >= 90, counts.most_common()[-3:]


@pytest.mark.slow
def test_sentences_are_well_formed(train: list[ToyPair]) -> None:
    for pair in train:
        for text in (pair.src, pair.tgt):
            assert text[0].isupper() and text[-1] in ".?"
            assert not re.search(r"  | [,.?]|,,|,[.?]|,\w|[.?].", text), text
        assert (pair.src[-1], "question" in pair.labels) == (pair.tgt[-1], pair.src[-1] == "?")
        assert pair.labels == tuple(sorted(set(pair.labels)))


@pytest.mark.slow
def test_the_whole_lexicon_is_used(train: list[ToyPair]) -> None:
    seen = Counter(word for pair in train for word in words(pair.src))
    entries = [noun.en for noun in NOUNS] + [adjective.en for adjective in ADJECTIVES]
    entries += [verb.en_past.split()[0] for verb in VERBS if verb.en not in ("be", "have")]
    assert not [word for word in entries if seen[word] < 5]


def test_sampling_always_terminates() -> None:
    """Rejection sampling needs a candidate that is allowed, not held out and not the subject."""
    for verb in VERBS:
        objects = {noun for noun in verb.objects if not is_held_out("object", verb.infinitive, noun.en)}
        assert not verb.objects or all(objects - {noun} for noun in verb.subjects), verb.infinitive
        people = {noun for noun in objects if noun.is_human}
        assert verb not in PERSONAL_OBJECT or len(people) >= 3, verb.infinitive
        assert not verb.de_preposition or verb in PERSONAL_OBJECT, f"{verb.infinitive}: its question needs `who`"
    for noun in NOUNS:
        assert any(not is_held_out("adjective", adjective.en, noun.en) for adjective in ADJECTIVES_OF[noun]), noun.en
        patterns = {pattern for pattern, verb in SUBJECTS if noun in SUBJECTS[pattern, verb]}
        assert patterns - {"passive"}, noun.en
        if noun.is_human:
            assert patterns >= {"object", "give", "that", "whether", "to"}
            assert all((pattern, noun) in VERBS_OF_SUBJECT for pattern in ("object", "give", "that", "whether"))
            assert noun in VERBS_OF_OBJECT


def test_documents_have_a_pronoun_with_the_gender_of_an_earlier_noun() -> None:
    pairs = list(generate("train", 1_001, 3, documents=True))
    assert len(pairs) == 1_001
    assert list(generate("train", 300, 3, documents=True)) == pairs[:300]
    documents = list(zip(pairs[:-1:2], pairs[1::2], strict=True))
    assert len({(first.src, second.src) for first, second in documents}) == 500
    by_pronoun: dict[str, int] = {}
    for first, second in documents:
        assert "anaphor" not in first.labels and "anaphor" in second.labels
        assert "it" in re.findall(r"\w+", second.src.lower())
        pronoun = next(word for word in re.findall(r"\w+", second.tgt.lower()) if word in ("er", "sie", "es"))
        by_pronoun[pronoun] = by_pronoun.get(pronoun, 0) + 1
        words = re.findall(r"\w+", first.src.lower())
        genders = {NOUN[word].gender for word in words if word in NOUN and not NOUN[word].is_animate}
        assert {"er": "m", "sie": "f", "es": "n"}[pronoun] in genders
    assert min(by_pronoun.values()) > 100
