"""Preparation with reused and trained tokenizers, compared with a simple reference implementation."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from nmt.data.pair_text import decode_pairs, locate_pairs
from nmt.data.prepare import Prepared, prepare
from nmt.data.reused_tokenizers import expected_vocab_sizes, reused_tokenizers
from nmt.errors import UserError
from nmt.recipe import Recipe, TokenizerRecipe, parse_recipe
from nmt.storage.sealed import CorruptError, write_directory
from nmt.text.clean import Cleaner
from nmt.text.tokenizer import Tokenizers, train_tokenizers
from tests.data.directories import contents, stored

RECIPE = """
name = "test"
src_lang = "en"
tgt_lang = "de"
[data]
train = [
  { kind = "text", src = "news.en", tgt = "news.de" },
  { kind = "text", src = "empty.en", tgt = "empty.de" },
  { kind = "text", src = "web.en", tgt = "web.de", tag = "<web>" },
  { kind = "text", src = "news.en", tgt = "news.de", tag = "<old>" },
]
valid = [{ kind = "text", src = "web.en", tgt = "web.de" }]
max_tokens = 40
workers = 1
[model]
max_positions = 41
"""
PAIRS = [(f"the cat sees {n} mice", f"die Katze sieht {n * n} Mäuse") for n in range(40)]
ODD = [
    ("", "leer"),
    ("leer", " \u200b\u3000"),
    ("\u2581", "nur ein Leerzeichen"),
    ("damaged \x00 text", "kaputter Text"),
    ("damaged", "kaputter \ufffd Text"),
    ("x" * 641, "zu lang"),
    (" ".join("abcdefghijkl"), "a"),
    ("this stayed as it was", "this stayed as it was"),
    ("хорошо", "gut"),
    ("ab " * 60, "cd " * 60),
    ("a \u2581 b\u2581", "\u2581"),
    ("e\u0301\u00a0ﬁ", "\ttwo  spaces\r"),
    ("<web> <old> </s>", "<web>words<old>"),
    ("\u2581", "漢" * 14),
    ("漢" * 13, "x"),
    ("漢" * 12 + "QQ", "x"),
    ("twice", "doppelt"),
    ("twice\r", "doppelt\u200b"),
    ("twice", "zweimal"),
]
CORPORA = {
    "news": [*PAIRS[:25], *ODD, *PAIRS[5:12], *PAIRS[:1]],
    "empty": [],
    "web": [*PAIRS[20:], *ODD[::-1], PAIRS[30]],
}
OPTIONS = [
    (),
    ("data.reverse_target=true", "data.unicode_form='NFKC'"),
    ("data.drop_duplicates=false", "data.drop_identical=false", "data.drop_wrong_script=false", "data.max_tokens=25"),
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizers]:
    trained = {}
    for algorithm, joint in (("bpe", True), ("bpe", False), ("unigram", True)):
        recipe = TokenizerRecipe(vocab_size=310, joint=joint, algorithm=algorithm, user_symbols=("<web>", "<old>"))
        name = f"{algorithm}, {'joint' if joint else 'separate'}"
        trained[name] = train_tokenizers(lambda: PAIRS, recipe, tmp_path_factory.mktemp("model"))
    return trained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pairs in CORPORA.items():
        for side, language in enumerate(("en", "de")):
            (tmp_path / f"{name}.{language}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
    return tmp_path


def recipe_for(folder: Path, run: str, reused: Tokenizers | None, *options: str) -> Recipe:
    required = [f"run_dir='{folder / run}'", f"data.root='{folder}'"]
    if reused is None:
        required += ["tokenizer.vocab_size=330"]
    else:
        write_directory(folder / f"{run} model", {"model.toml": b"", "model.safetensors": b"weights", **reused.files()})
        required += [f"tokenizer.start_from='{folder / f'{run} model'}'"]
        required += [] if reused.joint else ["model.tied_embeddings='none'"]
    return parse_recipe(RECIPE, [*required, *options])


def expected(recipe: Recipe, tokenizers: Tokenizers) -> tuple[list[tuple[list[int], list[int]]], dict[str, Any]]:
    """Return the expected store and counts, computed pair by pair."""
    cleaner = Cleaner(recipe.data, "en", "de")
    seen: set[tuple[str, str]] = set()
    kept: list[tuple[list[int], list[int]]] = []
    drops: Counter[str] = Counter()
    corpora, words = [], [0, 0]
    for corpus in recipe.data.train:
        pairs = CORPORA[Path(corpus.src).stem]  # type: ignore[union-attr]
        before = len(kept)
        tag = [tokenizers.src.user_symbols()[corpus.tag]] if corpus.tag else []
        for pair in pairs:
            clean = cleaner.clean(*pair)
            if isinstance(clean, str):
                drops[clean] += 1
            elif recipe.data.drop_duplicates and clean in seen:
                drops["duplicate"] += 1
            else:
                seen.add(clean)
                src, tgt = tokenizers.src.encode(clean[0]), tokenizers.tgt.encode(clean[1])
                if not src or not tgt:
                    drops["empty"] += 1
                elif max(len(tag + src), len(tgt)) > recipe.data.max_tokens:
                    drops["too many tokens"] += 1
                else:
                    kept.append((tag + src, tgt[::-1] if recipe.data.reverse_target else tgt))
                    words = [count + len(text.split()) for count, text in zip(words, clean, strict=True)]
        corpora.append({"pairs_read": len(pairs), "pairs": len(kept) - before})
    return kept, {"drops": drops, "corpora": corpora, "words": words}


def assert_as_expected(prepared: Prepared, recipe: Recipe) -> Counter[str]:
    """Compare the store and the report with those of `expected`; return the dropped pairs per reason."""
    kept, report = expected(recipe, prepared.tokenizers)
    train = prepared.report["train"]
    assert stored(prepared) == kept
    assert {reason: count for reason, count in train["drops"].items() if count} == report["drops"]
    assert train["corpora"] == report["corpora"]
    assert [train[side]["words"] for side in ("src", "tgt")] == report["words"]
    assert [train[side]["tokens"] for side in ("src", "tgt")] == [sum(len(pair[i]) for pair in kept) for i in (0, 1)]
    drops: Counter[str] = report["drops"]
    return drops


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("kind", "chunk"), [("bpe, joint", 5), ("bpe, separate", 5), ("unigram, joint", 5), ("bpe, joint", 4096)]
)
def test_a_reused_tokenizer_gives_the_expected_store(
    kind: str,
    chunk: int,
    options: tuple[str, ...],
    folder: Path,
    tokenizers: dict[str, Tokenizers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nmt.data.corpus.PAIRS_PER_CHUNK", chunk)
    recipe = recipe_for(folder, "run", tokenizers[kind], *options)
    prepared = prepare(recipe)
    drops = assert_as_expected(prepared, recipe)
    if not options:
        assert set(drops) == set(prepared.report["train"]["drops"]), "every drop reason must occur"
    assert not list(prepared.directory.glob("*.bin")), "the temporary file of cleaned text must be removed"


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_a_trained_tokenizer_gives_the_expected_store(
    options: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.data.corpus.PAIRS_PER_CHUNK", 5)
    recipe = recipe_for(folder, "run", None, *options)
    assert_as_expected(prepare(recipe), recipe)


def test_reusing_the_trained_tokenizer_gives_the_same_store(folder: Path) -> None:
    plain = prepare(recipe_for(folder, "plain", None))
    reused = prepare(recipe_for(folder, "reused", plain.tokenizers))
    files = [contents(prepared.directory) for prepared in (plain, reused)]
    assert {name for name in files[0] if files[0][name] != files[1].get(name)} == {"prepare.json"}  # has the options
    reports = [{**prepared.report, "recipe": None} for prepared in (plain, reused)]
    assert reports[0] == reports[1]


def test_text_that_becomes_bytes_is_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe_for(folder, "first", None))
    assert "are bytes or unknown" not in capsys.readouterr().err
    (folder / "news.en").write_text("".join(f"{src}\n" for src, _ in PAIRS))
    (folder / "thai.th").write_text("".join(f"แมวเห็นหนู {number} ตัว\n" for number in range(40)))
    thai = ["data.train=[{kind='text', src='news.en', tgt='thai.th'}]", "tgt_lang=th"]
    thai += ["data.max_tokens=90", "model.max_positions=91"]
    prepare(recipe_for(folder, "second", None, *thai, f"tokenizer.start_from='{folder / 'first'}'"))
    err = capsys.readouterr().err
    assert "% of the target tokens of data.train are bytes or unknown: the tokenizer does not cover this text" in err
    assert "of the source tokens" not in err
    prepare(recipe_for(folder, "bytes", None, *thai, "tokenizer.algorithm='byte'"))
    assert "are bytes or unknown" not in capsys.readouterr().err


@pytest.mark.parametrize("path", ["first", "first/data"])
def test_the_tokenizer_of_prepared_text_is_reused_without_a_model(path: str, folder: Path) -> None:
    first = prepare(recipe_for(folder, "first", None))
    recipe = recipe_for(folder, "second", None, f"tokenizer.start_from='{folder / path}'")
    assert prepare(recipe).tokenizers.files() == first.tokenizers.files()
    with pytest.raises(UserError, match=r"tokenizer\.start_from is .*nowhere has no model; expected a model"):
        (folder / "nowhere").mkdir()
        prepare(recipe_for(folder, "third", None, f"tokenizer.start_from='{folder / 'nowhere'}'"))
    other = Tokenizers.load(first.directory).with_symbols(["<x>"], ())
    other.save(first.directory)
    with pytest.raises(CorruptError, match=r"its SHA-256 differs from prepare\.json"):
        prepare(recipe)


def test_pairs_that_another_program_normalizes_are_located(folder: Path) -> None:
    """SentencePiece's default normalization, without a piece for the last character."""
    (folder / "fi.en").write_text("".join(f"{src}\n" for src, _ in PAIRS))
    (folder / "fi.de").write_text("".join(f"{tgt} \ufb01 \u2026 \u6f22\n" for _, tgt in PAIRS))
    text = [*(text for pair in PAIRS for text in pair), "fi ..."]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=folder / "spm", vocab_size=60, minloglevel=2
    )
    corpus = "data.train=[{kind='text', src='fi.en', tgt='fi.de'}]"
    recipe = recipe_for(folder, "run", None, f"tokenizer.start_from='{folder / 'spm.model'}'", corpus)
    prepared = prepare(recipe)
    pairs = decode_pairs(prepared, recipe, range(len(PAIRS)))
    assert pairs[1].tgt == "die Katze sieht 1 Mäuse fi ...  \u2047 "
    assert [pair.number for pair in locate_pairs(prepared, recipe, pairs)] == list(range(1, len(PAIRS) + 1))


def test_a_sentencepiece_model_of_another_program_is_reused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "spm.model"
    recipe = recipe_for(folder, "run", None, f"tokenizer.start_from='{path}'")
    for size in (50, 60):  # the text is prepared again if the model changes
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text for pair in PAIRS for text in pair]),
            model_prefix=path.with_suffix(""),
            vocab_size=size,
            minloglevel=2,
        )
        prepared = prepare(recipe)
        assert_as_expected(prepared, recipe)
        assert list(prepared.tokenizers.src.user_symbols()) == ["<web>", "<old>"]
        assert prepared.tokenizers.src.vocab_size == size + 3  # padding and two tags
        assert "are bytes or unknown" not in capsys.readouterr().err
        assert prepare(recipe).report == prepared.report
        assert "is up to date" in capsys.readouterr().err


@pytest.mark.slow
def test_result_is_independent_of_workers(
    folder: Path, tokenizers: dict[str, Tokenizers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.data.corpus.PAIRS_PER_CHUNK", 5)
    reused = tokenizers["bpe, joint"]
    alone = prepare(recipe_for(folder, "alone", reused)).directory
    together = prepare(recipe_for(folder, "together", reused, "data.workers=2")).directory
    assert contents(alone) == contents(together)


def test_dropping_all_pairs_is_an_error(folder: Path, tokenizers: dict[str, Tokenizers]) -> None:
    recipe = recipe_for(folder, "run", tokenizers["bpe, joint"], "data.max_tokens=2", "data.drop_duplicates=false")
    with pytest.raises(UserError, match=r"all 144 training pairs were dropped, \d+ of them as 'too many tokens'"):
        prepare(recipe)
    assert list(recipe.directory.iterdir()) == []


def test_subword_sampling_with_a_character_tokenizer_is_an_error(folder: Path) -> None:
    options = TokenizerRecipe(algorithm="char", user_symbols=("<web>", "<old>"))
    characters = train_tokenizers(lambda: PAIRS, options, folder)
    recipe = recipe_for(folder, "run", characters, "train.subword_sampling=0.1")
    with pytest.raises(UserError, match="neither a bpe nor a unigram model; subword sampling needs one of them"):
        prepare(recipe)
    assert not (folder / "run" / "data").exists()


def test_subword_sampling_needs_subwords_only_on_its_sides(folder: Path, tokenizers: dict[str, Tokenizers]) -> None:
    options = TokenizerRecipe(algorithm="char", user_symbols=("<web>", "<old>"))
    characters = train_tokenizers(lambda: PAIRS, options, folder).src
    subwords = tokenizers["bpe, separate"].src
    for run, pair, sides in (
        ("first", Tokenizers(subwords, characters), "src"),
        ("second", Tokenizers(characters, subwords), "tgt"),
    ):
        for name, sampled in (("both", "both"), ("other", "tgt" if sides == "src" else "src")):
            sampling = (f"train.subword_sampling_sides='{sampled}'", "train.subword_sampling=0.1")
            with pytest.raises(UserError, match="neither a bpe nor a unigram model"):
                reused_tokenizers(recipe_for(folder, f"{run} {name}", pair, *sampling))
        sampling = (f"train.subword_sampling_sides='{sides}'", "train.subword_sampling=0.1")
        assert reused_tokenizers(recipe_for(folder, run, pair, *sampling)) is not None


@pytest.mark.slow
def test_expected_sizes_of_vocabularies_are_those_of_the_prepared_corpus(folder: Path) -> None:
    options = ("model.tied_embeddings='none'", "tokenizer.joint=false", "tokenizer.algorithm='byte'")
    separate = recipe_for(folder, "separate", None, *options, "tokenizer.user_symbols=['<x>']")
    recipes = {
        "bpe": recipe_for(folder, "bpe", None),
        "byte": recipe_for(folder, "byte", None, "tokenizer.algorithm='byte'"),
        "separate": separate,
        "marked": recipe_for(folder, "marked", None, "tokenizer.algorithm='byte'", "train.glossary_markup=0.3"),
        "reused": recipe_for(folder, "reused", prepare(separate).tokenizers),
    }
    for name, recipe in recipes.items():
        expected_sizes = expected_vocab_sizes(recipe)
        assert expected_sizes == tuple(prepare(recipe).report["vocab_size"].values()), name
    assert expected_vocab_sizes(separate) == (264, 262)  # two tags on the source side
