"""Lexicon: adjectives, adverbs, names, towns and time expressions."""

from __future__ import annotations

from nmt.grammar.entries import Adjective, Fixed
from nmt.grammar.nouns import nouns

_ADJECTIVES = {
    "person": "happy=glücklich, sad=traurig, friendly=freundlich, rich=reich, poor=arm, strange=seltsam",
    "person animal": """
        tired=müde, sick=krank, healthy=gesund, hungry=hungrig, clever=klug, brave=mutig, strong=stark, young=jung""",
    "person animal clothes vehicle furniture object place text -child -boy -girl": "old=alt",
    "text clothes vehicle furniture object thought": "new=neu",
    "animal clothes vehicle furniture object place": "big=groß, small=klein",
    "clothes vehicle furniture object house church hotel bridge": "beautiful=schön, ugly=hässlich",
    "clothes vehicle furniture flower ball umbrella door": "red=rot, blue=blau, green=grün, white=weiß, black=schwarz",
    "clothes vehicle furniture object food drink": "expensive=teuer, cheap=billig",
    "food drink text thought event": "good=gut, bad=schlecht",
    "food drink": "fresh=frisch",
    "drink soup room office kitchen cellar lake": "cold=kalt, warm=warm",
    "text event street river": "long=lang, short=kurz",
    "text thought museum city castle village event": "interesting=interessant, important=wichtig",
    "forest cellar room street church": "dark=dunkel",
    "bottle cup glass bag suitcase box basket cupboard bus train": "empty=leer, full=voll",
    "person city castle church museum bridge hotel island book novel poem song film": "famous=berühmt",
    "question problem game word exam": "difficult=schwierig",
}

_NAMES = "Anna Peter Maria Paul Lena Martin Julia David Laura Simon Clara Emma Leon Lisa Daniel Karl"
NAMES = tuple(_NAMES.split())
"""First names used in both languages; none ends in s, so the German genitive always adds s."""

_TOWNS = """
    Berlin=Berlin, Hamburg=Hamburg, Munich=München, Vienna=Wien, Cologne=Köln, Paris=Paris, London=London, Rome=Rom,
    Prague=Prag, Warsaw=Warschau, Germany=Deutschland, Austria=Österreich, France=Frankreich, Italy=Italien"""

_MANNERS = """
    slowly=langsam, quickly=schnell, quietly=leise, happily=fröhlich, carefully=vorsichtig, patiently=geduldig,
    secretly=heimlich, alone=allein"""
_FREQUENCIES = "always=immer, often=oft, usually=meistens, sometimes=manchmal, rarely=selten, never=nie"

_WEEKDAYS = """
    Monday=Montag, Tuesday=Dienstag, Wednesday=Mittwoch, Thursday=Donnerstag, Friday=Freitag, Saturday=Samstag,
    Sunday=Sonntag"""
_MONTHS = """
    January=Januar, February=Februar, March=März, April=April, May=Mai, June=Juni, July=Juli, August=August,
    September=September, October=Oktober, November=November, December=Dezember"""
_PAST = "yesterday=gestern, last week=letzte Woche, last year=letztes Jahr, yesterday evening=gestern Abend"
_PRESENT = "today=heute, now=jetzt"
_HABITS = "every day=jeden Tag, every week=jede Woche, in the morning=am Morgen, in the evening=am Abend"
_FUTURE = "tomorrow=morgen, soon=bald, next week=nächste Woche, next year=nächstes Jahr, tomorrow evening=morgen Abend"


def _pairs(table: str) -> list[tuple[str, str]]:
    rows = (entry.strip().split("=") for entry in table.split(","))
    return [(en, de) for en, de in rows]


def _fixed(table: str) -> tuple[Fixed, ...]:
    return tuple(Fixed(en, de) for en, de in _pairs(table))


ADJECTIVES = tuple(
    Adjective(en, de, frozenset(nouns(selection)))
    for selection, adjectives in _ADJECTIVES.items()
    for en, de in _pairs(adjectives)
)
MANNERS = _fixed(_MANNERS)
FREQUENCIES = _fixed(_FREQUENCIES)
TOWNS, WEEKDAYS, MONTHS = _pairs(_TOWNS), _pairs(_WEEKDAYS), _pairs(_MONTHS)
HERE_AND_THERE = (Fixed("here", "hier"), Fixed("there", "dort"), Fixed("at home", "zu Hause"))
HOME = Fixed("home", "nach Hause")

PAST_TIMES = _fixed(_PAST) + tuple(Fixed(f"last {en}", f"letzten {de}", "dates") for en, de in WEEKDAYS)
PRESENT_TIMES = _fixed(_PRESENT)
HABITS = _fixed(_HABITS) + tuple(Fixed(f"every {en}", f"jeden {de}", "dates") for en, de in WEEKDAYS)
FUTURE_TIMES = _fixed(_FUTURE) + tuple(Fixed(f"next {en}", f"nächsten {de}", "dates") for en, de in WEEKDAYS)

WHEN, WHY = Fixed("when", "wann"), Fixed("why", "warum")
WHERE, WHERE_TO = Fixed("where", "wo"), Fixed("where", "wohin")
