"""Lexicon: verbs and modals.

Keys list frames and traits. Columns, separated by `|`:

English   base, past, participle and -ing form, particle, preposition
German    infinitive (a hyphen after a separable prefix, a slash before the changed stem), participle, `sein` if it is
          the auxiliary of the perfect, preposition+case of the object unless it is a plain accusative
objects   selection of nouns
subjects  selection of nouns (default: person)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_args

from nmt.grammar.entries import Case, Frame, Modal, Trait, Verb
from nmt.grammar.nouns import nouns

_VERBS = {
    "bare": """
        sleep slept slept sleeping | schlafen/schläf geschlafen | | person animal
        rest rested rested resting | sich aus-ruhen ausgeruht
        fall fell fallen falling asleep | ein-schlafen/schläf eingeschlafen sein | | person animal
        wake woke woken waking up | auf-wachen aufgewacht sein | | person animal
        arrive arrived arrived arriving | an-kommen angekommen sein | | person vehicle letter message gift
        shop shopped shopped shopping | ein-kaufen eingekauft
        watch watched watched watching television | fern-sehen/sieh ferngesehen""",
    "bare manner": """
        work worked worked working | arbeiten gearbeitet
        laugh laughed laughed laughing | lachen gelacht
        dance danced danced dancing | tanzen getanzt | | person bear
        play played played playing | spielen gespielt | | child boy girl son daughter brother sister dog cat
        swim swam swum swimming | schwimmen geschwommen sein | | person goose dog
        get got got getting up | auf-stehen aufgestanden sein""",
    "bare object passive manner": "sing sang sung singing | singen gesungen | song",
    "object": """
        look looked looked looking for | suchen gesucht | person animal object clothes hotel | person animal
        meet met met meeting | treffen/triff getroffen | person
        try tried tried trying on | an-probieren anprobiert | clothes ring
        help helped helped helping | helfen/hilf geholfen +dat | person pet
        thank thanked thanked thanking | danken gedankt +dat | person
        follow followed followed following | folgen gefolgt sein +dat | person animal truck | person animal car
        answer answered answered answering | antworten geantwortet +dat | person
        listen listened listened listening to | zu-hören zugehört +dat | person | person animal
        wait waited waited waiting for | warten gewartet auf+acc | person bus train answer letter | person dog cat
        think thought thought thinking of | denken gedacht an+acc | person event problem house dog
        dream dreamed dreamed dreaming of | träumen geträumt von+dat | person animal trip island chocolate
        laugh laughed laughed laughing about | lachen gelacht über+acc | person story film mistake idea
        look looked looked looking forward to | sich freuen gefreut auf+acc | event film cake guest friend aunt uncle
        complain complained complained complaining about | sich beschweren beschwert über+acc | person soup hotel train
        say said said saying goodbye to | sich verabschieden verabschiedet von+dat | person""",
    "object manner": """
        look looked looked looking at | an-sehen/sieh angesehen | person animal picture film house clock flower castle
        talk talked talked talking to | sprechen/sprich gesprochen mit+dat | person animal""",
    "object passive": """
        buy bought bought buying | kaufen gekauft | food drink text clothes vehicle furniture object pet
        sell sold sold selling | verkaufen verkauft | food drink vehicle furniture clothes object pet
        cook cooked cooked cooking | kochen gekocht | soup potato egg meat sausage
        build built built building | bauen gebaut | house school church castle bridge ship hotel shelf
        lose lost lost losing | verlieren verloren | key ring bag umbrella ball letter hat game shoe
        visit visited visited visiting | besuchen besucht | person museum castle city church village island
        steal stole stolen stealing | stehlen/stiehl gestohlen | sausage ring bicycle car bag camera cake
        call called called calling | an-rufen angerufen | person
        invite invited invited inviting | ein-laden/läd eingeladen | person
        throw threw thrown throwing away | weg-werfen/wirf weggeworfen | newspaper letter shoe box egg bottle
        turn turned turned turning on | ein-schalten eingeschaltet | lamp radio computer camera
        turn turned turned turning off | aus-schalten ausgeschaltet | lamp radio computer camera
        tidy tidied tidied tidying up | auf-räumen aufgeräumt | kitchen room office cellar cupboard""",
    "object passive no-pronoun": """
        pick picked picked picking up | ab-holen abgeholt | person letter gift
        bring brought brought bringing along | mit-bringen mitgebracht | cake juice gift flower dog friend blanket""",
    "object passive manner": """
        eat ate eaten eating | essen/iss gegessen | food
        drink drank drunk drinking | trinken getrunken | drink
        read read read reading | lesen/lies gelesen | text
        write wrote written writing | schreiben geschrieben | letter poem novel report story message song
        repair repaired repaired repairing | reparieren repariert | vehicle table lamp radio clock camera door window
        paint painted painted painting | malen gemalt | picture flower horse castle bridge bird mountain
        carry carried carried carrying | tragen/träg getragen | suitcase box basket bag chair table | person donkey
        clean cleaned cleaned cleaning | putzen geputzt | window kitchen shoe room office table lamp
        feed fed fed feeding | füttern gefüttert | animal
        open opened opened opening | auf-machen aufgemacht | door window box bottle letter suitcase gift
        close closed closed closing | zu-machen zugemacht | door window box bottle suitcase book shop
        prepare prepared prepared preparing | vor-bereiten vorbereitet | event""",
    "object stative": """
        love loved loved loving | lieben geliebt | person animal chocolate coffee cake cheese film
        know knew known knowing | kennen gekannt | person place song game secret story poem film
        find found found finding | finden gefunden | object clothes text animal mistake answer | person dog cat
        understand understood understood understanding | verstehen verstanden | question answer problem plan idea word
        need needed needed needing | brauchen gebraucht | object clothes furniture vehicle doctor friend nurse teacher
        trust trusted trusted trusting | vertrauen vertraut +dat | person
        belong belonged belonged belonging to | gehören gehört +dat | person | object vehicle pet clothes house castle
        remember remembered remembered remembering | sich erinnern erinnert an+acc | person word song story trip""",
    "object stative no-pronoun": """
        have had had having | haben gehabt | animal object vehicle house garden brother sister friend problem plan""",
    "object passive whether": "ask asked asked asking | fragen gefragt | person",
    "object that stative": """
        see saw seen seeing | sehen/sieh gesehen | person animal vehicle place picture film | person animal
        hear heard heard hearing | hören gehört | song story message question train bird | person animal
        believe believed believed believing | glauben geglaubt +dat | person""",
    "object that to stative": """
        forget forgot forgotten forgetting | vergessen/vergiss vergessen | object clothes text word answer""",
    "that whether stative": "know knew known knowing | wissen gewusst",
    "that": "say said said saying | sagen gesagt",
    "that stative": "notice noticed noticed noticing | merken gemerkt",
    "that to stative": "hope hoped hoped hoping | hoffen gehofft",
    "to": """
        promise promised promised promising | versprechen/versprich versprochen
        try tried tried trying | versuchen versucht | | person animal
        begin began begun beginning | an-fangen/fäng angefangen | | person animal
        decide decided decided deciding | beschließen beschlossen""",
    "give": """
        give gave given giving | geben/gib gegeben | food drink text clothes object
        show showed shown showing | zeigen gezeigt | picture text house garden city animal ring mistake
        send sent sent sending | schicken geschickt | letter message gift book report flower picture
        bring brought brought bringing | bringen gebracht | food drink newspaper book chair blanket shoe
        lend lent lent lending | leihen geliehen | book car bicycle umbrella camera knife suitcase coat
        tell told told telling | erzählen erzählt | story secret""",
    "motion": """
        go went gone going | gehen gegangen sein | | person dog cat
        run ran run running | rennen gerannt sein | | person animal""",
    "motion far": """
        drive drove driven driving | fahren/fähr gefahren sein | | person bus truck
        travel traveled traveled traveling | reisen gereist sein
        fly flew flown flying | fliegen geflogen sein | | person bird goose plane
        come came come coming back | zurück-kommen zurückgekommen sein | | person dog cat bird ship""",
    "position": """
        stand stood stood standing | stehen gestanden | | person furniture glass bottle cup plate vase horse box
        sit sat sat sitting | sitzen gesessen | | person cat dog bird rabbit
        lie lay lain lying | liegen gelegen | | text clothes knife key ball blanket cat dog
        stay stayed stayed staying | bleiben geblieben sein | | person dog cat""",
    "position stative": "live lived lived living | wohnen gewohnt",
    "placement": "hang hung hung hanging | hängen gehängt | picture clock coat jacket lamp",
    "placement manner": """
        lay laid laid laying | legen gelegt | text clothes knife key ball blanket
        place placed placed placing | stellen gestellt | glass bottle cup plate vase chair lamp box basket suitcase""",
    "amount stative": "cost cost cost costing | kosten gekostet | | food vehicle furniture object clothes book",
    "be stative": "be was been being | sein gewesen sein | | any",
}

MODALS = (
    Modal("can", "can", "could", False, ("kann", "kannst", "können", "konnte")),
    Modal("should", "should", "", False, ("sollte", "solltest", "sollten", "")),
    Modal("have to", "has to", "had to", True, ("muss", "musst", "müssen", "musste")),
    Modal("want to", "wants to", "wanted to", True, ("will", "willst", "wollen", "wollte")),
    Modal("would like to", "would like to", "", False, ("möchte", "möchtest", "möchten", "")),
)
INANIMATE_MODALS = MODALS[:3]


def _parse(key: str, rows: str) -> Iterator[Verb]:
    words_of_key = key.split()
    frames = tuple(cast(Frame, word) for word in words_of_key if word in get_args(Frame))
    traits = frozenset(cast(Trait, word) for word in words_of_key if word in get_args(Trait))
    assert len(frames) + len(traits) == len(words_of_key), f"unknown frame or trait in {key!r}"
    for row in rows.strip().split("\n"):
        english, german, objects, subjects = (column.strip() for column in f"{row} | |".split("|")[:4])
        en, en_past, en_participle, en_ing, *particles = english.split()
        words = german.split()
        reflexive = words[0] == "sich"
        infinitive, participle, *extra = words[reflexive:]
        governed = next((word for word in extra if "+" in word), "")
        de_preposition, _, case = governed.partition("+")
        en_preposition = particles.pop() if governed and particles else ""
        infinitive, _, changed_stem = infinitive.partition("/")
        prefix, _, stem = infinitive.rpartition("-")
        yield Verb(
            en=" ".join([en, *particles]),
            en_past=" ".join([en_past, *particles]),
            en_participle=" ".join([en_participle, *particles]),
            en_ing=" ".join([en_ing, *particles]),
            en_preposition=en_preposition,
            de=stem,
            prefix=prefix,
            changed_stem=changed_stem,
            participle=participle,
            auxiliary="sein" if "sein" in extra else "haben",
            reflexive=reflexive,
            de_preposition=de_preposition,
            de_case=cast(Case, case or "acc"),
            frames=frames,
            traits=traits,
            subjects=nouns(subjects or "person"),
            objects=nouns(objects),
        )


VERBS = tuple(verb for key, rows in _VERBS.items() for verb in _parse(key, rows))
