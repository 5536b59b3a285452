"""The grammar of the built-in toy corpus, compared with handwritten sentences and paradigms."""

from __future__ import annotations

import re

import pytest

from nmt.grammar import translate
from nmt.grammar.english import third_person
from nmt.grammar.entries import Fixed, Person, Verb
from nmt.grammar.modifiers import ADJECTIVES, FREQUENCIES, FUTURE_TIMES, HOME, MANNERS, PAST_TIMES, WHERE, WHERE_TO
from nmt.grammar.morphology import PRETERITE, past, present
from nmt.grammar.nouns import COMPOUNDS, NOUN, NOUNS
from nmt.grammar.numbers import at_hour, on_date
from nmt.grammar.syntax import (
    Clause,
    Coordination,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
    Relative,
    Sentence,
    Subordinate,
)
from nmt.grammar.verbs import MODALS, VERBS

ADJECTIVE = {adjective.en: adjective for adjective in ADJECTIVES}
MODAL = {modal.en: modal for modal in MODALS}
VERB = {verb.infinitive: verb for verb in VERBS}
ADVERB = {adverb.en: adverb for adverb in (*MANNERS, *FREQUENCIES, *PAST_TIMES, *FUTURE_TIMES)}
ME, YOU, HE, SHE, WE, WHO, WHAT = (Pronoun(word) for word in ("I", "you", "he", "she", "we", "who", "what"))


def np(determiner: str, words: str, **fields: object) -> NounPhrase:
    """Make a noun phrase from English words with an optional adjective: np("the", "old men")."""
    *adjective, word = words.split()
    plurals = {noun.en_plural: noun for noun in NOUNS if noun.en_plural}
    plural = word not in NOUN
    phrase = NounPhrase(plurals[word] if plural else NOUN[word], determiner, plural)
    if adjective:
        phrase = phrase._replace(adjective=ADJECTIVE[adjective[0]])
    return phrase._replace(**fields)  # type: ignore[arg-type]


def clause(subject: Phrase, verb: str, **fields: object) -> Clause:
    return Clause(subject, VERB[verb], **fields)  # type: ignore[arg-type]


def subordinate(conjunction: str | None, clause: Clause, first: bool = False) -> Subordinate:
    return Subordinate(conjunction, clause, first)  # type: ignore[arg-type]


MAN, WOMAN, CHILD, BOOK = (np("the", noun) for noun in ("man", "woman", "child", "book"))
ANNA, HIM_WHO = Name("Anna"), Relative(NOUN["man"], False)
TODAY, TOMORROW, YESTERDAY = Fixed("today", "heute"), ADVERB["tomorrow"], ADVERB["yesterday"]
CALLS, ASLEEP = clause(WOMAN, "anrufen", object=MAN), clause(HIM_WHO, "schlafen", front="subject")
TIRED = clause(MAN, "sein", predicate=ADJECTIVE["tired"])
KITCHEN = next(modifier for modifier in COMPOUNDS[NOUN["table"]] if modifier.en == "kitchen")


# fmt: off
GOLDEN: list[tuple[str, str, Clause | Sentence]] = [
    # Verb second and right bracket.
    ("The woman will buy the book tomorrow.", "Die Frau wird morgen das Buch kaufen.",
     clause(WOMAN, "kaufen", object=BOOK, time=TOMORROW, tense="future")),
    ("Yesterday the man went home.", "Gestern ist der Mann nach Hause gegangen.",
     clause(MAN, "gehen", place=HOME, time=YESTERDAY, front="time", tense="past")),
    # Separable verbs and infinitives.
    ("The woman calls the man.", "Die Frau ruft den Mann an.", CALLS),
    ("The woman has called me.", "Die Frau hat mich angerufen.", clause(WOMAN, "anrufen", object=ME, tense="perfect")),
    ("I know that the woman calls the man.", "Ich weiß, dass die Frau den Mann anruft.",
     clause(ME, "wissen", complement=subordinate("that", CALLS))),
    ("The man tries to call the woman.", "Der Mann versucht, die Frau anzurufen.",
     clause(MAN, "versuchen", complement=subordinate(None, clause(MAN, "anrufen", object=WOMAN)))),
    # Subordinate clauses: verb final, commas, als and wenn.
    ("The woman buys the book because the man is tired.", "Die Frau kauft das Buch, weil der Mann müde ist.",
     clause(WOMAN, "kaufen", object=BOOK, adjunct=subordinate("because", TIRED))),
    ("If the man is tired, he sleeps.", "Wenn der Mann müde ist, schläft er.",
     clause(HE, "schlafen", adjunct=subordinate("if", TIRED, first=True))),
    ("When the woman came back, the child slept.", "Als die Frau zurückgekommen ist, hat das Kind geschlafen.",
     clause(CHILD, "schlafen", tense="past",
          adjunct=subordinate("when", clause(WOMAN, "zurückkommen", tense="past"), first=True))),
    ("Anna asks whether the man can sing.", "Anna fragt, ob der Mann singen kann.",
     clause(ANNA, "fragen", complement=subordinate("whether", clause(MAN, "singen", modal=MODAL["can"])))),
    # Relative clauses: agreement, case, extraposition.
    ("The man who sleeps is old.", "Der Mann, der schläft, ist alt.",
     clause(MAN._replace(relative=ASLEEP), "sein", predicate=ADJECTIVE["old"])),
    ("The woman has seen the man who sleeps.", "Die Frau hat den Mann gesehen, der schläft.",
     clause(WOMAN, "sehen", object=MAN._replace(relative=ASLEEP), tense="perfect")),
    ("The man whom the woman helps is sleeping.", "Der Mann, dem die Frau hilft, schläft.",
     clause(MAN._replace(relative=clause(WOMAN, "helfen", object=HIM_WHO, front="object")), "schlafen",
          tense="progressive")),
    ("The men for whom she waits are coming back.", "Die Männer, auf die sie wartet, kommen zurück.",
     clause(np("the", "men", relative=clause(SHE, "warten", object=Relative(NOUN["man"], True), front="object")),
          "zurückkommen", tense="progressive")),
    ("She talked to the man who sleeps.", "Sie hat mit dem Mann gesprochen, der schläft.",
     clause(SHE, "sprechen", object=MAN._replace(relative=ASLEEP), tense="past")),
    ("I dream of the man who sleeps.", "Ich träume von dem Mann, der schläft.",  # but: vom Mann
     clause(ME, "träumen", object=MAN._replace(relative=ASLEEP))),
    # Negation: kein with indefinite phrases, else nicht before adverbs, places and the right bracket.
    ("The woman does not buy the book.", "Die Frau kauft das Buch nicht.",
     clause(WOMAN, "kaufen", object=BOOK, negated=True)),
    ("The woman does not buy an old car.", "Die Frau kauft kein altes Auto.",
     clause(WOMAN, "kaufen", object=np("a", "old car"), negated=True)),
    ("She does not help a tourist.", "Sie hilft keinem Touristen.",
     clause(SHE, "helfen", object=np("a", "tourist"), negated=True)),
    ("I cannot drink milk.", "Ich kann keine Milch trinken.",
     clause(ME, "trinken", object=np("", "milk"), modal=MODAL["can"], negated=True)),
    ("He is not waiting for her today.", "Er wartet heute nicht auf sie.",
     clause(HE, "warten", object=SHE, time=TODAY, tense="progressive", negated=True)),
    ("The child is not called by Anna.", "Das Kind wird nicht von Anna angerufen.",
     clause(CHILD, "anrufen", passive=True, negated=True, company=Prepositional("by", "von", "dat", ANNA))),
    # Questions.
    ("Does the woman buy the book?", "Kauft die Frau das Buch?", clause(WOMAN, "kaufen", object=BOOK)),
    ("What did you eat?", "Was hast du gegessen?", clause(YOU, "essen", object=WHAT, front="object", tense="past")),
    ("Who does the woman help?", "Wem hilft die Frau?", clause(WOMAN, "helfen", object=WHO, front="object")),
    ("Who is she waiting for?", "Auf wen wartet sie?",
     clause(SHE, "warten", object=WHO, front="object", tense="progressive")),
    ("Who read the book?", "Wer hat das Buch gelesen?",
     clause(WHO, "lesen", object=BOOK, front="subject", tense="past")),
    ("Where are you sitting?", "Wo sitzt du?", clause(YOU, "sitzen", place=WHERE, front="place", tense="progressive")),
    ("Where are you going?", "Wohin gehst du?",
     clause(YOU, "gehen", place=WHERE_TO, front="place", tense="progressive")),
    ("Which book does she want to read?", "Welches Buch will sie lesen?",
     clause(SHE, "lesen", object=np("which", "book"), front="object", modal=MODAL["want to"])),
    # Two-way prepositions, contractions, the order of adverbs.
    ("I lay the book on the table.", "Ich lege das Buch auf den Tisch.",
     clause(ME, "legen", object=BOOK, place=Prepositional("on", "auf", "acc", np("the", "table")))),
    ("The book lay next to a lamp.", "Das Buch hat neben einer Lampe gelegen.",
     clause(BOOK, "liegen", place=Prepositional("next to", "neben", "dat", np("a", "lamp")), tense="past")),
    ("We run into the house.", "Wir rennen ins Haus.",
     clause(WE, "rennen", place=Prepositional("into", "in", "acc", np("the", "house")))),
    ("She goes to the school with the old dog today.", "Sie geht heute mit dem alten Hund zur Schule.",
     clause(SHE, "gehen", time=TODAY, company=Prepositional("with", "mit", "dat", np("the", "old dog")),
          place=Prepositional("to", "zu", "dat", np("the", "school")))),
    ("The man often reads a book quietly.", "Der Mann liest oft leise ein Buch.",
     clause(MAN, "lesen", object=np("a", "book"), frequency=ADVERB["often"], manner=ADVERB["quietly"])),
    ("The man often reads the book.", "Der Mann liest das Buch oft.",
     clause(MAN, "lesen", object=BOOK, frequency=ADVERB["often"])),
    # Datives, pronouns, reflexives.
    ("He gives the child the book.", "Er gibt dem Kind das Buch.", clause(HE, "geben", object=BOOK, receiver=CHILD)),
    ("Yesterday she showed us the book.", "Gestern hat sie uns das Buch gezeigt.",
     clause(SHE, "zeigen", object=BOOK, receiver=WE, time=YESTERDAY, front="time", tense="past")),
    ("Yesterday the woman remembered the trip.", "Gestern hat sich die Frau an die Reise erinnert.",
     clause(WOMAN, "erinnern", object=np("the", "trip"), time=YESTERDAY, front="time", tense="past")),
    # Passive, possession, coordination, compounds, numbers and dates.
    ("The book was read by the man.", "Das Buch wurde vom Mann gelesen.",
     clause(BOOK, "lesen", passive=True, company=Prepositional("by", "von", "dat", MAN), tense="past")),
    ("The car has to be repaired.", "Das Auto muss repariert werden.",
     clause(np("the", "car"), "reparieren", passive=True, modal=MODAL["have to"])),
    ("The hats belong to the neighbor's daughter.", "Die Hüte gehören der Tochter des Nachbarn.",
     clause(np("the", "hats"), "gehören", object=np("", "daughter", owner=np("the", "neighbor")))),
    ("Anna and the boy see Peter's cats.", "Anna und der Junge sehen Peters Katzen.",
     clause(Coordination(ANNA, np("the", "boy")), "sehen", object=np("", "cats", owner=Name("Peter")))),
    ("The dog is sleeping, but tomorrow I will work.", "Der Hund schläft, aber morgen werde ich arbeiten.",
     Sentence(clause(np("the", "dog"), "schlafen", tense="progressive"), False, "but",
              clause(ME, "arbeiten", time=TOMORROW, front="time", tense="future"))),
    ("I see the old kitchen tables.", "Ich sehe die alten Küchentische.",
     clause(ME, "sehen", object=np("the", "old tables", modifier=KITCHEN))),
    ("I see twenty-one old books.", "Ich sehe einundzwanzig alte Bücher.",
     clause(ME, "sehen", object=np("", "old books", number=21))),
    ("On the third of May she will arrive.", "Am dritten Mai wird sie ankommen.",
     clause(SHE, "ankommen", time=on_date(3, ("May", "Mai")), front="time", tense="future")),
    ("You get up at half past twelve.", "Du stehst um halb eins auf.",
     clause(YOU, "aufstehen", time=at_hour(12, True))),
]
# fmt: on


@pytest.mark.parametrize(("src", "tgt", "tree"), GOLDEN, ids=[src for src, _, _ in GOLDEN])
def test_trees_are_realized_as_handwritten_sentences(src: str, tgt: str, tree: Clause | Sentence) -> None:
    sentence = tree if isinstance(tree, Sentence) else Sentence(tree, question=src.endswith("?"))
    assert translate(sentence)[:2] == (src, tgt)


def test_labels_name_the_phenomena_of_a_sentence() -> None:
    labels = {src: translate(Sentence(tree)).labels for src, _, tree in GOLDEN if isinstance(tree, Clause)}
    assert labels["The woman calls the man."] == ("separable-verb",)
    assert labels["I see the old kitchen tables."] == ("adjective-agreement", "compound")
    assert labels["He gives the child the book."] == ("case",)
    assert labels["On the third of May she will arrive."] == ("dates", "future", "separable-verb", "verb-second")


# --- Morphology -------------------------------------------------------------------------------------------------------

# Columns: old man, old woman, old child, old children. Rows: nominative, accusative, dative, genitive.
DECLENSIONS = {
    "the": """
        der alte Mann    | die alte Frau    | das alte Kind     | die alten Kinder
        den alten Mann   | die alte Frau    | das alte Kind     | die alten Kinder
        dem alten Mann   | der alten Frau   | dem alten Kind    | den alten Kindern
        des alten Mannes | der alten Frau   | des alten Kindes  | der alten Kinder""",
    "our": """
        unser alter Mann     | unsere alte Frau   | unser altes Kind    | unsere alten Kinder
        unseren alten Mann   | unsere alte Frau   | unser altes Kind    | unsere alten Kinder
        unserem alten Mann   | unserer alten Frau | unserem alten Kind  | unseren alten Kindern
        unseres alten Mannes | unserer alten Frau | unseres alten Kindes | unserer alten Kinder""",
    "": """
        alter Mann   | alte Frau  | altes Kind   | alte Kinder
        alten Mann   | alte Frau  | altes Kind   | alte Kinder
        altem Mann   | alter Frau | altem Kind   | alten Kindern
        alten Mannes | alter Frau | alten Kindes | alter Kinder""",
}


def to_german(clause: Clause) -> str:
    return translate(Sentence(clause)).tgt


@pytest.mark.parametrize("determiner", DECLENSIONS)
def test_noun_phrases_decline(determiner: str) -> None:
    rows = [[cell.strip() for cell in row.split("|")] for row in DECLENSIONS[determiner].strip().split("\n")]
    for column, words in enumerate(("old man", "old woman", "old child", "old children")):
        phrase = np(determiner, words)
        nominative, accusative, dative, genitive = (row[column] for row in rows)
        verb = "schlafen" if phrase.plural else "schläft"
        assert to_german(clause(phrase, "schlafen")) == f"{nominative[0].upper()}{nominative[1:]} {verb}."
        assert to_german(clause(ME, "sehen", object=phrase)) == f"Ich sehe {accusative}."
        assert to_german(clause(ME, "helfen", object=phrase)) == f"Ich helfe {dative}."
        owned = np("", "dog", owner=phrase)
        assert to_german(clause(ME, "sehen", object=owned)) == f"Ich sehe den Hund {genitive}."


@pytest.mark.parametrize(
    ("determiner", "words", "german"),
    [
        ("this", "tired lion", "diesen müden Löwen"),
        ("every", "boy", "jeden Jungen"),
        ("many", "good books", "viele gute Bücher"),
        ("all", "good books", "alle guten Bücher"),
        ("a", "expensive car", "ein teures Auto"),
        ("the", "dark forest", "den dunklen Wald"),
    ],
)
def test_determiners_weak_nouns_and_adjectives_that_lose_an_e_decline(determiner: str, words: str, german: str) -> None:
    assert to_german(clause(ME, "sehen", object=np(determiner, words))) == f"Ich sehe {german}."


# ich, du, er, wir, sie
CONJUGATIONS = """
kaufen: kaufe kaufst kauft kaufen kaufen
arbeiten: arbeite arbeitest arbeitet arbeiten arbeiten
tanzen: tanze tanzt tanzt tanzen tanzen
reisen: reise reist reist reisen reisen
lesen: lese liest liest lesen lesen
essen: esse isst isst essen essen
geben: gebe gibst gibt geben geben
vergessen: vergesse vergisst vergisst vergessen vergessen
schlafen: schlafe schläfst schläft schlafen schlafen
einladen: lade lädst lädt laden laden
ansehen: sehe siehst sieht sehen sehen
füttern: füttere fütterst füttert füttern füttern
finden: finde findest findet finden finden
wissen: weiß weißt weiß wissen wissen
sein: bin bist ist sind sind
haben: habe hast hat haben haben
"""
PERSONS: tuple[Person, ...] = ("1s", "2s", "3s", "1p", "3p")


@pytest.mark.parametrize("row", CONJUGATIONS.strip().split("\n"))
def test_verbs_conjugate(row: str) -> None:
    name, forms = row.split(": ")
    verb = VERB[name]
    assert [present(verb.de, verb.changed_stem, person) for person in PERSONS] == forms.split()


@pytest.mark.parametrize(
    ("form", "forms"),
    [
        (PRETERITE["sein"], "war warst war waren waren"),
        (PRETERITE["haben"], "hatte hattest hatte hatten hatten"),
        (MODAL["want to"].de[3], "wollte wolltest wollte wollten wollten"),
    ],
)
def test_the_simple_past_is_inflected(form: str, forms: str) -> None:
    assert [past(form, person) for person in PERSONS] == forms.split()


def test_english_verbs_have_a_third_person() -> None:
    bases = ("buy", "try on", "watch television", "go", "carry", "play", "have", "say")
    forms = ["buys", "tries on", "watches television", "goes", "carries", "plays", "has", "says"]
    assert [third_person(base) for base in bases] == forms


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.en)
def test_participles_are_well_formed(verb: Verb) -> None:
    """ge- follows a separable prefix; stems with another prefix or -ieren start like the infinitive."""
    stem = verb.participle.removeprefix(verb.prefix)
    without_ge = re.match("(be|ver|er|ge(?!h|b))", verb.de) or verb.de.endswith("ieren")
    assert verb.participle.startswith(verb.prefix)
    assert stem.startswith(verb.de[:2] if without_ge else "ge")
    assert stem.endswith(("t", "en"))
