"""The dictionary as the samplers need it: for each decision, the words that fit and that the split may use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

from nmt.data.embedded.entries import Adjective, Frame, Kind, Noun, Verb
from nmt.data.embedded.modifiers import ADJECTIVES
from nmt.data.embedded.nouns import NOUNS, nouns
from nmt.data.embedded.splits import is_held_out
from nmt.data.embedded.verbs import VERB, VERBS

K = TypeVar("K", bound=str)

FramePattern = Literal[
    "acc", "bare", "dat", "give", "prep", "motion", "position", "placement", "that", "whether", "to", "weather"
]
BePattern = Literal["state", "comparison", "age", "length", "height"]
Pattern = Literal[FramePattern, BePattern, "passive", "have", "cost", "weigh"]
"""What kind of thing a clause says: the frames of verbs, and some patterns of sein, haben and single verbs."""

WEIGHTS: dict[Pattern, int] = {
    "acc": 26,
    "bare": 14,
    "dat": 7,
    "give": 8,
    "prep": 10,
    "motion": 9,
    "position": 5,
    "placement": 6,
    "to": 5,
    "weather": 1,
    "passive": 8,
    "have": 3,
    "cost": 2,
    "weigh": 1,
    "age": 2,
    "length": 1,
    "height": 1,
    "state": 8,
    "comparison": 6,
}
"""How often clauses follow each pattern; clauses with that and whether come from embedding alone."""

BE = VERB["sein"]
_SINGLE_VERBS: dict[Pattern, Verb] = {"have": VERB["haben"], "cost": VERB["kosten"], "weigh": VERB["wiegen"]}
_MEASURED: dict[BePattern, tuple[Noun, ...]] = {
    "age": nouns("person animal house castle church bridge school city museum -baby -mouse"),
    "length": nouns("bridge street train ship"),
    "height": nouns("mountain church castle"),
}
_ACTIONS: frozenset[Pattern] = frozenset(("acc", "bare", "dat", "give", "motion", "placement", "prep"))


@dataclass(frozen=True)
class Vocabulary:
    """The words for each decision; where a decision has none, its key is missing.

    rivals: nouns that may be compared with each other in a quality, by adjective and kind
    patterns: the patterns a noun can be the subject of, each as often as its weight
    personal, personal_objects: where names and personal pronouns may stand as subjects and as objects
    actions: what can be tried, begun or commanded, by who does it (None: a person by name or pronoun)
    """

    subjects: dict[tuple[Pattern, Verb], tuple[Noun, ...]]
    objects: dict[Verb, tuple[Noun, ...]]
    adjectives: dict[Noun, tuple[Adjective, ...]]
    gradable: dict[Noun, tuple[Adjective, ...]]
    rivals: dict[tuple[Adjective, Kind], tuple[Noun, ...]]
    verbs: dict[Pattern, tuple[Verb, ...]]
    verbs_of_subject: dict[tuple[Pattern, Noun], tuple[Verb, ...]]
    verbs_of_object: dict[tuple[Frame, Noun], tuple[Verb, ...]]
    patterns: dict[Noun, tuple[Pattern, ...]]
    personal: frozenset[tuple[Pattern, Verb]]
    personal_objects: frozenset[Verb]
    actions: dict[Noun | None, tuple[tuple[Pattern, Verb], ...]]


def spread(weights: dict[Pattern, int]) -> tuple[Pattern, ...]:
    """Each pattern as often as its weight, so that a uniform draw follows the weights."""
    return tuple(pattern for pattern, weight in weights.items() for _ in range(weight))


@cache
def vocabulary(with_held_out: bool) -> Vocabulary:
    """The whole vocabulary, or all of it that has no held-out combination."""

    def allowed(
        kind: Literal["subject", "object", "adjective"], word: str, entries: Iterable[Noun]
    ) -> tuple[Noun, ...]:
        return tuple(noun for noun in entries if with_held_out or not is_held_out((kind, word, noun.en)))

    objects = {verb: allowed("object", verb.infinitive, verb.objects) for verb in VERBS}
    subjects = _subjects({verb: allowed("subject", verb.infinitive, verb.subjects) for verb in VERBS}, objects)
    described = {adjective: frozenset(allowed("adjective", adjective.en, adjective.nouns)) for adjective in ADJECTIVES}
    adjectives = {noun: tuple(one for one in ADJECTIVES if noun in described[one]) for noun in NOUNS}
    gradable = {noun: tuple(one for one in fitting if one.gradable) for noun, fitting in adjectives.items()}
    subjects["state", BE] = tuple(noun for noun in NOUNS if adjectives[noun])
    rivals = _rivals(gradable)
    subjects["comparison", BE] = tuple(noun for noun in NOUNS if gradable[noun])
    verbs_of_subject = _inverted(subjects)
    return Vocabulary(
        subjects=subjects,
        objects=objects,
        adjectives=adjectives,
        gradable=gradable,
        rivals=rivals,
        verbs=_verbs(subjects),
        verbs_of_subject=verbs_of_subject,
        verbs_of_object=_inverted({(frame, verb): objects[verb] for verb in VERBS for frame in sorted(verb.frames)}),
        patterns={
            noun: spread({pattern: WEIGHTS[pattern] for pattern in WEIGHTS if (pattern, noun) in verbs_of_subject})
            for noun in NOUNS
        },
        personal=frozenset(key for key, found in subjects.items() if _has_person(found)),
        personal_objects=frozenset(
            verb for verb, found in objects.items() if _has_person(found) and "no-pronoun" not in verb.traits
        ),
        actions=_actions(subjects),
    )


def _has_person(entries: Iterable[Noun]) -> bool:
    return any(entry.kind == "person" for entry in entries)


def _subjects(
    active: dict[Verb, tuple[Noun, ...]], objects: dict[Verb, tuple[Noun, ...]]
) -> dict[tuple[Pattern, Verb], tuple[Noun, ...]]:
    """The subjects of each verb in each of its patterns; in the passive these are its objects."""
    subjects: dict[tuple[Pattern, Verb], tuple[Noun, ...]] = {}
    for verb in VERBS:
        for frame in sorted(verb.frames):
            subjects[frame, verb] = active[verb]
        if "acc" in verb.frames and not verb.traits & {"stative", "no-passive"}:
            subjects["passive", verb] = objects[verb]
    for pattern, verb in _SINGLE_VERBS.items():
        subjects[pattern, verb] = active[verb]
    for measure, measured in _MEASURED.items():
        subjects[measure, BE] = measured
    return subjects


def _verbs(subjects: dict[tuple[Pattern, Verb], tuple[Noun, ...]]) -> dict[Pattern, tuple[Verb, ...]]:
    verbs: dict[Pattern, list[Verb]] = defaultdict(list)
    for (pattern, verb), found in subjects.items():
        if found or pattern == "weather":
            verbs[pattern] += [verb] * (2 if verb.prefix else 1)  # separable verbs have more forms to learn
    return {pattern: tuple(found) for pattern, found in verbs.items()}


def _inverted(table: dict[tuple[K, Verb], tuple[Noun, ...]]) -> dict[tuple[K, Noun], tuple[Verb, ...]]:
    """From the nouns of each verb to the verbs of each noun."""
    verbs: dict[tuple[K, Noun], list[Verb]] = defaultdict(list)
    for (key, verb), found in table.items():
        for noun in found:
            verbs[key, noun].append(verb)
    return {key: tuple(found) for key, found in verbs.items()}


def _actions(
    subjects: dict[tuple[Pattern, Verb], tuple[Noun, ...]],
) -> dict[Noun | None, tuple[tuple[Pattern, Verb], ...]]:
    actions: dict[Noun | None, list[tuple[Pattern, Verb]]] = defaultdict(list)
    for (pattern, verb), found in subjects.items():
        if pattern in _ACTIONS and "stative" not in verb.traits:
            for noun in found:
                actions[noun].append((pattern, verb))
            if _has_person(found):
                actions[None].append((pattern, verb))
    return {noun: tuple(found) for noun, found in actions.items()}


def _rivals(gradable: dict[Noun, tuple[Adjective, ...]]) -> dict[tuple[Adjective, Kind], tuple[Noun, ...]]:
    rivals: dict[tuple[Adjective, Kind], list[Noun]] = defaultdict(list)
    for noun, adjectives in gradable.items():
        for adjective in adjectives:
            rivals[adjective, noun.kind].append(noun)
    return {key: tuple(found) for key, found in rivals.items()}
