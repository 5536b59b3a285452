"""Realization of sentences in German, with labels of their grammatical phenomena.

The finite verb is second in a main clause, first in a yes-no question, and last in a subordinate clause. Prefix,
infinitives and participles form the right bracket. The middle field is between the finite verb and the right bracket.
Clauses follow the right bracket.
"""

from __future__ import annotations

from functools import lru_cache
from typing import assert_never

from nmt.grammar.entries import Adjective, Case, Fixed, Gender, Noun
from nmt.grammar.morphology import (
    IT,
    PRETERITE,
    PRONOUNS,
    REFLEXIVE,
    RELATIVE,
    adjective,
    contract,
    determiner,
    noun,
    past,
    present,
)
from nmt.grammar.numbers import german_cardinal
from nmt.grammar.syntax import (
    Clause,
    Coordination,
    It,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
    Relative,
    Sentence,
    Subordinate,
)

_CACHE_SIZE = 1 << 16
_CONJUNCTIONS = {
    "because": "weil",
    "although": "obwohl",
    "when": "wenn",
    "if": "wenn",
    "while": "während",
    "before": "bevor",
    "that": "dass",
    "whether": "ob",
    "and": "und",
    "but": "aber",
}
_TWO_WAY = {"in", "an", "auf", "unter", "neben", "hinter", "vor"}


def german(sentence: Sentence) -> tuple[str, set[str]]:
    """Realize a sentence in German, before capitalization and comma cleanup, and return its labels."""
    realizer = _German()
    return realizer.sentence(sentence), realizer.labels


class _German:
    """Realizes one sentence and collects its labels."""

    def __init__(self) -> None:
        self.labels: set[str] = set()

    def sentence(self, sentence: Sentence) -> str:
        clause = sentence.clause
        if sentence.question:
            self.labels.add("question")
            front = "" if clause.front is None else self._front(clause) + " "
            return f"{front}{self._verb_first(clause, subject_done=clause.front == 'subject')}?"
        text = self._main_clause(clause)
        if sentence.second is not None:
            self.labels.add("coordination")
            comma = " ," if sentence.coordinator == "but" else ""
            text += f"{comma} {_CONJUNCTIONS[sentence.coordinator]} {self._main_clause(sentence.second)}"
        return text + "."

    # --- Clauses ------------------------------------------------------------------------------------------------------

    def _main_clause(self, clause: Clause) -> str:
        """Realize a verb-second clause; the subject follows the finite verb if another constituent is fronted."""
        if clause.adjunct is not None and clause.adjunct.first:
            self.labels.add("verb-second")
            return f"{self._subordinate(clause.adjunct)} , {self._verb_first(clause, subject_done=False)}"
        if clause.front == "time":
            self.labels.add("verb-second")
            return f"{self._front(clause)} {self._verb_first(clause, subject_done=False)}"
        return f"{self._phrase(clause.subject, 'nom')} {self._verb_first(clause, subject_done=True)}"

    def _verb_first(self, clause: Clause, subject_done: bool) -> str:
        """Realize a clause from its finite verb on."""
        finite, prefix, infinite = self._verbs(clause)
        return f"{finite} {self._rest(clause, f'{prefix} {infinite}'.strip(), subject_done)}".rstrip()

    def _verb_final(self, clause: Clause) -> str:
        """Realize a subordinate clause without its introductory word."""
        self.labels.add("verb-final")
        finite, prefix, infinite = self._verbs(clause)
        return self._rest(clause, f"{infinite} {prefix}{finite}".lstrip(), clause.front == "subject")

    def _subordinate(self, subordinate: Subordinate) -> str:
        """Realize a subordinate clause or an infinitive. Past `when` is als; separable verbs contain zu: anzurufen."""
        conjunction, clause, _ = subordinate
        if conjunction is not None:
            is_als = conjunction == "when" and clause.tense == "past"
            return f"{'als' if is_als else _CONJUNCTIONS[conjunction]} {self._verb_final(clause)}"
        self.labels.add("infinitive")
        prefix, infinitive = clause.verb.prefix, f"zu {clause.verb.de}"
        if prefix:
            self.labels.add("separable-verb")
            infinitive = f"{prefix}zu{clause.verb.de}"
        return self._rest(clause, infinitive, subject_done=True)

    def _relative(self, clause: Clause) -> str:
        self.labels.add("relative-clause")
        return f", {self._front(clause)} {self._verb_final(clause)} ,"

    def _front(self, clause: Clause) -> str:
        """Realize the fronted time, question word or relative pronoun."""
        match clause.front:
            case "object":
                return self._object(clause)
            case "place":
                return self._adverbial(clause.place)
            case "time":
                return self._adverbial(clause.time)
            case _:
                return self._phrase(clause.subject, "nom")

    # --- Middle field and right bracket -------------------------------------------------------------------------------

    def _rest(self, clause: Clause, right_bracket: str, subject_done: bool) -> str:
        """Realize the middle field, the right bracket and the clauses after it.

        Order of the middle field: subject, pronouns, time, receiver, object, nicht, adverb, company, place. An adverb
        precedes an indefinite object (langsam ein Buch), and a prepositional object comes last. The relative clause of
        an object follows the right bracket.
        """
        words = self._subject_and_pronouns(clause, subject_done)
        if clause.front != "time":
            words.append(self._adverbial(clause.time))
        if clause.receiver is not None and not isinstance(clause.receiver, Pronoun):
            words.append(self._phrase(clause.receiver, "dat"))
        place = self._adverbial(clause.place) if clause.front != "place" else ""
        adverbs = [self._adverbial(clause.frequency), self._adverbial(clause.manner), self._adverbial(clause.company)]
        negation = "nicht" if clause.negated else ""
        if clause.negated:
            self.labels.add("negation")
        phrase, relative = clause.object, ""
        if phrase is None or clause.front == "object" or _is_unstressed(clause):
            words += (negation, *adverbs, place)
        elif clause.verb.de_preposition:
            words += (place, negation, *adverbs, self._object(clause))
        elif isinstance(phrase, NounPhrase) and phrase.determiner in ("a", "", "some", "many") and not phrase.owner:
            if clause.negated and not phrase.number:
                words += (*adverbs, self._object(clause, determiner="no"), place)
            else:
                words += (*adverbs[:2], self._object(clause), adverbs[2], place)
        else:
            words += (self._object(clause), negation, *adverbs, place)
        if isinstance(phrase, NounPhrase) and phrase.relative is not None:
            relative = self._relative(phrase.relative)
        words += (clause.predicate.de if clause.predicate is not None else "", right_bracket, relative)
        if clause.complement is not None:
            words += (",", self._subordinate(clause.complement), ",")
        if clause.adjunct is not None and not clause.adjunct.first:
            words += (",", self._subordinate(clause.adjunct), ",")
        return " ".join(filter(None, words))

    def _subject_and_pronouns(self, clause: Clause, subject_done: bool) -> list[str]:
        """Realize subject and unstressed pronouns; a reflexive precedes a noun: hat sich die Frau erinnert."""
        subject, receiver = clause.subject, clause.receiver
        words = [] if subject_done else [self._phrase(subject, "nom")]
        if clause.verb.reflexive:
            self.labels.add("reflexive")
            words.insert(len(words) if isinstance(subject, Pronoun | It) else 0, REFLEXIVE[subject.person])
        if _is_unstressed(clause):
            words.append(self._object(clause))
        if receiver is not None:
            self.labels.add("case")
            if isinstance(receiver, Pronoun):
                words.append(self._phrase(receiver, "dat"))
        return words

    def _object(self, clause: Clause, determiner: str = "") -> str:
        """Realize the object with its preposition and without its relative clause. determiner: replaces its own"""
        phrase, case, preposition = clause.object, clause.verb.de_case, clause.verb.de_preposition
        assert phrase is not None
        if case != "acc" or preposition:
            self.labels.add("case")
        if not isinstance(phrase, NounPhrase):
            words = self._phrase(phrase, case)
        elif determiner:
            words = self._noun_phrase(phrase._replace(determiner=determiner), case)
        else:
            words = self._noun_phrase(phrase, case)
            if phrase.relative is not None:
                return f"{preposition} {words}".lstrip()  # no contraction: von dem Mann, der
        return contract(preposition, words) if preposition else words

    # --- Verbs --------------------------------------------------------------------------------------------------------

    def _verbs(self, clause: Clause) -> tuple[str, str, str]:
        """Return the finite verb, its separable prefix, and the infinitives and participles."""
        verb, who = clause.verb, clause.subject.person
        if verb.prefix:
            self.labels.add("separable-verb")
        infinitive = verb.infinitive
        if clause.passive:
            self.labels.add("passive")
            infinitive = f"{verb.participle} werden"
        if clause.modal is not None:
            self.labels.add("modal")
            singular, second, plural, de_past = clause.modal.de
            if clause.tense == "past":
                return past(de_past, who), "", infinitive
            finite = singular if who in ("1s", "3s") else second if who == "2s" else plural
            return finite, "", infinitive
        match clause.tense:
            case "present" | "progressive" if clause.passive:
                return present("werden", "", who), "", verb.participle
            case "present" | "progressive":
                return present(verb.de, verb.changed_stem, who), verb.prefix, ""
            case "past" if clause.passive:
                return past(PRETERITE["werden"], who), "", verb.participle
            case "past" if verb.de in PRETERITE:
                return past(PRETERITE[verb.de], who), "", ""
            case "past" | "perfect":
                self.labels.add("perfect")
                return present(verb.auxiliary, "", who), "", verb.participle
            case "future":
                self.labels.add("future")
                return present("werden", "", who), "", infinitive
            case _:
                assert_never(clause.tense)

    # --- Phrases ------------------------------------------------------------------------------------------------------

    def _phrase(self, phrase: Phrase, case: Case) -> str:
        match phrase:
            case NounPhrase():
                words = self._noun_phrase(phrase, case)
                return words if phrase.relative is None else f"{words} {self._relative(phrase.relative)}"
            case Pronoun():
                return PRONOUNS[phrase.word][case]
            case Name():
                self.labels.add("names")
                return phrase.name
            case Coordination():
                self.labels.add("coordination")
                return f"{self._phrase(phrase.first, case)} und {self._phrase(phrase.second, case)}"
            case Relative():
                return RELATIVE[case, phrase.gender]
            case It():
                self.labels.add("anaphor")
                return IT[phrase.noun.gender]
            case _:
                assert_never(phrase)

    def _noun_phrase(self, phrase: NounPhrase, case: Case) -> str:
        """Realize a noun phrase without its relative clause: Annas Hund, der Hund des Nachbarn, zwei Hunde."""
        noun, determiner, _, modifier, adjective, number, owner, _ = phrase
        if modifier is not None:
            self.labels.add("compound")
        if adjective is not None:
            self.labels.add("adjective-agreement")
        if isinstance(owner, NounPhrase):
            determiner = "the"
        words = _core(noun, determiner, phrase.gender, modifier, adjective, case)
        if number:
            self.labels.add("numbers")
            return f"{german_cardinal(number)} {words}"
        if owner is None:
            return words
        self.labels.add("possessive")
        if isinstance(owner, NounPhrase):
            return f"{words} {self._noun_phrase(owner, 'gen')}"
        return f"{self._phrase(owner, 'nom')}s {words}"

    def _adverbial(self, place: Prepositional | Fixed | None) -> str:
        """Realize an adverb or a prepositional phrase; empty for None."""
        if place is None:
            return ""
        if isinstance(place, Fixed):
            if place.label:
                self.labels.add(place.label)
            return place.de
        if place.de in _TWO_WAY:
            self.labels.add("two-way-preposition")
        return contract(place.de, self._phrase(place.phrase, place.case))


def _is_unstressed(clause: Clause) -> bool:
    """Return whether the object is an unstressed pronoun, at the start of the middle field."""
    return isinstance(clause.object, Pronoun) and clause.front != "object" and not clause.verb.de_preposition


@lru_cache(_CACHE_SIZE)
def _core(
    entry: Noun, article: str, gender: Gender, modifier: Fixed | None, quality: Adjective | None, case: Case
) -> str:
    """Realize determiner, adjective and noun, with its compound modifier."""
    words = noun(entry, case, gender == "p")
    if modifier is not None:
        words = modifier.de + words.lower()
    if quality is not None:
        words = f"{adjective(quality.de, article, case, gender)} {words}"
    return f"{determiner(article, case, gender)} {words}".lstrip()
