"""The nouns: English singular and plural, German gender, nominative, genitive and plural.

A dash stands for a plural that does not exist. A heading names the kind; for places, the prepositions of being there;
and `unowned` for what one does not call mine and thine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_args

from nmt.data.embedded.entries import Gender, Kind, Noun

_TABLE = """
[person]
child children          n Kind Kindes Kinder
baby babies             n Baby Babys Babys
father fathers          m Vater Vaters Väter
mother mothers          f Mutter Mutter Mütter
brother brothers        m Bruder Bruders Brüder
sister sisters          f Schwester Schwester Schwestern
son sons                m Sohn Sohnes Söhne
daughter daughters      f Tochter Tochter Töchter
uncle uncles            m Onkel Onkels Onkel
aunt aunts              f Tante Tante Tanten
friend friends          m Freund Freundes Freunde
neighbor neighbors      m Nachbar Nachbarn Nachbarn
guest guests            m Gast Gastes Gäste
teacher teachers        m Lehrer Lehrers Lehrer
student students        m Student Studenten Studenten
doctor doctors          m Arzt Arztes Ärzte
gardener gardeners      m Gärtner Gärtners Gärtner
lawyer lawyers          m Anwalt Anwalts Anwälte
colleague colleagues    m Kollege Kollegen Kollegen

[person unowned]
man men                 m Mann Mannes Männer
woman women             f Frau Frau Frauen
boy boys                m Junge Jungen Jungen
girl girls              n Mädchen Mädchens Mädchen
nurse nurses            f Krankenschwester Krankenschwester Krankenschwestern
baker bakers            m Bäcker Bäckers Bäcker
chef chefs              m Koch Kochs Köche
farmer farmers          m Bauer Bauern Bauern
painter painters        m Maler Malers Maler
singer singers          m Sänger Sängers Sänger
pilot pilots            m Pilot Piloten Piloten
policeman policemen     m Polizist Polizisten Polizisten
tourist tourists        m Tourist Touristen Touristen
actress actresses       f Schauspielerin Schauspielerin Schauspielerinnen
waitress waitresses     f Kellnerin Kellnerin Kellnerinnen
queen queens            f Königin Königin Königinnen
king kings              m König Königs Könige

[animal]
dog dogs                m Hund Hundes Hunde
cat cats                f Katze Katze Katzen
horse horses            n Pferd Pferdes Pferde
cow cows                f Kuh Kuh Kühe
pig pigs                n Schwein Schweins Schweine
duck ducks              f Ente Ente Enten
goose geese             f Gans Gans Gänse
rabbit rabbits          n Kaninchen Kaninchens Kaninchen
donkey donkeys          m Esel Esels Esel

[animal unowned]
bird birds              m Vogel Vogels Vögel
mouse mice              f Maus Maus Mäuse
wolf wolves             m Wolf Wolfs Wölfe
fox foxes               m Fuchs Fuchses Füchse
bear bears              m Bär Bären Bären
lion lions              m Löwe Löwen Löwen

[food]
apple apples            m Apfel Apfels Äpfel
pear pears              f Birne Birne Birnen
lemon lemons            f Zitrone Zitrone Zitronen
strawberry strawberries f Erdbeere Erdbeere Erdbeeren
potato potatoes         f Kartoffel Kartoffel Kartoffeln
tomato tomatoes         f Tomate Tomate Tomaten
carrot carrots          f Karotte Karotte Karotten
egg eggs                n Ei Eies Eier
cake cakes              m Kuchen Kuchens Kuchen
cookie cookies          m Keks Kekses Kekse
sausage sausages        f Wurst Wurst Würste
roll rolls              n Brötchen Brötchens Brötchen
soup soups              f Suppe Suppe Suppen
salad salads            m Salat Salats Salate
bread -                 n Brot Brotes -
cheese -                m Käse Käses -
meat -                  n Fleisch Fleisches -
chocolate -             f Schokolade Schokolade -
rice -                  m Reis Reises -

[drink]
water -                 n Wasser Wassers -
milk -                  f Milch Milch -
coffee -                m Kaffee Kaffees -
tea -                   m Tee Tees -
juice -                 m Saft Saftes -
lemonade -              f Limonade Limonade -

[text]
book books              n Buch Buches Bücher
letter letters          m Brief Briefes Briefe
newspaper newspapers    f Zeitung Zeitung Zeitungen
magazine magazines      f Zeitschrift Zeitschrift Zeitschriften
poem poems              n Gedicht Gedichtes Gedichte
novel novels            m Roman Romans Romane
report reports          m Bericht Berichtes Berichte
story stories           f Geschichte Geschichte Geschichten
message messages        f Nachricht Nachricht Nachrichten
article articles        m Artikel Artikels Artikel

[clothes]
coat coats              m Mantel Mantels Mäntel
shirt shirts            n Hemd Hemdes Hemden
dress dresses           n Kleid Kleides Kleider
hat hats                m Hut Hutes Hüte
jacket jackets          f Jacke Jacke Jacken
skirt skirts            m Rock Rockes Röcke
sweater sweaters        m Pullover Pullovers Pullover
shoe shoes              m Schuh Schuhes Schuhe
cap caps                f Mütze Mütze Mützen
blouse blouses          f Bluse Bluse Blusen

[vehicle]
car cars                n Auto Autos Autos
bicycle bicycles        n Fahrrad Fahrrades Fahrräder
bus buses               m Bus Busses Busse
train trains            m Zug Zuges Züge
ship ships              n Schiff Schiffes Schiffe
truck trucks            m Lastwagen Lastwagens Lastwagen
plane planes            n Flugzeug Flugzeuges Flugzeuge
taxi taxis              n Taxi Taxis Taxis
tram trams              f Straßenbahn Straßenbahn Straßenbahnen

[furniture]
table tables            m Tisch Tisches Tische
chair chairs            m Stuhl Stuhles Stühle
bed beds                n Bett Bettes Betten
lamp lamps              f Lampe Lampe Lampen
sofa sofas              n Sofa Sofas Sofas
cupboard cupboards      m Schrank Schrankes Schränke
shelf shelves           n Regal Regals Regale
armchair armchairs      m Sessel Sessels Sessel
bench benches           f Bank Bank Bänke
desk desks              m Schreibtisch Schreibtisches Schreibtische

[object]
knife knives            n Messer Messers Messer
fork forks              f Gabel Gabel Gabeln
spoon spoons            m Löffel Löffels Löffel
key keys                m Schlüssel Schlüssels Schlüssel
bottle bottles          f Flasche Flasche Flaschen
cup cups                f Tasse Tasse Tassen
glass glasses           n Glas Glases Gläser
plate plates            m Teller Tellers Teller
bag bags                f Tasche Tasche Taschen
suitcase suitcases      m Koffer Koffers Koffer
box boxes               f Kiste Kiste Kisten
basket baskets          m Korb Korbes Körbe
umbrella umbrellas      m Regenschirm Regenschirms Regenschirme
camera cameras          f Kamera Kamera Kameras
phone phones            n Telefon Telefons Telefone
computer computers      m Computer Computers Computer
radio radios            n Radio Radios Radios
ball balls              m Ball Balles Bälle
doll dolls              f Puppe Puppe Puppen
gift gifts              n Geschenk Geschenkes Geschenke
flower flowers          f Blume Blume Blumen
picture pictures        n Bild Bildes Bilder
clock clocks            f Uhr Uhr Uhren
vase vases              f Vase Vase Vasen
candle candles          f Kerze Kerze Kerzen
ring rings              m Ring Ringes Ringe
blanket blankets        f Decke Decke Decken
window windows          n Fenster Fensters Fenster
door doors              f Tür Tür Türen

[place in/in]
house houses            n Haus Hauses Häuser
garden gardens          m Garten Gartens Gärten
kitchen kitchens        f Küche Küche Küchen
school schools          f Schule Schule Schulen
village villages        n Dorf Dorfes Dörfer
city cities             f Stadt Stadt Städte
shop shops              m Laden Ladens Läden
hotel hotels            n Hotel Hotels Hotels
office offices          n Büro Büros Büros
room rooms              n Zimmer Zimmers Zimmer
cellar cellars          m Keller Kellers Keller

[place in/in unowned]
church churches         f Kirche Kirche Kirchen
park parks              m Park Parks Parks
forest forests          m Wald Waldes Wälder
restaurant restaurants  n Restaurant Restaurants Restaurants
museum museums          n Museum Museums Museen
library libraries       f Bibliothek Bibliothek Bibliotheken
hospital hospitals      n Krankenhaus Krankenhauses Krankenhäuser
castle castles          n Schloss Schlosses Schlösser
factory factories       f Fabrik Fabrik Fabriken

[place at/an unowned]
station stations        m Bahnhof Bahnhofs Bahnhöfe
airport airports        m Flughafen Flughafens Flughäfen
lake lakes              m See Sees Seen
river rivers            m Fluss Flusses Flüsse
beach beaches           m Strand Strandes Strände

[place on/auf unowned]
bridge bridges          f Brücke Brücke Brücken
island islands          f Insel Insel Inseln
mountain mountains      m Berg Berges Berge
street streets          f Straße Straße Straßen

[place at/auf unowned]
market markets          m Markt Marktes Märkte

[thought]
question questions      f Frage Frage Fragen
answer answers          f Antwort Antwort Antworten
problem problems        n Problem Problems Probleme
plan plans              m Plan Plans Pläne
idea ideas              f Idee Idee Ideen
song songs              n Lied Liedes Lieder
game games              n Spiel Spieles Spiele
film films              m Film Films Filme
secret secrets          n Geheimnis Geheimnisses Geheimnisse
mistake mistakes        m Fehler Fehlers Fehler
word words              n Wort Wortes Wörter

[event]
party parties           f Feier Feier Feiern
concert concerts        n Konzert Konzertes Konzerte
wedding weddings        f Hochzeit Hochzeit Hochzeiten
trip trips              f Reise Reise Reisen
exam exams              f Prüfung Prüfung Prüfungen
meeting meetings        f Besprechung Besprechung Besprechungen
"""


def _parse(table: str) -> Iterator[Noun]:
    kind, owned, preposition = "", True, ("in", "in")
    for line in filter(None, table.splitlines()):
        if line.startswith("["):
            kind, *rest = line.strip("[]").split()
            assert kind in get_args(Kind), f"unknown kind {kind!r}"
            owned = "unowned" not in rest
            if "/" in line:
                en_preposition, _, de_preposition = rest[0].partition("/")
                preposition = (en_preposition, de_preposition)
            continue
        en, en_plural, gender, de, genitive, de_plural = line.split()
        yield Noun(
            en=en,
            en_plural=en_plural.replace("-", ""),
            gender=cast(Gender, gender),
            de=de,
            de_genitive=genitive,
            de_plural=de_plural.replace("-", ""),
            kind=cast(Kind, kind),
            owned=owned,
            preposition=preposition,
        )


NOUNS = tuple(_parse(_TABLE))
NOUN = {noun.en: noun for noun in NOUNS}


def nouns(wanted: str) -> tuple[Noun, ...]:
    """The nouns of a list of kinds and single English nouns, separated by blanks; a minus takes a noun out again."""
    chosen: dict[Noun, None] = {}
    for word in wanted.split():
        if word in get_args(Kind):
            chosen |= {noun: None for noun in NOUNS if noun.kind == word}
        elif word.startswith("-"):
            del chosen[NOUN[word[1:]]]
        else:
            chosen[NOUN[word]] = None
    return tuple(chosen)
