"""A run of two updates with a test set."""

from pathlib import Path

import pytest

from tests.recipes import SMALL_MODEL

RECIPE = """
name = "small"
src_lang = "en"
tgt_lang = "de"
[data]
root = "FOLDER"
workers = 1
max_tokens = 60
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "train.en", tgt = "train.de" }]
[data.test]
news = { kind = "text", src = "news.en", tgt = "news.de" }
[tokenizer]
vocab_size = 300
[evaluate]
resamples = 0
[train]
max_steps = 2
batch_tokens = 300
micro_batch_tokens = 300
learning_rate = 0.01
validate_every = 2
save_every = 2
average_count = 1
device = "cpu"
threads = 1
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for name, count in (("train", 200), ("news", 3)):
        (tmp_path / f"{name}.en").write_text("".join(f"the cat sees {n} mice\n" for n in range(count)))
        (tmp_path / f"{name}.de").write_text("".join(f"die Katze sieht {n} Mäuse\n" for n in range(count)))
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)) + SMALL_MODEL)
    return path


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
