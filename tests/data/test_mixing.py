"""Several training corpora: tags, counts and weights; reused tokenizers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data.fingerprint import outdated_splits, text_identity
from nmt.data.loader import TrainingBatches
from nmt.data.mixture import Mixture
from nmt.data.prepare import prepare, tag_ids
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.recipe import Recipe, TokenizerRecipe, parse_recipe
from nmt.special_ids import EOS_ID
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers, train_tokenizers
from tests.data.directories import contents, modification_times, one_line_error, stored
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = []
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
""",
    vocab_size=310,
    max_tokens=40,
    max_positions=41,
)
Pairs = list[tuple[str, str]]


def sentence_pairs(first: int, count: int) -> Pairs:
    return [(f"the cat sees {n} mice", f"die Katze sieht {n} Mäuse") for n in range(first, first + count)]


CORPORA: dict[str, Pairs] = {
    "news": [*sentence_pairs(0, 30), ("хорошо", "gut")],
    "web": [*sentence_pairs(3, 1), *sentence_pairs(100, 20), ("ab " * 60, "cd " * 60), *sentence_pairs(100, 3)],
    "talks": sentence_pairs(200, 10),
    "empty": [],
}


def write_text(folder: Path, name: str, pairs: Pairs) -> None:
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), newline="\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pairs in CORPORA.items():
        write_text(tmp_path, name, pairs)
    write_text(tmp_path, "valid", sentence_pairs(300, 5))
    return tmp_path


def recipe_for(folder: Path, *corpora: str, run: str = "run", options: tuple[str, ...] = ()) -> Recipe:
    """corpora: `name` or `name, option = value, ...`"""
    sections = []
    for corpus in corpora or ("news", "web", "talks"):
        name, _, rest = corpus.partition(",")
        sections.append(f"{{kind='text', src='{name}.en', tgt='{name}.de'{',' * bool(rest)}{rest}}}")
    required = [f"run_dir='{folder / run}'", f"data.root='{folder}'", f"data.train=[{', '.join(sections)}]"]
    return parse_recipe(RECIPE, [*required, *options])


# --- Tags ---


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_tag_is_prepended_to_the_source_only(algorithm: str, folder: Path) -> None:
    options = (
        f"tokenizer.algorithm='{algorithm}'",
        "tokenizer.vocab_size=300",
        "tokenizer.user_symbols=['<web>', '<old>']",
    )
    corpora = ("news", "web,tag='<web>'", "talks,tag='<talks>'", "empty,tag='<web>'")
    recipe = recipe_for(folder, *corpora, options=options)
    prepared = prepare(recipe)
    tokenizer = prepared.tokenizers.src
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    assert [pieces.count(symbol) for symbol in ("<web>", "<talks>", "<old>")] == [1, 1, 1]
    web, talks = pieces.index("<web>"), pieces.index("<talks>")
    assert tag_ids(recipe.data.train, tokenizer) == {1: web, 2: talks, 3: web}
    expected: list[tuple[list[int], Any]] = [([], pair) for pair in sentence_pairs(0, 30)]
    expected += [([web], pair) for pair in sentence_pairs(100, 20)]
    expected += [([talks], pair) for pair in sentence_pairs(200, 10)]
    assert stored(prepared) == [([*tag, *tokenizer.encode(src)], tokenizer.encode(tgt)) for tag, (src, tgt) in expected]
    assert not {web, talks} & {token for _, (src, tgt) in expected for token in tokenizer.encode(src + tgt)}


def test_tag_counts_as_a_token(folder: Path, tokenizers: dict[bool, Tokenizers]) -> None:
    # 13 characters of 3 bytes without a piece, and a space: 40 tokens. Then 39.
    longest, long = "€" * 13, "€" * 12 + "QQ"
    write_text(
        folder, "web", [(longest, "a"), (long, "b"), ("c", long), ("\u2581", "kein Text"), *sentence_pairs(0, 9)]
    )
    reuse = (f"tokenizer.start_from='{write_model(folder / 'base', tokenizers[True])}'",)
    plain = prepare(recipe_for(folder, "web", run="plain", options=reuse)).report["train"]
    tagged = prepare(recipe_for(folder, "web,tag='<web>'", run="tagged", options=reuse))
    report = tagged.report["train"]
    assert (plain["drops"]["too many tokens"], report["drops"]["too many tokens"]) == (0, 1)
    assert (plain["drops"]["empty"], report["drops"]["empty"]) == (1, 1)  # a tag alone is an empty sentence
    assert (plain["pairs"], report["pairs"]) == (12, 11)
    store = PairStore(tagged.directory, "train")
    assert store.src.lengths.max() == 40
    assert report["src"]["tokens"] == store.src.lengths.sum() == plain["src"]["tokens"] - 40 + 11
    assert report["src"]["words"] == plain["src"]["words"] - 1  # tags do not count as words


def test_validation_text_has_no_tag(folder: Path) -> None:
    prepared = prepare(recipe_for(folder, "news", "web,tag='<web>'"))
    tokenizer = prepared.tokenizers.src
    assert stored(prepared, "valid") == [
        (tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in sentence_pairs(300, 5)
    ]
    with pytest.raises(UserError, match="has no effect; only training corpora use it"):
        recipe_for(folder, "news", "web,tag='<web>'", options=(valid_sets("weight=7.0"),))


def valid_sets(*options: str) -> str:
    corpora = (f"{{kind='text', src='valid.en', tgt='valid.de', {option}}}" for option in options)
    return f"data.valid=[{', '.join(corpora)}]"


def test_a_validation_set_has_its_own_tag(folder: Path) -> None:
    corpora = ("news,tag='<news>'", "web,tag='<web>'")
    untagged = prepare(recipe_for(folder, *corpora))
    recipe = recipe_for(folder, *corpora, options=(valid_sets("tag='<web>'", "tag='<news>'"),))
    assert outdated_splits(recipe, untagged.directory) == {"valid"}
    identity = untagged.valid_identity()
    prepared = prepare(recipe)
    ids = prepared.tokenizers.src.user_symbols()
    tags = [src[0] for src, _ in stored(prepared, "valid")]
    assert tags == [ids["<web>"]] * 5 + [ids["<news>"]] * 5
    assert prepared.valid_set().tags == ["<web>"] * 5 + ["<news>"] * 5
    other = recipe_for(folder, *corpora, options=(valid_sets("tag='<web>'", "tag='<web>'"),))
    assert len({identity, prepared.valid_identity(), prepare(other).valid_identity()}) == 3
    assert not outdated_splits(other, prepared.directory)


def test_a_tag_that_the_model_will_not_have_is_an_error(folder: Path, tokenizers: dict[bool, Tokenizers]) -> None:
    with pytest.raises(UserError, match=r"data\.valid\.0\.tag is '<x>'; it must be the tag of a training corpus; add"):
        recipe_for(folder, "web,tag='<web>'", options=(valid_sets("tag='<x>'"),))
    reuse = f"tokenizer.start_from='{write_model(folder / 'base', tokenizers[True])}'"
    with pytest.raises(UserError, match=r"data\.valid\.0\.tag is <x>, which is not a single token of the tokenizer"):
        prepare(recipe_for(folder, "web,tag='<web>'", options=(valid_sets("tag='<x>'"), reuse)))


def test_pairs_are_filtered_by_the_languages_of_their_corpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(folder, "russian", [("the cat sees a mouse", "кошка видит мышь"), ("the dog", "der Hund")])
    corpora = ("news,tag='<de>'", "russian,tag='<ru>',tgt_lang='ru'")
    prepared = prepare(recipe_for(folder, *corpora, options=("data.test.a={kind='toy', tag='<de>'}",)))
    assert [corpus["pairs"] for corpus in prepared.report["train"]["corpora"]] == [30, 1]
    warning = "warning: all corpora of data.train have a tag, but data.valid.0 has none; set one\n"
    assert warning in capsys.readouterr().err


def test_the_first_corpus_keeps_duplicates_with_different_tags(folder: Path) -> None:
    recipe = recipe_for(folder, "talks,tag='<a>'", "talks,tag='<b>'", "talks")
    prepared = prepare(recipe)
    assert prepared.report["train"]["corpora"] == [
        {"pairs_read": 10, "pairs": 10},
        {"pairs_read": 10, "pairs": 0},
        {"pairs_read": 10, "pairs": 0},
    ]
    assert prepared.report["train"]["drops"]["duplicate"] == 20
    tag = tag_ids(recipe.data.train, prepared.tokenizers.src)[0]
    assert all(src[0] == tag for src, _ in stored(prepared))


def test_reserved_tags_are_errors(folder: Path) -> None:
    with pytest.raises(UserError, match=r"data\.train\.0\.tag: '<0x41>' is a special token or a byte token"):
        recipe_for(folder, "news,tag='<0x41>'")


def test_separate_tokenizers_with_tags(folder: Path) -> None:
    options = ("tokenizer.joint=false", "model.tied_embeddings='none'", "tokenizer.vocab_size=300")
    recipe = recipe_for(folder, "news,tag='<news>'", options=options)
    prepared = prepare(recipe)
    tokenizer = prepared.tokenizers.src
    tag = tokenizer.pieces(range(tokenizer.vocab_size)).index("<news>")
    assert [src for src, _ in stored(prepared)] == [[tag, *tokenizer.encode(src)] for src, _ in sentence_pairs(0, 30)]
    assert list(tokenizer.user_symbols()) == ["<news>"]
    assert prepared.tokenizers.tgt.user_symbols() == {}, "no target sentence begins with a tag"


# --- Counts ---


def test_counts_of_each_corpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(folder, "news", "empty", "web", "talks")
    prepared = prepare(recipe)
    report = prepared.report["train"]
    assert report["corpora"] == [
        {"pairs_read": 31, "pairs": 30},
        {"pairs_read": 0, "pairs": 0},
        {"pairs_read": 25, "pairs": 20},
        {"pairs_read": 10, "pairs": 10},
    ]
    for count in ("pairs_read", "pairs"):
        assert report[count] == sum(corpus[count] for corpus in report["corpora"])
    tokenizer = prepared.tokenizers.src
    src = [tokenizer.decode(src) for src, _ in stored(prepared)]
    assert (src[29], src[30]) == ("the cat sees 29 mice", "the cat sees 100 mice")
    assert (src[49], src[50]) == ("the cat sees 119 mice", "the cat sees 200 mice")

    monkeypatch.setattr("nmt.data.corpus.PAIRS_PER_CHUNK", 7)
    assert contents(prepare(recipe_for(folder, "news", "empty", "web", "talks", run="small")).directory) == contents(
        prepared.directory
    )


def test_corpora_without_pairs_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe_for(folder, "talks", "empty", "talks,tag='<b>'", "news"))
    warnings = [line for line in capsys.readouterr().err.split("\n") if line.startswith("warning")]
    assert warnings == [
        "warning: data.train.1 (empty.en, empty.de) has no pair in the training text: it is empty; "
        "correct or remove this corpus",
        "warning: data.train.2 (talks.en, talks.de) has no pair in the training text: every pair was dropped "
        "(10 in total); its tag <b> is not trained; correct or remove this corpus",
    ]


def test_a_built_in_corpus_without_pairs_is_named_by_its_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = "{kind='toy',pairs=2}"
    corpora = f"data.train=[{{kind='text',src='news.en',tgt='news.de'}},{toy},{toy}]"
    options = [f"run_dir='{folder / 'run'}'", f"data.root='{folder}'", corpora, "tokenizer.vocab_size=340"]
    prepare(parse_recipe(RECIPE, options))
    assert "warning: data.train.2 (toy) has no pair in the training text: every" in capsys.readouterr().err


def test_several_corpora_are_stored_like_their_concatenation(folder: Path) -> None:
    write_text(folder, "all", [pair for name in ("news", "web", "talks") for pair in CORPORA[name]])
    apart = contents(prepare(recipe_for(folder, run="apart")).directory)
    together = contents(prepare(recipe_for(folder, "all", run="together")).directory)
    same = [name for name in apart if name.endswith((".npy", ".model", ".txt"))]
    assert len(same) == 11
    assert [apart[name] for name in same] == [together[name] for name in same]


# --- Weights ---


def test_weights_and_temperature_determine_the_mixture(folder: Path) -> None:
    plain = recipe_for(folder)
    prepared = prepare(plain)
    assert prepared.mixture(plain) == Mixture((30, 20, 10), (30, 20, 10))
    weighted = recipe_for(folder, "news,weight=0.5", "web", "talks,weight=2.0")
    assert prepared.mixture(weighted) == Mixture((30, 20, 10), (16, 22, 22))  # ratio 15:20:20
    uniform = recipe_for(folder, options=("data.temperature=1e9",))
    assert prepared.mixture(uniform) == Mixture((30, 20, 10), (20, 20, 20))


def letters(alphabet: str, count: int) -> Pairs:
    """Return distinct pairs written in 10 letters."""
    words = [" ".join(alphabet[int(digit)] * 3 for digit in f"{n:03d}") for n in range(count)]
    return [(word, f"{word} {word}") for word in words]


def tokenizer_sample(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Pairs:
    """Return the pairs on which `prepare` trains the tokenizer."""
    samples: list[Pairs] = []

    def spy(sample: Any, *arguments: Any) -> Tokenizers:
        samples.append(list(sample()))
        return train_tokenizers(sample, *arguments)

    monkeypatch.setattr("nmt.data.prepare.train_tokenizers", spy)
    prepare(recipe)
    return samples[0]


@pytest.mark.slow
@pytest.mark.parametrize("training_pairs", [100, 470, 10_000])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (4.0, 1.0), (0.25, 1.0), (1.0, 40.0)])
def test_tokenizer_sample_follows_the_mixture(
    folder: Path, weights: tuple[float, float], training_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = {"first": letters("abcdefghij", 400), "second": letters("klmnopqrst", 100)}
    for name, pairs in corpora.items():
        write_text(folder, name, [*pairs, *pairs[:50]])  # duplicates are ignored
    sections = [f"{name},weight={weight}" for name, weight in zip(corpora, weights, strict=True)]
    recipe = recipe_for(folder, *sections, options=(f"tokenizer.training_pairs={training_pairs}",))
    sample, total = tokenizer_sample(recipe, monkeypatch), min(training_pairs, 500)
    assert len(sample) == total
    mixture = Mixture.from_weights([400, 100], weights, temperature=1.0)
    for pairs, num_pairs in zip(corpora.values(), mixture.pairs_per_epoch, strict=True):
        counts = [sample.count(pair) for pair in pairs]
        assert sum(counts) == pytest.approx(total * num_pairs / 500, abs=1)
        assert max(counts) - min(counts) <= 1, "each pair counts as much as any other of its corpus"


def test_tokenizer_sample_is_even_without_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [pair for name in ("news", "web", "talks") for pair in CORPORA[name] if pair[1] != "gut"]
    unique = [(src.strip(), tgt.strip()) for src, tgt in dict.fromkeys(pairs)]
    size, total = 7, len(unique)
    options = (f"tokenizer.training_pairs={size}", "tokenizer.vocab_size=290")
    sample = tokenizer_sample(recipe_for(folder, options=options), monkeypatch)
    assert sample == [pair for i, pair in enumerate(unique) if (i + 1) * size // total > i * size // total]
    equal = recipe_for(folder, "news,weight=3.0", "web,weight=3.0", "talks,weight=3.0", run="equal", options=options)
    assert tokenizer_sample(equal, monkeypatch) == sample


def test_weights_invalidate_a_trained_tokenizer(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    first, before = contents(directory), modification_times(directory)
    prepare(recipe_for(folder, "news,weight=3.0", "web,weight=3.0", "talks,weight=3.0"))
    assert modification_times(directory) == before, "the mixture is the same"
    weighted = recipe_for(folder, "news,weight=30.0", "web", "talks")
    assert contents(prepare(weighted).directory)["tokenizer.model"] != first["tokenizer.model"]
    before = modification_times(directory)
    prepare(weighted)
    assert modification_times(directory) == before
    prepare(recipe_for(folder, options=("data.temperature=5.0",)))
    assert modification_times(directory) != before
    assert contents(prepare(recipe_for(folder)).directory) == first


def test_weights_do_not_invalidate_a_reused_tokenizer(folder: Path, tokenizers: dict[bool, Tokenizers]) -> None:
    reuse = (f"tokenizer.start_from='{write_model(folder / 'base', tokenizers[True])}'",)
    directory = prepare(recipe_for(folder, options=reuse)).directory
    before = modification_times(directory)
    prepare(recipe_for(folder, "news,weight=3.0", "web", "talks", options=(*reuse, "data.temperature=5.0")))
    assert modification_times(directory) == before


def test_reports_without_mixture_are_up_to_date(folder: Path) -> None:
    recipe = recipe_for(folder, "news,weight=30.0", "web", "talks")
    prepared = prepare(recipe)
    report = prepared.report
    del report["recipe"]["mixture"]
    (prepared.directory / "prepare.json").write_text(json.dumps(report))
    before, identity = modification_times(prepared.directory), text_identity(report, recipe)
    assert text_identity(prepare(recipe).report, recipe) == identity
    assert modification_times(prepared.directory) == before
    write_text(folder, "valid", sentence_pairs(400, 5))
    assert text_identity(prepare(recipe).report, recipe) == identity
    prepare(recipe)
    assert modification_times(prepared.directory)["train.src.tokens.npy"] == before["train.src.tokens.npy"]


@pytest.mark.slow
def test_tags_invalidate_the_prepared_text(folder: Path) -> None:
    before = contents(prepare(recipe_for(folder)).directory)
    tagged = contents(prepare(recipe_for(folder, "news", "web,tag='<web>'", "talks")).directory)
    other = contents(prepare(recipe_for(folder, "news", "web", "talks,tag='<web>'")).directory)
    assert len({content["train.src.tokens.npy"] for content in (before, tagged, other)}) == 3
    assert contents(prepare(recipe_for(folder)).directory) == before


def test_batches_follow_the_mixture(folder: Path) -> None:
    recipe = recipe_for(folder, "news,weight=0.1", "web,tag='<web>'", options=("train.batch_tokens=200",))
    prepared = prepare(recipe)
    store, mixture = PairStore(prepared.directory, "train"), prepared.mixture(recipe)
    assert mixture.pairs_per_epoch == (7, 43)  # ratio 3:20
    tag = tag_ids(recipe.data.train, prepared.tokenizers.src)[1]
    with TrainingBatches(store, recipe.train, seed=1, mixture=mixture) as batches:
        for epoch in (0, 1):
            shown: list[list[int]] = []
            for update in batches:
                shown += [src for part in update.micro_batches for src in part.batch.src.to_lists()]
                if update.index + 1 == update.updates_in_epoch:
                    break
            assert sum(src[0] == tag for src in shown) == 43
            chosen = store.src.gather(mixture.sample_epoch(1, epoch))
            sentences = np.split(chosen[0], np.cumsum(chosen[1])[:-1])
            assert sorted(shown) == sorted([*sentence.tolist(), EOS_ID] for sentence in sentences)


# --- Reused tokenizers ---


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Tokenizers]:
    """Tokenizers trained on other text: True -> joint, False -> separate."""
    trained = {}
    lines = [(f"a dog hears {n} birds", f"ein Hund hört {n} Vögel") for n in range(50)]
    for joint in (True, False):
        recipe = TokenizerRecipe(vocab_size=300, joint=joint, user_symbols=("<web>",))
        trained[joint] = train_tokenizers(lambda: lines, recipe, tmp_path_factory.mktemp("model"))
    return trained


def write_model(directory: Path, tokenizers: Tokenizers) -> Path:
    write_directory(directory, {"model.toml": b"", "model.safetensors": b"weights", **tokenizers.files()})
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("subdirectory", ["", "model", "checkpoints/step-00000010"])
@pytest.mark.parametrize("option", ["tokenizer", "train"])
def test_reused_tokenizer_is_identical(
    option: str, subdirectory: str, joint: bool, folder: Path, tokenizers: dict[bool, Tokenizers]
) -> None:
    write_model(folder / "base" / subdirectory, tokenizers[joint])
    if subdirectory.startswith("checkpoints"):
        write_model(folder / "base" / "checkpoints" / "step-00000009", tokenizers[not joint])
    prepared = prepare(recipe_for(folder, options=(f"{option}.start_from='{folder / 'base'}'",)))
    files = {path.name: path.read_bytes() for path in prepared.directory.glob("tokenizer*")}
    assert files == tokenizers[joint].files() == prepared.tokenizers.files()
    assert prepared.tokenizers.joint == joint
    assert prepared.report["vocab_size"] == {"src": 300, "tgt": 300}  # not the 310 of the recipe
    src, tgt = tokenizers[joint].src, tokenizers[joint].tgt
    assert stored(prepared)[:30] == [(src.encode(pair[0]), tgt.encode(pair[1])) for pair in sentence_pairs(0, 30)]


def test_another_reused_tokenizer_invalidates_the_prepared_text(
    folder: Path, tokenizers: dict[bool, Tokenizers], capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(folder / "base", tokenizers[True])
    reuse = (f"train.start_from='{folder / 'base'}'",)
    prepared = prepare(recipe_for(folder, options=reuse))
    directory, first = prepared.directory, contents(prepared.directory)
    assert str(folder) not in (directory / "prepare.json").read_text()

    created = directory.stat().st_mtime_ns
    (folder / "base").rename(folder / "moved")
    moved = (f"tokenizer.start_from='{folder / 'moved'}'", "tokenizer.vocab_size=400")
    prepare(recipe_for(folder, options=moved))
    assert directory.stat().st_mtime_ns == created

    prepare(recipe_for(folder, options=reuse))  # the model no longer exists
    assert directory.stat().st_mtime_ns == created
    assert "base no longer exists" in capsys.readouterr().err

    write_model(folder / "base", tokenizers[False])
    assert not prepare(recipe_for(folder, options=reuse)).tokenizers.joint
    assert contents(directory) != first
    assert prepare(recipe_for(folder)).tokenizers.src.vocab_size == 310
    prepare(recipe_for(folder, options=moved))
    assert contents(directory) == first


def test_tags_become_symbols_of_a_reused_tokenizer(folder: Path, tokenizers: dict[bool, Tokenizers]) -> None:
    write_model(folder / "base", tokenizers[True])
    reuse = (f"train.start_from='{folder / 'base'}'",)
    recipe = recipe_for(folder, "news,tag='<web>'", run="known", options=reuse)
    tag = tag_ids(recipe.data.train, tokenizers[True].src)[0]
    assert all(src[0] == tag for src, _ in stored(prepare(recipe)))
    added = prepare(recipe_for(folder, "talks", "news,tag='<new>'", run="added", options=reuse)).tokenizers
    assert added.src.user_symbols()["<new>"] == added.src.vocab_size - 1 == tokenizers[True].src.vocab_size


def test_invalid_tokenizer_sources_are_errors(folder: Path, tokenizers: dict[bool, Tokenizers]) -> None:
    base = folder / "base"
    recipe = recipe_for(folder, options=(f"train.start_from='{base}'",))
    one_line_error(recipe, "base does not exist; expected a model directory")
    base.mkdir()
    one_line_error(recipe, "base has no model")
    base.rmdir()

    model = write_model(base, tokenizers[True]) / "tokenizer.model"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(bytes(content))
    one_line_error(recipe, "is corrupt|is damaged")  # by the checksum or by SentencePiece, which loads the model first
    model.unlink()
    one_line_error(recipe, r"cannot read tokenizer .*tokenizer\.model")
    tokenizers[False].save(base)
    one_line_error(recipe, "is corrupt")
    for manifest in ('{"tokenizer.model": 1}', "[]", "\xff", "{"):
        (base / "manifest.json").write_text(manifest, encoding="latin-1")
        one_line_error(recipe, r"no readable manifest\.json")
    (base / "manifest.json").unlink()
    one_line_error(recipe, r"no readable manifest\.json")


def test_a_tokenizer_source_damaged_after_preparation_is_an_error(
    folder: Path, tokenizers: dict[bool, Tokenizers]
) -> None:
    base = write_model(folder / "base", tokenizers[True])
    recipe = recipe_for(folder, options=(f"train.start_from='{base}'",))
    prepare(recipe)
    (base / "manifest.json").unlink()
    with pytest.raises(UserError, match="must be complete"):
        prepare(recipe)


def test_tokenizer_sources_with_different_tokenizers_are_an_error(
    folder: Path, tokenizers: dict[bool, Tokenizers]
) -> None:
    for name, joint in (("base", True), ("same", True), ("other", False)):
        write_model(folder / name, tokenizers[joint])
    both = [f"train.start_from='{folder / 'base'}'", f"tokenizer.start_from='{folder / 'same'}'"]
    assert prepare(recipe_for(folder, run="same-run", options=tuple(both))).tokenizers.joint
    both[1] = f"tokenizer.start_from='{folder / 'other'}'"
    one_line_error(recipe_for(folder, options=tuple(both)), "have different tokenizers")
