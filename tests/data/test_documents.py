"""Prepared text of documents: which sentences precede a sentence, in every corpus kind."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from nmt.data import test_sets as sets
from nmt.data.corpus import ReadOptions, read_documents, read_pairs
from nmt.data.fingerprint import preparation_options
from nmt.data.pair_text import decode_pairs, locate_pairs
from nmt.data.prepare import Prepared, prepare
from nmt.data.store import PairStore, SideStore
from nmt.data.test_sets import reference_context
from nmt.errors import RecipeError
from nmt.recipe import (
    Context,
    Corpus,
    JsonLinesCorpus,
    Recipe,
    SgmCorpus,
    TextCorpus,
    ToyCorpus,
    TsvCorpus,
    parse_recipe,
)
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "text", src = "train.en", tgt = "train.de" }, { kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "train.en", tgt = "train.de" }]
test.own = { kind = "text", src = "train.en", tgt = "train.de" }
context = 2
""",
    vocab_size=330,
    max_tokens=40,
)
# A boundary, a dropped pair with a bad character, and a repeated pair with a different context.
PAIRS = [
    *[("the one", "das eine"), ("a two", "ein zwei"), ("the three", "das drei"), ("a four", "ein vier"), ("", "")],
    *[("a two", "ein zwei"), ("bad\ufffd", "schlecht"), ("the six", "das sechs")],
]
EXPECTED = [
    *["the one", "the one|a two", "the one|a two|the three", "a two|the three|a four"],
    *["a two", "a two|the six"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    for side, name in enumerate(("en", "de")):
        (folder / f"train.{name}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    return folder


def prepared(folder: Path, *overrides: str) -> tuple[Recipe, Prepared]:
    """Prepare the text of the recipe in a new directory."""
    run = mkdtemp(prefix="run-", dir=folder)
    recipe = parse_recipe(RECIPE, [f"data.root={folder}", f"run_dir={run}", *overrides])
    return recipe, prepare(recipe)


def texts(store: SideStore, found: Prepared) -> list[str]:
    """The text of each sentence, with | for the separator."""
    tokens, lengths = store.gather(np.arange(len(store)))
    tokenizer = found.tokenizers.src
    separator = tokenizer.tag_id("<sep>")
    sentences = []
    for part in np.split(tokens, np.cumsum(lengths)[:-1]):
        ends = [*np.flatnonzero(part == separator), len(part)]
        starts = [0, *(end + 1 for end in ends[:-1])]
        sentences.append("|".join(tokenizer.decode(part[a:b].tolist()) for a, b in zip(starts, ends, strict=True)))
    return sentences


def german(text: str) -> str:
    translation = dict(PAIRS)
    return "|".join(translation[one] for one in text.split("|"))


@pytest.mark.parametrize("sides", ["source", "both"])
def test_previous_sentences_precede_each_sentence(sides: str, folder: Path) -> None:
    recipe, found = prepared(folder, f"data.context_sides={sides!r}")
    train = PairStore(found.directory, "train")
    assert texts(train.src, found) == EXPECTED  # the second corpus has duplicates only
    targets = [german(one) for one in EXPECTED]
    assert texts(train.tgt, found) == (targets if sides == "both" else [one.rpartition("|")[2] for one in targets])
    assert found.report["train"]["drops"]["duplicate"] == 6
    assert found.report["train"]["drops"]["empty"] == 2

    pairs = decode_pairs(found, recipe, range(6))
    assert [(pair.src, pair.tgt) for pair in pairs] == [
        (one.rpartition("|")[2], german(one).rpartition("|")[2]) for one in EXPECTED
    ]
    assert [pair.number for pair in locate_pairs(found, recipe, pairs)] == [1, 2, 3, 4, 2, 8]

    valid = PairStore(found.directory, "valid")
    bad = ["a two|bad\ufffd", "a two|bad\ufffd|the six"]
    assert texts(valid.src, found) == [*EXPECTED[:5], *bad]
    assert found.valid_set().src == [src for src, _ in PAIRS]
    assert found.valid_set().previous == [0, 1, 2, 2, 2, 0, 1, 2]


@pytest.mark.parametrize("sides", ["source", "both"])
def test_validation_text_has_no_longer_context_than_training_text(sides: str, folder: Path) -> None:
    options = ("data.context=5", "data.drop_duplicates=false", "data.max_tokens=8", f"data.context_sides={sides!r}")
    _, found = prepared(folder, *options)
    train, valid = (PairStore(found.directory, split) for split in ("train", "valid"))
    sources = texts(valid.src, found)
    assert sources[:5] == texts(train.src, found)[:5]
    assert sources[3] == "a two|the three|a four"
    assert texts(valid.tgt, found)[:5] == texts(train.tgt, found)[:5]
    assert len(valid.src) == len([pair for pair in PAIRS if pair != ("", "")])


def test_the_tokenizer_is_trained_on_single_sentences(folder: Path) -> None:
    _, with_context = prepared(folder)
    _, without = prepared(folder, "data.context=0", "tokenizer.user_symbols=['<sep>']", "data.drop_duplicates=false")
    _, same_pairs = prepared(folder, "data.drop_duplicates=false")
    assert same_pairs.tokenizers.digests() == without.tokenizers.digests()
    assert with_context.tokenizers.src.user_symbols().keys() == {"<sep>"}


def require_equal(one: Prepared, other: Prepared) -> None:
    """Require equal tokens in all files."""
    for split in ("train", "valid"):
        first, second = (PairStore(found.directory, split) for found in (one, other))
        assert texts(first.src, one) == texts(second.src, other)
        assert texts(first.tgt, one) == texts(second.tgt, other)


def test_a_reused_tokenizer_gives_the_same_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = prepared(folder, "data.max_tokens=12", "data.context_sides='both'")
    monkeypatch.setattr("nmt.data.prepare.reused_tokenizers", lambda recipe: first.tokenizers)
    _, other = prepared(folder, "data.max_tokens=12", "data.context_sides='both'")
    require_equal(first, other)


@pytest.mark.slow
def test_worker_processes_give_the_same_tokens(folder: Path) -> None:
    _, first = prepared(folder, "data.context_sides='both'")
    _, other = prepared(folder, "data.context_sides='both'", "data.workers=2")
    require_equal(first, other)


def test_long_context_is_dropped(folder: Path) -> None:
    _, found = prepared(folder, "data.max_tokens=7")
    train = PairStore(found.directory, "train")
    assert train.src.lengths.max() <= 7
    stored = texts(train.src, found)
    assert [one.rpartition("|")[2] for one in stored] == [one.rpartition("|")[2] for one in EXPECTED]
    assert all(whole.endswith(own) for whole, own in zip(EXPECTED, stored, strict=True))
    assert stored != EXPECTED


def test_test_sets_have_the_lengths_of_their_context(folder: Path) -> None:
    recipe, _ = prepared(folder)
    test = sets.test_sets(recipe)["own"]
    assert test.previous == [0, 1, 2, 2, 2, 0, 1, 2]
    assert reference_context(test, Context(2))[3] == ["a two", "the three"]
    assert reference_context(test, Context(2, "both"))[1] == [("the one", "das eine")]
    plain, _ = prepared(folder, "data.context=0")
    assert sets.test_sets(plain)["own"].previous is None
    assert not {"context", "context_sides"} & preparation_options(plain)["data"].keys()


SGM = """<{0}set><doc docid="a"><seg id="1">A</seg><seg id="2">B</seg></doc>
<DOC docid="b"><seg id="1">C</seg></DOC></{0}set>"""
XML = """<dataset><doc id="a"><src lang="en"><p><seg id="1">A</seg><seg id="2">B</seg></p></src>
<ref lang="de"><p><seg id="1">a</seg><seg id="2">b</seg></p></ref></doc>
<doc id="b"><src lang="en"><seg id="1">C</seg></src><ref lang="de"><seg id="1">c</seg></ref></doc></dataset>"""


@pytest.mark.parametrize(
    ("files", "corpus"),
    [
        ({"a.sgm": SGM.format("src"), "b.sgm": SGM.format("ref")}, SgmCorpus(src="a.sgm", tgt="b.sgm")),
        ({"a.xml": XML}, SgmCorpus(src="a.xml")),
        ({"a.tsv": "A\ta\tx\nB\tb\tx\nC\tc\ty\n"}, TsvCorpus(path="a.tsv", document_column=2)),
        ({"a.tsv": "e\td\tid\nA\ta\tx\nB\tb\tx\nC\tc\ty\n"}, TsvCorpus(path="a.tsv", document_column="id")),
        (
            {"a.tsv": "e\td\tid\nA\ta\tx\nB\tb\tx\nC\tc\ty\n"},
            TsvCorpus(path="a.tsv", tgt_column="d", document_column=2),
        ),
        (
            {"a.jsonl": "".join(f'{{"e": "{i}", "d": "{i}", "of": {{"id": "{i > 2}"}}}}\n' for i in (1, 2, 3))},
            JsonLinesCorpus(path="a.jsonl", src_field="e", tgt_field="d", document_field="of.id"),
        ),
        (
            {"a.jsonl": "".join(f'{{"e": "{i}", "d": "{i}", "id": {i // 3}}}\n' for i in (1, 2, 3))},
            JsonLinesCorpus(path="a.jsonl", src_field="e", tgt_field="d", document_field="id"),
        ),
        (
            {"a.jsonl": "".join(f'{{"e": "{i}", "d": "{i}", "of": {{"id": {i // 3}}}}}\n' for i in (1, 2, 3))},
            JsonLinesCorpus(path="a.jsonl", src_field="e", tgt_field="d", document_field="of.id"),
        ),
    ],
    ids=["sgm", "xml", "tsv", "tsv-header", "tsv-target-name", "jsonl", "jsonl-integers", "jsonl-nested-integers"],
)
def test_sentences_of_a_document_have_the_same_identifier(
    files: dict[str, str], corpus: Corpus, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options = ReadOptions(tmp_path, "en", "de")
    found = read_documents(corpus, options)
    assert found is not None
    first, second, third = found
    assert first == second != third
    assert len(list(read_pairs(corpus, options))) == 3


def test_documents_in_the_first_column_are_an_option_of_the_prepared_text() -> None:
    corpora = (f"data.train=[{{kind='tsv', path='a.tsv'{option}}}]" for option in ("", ", document_column=0"))
    without, first = (preparation_options(parse_recipe(RECIPE, [one])) for one in corpora)
    assert without != first


def test_other_documents_are_another_validation_text(tmp_path: Path) -> None:
    """The context of a sentence affects its loss, so scores of both are not comparable."""
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\t{i}\n" for i, (src, tgt) in enumerate(PAIRS[:4] * 2)))
    train = "data.train=[{kind='tsv', path='a.tsv'}]"
    valid = (f"data.valid=[{{kind='tsv', path='a.tsv'{option}}}]" for option in ("", ", document_column=2"))
    one, several = (prepared(tmp_path, train, corpora, "data.test={}")[1].valid_identity() for corpora in valid)
    assert one != several


def test_documents_of_the_toy_corpus_have_two_sentences(tmp_path: Path) -> None:
    found = read_documents(ToyCorpus(documents=True, pairs=5), ReadOptions(tmp_path, "en", "de"))
    assert found is not None
    assert list(found) == [0, 0, 1, 1, 2]
    assert read_documents(ToyCorpus(), ReadOptions(tmp_path, "en", "de")) is None
    assert read_documents(TextCorpus(src="a", tgt="b"), ReadOptions(tmp_path, "en", "de")) is None


def test_an_empty_line_of_a_table_is_an_empty_pair(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("A\ta\n\n\r\nB\tb\n")
    pairs = list(read_pairs(TsvCorpus(path="a.tsv"), ReadOptions(tmp_path, "en", "de")))
    assert pairs == [("A", "a"), ("", ""), ("", ""), ("B", "b")]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.context=0", "data.context_sides='both'"], "data.context_sides has no effect if data.context is 0"),
        (
            ["data.context_sides='both'", "data.reverse_target=true"],
            "data.reverse_target is true; previous",
        ),
        (["data.train=[{kind='toy', tag='<sep>'}]"], "data.train.0.tag is '<sep>', which data.context uses"),
        (
            ["train.guided_alignment=true"],
            "train.guided_alignment aligns single sentences, and ",
        ),
    ],
)
def test_inconsistent_options_are_errors(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        parse_recipe(RECIPE, overrides)
    assert message in str(raised.value)


def test_documents_without_context_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{src}\t{tgt}\td\n" for src, tgt in PAIRS[:4]))
    column = '{kind="tsv", path="pairs.tsv", document_column=2}'
    recipe = [f"data.{name}=[{column}]" for name in ("train", "valid")] + [f"data.test={{own={column}}}"]
    for context in (0, 1):
        found = [f"data.root={tmp_path}", f"run_dir={tmp_path / str(context)}", f"data.context={context}"]
        prepare(parse_recipe(RECIPE, recipe + found))
        warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
        assert [line.split()[1] for line in warnings] == (
            [f"data.{name}.document_column" for name in ("train.0", "valid.0", "test.own")] if context == 0 else []
        )


def test_a_language_model_has_no_context() -> None:
    corpus = "[{kind='monolingual', path='a'}]"
    overrides = ["src_lang='zxx'", f"data.train={corpus}", f"data.valid={corpus}", "data.test={}"]
    with pytest.raises(RecipeError, match=r"data\.context needs a source; a language model has none"):
        parse_recipe(RECIPE, overrides)


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([], ["documents: 2 in data.train.0, 2 in data.train.1", "documents: 2 in data.valid.0"]),
        (["data.context=0"], []),
    ],
)
def test_the_number_of_documents_is_logged(
    overrides: list[str], lines: list[str], tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text without boundaries is one document, which is most likely a mistake."""
    prepare(parse_recipe(RECIPE, [f"data.root={folder}", f"run_dir={tmp_path}", *overrides]))
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("documents")] == lines
