"""Summarization: long sources are truncated, and reports have ROUGE and a lead baseline."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from nmt import pipeline
from nmt.alignment.attention import WordAligner
from nmt.checkpoint import load_model
from nmt.data.fingerprint import preparation_options
from nmt.data.prepare import prepare
from nmt.data.store import PairStore
from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.errors import RecipeError
from nmt.heads.pairs import Pairs
from nmt.recipe import Recipe, load_recipe
from nmt.storage.run_folder import find_model
from tests.extras import needs_rouge

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
WORDS = ["the", "small", "green", "garden", "mountain", "river", "follows", "discovers", "between", "old", "house"]
SMALL = (
    *("data.max_tokens=16", "data.workers=1", "tokenizer.vocab_size=360", "model.d_model=16", "model.d_ff=16"),
    *("model.num_heads=2", "model.num_encoder_layers=1", "model.num_decoder_layers=1", "train.threads=1"),
    *("train.batch_tokens=200", "train.micro_batch_tokens=200", "train.max_steps=2", "train.average_count=1"),
    *("train.device=cpu", "decode.max_tokens=8", "decode.min_tokens=1", "decode.beam_size=1"),
    "evaluate.resamples=10",
)


def article(random_words: random.Random) -> list[str]:
    """Return six sentences of four words, more than 16 tokens in total."""
    return [" ".join(random_words.choices(WORDS, k=4)).capitalize() + "." for _ in range(6)]


@pytest.fixture
def cnn(tmp_path: Path) -> Recipe:
    """The packaged recipe, with local files in the format of abisee/cnn_dailymail."""
    random_words = random.Random(1)
    folder = tmp_path / "abisee" / "cnn_dailymail"
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("validation", 4), ("test", 5)):
        articles = [article(random_words) for _ in range(count)]
        records = [{"article": " ".join(one), "highlights": "\n".join(one[:2]), "id": str(one)} for one in articles]
        Dataset.from_list(records).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    recipe = load_recipe(
        RECIPES / "cnn-dailymail.toml", [*SMALL, f"data.root={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    )
    # A local folder has one configuration, which has no name.
    data = recipe.data.model_dump()
    for corpus in (*data["train"], *data["valid"], *data["test"].values()):
        corpus["config"] = None
    return Recipe.model_validate({**recipe.model_dump(), "data": data})


@pytest.mark.slow
def test_long_sources_are_truncated_and_not_dropped(cnn: Recipe) -> None:
    prepared = prepare(cnn)
    for split, count in (("train", 40), ("valid", 4)):
        store = PairStore(cnn.data_directory, split)  # type: ignore[arg-type]
        assert store.src.lengths.tolist() == [16] * count
        assert store.tgt.lengths.max() <= 16
    tokens, _ = PairStore(cnn.data_directory, "valid").src.gather(np.arange(1))
    first = (cnn.data_directory / "valid.src.txt").read_text().splitlines()[0]
    assert tokens.tolist() == prepared.tokenizers.src.encode(first)[:16]
    drop = cnn.model_copy(update={"data": cnn.data.model_copy(update={"long_sources": "drop"})})
    assert preparation_options(drop) != preparation_options(cnn)
    assert (
        "long_sources" not in preparation_options(drop)["data"]
    )  # the default must not change the fingerprint of earlier versions


@pytest.mark.slow
@needs_rouge
@pytest.mark.usefixtures("no_curves")
def test_a_run_reports_rouge_and_the_lead_baseline(cnn: Recipe) -> None:
    pipeline.run(cnn)
    report = json.loads((cnn.directory / "report.json").read_text())["tests"][0]
    scores, lead = ({score["name"]: score["value"] for score in report[key]} for key in ("scores", "baseline_scores"))
    assert scores.keys() == lead.keys() == {"rouge-1", "rouge-2", "rouge-l", "rouge-lsum"}
    # The reference is two of the three sentences: recall 1 and precision 2/3.
    assert lead["rouge-1"] == pytest.approx(80)
    assert scores["rouge-1"] < 60
    text = (cnn.directory / "report.md").read_text()
    assert "| metric | score | lead-3 | signature |" in text
    assert "lead-3: the first 3 sentences of each source as its summary." in text


@pytest.mark.slow
def test_a_long_line_is_truncated_in_translation(cnn: Recipe) -> None:
    pipeline.train(cnn)
    translator = Translator.load(cnn.directory, "cpu")
    line = " ".join(article(random.Random(2)))
    (part,) = translator._split(line)
    assert part.tokens == translator._tokenizers.src.encode(line)[:16]
    assert translator.lines_split == 1
    splitting = translator.with_decode(cnn.decode.model_copy(update={"long_lines": "split"}))
    assert len(splitting._split(line)) > 1
    start = translator._tokenizers.src.decode(part.tokens)
    assert translator.translate([line]) == translator.translate([start])


@pytest.mark.slow
def test_scores_alignments_and_heads_are_those_of_truncated_sources(cnn: Recipe) -> None:
    pipeline.train(cnn)
    line, summary = " ".join(article(random.Random(2))), "The old house."
    scorer, aligner = TextScorer.load(cnn.directory, "cpu"), WordAligner.load(cnn.directory, "cpu")
    start = aligner.encoder.tokenizers.src.decode(aligner.encoder.tokenizers.src.encode(line)[:16])
    assert scorer.score([line], [summary]) == scorer.score([start], [summary])
    too_long = " ".join([line] * 20)  # exceeds the positions of the model
    assert scorer.fits(too_long, summary)
    assert aligner.align([too_long], [summary]) == aligner.align([start], [summary])
    loaded = load_model(find_model(cnn.directory), torch.device("cpu"))
    assert Pairs.encode(loaded, aligner.encoder.tokenizers, [too_long], [summary]).sources == [
        aligner.encoder.tokenizers.src.encode(start)
    ]


def test_only_both_or_neither_of_training_and_translation_truncate() -> None:
    with pytest.raises(RecipeError, match=r"long_sources is 'truncate' and decode.long_lines is 'split'; .* set both"):
        load_recipe(RECIPES / "xsum.toml", ["decode.long_lines=split"])
    with pytest.raises(RecipeError, match=r"set both to 'truncate', or neither"):
        load_recipe(RECIPES / "quickstart.toml", ["decode.long_lines=truncate"])
