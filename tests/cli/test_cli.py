"""A tiny run and its model on the command line: training, translation, scores and averages."""

import gzip
import json
import math
import re
from pathlib import Path

import pytest

from nmt import DecodeRecipe, Translator
from nmt.checkpoint import write_with_decode
from nmt.recipe import parse_recipe
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import list_checkpoints
from nmt.storage.sealed import manifest_digest
from tests.calling import Nmt, PipeIn, one_line
from tests.cli.conftest import TINY_RECIPE
from tests.cli.nasty_lines import as_bytes

# --- The whole workflow -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_run_prints_the_report_and_leaves_every_file(run_dir: Path) -> None:
    printed = (run_dir.parent / "out.md").read_text()
    assert printed.strip() == (run_dir / "report.md").read_text().strip()
    report = json.loads((run_dir / "report.json").read_text())
    assert report["training"]["steps"] == 12
    assert report["training"]["averaged"] == 2
    assert report["model"] == manifest_digest(run_dir / "model")
    (test,) = report["tests"]
    translations = (run_dir / "translations" / "heldout.de").read_text().splitlines()
    assert len(translations) == test["sentences"] == 20
    assert len(test["samples"]) == 10
    assert {score["name"] for score in test["scores"]} == {"bleu", "chrf", "ter"}
    assert all("version:" in score["signature"] for score in test["scores"])
    assert test["groups"]
    assert [path.name for path in list_checkpoints(run_dir)][-1] == "step-00000012"
    assert "valid/bleu" in (run_dir / "metrics.jsonl").read_text()
    assert "![Curves of the training run](curves.png)" in printed
    assert (run_dir / "curves.png").stat().st_size > 10_000
    assert all(score["interval"] >= 0 and "|bs:1000|" in score["signature"] for score in test["scores"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_lowercased_run_ignores_case(tmp_path: Path, nmt: Nmt) -> None:
    run = tmp_path / "run"
    (tmp_path / "tiny.toml").write_text(TINY_RECIPE)
    options = ["tokenizer.lowercase=true", "train.max_steps=6", f"run_dir={run}"]
    status, _, err = nmt("run", tmp_path / "tiny.toml", *options)
    assert status == 0, err
    (test,) = json.loads((run / "report.json").read_text())["tests"]
    signatures = {score["name"]: score["signature"] for score in test["scores"]}
    assert "case:lc" in signatures["bleu"] and "case:lc" in signatures["chrf"]
    lines = ["The old dog sees a House.", "THE OLD DOG SEES A HOUSE.", "the old dog sees a house."]
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    status, out, _ = nmt("translate", run, tmp_path / "lines")
    assert status == 0
    first, *others = out.splitlines()
    assert first and first == first.lower()
    assert others == [first, first]


@pytest.mark.slow
def test_rerunning_a_complete_run_rewrites_neither_models_nor_data(run_dir: Path, nmt: Nmt) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.safetensors")}
    before |= {path: path.stat().st_mtime_ns for path in (run_dir / "data").iterdir()}
    status, _, err = nmt("run", run_dir.parent / "tiny.toml", f"run_dir={run_dir}")
    assert status == 0
    assert "training is complete" in err
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_translate_never_overwrites_its_input(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    text = tmp_path / "text"
    text.write_text("The woman buys a car.\n")
    for option in ("-o", "--out"):
        status, _, err = nmt("translate", run_dir, text, option, text)
        assert status == 1 and "is the input" in one_line(err)
    status, _, err = nmt("translate", run_dir, tmp_path / "text", "--prefixes", text, "-o", text)
    assert status == 1 and text.read_text() == "The woman buys a car.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.slow
def test_mbr_uses_n_best_of_the_recipe(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    """The options of the model, the same options on the command line, and Python give the same output."""
    mbr = ["--set", "sampling=true", "--set", "mbr_metric=chrf"]
    model = tmp_path / "model"
    decode = read_model_metadata(run_dir / "model").decode.model_copy(
        update={"sampling": True, "mbr_metric": "chrf", "n_best": 6}
    )
    write_with_decode(run_dir / "model", decode, model)
    text = tmp_path / "text"
    text.write_text("The woman buys a car.\nThe old dog sees a house.\n")
    status, by_recipe, err = nmt("translate", model, text)
    assert status == 0, err
    status, by_options, _ = nmt("translate", run_dir, text, *mbr, "--n-best", 6)
    assert status == 0 and by_options == by_recipe
    assert Translator.load(model, "cpu").translate(text.read_text().splitlines()) == by_recipe.splitlines()
    status, plain, _ = nmt("translate", model, text, "--set", "mbr_metric=none", "--set", "sampling=false")
    assert status == 0 and len(plain.splitlines()) == 2
    status, default, _ = nmt("translate", model, text, "--set", "mbr_metric=", "--set", "sampling=false")
    assert status == 0 and default == plain
    status, _, err = nmt("translate", run_dir, text, "--set", "mbr_metric=chrf")
    assert status == 1 and "n_best must be at least 2" in one_line(err)


@pytest.mark.slow
def test_each_input_line_gives_one_output_line_in_order(run_dir: Path, nmt: Nmt, pipe_in: PipeIn) -> None:
    lines = [
        "The woman buys a car.",
        "",
        "   \t ",
        "word " * 1_000,
        "\U0001f600\U0001f680",
        "a\u2028b\u0085c",
        "nul \x00 byte",
        "\u05e9\u05dc\u05d5\u05dd",
        "The woman buys a car.",
    ]
    pipe_in(lambda write: write(as_bytes(lines)))
    status, out, err = nmt("translate", run_dir)
    assert status == 0, err
    translations = out.split("\n")
    assert translations.pop() == ""
    assert len(translations) == len(lines)
    assert translations[1] == translations[2] == ""
    assert translations[0] == translations[-1] != ""
    assert "too long" in err


@pytest.mark.slow
def test_invalid_utf8_on_standard_input_names_the_line(run_dir: Path, nmt: Nmt, pipe_in: PipeIn) -> None:
    pipe_in(lambda write: write(b"fine\n\xff\n"))
    status, out, err = nmt("translate", run_dir, "--window", 1, "--engine", "torch")
    assert (status, out.count("\n")) == (1, 1)
    assert "standard input, line 2: byte 0xff is not UTF-8" in one_line(err)


@pytest.mark.slow
def test_translate_file_equals_python(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("The man sleeps.\nA dog sees the house.")
    status, out, _ = nmt("translate", run_dir, tmp_path / "in.txt", "-o", tmp_path / "out.txt", "--engine", "torch")
    assert (status, out) == (0, "")
    translator = Translator.load(run_dir, device="cpu")
    assert (tmp_path / "out.txt").read_text().splitlines() == translator.translate(
        ["The man sleeps.", "A dog sees the house."]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


@pytest.mark.slow
def test_n_best_and_scores_are_columns(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("The man sleeps.\n\nA dog.\n")
    _, plain, _ = nmt("translate", run_dir, tmp_path / "in.txt")
    _, scored, _ = nmt("translate", run_dir, tmp_path / "in.txt", "--with-scores")
    _, listed, _ = nmt("translate", run_dir, tmp_path / "in.txt", "--n-best", 2)
    scores, texts = zip(*(line.split("\t") for line in scored.splitlines()), strict=True)
    assert list(texts) == plain.splitlines()
    rows = [line.split("\t") for line in listed.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[0][1] == scores[0]
    assert float(rows[0][1]) >= float(rows[1][1])


@pytest.mark.slow
def test_translations_begin_with_the_prefixes(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("The man sleeps.\n\nA dog.\n")
    (tmp_path / "begin.txt").write_text("Heute\n\n\n")
    _, plain, _ = nmt("translate", run_dir, tmp_path / "in.txt")
    _, begun, _ = nmt("translate", run_dir, tmp_path / "in.txt", "--prefixes", tmp_path / "begin.txt")
    assert begun.startswith("Heute")
    assert begun.splitlines()[1:] == plain.splitlines()[1:]
    (tmp_path / "begin.txt").write_text("Heute\n")
    status, _, err = nmt("translate", run_dir, tmp_path / "in.txt", "--prefixes", tmp_path / "begin.txt")
    assert status == 1
    assert "has 1 line and" in one_line(err)


@pytest.mark.slow
def test_files_of_constraints_cannot_be_standard_input(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("A dog.\n")
    for option in ("--prefixes", "--required", "--glossary"):
        status, _, err = nmt("translate", run_dir, tmp_path / "in.txt", option, "-")
        assert status == 2
        assert f"Invalid value for '{option}': - is not supported; it must be a file; name one" in one_line(err)


@pytest.mark.slow
def test_search_options_change_the_translations(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("A dog.\n")
    command = ("translate", run_dir, tmp_path / "in.txt", "--engine", "torch", "--set", "no_repeat_ngram=1")
    _, plain, _ = nmt(*command)
    status, out, _ = nmt(*command, "--set", f"forbid=[{json.dumps(plain.strip())}]")
    assert status == 0
    assert out.strip() and plain.strip() not in out
    repeated, distinct = (
        Translator.load(run_dir, "cpu", decode=DecodeRecipe(no_repeat_ngram=order)).translate_n_best(["A dog."])[0][0]
        for order in (0, 1)
    )
    assert len(set(repeated.pieces)) < len(repeated.pieces)
    assert len(set(distinct.pieces)) == len(distinct.pieces) >= 3


@pytest.mark.slow
def test_wrong_search_options_are_one_line(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("A dog.\n")
    status, _, err = nmt("translate", run_dir, tmp_path / "in.txt", "--set", "no_repeat=1")
    assert status == 2
    assert "did you mean 'no_repeat_ngram'?" in one_line(err)
    status, _, err = nmt("translate", run_dir, tmp_path / "in.txt", "--beam-size", 2, "--n-best", 5)
    assert status == 2
    assert "increase beam_size" in one_line(err)


@pytest.mark.slow
def test_required_phrases_and_biased_words_are_in_the_translations(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("The man sleeps.\n\nA dog.\n")
    (tmp_path / "held.txt").write_text("schnell|langsam\tHeute\n\n \t\n")
    _, plain, _ = nmt("translate", run_dir, tmp_path / "in.txt")
    _, held, _ = nmt("translate", run_dir, tmp_path / "in.txt", "--required", tmp_path / "held.txt")
    first = held.splitlines()[0]
    assert "Heute" in first and ("schnell" in first or "langsam" in first) and "|" not in first
    assert held.splitlines()[1:] == plain.splitlines()[1:]
    (tmp_path / "held.txt").write_text("Heute\n")
    status, _, err = nmt("translate", run_dir, tmp_path / "in.txt", "--required", tmp_path / "held.txt")
    assert status == 1
    assert "has 1 line and" in one_line(err)

    options = ["beam_groups=2", "bias={ Heute = 9.0 }", "require=['schnell']"]
    settings = [word for option in options for word in ("--set", option)]
    status, out, _ = nmt("translate", run_dir, tmp_path / "in.txt", "--beam-size", 4, *settings)
    assert status == 0
    for word in ("schnell", "Heute"):
        assert [word in line for line in out.splitlines()] == [True, False, True]
    status, _, err = nmt("translate", run_dir, tmp_path / "in.txt", "--beam-size", 3, *settings)
    assert status == 2
    assert "decode.beam_groups" in one_line(err)


@pytest.mark.slow
def test_samples_depend_on_the_seed(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("The man sleeps.\nA dog.\n")
    command = ("translate", run_dir, tmp_path / "in.txt", "--set", "sampling=true", "--n-best", 6, "--set", "top_p=0.9")
    status, first, _ = nmt(*command)
    assert status == 0
    assert len(first.splitlines()) == 12
    assert nmt(*command)[1] == first
    assert nmt(*command, "--set", "sampling_seed=2")[1] == nmt(*command, "--seed", 2)[1] != first
    _, chosen, _ = nmt(*command, "--set", "mbr_metric=chrf")
    samples = [line.split("\t")[2] for line in first.splitlines()]
    assert len(chosen.splitlines()) == 2
    assert chosen.splitlines()[0] in samples[:6] and chosen.splitlines()[1] in samples[6:]


@pytest.mark.slow
def test_an_ensemble_of_equal_checkpoints_translates_like_one(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("The man sleeps.\n\nA dog.\n")
    first, *_, last = list_checkpoints(run_dir)
    options = (tmp_path / "in.txt", "--engine", "torch", "--precision", "fp32")
    status, together, _ = nmt("translate", first, *options, "--ensemble", last, "--ensemble", first)
    assert status == 0
    _, twice, _ = nmt("translate", last, *options, "--ensemble", last)
    _, alone, _ = nmt("translate", last, *options, "-o", tmp_path / "out.txt.gz")
    assert alone == ""
    assert gzip.decompress((tmp_path / "out.txt.gz").read_bytes()).decode() == twice
    assert len(together.splitlines()) == 3


@pytest.mark.slow
def test_score_equals_the_scores_of_translate(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "src").write_text("The man sleeps.\nA dog sees the house.\n")
    # The tokenizer splits the translations of this search into the tokens that the model has generated.
    search = ("--set", "no_repeat_ngram=1", "--length-penalty", "none", "--engine", "torch", "--precision", "fp32")
    _, out, _ = nmt("translate", run_dir, tmp_path / "src", "--with-scores", *search)
    log_probs, texts = zip(*(line.split("\t") for line in out.splitlines()), strict=True)
    (tmp_path / "tgt").write_text("".join(f"{text}\n" for text in texts))
    _, scored, _ = nmt("score", run_dir, tmp_path / "src", tmp_path / "tgt")
    assert [float(value) for value in scored.split()] == pytest.approx([float(p) for p in log_probs], abs=2e-4)

    _, listed, err = nmt("score", run_dir, tmp_path / "src", tmp_path / "tgt", "--per-token")
    totals = []
    for line in listed.splitlines():
        total, columns = line.split("\t")
        parts = [float(column.rpartition(":")[2]) for column in columns.split(" ")]
        assert columns.split(" ")[-1].startswith("</s>:")
        assert sum(parts) == pytest.approx(float(total), abs=1e-4 * len(parts))
        totals.append((float(total), len(parts)))
    log_prob, tokens = map(sum, zip(*totals, strict=True))
    assert f"2 pairs, {tokens} tokens" in err
    (perplexity,) = re.findall(r"perplexity ([\d.]+), ", err)
    assert float(perplexity) == pytest.approx(math.exp(-log_prob / tokens), rel=1e-3)
    (bits_per_byte,) = re.findall(r"([\d.]+) bits per byte$", err.strip())
    num_bytes = sum(len(text.encode()) for text in texts)
    assert float(bits_per_byte) == pytest.approx(-log_prob / math.log(2) / num_bytes, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["prepare", "train", "run"])
def test_changed_recipe_does_not_modify_the_run(run_dir: Path, nmt: Nmt, command: str) -> None:
    before = (run_dir / "data" / "prepare.json").read_bytes(), (run_dir / "recipe.toml").read_bytes()
    status, _, err = nmt(command, run_dir.parent / "tiny.toml", f"run_dir={run_dir}", "tokenizer.vocab_size=650")
    assert status == 1
    assert "tokenizer.vocab_size is 650, was 700" in one_line(err)
    assert ((run_dir / "data" / "prepare.json").read_bytes(), (run_dir / "recipe.toml").read_bytes()) == before


@pytest.mark.slow
def test_average_says_whether_it_used_the_ema(run_dir: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.pipeline.average", lambda *_: [Path("step-1"), Path("step-2")])
    assert nmt("average", run_dir)[2] == "averaged step-1, step-2\n"
    assert nmt("average", run_dir, "--ema")[2] == "saved the EMA at step-1, step-2\n"


@pytest.mark.slow
def test_average_makes_a_model_directory(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    status, out, _ = nmt("average", run_dir, "--last", 3, "-o", tmp_path / "mean")
    assert (status, out.strip()) == (0, str(tmp_path / "mean"))
    assert Translator.load(tmp_path / "mean", device="cpu").translate([""]) == [""]
    status, _, err = nmt("average", run_dir, "--last", 30, "-o", tmp_path / "more")
    assert status == 1
    assert "cannot average 30" in one_line(err)
    status, _, err = nmt("average", tmp_path, "-o", tmp_path / "more")
    assert status == 1
    assert one_line(err).startswith(f"{tmp_path} is not a run; expected the directory of a run")
    status, _, err = nmt("average", tmp_path / "missing", "-o", tmp_path / "more")
    assert status == 1
    assert one_line(err).startswith(f"{tmp_path / 'missing'} does not exist; expected the directory of a run")


def test_config_prints_a_recipe_that_can_be_read_again(tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "r.toml").write_text(TINY_RECIPE)
    status, out, _ = nmt("config", tmp_path / "r.toml", "train.max_steps=77")
    assert status == 0
    assert parse_recipe(out) == parse_recipe(TINY_RECIPE, ["train.max_steps=77"])


# --- Wrong input: one line each, and nothing lost ---------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a text recipe and its four files."""
    for name, lines in {"train.en": 60, "train.de": 60, "valid.en": 5, "valid.de": 5}.items():
        (tmp_path / name).write_text("".join(f"line number {i} of {name}\n" for i in range(lines)))
    corpus = '{{ kind = "text", src = "{0}.en", tgt = "{0}.de" }}'
    recipe = TINY_RECIPE.replace('[data.test]\nheldout = { kind = "toy", split = "test", pairs = 20 }\n', "")
    recipe = recipe.replace('{ kind = "toy", pairs = 400 }', corpus.format("train"))
    recipe = recipe.replace('{ kind = "toy", split = "valid", pairs = 30 }', corpus.format("valid"))
    recipe = recipe.replace("[data]", f'[data]\nroot = "{tmp_path}"').replace("vocab_size = 700", "vocab_size = 300")
    (tmp_path / "recipe.toml").write_text(recipe.replace('name = "tiny"', f'name = "tiny"\nrun_dir = "{tmp_path}/run"'))
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "status", "expected"),
    [
        (["data.root=/nonexistent"], 1, "train.en"),
        (["train.max_stepz=3"], 2, "did you mean 'max_steps'"),
        (["nothing"], 2, "train.max_steps=1000"),
        (["tokenizer.vocab_size=20000"], 1, "tokenizer.vocab_size is 20000"),
        (["train.device=cuda:77"], 1, "cuda:77"),
        (["model.num_heads=3"], 2, "it must be a multiple of model.num_heads (3)"),
        (["data.max_tokens=64"], 2, "max_positions"),
        (["seed=3", "--seed", "4"], 2, "override 'seed=4': seed is given twice"),
        (["train.threads=1", "--threads", "1"], 2, "train.threads is given twice"),
        (["train.max_steps=5", "train.max_steps=6"], 2, "train.max_steps is given twice"),
    ],
)
def test_wrong_options_are_one_line(texts: Path, nmt: Nmt, overrides: list[str], status: int, expected: str) -> None:
    got, _, err = nmt("train", texts / "recipe.toml", *overrides)
    last = err.strip().splitlines()[-1]
    assert got == status
    assert expected in last
    assert last.startswith("nmt: ")
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_missing_recipe_model_or_file_is_one_line(tmp_path: Path, run_dir: Path, nmt: Nmt) -> None:
    for arguments, status in (
        (("run", tmp_path / "no.toml"), 2),
        (("translate", tmp_path / "no-model"), 1),
        (("translate", run_dir, tmp_path / "no-file"), 1),
        (("score", run_dir, tmp_path / "no", tmp_path / "no"), 1),
        (("evaluate", "--ref", tmp_path / "no", tmp_path / "no"), 1),
    ):
        found, out, err = nmt(*arguments)
        assert (found, out) == (status, "")
        assert str(tmp_path) in one_line(err)


@pytest.mark.slow
def test_a_corrupt_model_is_named_and_not_used(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    nmt("average", run_dir, "--last", 1, "-o", tmp_path / "m")
    content = bytearray((tmp_path / "m" / "model.safetensors").read_bytes())
    content[-5] ^= 4
    (tmp_path / "m" / "model.safetensors").write_bytes(content)
    (tmp_path / "in").write_text("hello\n")
    status, out, err = nmt("translate", tmp_path / "m", tmp_path / "in")
    assert (status, out) == (1, "")
    assert "model.safetensors is missing or corrupt" in one_line(err)


@pytest.mark.slow
def test_output_that_cannot_be_written_is_one_line(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in").write_text("hello\n")
    status, _, err = nmt("translate", run_dir, tmp_path / "in", "-o", tmp_path / "no" / "out", "--engine", "torch")
    assert status == 1
    assert "cannot write" in one_line(err)


@pytest.mark.slow
def test_files_of_unequal_length_are_not_scored(tmp_path: Path, run_dir: Path, nmt: Nmt) -> None:
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "none").write_text("")
    for hyp, expected in (("one", "has 1; they must match"), ("none", "is empty")):
        status, _, err = nmt("evaluate", "--ref", tmp_path / "two", tmp_path / hyp)
        assert status == 1
        assert expected in one_line(err)
    status, _, err = nmt("score", run_dir, tmp_path / "two", tmp_path / "one")
    assert status == 1
    assert "has 2 lines" in one_line(err)


@pytest.mark.slow
def test_sentences_that_are_too_long_are_not_scored(run_dir: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "src").write_text("short\n" + "long " * 200 + "\n")
    (tmp_path / "tgt").write_text("kurz\nlang\n")
    status, _, err = nmt("score", run_dir, tmp_path / "src", tmp_path / "tgt")
    assert status == 1
    assert "line 2 has" in one_line(err)
