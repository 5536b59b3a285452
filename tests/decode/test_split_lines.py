"""Lines that are translated in parts."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.decode.glossary import Glossary, Term
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe
from nmt.text.splitting import Alternatives, assign_phrases, join_texts, split_text
from nmt.text.tokenizer import Tokenizers
from tests.decode.copy_model import CopyModel, make_translator
from tests.decode.test_fusion import write_model


def test_sentences_of_a_line_are_translated_separately(tokenizers: Tokenizers) -> None:
    sentences = ["Dr. Smith sees the old red tree.", "The dog likes the tree!", "The cat sees the tree."]
    limit = max(len(tokenizers.src.encode(sentence)) for sentence in sentences)
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, max_positions=limit + 1, beam_size=3, split_sentences=True)
    joined, empty = translator.translate_n_best([f"  {sentences[0]}\t {sentences[1]} {sentences[2]} ", " "], n_best=3)
    assert translator.lines_split == 0
    whole = make_translator(model, tokenizers, max_positions=limit + 1, beam_size=3)
    parts = whole.translate_n_best(sentences, n_best=3)
    assert (joined[0].text, empty[0].text) == (" ".join(sentences), "")
    for rank, translation in enumerate(joined):
        assert translation.pieces == [piece for part in parts for piece in part[rank].pieces]

    longer = "the dog likes the old red tree slowly and the cat sees the old red tree."
    prefixed = translator.translate_n_best([f"{sentences[0]} {longer}"], n_best=1, prefixes=["the"])[0][0]
    assert translator.lines_split == 1
    assert prefixed.text.startswith("the")
    assert prefixed.text.endswith(longer)


def test_sentences_of_a_line_are_aligned_separately(tmp_path: Path) -> None:
    first, second = "w1 w2 w3.", " ".join(["7", *(f"w{number % 9}" for number in range(40))])
    decode = DecodeRecipe(alignments=True, split_sentences=True)
    translator = Translator.load(write_model(tmp_path / "model"), "cpu", "fp32", decode)
    (one,), (other,), (both,) = translator.translate_n_best([first, second, f"{first} {second}"])
    assert translator.lines_split == 2 and one.alignment and other.alignment
    num_src, num_tgt = len(first.split()), len(one.text.split())
    assert both.alignment == [*one.alignment, *((src + num_src, tgt + num_tgt) for src, tgt in other.alignment)]


def test_only_a_line_that_is_not_split_is_streamed(tokenizers: Tokenizers) -> None:
    model, streamed = CopyModel(tokenizers.src.vocab_size), list[str]()
    options: dict[str, Any] = {"beam_size": 1, "stop": "first", "split_sentences": True, "batch_tokens": 1}
    translator = make_translator(model, tokenizers, **options).with_callback(streamed.append)
    assert translator.translate(["The cat sees the tree. The dog sees it."]) == [
        "The cat sees the tree. The dog sees it."
    ]
    assert streamed == []
    assert translator.translate(["The cat sees the tree."]) == streamed[-1:] == ["The cat sees the tree."]


@given(st.text(alphabet="ab .,!?。、\u0301", max_size=80), st.integers(1, 20))
def test_parts_fit_and_cover_the_whole_line(text: str, limit: int) -> None:
    line = " ".join(text.split())
    pieces = split_text(line, lambda piece: len(piece) <= limit)
    assert all(0 < len(piece) <= limit and piece == piece.strip() for piece in pieces)
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One two. Three four.", 20, ["One two. Three four."]),
        ("One, two three. Four five", 20, ["One, two three.", "Four five"]),
        ('He said: "Go!" Then he, too, went.', 25, ['He said: "Go!"', "Then he, too, went."]),
        ("At 3.14 it is one and a half, no more", 30, ["At 3.14 it is one and a half,", "no more"]),
        ("A. B. C. D. E. F. G. H.", 12, ["A. B. C. D.", "E. F. G. H."]),
        ("one two three four", 10, ["one two", "three four"]),
        ("1,000,000.50 and", 13, ["1,000,000.50", "and"]),
        ("一二三。四五六七八。九", 8, ["一二三。", "四五六七八。九"]),
        ("abcdefgh", 3, ["ab", "cd", "ef", "gh"]),
        ("", 3, []),
    ],
)
def test_lines_are_split_at_the_best_positions(text: str, limit: int, pieces: list[str]) -> None:
    assert split_text(text, lambda piece: len(piece) <= limit) == pieces


def test_a_character_too_long_is_its_own_part() -> None:
    assert split_text("ab", lambda piece: False) == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "joined", "first_words"),
    [
        (["One two.", "Three"], "One two. Three", [0, 2]),
        (["\u4e00\u4e8c\u3002", "\u4e09\u56db"], "\u4e00\u4e8c\u3002\u4e09\u56db", [0, 0]),
        (["\u4e00 \u4e8c", "\u4e09 \u56db", "\u4e94"], "\u4e00 \u4e8c\u4e09 \u56db\u4e94", [0, 1, 2]),
        (
            ["\u201c\u4e00\u3002\u201d", "\u300c\u4e8c\u300d", "API"],
            "\u201c\u4e00\u3002\u201d\u300c\u4e8c\u300dAPI",
            [0, 0, 0],
        ),
        (["\u201c\u4e00\u3002\u201d", "\u4e8c"], "\u201c\u4e00\u3002\u201d\u4e8c", [0, 0]),
        (["\u4e00", "\u201c\u4e8c\u201d"], "\u4e00\u201c\u4e8c\u201d", [0, 0]),
        (["API", "\u300c\u4e8c\u300d"], "API\u300c\u4e8c\u300d", [0, 0]),
        (["\u3072\u3089", "\u30ab\u30bf"], "\u3072\u3089\u30ab\u30bf", [0, 0]),
        (["\u0e01\u0e33", "\u0e02"], "\u0e01\u0e33\u0e02", [0, 0]),  # Thai
        (["\u0e81", "\u0e82"], "\u0e81\u0e82", [0, 0]),  # Lao
        (["\u1780\u17d4", "\u1781"], "\u1780\u17d4\u1781", [0, 0]),  # Khmer
        (["\u1000\u104b", "\u1001"], "\u1000\u104b\u1001", [0, 0]),  # Burmese
        (["\uac00", "\ub098"], "\uac00 \ub098", [0, 1]),  # Korean has spaces
        (["it is called \u4e2d\u6587", "in Chinese"], "it is called \u4e2d\u6587 in Chinese", [0, 4]),
        (["", "a", "", "b"], "a b", [0, 0, 1, 1]),
        (["a", '"'], 'a "', [0, 1]),
        ([], "", []),
    ],
)
def test_parts_are_joined_with_or_without_a_space(texts: list[str], joined: str, first_words: list[int]) -> None:
    assert join_texts(texts) == (joined, first_words)


FIRST, SECOND = "the old dog sees a red tree.", "Then he likes the cat slowly."


def split_in_two(tokenizers: Tokenizers, **decode: Any) -> Translator:
    """Return a translator that splits FIRST from SECOND."""
    longest = max(len(tokenizers.src.encode(part)) for part in (FIRST, SECOND))
    return make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_tokens=longest, **decode)


def test_lines_longer_than_training_sentences_are_split(tokenizers: Tokenizers) -> None:
    translator = split_in_two(tokenizers)
    assert translator.translate([f"{FIRST} {SECOND}", FIRST]) == [f"{FIRST} {SECOND}", FIRST]
    assert translator.lines_split == 1
    unsplit = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers)
    assert unsplit.translate([f"{FIRST} {SECOND}"]) == [f"{FIRST} {SECOND}"]
    assert unsplit.lines_split == 0


def test_the_first_part_of_a_split_line_gets_the_prefix(tokenizers: Tokenizers) -> None:
    [found] = split_in_two(tokenizers, beam_size=4).translate([f"{FIRST} {SECOND}"], prefixes=["he said:"])
    assert found.startswith("he said:") and found.endswith(SECOND)
    assert "he said:" not in found[8:]


@pytest.mark.parametrize("phrase", ["old dog", "likes the cat", "he likes"])
def test_a_phrase_is_assigned_to_the_part_that_contains_it(tokenizers: Tokenizers, phrase: str) -> None:
    translator = split_in_two(tokenizers, beam_size=4)
    assert translator.translate([f"{FIRST} {SECOND}"], required=[[phrase]]) == [f"{FIRST} {SECOND}"]


def test_every_translation_of_a_split_line_has_the_required_phrases(tokenizers: Tokenizers) -> None:
    phrases = ["quickly", "cat slowly", "go! go!", "quickly"]
    for options in ({"n_best": 3}, {"require": ["quickly", "go! go!"]}):
        translator = split_in_two(tokenizers, beam_size=8, max_extra_tokens=12, **options)
        [whole, split] = translator.translate_n_best([FIRST, f"{FIRST} {SECOND}"], required=[[], phrases])
        assert all(phrase in one.text for one in split for phrase in phrases)
        assert all("quickly" in one.text for one in whole) == ("require" in options)
        for one in split:
            assert len(one.token_log_probs) == len(one.pieces) + 2
            assert one.log_prob == pytest.approx(sum(one.token_log_probs))
    forbidding = split_in_two(tokenizers, beam_size=4, forbid=["red", "likes"])
    [found] = forbidding.translate([f"{FIRST} {SECOND}"])
    assert "red" not in found.split() and "likes" not in found.split()


def test_parts_of_a_line_get_the_terms_in_them(tokenizers: Tokenizers) -> None:
    glossary = Glossary(
        [Term("red tree", ("quickly", "go! go!")), Term("tree slowly", ("dog",)), Term("cat", ("old",))]
    )
    translator = split_in_two(tokenizers, beam_size=6, max_extra_tokens=12)
    lines = [f"{FIRST} {SECOND}", "a red tree", "a man", ""]
    found = translator.translate(lines, glossary=glossary)
    assert ("quickly" in found[0] or "go! go!" in found[0]) and "old" in found[0].partition("Then")[2]
    assert "quickly" in found[1] or "go! go!" in found[1]
    assert found[2:] == translator.translate(lines[2:])
    assert found == [out[0].text for out in translator.stream(lines, window=2, glossary=glossary)]
    assert translator.translate(lines[1:], glossary=[None, glossary, None]) == translator.translate(lines[1:])


def test_terms_in_the_rest_of_a_truncated_line_are_not_required(tokenizers: Tokenizers) -> None:
    glossary, start = Glossary([Term("cat", ("old",)), Term("tree", ("dog",))]), "the tree"
    limit = len(tokenizers.src.encode(start))
    options: dict[str, Any] = {"max_tokens": limit, "long_lines": "truncate", "beam_size": 4}
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, **options)
    found = translator.translate([f"{start} cat", start], glossary=glossary)
    assert found[0] == found[1]
    assert "dog" in found[0]


def test_terms_beyond_the_maximum_length_are_not_required(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=6)
    glossary = Glossary([Term("cat", ("the cat sees the old red tree",))])
    assert translator.translate(["cat"], glossary=glossary) == ["cat"]
    prefix, form = "the old red", "the dog"
    positions = len(tokenizers.tgt.encode(prefix)) + len(tokenizers.tgt.encode(form))  # one too few, because of EOS
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=positions)
    glossary = Glossary([Term("cat", (form,))])
    assert form in translator.translate(["cat"], glossary=glossary)[0]
    assert translator.translate(["cat"], [prefix], glossary=glossary) == translator.translate(["cat"], [prefix])
    sampling = make_translator(CopyModel(9), tokenizers, sampling=True)
    with pytest.raises(UserError, match=r"^sampling [^;]*;[^;]*;[^;]*$"):
        sampling.translate(["cat"], glossary=glossary)


def test_a_phrase_is_assigned_to_the_most_probable_part() -> None:
    one: Alternatives = ((7,),)
    two: Alternatives = ((9, 9), (5, 6))
    three: Alternatives = ((8, 9), (8,))
    log_probs = {(0, one): -9.0, (1, one): -8.5, (0, three): -float("inf"), (1, three): -30.0}
    asked: list[tuple[int, Alternatives]] = []

    def search(pairs: list[tuple[int, Alternatives]]) -> list[float]:
        asked.extend(pairs)
        return [log_probs[pair] for pair in pairs]

    outputs = [(4, 5, 4, 6), (4, 5, 6)]
    assert assign_phrases([one, two, three, one], outputs, [-2.0, -1.0], search) == [[one], [two, three]]
    assert asked == [*log_probs]
    impossible = assign_phrases([one], [(), ()], [-float("inf")] * 2, lambda pairs: [-float("inf")] * len(pairs))
    assert impossible == [[one], []], "the search of the line then says that no translation is possible"
    possible = assign_phrases([one], [(), ()], [-float("inf"), -1.0], lambda pairs: [-float("inf"), -3.0])
    assert possible == [[], [one]], "a part without a translation loses nothing"
