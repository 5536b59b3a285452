"""Random sentences: statements and questions, with clauses within clauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, assert_never

from nmt.grammar.entries import Adjective, Fixed, Frame, Noun, Verb
from nmt.grammar.modifiers import FREQUENCIES, MANNERS, WHEN, WHERE, WHERE_TO, WHY
from nmt.grammar.nouns import EURO, NOUN
from nmt.grammar.phrases import ADJECTIVES_OF, OF_PERSONS, PERSONS, PhraseSampler
from nmt.grammar.splits import MAX_DEPTH, Split
from nmt.grammar.syntax import (
    Clause,
    Conjunction,
    Coordination,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
    Relative,
    Sentence,
    Subordinate,
)
from nmt.grammar.verbs import MODALS, MODALS_OF_THINGS, VERBS

Pattern = Frame | Literal["passive"]
"""What kind of thing a clause says."""
Time = Literal["past", "present", "future", "simple past", "simple present", "infinite"]
"""The time of a clause, from which its tense is drawn; the simple ones allow one tense alone."""
Part = Literal["", "subject", "object"]
Embedding = Literal["complement", "adjunct", "object", "subject"]
"""How a clause holds another: what is said, why or when, or a relative clause of its object or subject."""

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
"""How often clauses follow each pattern; those with that and whether come from embedding alone."""
_PATTERNS = tuple(pattern for pattern, weight in _WEIGHTS.items() for _ in range(weight))
_ACTIONS: tuple[Pattern, ...] = ("object", "bare", "motion", "placement", "give")
_ASKED_PLACES: tuple[Pattern, ...] = ("motion", "position", "bare")
_ASKED_EVENTS: tuple[Pattern, ...] = ("object", "bare", "motion")
_WITH_PLACE: tuple[Pattern, ...] = ("object", "bare", "passive")
_TIMES: tuple[Time, ...] = ("past",) * 6 + ("present",) * 10 + ("future",) * 4
_KINDS = ("statement",) * 74 + ("yes-no",) * 9 + ("wh",) * 9 + ("two",) * 8
_DEPTHS = (0,) * 60 + (1,) * 28 + (MAX_DEPTH,) * 12
_NESTED_DEPTHS = (MAX_DEPTH + 1, MAX_DEPTH + 1, MAX_DEPTH + 2)
_DETAIL = (1.0, 0.8, 0.5, 0.3, 0.2)
"""How much detail a sentence has, by its depth."""
_EMBEDDINGS: tuple[Embedding, ...] = ("complement",) * 6 + ("adjunct",) * 6 + ("object",) * 5 + ("subject",) * 4
_QUANTITIES = ("every", "some", "many", "all")

# For the time of a sentence: conjunctions, the time of the main clause, and that of the subordinate clause.
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
# The time of a relative clause, or of what is said, by that of the clause that holds it.
_INNER: dict[Time, tuple[Time, ...]] = {
    "past": ("past",),
    "simple past": ("past",),
    "present": ("present", "present", "past", "future"),
    "simple present": ("present", "present", "past"),
    "future": ("past", "present", "future"),
}


def _subjects() -> dict[tuple[Pattern, Verb], tuple[Noun, ...]]:
    found: dict[tuple[Pattern, Verb], tuple[Noun, ...]] = {}
    for verb in VERBS:
        found |= {(frame, verb): verb.subjects for frame in verb.frames}
        if "passive" in verb.traits:
            found["passive", verb] = verb.objects
    return found


SUBJECTS = _subjects()
"""What may be the subject of a verb in a pattern."""
VERBS_OF: dict[Pattern, list[Verb]] = defaultdict(list)
VERBS_OF_SUBJECT: dict[tuple[Pattern, Noun], list[Verb]] = defaultdict(list)
VERBS_OF_OBJECT: dict[Noun, list[Verb]] = defaultdict(list)
"""The verbs of the pattern object, by their object."""
for (_pattern, _verb), _nouns in SUBJECTS.items():
    VERBS_OF[_pattern].append(_verb)
    for _noun in _nouns:
        VERBS_OF_SUBJECT[_pattern, _noun].append(_verb)
    for _noun in _verb.objects if _pattern == "object" else ():
        VERBS_OF_OBJECT[_noun].append(_verb)

PERSONAL_SUBJECT = frozenset(key for key, found in SUBJECTS.items() if any(noun.human for noun in found))
PERSONAL_OBJECT = frozenset(
    verb for verb in VERBS if "no-pronoun" not in verb.traits and any(noun.human for noun in verb.objects)
)
"""The verbs whose object may be a person, also by name or pronoun."""


class Sampler(PhraseSampler):
    """Draws sentences of a split, one after the other; equal (split, seed) give equal sentences everywhere."""

    def __init__(self, split: Split, seed: int) -> None:
        super().__init__(split, seed)
        self._is_nested = split == "nested"

    def sentence(self) -> Sentence:
        """The next sentence; afterwards, `has_held_out` tells whether it has a held-out combination."""
        self.has_held_out, self._detail = False, 1.0
        time = self._pick(_TIMES)
        match "statement" if self._is_nested else self._pick(_KINDS):
            case "yes-no":
                return Sentence(self._clause(time, 1 if self._chance(0.2) else 0), question=True)
            case "wh":
                return Sentence(self._asked(time), question=True)
            case "two":
                first = self._clause(time, 0, main=True)
                if self._chance(0.5):
                    return Sentence(first, coordinator="but", second=self._clause(time, 0, main=True))
                return Sentence(first, coordinator="and", second=self._clause(time, 0))
            case _:
                depth = self._pick(_NESTED_DEPTHS if self._is_nested else _DEPTHS)
                self._detail = _DETAIL[depth]
                return Sentence(self._clause(time, depth, main=True))

    # --- Clauses within clauses -------------------------------------------------------------------------------------

    def _clause(
        self, time: Time, depth: int, subject: Phrase | None = None, *, main: bool = False, in_adjunct: bool = False
    ) -> Clause:
        """A clause that holds clauses within clauses, `depth` of them; an adjunct holds no other."""
        if depth == 0:
            return self._simple(None, time, subject, main=main)
        embedding = self._pick(_EMBEDDINGS)
        while (embedding == "adjunct" and in_adjunct) or (embedding == "subject" and subject is not None):
            embedding = self._pick(_EMBEDDINGS)
        match embedding:
            case "complement":
                said: Literal["that", "whether"] = "that" if self._chance(0.7) else "whether"
                clause = self._simple(said, time, subject, person="subject", main=main)
                inner = self._clause(self._pick(_INNER[time]), depth - 1, in_adjunct=in_adjunct)
                clause.complement = Subordinate(said, inner)
            case "adjunct":
                conjunctions, outer, inner_time = self._pick(_ADJUNCTS[time])
                is_first = main and self._chance(0.4)
                clause = self._simple(None, outer, subject, main=main and not is_first)
                inner = self._clause(inner_time, depth - 1, in_adjunct=True)
                clause.adjunct = Subordinate(self._pick(conjunctions), inner, is_first)
            case "object":
                # What holds a further clause describes a person, of whom anything may be said.
                pattern: Pattern = "give" if depth == 1 and self._chance(0.1) else "object"
                person: Part = "object" if depth > 1 else ""
                clause = self._simple(pattern, time, subject, described="object", person=person, main=main)
                clause.object = self._describe(clause.object, time, depth - 1, in_adjunct)
            case "subject":
                person = "subject" if depth > 1 else ""
                clause = self._simple(None, time, described="subject", person=person, main=main)
                clause.subject = self._describe(clause.subject, time, depth - 1, in_adjunct)
            case _:
                assert_never(embedding)
        return clause

    def _describe(self, phrase: Phrase | None, time: Time, depth: int, in_adjunct: bool) -> NounPhrase:
        """The phrase with a relative clause, in which it is the subject or the object."""
        assert isinstance(phrase, NounPhrase)
        noun, pronoun = phrase.noun, Relative(phrase.noun, phrase.plural)
        time = self._pick(_INNER[time])
        if depth == 0 and noun in VERBS_OF_OBJECT and self._chance(0.5):
            verb = self._pick(VERBS_OF_OBJECT[noun])
            if self._may("object", verb.infinitive, noun.en):
                return phrase._replace(relative=self._simple("object", time, verb=verb, moved=pronoun))
        clause = self._clause(time, depth, pronoun, in_adjunct=in_adjunct)
        clause.front = "subject"
        if clause.predicate is phrase.adjective:
            phrase = phrase._replace(adjective=None)
        return phrase._replace(relative=clause)

    def _asked(self, time: Time) -> Clause:
        """A clause with a question word in front."""
        match self._pick(("who", "what", "what", "which", "which", "where", "where", "when", "why")):
            case "who":
                clause = self._clause(time, 0, Pronoun("who"))
                clause.front = "subject"
            case "what":
                verb = self._pick(VERBS_OF["object"])
                clause = self._simple(
                    "object", time, verb=verb, moved=Pronoun("who" if verb in PERSONAL_OBJECT else "what")
                )
            case "which":
                verb = self._pick(VERBS_OF["passive"])  # whose objects are accusatives
                clause = self._simple("object", time, verb=verb, described="object")
                assert isinstance(clause.object, NounPhrase)
                clause.object = clause.object._replace(determiner="which")
                clause.front, clause.negated = "object", False
            case "where":
                pattern = self._pick(_ASKED_PLACES)
                clause = self._simple(pattern, time, moved=WHERE_TO if pattern == "motion" else WHERE)
            case word:
                clause = self._simple(self._pick(_ASKED_EVENTS), time, moved=WHEN if word == "when" else WHY)
                clause.negated = False
        return clause

    # --- Single clauses ---------------------------------------------------------------------------------------------

    def _simple(
        self,
        pattern: Pattern | None,
        time: Time,
        subject: Phrase | None = None,
        *,
        verb: Verb | None = None,
        moved: Relative | Pronoun | Fixed | None = None,
        described: Part = "",
        person: Part = "",
        main: bool = False,
    ) -> Clause:
        """A clause without finite subordinate clauses, of a given pattern or any.

        moved: an object, a place (where) or a time (when, why) that stands in front
        described: the noun phrase to which the caller will add a relative clause
        person: what must be a person
        main: whether a time may stand in front
        """
        if verb is None or pattern is None:
            pattern, verb = self._verb(_PATTERNS if pattern is None else (pattern,), time, subject, person)
        if subject is None:
            subject = self._subject(pattern, verb, described == "subject", person == "subject", main)
        clause = Clause(subject, verb, passive=pattern == "passive")
        self._set_tense(clause, time)
        if moved in (WHERE, WHERE_TO):
            clause.place, clause.front = moved, "place"
        elif isinstance(moved, Fixed):
            clause.time, clause.front = moved, "time"
        elif moved is not None:
            clause.object, clause.front = moved, "object"
        if clause.object is None and verb.objects and pattern in ("object", "give", "placement"):
            clause.object = self._object(clause, described == "object", person == "object")
        self._complete(clause, pattern)
        if time in ("past", "present", "future") and self._chance(0.14):
            clause.negated = _may_be_negated(clause)
        trailing = described != "object" and pattern not in ("that", "whether", "to")
        self._add_circumstances(clause, pattern, time, trailing, main)
        return clause

    def _verb(
        self, patterns: Sequence[Pattern], time: Time, subject: Phrase | None, person: Part
    ) -> tuple[Pattern, Verb]:
        """A pattern and a verb that fit the subject, if it is given; `person` is what must be one."""
        noun = None if subject is None else subject.noun
        by_person = person == "subject" or (subject is not None and noun is None)
        while True:
            pattern = self._pick(patterns)
            verbs = VERBS_OF[pattern] if noun is None else VERBS_OF_SUBJECT.get((pattern, noun), ())
            if not verbs:
                continue
            verb = self._pick(verbs)
            if (
                (by_person and (pattern, verb) not in PERSONAL_SUBJECT)
                or (person == "object" and verb not in PERSONAL_OBJECT)
                or (time == "simple past" and verb.en_past == verb.en)  # read, cost: could be the present too
            ):
                continue
            if pattern != "passive" or noun is None or self._may("object", verb.infinitive, noun.en):
                return pattern, verb

    def _subject(self, pattern: Pattern, verb: Verb, described: bool, human: bool, main: bool) -> Phrase:
        pronouns = 0.4 if main else 0.55
        if described or (pattern, verb) not in PERSONAL_SUBJECT:
            pronouns = 0.0
        while True:
            one = self._someone(SUBJECTS[pattern, verb], pronouns)
            if not isinstance(one, Noun):
                return one
            if (human and not one.human) or (pattern == "passive" and not self._may("object", verb.infinitive, one.en)):
                continue
            if described:
                return self._described(one)
            if one.human and self._chance(0.07):
                return self._pair(one)
            phrase = self._noun_phrase(one)
            # A bare plural would speak of the whole kind.
            is_bare = phrase.determiner == "" and not phrase.number and phrase.owner is None
            return phrase._replace(determiner="the") if is_bare else phrase

    def _object(self, clause: Clause, described: bool, human: bool) -> Phrase:
        """An object of the verb that is not the subject over again."""
        verb = clause.verb
        pronouns = 0.4 if verb in PERSONAL_OBJECT and not described else 0.0
        while True:
            one = self._other(verb.objects, pronouns, clause.subject)
            if not isinstance(one, Noun):
                return one
            if (one.human or not human) and self._may("object", verb.infinitive, one.en):
                break
        if described:
            return self._described(one)
        return self._pair(one) if one.human and self._chance(0.07) else self._noun_phrase(one)

    def _other(self, entries: Sequence[Noun], pronouns: float, subject: Phrase) -> Phrase | Noun:
        """A noun, pronoun or name that is not the subject over again."""
        while True:
            one = self._someone(entries, pronouns)
            if not _overlap(NounPhrase(one) if isinstance(one, Noun) else one, subject):
                return one

    def _complete(self, clause: Clause, pattern: Pattern) -> None:
        """Add what the pattern demands beside subject and object."""
        subject, verb = clause.subject, clause.verb
        if clause.place is not None:
            return
        match pattern:
            case "give":
                one = self._other(PERSONS, 0.5, subject)
                clause.receiver = self._dressed(one, self._pick(OF_PERSONS)) if isinstance(one, Noun) else one
            case "motion":
                clause.place = self._goal(verb)
            case "position":
                clause.place = self._spot(verb, subject.noun, "dat")
            case "placement" if clause.object is not None:
                clause.place = self._spot(verb, clause.object.noun, "acc")
            case "passive" if self._chance(0.4):
                clause.company = Prepositional("by", "von", "dat", self._person())
            case "amount":
                clause.object = NounPhrase(EURO, "", plural=True, number=self._number(2, 999))
            case "be":
                clause.predicate = self._quality(subject.noun or NOUN["woman"])
                if isinstance(subject, NounPhrase) and subject.adjective is clause.predicate:
                    clause.subject = subject._replace(adjective=None)
            case "to":
                clause.complement = Subordinate(None, self._action(subject))
            case _:
                pass

    def _action(self, subject: Phrase) -> Clause:
        """What somebody tries to do, or decides to do."""
        while True:
            pattern, verb = self._verb(_ACTIONS, "infinite", subject, "")
            if "stative" not in verb.traits:
                return self._simple(pattern, "infinite", subject, verb=verb)

    def _quality(self, noun: Noun) -> Adjective:
        while True:
            adjective = self._pick(ADJECTIVES_OF[noun])
            if self._may("adjective", adjective.en, noun.en):
                return adjective

    def _set_tense(self, clause: Clause, time: Time) -> None:
        noun, stative = clause.subject.noun, "stative" in clause.verb.traits
        modals = MODALS if noun is None or noun.alive else MODALS_OF_THINGS
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

    def _add_circumstances(self, clause: Clause, pattern: Pattern, time: Time, trailing: bool, main: bool) -> None:
        """Add frequency or time, manner or company, and place, if they make sense."""
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
        if trailing and pattern in _WITH_PLACE and clause.place is None and self._chance(0.22):
            clause.place = self._location()
        is_first = main and (not trailing or self._chance(0.4))
        may_have_time = not (clause.frequency or clause.time) and clause.tense != "perfect" and (is_first or trailing)
        if may_have_time and self._chance(0.5 if main else 0.25):
            is_habit = clause.tense == "present" and clause.modal is None
            if time == "past" or time == "future" or (time == "present" and not is_habit):
                clause.time = self._time(time)
            elif time == "present" and not clause.negated:  # not ... every day would mean not every day
                clause.time = self._time("habit")
            clause.front = "time" if is_first and clause.time is not None else clause.front


def _may_be_negated(clause: Clause) -> bool:
    """Whether a negation has one meaning: not next to a quantity, and nicht or kein is clear."""
    is_vague = clause.verb.de_preposition and _is_new(clause.object)
    phrases = (clause.subject, clause.receiver, clause.object)
    return not (is_vague or _is_new(clause.subject) or _is_new(clause.receiver) or any(map(_is_quantity, phrases)))


def _is_new(phrase: Phrase | None) -> bool:
    return isinstance(phrase, NounPhrase) and phrase.determiner in ("a", "") and phrase.owner is None


def _is_quantity(phrase: Phrase | None) -> bool:
    if isinstance(phrase, NounPhrase):
        return phrase.determiner in _QUANTITIES or phrase.number > 0
    return isinstance(phrase, Coordination)


def _overlap(one: Phrase, other: Phrase) -> bool:
    """Whether two phrases of a clause would name the same, as in I see us, or the man sees a man."""
    if isinstance(other, Coordination):
        return _overlap(one, other.first) or _overlap(one, other.second)
    if isinstance(one, Pronoun) and isinstance(other, Pronoun):
        return one.word == other.word or {one.word, other.word} == {"I", "we"}
    return one == other if one.noun is None else one.noun is other.noun
