"""The English realisation of the abstract syntax."""

from __future__ import annotations

from functools import lru_cache
from typing import assert_never

from nmt.data.embedded.english_forms import (
    OBJECT_PRONOUNS,
    SUBJECT_PRONOUNS,
    be_past,
    be_present,
    determiner,
    do_present,
    have_present,
    third_person,
)
from nmt.data.embedded.entries import Adjective, Adverbial, Noun
from nmt.data.embedded.numbers import english_cardinal
from nmt.data.embedded.syntax import (
    AdjectivePredicate,
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

_PHRASES_CACHED = 1 << 15


def english(sentence: Sentence) -> str:
    """The English of a sentence, with capital and final stop."""
    match sentence.kind:
        case "statement":
            text, stop = _clause(sentence.clause), "."
        case "question":
            text, stop = _clause(sentence.clause, inverted=True), "?"
        case "command":
            text, stop = ("please " if sentence.please else "") + _command(sentence.clause), "!"
        case _:
            assert_never(sentence.kind)
    if sentence.second is not None:
        comma = "," if sentence.coordinator == "but" else ""
        text += f"{comma} {sentence.coordinator} {_clause(sentence.second)}"
    return punctuate(text + stop)


def punctuate(text: str) -> str:
    """Capital first letter; a comma stands once, and never before a stop."""
    text = text.replace(" ,", ",")
    while ",," in text:  # where several clauses end at once
        text = text.replace(",,", ",")
    if text[-2] == ",":
        text = text[:-2] + text[-1]
    return text[0].upper() + text[1:]


# --- Clauses --------------------------------------------------------------------------------------------------------


def _clause(clause: Clause, inverted: bool = False) -> str:
    """A clause with a subject; `inverted` puts the auxiliary before it, unless the subject itself is asked for."""
    front = clause.front
    inverted = inverted and front != "subject"
    words: list[str] = []
    if clause.adjunct is not None and clause.adjunct.first:
        words += (clause.adjunct.conjunction, _clause(clause.adjunct.clause), ",")
    if front is not None and front != "subject":
        words.append(_front(clause))
    auxiliary, main = _verb_group(clause, do=clause.negated or inverted)
    if clause.negated and auxiliary == "can" and not inverted:
        auxiliary = "cannot"
    elif clause.negated:
        main = f"not {main}" if main else "not"
    subject = _phrase(clause.subject)
    words += (auxiliary, subject) if inverted else (subject, auxiliary)
    if clause.frequency is not None:
        words.append(clause.frequency.en)
    words.append(main)
    _add_rest(words, clause)
    return " ".join(filter(None, words))


def _command(clause: Clause) -> str:
    words = ["do not", clause.verb.en] if clause.negated else [clause.verb.en]
    _add_rest(words, clause)
    return " ".join(filter(None, words))


def _infinitive(clause: Clause) -> str:
    words = ["to", clause.verb.en]
    _add_rest(words, clause)
    return " ".join(filter(None, words))


def _front(clause: Clause) -> str:
    """What stands before the subject: a time, a question word, or a relative pronoun with its preposition."""
    verb = clause.verb
    match clause.front:
        case "direct":
            return _moved(clause.direct, "")
        case "indirect":
            return _moved(clause.indirect, verb.en_preposition)
        case "oblique":
            return _moved(clause.oblique, verb.en_preposition)
        case "place":
            return _place(clause.place)
        case "time" | "subject" | None:
            return clause.time.en if clause.time is not None else ""
        case _:
            assert_never(clause.front)


def _moved(phrase: Phrase | None, preposition: str) -> str:
    """An object in front: a relative pronoun takes its preposition along, a question leaves it behind."""
    if isinstance(phrase, RelativePronoun):
        if preposition:
            return f"{preposition} {'whom' if phrase.human else 'which'}"
        return "whom" if phrase.human else "that"
    assert phrase is not None
    return _phrase(phrase)


def _add_rest(words: list[str], clause: Clause) -> None:
    """What follows the verb: objects, predicate, manner, place, company, time, and then clauses."""
    front = clause.front
    verb = clause.verb
    if clause.double_object and clause.indirect is not None and front != "indirect":
        words.append(_phrase(clause.indirect, True))
    if clause.direct is not None and front != "direct":
        words.append(_phrase(clause.direct, True))
    if clause.indirect is not None and (front == "indirect" or not clause.double_object):
        words.append(_object(clause.indirect, verb.en_preposition, front == "indirect"))
    if clause.oblique is not None:
        words.append(_object(clause.oblique, verb.en_preposition, front == "oblique"))
    if clause.predicate is not None:
        words.append(_predicate(clause.predicate))
    if clause.agent is not None:
        words.append(f"by {_phrase(clause.agent)}")
    if clause.manner is not None:
        words.append(clause.manner.en)
    if clause.place is not None and front != "place":
        words.append(_place(clause.place))
    if clause.companion is not None:
        words.append(_place(clause.companion))
    if clause.time is not None and front != "time":
        words.append(clause.time.en)
    if clause.complement is not None:
        words.append(_complement(clause.complement))
    if clause.adjunct is not None and not clause.adjunct.first:
        words += (clause.adjunct.conjunction, _clause(clause.adjunct.clause))


def _object(phrase: Phrase, preposition: str, moved: bool) -> str:
    """An object with its preposition; one that moved to the front leaves at most the preposition, as in a question."""
    if moved:
        return "" if isinstance(phrase, RelativePronoun) else preposition
    return f"{preposition} {_phrase(phrase, True)}" if preposition else _phrase(phrase, True)


def _complement(complement: Complement) -> str:
    if complement.conjunction is not None:
        return f"{complement.conjunction} {_clause(complement.clause)}"
    if complement.clause.front is not None:
        return _clause(complement.clause)
    return _infinitive(complement.clause)


# --- Verbs ----------------------------------------------------------------------------------------------------------


def _verb_group(clause: Clause, do: bool) -> tuple[str, str]:
    """Auxiliary and the rest; without an auxiliary the rest is finite. With `do`, full verbs take the auxiliary do."""
    verb = clause.verb
    who = clause.subject.person
    if clause.modal is not None:
        return _modal_group(clause, do)
    if clause.passive:
        return _be_group(clause, verb.en_participle)
    if verb.en == "be":
        return _be_group(clause, "")
    match clause.tense:
        case "present":
            if do:
                return do_present(who), verb.en
            return "", third_person(verb.en) if who == "3s" else verb.en
        case "progressive":
            return be_present(who), verb.en_ing
        case "past":
            return ("did", verb.en) if do else ("", verb.en_past)
        case "perfect":
            return have_present(who), verb.en_participle
        case "pluperfect":
            return "had", verb.en_participle
        case "future":
            return "will", verb.en
        case _:
            assert_never(clause.tense)


def _be_group(clause: Clause, participle: str) -> tuple[str, str]:
    """The forms of be, as a verb of its own or before a passive participle."""
    who = clause.subject.person
    match clause.tense:
        case "present" | "progressive":
            return be_present(who), participle
        case "past":
            return be_past(who), participle
        case "perfect":
            return have_present(who), f"been {participle}".rstrip()
        case "pluperfect":
            return "had", f"been {participle}".rstrip()
        case "future":
            return "will", f"be {participle}".rstrip()
        case _:
            assert_never(clause.tense)


def _modal_group(clause: Clause, do: bool) -> tuple[str, str]:
    modal, verb = clause.modal, clause.verb
    assert modal is not None
    infinitive = f"be {verb.en_participle}" if clause.passive else verb.en
    who = clause.subject.person
    past = clause.tense == "past"
    if not modal.full_verb:
        auxiliary, _, rest = (modal.en_past if past else modal.en_present).partition(" ")
        return auxiliary, f"{rest} {infinitive}".lstrip()
    if do:
        return "did" if past else do_present(who), f"{modal.en_present} {infinitive}"
    if past:
        return "", f"{modal.en_past} {infinitive}"
    return "", f"{modal.en_third if who == '3s' else modal.en_present} {infinitive}"


# --- Phrases --------------------------------------------------------------------------------------------------------


def _phrase(phrase: Phrase, as_object: bool = False) -> str:
    match phrase:
        case NounPhrase():
            return _noun_phrase(phrase)
        case Pronoun():
            return OBJECT_PRONOUNS[phrase.word] if as_object else SUBJECT_PRONOUNS[phrase.word]
        case Name():
            return phrase.name
        case Coordination():
            return f"{_phrase(phrase.first)} and {_phrase(phrase.second)}"
        case RelativePronoun():
            return "who" if phrase.human else "that"
        case Interrogative():
            return "who" if phrase.human else "what"
        case _:
            assert_never(phrase)


def _noun_phrase(phrase: NounPhrase) -> str:
    core = _core(phrase.noun, phrase.determiner, phrase.plural, phrase.adjective, phrase.degree)
    if phrase.number:
        core = f"{english_cardinal(phrase.number)} {core}"
    elif isinstance(phrase.possessor, RelativePronoun):
        core = f"whose {core}"
    elif phrase.possessor is not None:
        core = f"{_phrase(phrase.possessor)}'s {core}"
    return f"{core} {_clause(phrase.relative)}" if phrase.relative is not None else core


@lru_cache(_PHRASES_CACHED)
def _core(noun: Noun, article: str, plural: bool, adjective: Adjective | None, degree: Degree) -> str:
    """Determiner, adjective and noun."""
    words = noun.en_plural if plural else noun.en
    if adjective is not None:
        match degree:
            case "positive":
                words = f"{adjective.en} {words}"
            case "comparative":
                words = f"{adjective.en_comparative} {words}"
            case "superlative":
                words = f"{adjective.en_superlative} {words}"
            case _:
                assert_never(degree)
    return f"{determiner(article, plural, words)} {words}" if article else words


def _place(place: PrepositionalPhrase | Adverbial | None) -> str:
    match place:
        case PrepositionalPhrase():
            return f"{place.preposition.en} {_phrase(place.phrase)}"
        case Adverbial():
            return place.en
        case None:
            return ""
        case _:
            assert_never(place)


def _predicate(predicate: Predicate) -> str:
    match predicate:
        case Measure():
            words = f"{english_cardinal(predicate.number)} {predicate.unit.en}"
            return f"{words} {predicate.adjective[0]}" if predicate.adjective else words
        case AdjectivePredicate():
            return _adjective_predicate(predicate)
        case _:
            assert_never(predicate)


def _adjective_predicate(predicate: AdjectivePredicate) -> str:
    adjective = predicate.adjective
    if predicate.standard is None:
        word = adjective.en_comparative if predicate.degree == "comparative" else adjective.en
        return f"very {word}" if predicate.very else word
    if predicate.degree == "comparative":
        return f"{adjective.en_comparative} than {_phrase(predicate.standard)}"
    return f"as {adjective.en} as {_phrase(predicate.standard)}"
