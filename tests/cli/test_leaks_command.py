"""`nmt leaks` lists the test sentences that are in the training text, by file and line."""

import gzip
import json
from pathlib import Path

import pytest

from tests.calling import Nmt, one_line

RECIPE = """
name = "small"
src_lang = "en"
tgt_lang = "de"
[data]
root = "FOLDER"
train = [
    { kind = "text", src = "first.en.gz", tgt = "first.de" },
    { kind = "tsv", path = "second.tsv" },
]
valid = [{ kind = "tsv", path = "valid.tsv" }]
[data.test]
news = { kind = "text", src = "news.en", tgt = "news.de" }
other = { kind = "tsv", path = "other.tsv" }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    files = {
        "first.de": "Ein Baum.\nDie Katze.\nJa.\nJa.\n",
        "second.tsv": "A dog!\tEin Hund!\nYes.\tSicher.\n",
        "valid.tsv": "a DOG\tDer Hund\n",
        "news.en": "A tree.\nThe  cat\nYes.\nA dog\nNew.\n",
        "news.de": "Ein Baum.\nDie Katze?\nJa!\nEin Hund\nNeu.\n",
        "other.tsv": "Nothing\tNichts\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "first.en.gz").write_bytes(gzip.compress(b"A tree.\nThe cat.\nYes.\nyes\n"))
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    return path


def test_empty_training_text_is_an_error(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "first.en.gz").write_bytes(gzip.compress(b""))
    for name in ("first.de", "second.tsv"):
        (tmp_path / name).write_text("")
    status, out, err = nmt("leaks", recipe)
    assert (status, out) == (1, "")
    assert one_line(err) == "data.train has no sentences; it must have at least one; correct data.train"


def test_the_text_of_an_initial_model_is_not_searched(recipe: Path, nmt: Nmt) -> None:
    status, _, err = nmt("leaks", recipe, "train.start_from=runs/large")
    assert (status, err) == (0, "warning: the training text of train.start_from, runs/large, was not searched\n")


def test_counts_and_locations_are_listed(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    status, out, err = nmt("leaks", recipe)
    assert (status, err) == (0, "")
    counts, _, listed = out.partition("\n\n")
    assert [line.split() for line in counts.splitlines()[1:]] == [
        ["data.test.news", "5", "exact", "2", "1", "1", "2", "1"],
        ["near", "2", "3", "3", "2"],
        ["data.test.other", "1", "exact", "0", "0", "0", "0", "1"],
        ["near", "0", "0", "0", "0"],
        ["data.valid.0", "1", "exact", "0", "0", "0", "0", "0"],
        ["near", "1", "0", "0", "1"],
    ]
    rows = [line.split() for line in listed.splitlines() if line.startswith("data.")]
    assert [row[:5] for row in rows] == [
        ["data.test.news:1", "both", "exact", f"{tmp_path}/first.en.gz:1", "1"],
        ["data.test.news:2", "both", "near", f"{tmp_path}/first.en.gz:2", "1"],
        ["data.test.news:3", "source", "exact", f"{tmp_path}/first.en.gz:3", "3"],
        ["data.test.news:3", "both", "near", f"{tmp_path}/first.en.gz:3", "2"],
        ["data.test.news:4", "both", "near", f"{tmp_path}/second.tsv:1", "1"],
        ["data.valid.0:1", "source", "near", f"{tmp_path}/second.tsv:1", "1"],
    ]
    assert rows[0][5:] == ["A", "tree."]
    assert rows[4][5:] == ["A", "dog", "A", "dog!"]
    assert not (tmp_path / "runs").exists()


def test_json_has_the_counts_and_the_leaks(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    status, out, _ = nmt("leaks", recipe, "--format", "json")
    assert status == 0
    news, other, valid = json.loads(out)["sets"]
    assert (news["name"], news["sentences"], news["clean"], other["leaks"]) == ("data.test.news", 5, 1, [])
    assert news["any"] == {"exact": 2, "near": 2}
    assert valid["leaks"] == [
        {
            "line": 1,
            "part": "source",
            "kind": "near",
            "text": "a DOG",
            "location": f"{tmp_path}/second.tsv:1",
            "found": "A dog!",
            "times": 1,
        }
    ]


def test_overrides_change_the_recipe(recipe: Path, nmt: Nmt) -> None:
    _, out, _ = nmt("leaks", recipe, "data.test={}", "--json")
    assert [found["name"] for found in json.loads(out)["sets"]] == ["data.valid.0"]


def test_unusable_files_are_errors(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "first.de").write_text("Ein Baum.\n")
    status, _, err = nmt("leaks", recipe)
    assert status == 1 and "first.en.gz has 4 sentences and" in one_line(err)
    (tmp_path / "news.de").unlink()
    status, _, err = nmt("leaks", recipe)
    assert status == 1 and "news.de: No such file" in one_line(err)
    status, _, err = nmt("leaks", tmp_path / "none.toml")
    assert status == 2 and "cannot read recipe" in one_line(err)


def test_an_empty_list_of_leaks_is_not_printed(recipe: Path, nmt: Nmt) -> None:
    _, out, _ = nmt("leaks", recipe, "data.train=[{kind='toy', pairs=20}]")
    assert out.count("\n\n") == 1 and "None" not in out and "Near matches" in out
