"""Random sentences: statements, questions and commands, with clauses within clauses."""

from __future__ import annotations

from typing import Literal, assert_never

from nmt.data.embedded.clauses import PATTERNS, ClauseSampler, Sphere
from nmt.data.embedded.entries import Adverbial, Frame, Noun, Verb
from nmt.data.embedded.nouns import NOUN, nouns
from nmt.data.embedded.phrases import Filler
from nmt.data.embedded.splits import MAX_DEPTH, Split
from nmt.data.embedded.syntax import (
    Adjunct,
    Clause,
    Complement,
    Conjunction,
    Coordinator,
    Interrogative,
    NounPhrase,
    Pronoun,
    RelativePronoun,
    Sentence,
)
from nmt.data.embedded.times import WHEN, WHERE, WHERE_TO, WHY
from nmt.data.embedded.verbs import VERB
from nmt.data.embedded.vocabulary import Pattern

Embedding = Literal["complement", "adjunct", "object", "subject"]
"""How a clause holds another: what is said, why or when, or a relative clause of its object or subject."""

_EMBEDDINGS: tuple[Embedding, ...] = ("complement",) * 6 + ("adjunct",) * 6 + ("object",) * 5 + ("subject",) * 4
_DESCRIBABLE: tuple[Pattern, ...] = ("acc",) * 5 + ("dat", "dat", "prep", "prep", "give", "have")
_RELATIVE_OBJECTS: tuple[Frame, ...] = ("acc", "acc", "acc", "dat", "prep")
_ASKED_OBJECTS: tuple[Pattern, ...] = ("acc", "acc", "acc", "dat", "prep")
_ASKED_PLACES: tuple[Pattern, ...] = ("motion", "motion", "position", "bare")
_LASTING: frozenset[Pattern] = frozenset(("age", "length", "height", "cost", "weigh", "have", "comparison"))
_TRIES = 20
_ABOUT_NOUNS = tuple(pattern for pattern in PATTERNS if pattern != "weather")
_ABOUT_THE_FUTURE = frozenset(VERB[verb] for verb in ("versprechen", "hoffen", "beschließen"))
_ANYBODY = NOUN["woman"]
"""Names and pronouns can do what she can."""
_OWNED = nouns("dog cat house car friend brother sister son daughter horse garden")
_YOU = Filler(Pronoun("you"), None)
_WHO = Filler(Interrogative(human=True), None)

# For each time of a sentence: a conjunction, the time of the main clause, and that of the subordinate clause.
_ADJUNCTS: dict[Sphere, tuple[tuple[Conjunction, Sphere, Sphere], ...]] = {
    "past": (
        ("because", "past", "past"),
        ("because", "past", "past"),
        ("although", "past", "past"),
        ("when", "told", "told"),
        ("while", "told", "told"),
        ("before", "told", "told"),
        ("after", "told", "anterior"),
        ("until", "told", "told"),
    ),
    "present": (
        ("because", "present", "present"),
        ("because", "present", "past"),
        ("although", "present", "present"),
        ("when", "present", "timeless"),
        ("if", "present", "timeless"),
        ("while", "present", "timeless"),
    ),
    "future": (
        ("because", "future", "present"),
        ("although", "future", "present"),
        ("when", "future", "timeless"),
        ("if", "future", "timeless"),
        ("before", "future", "timeless"),
        ("as soon as", "future", "timeless"),
    ),
}
_ADJUNCTS["told"] = _ADJUNCTS["past"][:4]
_ADJUNCTS["anterior"] = (("because", "anterior", "past"),)
_ADJUNCTS["timeless"] = (("because", "timeless", "present"), ("when", "timeless", "timeless"))

# The time of a clause that another holds, by the time of the other.
_SAID: dict[Sphere, tuple[Sphere, ...]] = {
    "past": ("past",),
    "told": ("past",),
    "anterior": ("past",),
    "present": ("past", "present", "future"),
    "timeless": ("past", "present", "future"),
    "future": ("past", "present", "future"),
}
_DESCRIBED: dict[Sphere, tuple[Sphere, ...]] = _SAID | {
    "past": ("past", "past", "present"),
    "told": ("past", "past", "present"),
    "present": ("present", "present", "past"),
    "timeless": ("present", "present", "past"),
}
_SPHERES: tuple[Sphere, ...] = ("past",) * 6 + ("present",) * 10 + ("future",) * 4

_Kind = Literal["statement", "yes-no", "wh", "command", "two"]
_DETAIL = (1.0, 0.8, 0.5, 0.3, 0.2)
"""How much detail a sentence has, by its depth."""
_KINDS: tuple[_Kind, ...] = ("statement",) * 64 + ("yes-no",) * 8 + ("wh",) * 8 + ("command",) * 12 + ("two",) * 8
_DEPTHS = (0,) * 60 + (1,) * 28 + (2,) * 12
_NESTED_DEPTHS = (MAX_DEPTH + 1,) * 2 + (MAX_DEPTH + 2,)
_QuestionWord = Literal["who", "whom", "which", "where", "when", "why"]
_QUESTION_WORDS: tuple[_QuestionWord, ...] = ("who", "whom", "whom", "which", "which", "where", "where", "when", "why")


class Sampler(ClauseSampler):
    """Draws sentences of a split, one after the other; equal (split, seed) give equal sentences everywhere."""

    def __init__(self, split: Split, seed: int) -> None:
        super().__init__(split, seed)
        self._split = split

    def sentence(self) -> Sentence:
        """The next sentence, whether or not it contains a held-out combination."""
        sphere = self._pick(_SPHERES)
        kind = "statement" if self._split == "nested" else self._pick(_KINDS)
        depth = self._pick(_NESTED_DEPTHS if self._split == "nested" else _DEPTHS) if kind == "statement" else 0
        self._detail = _DETAIL[depth]
        match kind:
            case "statement":
                return Sentence("statement", self._clause(sphere, depth, main=True))
            case "yes-no":
                return Sentence("question", self._clause(sphere, 1 if self._chance(0.2) else 0))
            case "wh":
                return Sentence("question", self._asked(sphere))
            case "command":
                return Sentence("command", self._command(), please=self._chance(0.3))
            case "two":
                coordinator: Coordinator = "and" if self._chance(0.6) else "but"
                first = self._clause(sphere, 0, main=True)
                return Sentence("statement", first, coordinator, self._clause(sphere, 0, main=coordinator == "but"))
            case _:
                assert_never(kind)

    # --- Clauses within clauses -------------------------------------------------------------------------------------

    def _clause(self, sphere: Sphere, depth: int, *, subject: Filler | None = None, main: bool = False) -> Clause:
        """A clause that holds clauses within clauses, `depth` of them."""
        if depth == 0:
            return self._simple(self._pattern(subject), sphere, subject=subject, main=main)
        match self._embedding(subject):
            case "complement":
                return self._reporting(sphere, depth, subject, main)
            case "adjunct":
                return self._with_adjunct(sphere, depth, subject, main)
            case "object":
                return self._with_described_object(sphere, depth, subject, main)
            case "subject":
                clause = self._simple(self._pick(_ABOUT_NOUNS), sphere, described="subject", main=main)
                assert isinstance(clause.subject, NounPhrase)
                clause.subject = self._describe(clause.subject, sphere, depth - 1)
                return clause

    def _pattern(self, subject: Filler | None) -> Pattern:
        if subject is None:
            return self._pick(PATTERNS)
        if subject.noun is not None:
            return self._pick(self._words.patterns[subject.noun])
        return self._pick(self._words.patterns[_ANYBODY])

    def _embedding(self, subject: Filler | None) -> Embedding:
        """A way of holding a clause that the subject allows."""
        embedding = self._pick(_EMBEDDINGS)
        if subject is None:
            return embedding
        is_person = subject.noun is None or subject.noun.kind == "person"
        return embedding if is_person and embedding != "subject" else "adjunct"

    def _with_adjunct(self, sphere: Sphere, depth: int, subject: Filler | None, main: bool) -> Clause:
        conjunction, outer, inner = self._pick(_ADJUNCTS[sphere])
        is_first = main and self._chance(0.4)
        clause = self._simple(self._event(subject), outer, subject=subject, main=main and not is_first)
        inside = self._simple(self._event(None), inner) if depth == 1 else self._clause(inner, depth - 1)
        clause.adjunct = Adjunct(conjunction, inside, is_first)
        return clause

    def _event(self, subject: Filler | None) -> Pattern:
        """A pattern for something that happens, if the subject can do or suffer any."""
        for _ in range(_TRIES):
            pattern = self._pattern(subject)
            if pattern not in _LASTING:
                break
        return pattern

    def _with_described_object(self, sphere: Sphere, depth: int, subject: Filler | None, main: bool) -> Clause:
        pattern = self._pick(_DESCRIBABLE)
        if subject is not None and subject.noun is not None:
            while (pattern, subject.noun) not in self._words.verbs_of_subject:
                pattern = self._pick(_DESCRIBABLE)
        clause = self._simple(pattern, sphere, subject=subject, described="object", trailing=False, main=main)
        if clause.indirect is not None:
            assert isinstance(clause.indirect, NounPhrase)
            clause.indirect = self._describe(clause.indirect, sphere, depth - 1)
        elif clause.oblique is not None:
            assert isinstance(clause.oblique, NounPhrase)
            clause.oblique = self._describe(clause.oblique, sphere, depth - 1)
        else:
            assert isinstance(clause.direct, NounPhrase)
            clause.direct = self._describe(clause.direct, sphere, depth - 1)
        return clause

    def _reporting(self, sphere: Sphere, depth: int, subject: Filler | None, main: bool) -> Clause:
        """Somebody says that ..., or asks whether, where, who ..."""
        can_ask = subject is None or subject.noun is None or ("whether", subject.noun) in self._words.verbs_of_subject
        if self._chance(0.65) or not can_ask:
            clause = self._simple("that", sphere, subject=subject, trailing=False, main=main)
            inner: Sphere = "future" if clause.verb in _ABOUT_THE_FUTURE else self._pick(_SAID[sphere])
            clause.complement = Complement(self._clause(inner, depth - 1), "that")
            return clause
        clause = self._simple("whether", sphere, subject=subject, trailing=False, main=main)
        inner = self._pick(_SAID[sphere])
        if depth == 1 and self._chance(0.6):
            clause.complement = Complement(self._asked(inner))
        else:
            clause.complement = Complement(self._clause(inner, depth - 1), "whether")
        return clause

    def _describe(self, phrase: NounPhrase, sphere: Sphere, depth: int) -> NounPhrase:
        """The phrase with a relative clause."""
        return phrase._replace(
            relative=self._relative(phrase, self._pick(_DESCRIBED.get(sphere, _SAID["past"])), depth)
        )

    def _relative(self, phrase: NounPhrase, sphere: Sphere, depth: int) -> Clause:
        """A relative clause about a noun, which is its subject, its object, or the owner of its subject."""
        noun = phrase.noun
        pronoun = RelativePronoun(phrase.column, noun.kind == "person")
        roll = self._random()
        if depth == 0 and roll > 0.5:
            if roll > 0.9 and noun.kind == "person":
                return self._about_possession(pronoun, sphere)
            pattern = self._pick(_RELATIVE_OBJECTS)
            verbs = self._words.verbs_of_object.get((pattern, noun))
            if verbs is not None:
                return self._about_object(pattern, self._pick(verbs), pronoun, noun, sphere)
        clause = self._clause(sphere, depth, subject=Filler(pronoun, noun))
        clause.front = "subject"
        return clause

    def _about_object(self, pattern: Frame, verb: Verb, pronoun: RelativePronoun, noun: Noun, sphere: Sphere) -> Clause:
        return self._simple(pattern, sphere, verb=verb, moved=pronoun)

    def _about_possession(self, pronoun: RelativePronoun, sphere: Sphere) -> Clause:
        """whose dog is barking"""
        owned = self._pick(_OWNED)
        phrase = NounPhrase(owned, "", plural=self._chance(0.2), possessor=pronoun)
        clause = self._simple(self._pick(self._words.patterns[owned]), sphere, subject=Filler(phrase, owned))
        clause.front = "subject"
        return clause

    # --- Questions and commands -------------------------------------------------------------------------------------

    def _asked(self, sphere: Sphere) -> Clause:
        """A clause with a question word in front."""
        word = self._pick(_QUESTION_WORDS)
        match word:
            case "who":
                clause = self._clause(sphere, 0, subject=_WHO)
                clause.front = "subject"
                return clause
            case "whom":
                return self._asked_for_object(sphere)
            case "which":
                return self._asked_which(sphere)
            case "where":
                return self._asked_where(sphere)
            case "when":
                return self._asked_at_time(WHEN, "told" if sphere == "past" else sphere)
            case "why":
                return self._asked_at_time(WHY, sphere)
            case _:
                assert_never(word)

    def _asked_for_object(self, sphere: Sphere) -> Clause:
        """Whom; or what, for the verbs whose objects are things."""
        pattern = self._pick(_ASKED_OBJECTS)
        while True:
            verb = self._pick(self._words.verbs[pattern])
            human = verb in self._words.personal_objects
            if human or pattern == "acc":
                return self._simple(pattern, sphere, verb=verb, moved=Interrogative(human))

    def _asked_which(self, sphere: Sphere) -> Clause:
        clause = self._simple("acc", sphere, described="object")
        assert isinstance(clause.direct, NounPhrase)
        many = clause.direct.noun.countable and self._chance(0.4)
        clause.direct = clause.direct._replace(
            determiner="how many" if many else "which", plural=many or clause.direct.plural, degree="positive"
        )
        clause.front, clause.negated = "direct", False
        return clause

    def _asked_where(self, sphere: Sphere) -> Clause:
        """Where (wo) or where to (wohin), as the verb demands."""
        pattern = self._pick(_ASKED_PLACES)
        verb = self._pick(self._words.verbs[pattern])
        while pattern == "bare" and "motion" in verb.frames:  # where he runs would be wo and wohin
            verb = self._pick(self._words.verbs[pattern])
        clause = self._simple(pattern, sphere, verb=verb)
        clause.place, clause.front = (WHERE_TO if pattern == "motion" else WHERE), "place"
        clause.complement = None
        return clause

    def _asked_at_time(self, question: Adverbial, sphere: Sphere) -> Clause:
        pattern, verb = self._pick(self._words.actions[None])
        clause = self._simple(pattern, sphere, verb=verb)
        clause.frequency, clause.complement = None, None
        clause.time, clause.front = question, "time"
        return clause

    def _command(self) -> Clause:
        clause = self._action(_YOU)
        self._negate(clause)
        if self._chance(0.25):
            clause.time = self._time("future")
        return clause
