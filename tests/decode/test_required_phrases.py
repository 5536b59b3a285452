"""Required phrases, terms and biases of lines, with a model that copies."""

from itertools import product
from pathlib import Path

import pytest

from nmt.decode.glossary import Glossary, Term
from nmt.decode.task import TranslatorInput
from nmt.errors import UserError
from nmt.recipe import TokenizerRecipe
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.decode.copy_model import CopyModel, make_translator


def test_a_stream_has_as_many_prefixes_as_lines(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, beam_size=2)
    lines = ["the old dog", "a red tree"]
    for arguments in ({"prefixes": iter(["the", "a", "a"])}, {"required": [[], [], ["dog"]]}):
        stream = translator.stream(lines, 1, **arguments)
        assert len([next(stream), next(stream)]) == 2
        with pytest.raises(UserError, match="has more items than there are lines; expected one per line"):
            next(stream)
    short = translator.stream(lines, 1, ["the"])
    assert next(short)
    with pytest.raises(UserError, match="got 0 prefixes for 1 line"):
        next(short)


def test_a_prefix_longer_than_any_output_is_an_error(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=4)
    prefix = "the old dog"
    assert len(tokenizers.tgt.encode(prefix)) == 3
    assert translator.translate(["cat"], [prefix]) == [prefix]
    with pytest.raises(
        UserError, match=r"the prefix, or the line .* has 7 tokens; an output has at most 3; shorten it"
    ):
        translator.translate(["cat"], [f"{prefix} sees it"])


def test_translations_have_the_required_phrases_of_their_line(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, beam_size=4)
    lines, required = ["the old dog", "a red tree", "", "he said: go!"], [["cat"], [], ["dog"], ["red tree", "likes"]]
    found = translator.translate(lines, required=required)
    assert [line for line, phrases in zip(found, required, strict=True) if not phrases] == ["a red tree"]
    assert "cat" in found[0] and found[2] == "" and "red tree" in found[3] and "likes" in found[3]
    assert found == [out[0].text for out in translator.stream(lines, window=2, required=required)]
    together = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, beam_size=4, require=["cat"])
    assert together.translate(["the old dog"], required=[[]]) == together.translate(["the old dog"]) == [found[0]]


def test_required_phrases_fit_a_beam_with_more_slots_than_they_have_tokens(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, beam_size=4, require=["dog"])
    cat = Glossary([Term("katze", ("cat",))])
    assert translator.fits_beam(TranslatorInput("die Katze", required=["the old"]))
    assert not translator.fits_beam(TranslatorInput("die Katze", required=["the old", "cat"]))
    assert not translator.fits_beam(TranslatorInput("die Katze", required=["the old"], glossary=cat))
    groups = make_translator(model, tokenizers, beam_size=4, beam_groups=2, n_best=2, require=["dog"])
    assert not groups.fits_beam(TranslatorInput("", required=["cat"]))
    short = make_translator(model, tokenizers, beam_size=8, max_positions=4)
    with pytest.raises(UserError, match=r"the required phrases .* an output has at most 3"):
        short.fits_beam(TranslatorInput("", required=["the old cat sees it"]))


def test_phrases_are_found_within_lines_of_scripts_without_spaces(tmp_path: Path) -> None:
    words = ("犬", "猫", "鳥", "魚")
    recipe = TokenizerRecipe(vocab_size=266, algorithm="char", character_coverage=1.0)
    tokenizer = train_tokenizer(["".join(pair) for pair in product(words, words)], recipe, tmp_path / "tokenizer.model")
    tokenizers = Tokenizers(tokenizer, tokenizer)
    model = CopyModel(tokenizer.vocab_size)
    for options in ({"forbid": ["猫"]}, {"bias": {"猫": -50.0}}):
        (found,) = make_translator(model, tokenizers, **options).translate(["犬猫鳥"])
        assert found and "猫" not in found
    (found,) = make_translator(model, tokenizers, beam_size=8).translate(["犬鳥鳥犬鳥"], required=[["魚"]])
    assert "魚" in found[1:] and " " not in found


def test_latin_phrases_are_found_in_languages_without_spaces(tmp_path: Path) -> None:
    """A Latin word that the model writes after a Japanese one is not repeated if required, and can be forbidden."""
    recipe = TokenizerRecipe(vocab_size=266, algorithm="char", character_coverage=1.0)
    train_tokenizer(["犬猫鳥魚", "ab cd", "犬ab"], recipe, tmp_path / "tokenizer.model")
    found = []
    for language in ("ja", "de"):
        tokenizers = Tokenizers.load(tmp_path, language)
        model = CopyModel(tokenizers.src.vocab_size)
        (required,) = make_translator(model, tokenizers, beam_size=8).translate(["犬ab猫"], required=[["ab"]])
        (forbidden,) = make_translator(model, tokenizers, forbid=["ab"]).translate(["犬ab猫"])
        found.append((required, "ab" in forbidden))
    assert found[0] == ("犬ab猫", False)
    assert found[1][0] != found[0][0] and found[1][1]


def test_bias_and_groups_of_the_recipe_are_applied(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    assert make_translator(model, tokenizers, bias={"dog": -20.0}).translate(["the old dog"]) != ["the old dog"]
    groups = make_translator(model, tokenizers, beam_size=4, beam_groups=2, n_best=2, diversity_penalty=9.0)
    [translations] = groups.translate_n_best(["the old dog"])
    assert len({translation.text for translation in translations}) == 2


def test_invalid_required_phrases_are_errors(tokenizers: Tokenizers) -> None:
    model = CopyModel(tokenizers.src.vocab_size)
    translator = make_translator(model, tokenizers, max_positions=6)
    sampling = make_translator(model, tokenizers, sampling=True)
    for one, required, message in (
        (translator, [["the cat"], []], "got 2 lists of required phrases for 1 line; "),
        (translator, [["the cat sees the old red tree"]], r"required phrases .* have 10 tokens; .* at most 5; "),
        (sampling, [["dog"]], "sampling does not support required phrases; "),
        (translator, [[" "]], "required phrase ' ' is empty; "),
        (translator, [[()]], r"required phrase \(\) is empty; "),
        (translator, [[("dog", "")]], r"required phrase \('dog', ''\) is empty; "),
    ):
        with pytest.raises(UserError, match=message) as raised:
            one.translate(["cat"], required=required)
        assert "\n" not in str(raised.value) and str(raised.value).count(";") == 2


def test_constraints_of_lines_without_text_are_ignored_even_if_no_output_fits(tokenizers: Tokenizers) -> None:
    translator = make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, max_positions=6)
    long = "the cat sees the old red tree"
    assert translator.translate(["cat", " "], ["", long], [[], [long]]) == ["cat", ""]
