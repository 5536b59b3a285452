"""Context in translation: what the model reads, and which part of its output is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.decode.context import ContextEncoder
from nmt.decode.documents import document_rounds, translate_documents
from nmt.decode.scoring import TextScorer, score_pairs
from nmt.decode.task import Task
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.export.description import describe_model, description_lines
from nmt.export.engine import CTranslate2Translator
from nmt.heads.analysis import MaskedBleu
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch
from nmt.recipe import Context, DecodeRecipe, ModelRecipe, TokenizerRecipe
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import UNK_ID
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from tests.calling import Nmt
from tests.extras import import_ctranslate2, needs_ctranslate2

NONE, SOURCE, BOTH = Context(), Context(2), Context(2, "both")
LINES = ["a cat sees the dog", "the dog sleeps", "it is red", "he likes it"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    options = TokenizerRecipe(vocab_size=300, user_symbols=("<sep>",))
    return train_tokenizer(LINES * 9, options, tmp_path_factory.mktemp("t") / "t.model")


@pytest.fixture(scope="module")
def load(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes the same random model with any context and options, and returns its path."""
    torch.manual_seed(3)
    recipe = ModelRecipe(d_model=16, d_ff=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0)
    model = Transformer(recipe, tokenizer.vocab_size, tokenizer.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)  # otherwise the source hardly matters

    def write(context: Context, **options: int) -> Path:
        path, vocab = tmp_path_factory.mktemp("models") / "model", tokenizer.vocab_size
        search = {"beam_size": 3, "n_best": 3, "max_extra_tokens": 5, "length_alpha": 0.6}
        decode = DecodeRecipe.model_validate(search | options)
        metadata = ModelMetadata("en", "de", vocab, vocab, "NFC", decode, max_tokens=60, context=context)
        files = model_files(recipe, model_tensors(model), Tokenizers(tokenizer, tokenizer).files(), metadata)
        write_directory(path, files)
        return path

    return write


def ids(tokenizer: Tokenizer, *sentences: str) -> list[int]:
    """Return the tokens of sentences, with the separator between them."""
    separator = tokenizer.tag_id("<sep>")
    return [token for one in sentences for token in (*tokenizer.encode(one), separator)][:-1]


def description(model: Path) -> dict[str, str]:
    """Return the values that `nmt info` shows, by label."""
    values = {}
    for line in description_lines(describe_model(model)):
        label, _, value = line.partition("  ")
        values[label] = value.strip()
    return values


def test_metadata_has_the_context(load: Callable[[Context], Path]) -> None:
    assert [read_model_metadata(load(one)).context for one in (NONE, SOURCE, BOTH)] == [NONE, SOURCE, BOTH]
    assert description(load(BOTH))["context"] == "2 previous sentences, with translations"
    assert "context" not in description(load(NONE))


@needs_ctranslate2
def test_info_names_what_ctranslate2_lacks_with_previous_translations(load: Callable[..., Path]) -> None:
    engines = [describe_model(load(one, no_repeat_ngram=2))["engines"]["ctranslate2"] for one in (SOURCE, BOTH)]
    assert "fp32" in engines[0]
    reason = "no support for decode.no_repeat_ngram with previous translations"
    assert engines[1] == f"cannot run this model: {reason}"


@pytest.mark.slow
def test_the_model_reads_the_previous_sentences(load: Callable[[Context], Path], tokenizer: Tokenizer) -> None:
    with_context, plain = (Translator.load(load(one), "cpu", "fp32") for one in (SOURCE, NONE))
    contexts: list[list[str]] = [[], LINES[:1], LINES[:2], LINES[:3]]
    found = with_context.translate_n_best(LINES, context=contexts)
    tasks = [Task(ids(tokenizer, *before[-2:], line), [], []) for before, line in zip(contexts, LINES, strict=True)]
    expected = plain._search(tasks, plain._options)
    for own, hypotheses in zip(found, expected, strict=True):
        assert [one.text for one in own] == [tokenizer.decode(one.tokens) for one in hypotheses]
        assert [one.score for one in own] == pytest.approx([one.score for one in hypotheses], rel=1e-5)
    assert found[3][0].log_prob != pytest.approx(plain.translate_n_best(LINES)[3][0].log_prob, rel=1e-3)
    assert with_context.translate(LINES) == plain.translate(LINES)


@pytest.mark.slow
def test_previous_translations_begin_the_output(load: Callable[[Context], Path], tokenizer: Tokenizer) -> None:
    path = load(BOTH)
    with_context, plain = Translator.load(path, "cpu", "fp32"), Translator.load(load(NONE), "cpu", "fp32")
    previous = [("a cat sees the dog", "the dog"), ("the dog sleeps", "he sleeps")]
    (found,) = with_context.translate_n_best(["it is red"], context=[previous], prefixes=["a"])
    prefix = [*ids(tokenizer, "the dog", "he sleeps"), tokenizer.tag_id("<sep>"), *tokenizer.encode("a")]
    task = Task(ids(tokenizer, "a cat sees the dog", "the dog sleeps", "it is red"), prefix, [])
    num_previous = len(ids(tokenizer, "the dog", "he sleeps")) + 1
    longer = replace(plain._options, max_extra_tokens=plain._options.max_extra_tokens + num_previous)
    (expected,) = plain._search([task], longer)
    assert {tokenizer.decode(one.tokens[num_previous:]) for one in expected} == {one.text for one in found}
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert one.text.startswith("a")
        tokens = [*prefix[:num_previous], *tokenizer.ids(one.pieces)]
        (scored,) = score_pairs(
            load_model(path, torch.device("cpu")).model, Batch.from_lists([task.sentence], [tokens])
        )
        assert one.token_log_probs == pytest.approx(scored.token_log_probs[num_previous:], abs=1e-3)
        assert one.log_prob == pytest.approx(sum(one.token_log_probs))
        assert one.score == pytest.approx(one.log_prob / ((5 + len(one.pieces) + 1) / 6) ** 0.6)


def test_the_best_translation_is_chosen_without_the_previous_translations(
    load: Callable[[Context], Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator.load(load(BOTH), "cpu", "fp32", DecodeRecipe(n_best=1, length_penalty="none"))
    before = [*tokenizer.encode("he"), tokenizer.tag_id("<sep>")]

    def search(tasks: list[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        hypotheses = []
        for text, log_prob in (("it", -1.0), ("the dog", -0.5)):  # without the previous translations
            tokens = [*before, *tokenizer.encode(text)]
            hypotheses.append(Hypothesis(tokens, 0.0, 0.0, [0.0] * len(tokens) + [log_prob]))
        return [translator._in_reading_order(hypotheses[: options.n_best]) for _ in tasks]

    monkeypatch.setattr(translator, "_search", search)
    for n_best, expected in ((1, ["the dog"]), (2, ["the dog", "it"])):
        (found,) = translator.translate_n_best(["it is red"], n_best, context=[[("the dog sleeps", "he")]])
        assert [one.text for one in found] == expected
    found = translator.alternatives("it is red", "", 1, context=[("the dog sleeps", "he")])
    assert [one.text for one in found] == ["the dog"]


def test_a_prefix_with_a_separator_is_an_error(load: Callable[[Context], Path]) -> None:
    translator = Translator.load(load(BOTH), "cpu", "fp32")
    with pytest.raises(UserError, match="the prefix contains <sep>, which ends the context of this model; remove it"):
        translator.translate([LINES[0]], prefixes=["the <sep> dog"])
    assert len(Translator.load(load(SOURCE), "cpu", "fp32").translate([LINES[0]], prefixes=["the <sep> dog"])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["first", "exact"])
def test_constraints_do_not_count_previous_translations(load: Callable[[Context], Path], stop: str) -> None:
    translator = Translator.load(load(BOTH), "cpu", "fp32")
    contexts = [[("a cat sees the dog", "the dog it it")], [], [("it is red", "he"), ("it is red", "the dog")]]

    def found(prefix: str = "", **options: Any) -> list[Translation]:
        searching = translator.with_decode(DecodeRecipe(stop=stop, **options))
        lists = searching.translate_n_best(LINES[1:], prefixes=[prefix] * 3, context=contexts)
        return [one for translations in lists for one in translations]

    for required in (found(require=["the dog"]), found(require=["the dog"], no_repeat_ngram=1)):
        assert all("the dog" in one.text for one in required)
    assert all(one.text.startswith("he") and len(one.pieces) <= 2 for one in found("he", max_tokens=2))
    assert all(len(one.pieces) >= 9 for one in found(min_tokens=9))
    assert all("the dog" in one.text for one in found(bias={"the dog": 400.0}, n_best=1))
    avoiding = found(bias={"the dog": -400.0}, n_best=1)
    assert [one.score * ((5 + len(one.pieces) + 1) / 6) ** 0.6 for one in avoiding] == pytest.approx(
        [one.log_prob for one in avoiding]
    )


def test_long_previous_translations_do_not_shorten_a_translation(load: Callable[..., Path]) -> None:
    num_tokens = len(Tokenizers.load(load(BOTH)).src.encode(LINES[0]))
    decode = DecodeRecipe(max_extra_tokens=5, min_tokens=num_tokens + 5)
    translator = Translator.load(load(BOTH), "cpu", "fp32", decode)
    (found,) = translator.translate_n_best(LINES[:1], context=[[("it", " ".join(LINES))]])
    assert all(len(one.pieces) >= num_tokens + 5 for one in found)


def test_previous_translations_that_exceed_the_language_model_are_dropped(load: Callable[..., Path]) -> None:
    translator = Translator.load(load(BOTH), "cpu", "fp32")
    translator._encoder.limit_outputs(len(translator._tokenizers.tgt.encode(LINES[0])))  # few positions
    without_context = translator.translate(["it is red"])
    assert translator.translate(["it is red"], context=[[("he", LINES[0])]]) == without_context


def test_ctranslate2_applies_constraints_to_the_sentence_alone(load: Callable[[Context], Path]) -> None:
    import_ctranslate2()
    path, contexts = load(BOTH), [[("a cat sees the dog", "the dog it it")], []]
    for options in ({"max_tokens": 2}, {"min_tokens": 9}):
        decode = DecodeRecipe(n_best=1, stop="first", **options)
        ours, theirs = (
            engine.load(path, "cpu", "fp32", decode).translate(LINES[2:], context=contexts)
            for engine in (Translator, CTranslate2Translator)
        )
        assert theirs == ours
    with pytest.raises(UserError, match="CTranslate2 does not support no_repeat_ngram for models that get previous"):
        CTranslate2Translator.load(path, "cpu", "fp32", DecodeRecipe(no_repeat_ngram=2))


@pytest.mark.parametrize("penalty", ["power", "none"])
def test_low_patience_limits_the_hypotheses_of_ctranslate2(load: Callable[..., Path], penalty: str) -> None:
    """The best of the whole beam is reranked, and CTranslate2 returns only a fraction of the beam."""
    import_ctranslate2()
    decode = DecodeRecipe.model_validate(
        {"beam_size": 4, "n_best": 1, "stop": "patience", "patience": 0.5, "length_penalty": penalty, "max_tokens": 6}
    )
    for engine in (Translator, CTranslate2Translator):
        assert len(engine.load(load(BOTH), "cpu", "fp32", decode).translate(LINES)) == len(LINES)


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_streamed_text_has_no_previous_translations(load: Callable[[Context], Path], engine: str) -> None:
    if engine == "ctranslate2":
        import_ctranslate2()
    kind = Translator if engine == "torch" else CTranslate2Translator
    greedy = kind.load(load(BOTH), "cpu", "fp32", DecodeRecipe(beam_size=1, n_best=1))
    for context in ([("a cat sees the dog", "the dog"), ("it is red", "he")], []):
        reported: list[str] = []
        (translated,) = greedy.with_callback(reported.append).translate([LINES[2]], prefixes=["it"], context=[context])
        assert reported[0] == "it"
        assert reported[-1].startswith(translated)  # CTranslate2 also reports a token above the limit


@pytest.mark.slow
def test_outputs_have_no_separator(load: Callable[[Context], Path]) -> None:
    decode = DecodeRecipe(sampling=True, n_best=200, temperature=100.0)  # samples all tokens about equally often
    translator = Translator.load(load(BOTH), "cpu", "fp32", decode)
    for context in ([], [("the dog sleeps", "he sleeps")]):
        (found,) = translator.translate_n_best([LINES[0]], context=[context], prefixes=["the dog"])
        assert all(one.text.startswith("the dog") for one in found)  # text before a separator would be removed


def test_heads_are_measured_with_the_same_search(load: Callable[..., Path], tokenizer: Tokenizer) -> None:
    """The context of a sentence includes the sentences before it in the same line."""
    path, lines = load(SOURCE, split_sentences=True), ["A cat sees the dog. The dog sleeps. It is red."]
    loaded, tokenizers = load_model(path, torch.device("cpu")), Tokenizers(tokenizer, tokenizer)
    expected = Translator.load(path, "cpu", "fp32").translate(lines)
    assert MaskedBleu(loaded, tokenizers, lines, expected).without([]).value == pytest.approx(100)


def test_context_may_be_arrays(load: Callable[[Context], Path]) -> None:
    scorer, contexts = TextScorer.load(load(SOURCE), "cpu"), [LINES[:2], LINES[:1]]
    arrays: Any = [np.array(sentences) for sentences in contexts]
    expected = scorer.score(LINES[2:], LINES[2:], context=contexts)
    assert scorer.score(LINES[2:], LINES[2:], context=arrays) == expected
    with pytest.raises(UserError, match="the model translates without context"):
        Translator.load(load(NONE), "cpu").translate(LINES[2:], context=arrays)


@pytest.mark.parametrize("context", [SOURCE, BOTH])
def test_scores_are_those_of_the_sentence_alone(
    context: Context, load: Callable[[Context], Path], tokenizer: Tokenizer
) -> None:
    scorer = TextScorer.load(load(context), "cpu")
    targets = ["he sleeps", "", "the dog", "it"]
    sources = [LINES[0], "", *LINES[1:3]]
    documents = scorer.documents(sources, targets)
    assert documents is not None
    assert list(map(len, documents)) == [0, 1, 0, 1]
    before = [*tokenizer.encode("the dog"), tokenizer.tag_id("<sep>")] if context is BOTH else []
    batch = Batch.from_lists([ids(tokenizer, LINES[1], LINES[2])], [[*before, *tokenizer.encode("it")]])
    (expected,) = score_pairs(load_model(load(context), torch.device("cpu")).model, batch)
    found = scorer.score(sources, targets, context=documents)
    assert found[3].token_log_probs == pytest.approx(expected.token_log_probs[len(before) :], abs=1e-4)
    assert found[3].log_prob == pytest.approx(sum(found[3].token_log_probs))
    assert found[3].pieces == [*tokenizer.pieces(tokenizer.encode("it")), "</s>"]
    assert TextScorer.load(load(NONE), "cpu").documents(sources, targets) is None


def test_a_target_that_fits_only_without_context_is_scored_without(load: Callable[..., Path]) -> None:
    scorer, target = TextScorer.load(load(BOTH), "cpu"), " ".join([LINES[1]] * 204)
    (alone,) = scorer.score(["it"], [target])
    assert len(alone.pieces) == 1_021  # of 1,024 positions
    (found,) = scorer.score(["it"], [target], context=[[("it", LINES[0])]])
    assert found.token_log_probs == pytest.approx(alone.token_log_probs)


def test_sums_of_scores_leave_out_only_the_ends_of_documents(
    load: Callable[[Context], Path], nmt: Nmt, tmp_path: Path
) -> None:
    (tmp_path / "src").write_text(f"{LINES[0]}\n{LINES[1]}\n\n\n{LINES[2]}\n")
    (tmp_path / "tgt").write_text("he sleeps\n\n\nthe dog\nit\n")
    _, scored, err = nmt("score", load(SOURCE), tmp_path / "src", tmp_path / "tgt", "--per-token")
    rows = [line.split("\t") for line in scored.splitlines()]
    counted = [(float(log_prob), len(tokens.split(" "))) for log_prob, tokens in rows[:2] + rows[3:]]
    total = re.search(
        r"5 pairs \(1 empty, which only end documents\), ([0-9]+) tokens: log-probability (-[0-9.]+)", err
    )
    assert total is not None and int(total[1]) == sum(tokens for _, tokens in counted)
    assert float(total[2]) == pytest.approx(sum(log_prob for log_prob, _ in counted), abs=0.01)


def test_a_text_that_only_ends_documents_has_no_score(
    load: Callable[[Context], Path], nmt: Nmt, tmp_path: Path
) -> None:
    (tmp_path / "blank").write_text("\n\n")
    status, scored, err = nmt("score", load(SOURCE), tmp_path / "blank", tmp_path / "blank")
    assert status == 0 and len(scored.splitlines()) == 2
    assert "2 pairs (2 empty, which only end documents), 0 tokens: log-probability 0.00, perplexity 1.0000" in err


def test_alternatives_use_the_context(load: Callable[[Context], Path]) -> None:
    translator = Translator.load(load(SOURCE), "cpu", "fp32")
    texts = [
        [one.text for one in translator.alternatives(LINES[2], "a", 4, context=context)] for context in ([], LINES[:2])
    ]
    assert len(texts[1]) > 1
    assert texts[0] != texts[1]


def test_the_first_samples_do_not_depend_on_their_number(load: Callable[[Context], Path]) -> None:
    translator = Translator.load(load(BOTH), "cpu", "fp32", DecodeRecipe(sampling=True, n_best=5))
    context = [[(LINES[0], LINES[1])]]
    one, several = (translator.translate_n_best(LINES[2:3], count, context=context)[0] for count in (2, 5))
    assert [sample.text for sample in one] == [sample.text for sample in several[:2]]
    assert [sample.score for sample in several] != sorted([sample.score for sample in several], reverse=True)
    translator = Translator.load(load(BOTH), "cpu", "fp32", DecodeRecipe(sampling=True, n_best=1))
    (more,) = translator.translate_n_best(LINES[2:3], 5, context=context)
    assert [sample.text for sample in more] == [sample.text for sample in several]


def test_the_oldest_sentences_are_dropped_first(tokenizer: Tokenizer) -> None:
    tokenizers, sentence = Tokenizers(tokenizer, tokenizer), tokenizer.encode(LINES[2])
    lengths = [len(tokenizer.encode(line)) + 1 for line in LINES[:2]]
    encoder = ContextEncoder(SOURCE, tokenizers, "NFC")

    def read(limit: int) -> list[int]:
        (task,) = encoder.add([Task(sentence, [7], [])], LINES[:2], limit)
        assert task.prefix == [7]
        return task.sentence

    full = sum(lengths) + len(sentence)
    assert read(full) == ids(tokenizer, *LINES[:3])
    assert read(full - 1) == read(lengths[1] + len(sentence)) == ids(tokenizer, *LINES[1:3])
    assert read(lengths[1] + len(sentence) - 1) == read(1) == sentence
    both = ContextEncoder(BOTH, tokenizers, "NFC")
    pairs = [(LINES[0], "he"), (LINES[1], " ".join(LINES) * 2)]
    (task,) = both.add([Task(sentence, [7], [])], pairs, full)
    assert (task.sentence, task.prefix) == (sentence, [7])  # the translation of the newest one is too long
    (task,) = both.add([Task(sentence, [7] * full, [])], [(LINES[1], "he")], full)
    assert (task.sentence, task.prefix) == (sentence, [7] * full)  # so is the prefix


def test_only_the_newest_sentences_are_encoded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, encoded = ContextEncoder(SOURCE, Tokenizers(tokenizer, tokenizer), "NFC"), list[str]()

    def encode(sentence: str) -> tuple[list[int], list[int]]:
        encoded.append(sentence)
        return [5], []

    monkeypatch.setattr(encoder, "_encode", encode)
    encoder.add([Task([6], [], [])], [*LINES, "a dog. A cat."], 99, split=True)
    assert encoded == ["a dog.", "A cat."]


def test_parts_of_a_line_are_in_the_context_of_later_parts(tokenizer: Tokenizer) -> None:
    parts = [Task(tokenizer.encode(line), [], []) for line in LINES[1:]]
    tokenizers = Tokenizers(tokenizer, tokenizer)
    found = ContextEncoder(SOURCE, tokenizers, "NFC").add(parts, LINES[:1], 99)
    expected = [LINES[:2], LINES[:3], LINES[1:4]]
    assert [task.sentence for task in found] == [ids(tokenizer, *sentences) for sentences in expected]
    found = ContextEncoder(SOURCE, tokenizers, "NFC").add(parts[:1], ["It is red. He likes it."], 99, split=True)
    assert found[0].sentence == ids(tokenizer, "It is red.", "He likes it.", LINES[1])


def test_previous_sentences_without_text_are_left_out(tokenizer: Tokenizer) -> None:
    """They are not blank lines, but a line of only tags without these, or of invisible characters."""
    tokenizers, task = Tokenizers(tokenizer, tokenizer), Task(tokenizer.encode(LINES[1]), [], [])
    (found,) = ContextEncoder(SOURCE, tokenizers, "NFC").add([task], [LINES[0], "\u200b"], 99)
    assert found.sentence == ids(tokenizer, LINES[0], LINES[1])
    (found,) = ContextEncoder(BOTH, tokenizers, "NFC").add([task], [(LINES[0], "he"), ("", "")], 99)
    assert (found.sentence, len(found.prefix)) == (ids(tokenizer, LINES[0], LINES[1]), len(ids(tokenizer, "he", "")))


def test_a_separator_in_the_text_becomes_the_unknown_token(tokenizer: Tokenizer) -> None:
    separator, text = tokenizer.tag_id("<sep>"), "a <sep> dog"
    task = Task(tokenizer.encode(text), [], [])
    tokenizers = Tokenizers(tokenizer, tokenizer)
    (found,) = ContextEncoder(SOURCE, tokenizers, "NFC").add([task], [text], 99)
    assert (found.sentence.count(separator), found.sentence.count(UNK_ID)) == (1, 2)
    (found,) = ContextEncoder(BOTH, tokenizers, "NFC").add([task], [(text, text)], 99)
    assert (found.sentence.count(separator), found.prefix.count(separator)) == (1, 1)


@pytest.mark.parametrize(
    ("context", "previous", "message"),
    [
        (NONE, ["a dog"], "the model translates without context; omit the context, or train a"),
        (SOURCE, [("a", "b")], "the context of this model must have sentences; got ('a', 'b'); correct it"),
        (BOTH, ["a"], "the context of this model must have pairs of a sentence and its translation; got 'a'; "),
    ],
)
def test_wrong_context_is_an_error(context: Context, previous: list[Any], message: str, tokenizer: Tokenizer) -> None:
    encoder = ContextEncoder(context, Tokenizers(tokenizer, tokenizer), "NFC")
    with pytest.raises(UserError) as raised:
        encoder.add([Task([5], [], [])], previous, 99)
    assert str(raised.value).startswith(message)


def test_limits_relative_to_the_source_are_errors(load: Callable[[Context], Path]) -> None:
    with pytest.raises(UserError, match=r"decode\.min_length_ratio does not support a model with context; "):
        Translator.load(load(SOURCE), "cpu", decode=DecodeRecipe(min_length_ratio=0.5))


def test_ensemble_members_have_the_same_context(load: Callable[[Context], Path]) -> None:
    with pytest.raises(UserError, match="translate with different context; ensemble members must have the same"):
        Translator.load(load(SOURCE), "cpu", ensemble=[load(BOTH)])


def test_rounds_have_one_line_of_each_document() -> None:
    assert document_rounds([0, 1, 2, 2, 0, 1, 0, 0, 1]) == [[0, 4, 6, 7], [1, 5, 8], [2], [3]]


class Recorder:
    """Translates a line to upper case, and records the lines and contexts of each call."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.calls: list[list[tuple[str, list[Any]]]] = []

    def translate_n_best(self, lines: Sequence[str], *, context: Sequence[Sequence[Any]]) -> list[list[Translation]]:
        self.calls.append([(line, list(own)) for line, own in zip(lines, context, strict=True)])
        return [[Translation(line.upper(), 0.0, 0.0, [])] for line in lines]


class Lines(list[str]):
    """Lines that must not be read in full for each line."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the cost of a document is quadratic")


def test_documents_are_translated_with_their_own_translations() -> None:
    lines, previous = Lines(["a", "b", "c", "", "d", "e"]), [0, 1, 2, 2, 0, 1]
    recorder: Any = Recorder(BOTH)
    assert translate_documents(recorder, lines, previous, 2) == ["A", "B", "C", "", "D", "E"]
    assert recorder.calls == [
        [("a", []), ("d", [])],
        [("b", [("a", "A")]), ("e", [("d", "D")])],
        [("c", [("a", "A"), ("b", "B")])],
        [("", [("b", "B"), ("c", "C")])],
    ]
    recorder = Recorder(SOURCE)
    done: list[int] = []
    assert translate_documents(recorder, lines, previous, 4, done.append) == ["A", "B", "C", "", "D", "E"]
    assert done == [4, 2]
    assert [call for calls in recorder.calls for call in calls][2] == ("c", ["a", "b"])
