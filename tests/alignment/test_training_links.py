"""Links of the training text: statistical and given ones, through cleaning, tags and reversed targets."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.alignment import pair_chunks
from nmt.alignment.lexical import LexicalAligner, agreed_links
from nmt.alignment.stored_pairs import StoredCorpus
from nmt.alignment.training import LINKS_FOLDER, link_tokens, open_links, prepare_links, require_alignment_files
from nmt.alignment.words import parse_links
from nmt.data.prepare import Prepared, load_prepared, prepare
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.recipe import Recipe, parse_recipe

RECIPE = """
name = "linked"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "train.en", tgt = "train.de" }]
max_tokens = 30
workers = 1
[tokenizer]
vocab_size = 330
joint = false
[model]
tied_embeddings = "decoder"
[train]
guided_alignment = true
"""
NOUNS = {"cats": "Katzen", "dogs": "Hunde", "trees": "Bäume", "mice": "Mäuse", "horses": "Pferde"}
VERBS = {"see": "sehen", "like": "mögen", "find": "finden"}
LINE = "0-0 2-1 1-2"  # "cats see dogs" -> "Katzen Hunde sehen"


def sentences(seed: int, count: int = 80) -> list[tuple[str, str, str]]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        (subject, tgt_subject), (noun, tgt_noun) = rng.choices(list(NOUNS.items()), k=2)
        verb, tgt_verb = rng.choice(list(VERBS.items()))
        number = rng.randrange(10_000)  # makes most sentences distinct
        made.append((f"{subject} {verb} {noun} {number}", f"{tgt_subject} {tgt_noun} {tgt_verb}", LINE))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text with dropped pairs: an empty one, two duplicates, one that is too long, one in another script."""
    lines = sentences(1)
    lines[3:3] = [("", "leer", ""), lines[1]]
    lines[9:9] = [("cats " * 40, "Katzen " * 40, "0-0 39-39"), ("это не так", "das ist falsch", "0-0")]
    lines += [("  the \u200bfinal\u00a0 cats", "die letzten Katzen.", "0-0 1-1 2-2"), lines[0]]
    for index, name in enumerate(("train.en", "train.de", "train.links")):
        (tmp_path / name).write_text("".join(f"{line[index]}\n" for line in lines), encoding="utf-8")
    return tmp_path


def prepared_links(folder: Path, *options: str, run: str = "run") -> tuple[Recipe, Prepared, list[Any]]:
    """Prepare the text and its links; return the recipe, the prepared text and the links of each pair as stored."""
    recipe = parse_recipe(RECIPE, [f"run_dir='{folder / run}'", f"data.root='{folder}'", *options])
    prepared = prepare(recipe)
    prepare_links(prepared, recipe)
    links, _ = open_links(prepared)
    found = []
    for pair in range(len(links)):
        packed, _ = links.gather(np.array([pair]))
        found.append([divmod(int(link), 1 << 16) for link in packed])  # see `pack_links`
    return recipe, prepared, found


def pieces(prepared: Prepared, pair: int) -> tuple[list[str], list[str]]:
    store, tokenizers = PairStore(prepared.directory, "train"), prepared.tokenizers
    (src, _), (tgt, _) = (side.gather(np.array([pair])) for side in (store.src, store.tgt))
    return tokenizers.src.pieces(src), tokenizers.tgt.pieces(tgt)


def linked_words(prepared: Prepared, links: list[Any], pair: int) -> set[tuple[str, str]]:
    """Return linked words; a word begins at each piece that begins with a space."""
    src_words, tgt_words = map(words_of_pieces, pieces(prepared, pair))
    return {(src_words[source], tgt_words[target]) for source, target in links}


def words_of_pieces(side: list[str]) -> list[str]:
    """Return the word that contains each piece."""
    words = "".join(side).removeprefix("▁").split("▁")
    numbers = np.cumsum([piece.startswith("▁") for piece in side]) - 1
    return [words[number] for number in numbers]


def corpus(*options: str) -> str:
    fields = ("kind='text'", "src='train.en'", "tgt='train.de'", *options)
    return f"data.train=[{{{', '.join(fields)}}}]"


GIVEN = corpus("alignment='train.links'")


@pytest.mark.slow
def test_statistical_links_are_those_of_the_stored_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_chunks, "CHUNK_CELLS", 100)
    _, prepared, links = prepared_links(folder)
    store = PairStore(prepared.directory, "train")
    pairs = []
    for pair in range(len(store)):
        (src, _), (tgt, _) = (side.gather(np.array([pair])) for side in (store.src, store.tgt))
        pairs.append((src.tolist(), tgt.tolist()))
    assert links == [sorted(own) for own in agreed_links(pairs)]
    report = json.loads((prepared.directory / LINKS_FOLDER / "alignment.json").read_text())
    assert report["links"] == sum(map(len, links)) > 100


@pytest.mark.slow
def test_links_do_not_depend_on_the_number_of_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_chunks, "CHUNK_CELLS", 100)
    options = (corpus("tag='<web>'"), "data.reverse_target=true")
    results = []
    for workers in (1, 2):
        _, prepared, links = prepared_links(folder, *options, f"data.workers={workers}", run=f"run{workers}")
        files = sorted((prepared.directory / LINKS_FOLDER).iterdir())
        results.append([links, {path.name: path.read_bytes() for path in files}])
    assert results[0] == results[1]


def test_unseen_tokens_have_links_by_position() -> None:
    aligner = LexicalAligner.train(lambda: [[([1, 2], [3, 4])]], vocab=20)
    assert aligner.links([([1, 2], [3, 4]), ([9], [8]), ([], [3]), ([1], [])]) == [
        *agreed_links([([1, 2], [3, 4])]),
        {(0, 0)},
        set(),
        set(),
    ]
    assert LexicalAligner.train(lambda: [], vocab=20).links([([1], [2])]) == [{(0, 0)}]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("data.drop_duplicates=false",)], ids=["no duplicates", "duplicates"])
def test_given_links_survive_cleaning(folder: Path, options: tuple[str, ...]) -> None:
    _, prepared, links = prepared_links(folder, GIVEN, *options)
    drops = prepared.report["train"]["drops"]
    assert drops["duplicate"] == (0 if options else 2) and drops["empty"] == drops["wrong script"] == 1
    assert drops["too many tokens"] == 1
    for pair, own in enumerate(links):
        src, tgt = ("".join(side).strip("▁").split("▁") for side in pieces(prepared, pair))
        if src[0] == "the":
            expected = {("the", "die"), ("final", "letzten"), ("cats", "Katzen.")}
        else:
            expected = {(src[0], tgt[0]), (src[2], tgt[1]), (src[1], tgt[2])}
        assert linked_words(prepared, own, pair) == expected
    assert any(len(side) > 4 for side in pieces(prepared, 0))  # words of several tokens


@pytest.mark.slow
@pytest.mark.parametrize("given", [(), ("alignment='train.links'",)], ids=["statistical", "given"])
def test_links_refer_to_the_stored_tokens_with_tags_and_reversed_targets(folder: Path, given: tuple[str, ...]) -> None:
    symbol = "tokenizer.user_symbols=['<web>']"  # the same tokens in both runs
    _, _, plain = prepared_links(folder, symbol, corpus(*given), run="plain")
    options = (symbol, corpus(*given, "tag='<web>'"), "data.reverse_target=true")
    _, prepared, stored = prepared_links(folder, *options, run="stored")
    for pair, (own, other) in enumerate(zip(plain, stored, strict=True)):
        length = len(pieces(prepared, pair)[1])
        assert other == sorted((source + 1, length - 1 - target) for source, target in own)


@pytest.mark.slow
@pytest.mark.parametrize("tag", [(), ("tag='<web>'",)])
def test_given_links_of_truncated_sources_end_at_the_limit(tag: tuple[str, ...], folder: Path) -> None:
    given = corpus("alignment='train.links'", *tag)
    _, whole, all_links = prepared_links(folder, given, run="whole")
    limit = int(np.percentile(PairStore(whole.directory, "train").src.lengths, 60))
    options = (f"data.max_tokens={limit}", "data.long_sources='truncate'", "decode.long_lines='truncate'")
    _, prepared, links = prepared_links(folder, given, *options)
    store = PairStore(prepared.directory, "train")
    assert max(store.src.lengths) == limit < max(PairStore(whole.directory, "train").src.lengths)
    others = iter(range(len(all_links)))
    for pair, own in enumerate(links):
        src, tgt = pieces(prepared, pair)
        found = ((other, *pieces(whole, other)) for other in others)
        same = next(other for other, other_src, other_tgt in found if (other_src[:limit], other_tgt) == (src, tgt))
        assert own == [link for link in all_links[same] if link[0] < limit]


def test_corpora_with_and_without_a_file_have_links(folder: Path) -> None:
    corpora = [
        "{kind='text', src='train.en', tgt='train.de', alignment='train.links'}",
        "{kind='toy', pairs=50}",
        "{kind='toy', pairs=1}",  # duplicates the first pair of the corpus before it
    ]
    options = ("tokenizer.vocab_size=400",)
    _, prepared, links = prepared_links(folder, f"data.train=[{', '.join(corpora)}]", *options)
    sizes = [counts["pairs"] for counts in prepared.report["train"]["corpora"]]
    assert len(links) == sum(sizes) and sizes[1] > 10 and sizes[2] == 0
    assert len(linked_words(prepared, links[0], 0)) == 3 and all(links[sizes[0] :])


def test_links_are_recomputed_only_for_a_changed_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, prepared, links = prepared_links(folder, GIVEN)
    capsys.readouterr()
    prepare_links(prepared, recipe)
    assert not capsys.readouterr().err
    file = folder / "train.links"
    file.write_text(file.read_text().replace(" 2-1", ""))
    prepare_links(prepared, recipe)
    assert "warning: word alignments" not in (err := capsys.readouterr().err) and "word alignments: " in err
    assert open_links(prepared)[0].offsets[-1] < sum(map(len, links))
    file.write_text("\n" * file.read_text().count("\n"))
    prepare_links(prepared, recipe)
    assert (
        "warning: word alignments: 0 links, for 0.0% of the target tokens, which are too few" in capsys.readouterr().err
    )


def test_a_deleted_file_is_not_needed_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, prepared, links = prepared_links(folder, GIVEN)
    (folder / "train.links").unlink()
    prepare_links(prepared, recipe)
    assert "train.links no longer exists; the word alignments made from it are used" in capsys.readouterr().err
    assert open_links(prepared)[0].offsets[-1] == sum(map(len, links))
    shutil.rmtree(prepared.directory / LINKS_FOLDER)
    with pytest.raises(UserError, match=r"train.links: No such file"):
        prepare_links(prepared, recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "0-0\n", r"the corpus ends at pair \d+, before .*train.links; .* a line for each pair"),
        (
            lambda text: text.partition("\n")[2],  # the fourth line now belongs to the pair with an empty source
            "train.links, line 4: link 0-0 is out of range for 0 source and 1 target words",
        ),
        (lambda text: "0-0 1:1" + text[len(LINE) :], "train.links, line 1: '1:1' is not a link"),
        (
            lambda text: "0-0 4-1" + text[len(LINE) :],
            "train.links, line 1: link 4-1 is out of range for 4 source and 3 target words",
        ),
    ],
)
def test_wrong_files_are_one_line(folder: Path, change: Any, message: str) -> None:
    file = folder / "train.links"
    file.write_text(change(file.read_text()))
    with pytest.raises(UserError, match=message) as caught:
        prepared_links(folder, GIVEN)
    assert "\n" not in str(caught.value)
    assert not (folder / "run" / "data" / LINKS_FOLDER).exists()


@pytest.mark.parametrize(("added", "lines"), [("0-0\n", "87"), ("", "85")])
def test_files_with_a_wrong_number_of_lines_are_rejected_before_preparation(
    folder: Path, added: str, lines: str
) -> None:
    recipe = parse_recipe(RECIPE, [f"run_dir='{folder / 'run'}'", f"data.root='{folder}'", GIVEN])
    require_alignment_files(recipe)
    file = folder / "train.links"
    text = file.read_text()
    file.write_text(text + added if added else text.partition("\n")[2])
    with pytest.raises(UserError, match=f"train.0.alignment: .*train.links has {lines} lines, and the corpus 86"):
        require_alignment_files(recipe)


def test_blank_lines_of_a_json_lines_corpus_need_no_links(folder: Path) -> None:
    records = [json.dumps({"en": src, "de": tgt}) + "\n\n" for src, tgt, _ in sentences(1)]
    (folder / "train.jsonl").write_text("".join(records), encoding="utf-8")
    jsonl = "data.train=[{kind='jsonl',path='train.jsonl',src_field='en',tgt_field='de',alignment='train.links'}]"
    (folder / "train.links").write_text(f"{LINE}\n" * len(records))
    require_alignment_files(parse_recipe(RECIPE, [f"run_dir='{folder / 'run'}'", f"data.root='{folder}'", jsonl]))


@pytest.mark.slow
def test_missing_and_damaged_links_are_errors(folder: Path) -> None:
    recipe = parse_recipe(RECIPE, [f"run_dir='{folder / 'run'}'", f"data.root='{folder}'"])
    prepared = prepare(recipe)
    with pytest.raises(UserError, match=r"has no word alignments for this text; .* run `nmt prepare`"):
        open_links(prepared)
    prepare_links(prepared, recipe)
    path = prepared.directory / LINKS_FOLDER / "train.links.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"tokens.npy is damaged"):
        open_links(load_prepared(prepared.directory))
    with pytest.raises(UserError, match="No such file"):
        prepared_links(folder, corpus("alignment='other.links'"), run="other")


def test_links_of_a_line_are_parsed() -> None:
    assert parse_links(" 0-0  1-2\t", (2, 3), "here") == [(0, 0), (1, 2)]
    assert parse_links("", (2, 3), "here") == []
    for line in ("0", "0-", "-1-0", "0-0-0", "a-b", "0-\u00b2"):
        with pytest.raises(UserError, match=r"^here: .* is not a link"):
            parse_links(line, (9, 9), "here")


def test_all_tokens_of_linked_words_are_linked() -> None:
    assert link_tokens([(0, 1), (1, 0)], [0, 0, 1, None], [0, 1, 1]) == {(0, 1), (0, 2), (1, 1), (1, 2), (2, 0)}


def test_a_fraction_of_the_pairs_is_evenly_spaced() -> None:
    corpus = parse_recipe(RECIPE).data.train[0]
    pairs = StoredCorpus(corpus, 10, 20, None)
    assert pairs.ids().tolist() == [*range(10, 20)]
    assert pairs.ids(0.5).tolist() == [10, 12, 14, 16, 18]
    assert pairs.ids(0.01).tolist() == [10]
    assert StoredCorpus(corpus, 10, 10, None).ids(0.5).tolist() == []
