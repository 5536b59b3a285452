"""Prepared text for sampled segmentations, and what its epochs contain."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore, PairWriter, Side, SideStore, token_dtype
from nmt.recipe import TokenizerRecipe
from nmt.text.tokenizer import train_tokenizers
from tests.text.test_segmentation import DIFFICULT, SYMBOLS, TEXT

WORDS = TEXT.split()
MAX_TOKENS = 200
HOSTILE = [text for text in DIFFICULT if len(text) < MAX_TOKENS]
NUM_PAIRS = 330
PAIRS_PER_SHARD = 64


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    words = [*WORDS, *("".join(rng.sample(WORDS, 2)) for _ in range(100))]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]


def write_corpus(directory: Path, algorithm: str, joint: bool) -> None:
    """Write the training split of a prepared corpus. Every other source sentence starts with a tag."""
    directory.mkdir()
    src, tgt = (HOSTILE + sentences(seed, NUM_PAIRS - len(HOSTILE)) for seed in (1, 2))
    recipe = TokenizerRecipe(algorithm=algorithm, joint=joint, vocab_size=370, user_symbols=SYMBOLS)
    tokenizers = train_tokenizers(lambda: zip(src, tgt, strict=True), recipe, directory)
    tag = tokenizers.src.encode("<web>")[-1:]
    src_ids = [tag * (i % 2) + tokenizers.src.encode(text) for i, text in enumerate(src)]
    sizes: dict[Side, int] = {"src": tokenizers.src.vocab_size, "tgt": tokenizers.tgt.vocab_size}
    sides: dict[Side, list[list[int]]] = {"src": src_ids, "tgt": list(map(tokenizers.tgt.encode, tgt))}
    with PairWriter(directory, "train", {side: token_dtype(size) for side, size in sizes.items()}) as writer:
        for side, ids in sides.items():
            writer.append(side, np.array([token for line in ids for token in line]), np.array(list(map(len, ids))))


Sample = Callable[..., SampledEpochs]


def first_epoch(epochs: SampledEpochs) -> PairStore:
    """Return the text of the first epoch and stop the build of the next one."""
    store = epochs.store(0)
    epochs.close()
    return store


def to_lists(side: SideStore) -> list[list[int]]:
    return [side.gather(np.array([i]))[0].tolist() for i in range(len(side))]


def contents(directory: Path, epoch: int) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "epochs" / f"epoch-{epoch}").iterdir())}


def changed(before: SideStore, after: SideStore) -> float:
    """Return the fraction of sentences with a different segmentation."""
    return float(np.mean([a != b for a, b in zip(to_lists(before), to_lists(after), strict=True)]))


def epoch_names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "epochs").iterdir())
