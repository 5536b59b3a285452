"""Random clauses: who does what to whom, by the patterns of the verbs."""

from __future__ import annotations

from typing import Literal, assert_never

from nmt.data.embedded.circumstances import CircumstanceSampler, Period
from nmt.data.embedded.entries import Noun, Verb
from nmt.data.embedded.modifiers import (
    BY_VEHICLE,
    EUROS,
    FOR,
    FREQUENCIES,
    KILOS,
    MANNERS,
    METERS,
    WITH,
    WITHOUT,
    YEARS,
)
from nmt.data.embedded.nouns import nouns
from nmt.data.embedded.phrases import NAMED, Filler
from nmt.data.embedded.syntax import (
    AdjectivePredicate,
    Clause,
    Complement,
    Coordination,
    Measure,
    Name,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    Pronoun,
)
from nmt.data.embedded.verbs import MODAL
from nmt.data.embedded.vocabulary import WEIGHTS, Pattern, spread

Sphere = Literal["past", "present", "future", "told", "timeless", "anterior", "unbound"]
"""The time of a clause, from which its tense is drawn.

told: simple past alone; timeless: simple present alone; anterior: had done; unbound: infinitives and commands.
"""

PATTERNS = spread(WEIGHTS)

_MODALS = tuple(MODAL.values())
_MODALS_OF_THINGS = tuple(MODAL[modal] for modal in ("can", "must", "should", "have to"))
_PEOPLE = nouns("person")
_COMPANY = nouns("person -baby dog")
_NOT_NEGATED = frozenset(("every", "all", "many", "some", "no"))
_OF_COMPANY = ("the", "the", "the", "a", "my", "your", "his", "her", "our", "their")
_OF_RIVALS = ("the", "the", "this", "my", "your", "his", "her", "our", "their")
_WITH_PLACE: frozenset[Pattern] = frozenset(("acc", "bare", "dat", "give", "prep", "passive"))
_WITH_COMPANY: frozenset[Pattern] = frozenset(("acc", "bare", "motion"))
_YOUNG = nouns("child boy girl")
_EXAMPLES = nouns("woman man friend teacher")
"""What may be said of these may be said of any person."""


class ClauseSampler(CircumstanceSampler):
    """Draws clauses without subordinate clauses."""

    def _simple(
        self,
        pattern: Pattern,
        sphere: Sphere,
        *,
        subject: Filler | None = None,
        verb: Verb | None = None,
        moved: Phrase | None = None,
        described: Literal["subject", "object"] | None = None,
        trailing: bool = True,
        main: bool = False,
    ) -> Clause:
        """A clause of a pattern.

        subject, verb: given, or drawn
        moved: a relative pronoun or question word that takes the place of the object and stands in front
        described: the noun phrase to which the caller will add a relative clause
        trailing: whether circumstances may follow the objects; `main`: whether one may stand in front
        """
        verb = verb or self._verb(pattern, subject)
        subject = subject or self._subject(pattern, verb, described == "subject", main)
        clause = Clause(subject.phrase, verb, passive=pattern == "passive")
        self._set_tense(clause, pattern, sphere, subject.noun)
        if moved is None:
            self._add_objects(clause, pattern, subject, described == "object")
        else:
            self._add_moved(clause, pattern, moved)
        if sphere in ("past", "present", "future"):
            self._negate(clause)
        self._add_circumstances(clause, pattern, sphere, trailing, main)
        return clause

    # --- Subject and verb -------------------------------------------------------------------------------------------

    def _verb(self, pattern: Pattern, subject: Filler | None) -> Verb:
        words = self._words
        if subject is None:
            return self._pick(words.verbs[pattern])
        if subject.noun is None:
            while True:
                verb = self._pick(words.verbs[pattern])
                if (pattern, verb) in words.personal:
                    return verb
        return self._pick(words.verbs_of_subject[pattern, subject.noun])

    def _subject(self, pattern: Pattern, verb: Verb, described: bool, main: bool) -> Filler:
        if pattern == "weather":
            return Filler(Pronoun("it"), None)
        entries = self._words.subjects[pattern, verb]
        if described:
            noun = self._pick(entries)
            return Filler(self._pointed_out(noun), noun)
        is_personal = (pattern, verb) in self._words.personal
        pronouns = (0.24 if main else 0.4) if is_personal else 0.0
        return self._as_subject(self._one_of(entries, pronouns=pronouns, pairs=bool(verb.frames) and pattern != "to"))

    def _as_subject(self, filler: Filler) -> Filler:
        """A subject is never a bare plural, which would speak of the whole kind; sometimes it is no one at all."""
        phrase = filler.phrase
        if isinstance(phrase, NounPhrase) and phrase.possessor is None and phrase.number == 0:
            if phrase.determiner == "":
                return Filler(phrase._replace(determiner="the"), filler.noun)
            if phrase.determiner == "a" and self._chance(0.2):
                return Filler(phrase._replace(determiner="no"), filler.noun)
        return filler

    def _set_tense(self, clause: Clause, pattern: Pattern, sphere: Sphere, noun: Noun | None) -> None:
        modals = _MODALS if noun is None or noun.kind in ("person", "animal") else _MODALS_OF_THINGS
        if isinstance(clause.subject, NounPhrase) and clause.subject.determiner == "no":
            modals = tuple(modal for modal in modals if modal.negatable)
        stative = "stative" in clause.verb.traits
        match sphere:
            case "past":
                if not stative and pattern != "weather" and self._chance(0.14):
                    clause.modal = self._pick([modal for modal in modals if modal.en_past])
                is_perfect = clause.verb.frames and not clause.modal and self._chance(0.2)
                clause.tense = "perfect" if is_perfect else "past"
            case "present":
                roll = self._random()
                if pattern == "weather" or (not stative and not clause.passive and 0.2 < roll < 0.55):
                    clause.tense = "progressive"
                elif not stative and roll < 0.2:
                    clause.modal = self._pick(modals)
            case "future":
                if not stative and pattern != "weather" and self._chance(0.22):
                    clause.modal = self._pick(modals)
                else:
                    clause.tense = "future"
            case "told":
                clause.tense = "past"
            case "anterior":
                clause.tense = "pluperfect" if clause.verb.frames else "past"
            case "timeless" | "unbound":
                pass
            case _:
                assert_never(sphere)
        if clause.tense == "past" and clause.verb.past_is_base and not clause.modal and clause.subject.person != "3s":
            clause.tense = "pluperfect" if sphere == "told" else "perfect"

    # --- Objects ----------------------------------------------------------------------------------------------------

    def _add_objects(self, clause: Clause, pattern: Pattern, subject: Filler, described: bool) -> None:
        match pattern:
            case "acc" | "have" | "placement":
                clause.direct = self._object(clause, subject, described)
                if pattern == "placement":
                    direct = clause.direct
                    noun = direct.noun if isinstance(direct, NounPhrase) else None
                    clause.place = self._spot(clause.verb, noun, direction=True)
            case "dat":
                clause.indirect = self._object(clause, subject, described)
            case "prep":
                clause.oblique = self._object(clause, subject, described)
            case "give":
                self._add_gift(clause, subject, described)
            case "motion":
                clause.place = self._goal(clause.verb, subject.noun)
            case "position":
                clause.place = self._spot(clause.verb, subject.noun, direction=False)
            case "passive":
                self._add_agent(clause)
            case "to":
                clause.complement = Complement(self._action(subject))
            case "state" | "comparison" | "age" | "length" | "height" | "cost" | "weigh":
                self._add_predicate(clause, pattern, subject)
            case "bare" | "weather" | "that" | "whether":
                pass
            case _:
                assert_never(pattern)
        if pattern == "motion" and _may_have_purpose(subject) and self._chance(0.12):
            clause.complement = Complement(self._action(subject), purpose=True)

    def _object(self, clause: Clause, subject: Filler, described: bool) -> Phrase:
        """An object of the verb that is not the subject over again."""
        entries = self._words.objects[clause.verb]
        pronouns = 0.24 if clause.verb in self._words.personal_objects else 0.0
        while True:
            if described:
                noun = self._pick(entries)
                filler = Filler(self._pointed_out(noun), noun)
            else:
                filler = self._one_of(entries, pronouns=pronouns)
            if not _overlaps(filler, subject):
                break
        return filler.phrase

    def _add_moved(self, clause: Clause, pattern: Pattern, moved: Phrase) -> None:
        """Fill the object with a relative pronoun or question word, which stands in front."""
        match pattern:
            case "acc":
                clause.direct, clause.front = moved, "direct"
            case "dat":
                clause.indirect, clause.front = moved, "indirect"
            case "prep":
                clause.oblique, clause.front = moved, "oblique"
            case _:
                raise AssertionError(f"{pattern} has no object to move")

    def _add_gift(self, clause: Clause, subject: Filler, described: bool) -> None:
        """What is given and to whom; a bare noun needs `to`, for `gives her books` could be read in two ways."""
        gift = self._one_of(self._words.objects[clause.verb], pronouns=0.0)
        clause.direct = gift.phrase
        if described:
            clause.indirect = self._pointed_out(self._pick(_PEOPLE))
            return
        receiver = self._one_of(_PEOPLE, pronouns=0.24)
        while _overlaps(receiver, subject):
            receiver = self._one_of(_PEOPLE, pronouns=0.24)
        clause.indirect = receiver.phrase
        is_clear = isinstance(gift.phrase, NounPhrase) and gift.phrase.determiner != ""
        clause.double_object = is_clear and "to-only" not in clause.verb.traits and self._chance(0.6)

    def _add_agent(self, clause: Clause) -> None:
        if not self._chance(0.45):
            return
        entries = self._words.subjects["acc", clause.verb]
        if self._chance(0.2) and ("acc", clause.verb) in self._words.personal:
            clause.agent = self._pick(NAMED)
        elif entries:
            agent = self._pick(entries)
            clause.agent = self._described(agent, self._pick(_OF_COMPANY), plural=False)

    def _action(self, subject: Filler) -> Clause:
        """What somebody tries to do, begins to do or goes to do."""
        pattern, verb = self._pick(self._words.actions[subject.noun])
        clause = Clause(subject.phrase, verb)
        self._add_objects(clause, pattern, subject, described=False)
        clause.complement = None
        self._add_circumstances(clause, pattern, "unbound", trailing=True, main=False)
        return clause

    # --- Predicates -------------------------------------------------------------------------------------------------

    def _add_predicate(self, clause: Clause, pattern: Pattern, subject: Filler) -> None:
        match pattern:
            case "cost":
                clause.predicate = Measure(self._amount(), EUROS)
            case "weigh":
                clause.predicate = Measure(self._number(2, 99), KILOS)
            case "length":
                clause.predicate = Measure(self._number(20, 999), METERS, ("long", "lang"))
            case "height":
                clause.predicate = Measure(self._number(*_height_limits(subject.noun)), METERS, ("high", "hoch"))
            case "age":
                clause.predicate = Measure(self._number(*_age_limits(subject.noun)), YEARS, ("old", "alt"))
            case "comparison":
                clause.predicate = self._comparison(subject)
            case _:
                clause.predicate = self._state(subject.noun or self._pick(_EXAMPLES))

    def _amount(self) -> int:
        """A price in euros."""
        roll = self._random()
        if roll < 0.6:
            return self._number(2, 99)
        return self._number(100, 999) if roll < 0.85 else self._number(1000, 9999)

    def _state(self, noun: Noun) -> AdjectivePredicate:
        adjective = self._pick(self._words.adjectives[noun])
        return AdjectivePredicate(adjective, very=adjective.gradable and self._chance(0.3))

    def _comparison(self, subject: Filler) -> AdjectivePredicate:
        """Bigger than, or as big as, another of its kind."""
        noun = subject.noun or self._pick(_EXAMPLES)
        adjective = self._pick(self._words.gradable[noun])
        degree: Literal["positive", "comparative"] = "comparative" if self._chance(0.7) else "positive"
        if noun.kind == "person" and self._chance(0.4):
            return AdjectivePredicate(adjective, degree, standard=self._pick(NAMED))
        rival = self._pick(self._words.rivals[adjective, noun.kind])
        if rival is noun:
            return AdjectivePredicate(adjective, degree, standard=NounPhrase(rival, "this"))
        determiner = self._pick(_OF_RIVALS) if rival.owned else "the"
        return AdjectivePredicate(adjective, degree, standard=NounPhrase(rival, determiner))

    # --- Negation and circumstances ---------------------------------------------------------------------------------

    def _negate(self, clause: Clause) -> None:
        """Negate some clauses, where no quantity stands in the way of a single meaning."""
        if self._random() > 0.14 or (clause.modal is not None and not clause.modal.negatable):
            return
        clause.negated = not any(map(_is_quantity, (clause.subject, clause.direct, clause.indirect)))

    def _add_circumstances(self, clause: Clause, pattern: Pattern, sphere: Sphere, trailing: bool, main: bool) -> None:
        """Frequency or time, manner or company, and place, where they make sense."""
        is_state = "stative" in clause.verb.traits
        if not _is_passing(clause, pattern) or self._random() > self._detail:
            return
        if sphere != "unbound" and self._chance(0.1) and _may_be_frequent(clause, pattern):
            clause.frequency = self._pick(FREQUENCIES)
        if trailing and not is_state and pattern != "weather":
            self._add_manner(clause, pattern)
            if pattern in _WITH_PLACE and self._chance(0.22):
                clause.place = self._location()
        period = self._period(clause, sphere)
        if clause.frequency is None and period is not None and self._chance(0.5 if main else 0.25):
            is_first = main and (not trailing or self._chance(0.4))
            if is_first or trailing:
                clause.time = self._time(period)
                clause.front = "time" if is_first else clause.front

    def _add_manner(self, clause: Clause, pattern: Pattern) -> None:
        """Manner, means or company; none where they would meet a negation."""
        traits = clause.verb.traits
        roll = self._random()
        if roll < 0.18 and "manner" in traits and not clause.passive and not clause.negated:
            clause.manner = self._pick(MANNERS)
        elif roll < 0.4 and "vehicle" in traits:
            clause.companion = self._pick(BY_VEHICLE)
        elif 0.4 < roll < 0.6 and "benefit" in traits and pattern == "acc":
            clause.companion = PrepositionalPhrase(FOR, self._companion())
        elif roll > 0.88 and pattern in _WITH_COMPANY and "private" not in traits:
            preposition = WITH if roll > 0.91 else WITHOUT
            clause.companion = PrepositionalPhrase(preposition, self._companion())

    def _companion(self) -> NounPhrase | Name:
        if self._chance(0.25):
            return self._pick(NAMED)
        return self._described(self._pick(_COMPANY), self._pick(_OF_COMPANY), plural=self._chance(0.2))

    def _period(self, clause: Clause, sphere: Sphere) -> Period | None:
        """What time may be said with the tense of the clause, if any."""
        if clause.tense == "perfect" or sphere in ("told", "timeless", "anterior", "unbound"):
            return None
        if sphere == "past":
            return "past"
        if sphere == "future":
            return "future"
        if clause.tense != "present" or clause.modal is not None or "stative" in clause.verb.traits:
            return "now"
        return None if clause.negated else "habit"  # not ... every day would mean not every day


def _is_passing(clause: Clause, pattern: Pattern) -> bool:
    """Whether it makes sense to say when or where: not of what lasts."""
    if pattern == "state":
        return isinstance(clause.predicate, AdjectivePredicate) and clause.predicate.adjective.passing
    return "stative" not in clause.verb.traits


def _may_be_frequent(clause: Clause, pattern: Pattern) -> bool:
    is_simple = clause.tense in ("present", "past") and clause.modal is None and not clause.passive
    return is_simple and not clause.negated and pattern != "weather"


def _may_have_purpose(subject: Filler) -> bool:
    is_pair = isinstance(subject.phrase, Coordination)  # two people may not be fit for the same actions
    return not is_pair and (subject.noun is None or subject.noun.kind == "person")


def _age_limits(noun: Noun | None) -> tuple[int, int]:
    """How old something may be, in years."""
    if noun is None:
        return 3, 99
    if noun.kind == "place":
        return 10, 999
    return (3, 14) if noun in _YOUNG or noun.kind == "animal" else (19, 99)


def _height_limits(noun: Noun | None) -> tuple[int, int]:
    """How high something may be, in meters."""
    return (300, 2999) if noun is not None and noun.en == "mountain" else (20, 160)


def _overlaps(one: Filler, other: Filler) -> bool:
    """Whether two phrases of a clause would name the same, as in I see us, or the man sees a man."""
    if one.noun is not None:
        return one.noun is other.noun
    if isinstance(one.phrase, Pronoun) and isinstance(other.phrase, Pronoun):
        words = {one.phrase.word, other.phrase.word}
        return (len(words) == 1 and words <= {"I", "you", "we"}) or words == {"I", "we"}
    return one.phrase == other.phrase


def _is_quantity(phrase: Phrase | None) -> bool:
    """Whether a negation next to the phrase could be taken in two ways."""
    match phrase:
        case NounPhrase():
            return phrase.determiner in _NOT_NEGATED or phrase.number > 0
        case Coordination():
            return True
        case _:
            return False
