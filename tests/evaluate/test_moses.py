"""Moses tokenization against the published files of Multi30k and the rules of the reference scripts."""

import pytest
from sacremoses.corpus import NonbreakingPrefixes

from nmt.evaluate.moses import LANGUAGES, MosesTokenizer, split_compounds
from tests.evaluate.multi30k import needs_multi30k, read_lines


@pytest.mark.slow
@needs_multi30k
@pytest.mark.parametrize("split", ["test_2016_flickr", "val"])
@pytest.mark.parametrize("lang", ["en", "de", "fr"])
def test_tokens_equal_the_published_files(split: str, lang: str) -> None:
    moses = MosesTokenizer(lang)
    ours = [moses(line.lower()) for line in read_lines(f"{split}.{lang}")]
    assert ours == read_lines(f"{split}.lc.norm.tok.{lang}")


def test_languages_are_those_of_the_moses_tokenizer() -> None:
    """The tokenizer has lists of abbreviations, and rules for Japanese and Korean characters."""
    with_lists = set(NonbreakingPrefixes().available_langs.values())
    assert with_lists | {"ja", "ko"} == LANGUAGES


def test_special_characters_are_escaped_and_hyphens_kept() -> None:
    line = "Ein schwarz-weißer „Hund“ & Herr."
    assert MosesTokenizer("de")(line) == "Ein schwarz-weißer &quot; Hund &quot; &amp; Herr ."
    assert MosesTokenizer("fr")("l\u2019œil") == "l &quot; œil"  # equals the Perl script
    assert MosesTokenizer("en")("") == ""


def test_unicode_punctuation_is_replaced_as_in_the_reference_script() -> None:
    # replace-unicode-punctuation.perl replaces “ and ”, but not „.
    moses = MosesTokenizer("de", "unipunct")
    assert moses("„Geht\u2019s…“, sagte er.") == "„ Geht &apos; s ... &quot; , sagte er ."
    assert ".unipunct." in moses.signature


def test_compounds_are_split_as_in_the_reference_script() -> None:
    # The example in tensor2tensor's get_ende_bleu.sh; a free-standing hyphen is kept.
    assert split_compounds("rich-text format") == "rich ##AT##-##AT## text format"
    assert split_compounds("a - b -c d-") == "a - b -c d-"
    assert split_compounds("Nord-Süd-Achse") == "Nord ##AT##-##AT## Süd ##AT##-##AT## Achse"
    assert split_compounds("U-V-W") == "U ##AT##-##AT## V-W"  # matches of Perl's s///g do not overlap
