"""`nmt new`: recipes of three sizes, and its errors."""

import errno
import gzip
import json
import os
from pathlib import Path

import pyarrow.parquet
import pytest

from nmt.data.corpus import ReadOptions, read_chunks
from nmt.grammar import generate
from nmt.recipe import Recipe, load_recipe, parse_recipe
from nmt.recipe.starter import starter_recipe
from tests.calling import Nmt, one_line
from tests.data.corpus_files import COMPRESSORS


def write_pairs(folder: Path, name: str, pairs: int) -> list[Path]:
    files = [folder / f"{name}.{language}" for language in ("en", "de")]
    for path in files:
        path.write_text("".join(f"{path.suffix} w{i % 97} x{i % 89}\n" for i in range(pairs)))
    return files


def options(folder: Path, pairs: int) -> list[object]:
    (src, tgt), (valid_src, valid_tgt) = write_pairs(folder, "train", pairs), write_pairs(folder, "valid", 5)
    return ["--src", src, "--tgt", tgt, "--valid-src", valid_src, "--valid-tgt", valid_tgt]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "d_model", "dropout", "batch_tokens"),
    [(99_999, 256, 0.3, 2_048), (100_000, 512, 0.3, 4_096)],
)
def test_the_size_fits_the_text(
    pairs: int, d_model: int, dropout: float, batch_tokens: int, tmp_path: Path, nmt: Nmt
) -> None:
    (tmp_path / "a folder").mkdir()
    out = tmp_path / "a folder" / "own.toml"
    status, printed, err = nmt("new", "en", "de", *options(tmp_path, pairs), "-o", out)
    assert (status, printed) == (0, f"{out}\n"), err
    assert f"{pairs:,} pairs: " in err and f"next: nmt run '{out}'" in err
    recipe = load_recipe(out)
    assert (recipe.name, recipe.src_lang, recipe.tgt_lang) == ("own", "en", "de")
    assert (recipe.model.d_model, recipe.model.dropout, recipe.train.batch_tokens) == (d_model, dropout, batch_tokens)
    assert 1_000 <= recipe.train.max_steps <= 100_000


@pytest.mark.parametrize(
    ("pairs", "size", "dropout", "batch_tokens"),
    [(999_999, "small", 0.3, 4_096), (1_000_000, "base", 0.1, 25_000)],
)
def test_a_million_pairs_select_the_base_model(pairs: int, size: str, dropout: float, batch_tokens: int) -> None:
    corpus = {"kind": "tsv", "path": "pairs.tsv"}
    text, found = starter_recipe("own", ("en", "de"), corpus, corpus, pairs, tokens=10 * pairs, alphabet=100)
    recipe = parse_recipe(text)
    assert (found, recipe.model.d_model, recipe.model.dropout) == (size, 512, dropout)
    assert recipe.train.batch_tokens == batch_tokens


@pytest.mark.parametrize("pairs", [100, 3_000, 20_000, 29_000, 99_999])
def test_averaged_checkpoints_are_close_to_each_other(pairs: int) -> None:
    corpus = {"kind": "tsv", "path": "pairs.tsv"}
    text, _ = starter_recipe("own", ("en", "de"), corpus, corpus, pairs, 14 * pairs, 100)
    train = parse_recipe(text).train
    assert (train.average_count - 1) * train.save_every <= train.max_steps / 8
    assert train.validate_every % train.save_every == 0


@pytest.mark.slow
def test_the_recipe_trains(tmp_path: Path, nmt: Nmt) -> None:
    out, given, pairs = tmp_path / "own.toml", options(tmp_path, 0), list(generate("train", 300, 5))
    (tmp_path / "train.en").write_text("".join(f"{pair.src}\n" for pair in pairs))
    (tmp_path / "train.de").write_text("".join(f"{pair.tgt}\n" for pair in pairs))
    assert nmt("new", "en", "de", *given, "-o", out)[0] == 0
    small = ["model.d_model=16", "model.num_heads=2", "train.max_steps=2", "train.batch_tokens=300", "data.workers=1"]
    small += ["train.micro_batch_tokens=300", f"run_dir={tmp_path / 'run'}", "train.device=cpu"]
    small += ["train.warmup_steps=1", "train.average_count=1", "model.d_ff=32", "model.num_encoder_layers=1"]
    status, _, err = nmt("train", out, *small)
    assert status == 0, err


def test_tsv_is_accepted_and_an_existing_recipe_is_kept(
    tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("a dog\tein Hund\n" * 20)
    command = ("new", "en", "de", "--tsv", "pairs.tsv", "--valid-tsv", "pairs.tsv")
    status, out, err = nmt(*command)
    assert (status, out) == (0, "en-de.toml\n")
    assert err.startswith("warning: the validation set is also training text; it must be disjoint")
    recipe: Recipe = load_recipe(Path("en-de.toml"))
    assert recipe.data.train[0].model_dump()["path"] == Path("pairs.tsv")
    before = Path("en-de.toml").read_text()
    Path("pairs.tsv").write_text("no tab\n")  # not read
    status, _, err = nmt(*command)
    assert (status, Path("en-de.toml").read_text()) == (1, before)
    assert one_line(err) == "en-de.toml already exists; -o must be a new file; choose another name"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pairs.tmx", "pairs.jsonl.gz", "PAIRS.PARQUET"])
def test_other_formats_are_accepted(name: str, tmp_path: Path, nmt: Nmt) -> None:
    pairs = [{"en": f"dog {number}", "text": {"de": f"Hund {number}"}} for number in range(20)]
    if name.endswith("tmx"):
        units = "<tu><tuv lang='en'><seg>dog</seg></tuv><tuv lang='de-AT'><seg>Hund</seg></tuv></tu>" * 20
        (tmp_path / name).write_text(f"<tmx><body>{units}</body></tmx>")
    elif name.endswith("gz"):
        (tmp_path / name).write_bytes(gzip.compress("".join(f"{json.dumps(pair)}\n" for pair in pairs).encode()))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(pairs), tmp_path / name)
    out, file = tmp_path / "own.toml", tmp_path / name
    command: tuple[object, ...] = ("new", "en", "de", "--file", file, "--valid-file", file, "-o", out)
    if not name.endswith("tmx"):
        assert "has no field 'de'; its fields are 'en', 'text'; correct the fields of the corpus" in nmt(*command)[2]
        command = (*command, "--fields", "en", "text.de")
    status, _, err = nmt(*command)
    assert status == 0 and "20 pairs: tiny model" in err, err
    recipe = load_recipe(out)
    ((_, chunk),) = read_chunks(recipe.data.train, ReadOptions.from_recipe(recipe))
    assert len(chunk) == 20 and chunk[0][0].startswith("dog") and chunk[0][1].startswith("Hund")


def test_a_header_names_the_columns(tmp_path: Path, nmt: Nmt) -> None:
    text, out = tmp_path / "pairs.tsv", tmp_path / "own.toml"
    command = ("new", "en", "de", "--file", text, "--valid-file", text, "-o", out)
    for header, fields, expected, pairs in (
        ("id\tsource\ttarget", (), ("source", "target"), 2),
        ("id\tde\ten\r", (), ("en", "de"), 2),
        ("id\tenglish\treference", ("english", "reference"), ("english", "reference"), 2),
        ("target\tZiel", (0, 1), (0, 1), 3),
        ("a\tb", (), (0, 1), 3),
    ):
        text.write_text(f"{header}\n1\tx\ty\n2\tz\tw\n")
        status, _, err = nmt(*command, *(("--fields", *fields) if fields else ()))
        assert (status, f"{pairs} pairs" in err) == (0, True), err
        hint = f"the first line of {text} counts as text, not as a header: 'a', 'b'; if it names the columns, add --f"
        assert (hint in err) == (header == "a\tb")
        corpus = load_recipe(out).data.train[0].model_dump()
        assert (corpus["src_column"], corpus["tgt_column"]) == expected
        out.unlink()
    text.write_text("id\tenglish\treference\n1\tx\ty\n")
    err = one_line(nmt(*command)[2])
    assert "has a header: 'id', 'english', 'reference'; the columns of source and target are unknown; add --f" in err


def test_a_csv_file_is_an_error(tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "pairs.csv").write_text("a dog,ein Hund\n")
    err = nmt("new", "en", "de", *options(tmp_path, 5)[4:], "--file", tmp_path / "pairs.csv")[2]
    assert one_line(err).endswith("pairs.csv, line 1 has 1 column; expected at least 2; convert the CSV file to TSV")


@pytest.mark.parametrize("name", ["pairs.json.tsv", "pairs.tmx.txt.gz", "pairs.TSV.bz2", "pairs"])
def test_the_last_extension_names_the_format(name: str, tmp_path: Path, nmt: Nmt) -> None:
    text = b"dog\tHund\ncat\tKatze\n"
    file, out = tmp_path / name, tmp_path / "own.toml"
    file.write_bytes(COMPRESSORS.get(file.suffix.removeprefix("."), bytes)(text))
    status, _, err = nmt("new", "en", "de", "--file", file, "--valid-file", file, "-o", out)
    assert status == 0, err
    assert [corpus.kind for corpus in load_recipe(out).data.train] == ["tsv"]


def test_the_vocabulary_covers_all_characters(tmp_path: Path, nmt: Nmt) -> None:
    lines = ["".join(chr(0x4E00 + 9 * i + j) for j in range(9)) for i in range(200)]  # 1,800 Chinese characters
    (tmp_path / "pairs.tsv").write_text("".join(f"word {i}\t{line}\n" for i, line in enumerate(lines)))
    out, text = tmp_path / "own.toml", tmp_path / "pairs.tsv"
    assert nmt("new", "en", "zh", "--tsv", text, "--valid-tsv", text, "-o", out)[0] == 0
    status, _, err = nmt("prepare", out, f"run_dir={tmp_path / 'run'}", "data.workers=1")
    assert status == 0, err


@pytest.mark.parametrize(("language", "vocab_size"), [("de", 1_000), ("zh", 2_666)])
def test_characters_per_token_depend_on_the_language(language: str, vocab_size: int, tmp_path: Path, nmt: Nmt) -> None:
    """A tiny model has one token in its vocabulary for fifty target tokens."""
    (tmp_path / "pairs.tsv").write_text(f"word\t{'a' * 100}\n" * 2_000)
    out, text = tmp_path / "own.toml", tmp_path / "pairs.tsv"
    assert nmt("new", "en", language, "--tsv", text, "--valid-tsv", text, "-o", out)[0] == 0
    assert load_recipe(out).tokenizer.vocab_size == vocab_size


def test_large_alphabets_get_large_vocabularies() -> None:
    corpus = {"kind": "tsv", "path": "pairs.tsv"}
    for alphabet, expected in ((4_000, 10_000), (6_000, 12_000)):
        text, _ = starter_recipe("own", ("en", "zh"), corpus, corpus, 100_000, 2_000_000, alphabet)
        assert parse_recipe(text).tokenizer.vocab_size == expected


def test_text_in_another_format_is_named(tmp_path: Path, nmt: Nmt) -> None:
    given = options(tmp_path, 5)
    assert "warning" not in nmt("new", "en", "de", *given, "-o", tmp_path / "plain.toml")[2]
    (tmp_path / "train.en").write_text('{"text": "a dog"}\n' * 5)
    status, _, err = nmt("new", "en", "de", *given, "-o", tmp_path / "json.toml")
    assert (status, "train.en, lines 1 to 5, are JSON, which counts as text" in err) == (0, True)


@pytest.mark.slow
def test_further_columns_are_named_and_do_not_count(tmp_path: Path, nmt: Nmt) -> None:
    plain, attributed = tmp_path / "plain.tsv", tmp_path / "attributed.tsv"
    num_pairs = 30_000  # enough for more than the minimum number of updates
    plain.write_text("a dog\tein Hund und eine Katze\n\n" * num_pairs)
    attributed.write_text(f"a dog\tein Hund und eine Katze\t{'a long attribution ' * 20}\tCC-BY\n\n" * num_pairs)
    steps = []
    for path in (plain, attributed):
        out = path.with_suffix(".toml")
        status, _, err = nmt("new", "en", "de", "--tsv", path, "--valid-tsv", plain, "-o", out)
        assert status == 0, err
        steps.append(load_recipe(out).train.max_steps)
        assert (f"{path} has 4 columns; the recipe uses the first two" in err) == (path == attributed)
    assert steps[0] == steps[1] > 1_000


def test_a_full_disk_leaves_no_part_of_a_recipe(tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    given = options(tmp_path, 5)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "fsync", fail)
    status, out, err = nmt("new", "en", "de", *given, "-o", tmp_path / "own.toml")
    assert (status, out) == (1, "")
    assert one_line(err).startswith("the disk is full while writing ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("file", "name"), [("ä ö.toml", "en-de"), ("my text ü.toml", "my-text")])
def test_any_file_name_gives_a_valid_recipe(file: str, name: str, tmp_path: Path, nmt: Nmt) -> None:
    status, _, err = nmt("new", "en", "de", *options(tmp_path, 7), "-o", tmp_path / file)
    assert status == 0, err
    assert load_recipe(tmp_path / file).name == name


def test_invalid_input_is_an_error(tmp_path: Path, nmt: Nmt) -> None:
    given = options(tmp_path, 7)
    train, valid = given[:4], given[4:]
    _, src, _, _ = train
    _, valid_src, _, valid_tgt = valid
    for languages, texts, status, expected in (
        (["en", "de"], train, 2, "nmt new needs --valid-src and --valid-tgt, or --valid-file; give one or the other"),
        (["en", "de"], [*given, "--tsv", src], 2, "nmt new needs --src and --tgt, or --file; give one or the other"),
        (["en", "german"], given, 2, "'TGT': 'german' is not an ISO 639 code; it must be two or"),
        (["en", "de"], ["--src", src, "--tgt", valid_tgt, *valid], 1, "they must match line by line; check both"),
        (["en", "de"], ["--src", src, "--tgt", src, *valid], 2, f"--src and --tgt are the same file, {src}"),
        (["en", "de"], [*given, "--fields", "a", "b"], 2, "--fields has no effect without a TSV, .jsonl or"),
        (["en", "de"], [*train, "--valid-tsv", valid_src], 1, f"{valid_src}, line 1 has 1 column; expected at least 2"),
    ):
        found, out, err = nmt("new", *languages, *texts, "-o", tmp_path / "own.toml")
        assert (found, out) == (status, "")
        assert expected in one_line(err)
    assert not (tmp_path / "own.toml").exists()
    (tmp_path / "train.en").unlink()  # not read
    status, _, err = nmt("new", "en", "de", *given, "-o", tmp_path / "none" / "own.toml")
    assert (status, "none is not a directory; -o must be in an existing directory" in one_line(err)) == (1, True)
