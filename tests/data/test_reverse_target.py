"""Training text with reversed targets."""

import random
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from nmt.data.fingerprint import preparation_options
from nmt.data.prepare import prepare
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore, SideStore
from nmt.recipe import Recipe, parse_recipe
from nmt.text.segmentation import reverse_each
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
""",
    "subword_sampling = 0.5",
    vocab_size=330,
    max_tokens=40,
    max_positions=41,
)
WORDS = ["the", "small", "green", "garden", "mountain", "river", "follows", "discovers", "between"]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Recipe]:
    """The same recipe without and with `reverse_target`, prepared."""
    folder = tmp_path_factory.mktemp("backwards")
    rng = random.Random(1)
    for name, count in (("train", 60), ("valid", 6)):
        for side in ("en", "de"):
            lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) + f" {side}" for _ in range(count)]
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    forwards, backwards = (
        parse_recipe(RECIPE, [f"data.root={folder}", f"run_dir={folder / value}", f"data.reverse_target={value}"])
        for value in ("false", "true")
    )
    prepare(forwards)
    prepare(backwards)
    return forwards, backwards


def sentences(side: SideStore) -> list[list[int]]:
    tokens, lengths = side.gather(np.arange(len(side.lengths)))
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_only_the_target_is_reversed(recipes: tuple[Recipe, Recipe], split: str) -> None:
    forwards, backwards = (PairStore(recipe.data_directory, split) for recipe in recipes)  # type: ignore[arg-type]
    assert sentences(backwards.src) == sentences(forwards.src)
    assert sentences(backwards.tgt) == [sentence[::-1] for sentence in sentences(forwards.tgt)]
    assert max(map(len, sentences(forwards.tgt))) > 3
    texts = [(recipe.data_directory / "valid.tgt.txt").read_text() for recipe in recipes]
    assert texts[0] == texts[1]  # references are not reversed


def test_reverse_target_invalidates_the_prepared_text(recipes: tuple[Recipe, Recipe]) -> None:
    assert preparation_options(recipes[0]) != preparation_options(recipes[1])
    # Corpora prepared before the option existed are up to date.
    assert "reverse_target" not in preparation_options(recipes[0])["data"]


def test_sampled_targets_are_reversed(recipes: tuple[Recipe, Recipe]) -> None:
    stores = []
    for recipe in recipes:
        options: dict[str, Any] = {"seed": 3, "max_tokens": 40, "workers": 1}
        epochs = SampledEpochs(
            recipe.data_directory, recipe.train, reverse_target=recipe.data.reverse_target, **options
        )
        with closing(epochs):
            sampled = epochs.store(0)
        assert sentences(sampled.tgt) != sentences(PairStore(recipe.data_directory, "train").tgt)
        stores.append(sampled)
    forwards, backwards = stores
    assert sentences(backwards.src) == sentences(forwards.src)
    assert sentences(backwards.tgt) == [sentence[::-1] for sentence in sentences(forwards.tgt)]


def test_reverse_each_reverses_within_sentences() -> None:
    tokens = np.arange(10, 17, dtype=np.uint16)
    reversed_tokens = reverse_each(tokens, np.array([2, 0, 1, 4]))
    assert reversed_tokens.tolist() == [11, 10, 12, 16, 15, 14, 13]
    assert reversed_tokens.dtype == np.uint16
    assert len(reverse_each(tokens[:0], np.zeros(0, dtype=np.int64))) == 0
