"""Lexicon: nouns and compounds.

Columns: English with any irregular plural, gender (w: weak masculine), German singular, German plural (-: none).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from nmt.grammar.entries import Fixed, Gender, Noun

_NOUNS = {
    "kin": """
        child/children n Kind Kinder, father m Vater Väter, mother f Mutter Mütter, brother m Bruder Brüder,
        sister f Schwester Schwestern, son m Sohn Söhne, daughter f Tochter Töchter, uncle m Onkel Onkel,
        aunt f Tante Tanten, friend m Freund Freunde, neighbor w Nachbar Nachbarn, guest m Gast Gäste,
        teacher m Lehrer Lehrer, student w Student Studenten, doctor m Arzt Ärzte, colleague w Kollege Kollegen""",
    "folk": """
        man/men m Mann Männer, woman/women f Frau Frauen, boy w Junge Jungen, girl n Mädchen Mädchen,
        nurse f Krankenschwester Krankenschwestern, baker m Bäcker Bäcker, gardener m Gärtner Gärtner,
        cook m Koch Köche, farmer w Bauer Bauern, painter m Maler Maler, singer m Sänger Sänger,
        pilot w Pilot Piloten, tourist w Tourist Touristen, policeman/policemen w Polizist Polizisten,
        queen f Königin Königinnen, king m König Könige, actress f Schauspielerin Schauspielerinnen""",
    "pet": """
        dog m Hund Hunde, cat f Katze Katzen, horse n Pferd Pferde, cow f Kuh Kühe, pig n Schwein Schweine,
        goose/geese f Gans Gänse, rabbit n Kaninchen Kaninchen, donkey m Esel Esel""",
    "wild": """
        bird m Vogel Vögel, mouse/mice f Maus Mäuse, wolf/wolves m Wolf Wölfe, fox m Fuchs Füchse,
        bear w Bär Bären, lion w Löwe Löwen""",
    "food": """
        apple m Apfel Äpfel, pear f Birne Birnen, lemon f Zitrone Zitronen, potato/potatoes f Kartoffel Kartoffeln,
        tomato/tomatoes f Tomate Tomaten, egg n Ei Eier, cake m Kuchen Kuchen, sausage f Wurst Würste,
        soup f Suppe Suppen, salad m Salat Salate, roll n Brötchen Brötchen, bread n Brot -, cheese m Käse -,
        meat n Fleisch -, chocolate f Schokolade -""",
    "drink": "water n Wasser -, milk f Milch -, coffee m Kaffee -, tea m Tee -, juice m Saft -, lemonade f Limonade -",
    "text": """
        book n Buch Bücher, letter m Brief Briefe, newspaper f Zeitung Zeitungen, poem n Gedicht Gedichte,
        novel m Roman Romane, report m Bericht Berichte, story f Geschichte Geschichten,
        message f Nachricht Nachrichten""",
    "clothes": """
        coat m Mantel Mäntel, shirt n Hemd Hemden, dress n Kleid Kleider, hat m Hut Hüte, jacket f Jacke Jacken,
        skirt m Rock Röcke, shoe m Schuh Schuhe, cap f Mütze Mützen""",
    "vehicle": """
        car n Auto Autos, bicycle n Fahrrad Fahrräder, bus m Bus Busse, train m Zug Züge, ship n Schiff Schiffe,
        truck m Lastwagen Lastwagen, plane n Flugzeug Flugzeuge""",
    "furniture": """
        table m Tisch Tische, chair m Stuhl Stühle, bed n Bett Betten, lamp f Lampe Lampen, sofa n Sofa Sofas,
        cupboard m Schrank Schränke, shelf/shelves n Regal Regale, bench f Bank Bänke""",
    "object": """
        knife/knives n Messer Messer, fork f Gabel Gabeln, spoon m Löffel Löffel, key m Schlüssel Schlüssel,
        bottle f Flasche Flaschen, cup f Tasse Tassen, glass n Glas Gläser, plate m Teller Teller,
        bag f Tasche Taschen, suitcase m Koffer Koffer, box f Kiste Kisten, basket m Korb Körbe,
        umbrella m Regenschirm Regenschirme, camera f Kamera Kameras, computer m Computer Computer,
        radio n Radio Radios, ball m Ball Bälle, doll f Puppe Puppen, gift n Geschenk Geschenke,
        flower f Blume Blumen, picture n Bild Bilder, clock f Uhr Uhren, vase f Vase Vasen, ring m Ring Ringe,
        blanket f Decke Decken, window n Fenster Fenster, door f Tür Türen""",
    "room": """
        house n Haus Häuser, garden m Garten Gärten, kitchen f Küche Küchen, school f Schule Schulen,
        village n Dorf Dörfer, city f Stadt Städte, shop m Laden Läden, office n Büro Büros, room n Zimmer Zimmer,
        cellar m Keller Keller""",
    "building": """
        hotel n Hotel Hotels, church f Kirche Kirchen, park m Park Parks, forest m Wald Wälder,
        museum n Museum Museen, library f Bibliothek Bibliotheken, hospital n Krankenhaus Krankenhäuser,
        castle n Schloss Schlösser, factory f Fabrik Fabriken, restaurant n Restaurant Restaurants""",
    "shore": """
        station m Bahnhof Bahnhöfe, airport m Flughafen Flughäfen, lake m See Seen, river m Fluss Flüsse,
        beach m Strand Strände""",
    "ground": "bridge f Brücke Brücken, island f Insel Inseln, mountain m Berg Berge, street f Straße Straßen",
    "thought": """
        question f Frage Fragen, answer f Antwort Antworten, problem n Problem Probleme, plan m Plan Pläne,
        idea f Idee Ideen, song n Lied Lieder, game n Spiel Spiele, film m Film Filme,
        secret n Geheimnis Geheimnisse, mistake m Fehler Fehler, word n Wort Wörter""",
    "event": """
        party f Feier Feiern, concert n Konzert Konzerte, wedding f Hochzeit Hochzeiten, trip f Reise Reisen,
        exam f Prüfung Prüfungen, meeting f Besprechung Besprechungen""",
}
_GROUPS = {
    "person": ("kin", "folk"),
    "animal": ("pet", "wild"),
    "place": ("room", "building", "shore", "ground"),
    "any": tuple(_NOUNS),
}

# First parts of compounds in both languages, and their heads.
_COMPOUNDS = {
    "kitchen Küchen, office Büro": "table chair cupboard shelf lamp door window clock",
    "garden Garten": "table chair bench lamp door flower",
    "school Schul, hotel Hotel, museum Museums, castle Schloss":
        "garden door window key clock concert party gardener cook doctor",
    "church Kirchen": "garden door window key clock concert",
    "village Dorf, city Stadt": "church school library museum hotel park street party baker doctor dog",
    "family Familien": "party trip picture dog doctor car",
}  # fmt: skip


def _parse(kind: str, entries: str) -> Iterator[Noun]:
    for entry in entries.split(","):
        en, gender, de, de_plural = entry.split()
        en, _, en_plural = en.partition("/")
        yield Noun(
            en=en,
            en_plural="" if de_plural == "-" else en_plural or _plural(en),
            gender=cast(Gender, "m" if gender == "w" else gender),
            weak=gender == "w",
            de=de,
            de_plural=de_plural.replace("-", ""),
            kind=kind,
        )


def _plural(english: str) -> str:
    """Return the regular plural."""
    if english.endswith(("s", "x", "ch", "sh")):
        return english + "es"
    if english.endswith("y") and english[-2] not in "aeiou":
        return english[:-1] + "ies"
    return english + "s"


NOUNS = tuple(noun for kind, entries in _NOUNS.items() for noun in _parse(kind, entries))
NOUN = {noun.en: noun for noun in NOUNS}
EURO = Noun("euro", "euros", "m", False, "Euro", "Euro", "unit")


def nouns(selection: str) -> tuple[Noun, ...]:
    """Select nouns by a space-separated list of kinds, groups and English nouns; `-noun` excludes one."""
    selected: dict[Noun, None] = {}
    for word in selection.split():
        if word.startswith("-"):
            del selected[NOUN[word[1:]]]
        elif word in NOUN:
            selected[NOUN[word]] = None
        else:
            members = [noun for noun in NOUNS if noun.kind in _GROUPS.get(word, (word,))]
            assert members, f"{word!r} is neither a noun nor a kind of noun"
            selected |= dict.fromkeys(members)
    return tuple(selected)


def _compounds() -> dict[Noun, tuple[Fixed, ...]]:
    compounds: dict[Noun, list[Fixed]] = {}
    for modifiers, heads in _COMPOUNDS.items():
        for noun in nouns(heads):
            compounds.setdefault(noun, []).extend(Fixed(*modifier.split()) for modifier in modifiers.split(","))
    return {noun: tuple(modifiers) for noun, modifiers in compounds.items()}


COMPOUNDS = _compounds()
"""First parts of compounds by their head: kitchen table, Küchentisch."""
