"""Sampling of sentences: statements and questions with nested clauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeGuard, assert_never

from nmt.grammar.entries import Adjective, Fixed, Frame, Noun, Verb
from nmt.grammar.modifiers import FREQUENCIES, MANNERS, WHEN, WHERE, WHERE_TO, WHY
from nmt.grammar.nouns import EURO, NOUN
from nmt.grammar.phrases import ADJECTIVES_OF, PERSON_DETERMINERS, PERSONS, PhraseSampler
from nmt.grammar.splits import MAX_DEPTH, Split
from nmt.grammar.syntax import (
    Clause,
    Conjunction,
    Coordination,
    It,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
    Relative,
    Sentence,
    Subordinate,
)
from nmt.grammar.verbs import INANIMATE_MODALS, MODALS, VERBS

Pattern = Frame | Literal["passive"]
"""Argument structure of a clause."""
Time = Literal["past", "present", "future", "simple past", "simple present", "infinite"]
"""Time of a clause, from which its tense is sampled; the simple ones allow a single tense."""
Part = Literal["", "subject", "object"]
Embedding = Literal["complement", "adjunct", "object", "subject"]
"""Role of an embedded clause; object and subject: relative clause of that argument."""

_WEIGHTS: dict[Pattern, int] = {
    "object": 50,
    "bare": 14,
    "give": 9,
    "motion": 9,
    "position": 7,
    "placement": 6,
    "to": 6,
    "passive": 9,
    "be": 8,
    "amount": 3,
}
"""Weights of the patterns; that and whether are only sampled for embedding."""
_PATTERNS = tuple(pattern for pattern, weight in _WEIGHTS.items() for _ in range(weight))
_INFINITIVE_PATTERNS: tuple[Pattern, ...] = ("object", "bare", "motion", "placement", "give")
_WHERE_PATTERNS: tuple[Pattern, ...] = ("motion", "position", "bare")
_WHEN_WHY_PATTERNS: tuple[Pattern, ...] = ("object", "bare", "motion")
_PATTERNS_WITH_LOCATION: tuple[Pattern, ...] = ("object", "bare", "passive")
_TIMES: tuple[Time, ...] = ("past",) * 6 + ("present",) * 10 + ("future",) * 4
_KINDS = ("statement",) * 74 + ("yes-no",) * 9 + ("wh",) * 9 + ("two",) * 8
_DEPTHS = (0,) * 60 + (1,) * 28 + (MAX_DEPTH,) * 12
_NESTED_DEPTHS = (MAX_DEPTH + 1, MAX_DEPTH + 1, MAX_DEPTH + 2)
_DETAIL = (1.0, 0.8, 0.5, 0.3, 0.2)
"""Amount of detail by clause depth."""
_EMBEDDINGS: tuple[Embedding, ...] = ("complement",) * 6 + ("adjunct",) * 6 + ("object",) * 5 + ("subject",) * 4
_QUANTITIES = ("every", "some", "many", "all")

# By time of the sentence: conjunctions, time of the main clause, time of the subordinate clause.
_ADJUNCTS: dict[Time, tuple[tuple[tuple[Conjunction, ...], Time, Time], ...]] = {
    "past": ((("because", "although"), "past", "past"), (("when", "while", "before"), "simple past", "simple past")),
    "present": (
        (("because", "although"), "present", "present"),
        (("when", "if", "while"), "present", "simple present"),
    ),
    "future": ((("because", "although"), "future", "present"), (("when", "if", "before"), "future", "simple present")),
    "simple past": ((("because", "although"), "simple past", "past"),),
    "simple present": ((("because", "although"), "simple present", "present"),),
}
# Times of a relative or complement clause by the time of the outer clause.
_INNER_TIMES: dict[Time, tuple[Time, ...]] = {
    "past": ("past",),
    "simple past": ("past",),
    "present": ("present", "present", "past", "future"),
    "simple present": ("present", "present", "past"),
    "future": ("past", "present", "future"),
}


def _subjects() -> dict[tuple[Pattern, Verb], tuple[Noun, ...]]:
    subjects: dict[tuple[Pattern, Verb], tuple[Noun, ...]] = {}
    for verb in VERBS:
        subjects |= {(frame, verb): verb.subjects for frame in verb.frames}
        if "passive" in verb.traits:
            subjects["passive", verb] = verb.objects
    return subjects


SUBJECTS = _subjects()
"""Possible subjects by pattern and verb."""
VERBS_OF: dict[Pattern, list[Verb]] = defaultdict(list)
VERBS_OF_SUBJECT: dict[tuple[Pattern, Noun], list[Verb]] = defaultdict(list)
VERBS_OF_OBJECT: dict[Noun, list[Verb]] = defaultdict(list)
"""Verbs of the pattern object by their object."""
for (_pattern, _verb), _nouns in SUBJECTS.items():
    VERBS_OF[_pattern].append(_verb)
    for _noun in _nouns:
        VERBS_OF_SUBJECT[_pattern, _noun].append(_verb)
    for _noun in _verb.objects if _pattern == "object" else ():
        VERBS_OF_OBJECT[_noun].append(_verb)

PERSONAL_SUBJECT = frozenset(key for key, subjects in SUBJECTS.items() if any(noun.is_human for noun in subjects))
PERSONAL_OBJECT = frozenset(
    verb for verb in VERBS if "no-pronoun" not in verb.traits and any(noun.is_human for noun in verb.objects)
)
"""Verbs whose object may be a person, including names and pronouns."""


class Sampler(PhraseSampler):
    """Samples the sentences of a split; the sequence only depends on split and seed."""

    def __init__(self, split: Split, seed: int) -> None:
        super().__init__(split, seed)
        self._is_nested = split == "nested"

    def sentence(self) -> Sentence:
        """Sample the next sentence and set `has_held_out`."""
        self.has_held_out, self._detail = False, 1.0
        time = self._pick(_TIMES)
        match "statement" if self._is_nested else self._pick(_KINDS):
            case "yes-no":
                return Sentence(self._clause(time, 1 if self._chance(0.2) else 0), question=True)
            case "wh":
                return Sentence(self._wh_question(time), question=True)
            case "two":
                first = self._clause(time, 0, main=True)
                if self._chance(0.5):
                    return Sentence(first, coordinator="but", second=self._clause(time, 0, main=True))
                return Sentence(first, coordinator="and", second=self._clause(time, 0))
            case _:
                depth = self._pick(_NESTED_DEPTHS if self._is_nested else _DEPTHS)
                self._detail = _DETAIL[depth]
                return Sentence(self._clause(time, depth, main=True))

    def document(self) -> tuple[Sentence, Sentence]:
        """Sample a statement with a single thing, then one about `it`, and set `has_held_out`."""
        while True:
            self.has_held_out, self._detail = False, _DETAIL[1]
            first = self._simple(None, self._pick(_TIMES))
            things = [phrase for phrase in (first.subject, first.object) if _is_thing(phrase)]
            if len(things) == 1 and not (things[0].plural or isinstance(first.place, Prepositional)):
                break
        second = self._simple(None, self._pick(_TIMES), It(things[0].noun), main=True)
        return Sentence(first), Sentence(second)

    # --- Nested clauses -----------------------------------------------------------------------------------------------

    def _clause(
        self, time: Time, depth: int, subject: Phrase | None = None, *, main: bool = False, in_adjunct: bool = False
    ) -> Clause:
        """Sample a clause with `depth` nested clauses; adjuncts are not nested in adjuncts."""
        if depth == 0:
            return self._simple(None, time, subject, main=main)
        embedding = self._pick(_EMBEDDINGS)
        while (embedding == "adjunct" and in_adjunct) or (embedding == "subject" and subject is not None):
            embedding = self._pick(_EMBEDDINGS)
        match embedding:
            case "complement":
                conjunction: Literal["that", "whether"] = "that" if self._chance(0.7) else "whether"
                clause = self._simple(conjunction, time, subject, person="subject", main=main)
                inner = self._clause(self._pick(_INNER_TIMES[time]), depth - 1, in_adjunct=in_adjunct)
                clause.complement = Subordinate(conjunction, inner)
            case "adjunct":
                conjunctions, outer, inner_time = self._pick(_ADJUNCTS[time])
                is_first = main and self._chance(0.4)
                clause = self._simple(None, outer, subject, main=main and not is_first)
                inner = self._clause(inner_time, depth - 1, in_adjunct=True)
                clause.adjunct = Subordinate(self._pick(conjunctions), inner, is_first)
            case "object":
                # A relative clause that contains another clause needs a person, who can be the subject of most verbs.
                pattern: Pattern = "give" if depth == 1 and self._chance(0.1) else "object"
                person: Part = "object" if depth > 1 else ""
                clause = self._simple(pattern, time, subject, head="object", person=person, main=main)
                clause.object = self._add_relative(clause.object, time, depth - 1, in_adjunct)
            case "subject":
                person = "subject" if depth > 1 else ""
                clause = self._simple(None, time, head="subject", person=person, main=main)
                clause.subject = self._add_relative(clause.subject, time, depth - 1, in_adjunct)
            case _:
                assert_never(embedding)
        return clause

    def _add_relative(self, phrase: Phrase | None, time: Time, depth: int, in_adjunct: bool) -> NounPhrase:
        """Add a relative clause with a subject or object relative pronoun."""
        assert isinstance(phrase, NounPhrase)
        noun, pronoun = phrase.noun, Relative(phrase.noun, phrase.plural)
        time = self._pick(_INNER_TIMES[time])
        if depth == 0 and noun in VERBS_OF_OBJECT and self._chance(0.5):
            verb = self._pick(VERBS_OF_OBJECT[noun])
            if self._allows("object", verb.infinitive, noun.en):
                return phrase._replace(relative=self._simple("object", time, verb=verb, fronted=pronoun))
        clause = self._clause(time, depth, pronoun, in_adjunct=in_adjunct)
        clause.front = "subject"
        if clause.predicate is phrase.adjective:
            phrase = phrase._replace(adjective=None)
        return phrase._replace(relative=clause)

    def _wh_question(self, time: Time) -> Clause:
        """Sample a wh-question."""
        match self._pick(("who", "what", "what", "which", "which", "where", "where", "when", "why")):
            case "who":
                clause = self._clause(time, 0, Pronoun("who"))
                clause.front = "subject"
            case "what":
                verb = self._pick(VERBS_OF["object"])
                clause = self._simple(
                    "object", time, verb=verb, fronted=Pronoun("who" if verb in PERSONAL_OBJECT else "what")
                )
            case "which":
                verb = self._pick(VERBS_OF["passive"])  # their objects are accusative
                clause = self._simple("object", time, verb=verb, head="object")
                assert isinstance(clause.object, NounPhrase)
                clause.object = clause.object._replace(determiner="which")
                clause.front, clause.negated = "object", False
            case "where":
                pattern = self._pick(_WHERE_PATTERNS)
                clause = self._simple(pattern, time, fronted=WHERE_TO if pattern == "motion" else WHERE)
            case word:
                clause = self._simple(self._pick(_WHEN_WHY_PATTERNS), time, fronted=WHEN if word == "when" else WHY)
                clause.negated = False
        return clause

    # --- Simple clauses -----------------------------------------------------------------------------------------------

    def _simple(
        self,
        pattern: Pattern | None,
        time: Time,
        subject: Phrase | None = None,
        *,
        verb: Verb | None = None,
        fronted: Relative | Pronoun | Fixed | None = None,
        head: Part = "",
        person: Part = "",
        main: bool = False,
    ) -> Clause:
        """Sample a clause without finite subordinate clauses. pattern: None for any

        fronted: object, place (where) or time (when, why) at the front
        head:    argument to which the caller adds a relative clause
        person:  argument that must be a person
        main:    whether a time may be fronted
        """
        if verb is None or pattern is None:
            pattern, verb = self._verb(_PATTERNS if pattern is None else (pattern,), time, subject, person)
        if subject is None:
            subject = self._subject(pattern, verb, head == "subject", person == "subject", main)
        clause = Clause(subject, verb, passive=pattern == "passive")
        self._set_tense(clause, time)
        if fronted in (WHERE, WHERE_TO):
            clause.place, clause.front = fronted, "place"
        elif isinstance(fronted, Fixed):
            clause.time, clause.front = fronted, "time"
        elif fronted is not None:
            clause.object, clause.front = fronted, "object"
        if clause.object is None and verb.objects and pattern in ("object", "give", "placement"):
            clause.object = self._object(clause, head == "object", person == "object")
        self._complete(clause, pattern)
        if time in ("past", "present", "future") and self._chance(0.14):
            clause.negated = _may_be_negated(clause)
        trailing = head != "object" and pattern not in ("that", "whether", "to")
        self._add_adjuncts(clause, pattern, time, trailing, main)
        return clause

    def _verb(
        self, patterns: Sequence[Pattern], time: Time, subject: Phrase | None, person: Part
    ) -> tuple[Pattern, Verb]:
        """Sample a pattern and a verb that allow the subject, if given. person: argument that must be a person"""
        noun = None if subject is None else subject.noun
        needs_person = person == "subject" or (subject is not None and noun is None)
        while True:
            pattern = self._pick(patterns)
            verbs = VERBS_OF[pattern] if noun is None else VERBS_OF_SUBJECT.get((pattern, noun), ())
            if not verbs:
                continue
            verb = self._pick(verbs)
            if (
                (needs_person and (pattern, verb) not in PERSONAL_SUBJECT)
                or (person == "object" and verb not in PERSONAL_OBJECT)
                or (time == "simple past" and verb.en_past == verb.en)  # read, cost: ambiguous with the present
            ):
                continue
            if pattern != "passive" or noun is None or self._allows("object", verb.infinitive, noun.en):
                return pattern, verb

    def _subject(self, pattern: Pattern, verb: Verb, is_head: bool, needs_person: bool, main: bool) -> Phrase:
        pronouns = 0.4 if main else 0.55
        if is_head or (pattern, verb) not in PERSONAL_SUBJECT:
            pronouns = 0.0
        while True:
            noun = self._noun_or_name(SUBJECTS[pattern, verb], pronouns)
            if not isinstance(noun, Noun):
                return noun
            if (needs_person and not noun.is_human) or (
                pattern == "passive" and not self._allows("object", verb.infinitive, noun.en)
            ):
                continue
            if is_head:
                return self._relative_head(noun)
            if noun.is_human and self._chance(0.07):
                return self._coordinate(noun)
            phrase = self._noun_phrase(noun)
            # A bare plural would be generic.
            is_bare = phrase.determiner == "" and not phrase.number and phrase.owner is None
            return phrase._replace(determiner="the") if is_bare else phrase

    def _object(self, clause: Clause, is_head: bool, needs_person: bool) -> Phrase:
        """Sample an object other than the subject."""
        verb = clause.verb
        pronouns = 0.4 if verb in PERSONAL_OBJECT and not is_head else 0.0
        while True:
            noun = self._other(verb.objects, pronouns, clause.subject)
            if not isinstance(noun, Noun):
                return noun
            if (noun.is_human or not needs_person) and self._allows("object", verb.infinitive, noun.en):
                break
        if is_head:
            return self._relative_head(noun)
        return self._coordinate(noun) if noun.is_human and self._chance(0.07) else self._noun_phrase(noun)

    def _other(self, candidates: Sequence[Noun], pronouns: float, subject: Phrase) -> Phrase | Noun:
        """Sample a noun, pronoun or name other than the subject."""
        while True:
            noun = self._noun_or_name(candidates, pronouns)
            if not _overlap(NounPhrase(noun) if isinstance(noun, Noun) else noun, subject):
                return noun

    def _complete(self, clause: Clause, pattern: Pattern) -> None:
        """Add the arguments of a pattern besides subject and object."""
        subject, verb = clause.subject, clause.verb
        if clause.place is not None:
            return
        match pattern:
            case "give":
                person = self._other(PERSONS, 0.5, subject)
                if isinstance(person, Noun):
                    person = self._modified(person, self._pick(PERSON_DETERMINERS))
                clause.receiver = person
            case "motion":
                clause.place = self._destination(verb)
            case "position":
                clause.place = self._position(verb, subject.noun, "dat")
            case "placement" if clause.object is not None:
                clause.place = self._position(verb, clause.object.noun, "acc")
            case "passive" if self._chance(0.4):
                clause.company = Prepositional("by", "von", "dat", self._person())
            case "amount":
                clause.object = NounPhrase(EURO, "", plural=True, number=self._number(2, 999))
            case "be":
                clause.predicate = self._adjective(subject.noun or NOUN["woman"])
                if isinstance(subject, NounPhrase) and subject.adjective is clause.predicate:
                    clause.subject = subject._replace(adjective=None)
            case "to":
                clause.complement = Subordinate(None, self._infinitive(subject))
            case _:
                pass

    def _infinitive(self, subject: Phrase) -> Clause:
        """Sample an infinitive complement."""
        while True:
            pattern, verb = self._verb(_INFINITIVE_PATTERNS, "infinite", subject, "")
            if "stative" not in verb.traits:
                return self._simple(pattern, "infinite", subject, verb=verb)

    def _adjective(self, noun: Noun) -> Adjective:
        while True:
            adjective = self._pick(ADJECTIVES_OF[noun])
            if self._allows("adjective", adjective.en, noun.en):
                return adjective

    def _set_tense(self, clause: Clause, time: Time) -> None:
        noun, stative = clause.subject.noun, "stative" in clause.verb.traits
        modals = MODALS if noun is None or noun.is_animate else INANIMATE_MODALS
        roll = 0.5 if stative else self._random()
        match time:
            case "past":
                clause.tense = "past"
                if roll < 0.14:
                    clause.modal = self._pick([modal for modal in modals if modal.en_past])
                elif (roll > 0.8 and not clause.passive) or clause.verb.en_past == clause.verb.en:
                    clause.tense = "perfect"
            case "present" | "future" if roll < 0.2:
                clause.modal = self._pick(modals)
            case "present" if roll < 0.55 and not stative and not clause.passive:
                clause.tense = "progressive"
            case "future":
                clause.tense = "future"
            case "simple past":
                clause.tense = "past"
            case _:
                pass

    def _add_adjuncts(self, clause: Clause, pattern: Pattern, time: Time, trailing: bool, main: bool) -> None:
        """Add optional frequency or time, manner or company, and place."""
        traits = clause.verb.traits
        if "stative" in traits or self._random() > self._detail:
            return
        is_simple = clause.tense in ("present", "past") and clause.modal is None and not clause.passive
        if is_simple and not (clause.negated or clause.time) and time != "infinite" and self._chance(0.12):
            clause.frequency = self._pick(FREQUENCIES)
        if trailing and pattern != "passive" and ("manner" in traits or pattern == "motion"):
            roll = self._random()
            if roll < 0.2 and "manner" in traits and not clause.negated:
                clause.manner = self._pick(MANNERS)
            elif roll > 0.9 and pattern != "placement" and not clause.verb.de_preposition:
                clause.company = self._company()
        if trailing and pattern in _PATTERNS_WITH_LOCATION and clause.place is None and self._chance(0.22):
            clause.place = self._location()
        is_first = main and (not trailing or self._chance(0.4))
        may_have_time = not (clause.frequency or clause.time) and clause.tense != "perfect" and (is_first or trailing)
        if may_have_time and self._chance(0.5 if main else 0.25):
            is_habit = clause.tense == "present" and clause.modal is None
            if time == "past" or time == "future" or (time == "present" and not is_habit):
                clause.time = self._time(time)
            elif time == "present" and not clause.negated:  # not ... every day would be ambiguous
                clause.time = self._time("habit")
            clause.front = "time" if is_first and clause.time is not None else clause.front


def _may_be_negated(clause: Clause) -> bool:
    """Return whether negation is unambiguous: no quantifiers, and a clear choice between nicht and kein."""
    arguments = (clause.subject, clause.receiver, clause.object)
    without_kein = arguments if clause.verb.de_preposition else arguments[:2]  # an indefinite plain object gets kein
    return not any(map(_is_indefinite, without_kein)) and not any(map(_is_quantified, arguments))


def _is_thing(phrase: Phrase | None) -> TypeGuard[NounPhrase]:
    return isinstance(phrase, NounPhrase) and not phrase.noun.is_animate


def _is_indefinite(phrase: Phrase | None) -> bool:
    return isinstance(phrase, NounPhrase) and phrase.determiner in ("a", "") and phrase.owner is None


def _is_quantified(phrase: Phrase | None) -> bool:
    if isinstance(phrase, NounPhrase):
        return phrase.determiner in _QUANTITIES or phrase.number > 0
    return isinstance(phrase, Coordination)


def _overlap(first: Phrase, second: Phrase) -> bool:
    """Return whether two phrases overlap in reference, as in I see us, or the man sees a man."""
    if isinstance(second, Coordination):
        return _overlap(first, second.first) or _overlap(first, second.second)
    if isinstance(first, Pronoun) and isinstance(second, Pronoun):
        return first.word == second.word or {first.word, second.word} == {"I", "we"}
    return first == second if first.noun is None else first.noun is second.noun
