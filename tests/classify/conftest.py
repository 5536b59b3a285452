"""Reviews with labels, and a recipe for them that trains in about a second."""

import json
import random
from pathlib import Path

import pytest

from nmt.classify.run import train_classifier
from nmt.recipe import load_classification_recipe

GOOD, BAD = ("good", "great", "lovely", "fine"), ("bad", "dull", "poor", "awful")
FILLERS = ("the", "film", "was", "a", "story", "with", "actors", "and", "music")

RECIPE = """\
name = "reviews"

[data]
labels = ["negative", "positive"]

[[data.train]]
kind = "jsonl"
path = "train.jsonl"
src_field = "text"
tgt_field = "label"

[data.test.reviews]
kind = "jsonl"
path = "test.jsonl"
src_field = "text"
tgt_field = "label"

[tokenizer]
vocab_size = 300

[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
dropout = 0.1
norm_order = "pre"

[train]
max_steps = 60
batch_tokens = 512
micro_batch_tokens = 257
schedule = "constant"
learning_rate = 0.01
warmup_steps = 5
validate_every = 20
save_every = 10
log_every = 20
threads = 1
device = "cpu"
precision = "fp32"
"""


def train(*overrides: str) -> str:
    return train_classifier(load_classification_recipe(Path("reviews.toml"), overrides))


def review(chooser: random.Random, label: int) -> str:
    words = [*chooser.choices(FILLERS, k=7), *chooser.choices((BAD, GOOD)[label], k=2)]
    chooser.shuffle(words)
    return "\n".join([" ".join(words[:4]), " ".join(words[4:])])  # reviews have several lines


def write_reviews(folder: Path) -> None:
    """Write the recipe and its corpora."""
    chooser = random.Random(1)
    for name, count in (("train", 400), ("test", 60)):
        records = [{"text": review(chooser, n % 2), "label": n % 2} for n in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "reviews.toml").write_text(RECIPE)


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the recipe and its corpora."""
    write_reviews(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
