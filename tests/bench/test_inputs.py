"""Benchmark inputs from user options."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.bench import inputs
from nmt.bench.inputs import DecodingRequest, prepare_decoding, prepare_training_data
from nmt.bench.model_specs import ModelSpec, find_model_spec
from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.data.prepare import prepare
from nmt.data.store import PairStore
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.storage.model_metadata import read_model_metadata
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "toy", pairs = 300 }]
valid = [{ kind = "toy", split = "valid", pairs = 10 }]
""",
    vocab_size=600,
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose corpus is prepared in `run` beside it."""
    path = tmp_path_factory.mktemp("tasks") / "small.toml"
    path.write_text(RECIPE)
    prepare(find_model_spec(str(path), [f"run_dir={path.parent / 'run'}"]).recipe)
    return path


def request(model: object, **options: object) -> DecodingRequest:
    defaults = {"source": None, "tokenizer": None, "num_sentences": 5, "vocab_size": None, "output_tokens": None}
    return DecodingRequest(str(model), **{**defaults, "settings": (), **options})  # type: ignore[arg-type]


def test_prepared_corpus_sets_the_vocabulary(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_model_spec(str(recipe), [], None)
    run = str(recipe.parent / "run")
    for folder in (run, f"{run}/data"):
        found, store = prepare_training_data(spec, folder, tmp_path, 1, None)
        assert (found.src_vocab_size, found.tgt_vocab_size) == (600, 600)
        assert 290 < len(store) <= 300
        assert found.recipe.directory == tmp_path / "run"
    larger = find_model_spec(str(recipe), [], 4_000)
    assert prepare_training_data(larger, run, tmp_path, 1, 4_000)[0].tgt_vocab_size == 4_000
    with pytest.raises(UserError, match="--vocab-size must be at least 600, the corpus vocabulary size, got 500"):
        prepare_training_data(find_model_spec(str(recipe), [], 500), run, tmp_path, 1, 500)
    separate = PairStore(Path(run) / "data", "train"), (600, 590)
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "open_corpus", lambda _: separate)
        with pytest.raises(UserError, match="vocabularies of 600 and 590 tokens; three-way tied embeddings need one"):
            prepare_training_data(spec, run, tmp_path, 1, None)
    short = find_model_spec(str(recipe), ["model.max_positions=9", "data.max_tokens=8"])
    with pytest.raises(UserError, match=r"the model has 9 positions; set model\.max_positions="):
        prepare_training_data(short, run, tmp_path, 1, None)


def test_random_corpus_suffices_for_all_updates(small_spec: ModelSpec, tmp_path: Path) -> None:
    _, store = prepare_training_data(small_spec, "wmt14", tmp_path, 7, None)
    assert len(store.tgt.tokens) + len(store) > 7 * 200
    assert store.src.lengths.max() <= 20


def test_the_weights_of_an_initial_model_are_not_read(small_spec: ModelSpec, tmp_path: Path) -> None:
    """They would not fit another vocabulary, and `kept` needs a checkpoint."""
    changes = {"start_from": tmp_path / "initial", "start_optimizer": "kept"}
    recipe = small_spec.recipe.model_copy(update={"train": small_spec.recipe.train.model_copy(update=changes)})
    found, _ = prepare_training_data(replace(small_spec, recipe=recipe), "wmt14", tmp_path, 1, None)
    assert (found.recipe.train.start_from, found.recipe.train.start_optimizer) == (None, "fresh")


def test_options_that_are_not_measured_are_named(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random or stored tokens have neither alignments nor other segmentations."""
    run = str(recipe.parent / "run")
    for options in ([], ["train.subword_sampling=0.1"], ["train.guided_alignment=true"], ["train.glossary_markup=0.1"]):
        train = prepare_training_data(find_model_spec(str(recipe), options), run, tmp_path, 1, None)[0].recipe.train
        assert (train.subword_sampling, train.guided_alignment, train.glossary_markup) == (0.0, False, 0.0)
        expected = [f"warning: the benchmark trains without {option.partition('=')[0]}\n" for option in options]
        assert capsys.readouterr().err == "".join(expected)
    prepare_training_data(find_model_spec(str(recipe), ['train.freeze=["encoder"]']), run, tmp_path, 1, None)
    assert "model FLOP/s include the gradients of frozen parameters (train.freeze)" in capsys.readouterr().err


def test_sentences_for_random_weights_are_numbers_or_text(recipe: Path, tmp_path: Path) -> None:
    model, decode, sentences = prepare_decoding(request(recipe, vocab_size=70), tmp_path / "numbers")
    assert read_model_metadata(model).src_vocab_size == 70
    assert (decode.min_length_ratio, decode.max_length_ratio) == (1.0, 1.0)
    assert len(sentences) == 5
    assert all(re.fullmatch(r"w\d+( w\d+)*", sentence) for sentence in sentences)
    (tmp_path / "text").write_text("The woman buys a car.\nThe man sleeps.\nWe work.\n")
    run = recipe.parent / "run"
    options = request(recipe, source=tmp_path / "text", tokenizer=run, num_sentences=2, output_tokens=16)
    model, decode, sentences = prepare_decoding(options, tmp_path / "text-model")
    assert read_model_metadata(model).src_vocab_size == 600
    assert sentences == ("The woman buys a car.", "The man sleeps.")
    assert (decode.min_tokens, decode.max_tokens) == (16, 16)


def test_length_ratios_replace_those_of_random_weights(recipe: Path, tmp_path: Path) -> None:
    for name, settings in (("longer", ("max_length_ratio=2",)), ("shorter", ("decode.min_length_ratio = 0.5",))):
        options = request(recipe, vocab_size=70, settings=settings)
        _, decode, _ = prepare_decoding(options, tmp_path / name)
        expected = (1.0, 2.0) if name == "longer" else (0.5, 1.0)
        assert (decode.min_length_ratio, decode.max_length_ratio) == expected


def test_a_packaged_recipe_has_random_weights(tmp_path: Path) -> None:
    model, _, _ = prepare_decoding(request("multi30k-en-de", vocab_size=300, output_tokens=5), tmp_path)
    assert read_model_metadata(model).tgt_vocab_size == 300


def test_number_tokenizers_ignore_the_shortlist_of_the_recipe(recipe: Path, tmp_path: Path) -> None:
    listed = tmp_path / "listed.toml"
    listed.write_text(recipe.read_text() + '[decode]\nshortlist = "list"\n')
    model, decode, _ = prepare_decoding(request(listed, vocab_size=70), tmp_path / "numbers")
    assert (decode.shortlist, read_model_metadata(model).decode.shortlist) == (None, None)


def test_number_tokenizers_ignore_tags_phrases_and_markup_of_the_recipe(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text().replace('kind = "toy", pairs = 300', 'kind = "toy", pairs = 300, tag = "<news>"')
    options = 'tag = "<news>"\nrequire = ["Hund"]\nforbid = ["Katze"]\nbeam_size = 2\n'
    (tmp_path / "own.toml").write_text(f"{text}glossary_markup = 0.1\n[decode]\n{options}")
    model, decode, sentences = prepare_decoding(request(tmp_path / "own.toml", vocab_size=70), tmp_path / "numbers")
    assert decode.beam_size == 2
    assert len(Translator.load(model, "cpu", decode=decode.all_given()).translate(sentences)) == 5


def test_a_missing_context_is_named(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("w1\n")
    for context in (0, 1):
        own = find_model_spec(str(recipe)).recipe
        write_random_model(tmp_path / f"model-{context}", own, numbered_word_tokenizers(50))
        toml = tmp_path / f"model-{context}" / "model.toml"
        assert "\nsize = 0\n" in toml.read_text()
        toml.write_text(toml.read_text().replace("\nsize = 0\n", f"\nsize = {context}\n"))
        prepare_decoding(request(toml.parent, source=tmp_path / "text"), tmp_path)
        assert ("without the context of this model" in capsys.readouterr().err) == bool(context)
        (tmp_path / "own.toml").write_text(RECIPE.replace("[data]", f"[data]\ncontext = {context}"))
        (tmp_path / f"random-{context}").mkdir()
        prepare_decoding(request(tmp_path / "own.toml", num_sentences=1), tmp_path / f"random-{context}")
        assert ("without the context of this model" in capsys.readouterr().err) == bool(context)


def test_language_models_have_empty_sources_and_do_not_translate(tmp_path: Path) -> None:
    lines = RECIPE.replace('src_lang = "en"', 'src_lang = "zxx"').splitlines()
    corpora = {name: f'{name} = [{{ kind = "monolingual", path = "{name}.txt" }}]' for name in ("train", "valid")}
    text = "\n".join(corpora.get(line.partition(" ")[0], line) for line in lines)
    (tmp_path / "lm.toml").write_text(text)
    spec = find_model_spec(str(tmp_path / "lm.toml"), ["train.batch_tokens=100"], 50)
    _, store = prepare_training_data(spec, "wmt14", tmp_path, 1, 50)
    assert store.src.lengths.sum() == 0
    assert store.tgt.lengths.sum() > 100
    with pytest.raises(UserError, match=r"lm.toml trains a language model; it must train a translation model"):
        prepare_decoding(request(tmp_path / "lm.toml"), tmp_path)


def test_trained_model_keeps_its_search_options(recipe: Path, tmp_path: Path) -> None:
    own = find_model_spec(str(recipe), ["decode.n_best=3", "decode.length_alpha=0.3", "decode.alignments=true"]).recipe
    write_random_model(tmp_path / "model", own, numbered_word_tokenizers(50))
    (tmp_path / "text").write_text("w1\n")
    options = request(tmp_path / "model", source=tmp_path / "text", settings=("beam_size=7",))
    model, decode, _ = prepare_decoding(options, tmp_path)
    assert model == tmp_path / "model"
    assert (decode.n_best, decode.length_alpha, decode.beam_size) == (1, 0.3, 7)
    assert not decode.alignments  # as in `nmt translate`
    with pytest.raises(UserError, match="needs sentences to translate; use --input FILE"):
        prepare_decoding(request(tmp_path / "model"), tmp_path)
    with pytest.raises(UserError, match="has its own tokenizers"):
        prepare_decoding(request(tmp_path / "model", source=tmp_path / "text", vocab_size=60), tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": Path("x")}, "random weights need a tokenizer to read text"),
        ({"tokenizer": Path("x"), "vocab_size": 60}, "--vocab-size and --tokenizer are mutually exclusive"),
        ({"model": "nowhere"}, "does not exist"),
        (
            {"output_tokens": 64},
            "--output-tokens is 64; the model has 64 positions, one for EOS; it must be at most 63",
        ),
        ({"output_tokens": 9, "settings": ("max_tokens=5",)}, "--output-tokens and --set max_tokens are mutually"),
        ({"output_tokens": 9, "settings": ("max_tokens = 5",)}, "--output-tokens and --set max_tokens are mutually"),
        ({"output_tokens": 9, "settings": ("decode.max_length_ratio=1",)}, "--set max_length_ratio are mutually"),
    ],
)
def test_incompatible_options_are_an_error(
    recipe: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        prepare_decoding(request(**{"model": recipe, **options}), tmp_path)


def test_empty_input_and_unused_tokenizer_are_errors(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    run = recipe.parent / "run"
    with pytest.raises(UserError, match="is empty; it must have one sentence per line"):
        prepare_decoding(request(recipe, source=tmp_path / "empty", tokenizer=run), tmp_path / "a")
    with pytest.raises(UserError, match="--tokenizer has no effect without --input"):
        prepare_decoding(request(recipe, tokenizer=run), tmp_path / "b")
