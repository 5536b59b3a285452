"""A small corpus of pairs that are kept and pairs that are dropped, and a recipe for it."""

import random
from pathlib import Path

from nmt.recipe import Recipe, parse_recipe
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
""",
    vocab_size=340,
    max_tokens=40,
    max_positions=41,
)
DIRTY = [
    ("", "leer"),
    ("damaged \x00 text", "kaputter Text"),
    ("x" * 641, "zu lang"),
    (" ".join("abcdefghijkl"), "a"),
    ("this stayed as it was", "this stayed as it was"),
    ("хорошо", "gut"),
    ("twice", "doppelt"),
    ("twice\r", "doppelt\u200b"),
    ("twice", "zweimal"),
    ("\u2581", "nur ein Leerzeichen"),
    ("ab " * 60, "cd " * 60),
]
EXPECTED_DROPS = {
    "empty": 2,
    "control characters": 1,
    "too long": 1,
    "length ratio": 1,
    "identical sides": 1,
    "wrong script": 1,
    "duplicate": 1,
    "too many tokens": 1,
}
# 13 characters of 3 bytes and a space: 40 tokens, the limit without EOS. Then 41.
LONGEST, TOO_LONG = "漢" * 13, "漢" * 13 + "Q"
HOSTILE = [("a\u2028b", "c\u0085d"), ("\ufeffe\r", "f\x1cg"), ("", ""), (TOO_LONG, "x"), ("h\x00", ""), (LONGEST, "y")]


def sentence_pairs(count: int) -> list[tuple[str, str]]:
    numbers = random.Random(1).sample(range(10 * count), count)
    return [(f"the cat sees {n} mice", f"die Katze sieht {n} Mäuse") for n in numbers]


def write_corpus(folder: Path, train: list[tuple[str, str]], valid: list[tuple[str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    for split, pairs in (("train", train), ("valid", valid)):
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_bytes(text.encode())


def recipe_for(folder: Path, name: str = "run", *overrides: str) -> Recipe:
    paths = (f"run_dir='{folder / name}'", f"data.root='{folder / 'text'}'")
    by_option = {override.partition("=")[0]: override for override in (*paths, *overrides)}  # the last one counts
    return parse_recipe(RECIPE, list(by_option.values()))
