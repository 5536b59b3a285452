"""The German realisation of the abstract syntax, which also notes the phenomena that a sentence shows.

A German clause has a frame: the finite verb opens it in second position (first in yes-no questions and commands), and
separated prefix, infinitives and participles close it. In subordinate clauses the finite verb joins the closing end.
Between them stands the middle field, and after them what is too heavy for it: clauses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, assert_never

from nmt.data.embedded.english import punctuate
from nmt.data.embedded.entries import Adjective, Adverbial, Case, Column, Noun, Person
from nmt.data.embedded.german_forms import (
    ADJECTIVE_ENDINGS,
    PRONOUNS,
    REFLEXIVE,
    RELATIVE_PRONOUN,
    WHAT,
    WHO,
    adjective_stem,
    contract,
    declension,
    determiner,
    has_preterite,
    imperative,
    infinitive_with_zu,
    modal_present,
    noun,
    past_ending,
    present,
    preterite,
)
from nmt.data.embedded.numbers import german_cardinal
from nmt.data.embedded.syntax import (
    AdjectivePredicate,
    Adjunct,
    Clause,
    Complement,
    Coordination,
    Degree,
    Interrogative,
    Measure,
    Name,
    NounPhrase,
    Phrase,
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    RelativePronoun,
    Sentence,
)

_PHRASES_CACHED = 1 << 16
_CONJUNCTIONS = {
    "because": "weil",
    "although": "obwohl",
    "if": "wenn",
    "while": "während",
    "before": "bevor",
    "after": "nachdem",
    "until": "bis",
    "as soon as": "sobald",
    "that": "dass",
    "whether": "ob",
}
_COORDINATORS = {"and": "und", "but": "aber"}


class VerbComplex(NamedTuple):
    """The verb's parts: the finite form, the prefix that it leaves behind in main clauses, and all infinite forms."""

    finite: str
    prefix: str
    infinite: str


def german(sentence: Sentence) -> tuple[str, tuple[str, ...]]:
    """The German of a sentence, with capital and final stop, and the names of the phenomena in it, sorted."""
    realizer = _German()
    text = realizer.sentence(sentence)
    return punctuate(text), tuple(sorted(realizer.phenomena))


class _German:
    """Realises one sentence and collects its phenomena."""

    def __init__(self) -> None:
        self.phenomena: set[str] = set()

    def sentence(self, sentence: Sentence) -> str:
        match sentence.kind:
            case "statement":
                text, stop = self._main_clause(sentence.clause), "."
            case "question":
                self.phenomena.add("question")
                text, stop = self._question(sentence.clause), "?"
            case "command":
                self.phenomena.add("command")
                text, stop = ("bitte " if sentence.please else "") + self._command(sentence.clause), "!"
            case _:
                assert_never(sentence.kind)
        if sentence.second is not None and sentence.coordinator is not None:
            self.phenomena.add("coordination")
            comma = "," if sentence.coordinator == "but" else ""
            text += f"{comma} {_COORDINATORS[sentence.coordinator]} {self._main_clause(sentence.second)}"
        return text + stop

    # --- Kinds of clauses -------------------------------------------------------------------------------------------

    def _main_clause(self, clause: Clause) -> str:
        """Verb second: whatever stands first, the finite verb follows, and then the subject if it was not first."""
        if clause.adjunct is not None and clause.adjunct.first:
            self.phenomena.add("verb-second")
            first = f"{self._adjunct(clause.adjunct)},"
            return f"{first} {self._verb_first(clause, subject_said=False)}"
        if clause.front == "time" and clause.time is not None:
            self.phenomena.add("verb-second")
            return f"{self._adverbial(clause.time)} {self._verb_first(clause, subject_said=False)}"
        return f"{self._phrase(clause.subject, 'nom')} {self._verb_first(clause, subject_said=True)}"

    def _question(self, clause: Clause) -> str:
        """A question word and then the finite verb, or the finite verb at once."""
        if clause.front is None:
            return self._verb_first(clause, subject_said=False)
        return f"{self._front(clause)} {self._verb_first(clause, subject_said=clause.front == 'subject')}"

    def _verb_first(self, clause: Clause, subject_said: bool) -> str:
        """The clause from its finite verb on."""
        verbs = self._verbs(clause, clause.subject.person)
        closing = " ".join(filter(None, (verbs.prefix, verbs.infinite)))
        words = [verbs.finite]
        behind = self._add_middle(words, clause, subject_said, bracket=bool(closing))
        return self._close(words, closing, behind, clause)

    def _verb_final(self, clause: Clause) -> str:
        """A subordinate clause after what introduces it: the finite verb comes last, behind the infinite forms."""
        self.phenomena.add("verb-final")
        verbs = self._verbs(clause, clause.subject.person)
        closing = f"{verbs.infinite} {verbs.prefix}{verbs.finite}" if verbs.infinite else verbs.prefix + verbs.finite
        words: list[str] = []
        behind = self._add_middle(words, clause, subject_said=clause.front == "subject", bracket=True)
        return self._close(words, closing, behind, clause)

    def _command(self, clause: Clause) -> str:
        verb = clause.verb
        if verb.prefix:
            self.phenomena.add("separable-verb")
        words = [imperative(verb)]
        behind = self._add_middle(words, clause, subject_said=True, bracket=bool(verb.prefix))
        return self._close(words, verb.prefix, behind, clause)

    def _infinitive(self, clause: Clause) -> str:
        """The words of an infinitive clause: zu stands before the verb or inside it."""
        self.phenomena.add("infinitive")
        if clause.verb.prefix:
            self.phenomena.add("separable-verb")
        words: list[str] = []
        behind = self._add_middle(words, clause, subject_said=True, bracket=True)
        return self._close(words, infinitive_with_zu(clause.verb), behind, clause)

    def _close(self, words: list[str], closing: str, behind: str, clause: Clause) -> str:
        """Put the closing verb forms after the middle field, and then the clauses that follow them."""
        if closing:
            words.append(closing)
        if behind:
            words.append(behind)
        if clause.complement is not None:
            words += (",", self._complement(clause.complement), ",")
        if clause.adjunct is not None and not clause.adjunct.first:
            words += (",", self._adjunct(clause.adjunct), ",")
        return " ".join(words)

    def _adjunct(self, adjunct: Adjunct) -> str:
        """weil ..., and for when: als if it happened once upon a time, or else wenn."""
        clause = adjunct.clause
        if adjunct.conjunction == "when":
            conjunction = "als" if clause.tense in ("past", "pluperfect") else "wenn"
        else:
            conjunction = _CONJUNCTIONS[adjunct.conjunction]
        return f"{conjunction} {self._verb_final(clause)}"

    def _complement(self, complement: Complement) -> str:
        clause = complement.clause
        if complement.conjunction is not None:
            return f"{_CONJUNCTIONS[complement.conjunction]} {self._verb_final(clause)}"
        if clause.front is not None:
            return f"{self._front(clause)} {self._verb_final(clause)}"
        return ("um " if complement.purpose else "") + self._infinitive(clause)

    def _relative(self, clause: Clause) -> str:
        self.phenomena.add("relative-clause")
        return f", {self._front(clause)} {self._verb_final(clause)},"

    # --- The middle field -------------------------------------------------------------------------------------------

    def _add_middle(self, words: list[str], clause: Clause, subject_said: bool, bracket: bool) -> str:
        """Add the middle field to the words and return what must wait until after the closing verb forms.

        Order: subject, pronouns, time, dative, accusative, nicht, agent or company, adverb (but before an accusative
        that is new: langsam ein Buch), place, predicate. A prepositional object of the verb comes last, and place
        before nicht then. A relative clause does not keep a closing verb form from its noun: it moves behind it.
        """
        front = clause.front
        self._add_subject_and_pronouns(words, clause, subject_said)
        if clause.time is not None and front != "time":
            words.append(self._adverbial(clause.time))
        negation, direct, indirect = self._negation(clause)
        adverb = self._adverb(clause)
        extrapose = bracket or bool(negation) or clause.frequency is not None
        behind = ""
        if isinstance(indirect, (NounPhrase, Name, Coordination)) and front != "indirect":
            behind = self._add_object(words, indirect, "dat", extrapose and direct is None)
        if isinstance(direct, (NounPhrase, Name, Coordination, Interrogative)) and front != "direct":
            if adverb and isinstance(direct, NounPhrase) and _is_new(direct):
                words.append(adverb)
                adverb = ""
            behind = self._add_object(words, direct, "acc", extrapose)
        place = self._place(clause.place) if clause.place is not None and front != "place" else ""
        if clause.oblique is None or front == "oblique":
            words += filter(None, (negation, self._company(clause), adverb, place))
        else:
            words += filter(None, (place, negation, self._company(clause), adverb))
            behind = self._add_oblique(words, clause, bracket)
        if clause.predicate is not None:
            words.append(self._predicate(clause.predicate))
        return behind

    def _add_subject_and_pronouns(self, words: list[str], clause: Clause, subject_said: bool) -> None:
        """The subject and unstressed pronouns: reflexive, accusative, dative; a reflexive goes before nouns."""
        subject = clause.subject
        if not subject_said:
            words.append(self._phrase(subject, "nom"))
        if clause.verb.reflexive:
            self.phenomena.add("reflexive")
            place = len(words) if subject_said or isinstance(subject, Pronoun) else len(words) - 1
            words.insert(place, REFLEXIVE[subject.person])
        if isinstance(clause.direct, Pronoun):
            words.append(self._phrase(clause.direct, "acc"))
        if clause.indirect is not None:
            self.phenomena.add("case")
            if isinstance(clause.indirect, Pronoun):
                words.append(self._phrase(clause.indirect, "dat"))

    def _negation(self, clause: Clause) -> tuple[str, Phrase | None, Phrase | None]:
        """nicht, and both objects; or nothing, and one of them with kein, if it is indefinite."""
        direct, indirect = clause.direct, clause.indirect
        if not clause.negated:
            return "", direct, indirect
        self.phenomena.add("negation")
        if isinstance(direct, NounPhrase) and _is_indefinite(direct):
            return "", direct._replace(determiner="no"), indirect
        if isinstance(indirect, NounPhrase) and _is_indefinite(indirect):
            return "", direct, indirect._replace(determiner="no")
        return "nicht", direct, indirect

    def _add_object(self, words: list[str], phrase: Phrase, case: Case, extrapose: bool) -> str:
        """Add an object; return its relative clause if that is to move."""
        if extrapose and isinstance(phrase, NounPhrase) and phrase.relative is not None:
            words.append(self._noun_phrase(phrase, case))
            return self._relative(phrase.relative)
        words.append(self._phrase(phrase, case))
        return ""

    def _add_oblique(self, words: list[str], clause: Clause, bracket: bool) -> str:
        """Add the verb's prepositional object; return its relative clause if that is to move."""
        self.phenomena.add("case")
        verb, phrase = clause.verb, clause.oblique
        assert phrase is not None
        found: list[str] = []
        behind = self._add_object(found, phrase, verb.de_case, bracket)
        if not verb.de_preposition:
            words += found
        elif _may_contract(phrase):
            words.append(contract(verb.de_preposition, found[0]))
        else:
            words += (verb.de_preposition, *found)
        return behind

    def _adverb(self, clause: Clause) -> str:
        """How often and how."""
        often = self._adverbial(clause.frequency) if clause.frequency is not None else ""
        if clause.manner is None:
            return often
        return f"{often} {clause.manner.de}" if often else clause.manner.de

    def _company(self, clause: Clause) -> str:
        """Agent or companion, who never meet."""
        if clause.place is not None and (clause.time or clause.companion or clause.manner) and clause.front is None:
            self.phenomena.add("time-manner-place")
        if clause.agent is not None:
            return contract("von", self._phrase(clause.agent, "dat"))
        return self._place(clause.companion) if clause.companion is not None else ""

    def _front(self, clause: Clause) -> str:
        """The question word or relative pronoun that stands before everything, with its preposition."""
        match clause.front:
            case "subject" | None:
                return self._phrase(clause.subject, "nom")
            case "direct":
                assert clause.direct is not None
                return self._phrase(clause.direct, "acc")
            case "indirect":
                assert clause.indirect is not None
                return self._phrase(clause.indirect, "dat")
            case "oblique":
                assert clause.oblique is not None
                self.phenomena.add("case")
                return f"{clause.verb.de_preposition} {self._phrase(clause.oblique, clause.verb.de_case)}".lstrip()
            case "place":
                assert clause.place is not None
                return self._place(clause.place)
            case "time":
                assert clause.time is not None
                return self._adverbial(clause.time)
            case _:
                assert_never(clause.front)

    # --- Verbs ------------------------------------------------------------------------------------------------------

    def _verbs(self, clause: Clause, who: Person) -> VerbComplex:
        verb = clause.verb
        if verb.prefix:
            self.phenomena.add("separable-verb")
        participle, auxiliary, infinitive = verb.participle, verb.auxiliary, verb.infinitive
        if clause.passive:
            self.phenomena.add("passive")
            infinitive, auxiliary, participle = f"{verb.participle} werden", "sein", f"{verb.participle} worden"
        if clause.modal is not None:
            self.phenomena.add("modal")
            if clause.tense == "past":
                return VerbComplex(past_ending(clause.modal.de_past, who), "", infinitive)
            return VerbComplex(modal_present(clause.modal, who), "", infinitive)
        match clause.tense:
            case "present" | "progressive":
                if clause.passive:
                    return VerbComplex(present("werden", "", who), "", verb.participle)
                return VerbComplex(present(verb.de, verb.present_stem, who), verb.prefix, "")
            case "past" if clause.passive:
                return VerbComplex(preterite("werden", who), "", verb.participle)
            case "past" if has_preterite(verb.de):
                return VerbComplex(preterite(verb.de, who), "", "")
            case "past" | "perfect":
                self.phenomena.add("perfect")
                return VerbComplex(present(auxiliary, "", who), "", participle)
            case "pluperfect":
                self.phenomena.add("perfect")
                return VerbComplex(preterite(auxiliary, who), "", participle)
            case "future":
                self.phenomena.add("future")
                return VerbComplex(present("werden", "", who), "", infinitive)
            case _:
                assert_never(clause.tense)

    # --- Phrases ----------------------------------------------------------------------------------------------------

    def _phrase(self, phrase: Phrase, case: Case) -> str:
        match phrase:
            case NounPhrase():
                words = self._noun_phrase(phrase, case)
                return words if phrase.relative is None else words + self._relative(phrase.relative)
            case Pronoun():
                return PRONOUNS[phrase.word, case]
            case Name():
                self.phenomena.add("names")
                return phrase.name
            case Coordination():
                self.phenomena.add("coordination")
                return f"{self._phrase(phrase.first, case)} und {self._phrase(phrase.second, case)}"
            case RelativePronoun():
                return RELATIVE_PRONOUN[case, phrase.column]
            case Interrogative():
                return (WHO if phrase.human else WHAT)[case]
            case _:
                assert_never(phrase)

    def _noun_phrase(self, phrase: NounPhrase, case: Case) -> str:
        """A noun phrase without its relative clause."""
        noun, determiner, _, adjective, degree, number, possessor, _ = phrase
        if adjective is not None:
            self.phenomena.add("adjective-agreement")
            if degree != "positive":
                self.phenomena.add("comparison")
        if possessor is not None:
            return self._owned(phrase, possessor, case)
        core = _core(noun, determiner, adjective, degree, phrase.column, case)
        if number:
            self.phenomena.add("numbers")
            return f"{german_cardinal(number)} {core}"
        if determiner == "no":
            self.phenomena.add("negation")
        return core

    def _owned(self, phrase: NounPhrase, possessor: NounPhrase | Name | RelativePronoun, case: Case) -> str:
        """Annas Hund, der Hund des Nachbarn, dessen Hund: before a noun, an owner takes the place of the article."""
        self.phenomena.add("possessive")
        article = "the" if isinstance(possessor, NounPhrase) else ""
        core = _core(phrase.noun, article, phrase.adjective, phrase.degree, phrase.column, case)
        match possessor:
            case Name():
                self.phenomena.add("names")
                return f"{possessor.name}s {core}"
            case NounPhrase():
                return f"{core} {self._noun_phrase(possessor, 'gen')}"
            case RelativePronoun():
                return f"{RELATIVE_PRONOUN['gen', possessor.column]} {core}"
            case _:
                assert_never(possessor)

    def _place(self, place: PrepositionalPhrase | Adverbial) -> str:
        if isinstance(place, Adverbial):
            return self._adverbial(place)
        preposition = place.preposition
        if preposition.two_way:
            self.phenomena.add("two-way-preposition")
            phrase = self._phrase(place.phrase, "acc" if place.direction else "dat")
        else:
            phrase = self._phrase(place.phrase, preposition.case)
        return contract(preposition.de, phrase) if _may_contract(place.phrase) else f"{preposition.de} {phrase}"

    def _predicate(self, predicate: Predicate) -> str:
        match predicate:
            case Measure():
                self.phenomena.add("numbers")
                words = f"{german_cardinal(predicate.number)} {predicate.unit.de}"
                return f"{words} {predicate.adjective[1]}" if predicate.adjective else words
            case AdjectivePredicate():
                return self._adjective_predicate(predicate)
            case _:
                assert_never(predicate)

    def _adjective_predicate(self, predicate: AdjectivePredicate) -> str:
        adjective = predicate.adjective
        if predicate.standard is None:
            return f"sehr {adjective.de}" if predicate.very else adjective.de
        self.phenomena.add("comparison")
        standard = self._phrase(predicate.standard, "nom")
        if predicate.degree == "comparative":
            return f"{adjective.de_comparative} als {standard}"
        return f"so {adjective.de} wie {standard}"

    def _adverbial(self, adverbial: Adverbial) -> str:
        if adverbial.phenomena:
            self.phenomena.update(adverbial.phenomena)
        return adverbial.de


@lru_cache(_PHRASES_CACHED)
def _core(noun_: Noun, article: str, adjective: Adjective | None, degree: Degree, column: Column, case: Case) -> str:
    """Determiner, adjective and noun."""
    words = noun(noun_, case, column == "p")
    if adjective is not None:
        words = adjective_stem(adjective, degree) + ADJECTIVE_ENDINGS[declension(article)][case, column] + " " + words
    word = determiner(article, case, column)
    return f"{word} {words}" if word else words


def _is_indefinite(phrase: NounPhrase) -> bool:
    """Whether a negation turns the phrase's determiner into kein: after a, or after nothing at all."""
    return phrase.determiner in ("a", "") and not phrase.number and phrase.possessor is None


def _is_new(phrase: NounPhrase) -> bool:
    """Whether the phrase brings up something that was not known: no article, or an indefinite one."""
    return phrase.determiner in ("a", "", "some", "many") and phrase.possessor is None


def _may_contract(phrase: Phrase) -> bool:
    """Whether preposition and article may melt: im Haus, but not where a relative clause follows: in dem Haus, das."""
    return isinstance(phrase, NounPhrase) and phrase.relative is None
