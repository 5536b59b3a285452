"""Translation memories in TMX."""

import io
from itertools import pairwise
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.text.tmx import tmx_pairs

MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"><note>ignored</note></header><body>
<tu><tuv xml:lang="EN-US"><prop type="a">ignored</prop><seg>The <bpt i="1">\\b <sub>x</sub></bpt>big<ept i="1">}</ept>
cat &amp; <hi>do<hi>g</hi></hi>.</seg></tuv><tuv xml:lang="de_AT"><seg>Katze<ph>{1}</ph> und Hund.</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>Oui</seg></tuv><tuv xml:lang="en"><seg>Yes</seg></tuv></tu>
<tu><tuv lang="en-GB"><seg>No</seg></tuv><tuv lang="en"><seg>Nope</seg></tuv><tuv lang="de"><seg>Nein</seg></tuv></tu>
<tu><tuv xml:lang="en-GB"><seg> </seg></tuv><tuv xml:lang="en-US"><seg>Two<ph type="lb">&lt;br></ph>lines</seg></tuv>
<tuv xml:lang="de"><seg/></tuv><tuv xml:lang="de"><seg>Zwei Zeilen</seg></tuv><tuv><seg>of no language</seg></tuv></tu>
<tu><tuv xml:lang="eng"><seg>another language</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>
</body></tmx>
"""


def pairs(text: str | bytes, src_lang: str = "en", tgt_lang: str = "de") -> list[tuple[str, str]]:
    content = text.encode() if isinstance(text, str) else text
    return list(tmx_pairs(io.BytesIO(content), Path("memory.tmx"), src_lang, tgt_lang))


def test_units_in_two_languages() -> None:
    expected = [("The big cat & dog.", "Katze und Hund."), ("Nope", "Nein"), ("Two lines", "Zwei Zeilen")]
    assert pairs(MEMORY) == expected
    assert pairs(MEMORY.replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')) == expected
    assert pairs(MEMORY.replace("UTF-8", "UTF-16").encode("utf-16")) == expected
    assert pairs(MEMORY, "en-gb", "de") == [("No", "Nein")]
    assert pairs(MEMORY, "fr", "en") == [("Oui", "Yes")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MEMORY.replace("&amp;", "&"), r"not well-formed XML \(.*\); expected a complete TMX file"),
        (MEMORY[:-10], "not well-formed XML"),
        (MEMORY.replace("UTF-8", "gbk"), r"cannot be read \(multi-byte encodings.*convert it"),
        ("<dataset><doc/></dataset>", "begins with an element <dataset>; expected <tmx>"),
        (MEMORY.replace('"de', '"es').replace('"DE', '"es'), "no unit .*: en, en-gb, en-us, eng, es, es-at, fr;"),
        ("<tmx><body/></tmx>", "no unit .*its languages are: none"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"^memory\.tmx .*{message}"):
        pairs(text)


def test_entities_that_expand_to_gigabytes_are_an_error() -> None:
    names = "abcdefghij"
    entities = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise(names))
    start = f'<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">{entities}]>'
    with pytest.raises(UserError, match=r"not well-formed XML .*amplification"):
        pairs(start + MEMORY.partition('"tmx14.dtd">')[2].replace("Oui", "&j;"))
