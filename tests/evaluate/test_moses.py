"""Moses text against the published files of Multi30k, and the rules of the English-German script."""

from pathlib import Path

import pytest
from sacremoses.corpus import NonbreakingPrefixes

from nmt.evaluate.moses import LANGUAGES, MosesText, split_compounds

MULTI30K = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"
needs_multi30k = pytest.mark.skipif(not MULTI30K.is_dir(), reason="the Multi30k files are not beside the project")


def read_lines(name: str) -> list[str]:
    return (MULTI30K / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@needs_multi30k
@pytest.mark.parametrize("split", ["test_2016_flickr", "val"])
@pytest.mark.parametrize("lang", ["en", "de", "fr"])
def test_moses_text_reproduces_the_published_files(split: str, lang: str) -> None:
    moses = MosesText(lang)
    ours = [moses.tokens(line.lower()) for line in read_lines(f"{split}.{lang}")]
    assert ours == read_lines(f"{split}.lc.norm.tok.{lang}")


def test_the_languages_are_those_of_the_moses_tokenizer() -> None:
    """It has lists of abbreviations, and looks for characters of Japanese and Korean."""
    with_lists = set(NonbreakingPrefixes().available_langs.values())
    assert with_lists | {"ja", "ko"} == LANGUAGES


def test_moses_text_escapes_and_keeps_hyphens() -> None:
    line = "Ein schwarz-weißer „Hund“ & Herr."
    assert MosesText("de").tokens(line) == "Ein schwarz-weißer &quot; Hund &quot; &amp; Herr ."
    assert MosesText("fr").tokens("l\u2019œil") == "l &quot; œil"  # as the Perl script has it, right or wrong
    assert MosesText("en").tokens("") == ""


def test_unicode_punctuation_is_replaced_as_the_german_script_does_it() -> None:
    # replace-unicode-punctuation.perl knows the closing quotes “ and ”, and not the German opening one.
    moses = MosesText("de", "unipunct")
    assert moses.tokens("„Geht\u2019s…“, sagte er.") == "„ Geht &apos; s ... &quot; , sagte er ."
    assert ".unipunct." in moses.signature


def test_compounds_are_split_as_the_reference_script_splits_them() -> None:
    # The example in tensor2tensor's get_ende_bleu.sh; a hyphen that stands alone stays as it is.
    assert split_compounds("rich-text format") == "rich ##AT##-##AT## text format"
    assert split_compounds("a - b -c d-") == "a - b -c d-"
    assert split_compounds("Nord-Süd-Achse") == "Nord ##AT##-##AT## Süd ##AT##-##AT## Achse"
    assert split_compounds("U-V-W") == "U ##AT##-##AT## V-W"  # Perl's s///g looks at no character twice
