"""The words around nouns and verbs: adjectives, adverbs, names, units and prepositions."""

from __future__ import annotations

from nmt.data.embedded.entries import Adjective, Adverbial, Preposition, Unit
from nmt.data.embedded.nouns import nouns

# English degrees | German degrees (the superlative without its ending) | its nouns, and whether the quality passes.
# A dash where there is no degree; a plus for more and most. An indented line continues the one before.
_ADJECTIVES = """
big bigger biggest | groß größer größt |
    animal food clothes vehicle furniture object place -mouse -bread -cheese -meat -chocolate -rice
small smaller smallest | klein kleiner kleinst |
    child boy girl baby animal food clothes vehicle furniture object place mistake -mountain -bread -cheese
    -meat -chocolate -rice
old older oldest | alt älter ältest |
    person animal text clothes vehicle furniture object house church castle bridge city hotel school -baby
    -child -boy -girl
young younger youngest | jung jünger jüngst | person animal -baby -child -boy -girl
new newer newest | neu neuer neuest | text clothes vehicle furniture object thought
beautiful + + | schön schöner schönst | clothes vehicle furniture object place event animal
ugly uglier ugliest | hässlich hässlicher hässlichst |
    clothes vehicle furniture house church hotel factory station vase picture bridge
good better best | gut besser best | food drink text thought event
bad worse worst | schlecht schlechter schlechtest | food text thought
long longer longest | lang länger längst | text clothes event street river -shoe -hat -cap
short shorter shortest | kurz kürzer kürzest | text clothes event street -shoe -hat -cap
expensive + + | teuer teurer teuerst | food drink clothes vehicle furniture object
cheap cheaper cheapest | billig billiger billigst | food drink clothes vehicle furniture object
fresh fresher freshest | frisch frischer frischest | food passing
cold colder coldest | kalt kälter kältest | drink soup room lake river cellar kitchen passing
warm warmer warmest | warm wärmer wärmst | drink clothes soup blanket room kitchen lake passing
sweet sweeter sweetest | süß süßer süßest | food drink
delicious - - | köstlich - - | food drink
heavy heavier heaviest | schwer schwerer schwerst | furniture object
strong stronger strongest | stark stärker stärkst | person animal -baby
weak weaker weakest | schwach schwächer schwächst | person animal
fast faster fastest | schnell schneller schnellst | vehicle animal
slow slower slowest | langsam langsamer langsamst | vehicle animal
happy happier happiest | glücklich glücklicher glücklichst | person passing
sad sadder saddest | traurig trauriger traurigst | person text song passing
tired - - | müde - - | person animal passing
sick - - | krank - - | person animal passing
healthy healthier healthiest | gesund gesünder gesündest | person animal passing
hungry hungrier hungriest | hungrig hungriger hungrigst | person animal passing
friendly friendlier friendliest | freundlich freundlicher freundlichst | person passing
famous + + | berühmt berühmter berühmtest |
    person city castle church museum bridge hotel restaurant island mountain book novel poem song film -baby
rich richer richest | reich reicher reichst | person -baby
poor poorer poorest | arm ärmer ärmst | person
clever cleverer cleverest | klug klüger klügst | person animal idea answer -baby
brave braver bravest | mutig mutiger mutigst | person animal -baby
quiet quieter quietest | ruhig ruhiger ruhigst |
    person village street garden park church library hotel room lake beach island passing
interesting + + | interessant interessanter interessantest |
    text thought museum city castle village shop island church
boring + + | langweilig langweiliger langweiligst | text event film game
important + + | wichtig wichtiger wichtigst | text event thought
difficult + + | schwierig schwieriger schwierigst | thought exam
strange stranger strangest | seltsam seltsamer seltsamst | person text thought
dark darker darkest | dunkel dunkler dunkelst | forest cellar room street church clothes
dirty dirtier dirtiest | schmutzig schmutziger schmutzigst | clothes vehicle furniture object passing
empty - - | leer - - |
    bottle cup glass plate bag suitcase box basket cupboard house bus train church restaurant street passing
full - - | voll - - | bottle cup glass plate bag suitcase box basket cupboard bus train restaurant hotel passing
damaged - - | beschädigt - - | vehicle furniture object passing
red - - | rot - - | clothes vehicle furniture flower ball apple umbrella
blue - - | blau - - | clothes vehicle furniture bird vase ball door
green - - | grün - - | clothes vehicle furniture apple bottle door
white - - | weiß - - | clothes vehicle furniture cat horse house goose
black - - | schwarz - - | clothes vehicle furniture cat dog horse umbrella
"""

_MANNERS = """
slowly langsam
quickly schnell
quietly leise
happily fröhlich
carefully vorsichtig
patiently geduldig
secretly heimlich
alone allein
"""

_FREQUENCIES = """
always immer
often oft
usually meistens
sometimes manchmal
rarely selten
never nie
"""

NAMES = (
    *("Anna", "Peter", "Maria", "Paul", "Lena", "Martin", "Julia", "David", "Laura", "Simon", "Clara", "Emma", "Leon"),
    *("Lisa", "Daniel", "Sophie", "Karl", "Eva", "Robert", "Nina", "Stefan", "Sarah", "Michael", "Hanna"),
)
"""First names that both languages share; none ends in an s, so that the German genitive is always a plain s."""

_TOWNS = """
Berlin Berlin
Hamburg Hamburg
Munich München
Vienna Wien
Cologne Köln
Paris Paris
London London
Rome Rom
Prague Prag
Warsaw Warschau
Germany Deutschland
Austria Österreich
France Frankreich
Italy Italien
"""


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    rows = (line.split() for line in table.strip().split("\n"))
    return tuple((en, de) for en, de in rows)


def _adjective(row: str) -> Adjective:
    english, german, described = (column.split() for column in row.split("|"))
    en, en_comparative, en_superlative = ("" if word == "-" else word for word in english)
    if en_comparative == "+":
        en_comparative, en_superlative = f"more {en}", f"most {en}"
    passing = described[-1] == "passing"
    de, de_comparative, de_superlative = ("" if word == "-" else word for word in german)
    return Adjective(
        en=en,
        en_comparative=en_comparative,
        en_superlative=en_superlative,
        de=de,
        de_comparative=de_comparative,
        de_superlative=de_superlative,
        nouns=frozenset(nouns(" ".join(described).removesuffix("passing"))),
        passing=passing,
    )


ADJECTIVES = tuple(_adjective(row) for row in _ADJECTIVES.replace("\n    ", " ").splitlines() if row)
MANNERS = tuple(Adverbial(en, de) for en, de in _pairs(_MANNERS))
FREQUENCIES = tuple(Adverbial(en, de, ("negation",) if en == "never" else ()) for en, de in _pairs(_FREQUENCIES))
TOWNS = dict(_pairs(_TOWNS))
"""Towns and countries without an article, English to German."""

HERE_AND_THERE = (Adverbial("here", "hier"), Adverbial("there", "dort"), Adverbial("outside", "draußen"))
AT_HOME = Adverbial("at home", "zu Hause")
HOME = Adverbial("home", "nach Hause")

BY_VEHICLE = tuple(
    Adverbial(*pair)
    for pair in (
        ("by bus", "mit dem Bus"),
        ("by train", "mit dem Zug"),
        ("by car", "mit dem Auto"),
        ("by taxi", "mit dem Taxi"),
    )
)

# Two-way prepositions: dative where something is, accusative where it is put or goes.
ON = Preposition("on", "auf", two_way=True)
UNDER = Preposition("under", "unter", two_way=True)
NEXT_TO = Preposition("next to", "neben", two_way=True)
BEHIND = Preposition("behind", "hinter", two_way=True)
IN_FRONT_OF = Preposition("in front of", "vor", two_way=True)
ABOVE = Preposition("above", "über", two_way=True)
INTO = Preposition("into", "in", two_way=True)
# Prepositions of one case.
TO = Preposition("to", "zu", case="dat")
WITH = Preposition("with", "mit", case="dat")
WITHOUT = Preposition("without", "ohne", case="acc")
FOR = Preposition("for", "für", case="acc")

EUROS = Unit("euros", "Euro")
KILOS = Unit("kilos", "Kilo")
METERS = Unit("meters", "Meter")
YEARS = Unit("years", "Jahre")
