"""The grammar of the embedded corpus, against German and English written out by hand."""

from __future__ import annotations

import re

import pytest

from nmt.data.embedded.english import english
from nmt.data.embedded.english_forms import third_person
from nmt.data.embedded.entries import Adverbial
from nmt.data.embedded.german import german
from nmt.data.embedded.german_forms import (
    imperative,
    infinitive_with_zu,
    modal_present,
    past_ending,
    present,
    preterite,
)
from nmt.data.embedded.modifiers import (
    ADJECTIVES,
    AT_HOME,
    EUROS,
    FREQUENCIES,
    HOME,
    INTO,
    MANNERS,
    NEXT_TO,
    ON,
    TO,
    WITH,
    YEARS,
)
from nmt.data.embedded.nouns import NOUN, NOUNS
from nmt.data.embedded.syntax import (
    AdjectivePredicate,
    Adjunct,
    Clause,
    Complement,
    Coordination,
    Interrogative,
    Measure,
    Name,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    Pronoun,
    RelativePronoun,
    Sentence,
)
from nmt.data.embedded.times import (
    FUTURE_TIMES,
    PAST_TIMES,
    WHERE,
    WHERE_TO,
    on_weekday_and_date,
)
from nmt.data.embedded.verbs import MODAL, VERB, VERBS

ADJECTIVE = {adjective.en: adjective for adjective in ADJECTIVES}
ADVERB = {adverb.en: adverb for adverb in (*MANNERS, *FREQUENCIES, *PAST_TIMES, *FUTURE_TIMES)}
ME, YOU, HE, SHE, THEY, WE = (Pronoun(word) for word in ("I", "you", "he", "she", "they", "we"))  # type: ignore[arg-type]


def np(determiner: str, words: str, **more: object) -> NounPhrase:
    """A noun phrase from English words, perhaps with an adjective: np("the", "old men")."""
    *adjective, word = words.split()
    plurals = {noun.en_plural: noun for noun in NOUNS if noun.countable}
    plural = word not in NOUN
    phrase = NounPhrase(plurals[word] if plural else NOUN[word], determiner, plural)
    if adjective:
        phrase = phrase._replace(adjective=ADJECTIVE[adjective[0]])
    return phrase._replace(**more)  # type: ignore[arg-type]


def says(subject: Phrase, verb: str, **more: object) -> Clause:
    return Clause(subject, VERB[verb], **more)  # type: ignore[arg-type]


def adjective(english: str, **more: object) -> AdjectivePredicate:
    return AdjectivePredicate(ADJECTIVE[english], **more)  # type: ignore[arg-type]


MAN, WOMAN, CHILD, BREAD, BOOK = (np("the", noun) for noun in ("man", "woman", "child", "bread", "book"))
HIM_WHO, ANNA = RelativePronoun("m", human=True), Name("Anna")
TODAY, TOMORROW, YESTERDAY = Adverbial("today", "heute"), ADVERB["tomorrow"], ADVERB["yesterday"]
CALLS, ASLEEP = says(WOMAN, "anrufen", direct=MAN), says(HIM_WHO, "schlafen", front="subject")
TIRED = says(MAN, "sein", predicate=adjective("tired"))


# fmt: off
GOLDEN: list[tuple[str, str, Clause | Sentence]] = [
    # Verb second, and the closing bracket.
    ("Tomorrow the woman buys the bread.", "Morgen kauft die Frau das Brot.",
     says(WOMAN, "kaufen", direct=BREAD, time=TOMORROW, front="time")),
    ("The woman will buy the bread tomorrow.", "Die Frau wird morgen das Brot kaufen.",
     says(WOMAN, "kaufen", direct=BREAD, time=TOMORROW, tense="future")),
    ("Yesterday the man went home.", "Gestern ist der Mann nach Hause gegangen.",
     says(MAN, "gehen", place=HOME, time=YESTERDAY, front="time", tense="past")),
    ("The woman was very tired.", "Die Frau war sehr müde.",
     says(WOMAN, "sein", predicate=adjective("tired", very=True), tense="past")),
    # Separable verbs, infinitives and commands.
    ("The woman calls the man.", "Die Frau ruft den Mann an.", CALLS),
    ("The woman has called me.", "Die Frau hat mich angerufen.", says(WOMAN, "anrufen", direct=ME, tense="perfect")),
    ("I know that the woman calls the man.", "Ich weiß, dass die Frau den Mann anruft.",
     says(ME, "wissen", complement=Complement(CALLS, "that"))),
    ("The man tries to call the woman.", "Der Mann versucht, die Frau anzurufen.",
     says(MAN, "versuchen", complement=Complement(says(MAN, "anrufen", direct=WOMAN)))),
    ("I went home to rest.", "Ich bin nach Hause gegangen, um mich auszuruhen.",
     says(ME, "gehen", place=HOME, tense="past", complement=Complement(says(ME, "ausruhen"), purpose=True))),
    ("Open the door!", "Mach die Tür auf!", Sentence("command", says(YOU, "aufmachen", direct=np("the", "door")))),
    ("Please do not eat the cake!", "Bitte iss den Kuchen nicht!",
     Sentence("command", says(YOU, "essen", direct=np("the", "cake"), negated=True), please=True)),
    # Subordinate clauses: verb final, commas, als and wenn.
    ("The woman buys the bread because the man is tired.", "Die Frau kauft das Brot, weil der Mann müde ist.",
     says(WOMAN, "kaufen", direct=BREAD, adjunct=Adjunct("because", TIRED))),
    ("If the man is tired, he sleeps.", "Wenn der Mann müde ist, schläft er.",
     says(HE, "schlafen", adjunct=Adjunct("if", TIRED, first=True))),
    ("When the woman came back, the child laughed.", "Als die Frau zurückgekommen ist, hat das Kind gelacht.",
     says(CHILD, "lachen", tense="past",
          adjunct=Adjunct("when", says(WOMAN, "zurückkommen", tense="past"), first=True))),
    ("When the woman comes back, the child will laugh.", "Wenn die Frau zurückkommt, wird das Kind lachen.",
     says(CHILD, "lachen", tense="future", adjunct=Adjunct("when", says(WOMAN, "zurückkommen"), first=True))),
    ("The man slept after we had bought the bread.", "Der Mann hat geschlafen, nachdem wir das Brot gekauft hatten.",
     says(MAN, "schlafen", tense="past",
          adjunct=Adjunct("after", says(WE, "kaufen", direct=BREAD, tense="pluperfect")))),
    ("Anna asks whether the man can sing.", "Anna fragt, ob der Mann singen kann.",
     says(ANNA, "fragen", complement=Complement(says(MAN, "singen", modal=MODAL["can"]), "whether"))),
    ("She knows where the man lives.", "Sie weiß, wo der Mann wohnt.",
     says(SHE, "wissen", complement=Complement(says(MAN, "wohnen", place=WHERE, front="place")))),
    # Relative clauses agree in gender, and have the case of their own verb; they move behind a closing verb.
    ("The man who sleeps is old.", "Der Mann, der schläft, ist alt.",
     says(MAN._replace(relative=ASLEEP), "sein", predicate=adjective("old"))),
    ("The woman has seen the man who sleeps.", "Die Frau hat den Mann gesehen, der schläft.",
     says(WOMAN, "sehen", direct=MAN._replace(relative=ASLEEP), tense="perfect")),
    ("The man whom the woman helps is sleeping.", "Der Mann, dem die Frau hilft, schläft.",
     says(MAN._replace(relative=says(WOMAN, "helfen", indirect=HIM_WHO, front="indirect")), "schlafen",
          tense="progressive")),
    ("The men for whom she waits are coming back.", "Die Männer, auf die sie wartet, kommen zurück.",
     says(np("the", "men", relative=says(SHE, "warten", oblique=RelativePronoun("p", True), front="oblique")),
          "zurückkommen", tense="progressive")),
    ("I read the book that belongs to the teacher.", "Ich lese das Buch, das dem Lehrer gehört.",
     says(ME, "lesen", direct=np("the", "book", relative=says(
         RelativePronoun("n", False), "gehören", indirect=np("the", "teacher"), front="subject")))),
    ("The woman whose dog sleeps works.", "Die Frau, deren Hund schläft, arbeitet.",
     says(np("the", "woman", relative=says(
         np("", "dog", possessor=RelativePronoun("f", True)), "schlafen", front="subject")), "arbeiten")),
    ("We laugh about the man who sleeps.", "Wir lachen über den Mann, der schläft.",
     says(WE, "lachen", oblique=MAN._replace(relative=ASLEEP))),
    ("She talked to the man who sleeps.", "Sie hat mit dem Mann gesprochen, der schläft.",
     says(SHE, "sprechen", oblique=MAN._replace(relative=ASLEEP), tense="past")),
    # Negation: kein for what is indefinite, or else nicht before adverbs, places and closing verbs.
    ("The woman does not buy the bread.", "Die Frau kauft das Brot nicht.",
     says(WOMAN, "kaufen", direct=BREAD, negated=True)),
    ("The woman does not buy an old car.", "Die Frau kauft kein altes Auto.",
     says(WOMAN, "kaufen", direct=np("a", "old car"), negated=True)),
    ("She does not help a tourist.", "Sie hilft keinem Touristen.",
     says(SHE, "helfen", indirect=np("a", "tourist"), negated=True)),
    ("I cannot drink milk.", "Ich kann keine Milch trinken.",
     says(ME, "trinken", direct=np("", "milk"), modal=MODAL["can"], negated=True)),
    ("He is not waiting for her at home.", "Er wartet zu Hause nicht auf sie.",
     says(HE, "warten", oblique=SHE, place=AT_HOME, tense="progressive", negated=True)),
    ("You do not have to get up.", "Du musst nicht aufstehen.",
     says(YOU, "aufstehen", modal=MODAL["have to"], negated=True)),
    ("No child never laughs.", "Kein Kind lacht nie.", says(np("no", "child"), "lachen", frequency=ADVERB["never"])),
    # Questions.
    ("Does the woman buy the bread?", "Kauft die Frau das Brot?", says(WOMAN, "kaufen", direct=BREAD)),
    ("What did you eat?", "Was hast du gegessen?",
     says(YOU, "essen", direct=Interrogative(False), front="direct", tense="past")),
    ("Who does the woman help?", "Wem hilft die Frau?",
     says(WOMAN, "helfen", indirect=Interrogative(True), front="indirect")),
    ("Who are they waiting for?", "Auf wen warten sie?",
     says(THEY, "warten", oblique=Interrogative(True), front="oblique", tense="progressive")),
    ("Who cut the bread?", "Wer hat das Brot geschnitten?",
     says(Interrogative(True), "schneiden", direct=BREAD, front="subject", tense="past")),
    ("Where are you going?", "Wohin gehst du?",
     says(YOU, "gehen", place=WHERE_TO, front="place", tense="progressive")),
    ("Which book does she want to read?", "Welches Buch will sie lesen?",
     says(SHE, "lesen", direct=np("which", "book"), front="direct", modal=MODAL["want to"])),
    # Two-way prepositions, contractions, and time before manner before place.
    ("I lay the book on the table.", "Ich lege das Buch auf den Tisch.",
     says(ME, "legen", direct=BOOK, place=PrepositionalPhrase(ON, np("the", "table"), direction=True))),
    ("The book lay next to a lamp.", "Das Buch hat neben einer Lampe gelegen.",
     says(BOOK, "liegen", place=PrepositionalPhrase(NEXT_TO, np("a", "lamp")), tense="past")),
    ("We run into the house.", "Wir rennen ins Haus.",
     says(WE, "rennen", place=PrepositionalPhrase(INTO, np("the", "house"), direction=True))),
    ("She goes to the school with the old dog today.", "Sie geht heute mit dem alten Hund zur Schule.",
     says(SHE, "gehen", time=TODAY, companion=PrepositionalPhrase(WITH, np("the", "old dog")),
          place=PrepositionalPhrase(TO, np("the", "school")))),
    ("The man often reads a book quietly.", "Der Mann liest oft leise ein Buch.",
     says(MAN, "lesen", direct=np("a", "book"), frequency=ADVERB["often"], manner=ADVERB["quietly"])),
    ("The man often reads the book.", "Der Mann liest das Buch oft.",
     says(MAN, "lesen", direct=BOOK, frequency=ADVERB["often"])),
    # Datives, pronouns, reflexives.
    ("He gives the child the book.", "Er gibt dem Kind das Buch.",
     says(HE, "geben", direct=BOOK, indirect=CHILD, double_object=True)),
    ("Yesterday she explained the plan to us.", "Gestern hat sie uns den Plan erklärt.",
     says(SHE, "erklären", direct=np("the", "plan"), indirect=WE, time=YESTERDAY, front="time", tense="past")),
    ("Yesterday the woman remembered the trip.", "Gestern hat sich die Frau an die Reise erinnert.",
     says(WOMAN, "erinnern", oblique=np("the", "trip"), time=YESTERDAY, front="time", tense="past")),
    # Passive, comparison, possession, coordination, numbers and dates.
    ("The bread was cut by the man.", "Das Brot wurde vom Mann geschnitten.",
     says(BREAD, "schneiden", passive=True, agent=MAN, tense="past")),
    ("The car must be repaired.", "Das Auto muss repariert werden.",
     says(np("the", "car"), "reparieren", passive=True, modal=MODAL["must"])),
    ("The car has been repaired.", "Das Auto ist repariert worden.",
     says(np("the", "car"), "reparieren", passive=True, tense="perfect")),
    ("The horse is bigger than my dog.", "Das Pferd ist größer als mein Hund.",
     says(np("the", "horse"), "sein", predicate=adjective("big", degree="comparative", standard=np("my", "dog")))),
    ("The horse is as big as my dog.", "Das Pferd ist so groß wie mein Hund.",
     says(np("the", "horse"), "sein", predicate=adjective("big", standard=np("my", "dog")))),
    ("The most expensive hats belong to the neighbor's daughter.",
     "Die teuersten Hüte gehören der Tochter des Nachbarn.",
     says(np("the", "expensive hats", degree="superlative"), "gehören",
          indirect=np("", "daughter", possessor=np("the", "neighbor")))),
    ("Anna and the boy see Peter's cats.", "Anna und der Junge sehen Peters Katzen.",
     says(Coordination(ANNA, np("the", "boy")), "sehen", direct=np("", "cats", possessor=Name("Peter")))),
    ("The dog is sleeping, but tomorrow I will work.", "Der Hund schläft, aber morgen werde ich arbeiten.",
     Sentence("statement", says(np("the", "dog"), "schlafen", tense="progressive"), "but",
              says(ME, "arbeiten", time=TOMORROW, front="time", tense="future"))),
    ("The hat costs two hundred and forty-three euros.", "Der Hut kostet zweihundertdreiundvierzig Euro.",
     says(np("the", "hat"), "kosten", predicate=Measure(243, EUROS))),
    ("The girl is twelve years old.", "Das Mädchen ist zwölf Jahre alt.",
     says(np("the", "girl"), "sein", predicate=Measure(12, YEARS, ("old", "alt")))),
    ("I see twenty-one old books.", "Ich sehe einundzwanzig alte Bücher.",
     says(ME, "sehen", direct=np("", "old books", number=21))),
    ("On Monday, the third of May, she will arrive.", "Am Montag, dem dritten Mai, wird sie ankommen.",
     says(SHE, "ankommen", time=on_weekday_and_date("Monday", 3, "May"), front="time", tense="future")),
]
# fmt: on


@pytest.mark.parametrize(("src", "tgt", "tree"), GOLDEN, ids=[src for src, _, _ in GOLDEN])
def test_golden_sentence(src: str, tgt: str, tree: Clause | Sentence) -> None:
    if isinstance(tree, Clause):
        tree = Sentence("question" if src.endswith("?") else "statement", tree)
    assert english(tree) == src
    assert german(tree)[0] == tgt


# --- Morphology -----------------------------------------------------------------------------------------------------

# Old man, old woman, old child, old children: nominative, accusative, dative and genitive.
DECLENSIONS = {
    "the": """
        der alte Mann    | die alte Frau    | das alte Kind     | die alten Kinder
        den alten Mann   | die alte Frau    | das alte Kind     | die alten Kinder
        dem alten Mann   | der alten Frau   | dem alten Kind    | den alten Kindern
        des alten Mannes | der alten Frau   | des alten Kindes  | der alten Kinder""",
    "this": """
        dieser alte Mann    | diese alte Frau   | dieses alte Kind    | diese alten Kinder
        diesen alten Mann   | diese alte Frau   | dieses alte Kind    | diese alten Kinder
        diesem alten Mann   | dieser alten Frau | diesem alten Kind   | diesen alten Kindern
        dieses alten Mannes | dieser alten Frau | dieses alten Kindes | dieser alten Kinder""",
    "our": """
        unser alter Mann    | unsere alte Frau   | unser altes Kind    | unsere alten Kinder
        unseren alten Mann  | unsere alte Frau   | unser altes Kind    | unsere alten Kinder
        unserem alten Mann  | unserer alten Frau | unserem alten Kind  | unseren alten Kindern
        unseres alten Mannes | unserer alten Frau | unseres alten Kindes | unserer alten Kinder""",
    "many": """
        - | - | - | viele alte Kinder
        - | - | - | viele alte Kinder
        - | - | - | vielen alten Kindern
        - | - | - | vieler alter Kinder""",
    "": """
        alter Mann   | alte Frau  | altes Kind   | alte Kinder
        alten Mann   | alte Frau  | altes Kind   | alte Kinder
        altem Mann   | alter Frau | altem Kind   | alten Kindern
        alten Mannes | alter Frau | alten Kindes | alter Kinder""",
}


@pytest.mark.parametrize("determiner", DECLENSIONS)
def test_noun_phrases_decline(determiner: str) -> None:
    rows = [[cell.strip() for cell in row.split("|")] for row in DECLENSIONS[determiner].strip().split("\n")]
    for column, words in enumerate(("old man", "old woman", "old child", "old children")):
        phrase = np(determiner, words)
        nominative, accusative, dative, genitive = (row[column] for row in rows)
        if nominative == "-":
            continue
        verb = "schlafen" if phrase.plural else "schläft"
        realised = [
            german(Sentence("statement", clause))[0].removesuffix(".")
            for clause in (
                says(phrase, "schlafen"),
                says(ME, "sehen", direct=phrase),
                says(ME, "helfen", indirect=phrase),
                says(ME, "sehen", direct=np("", "dog", possessor=phrase)),
            )
        ]
        expected = [f"{nominative} {verb}", f"Ich sehe {accusative}", f"Ich helfe {dative}"]
        assert [realised[0].lower(), *realised[1:3]] == [expected[0].lower(), *expected[1:]]
        assert realised[3] == f"Ich sehe den Hund {genitive}"


def test_weak_nouns_and_adjectives_that_lose_an_e() -> None:
    assert to_german(says(ME, "sehen", direct=np("a", "boy"))) == "Ich sehe einen Jungen."
    assert to_german(says(ME, "helfen", indirect=np("the", "students"))) == "Ich helfe den Studenten."
    assert to_german(says(ME, "kaufen", direct=np("a", "expensive car"))) == "Ich kaufe ein teures Auto."
    assert to_german(says(ME, "sehen", direct=np("the", "dark forest"))) == "Ich sehe den dunklen Wald."
    assert to_german(says(ME, "sehen", direct=np("a", "tired lion"))) == "Ich sehe einen müden Löwen."


def to_german(clause: Clause) -> str:
    return german(Sentence("statement", clause))[0]


# ich, du, er, wir, sie; the command; the infinitive with zu.
CONJUGATIONS = """
kaufen: kaufe kaufst kauft kaufen kaufen | kauf | zu kaufen
arbeiten: arbeite arbeitest arbeitet arbeiten arbeiten | arbeite | zu arbeiten
aufmachen: mache machst macht machen machen | mach | aufzumachen
zeichnen: zeichne zeichnest zeichnet zeichnen zeichnen | zeichne | zu zeichnen
lernen: lerne lernst lernt lernen lernen | lern | zu lernen
tanzen: tanze tanzt tanzt tanzen tanzen | tanz | zu tanzen
reisen: reise reist reist reisen reisen | reis | zu reisen
grüßen: grüße grüßt grüßt grüßen grüßen | grüß | zu grüßen
lesen: lese liest liest lesen lesen | lies | zu lesen
essen: esse isst isst essen essen | iss | zu essen
nehmen: nehme nimmst nimmt nehmen nehmen | nimm | zu nehmen
geben: gebe gibst gibt geben geben | gib | zu geben
helfen: helfe hilfst hilft helfen helfen | hilf | zu helfen
vergessen: vergesse vergisst vergisst vergessen vergessen | vergiss | zu vergessen
schlafen: schlafe schläfst schläft schlafen schlafen | schlaf | zu schlafen
fahren: fahre fährst fährt fahren fahren | fahr | zu fahren
waschen: wasche wäschst wäscht waschen waschen | wasch | zu waschen
tragen: trage trägst trägt tragen tragen | trag | zu tragen
einladen: lade lädst lädt laden laden | lade | einzuladen
ansehen: sehe siehst sieht sehen sehen | sieh | anzusehen
anfangen: fange fängst fängt fangen fangen | fang | anzufangen
sammeln: sammle sammelst sammelt sammeln sammeln | sammle | zu sammeln
lächeln: lächle lächelst lächelt lächeln lächeln | lächle | zu lächeln
füttern: füttere fütterst füttert füttern füttern | füttere | zu füttern
wandern: wandere wanderst wandert wandern wandern | wandere | zu wandern
warten: warte wartest wartet warten warten | warte | zu warten
reparieren: repariere reparierst repariert reparieren reparieren | repariere | zu reparieren
"""


@pytest.mark.parametrize("row", CONJUGATIONS.strip().split("\n"))
def test_verbs_conjugate(row: str) -> None:
    name, forms = row.split(": ")
    verb = VERB[name]
    finite, command, infinitive = forms.split(" | ")
    persons = ("1s", "2s", "3s", "1p", "3p")
    assert [present(verb.de, verb.present_stem, person) for person in persons] == finite.split()  # type: ignore[arg-type]
    assert imperative(verb) == command
    assert infinitive_with_zu(verb) == infinitive


def test_irregular_verbs_and_modals() -> None:
    persons = ("1s", "2s", "3s", "1p", "3p")
    table = {
        "sein": ("bin bist ist sind sind", "war warst war waren waren"),
        "haben": ("habe hast hat haben haben", "hatte hattest hatte hatten hatten"),
        "werden": ("werde wirst wird werden werden", "wurde wurdest wurde wurden wurden"),
    }
    for verb, (now, then) in table.items():
        assert " ".join(present(verb, "", person) for person in persons) == now  # type: ignore[arg-type]
        assert " ".join(preterite(verb, person) for person in persons) == then  # type: ignore[arg-type]
    assert " ".join(present("wissen", "", person) for person in persons) == "weiß weißt weiß wissen wissen"  # type: ignore[arg-type]
    wants = MODAL["want to"]
    assert " ".join(modal_present(wants, person) for person in persons) == "will willst will wollen wollen"  # type: ignore[arg-type]
    assert (
        " ".join(past_ending(wants.de_past, person) for person in persons) == "wollte wolltest wollte wollten wollten"
    )  # type: ignore[arg-type]


def test_english_third_person() -> None:
    bases = ("buy", "try on", "watch television", "wash", "go", "kiss", "carry", "play", "have", "say goodbye")
    forms = [
        "buys",
        "tries on",
        "watches television",
        "washes",
        "goes",
        "kisses",
        "carries",
        "plays",
        "has",
        "says goodbye",
    ]
    assert [third_person(base) for base in bases] == forms


def test_participles_have_their_shape() -> None:
    """A participle has ge behind the separable prefix, or none where the stem's own prefix or -ieren forbids it."""
    for verb in VERBS:
        stem = verb.participle.removeprefix(verb.prefix)
        without_ge = re.match("(be|ver|er|emp|ent|zer|ge(?!h))", verb.de) or verb.de.endswith("ieren")
        assert verb.participle.startswith(verb.prefix)
        assert stem.startswith("ge") or without_ge, verb.participle
        assert stem.endswith(("t", "en")), verb.participle
