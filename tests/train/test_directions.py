"""Several target languages in one model, selected by tags."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt.data.test_sets import TestSet
from nmt.decode.translator import Translator
from nmt.recipe import ToyCorpus, load_recipe
from nmt.recipe.corpora import directions_by_tag
from nmt.storage.model_metadata import read_model_metadata
from nmt.validation_bleu import _choose_sentences
from tests.calling import Nmt
from tests.recipes import small_recipe

pytestmark = pytest.mark.usefixtures("no_curves")

RECIPE = (
    small_recipe(
        """
root = "FOLDER"
train = [
  { kind = "text", src = "train.en", tgt = "train.de", tag = "<2de>" },
  { kind = "text", src = "train.en", tgt = "train.zh", tag = "<2zh>", tgt_lang = "zh" },
]
valid = [
  { kind = "text", src = "news.en", tgt = "news.de", tag = "<2de>" },
  { kind = "text", src = "news.en", tgt = "news.zh", tag = "<2zh>", tgt_lang = "zh" },
]
""",
        """
max_steps = 60
batch_tokens = 300
micro_batch_tokens = 300
schedule = "constant"
learning_rate = 0.01
warmup_steps = 5
validate_every = 60
validate_bleu_every = 60
validate_bleu_sentences = 4
save_every = 60
average_count = 1
precision = "fp32"
""",
        vocab_size=300,
    )
    + """
[data.test]
news = { kind = "text", src = "news.en", tgt = "news.de", tag = "<2de>" }
chinese = { kind = "text", src = "news.en", tgt = "news.zh", tag = "<2zh>", tgt_lang = "zh" }
[decode]
beam_size = 1
max_length_ratio = 2.0
[evaluate]
metrics = ["bleu"]
resamples = 0
"""
)
SENTENCES = {"en": "the cat sees {} mice", "de": "die Katze sieht {} Mäuse", "zh": "猫看见{}只老鼠"}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for name, count in (("train", 60), ("news", 3)):
        for language, sentence in SENTENCES.items():
            (tmp_path / f"{name}.{language}").write_text("".join(f"{sentence.format(n)}\n" for n in range(count)))
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    return path


@pytest.mark.slow
def test_each_test_set_is_translated_and_scored_in_its_direction(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    status, out, err = nmt("run", recipe, f"run_dir={run}")
    assert status == 0 and "have no tag" not in err, err
    model, sources = Translator.load(run / "model", "cpu", "fp32"), (tmp_path / "news.en").read_text().splitlines()
    by_tag = {tag: model.with_constraints(tag).translate(sources) for tag in ("<2de>", "<2zh>")}
    assert by_tag["<2de>"] != by_tag["<2zh>"], "the next lines would not notice the other tag"
    for name, tag in (("news.de", "<2de>"), ("chinese.zh", "<2zh>")):
        assert (run / "translations" / name).read_text().splitlines() == by_tag[tag]
    german, chinese = json.loads((run / "report.json").read_text())["tests"]
    assert (german["tag"], german["languages"], chinese["tag"]) == ("<2de>", "", "<2zh>")
    assert "tok:13a" in german["scores"][0]["signature"] and "tok:zh" in chinese["scores"][0]["signature"]
    assert out.startswith("# small\n\nen to de, en to zh, Transformer")
    assert "## Test set chinese (en to zh): 3 sentences" in out and "Tag of the sources: `<2zh>`." in out
    assert read_model_metadata(run / "model").tags == {"<2de>": "en to de", "<2zh>": "en to zh"}
    assert f"{run / 'translations' / 'chinese.zh'} is up to date" in nmt("run", recipe, f"run_dir={run}")[2]
    status, _, err = nmt("run", recipe, f"run_dir={run}", "data.test.chinese.tag=<2de>")
    assert "chinese.zh is up to date" not in err and "news.de is up to date" in err

    warning = f"warning: {run} was trained with a tag before every source sentence, and none is set; set one with --tag"
    translate = ("translate", run, tmp_path / "news.en", "--engine", "torch")
    assert f"{warning} (nmt serve: --set tag=TAG): <2de> (en to de), <2zh> (en to zh)" in nmt(*translate)[2]
    assert warning not in nmt(*translate, "--tag", "<2de>")[2]
    assert "\nlanguages        en to de, en to zh\n" in nmt("info", run)[1]
    monkeypatch.setattr(import_module("nmt.cli.serve"), "run_server", lambda *_: None)
    serve = ("serve", run, "--port", 0, "--device", "cpu", "--engine", "torch")
    assert warning in nmt(*serve)[2] and warning not in nmt(*serve, "--set", "tag='<2de>'")[2]
    for command in ("score", "align"):
        given = (command, run, tmp_path / "news.en", tmp_path / "news.de")
        assert warning in nmt(*given)[2] and warning not in nmt(*given, "--tag", "<2de>")[2]
        assert "tag '<2fr>' is unknown" in nmt(*given, "--tag", "<2fr>")[2]
    (tmp_path / "nbest").write_text("".join(f"{number}\t0\t{line}\n" for number, line in enumerate(sources, start=1)))
    (tmp_path / "weights").write_text("[weights]\ngiven = 1\nlength = 0\nmodel = 0\n")
    heads = ("heads", run, tmp_path / "news.en", tmp_path / "news.de")
    rerank = ("rerank", run, tmp_path / "news.en", tmp_path / "nbest", "--weights", tmp_path / "weights")
    warning = warning.replace("set one with --tag", "set one in the model: rerun `nmt run` with decode.tag=TAG: <2de>")
    assert warning in nmt(*heads)[2] and warning in nmt(*rerank)[2]
    assert nmt("run", recipe, f"run_dir={run}", "decode.tag=<2de>")[0] == 0
    assert warning not in nmt(*heads)[2] and warning not in nmt(*rerank)[2]


def test_a_model_of_some_tagged_corpora_needs_no_tag(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    assert directions_by_tag(loaded.data.train, loaded) == {"<2de>": "en to de", "<2zh>": "en to zh"}
    assert directions_by_tag((*loaded.data.train, ToyCorpus()), loaded) == {}


def test_sentences_for_validation_bleu_are_spread_over_tagged_corpora() -> None:
    recipe: Any = SimpleNamespace(train=SimpleNamespace(validate_bleu_sentences=4))

    def chosen(number: int, tags: list[str] | None) -> list[str]:
        lines = list(map(str, range(number)))
        return _choose_sentences(recipe, TestSet("valid", lines, [lines], tags=tags)).src

    assert chosen(10, ["<2de>"] * 10) == ["0", "2", "5", "7"]
    assert chosen(10, None) == ["0", "1", "2", "3"]
    assert chosen(3, ["<2de>"] * 3) == ["0", "1", "2"]
