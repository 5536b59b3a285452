"""Normalization of lines, and filters of training pairs."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.recipe import DataRecipe, TextCorpus, UnicodeForm
from nmt.text.clean import DROP_REASONS, Cleaner, normalize, valid_unicode

ANY_TEXT = st.text(st.characters(codec=None), max_size=60)
INVISIBLE = "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+"
FORMS = ("NFC", "NFKC", "none")


def drop_reason(cleaner: Cleaner, src: str, tgt: str) -> str | None:
    result = cleaner.clean(src, tgt)
    return result if isinstance(result, str) else None


def cleaner(src_lang: str = "en", tgt_lang: str = "de", **options: object) -> Cleaner:
    corpus = (TextCorpus(src="a", tgt="b"),)
    return Cleaner(DataRecipe(train=corpus, valid=corpus, **options), src_lang, tgt_lang)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a\t b \r", "a b"),
        ("a  b", "a b"),  # printable
        ("a\u2028b\u0085c\x1cd\x00e\nf\u2029g", "a b c d e f g"),
        ("\ufeffa\u200bb\u00adc", "abc"),
        ("a\u00a0b\u3000c\u2009d", "a b c d"),
        ("e\u0301", "é"),
        ("e\u200b\u0301", "é"),
        ("\u202eab\u202c", "ab"),
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        ("\ud800x", "\ufffdx"),
        ("\ud83d\ude00", "\U0001f600"),
        (" \x00\u200b ", ""),
        ("", ""),
    ],
)
def test_normalized_text_has_single_spaces_and_no_invisible_characters(text: str, expected: str) -> None:
    assert normalize(text, "NFC") == expected


def test_the_unicode_form_determines_composition_and_compatibility() -> None:
    assert normalize("ﬁ e\u0301 ½", "NFKC") == "fi é 1\u20442"
    assert normalize("ﬁ e\u0301", "NFC") == "ﬁ é"
    assert normalize("ﬁ e\u0301", "none") == "ﬁ e\u0301"


@given(ANY_TEXT, st.sampled_from(FORMS))
def test_normalized_text_is_one_clean_line(text: str, form: UnicodeForm) -> None:
    result = normalize(text, form)
    assert normalize(result, form) == result
    assert result == " ".join(result.split())
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in result)
    result.encode()
    if form != "none":
        assert unicodedata.is_normalized(form, result)


@pytest.mark.slow
@given(text=st.text(st.sampled_from("a\u0301\u0327\u0344\u0f73\u0f71=\u2190\u0338"), min_size=150, max_size=300))
def test_long_runs_of_combining_characters_are_normalized_as_by_unicodedata(text: str) -> None:
    long = "a" * 1_000 + text.replace("a", "") + text
    for form in ("NFC", "NFKC"):
        assert normalize(long, form) == unicodedata.normalize(form, long)


def test_combining_characters_are_sorted_before_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    """`unicodedata` sorts them in quadratic time: ten seconds for this text, during which no other thread runs."""
    texts = list[str]()

    def record(_: str, text: str) -> str:
        texts.append(text)
        return text

    monkeypatch.setattr(unicodedata, "normalize", record)
    normalize("\u0301\u0327" * 50_000, "NFC")
    assert texts[-1] == "\u0327" * 50_000 + "\u0301" * 50_000


@pytest.mark.slow
def test_no_printable_character_normalizes_to_white_space() -> None:
    """The fast path of `normalize` relies on this."""
    printable = [chr(i) for i in range(sys.maxunicode + 1) if chr(i).isprintable()]
    for form in ("NFC", "NFKC"):
        assert {c for c in unicodedata.normalize(form, "".join(printable)) if c.isspace()} == {" "}


SHORT_TEXT = st.text("a \t\u00a0\u00b4\ufffd\u0301\u00ad", max_size=8)


@given(ANY_TEXT | SHORT_TEXT, st.sampled_from(FORMS))
def test_the_fast_path_of_normalize_equals_the_full_normalization(text: str, form: UnicodeForm) -> None:
    parts = re.split("[\x00-\x1f\x7f-\x9f]+", re.sub(INVISIBLE, "", valid_unicode(text)))
    plain = " ".join(parts) if form == "none" else unicodedata.normalize(form, " ".join(parts))
    assert normalize(text, form) == " ".join(plain.split())


@given(ANY_TEXT | SHORT_TEXT)
def test_only_damaged_text_is_dropped_for_control_characters(text: str) -> None:
    is_damaged = any(c == "\ufffd" or (unicodedata.category(c) == "Cc" and c not in "\t\n\v\f\r") for c in text)
    if normalize(text, "NFC"):
        assert (drop_reason(cleaner("xx", "yy"), text, "a") == "control characters") == is_damaged


@given(ANY_TEXT)
def test_valid_unicode_changes_only_surrogates(text: str) -> None:
    result = valid_unicode(text)
    result.encode()
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert result == text


LONG = "one two three four five six seven eight nine ten eleven twelve"


@pytest.mark.parametrize(
    ("src", "tgt", "reason"),
    [
        ("A cat.", "Eine Katze.", None),
        ("A cat.", " \u200b\t", "empty"),
        ("", "", "empty"),
        ("A\x00cat.", "Eine Katze.", "control characters"),
        ("A cat.", "Eine K\x8atze.", "control characters"),
        ("A cat.", "Eine K\ufffdtze.", "control characters"),
        ("A cat.\r", "\tEine\u2028Katze.\u00a0", None),
        ("a" * 161, "b", "too long"),
        ("a" * 160, "b", None),
        (LONG, "eins", "length ratio"),
        (LONG, "eins zwei", None),
        ("one two three four five six seven eight nine ten", "eins", None),
        ("This was not translated", "This was not translated ", "identical sides"),
        ("New York City", "New York City", None),
        ("A cat.", "Кошка спит.", "wrong script"),
        ("猫が好き", "Eine Katze.", "wrong script"),
        ("The word Кошка means cat.", "Das Wort Кошка bedeutet Katze.", None),
        ("A cat.", "Katze, кошка", None),  # half of the letters
        ("the 猫", "Eine Katze.", None),  # counts as three letters
        ("to 猫", "Eine Katze.", "wrong script"),
        ("1 2 3 !", "1½ ² ①", None),
    ],
)
def test_pairs_are_dropped_for_the_expected_reason(src: str, tgt: str, reason: str | None) -> None:
    assert drop_reason(cleaner(max_tokens=10), src, tgt) == reason
    assert reason is None or reason in DROP_REASONS


def test_filters_can_be_disabled() -> None:
    lenient = cleaner(drop_identical=False, drop_wrong_script=False, max_length_ratio=100.0)
    assert drop_reason(lenient, "This was not translated", "This was not translated") is None
    assert drop_reason(lenient, "A cat.", "Кошка спит.") is None
    assert drop_reason(lenient, LONG, "eins") is None
    assert drop_reason(cleaner(max_length_ratio=5.9), LONG, "eins zwei") == "length ratio"
    assert drop_reason(cleaner(max_length_ratio=6.0), LONG, "eins zwei") is None


def test_without_a_source_only_the_target_is_filtered() -> None:
    assert cleaner("zxx").clean("", LONG) == ("", LONG)
    assert cleaner("zxx").clean("", "") == "empty"


def test_sources_that_are_truncated_may_have_any_length() -> None:
    truncating = cleaner(max_tokens=10, long_sources="truncate")
    assert truncating.clean("a" * 161, "b") == ("a" * 161, "b")
    assert drop_reason(truncating, "b", "a" * 161) == "too long"


def test_clean_returns_the_normalized_pair() -> None:
    assert cleaner().clean(" A  cat.\r", "Eine\u00a0Katze.") == ("A cat.", "Eine Katze.")
    for form, expected in (("NFC", "ﬁ é"), ("NFKC", "fi é"), ("none", "ﬁ e\u0301")):
        assert cleaner(unicode_form=form).clean("ﬁ e\u0301", "ﬁ e\u0301") == (expected, expected)


SAMPLES = {
    "en de fr es it pt nl pl cs tr sv da no fi ro hu deu": "Zażółć ça größer İstanbul",
    "ru uk bg rus": "Быстрая лисица їде",
    "el ell gre": "Γρήγορη αλεπού",
    "zh": "敏捷的狐狸",
    "ja": "すばやいキツネはとぶ",
    "ko": "빠른 여우",
    "ar arb fas pes": "الثعلب السريع",
    "he heb": "השועל המהיר",
    "hi": "तेज़ लोमड़ी कूदती है",
    "ka kat": "სწრაფი მელა",
    "hy": "Արագ աղվես",
    "am": "ፈጣን ቀበሮ",
    "bn": "দ্রুত শিয়াল",
    "ta tam": "வேகமான நரி",
    "km": "កញ្ជ្រោងរហ័ស",
    "bo": "ཝ་མོ་མགྱོགས་པོ",
}


@pytest.mark.parametrize(("languages", "text"), SAMPLES.items())
def test_text_in_the_script_of_another_language_is_dropped(languages: str, text: str) -> None:
    for language in languages.split():
        assert drop_reason(cleaner(language, language, drop_identical=False), text, text) is None
        for other in SAMPLES.values():
            # Japanese and Korean include Chinese characters.
            if other != text and not (language in ("ja", "ko") and other == SAMPLES["zh"]):
                assert drop_reason(cleaner(language, "xx", max_length_ratio=99.0), other, "x") == "wrong script"


def test_an_unknown_language_may_have_any_script() -> None:
    assert drop_reason(cleaner("xx", "yy"), "Быстрая лисица", "敏捷的狐狸") is None


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("bo", "ཁོང་གིས་དཔེ་ཆ་དེ་ཀློག་རྒྱུར་དགའ་པོ་ཡོད་པས་ཉིན་ལྟར་དཔེ་མཛོད་ཁང་ལ་ཕེབས་ཀྱི་འདུག"),
        ("shn", "မိူဝ်ႈၼႆႉၵူၼ်းၵဝ်ႇမႃးလိူဝ်သေတႃႉၵေႃႈယင်းပႆႇထိုင်တီႈယူႇ"),
        ("nan", "我想知影這支紅色的細雨傘今仔日偌濟錢咧"),
    ],
)
def test_characters_count_in_languages_without_spaces(language: str, text: str) -> None:
    english = "I would like to know how much this small red umbrella costs today"
    assert drop_reason(cleaner("en", language), english, text) is None
    assert drop_reason(cleaner("en", language), english, text[:2]) == "length ratio"


def test_two_characters_count_as_a_word_in_languages_without_spaces() -> None:
    chinese = cleaner("en", "zh", max_length_ratio=3.0)
    assert drop_reason(chinese, LONG, "钱" * 7) is None  # four words
    assert drop_reason(chinese, LONG, "钱" * 6) == "length ratio"


@pytest.mark.parametrize("language", ["zh", "zho", "yue", "wuu", "ja", "jpn"])
def test_length_ratio_and_script_are_checked_in_languages_without_spaces(language: str) -> None:
    english = "I would like to know how much this small red umbrella costs today"
    assert drop_reason(cleaner("en", language), english, "我想知道这把红色的小雨伞今天多少钱") is None
    assert drop_reason(cleaner("en", language), english, "钱") == "length ratio"
    assert (
        drop_reason(cleaner("en", language), "Why?", "我想知道这把红色的小雨伞今天多少钱") is None
    )  # counts as nine words
    assert drop_reason(cleaner("en", language), english, f"{english}!") == "wrong script"
    assert drop_reason(cleaner("en", language), "Open Firefox", "打开 Firefox") == "wrong script"
    assert drop_reason(cleaner("en", language), "Please open Firefox", "请打开 Firefox") is None
    assert drop_reason(cleaner("en", language), "It is cold today", "오늘 날씨 좋다 天氣") == "wrong script"
    if language not in ("ja", "jpn"):
        assert drop_reason(cleaner("en", language), "It is cold today", "今日はとても寒いですね") == "wrong script"
