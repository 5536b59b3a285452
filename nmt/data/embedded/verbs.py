"""The verbs: principal parts in English and German, what sentences each makes, and who does it to what.

Columns: English base, past, participle and -ing with its particle and preposition | German infinitive (a hyphen behind
a separable prefix, a slash before the changed stem of du and er), participle, sein where it is not haben, the object's
preposition with its case | frames and traits | subjects | objects. An indented line continues the one before.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from nmt.data.embedded.entries import Case, Frame, Modal, Trait, Verb
from nmt.data.embedded.nouns import nouns

_TABLE = """
sleep slept slept sleeping | schlafen/schläf geschlafen | bare private | person animal |
work worked worked working | arbeiten gearbeitet | bare manner | person -baby |
laugh laughed laughed laughing | lachen gelacht | bare manner | person |
smile smiled smiled smiling | lächeln gelächelt | bare | person |
cry cried cried crying | weinen geweint | bare | person |
sing sang sung singing | singen gesungen | bare acc manner | person -baby | song
dance danced danced dancing | tanzen getanzt | bare manner | person -baby bear |
play played played playing | spielen gespielt | bare manner |
    child boy girl baby dog cat son daughter brother sister |
swim swam swum swimming | schwimmen geschwommen sein | bare manner | person -baby duck goose dog |
rest rested rested resting | sich aus-ruhen ausgeruht | bare | person |
hurry hurried hurried hurrying | sich beeilen beeilt | bare | person -baby |
get got got getting up | auf-stehen aufgestanden sein | bare manner private | person |
fall fell fallen falling asleep | ein-schlafen/schläf eingeschlafen sein | bare private | person animal |
wake woke woken waking up | auf-wachen aufgewacht sein | bare private | person animal |
arrive arrived arrived arriving | an-kommen angekommen sein | bare | person vehicle -bicycle letter message gift |
depart departed departed departing | ab-fahren/fähr abgefahren sein | bare |
    bus train ship truck taxi tram tourist guest |
come came come coming back | zurück-kommen zurückgekommen sein | bare | person dog cat bird ship |
shop shopped shopped shopping | ein-kaufen eingekauft | bare manner | person -baby |
watch watched watched watching television | fern-sehen/sieh ferngesehen | bare | person -baby |
rain rained rained raining | regnen geregnet | weather |  |
snow snowed snowed snowing | schneien geschneit | weather |  |

buy bought bought buying | kaufen gekauft | acc benefit manner | person -baby |
    food drink text clothes vehicle furniture object
sell sold sold selling | verkaufen verkauft | acc | person -baby |
    food drink vehicle furniture clothes object animal
see saw seen seeing | sehen/sieh gesehen | acc that stative | person animal |
    person animal vehicle place picture film ring
love loved loved loving | lieben geliebt | acc stative | person |
    person animal chocolate coffee cake cheese song game film
know knew known knowing | kennen gekannt | acc stative | person -baby |
    person place song game secret story poem film
know knew known knowing | wissen gewusst | that whether stative | person -baby |
look looked looked looking for | suchen gesucht | acc no-passive | person animal |
    person animal object clothes hotel
find found found finding | finden gefunden | acc stative | person dog cat |
    object clothes text animal mistake answer bread
eat ate eaten eating | essen/iss gegessen | acc manner | person | food
drink drank drunk drinking | trinken getrunken | acc manner | person | drink
read read read reading | lesen/lies gelesen | acc manner | person -baby | text
write wrote written writing | schreiben geschrieben | acc benefit manner | person -baby | text -newspaper -magazine song
cook cooked cooked cooking | kochen gekocht | acc benefit manner | person -baby |
    soup potato egg rice meat tea coffee carrot
bake baked baked baking | backen gebacken | acc benefit | person -baby | cake cookie bread roll
cut cut cut cutting | schneiden geschnitten | acc manner | person -baby |
    bread cake cheese meat apple sausage tomato lemon
taste tasted tasted tasting | probieren probiert | acc manner | person | food drink
order ordered ordered ordering | bestellen bestellt | acc benefit | person -baby | food drink -egg -carrot -potato
wash washed washed washing | waschen/wäsch gewaschen | acc manner | person -baby |
    clothes car dog horse apple carrot blanket
repair repaired repaired repairing | reparieren repariert | acc manner | person -baby |
    vehicle table chair lamp radio computer clock camera door window
build built built building | bauen gebaut | acc benefit | person -baby |
    house school church castle bridge ship hotel factory shelf
paint painted painted painting | malen gemalt | acc benefit manner | person -baby |
    picture flower horse castle bridge bird mountain
draw drew drawn drawing | zeichnen gezeichnet | acc benefit manner | person -baby |
    dog house cat ship island church lion
carry carried carried carrying | tragen/träg getragen | acc manner | person -baby donkey |
    suitcase box basket bag chair bottle baby table
take took taken taking | nehmen/nimm genommen | acc | person | object text clothes bus train taxi
forget forgot forgotten forgetting | vergessen/vergiss vergessen | acc that to | person -baby |
    object clothes text word answer
lose lost lost losing | verlieren verloren | acc | person -baby |
    key ring bag umbrella phone ball letter hat game shoe
visit visited visited visiting | besuchen besucht | acc | person -baby |
    person museum castle city church village island library
meet met met meeting | treffen/triff getroffen | acc | person | person
hear heard heard hearing | hören gehört | acc that stative | person animal |
    song story message radio question train bird
ask asked asked asking | fragen gefragt | acc whether | person -baby | person -baby
understand understood understood understanding | verstehen verstanden | acc stative | person -baby |
    question answer problem plan idea film poem word
need needed needed needing | brauchen gebraucht | acc stative no-passive | person |
    object clothes furniture vehicle doctor friend plan
check checked checked checking | prüfen geprüft | acc whether manner | person -baby |
    letter report answer plan car truck word
clean cleaned cleaned cleaning | putzen geputzt | acc manner | person -baby |
    window kitchen shoe room office table lamp
steal stole stolen stealing | stehlen/stiehl gestohlen | acc | man boy fox dog tourist guest |
    sausage ring bicycle car bag camera cake chocolate
hide hid hidden hiding | verstecken versteckt | acc | person -baby |
    gift letter key ring chocolate ball doll picture
greet greeted greeted greeting | grüßen gegrüßt | acc manner | person -baby | person
praise praised praised praising | loben gelobt | acc | person -baby | person soup plan cake song dog
catch caught caught catching | fangen/fäng gefangen | acc | person cat dog wolf bear | mouse ball bird rabbit goose
feed fed fed feeding | füttern gefüttert | acc manner | person -baby | animal baby
break broke broken breaking | zerbrechen/zerbrich zerbrochen | acc | person cat dog |
    glass cup plate vase bottle lamp
collect collected collected collecting | sammeln gesammelt | acc | person -baby |
    picture ring doll clock book letter
save saved saved saving | retten gerettet | acc | person | person animal ship village
wake woke woken waking | wecken geweckt | acc manner | person dog cat bird | person -baby
describe described described describing | beschreiben beschrieben | acc manner | person -baby |
    picture house problem idea plan man woman
learn learned learned learning | lernen gelernt | acc | person -baby | word song poem game

call called called calling | an-rufen angerufen | acc | person -baby | person -baby
invite invited invited inviting | ein-laden/läd eingeladen | acc | person -baby | person
pick picked picked picking up | ab-holen abgeholt | acc no-pronoun | person -baby | person letter gift
open opened opened opening | auf-machen aufgemacht | acc manner | person -baby |
    door window box bottle letter suitcase gift cupboard
close closed closed closing | zu-machen zugemacht | acc manner | person -baby |
    door window box bottle suitcase book cupboard shop
bring brought brought bringing along | mit-bringen mitgebracht | acc benefit no-pronoun | person -baby |
    cake juice gift flower dog friend blanket
prepare prepared prepared preparing | vor-bereiten vorbereitet | acc manner | person -baby | event
throw threw thrown throwing away | weg-werfen/wirf weggeworfen | acc | person -baby |
    newspaper letter shoe box egg bottle meat flower
turn turned turned turning on | ein-schalten eingeschaltet | acc | person -baby | lamp radio computer phone camera
turn turned turned turning off | aus-schalten ausgeschaltet | acc | person -baby | lamp radio computer phone camera
put put put putting on | an-ziehen angezogen | acc no-passive | person -baby |
    coat shirt dress jacket skirt sweater shoe blouse
try tried tried trying on | an-probieren anprobiert | acc no-passive | person -baby | clothes ring
tidy tidied tidied tidying up | auf-räumen aufgeräumt | acc | person -baby |
    kitchen room office cellar cupboard desk
look looked looked looking at | an-sehen/sieh angesehen | acc manner no-passive | person animal |
    person animal picture film house clock flower castle
unpack unpacked unpacked unpacking | aus-packen ausgepackt | acc manner | person -baby |
    suitcase gift bag box basket

help helped helped helping | helfen/hilf geholfen | dat | person | person animal
thank thanked thanked thanking | danken gedankt | dat manner | person -baby | person
follow followed followed following | folgen gefolgt sein | dat | person animal car taxi | person animal truck
trust trusted trusted trusting | vertrauen vertraut | dat stative | person animal | person
answer answered answered answering | antworten geantwortet | dat manner | person -baby | person
believe believed believed believing | glauben geglaubt | dat that stative | person -baby | person
listen listened listened listening to | zu-hören zugehört | dat manner | person animal | person
congratulate congratulated congratulated congratulating | gratulieren gratuliert | dat | person -baby | person
belong belonged belonged belonging to | gehören gehört | dat stative |
    object vehicle animal clothes house castle shop garden | person

give gave given giving | geben/gib gegeben | give | person | food drink text clothes object
show showed shown showing | zeigen gezeigt | give | person |
    picture text house garden city animal ring mistake place
send sent sent sending | schicken geschickt | give | person -baby |
    letter message gift book report flower picture poem
bring brought brought bringing | bringen gebracht | give | person -baby dog |
    food drink newspaper book chair blanket shoe
lend lent lent lending | leihen geliehen | give | person -baby |
    book car bicycle umbrella camera knife suitcase coat
tell told told telling | erzählen erzählt | give | person -baby | story secret
explain explained explained explaining | erklären erklärt | give that manner to-only | person -baby |
    question answer problem plan idea game word mistake
recommend recommended recommended recommending | empfehlen/empfiehl empfohlen | give to-only | person -baby |
    book film hotel restaurant soup museum

wait waited waited waiting for | warten gewartet auf+acc | bare prep | person dog cat |
    person bus train taxi tram answer letter
think thought thought thinking of | denken gedacht an+acc | prep that | person | person event problem house dog
talk talked talked talking to | sprechen/sprich gesprochen mit+dat | prep manner | person -baby | person animal
dream dreamed dreamed dreaming of | träumen geträumt von+dat | bare prep private | person |
    animal trip island chocolate queen king friend
laugh laughed laughed laughing about | lachen gelacht über+acc | prep manner | person |
    story film mistake idea hat song question
remember remembered remembered remembering | sich erinnern erinnert an+acc | prep stative | person -baby |
    person word song story trip house
look looked looked looking forward to | sich freuen gefreut auf+acc | prep | person |
    event film cake gift guest book
complain complained complained complaining about | sich beschweren beschwert über+acc | prep manner | person -baby |
    person -baby soup hotel train film plan
worry worried worried worrying about | sich sorgen gesorgt um+acc | prep | person -baby | person animal
say said said saying goodbye to | sich verabschieden verabschiedet von+dat | prep | person -baby | person
apologize apologized apologized apologizing to | sich entschuldigen entschuldigt bei+dat | prep manner |
    person -baby | person
fall fell fallen falling in love with | sich verlieben verliebt in+acc | prep |
    singer actress painter pilot king queen doctor nurse tourist |
    actress waitress singer painter pilot nurse king queen city island

go went gone going | gehen gegangen sein | motion into | person dog cat |
drive drove driven driving | fahren/fähr gefahren sein | motion far manner | person -baby bus truck taxi |
travel traveled traveled traveling | reisen gereist sein | motion far vehicle sights bare | person |
run ran run running | rennen gerannt sein | motion bare into | person animal -baby |
fly flew flown flying | fliegen geflogen sein | motion far sights | person bird duck goose plane |
hike hiked hiked hiking | wandern gewandert sein | motion bare sights | person -baby |
return returned returned returning | zurück-kehren zurückgekehrt sein | motion far vehicle | person |

stand stood stood standing | stehen gestanden | position | person furniture glass bottle cup plate vase horse box |
sit sat sat sitting | sitzen gesessen | position | person cat dog bird duck rabbit |
lie lay lain lying | liegen gelegen | position | text clothes key knife fork spoon ring cat dog ball blanket |
stay stayed stayed staying | bleiben geblieben sein | position | person dog cat |
live lived lived living | wohnen gewohnt | position stative | person |
lay laid laid laying | legen gelegt | placement manner | person |
    text clothes key knife fork spoon ring ball blanket
place placed placed placing | stellen gestellt | placement manner | person |
    glass bottle cup plate vase chair lamp box basket suitcase
hang hung hung hanging | hängen gehängt | placement | person | picture clock coat jacket lamp

say said said saying | sagen gesagt | that | person -baby |
hope hoped hoped hoping | hoffen gehofft | that to stative | person -baby |
notice noticed noticed noticing | merken gemerkt | that stative | person |
promise promised promised promising | versprechen/versprich versprochen | that to | person -baby |
try tried tried trying | versuchen versucht | to | person animal |
begin began begun beginning | an-fangen/fäng angefangen | to | person animal |
plan planned planned planning | planen geplant | to | person -baby |
decide decided decided deciding | beschließen beschlossen | to that | person -baby |

be was been being | sein gewesen sein | stative |  |
have had had having | haben gehabt | stative no-pronoun | person |
    animal object vehicle house garden castle brother sister friend son daughter problem plan idea secret question
cost cost cost costing | kosten gekostet | stative | food vehicle furniture object clothes book newspaper |
weigh weighed weighed weighing | wiegen gewogen | stative | animal suitcase box baby basket |
"""

_MODALS = (
    Modal("can", "can", "could", False, "kann", "kannst", "können", "konnte"),
    Modal("must", "must", "", False, "muss", "musst", "müssen", "", negatable=False),
    Modal("may", "may", "", False, "darf", "darfst", "dürfen", ""),
    Modal("should", "should", "", False, "sollte", "solltest", "sollten", ""),
    Modal("would like to", "would like to", "", False, "möchte", "möchtest", "möchten", ""),
    Modal("want to", "wants to", "wanted to", True, "will", "willst", "wollen", "wollte"),
    Modal("have to", "has to", "had to", True, "muss", "musst", "müssen", "musste"),
)
MODAL = {modal.en_present: modal for modal in _MODALS}


def _parse(row: str) -> Verb:
    english, german, uses, subjects, objects = (column.strip() for column in row.split("|"))
    base, past, participle, ing, *rest = english.split()
    use = uses.split()
    frames = frozenset(cast(Frame, word) for word in use if word in get_args(Frame))
    traits = frozenset(cast(Trait, word) for word in use if word in get_args(Trait))
    assert len(frames) + len(traits) == len(use), f"unknown frame or trait in {row!r}"
    preposition = rest.pop() if frames & {"prep", "dat"} and rest else ""
    with_particle = [" ".join([form, *rest]) for form in (base, past, participle, ing)]
    words = german.split()
    reflexive = words[0] == "sich"
    infinitive, de_participle, *extra = words[reflexive:]
    infinitive, _, present_stem = infinitive.partition("/")
    prefix, _, stem = infinitive.rpartition("-")
    auxiliary: Literal["haben", "sein"] = "sein" if "sein" in extra else "haben"
    de_preposition, _, case = next((word for word in extra if "+" in word), "+acc").partition("+")
    return Verb(
        en=with_particle[0],
        en_past=with_particle[1],
        en_participle=with_particle[2],
        en_ing=with_particle[3],
        en_preposition="to" if "give" in frames else preposition,
        de=stem,
        prefix=prefix,
        present_stem=present_stem,
        participle=de_participle,
        auxiliary=auxiliary,
        reflexive=reflexive,
        de_preposition=de_preposition,
        de_case=cast(Case, case),
        frames=frames,
        traits=traits,
        subjects=nouns(subjects),
        objects=nouns(objects),
    )


VERBS = tuple(_parse(row) for row in _TABLE.replace("\n    ", " ").splitlines() if row)
VERB = {verb.infinitive: verb for verb in VERBS}
