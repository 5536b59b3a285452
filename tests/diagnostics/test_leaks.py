"""Leak search: planted sentences, corpus kinds."""

import json
import random
import string
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt.diagnostics.leaks import (
    LeakCount,
    LeakFinder,
    SearchedSet,
    describe_location,
    search_training_text,
    searched_sets,
)
from nmt.recipe import Recipe, parse_recipe

LETTERS = string.ascii_lowercase + "äöüßéñçøåœ"
PUNCTUATION = (
    ".,;:!?-\u2013\u2014\u2026\"'\u201e\u201c\u201d\u201a\u2018\u2019\u00ab\u00bb()[]/\u00bf\u00a1\u00b7`\u00b4_*&"
)
SPACES = " \t\u00a0\u2009\u3000\u200b\u00ad"


def sentences(rng: random.Random, count: int) -> list[str]:
    """Return distinct sentences of random words."""
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(5_000)]
    made = [f"{' '.join(rng.choices(words, k=rng.randint(4, 20))).capitalize()}." for _ in range(count)]
    assert len(set(made)) == count
    return made


def varied(line: str, rng: random.Random) -> str:
    """Change case, punctuation or spacing of a sentence, or all of them."""
    changed = line
    while changed == line:
        if rng.random() < 0.5:
            changed = rng.choice([str.upper, str.lower, str.title, str.swapcase])(changed)
        if rng.random() < 0.5:
            words = changed.strip(".").split(" ")
            changed = " ".join(word + rng.choice(["", "", "", *PUNCTUATION]) for word in words)
        if rng.random() < 0.5:
            spaces = [position for position, character in enumerate(changed) if character == " "]
            position = rng.choice(spaces) if spaces else 0
            changed = changed[:position] + "".join(rng.choices(SPACES, k=rng.randint(0, 3))) + changed[position + 1 :]
    return changed


def found_in(sets: Sequence[SearchedSet], *corpora: Sequence[tuple[str, str]]) -> LeakFinder:
    finder = LeakFinder(sets)
    for position, corpus in enumerate(corpora):
        for start in range(0, len(corpus), 1_000):
            finder.add(position, corpus[start : start + 1_000])
    return finder


@pytest.mark.slow
def test_finds_exactly_the_500_planted_sentences() -> None:
    rng = random.Random(1)
    text = sentences(rng, 2 * 12_000)
    pairs = list(zip(text[::2], text[1::2], strict=True))
    test, train = pairs[:2_000], pairs[2_000:]
    exact, near = dict.fromkeys(range(0, 1_000, 4)), dict.fromkeys(range(1, 1_000, 4))
    for line in (*exact, *near):
        src, tgt = test[line] if line in exact else (varied(side, rng) for side in test[line])
        position = rng.randrange(len(train))
        occurrences = {0: (src, tgt), 1: (src, train[position][1]), 2: (train[position][0], tgt)}
        train.insert(position, occurrences[line // 4 % 3])
    (result,) = found_in([SearchedSet("t", [src for src, _ in test], [[tgt for _, tgt in test]])], train).leaks()
    exactly = {leak.line - 1 for leak in result.leaks if leak.kind == "exact"}
    nearly = {leak.line - 1 for leak in result.leaks if leak.kind == "near"}
    assert (len(exact), len(near)) == (250, 250)
    assert exactly == set(exact), "every exact one, and no false alarm among 1,500 other sentences"
    assert nearly == set(near), "recall of near ones 100%, and no false alarm"
    for leak in result.leaks:
        side = int(leak.part == "reference")
        assert train[leak.number - 1][side] == leak.found
        assert (leak.found == test[leak.line - 1][side]) == (leak.kind == "exact")
        assert leak.part == ("both", "source", "reference")[(leak.line - 1) // 4 % 3]
    counts = result.counts()
    assert counts.any == LeakCount(250, 250) and counts.clean == len(result.clean()) == 1_500
    assert counts.source.exact + counts.reference.exact - counts.both.exact == 250


def test_leaks_of_one_side_and_of_both() -> None:
    one = SearchedSet("t", ["one", "two", "three", "", "?", "four"], [["eins", "zwei", "drei", "leer", "!", "Vier"]])
    first = [("One.", "Eins."), ("one", "x"), ("two", "x"), ("", ""), ("!", "?"), ("...", "zwei")]
    second = [("x", "eins"), ("one  ", "eins\r"), ("Three", "drei"), ("four", "vier")]
    (result,) = found_in([one], first, second).leaks()
    rows = [(leak.line, leak.part, leak.kind, leak.corpus, leak.number, leak.times) for leak in result.leaks]
    assert rows == [
        (1, "both", "exact", 1, 2, 2),  # replaces the leaks of its source and reference
        (2, "source", "exact", 0, 3, 1),
        (2, "reference", "exact", 0, 6, 1),
        (3, "reference", "exact", 1, 3, 1),  # only one side of the pair is exact
        (3, "both", "near", 1, 3, 1),
        (6, "source", "exact", 1, 4, 1),
        (6, "both", "near", 1, 4, 1),
    ]
    counts = result.counts()
    assert (counts.source, counts.reference) == (LeakCount(3, 1), LeakCount(3, 1))
    assert (counts.both, counts.any, counts.clean) == (LeakCount(1, 2), LeakCount(4, 0), 2)
    assert result.clean() == [3, 4]


def test_sentence_in_several_sets() -> None:
    sets = [SearchedSet("a", ["One!", "one"], [["x", "y"]]), SearchedSet("b", ["z", "ONE"], [["x", "y"]])]
    first, second = found_in(sets, [("one", ""), ("One!", "")]).leaks()
    assert [(leak.line, leak.kind, leak.number, leak.times) for leak in first.leaks] == [
        (1, "exact", 2, 2),
        (2, "exact", 1, 2),
    ]
    assert [(leak.line, leak.kind, leak.number, leak.times) for leak in second.leaks] == [(2, "near", 1, 2)]


@pytest.mark.slow
def test_a_frequent_sentence_has_one_leak_per_line() -> None:
    count = 20_000  # a search in quadratic time would take minutes
    finder = LeakFinder([SearchedSet("news", ["Yes."] * count, [["Ja."] * count])])
    finder.add(0, [("Yes.", "Ja.")] * count)
    leaks = finder.leaks()[0].leaks
    assert [leak.line for leak in leaks] == list(range(1, count + 1))
    assert {(leak.part, leak.kind, leak.times) for leak in leaks} == {("both", "exact", count)}


def test_all_references_are_searched() -> None:
    one = SearchedSet("t", ["a", "b", "c"], [["eins", "zwei", "drei"], ["Eins!", "2", "3"]])
    (result,) = found_in([one], [("x", "eins"), ("x", "2."), ("x", "EINS"), ("c", "3")]).leaks()
    rows = [(leak.line, leak.part, leak.kind, leak.number, leak.times, one.text(leak)) for leak in result.leaks]
    assert rows == [
        (1, "reference", "exact", 1, 2, "eins"),
        (2, "reference", "near", 2, 1, "2"),
        (3, "both", "exact", 4, 1, "c"),
    ]


def test_the_text_of_an_exact_leak_is_the_reference_that_occurs() -> None:
    one = SearchedSet("t", ["a", "b"], [["eins", "!"], ["Eins!", "?"]])
    (result,) = found_in([one], [("x", "Eins! "), ("x", "?")]).leaks()
    assert [(leak.kind, one.text(leak)) for leak in result.leaks] == [("exact", "Eins!"), ("exact", "?")]


def recipe_for(folder: Path, train: str) -> Recipe:
    (folder / "test.tsv").write_text("the cat\tdie Katze\nthe dog\tder Hund\n", encoding="utf-8")
    other = '{kind = "tsv", path = "test.tsv"}'
    text = f'data = {{train = [{train}], valid = [{other}], test = {{pets = {other}}}, root = "{folder}"}}'
    return parse_recipe(f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n{text}')


PAIRS = [("a tree", "ein Baum"), ("The cat.", "x"), ("y", "Der Hund!"), ("the cat", "die Katze")]


def write_corpora(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Write PAIRS as corpora of several kinds; return the recipe section and the leak locations per kind."""
    sides = list(zip(*PAIRS, strict=True))
    for side, name in zip(sides, ("en", "de"), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
        segments = "".join(f"<seg id='{n}'>{line}</seg>\n" for n, line in enumerate(side, 1))
        (folder / f"{name}.sgm").write_text(segments, encoding="utf-8")
    (folder / "t.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    records = "\n".join(json.dumps({"s": src, "t": tgt}) + "\n" for src, tgt in PAIRS)  # empty lines between them
    (folder / "t.jsonl").write_text(records, encoding="utf-8")
    segment = [f"{name}, segment {n}" for name, n in (("en.sgm", 4), ("de.sgm", 3))]
    return {
        "text": ('{kind = "text", src = "en", tgt = "de"}', ["en:4", "de:3"]),
        "sgm": ('{kind = "sgm", src = "en.sgm", tgt = "de.sgm"}', segment),
        "tsv": ('{kind = "tsv", path = "t.tsv"}', ["t.tsv:4", "t.tsv:3"]),
        "jsonl": (
            '{kind = "jsonl", path = "t.jsonl", src_field = "s", tgt_field = "t"}',
            ["t.jsonl:7", "t.jsonl:5"],
        ),
    }


@pytest.mark.parametrize("kind", ["text", "sgm", "tsv", "jsonl"])
def test_leak_locations(kind: str, tmp_path: Path) -> None:
    train, locations = write_corpora(tmp_path)[kind]
    recipe = recipe_for(tmp_path, train)
    finder = LeakFinder(searched_sets(recipe))
    search_training_text(recipe, finder)
    assert finder.num_read == {0: 4}
    test, valid = finder.leaks()
    assert (test.name, valid.name, test.leaks) == ("data.test.pets", "data.valid.0", valid.leaks)
    assert [(leak.line, leak.part, leak.kind, leak.times) for leak in test.leaks] == [
        (1, "both", "exact", 1),
        (2, "reference", "near", 1),
    ]
    assert [describe_location(leak, recipe.data) for leak in test.leaks] == [
        f"{tmp_path}/{position}" for position in locations
    ]


@pytest.mark.slow
def test_toy_test_set_has_no_leaks() -> None:
    corpora = ", ".join(f'{split} = {{kind = "toy", split = "{split}", pairs = 300}}' for split in ("test", "nested"))
    train, valid = '{kind = "toy", pairs = 1000}', '{kind = "toy", split = "valid", pairs = 100}'
    data = f"data = {{train = [{train}], valid = [{valid}], test = {{{corpora}}}}}"
    recipe = parse_recipe(f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n{data}')
    finder = LeakFinder(searched_sets(recipe))
    search_training_text(recipe, finder)
    assert {one.name: one.counts().source for one in finder.leaks()} == dict.fromkeys(
        ["data.test.test", "data.test.nested", "data.valid.0"], LeakCount(0, 0)
    )
    finder.add(0, [(finder.sets[0].src[7], "")])
    leak = finder.leaks()[0].leaks[-1]
    assert (leak.line, leak.part, leak.kind) == (8, "source", "exact")
    assert describe_location(leak, recipe.data) == "toy train, pair 1001"
