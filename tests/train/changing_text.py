"""A run on text that tests change."""

from pathlib import Path

import pytest

from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
root = "FOLDER"
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
""",
    """
max_steps = 4
batch_tokens = 300
micro_batch_tokens = 300
schedule = "constant"
learning_rate = 0.01
warmup_steps = 2
validate_every = 4
save_every = 2
average_count = 1
""",
    vocab_size=300,
)


def write_text(folder: Path, split: str, first: int, count: int) -> None:
    numbers = range(first, first + count)
    (folder / f"{split}.en").write_text("".join(f"the cat sees {n} mice\n" for n in numbers))
    (folder / f"{split}.de").write_text("".join(f"die Katze sieht {n} Mäuse\n" for n in numbers))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_text(tmp_path, "train", 0, 200)
    write_text(tmp_path, "valid", 900, 20)
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    return path


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts
    }
