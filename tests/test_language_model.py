"""Language models: models without a source, from text to scores and generated text."""

import json
import math
import re
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.checkpoint import load_model
from nmt.data.store import PairStore
from nmt.decode.generator import TextGenerator
from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.diagnostics.leaks import Leak, SetLeaks
from nmt.errors import RecipeError, UserError
from nmt.evaluate import likelihood
from nmt.experiments.launch import is_complete
from nmt.experiments.sweep import Run
from nmt.export.packages import is_installed
from nmt.grammar import generate
from nmt.packing.packed import PackedSequences
from nmt.pipeline import prepare, run, scoring
from nmt.processes.distributed import World
from nmt.recipe import DecodeRecipe, Recipe, TokenizerRecipe, parse_recipe
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.models import ServedModel
from nmt.serve.service import Limits, Service
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.storage.model_metadata import read_model_metadata
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.calling import Nmt, one_line

# Longer than ten words, repeated, with spaces at the end and with characters that are rare or decomposed.
UNUSUAL = ["one two three four five six seven eight nine ten eleven twelve", "same", "same", "cafe\u0301  ", "naïve 🙂"]


def recipe_of(folder: Path, *overrides: str) -> Recipe:
    text = f"""
        name = "lm"
        src_lang = "zxx"
        tgt_lang = "en"
        run_dir = '{folder / "run"}'
        [data]
        root = '{folder}'
        train = [{{ kind = "monolingual", path = "train" }}]
        valid = [{{ kind = "monolingual", path = "valid" }}]
        test.news = {{ kind = "monolingual", path = "test" }}
        workers = 1
        max_tokens = 127
        [tokenizer]
        algorithm = "char"
        vocab_size = 320
        [model]
        d_model = 32
        d_ff = 64
        num_heads = 2
        num_encoder_layers = 1
        num_decoder_layers = 1
        dropout = 0.0
        max_positions = 128
        [train]
        max_steps = 60
        batch_tokens = 1_000
        micro_batch_tokens = 1_000
        schedule = "constant"
        learning_rate = 1e-2
        warmup_steps = 5
        validate_every = 20
        save_every = 20
        precision = "fp32"
        device = "cpu"
        threads = 1
        [decode]
        max_extra_tokens = 60
        length_penalty = "none"
    """
    return parse_recipe(text, overrides)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    folder = tmp_path_factory.mktemp("lm")
    texts = [pair.src for pair in generate("train", 400, 1) if len(pair.src) < 100]
    for name, lines in (("train", [*texts[40:], *UNUSUAL]), ("valid", texts[:20]), ("test", texts[20:28])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "nmt.pipeline.reporting._draw_curves", lambda recipe: (None, ())
        )  # takes longer than the training
        run(recipe_of(folder))
    return folder / "run"


def bits(model: Path, text: str) -> float:
    """Return the negative binary logarithm of the probability of a text."""
    return bits_of_tokens(model, Tokenizers.load(model / "model").tgt.encode(text))


def bits_of_tokens(model: Path, tokens: list[int]) -> float:
    """Return the negative binary logarithm of the probability of tokens and EOS, computed one token at a time."""
    network = load_model(model, torch.device("cpu")).transformer
    zero = torch.zeros(1, 1, dtype=torch.int64)
    nats = 0.0
    with torch.inference_mode():
        state = network.start(PackedSequences.from_lists([[EOS_ID]]), 1)
        for last, token in pairwise([BOS_ID, *tokens, EOS_ID]):
            nats -= float(network.step(zero + last, state)[0, 0, token])
            state.reorder(zero)
    return nats / math.log(2)


@pytest.mark.slow
def test_run_reports_perplexity_and_bits_per_byte(language_model: Path) -> None:
    lines = (language_model.parent / "test").read_text(encoding="utf-8").splitlines()
    total = sum(bits(language_model, line) for line in lines)
    (test,) = json.loads((language_model / "report.json").read_text())["tests"]
    scores = {score["name"]: score["value"] for score in test["scores"]}
    assert scores["bits-per-byte"] == pytest.approx(total / sum(map(len, lines)), rel=1e-4)
    num_tokens = sum(len(line) + 2 for line in lines)  # characters, the space before the first word, and EOS
    assert math.log2(scores["perplexity"]) == pytest.approx(total / num_tokens, rel=1e-4)
    assert scores["bits-per-byte"] < 5.0  # uniform over the vocabulary is above 8


def test_a_finished_run_is_complete_for_nmt_repeat(language_model: Path) -> None:
    assert is_complete(Run(1, "lm", Path("lm.toml"), (), recipe_of(language_model.parent)))


def test_the_reported_time_excludes_the_second_scoring_of_clean_sentences(
    language_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []

    def score(scorer: object, texts: list[str]) -> tuple[()]:
        scored.append(len(texts))
        return ()

    monkeypatch.setattr(likelihood, "score_text", score)
    monkeypatch.setattr("nmt.evaluate.likelihood.time.perf_counter", lambda: sum(scored))
    leak = Leak(line=1, part="reference", kind="exact", corpus=0, number=1, times=1, found="")
    leaks = {"data.test.news": SetLeaks("data.test.news", 8, (leak,))}
    recipe = recipe_of(language_model.parent)
    (test,), _ = scoring.score_texts(recipe, World(0, 1, torch.device("cpu")), leaks)
    assert scored == [8, 7]
    assert test.seconds == 8


def test_preparation_drops_only_duplicates(language_model: Path) -> None:
    report = json.loads((language_model / "data" / "prepare.json").read_text())
    assert report["train"]["pairs"] == report["train"]["pairs_read"] - 1
    assert {reason: count for reason, count in report["train"]["drops"].items() if count} == {"duplicate": 1}
    assert report["train"]["src"]["tokens"] == 0


@pytest.mark.slow
def test_generated_text_continues_the_line(language_model: Path) -> None:
    decode = DecodeRecipe(sampling=True, n_best=4)
    generator: TextGenerator = TextGenerator.load(language_model, "cpu", "fp32", decode)
    lines = ["", "the ", "naïve"]
    outputs = generator.translate_n_best(lines)
    tokenizer = Tokenizers.load(language_model / "model").tgt
    for line, samples in zip(lines, outputs, strict=True):
        assert len({sample.text for sample in samples}) > 1
        for sample in samples:
            assert sample.text.startswith(line.strip())
            tokens = tokenizer.ids(sample.pieces)
            assert sample.log_prob == pytest.approx(-bits_of_tokens(language_model, tokens) * math.log(2), rel=1e-3)
    assert generator.translate_n_best(lines) == outputs


def test_beam_search_finds_a_more_probable_text_than_samples(language_model: Path) -> None:
    limit = {"max_extra_tokens": 10}
    search, sampling = DecodeRecipe(beam_size=8, **limit), DecodeRecipe(sampling=True, n_best=8, **limit)
    best = TextGenerator.load(language_model, "cpu", "fp32", search).translate_n_best(["the"])[0][0]
    sampled = TextGenerator.load(language_model, "cpu", "fp32", sampling)
    assert all(best.log_prob > sample.log_prob for sample in sampled.translate_n_best(["the"])[0])


def test_a_server_rejects_fields_that_a_language_model_ignores(language_model: Path) -> None:
    generator, decode = TextGenerator.load(language_model, "cpu"), read_model_metadata(language_model / "model").decode
    with pytest.raises(UserError, match="alternatives are for translation"):
        generator.alternatives("the old", "", 2)
    load_scorer = partial(TextScorer.load, language_model, "cpu")
    served = ServedModel("lm", ("zxx", "en"), decode, generator, load_scorer, BatchingOptions(), "torch")
    with TestClient(build_app(Service([served], Limits()))) as client:
        for path, body, message in (
            ("translate", {"text": "the old", "alternatives": True, "n_best": 2}, "alternatives is not supported"),
            ("translate", {"text": "", "prefix": "the old"}, "prefix is not supported: "),
            ("translate", {"text": "the old", "glossary": [["old", "new"]]}, "glossary is not supported: "),
            ("translate", {"text": "the old", "keep": ["numbers"]}, "keep is not supported: "),
            ("translate", {"text": "<p>the old", "format": "html"}, "format html is not supported: "),
            ("score", {"pairs": [["", "a"], ["the old", "a"]]}, "pair 2 has a source, which lm ignores"),
        ):
            response = client.post(f"/v1/{path}", json=body)
            assert (response.status_code, message in response.json()["error"]) == (400, True), response.text
        assert client.post("/v1/score", json={"pairs": [["", "the old"]]}).status_code == 200
    served.batcher.close()


@pytest.mark.slow
def test_text_from_a_blank_line_has_its_required_phrases(language_model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n", encoding="utf-8")
    (tmp_path / "phrases").write_text("cat\n", encoding="utf-8")
    code, out, err = nmt("translate", language_model, tmp_path / "text", "--required", tmp_path / "phrases")
    assert (code, "cat" in out, "ignored" in err) == (0, True, False), err


def test_scorer_ignores_sources(language_model: Path) -> None:
    scorer = TextScorer.load(language_model, "cpu")
    first, second = scorer.score(["", "a source"], ["the text"] * 2)
    assert first.log_prob == pytest.approx(second.log_prob, rel=1e-6)
    assert first.log_prob == pytest.approx(-bits(language_model, "the text") * math.log(2), rel=1e-4)


@pytest.mark.slow
def test_commands_score_and_continue_lines(language_model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the text\n\nété\n", encoding="utf-8")
    code, out, err = nmt("score", language_model, tmp_path / "text", "--device", "cpu")
    expected = [bits(language_model, line) for line in ("the text", "", "été")]
    assert code == 0
    assert [float(line) for line in out.splitlines()] == pytest.approx([-b * math.log(2) for b in expected], rel=1e-4)
    found = re.search(r"([0-9.]+) bits per byte", err)
    assert found and float(found[1]) == pytest.approx(sum(expected) / (8 + 0 + 5), rel=1e-4)

    code, out, err = nmt("translate", language_model, tmp_path / "text", "--set", "sampling=true", "--device", "cpu")
    assert code == 0
    first, _, third = out.splitlines()
    assert first.startswith("the text")
    assert third.startswith("été")


def test_crlf_does_not_change_scores(language_model: Path, nmt: Nmt, tmp_path: Path) -> None:
    outputs = []
    for end in ("\n", "\r\n"):
        (tmp_path / "text").write_bytes(f"the text{end}{end}a b{end}".encode())
        outputs.append(nmt("score", language_model, tmp_path / "text", "--device", "cpu"))
    assert outputs[0] == outputs[1]


def test_a_language_model_is_a_feature_of_reranking(language_model: Path, nmt: Nmt, tmp_path: Path) -> None:
    texts = ["the text", "xq zzz", "a dog"]
    translation = parse_recipe(
        """
        name = "random"
        src_lang = "de"
        tgt_lang = "en"
        data = { train = [{ kind = "toy" }], valid = [{ kind = "toy" }] }
        model = { d_model = 8, d_ff = 8, num_heads = 1, num_encoder_layers = 1, num_decoder_layers = 1 }
        """
    )
    write_random_model(tmp_path / "model", translation, numbered_word_tokenizers(20))
    (tmp_path / "src").write_text("w1 w2\n")
    (tmp_path / "nbest").write_text("".join(f"1\t{-1.0}\t{text}\n" for text in texts))
    (tmp_path / "weights").write_text("[weights]\ngiven = 0.0\nlength = 0.0\nmodel = 0.0\nmodel-2 = 1.0\n")
    arguments = (tmp_path / "model", tmp_path / "src", tmp_path / "nbest", "--weights", tmp_path / "weights")
    code, out, err = nmt("rerank", *arguments, "--model", language_model, "--n-best", "3", "--device", "cpu")
    assert code == 0, err
    found = {text: float(score) for _, score, text in (line.split("\t") for line in out.splitlines())}
    assert found == pytest.approx({text: -bits(language_model, text) * math.log(2) for text in texts}, rel=1e-3)
    assert list(found.values()) == sorted(found.values(), reverse=True)

    code, _, err = nmt("rerank", *arguments, "--reverse-model", language_model)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "is a language model of en; --reverse-model must translate from en to de" in err


def test_the_tag_of_a_corpus_is_the_source(tmp_path: Path, nmt: Nmt) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / name).write_text("".join(f"text {number}\n" for number in range(30)))
    corpora = ", ".join(f'{{kind="monolingual", path="{name}", tag="<{name}>"}}' for name in ("train", "test"))
    prepared = prepare(recipe_of(tmp_path, f"data.train=[{corpora}]", "data.drop_duplicates=false"))
    sources = PairStore(prepared.directory, "train").src
    tags = [prepared.tokenizers.src.tag_id(f"<{name}>") for name in ("train", "test")]
    assert sources.tokens.tolist() == [tag for tag in tags for _ in range(30)]
    assert sources.lengths.tolist() == [1] * 60
    code, _, err = nmt("shortlist", tmp_path / "run", "-o", tmp_path / "shortlist")
    assert code == 1 and "is the run of a language model; a shortlist needs source tokens" in one_line(err)


def test_runs_of_language_models_have_no_translations_to_compare(
    language_model: Path, nmt: Nmt, tmp_path: Path
) -> None:
    shutil.copytree(language_model, tmp_path / "other")
    code, _, err = nmt("compare", language_model, tmp_path / "other")
    assert code == 1
    assert f"{language_model} is the run of a language model, which has no translations to compare" in err


def test_alignments_are_listed_as_unsupported(language_model: Path) -> None:
    """The page of the server requests alignments unless they are listed; a language model rejects them."""
    generator = TextGenerator.load(language_model, "cpu", "fp32")
    with pytest.raises(UserError, match="alignments is for translation"):
        generator.with_decode(DecodeRecipe(alignments=True))
    assert "alignments" in generator.unsupported


def test_info_names_the_language_and_why_ctranslate2_cannot_run_the_model(language_model: Path, nmt: Nmt) -> None:
    _, out, _ = nmt("info", language_model)
    assert "en (language model)" in out
    reason = "cannot run this model: it is a language model" if is_installed("ctranslate2") else "not installed"
    assert reason in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "{lm}", "{text}", "{other}"), "is a language model, which scores SRC; leave out TGT"),
        (("translate", "{lm}", "{text}", "--prefixes", "{text}"), "prefixes and glossaries are for translation"),
        (("translate", "{lm}", "{text}", "--with-alignments"), "decode.alignments is for translation"),
        (("translate", "{lm}", "{text}", "--keep", "numbers"), "is a language model; leave out --keep"),
        (("translate", "{lm}", "{text}", "--input-format", "html"), "html input is for translation; "),
        (("translate", "{lm}", "{text}", "--split-sentences"), "decode.split_sentences is for translation"),
        (("translate", "{lm}", "{text}", "--set", "max_length_ratio=2"), "decode.max_length_ratio is for translation"),
        (("translate", "{lm}", "{text}", "--set", "trees=true"), "decode.trees is for translation"),
        (("translate", "{lm}", "{text}", "--engine", "ctranslate2"), "is a language model"),
        (("heads", "{lm}", "{text}", "{other}"), "is a language model; it must be a translation model"),
        (("align", "{lm}", "{text}", "{other}"), "is a language model; it must be a translation model"),
        (("export", "{lm}", "--to", "huggingface", "-o", "{out}"), "is a language model; it must be a translation"),
    ],
)
def test_unsupported_commands_and_options_are_one_line_errors(
    language_model: Path, nmt: Nmt, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "text").write_text("the text\n", encoding="utf-8")
    (tmp_path / "other").write_text("another text\n", encoding="utf-8")
    names = {"lm": str(language_model), **{name: str(tmp_path / name) for name in ("text", "other", "out")}}
    code, out, err = nmt(*(argument.format(**names) for argument in arguments))
    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_null_texts_are_not_continued(nmt: Nmt, tmp_path: Path) -> None:
    write_random_model(tmp_path / "model", recipe_of(tmp_path), numbered_word_tokenizers(80))
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"text": null}\n{"text": ""}\n')
    options = ("--output-format", "text", "--beam-size", 1, "--set", "min_tokens=2", "--device", "cpu")
    code, out, err = nmt("translate", tmp_path / "model", lines, *options)
    null, blank, _ = out.split("\n")
    assert (code, null, bool(blank)) == (0, "", True), err


def test_prefixes_and_terms_of_json_lines_are_rejected_before_any_line(nmt: Nmt, tmp_path: Path) -> None:
    write_random_model(tmp_path / "model", recipe_of(tmp_path), numbered_word_tokenizers(80))
    lines = tmp_path / "in.jsonl"
    for field in ('"prefix": "w2"', '"glossary": [["w1", "w2"]]'):
        lines.write_text(f'{{"text": "w1"}}\n{{"text": "w1", {field}}}\n')
        code, out, err = nmt("translate", tmp_path / "model", lines, "--window", 1, "--device", "cpu")
        assert (code, out) == (1, "") and "prefixes and glossaries are for translation" in err


def test_a_right_to_left_model_cannot_continue_a_line(tmp_path: Path) -> None:
    write_random_model(tmp_path / "model", recipe_of(tmp_path), numbered_word_tokenizers(80))
    generator = TextGenerator.load(tmp_path / "model", "cpu")
    generator._reverse_target = True
    with pytest.raises(UserError, match="this language model predicts text from right to left"):
        generator.translate(["w1"])
    assert generator.translate([" ", "\r"]) == generator.translate(["", ""])  # a blank line has nothing to continue


def test_translator_needs_a_translation_model(language_model: Path) -> None:
    with pytest.raises(UserError, match="is a language model; it must be a translation model"):
        Translator.load(language_model, "cpu")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["src_lang=de"], "data.train.0 has no source, but src_lang is 'de'"),
        (['data.valid=[{kind="toy"}]'], "data.valid.0 has kind 'toy', but src_lang is 'zxx'"),
        (["tokenizer.joint=false", "model.tied_embeddings=decoder"], "tokenizer.joint is false"),
        (["data.context=1"], "data.context needs a source"),
        (["train.validate_bleu_every=20"], "train.validate_bleu_every needs translations"),
        (
            ["data.valid=[{kind='monolingual', path='valid.de', src_lang='en'}]"],
            r"data\.valid\.0\.src_lang has no effect on a language model, which has no source; remove it",
        ),
        (
            ["tokenizer.algorithm=bpe", "train.subword_sampling=0.1", "train.subword_sampling_sides=src"],
            "train.subword_sampling_sides has no effect on a language model",
        ),
    ],
)
def test_options_that_need_a_source_are_errors(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_of(tmp_path, *overrides)


@pytest.mark.parametrize("algorithm", ["char", "byte"])
def test_characters_and_bytes_spell_any_text(tmp_path: Path, algorithm: str) -> None:
    options = TokenizerRecipe.model_validate({"algorithm": algorithm, "vocab_size": 300, "user_symbols": ["<web>"]})
    tokenizer = train_tokenizer(iter(["ab ab", "b \u4f60"]), options, tmp_path / "t.model")
    for text in ("ab b", "été 日本 🙂", "a"):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        if algorithm == "byte":
            assert len(tokens) == len(text.encode()) + 1  # the space before the first word
    special = 5  # padding, unknown, BOS, EOS and <web>
    assert tokenizer.vocab_size == special + 256 + {"byte": len("▁"), "char": len("▁ab你")}[algorithm]
    assert tokenizer.encode("<web>")[-1] == tokenizer.tag_id("<web>")
