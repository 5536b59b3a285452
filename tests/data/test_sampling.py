"""Sampled segmentations: text, reproducibility and batches."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from nmt.data.loader import DataPosition, TrainingBatches, Update
from nmt.data.sampling import SampledEpochs, SamplingClosed
from nmt.data.store import PairStore, PairWriter
from nmt.errors import UserError
from nmt.recipe import TokenizerRecipe, TrainRecipe
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.data.sampled_corpus import (
    MAX_TOKENS,
    NUM_PAIRS,
    PAIRS_PER_SHARD,
    WORDS,
    Sample,
    changed,
    contents,
    epoch_names,
    first_epoch,
    to_lists,
)
from tests.processes.sessions import assert_session_ends
from tests.text.test_segmentation import SYMBOLS, surface

ROOT = Path(__file__).parents[2]


# --- Samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sampling_changes_segmentation_but_not_text(corpus: Path, sample: Sample) -> None:
    base, store = PairStore(corpus, "train"), sample(corpus).store(0)
    tokenizers = Tokenizers.load(corpus)
    assert len(store) == NUM_PAIRS
    for tokenizer, before, after in ((tokenizers.src, base.src, store.src), (tokenizers.tgt, base.tgt, store.tgt)):
        assert after.tokens.dtype == before.tokens.dtype
        for old, new in zip(to_lists(before), to_lists(after), strict=True):
            assert surface(tokenizer, new) == surface(tokenizer, old)
            assert tokenizer.decode(new) == tokenizer.decode(old)
        assert changed(before, after) > 0.5


def test_user_symbols_are_not_split(corpus: Path, sample: Sample) -> None:
    base, store = PairStore(corpus, "train"), sample(corpus, alpha=0.9 if corpus.name == "bpe" else 0.1).store(0)
    tokenizer = Tokenizers.load(corpus).src
    symbols = {tokenizer.encode(symbol)[-1] for symbol in SYMBOLS}
    assert {tokenizer.pieces([symbol])[0] for symbol in symbols} == set(SYMBOLS)
    for i, (old, new) in enumerate(zip(to_lists(base.src), to_lists(store.src), strict=True)):
        assert [token for token in new if token in symbols] == [token for token in old if token in symbols]
        assert (new[0] in symbols) == (i % 2 == 1)


@pytest.mark.slow
def test_more_sampling_changes_more_sentences(bpe_corpus: Path, sample: Sample) -> None:
    base = PairStore(bpe_corpus, "train")
    little, much = (first_epoch(sample(bpe_corpus, alpha)) for alpha in (0.02, 0.5))
    assert 0.02 < changed(base.src, little.src) < changed(base.src, much.src)
    assert base.src.lengths.sum() < little.src.lengths.sum() < much.src.lengths.sum()


def test_growth_estimates_sampled_length(bpe_corpus: Path, sample: Sample) -> None:
    base = PairStore(bpe_corpus, "train")
    epochs = sample(bpe_corpus, 0.3, sides="src")
    grown = epochs.growth()
    lengths = first_epoch(epochs).src.lengths.sum()
    assert grown[0] == pytest.approx(lengths / base.src.lengths.sum(), rel=0.03) and grown[0] > 1.1
    assert grown[1] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sides", ["src", "tgt"])
def test_other_side_is_unchanged(sides: str, bpe_corpus: Path, sample: Sample) -> None:
    base, both = PairStore(bpe_corpus, "train"), first_epoch(sample(bpe_corpus))
    expected = {"src": to_lists(both.src), "tgt": to_lists(both.tgt)}
    other = "tgt" if sides == "src" else "src"
    expected[other] = to_lists(getattr(base, other))
    one = first_epoch(sample(bpe_corpus, sides=sides))
    # The sampled side is the same as if both are sampled.
    assert {"src": to_lists(one.src), "tgt": to_lists(one.tgt)} == expected
    name = f"train.{other}.tokens.npy"
    assert (bpe_corpus / "epochs" / "epoch-0" / name).samefile(bpe_corpus / name)


@pytest.mark.slow
def test_runs_that_share_a_corpus_have_their_own_epochs(bpe_corpus: Path, tmp_path: Path, sample: Sample) -> None:
    links = [tmp_path / name / "data" for name in ("one", "other")]
    for link in links:
        link.parent.mkdir()
        link.symlink_to(bpe_corpus)
    stores = [sample(link, seed=seed).store(0) for seed, link in enumerate(links)]
    assert to_lists(stores[0].src) != to_lists(stores[1].src)
    assert not (bpe_corpus / "epochs").exists()
    for seed, link in enumerate(links):
        expected = sample(Path(shutil.copytree(bpe_corpus, tmp_path / f"alone{seed}")), seed=seed).store(0)
        assert to_lists(PairStore(link.parent / "epochs" / "epoch-0", "train").src) == to_lists(expected.src)


def test_a_corpus_that_is_replaced_between_two_epochs_is_an_error(
    bpe_corpus: Path, corpora: Path, tmp_path: Path, sample: Sample
) -> None:
    epochs = sample(bpe_corpus)
    bpe_corpus.rename(tmp_path / "replaced")
    shutil.copytree(corpora / "bpe", bpe_corpus)
    with pytest.raises(UserError, match=f"^{bpe_corpus} was replaced by another command; .*; rerun"):
        epochs.store(0)
    assert not list((bpe_corpus / "epochs").iterdir())


def test_files_are_copied_without_hard_links(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = sample(bpe_corpus, sides="src").store(0)
    assert to_lists(store.tgt) == to_lists(PairStore(bpe_corpus, "train").tgt)


@pytest.mark.slow
def test_overlong_samples_are_discarded(bpe_corpus: Path, sample: Sample) -> None:
    base, unlimited = PairStore(bpe_corpus, "train"), first_epoch(sample(bpe_corpus))
    sampled = to_lists(unlimited.src)
    limit = int(np.median(unlimited.src.lengths))
    limited = to_lists(first_epoch(sample(bpe_corpus, max_tokens=limit)).src)
    expected = [new if len(new) <= limit else old for new, old in zip(sampled, to_lists(base.src), strict=True)]
    assert limited == expected != sampled


@pytest.mark.slow
def test_the_other_side_may_have_any_tokenizer(corpora: Path, tmp_path: Path, sample: Sample) -> None:
    """For example, the tokenizer of trees has a token per bracket."""
    directory = Path(shutil.copytree(corpora / "unigram", tmp_path / "corpus"))
    expected = to_lists(first_epoch(sample(directory, sides="src")).src)
    recipe = TokenizerRecipe(algorithm="char", vocab_size=370)
    train_tokenizer(WORDS, recipe, directory / "tokenizer.tgt.model")
    assert to_lists(first_epoch(sample(directory, sides="src")).src) == expected
    both_sides = sample(directory)
    with pytest.raises(UserError, match="is neither a bpe nor a unigram model"):
        both_sides.store(0)


@pytest.mark.slow
def test_samples_of_truncated_sources_are_truncated(bpe_corpus: Path, sample: Sample) -> None:
    """Otherwise all sources that preparation has truncated would keep their segmentation."""
    base, unlimited = PairStore(bpe_corpus, "train"), first_epoch(sample(bpe_corpus))
    src, limit = to_lists(unlimited.src), int(np.median(base.src.lengths))
    kept = to_lists(first_epoch(sample(bpe_corpus, max_tokens=limit)).src)
    options = {"long_sources": "truncate"}
    (bpe_corpus / "prepare.json").write_text(json.dumps({"recipe": {"data": options}}))
    limited = first_epoch(sample(bpe_corpus, max_tokens=limit))
    assert to_lists(limited.src) == [new[:limit] for new in src] != kept
    tgt = zip(to_lists(unlimited.tgt), to_lists(base.tgt), strict=True)
    assert to_lists(limited.tgt) == [new if len(new) <= limit else old for new, old in tgt]
    (bpe_corpus / "prepare.json").write_text(json.dumps({"recipe": {"data": {**options, "context": 2}}}))
    assert to_lists(first_epoch(sample(bpe_corpus, max_tokens=limit)).src) == kept


# --- Reproducibility ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_samples_are_independent_of_workers(corpus: Path, sample: Sample) -> None:
    stores = []
    for workers in (1, 2, 3):
        epochs = sample(corpus, workers=workers)
        epochs.store(4)
        stores.append(contents(corpus, 4))
        epochs.close()
        shutil.rmtree(corpus / "epochs")
    assert stores[0] == stores[1] == stores[2]


@pytest.mark.slow
def test_epochs_and_seeds_differ(bpe_corpus: Path, sample: Sample) -> None:
    epochs = sample(bpe_corpus)
    samples = [to_lists(epochs.store(epoch).src) for epoch in (0, 1, 2)]
    epochs.close()
    samples.append(to_lists(sample(bpe_corpus, seed=8).store(0).src))
    assert all(one != other for one, other in combinations(samples, 2))


def test_shards_are_independent(bpe_corpus: Path, sample: Sample) -> None:
    line = Tokenizers.load(bpe_corpus).src.encode(" ".join(WORDS))
    with PairWriter(bpe_corpus, "train", dict.fromkeys(("src", "tgt"), np.dtype(np.uint16))) as writer:
        for side in ("src", "tgt"):
            writer.append(side, np.array(line * NUM_PAIRS), np.full(NUM_PAIRS, len(line)))
    store = sample(bpe_corpus).store(0)
    sampled = to_lists(store.src) + to_lists(store.tgt)
    assert len({tuple(ids) for ids in sampled}) > len(sampled) / 2  # equal shards or sides would repeat most


PROGRAM = """
import os, signal, sys
from pathlib import Path
from nmt.data import sampling
from nmt.data.store import PairWriter
from nmt.recipe import TrainRecipe

append = PairWriter.append
appended = []

def append_and_die(self, *arguments):
    append(self, *arguments)
    appended.append(arguments)
    if len(appended) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    directory, workers, ending = sys.argv[1:]
    sampling._PAIRS_PER_SHARD = {pairs_per_shard}
    if ending == "dies":
        PairWriter.append = append_and_die
    recipe = TrainRecipe(subword_sampling=0.2)
    epochs = sampling.SampledEpochs(Path(directory), recipe, seed=7, max_tokens={max_tokens}, workers=int(workers))
    epochs.store(5)
    epochs.close()
"""


def run_program(directory: Path, workers: int, ending: str) -> subprocess.Popen[bytes]:
    program = directory.parent / "program.py"
    program.write_text(
        PROGRAM.replace("{pairs_per_shard}", str(PAIRS_PER_SHARD)).replace("{max_tokens}", str(MAX_TOKENS))
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(program), str(directory), str(workers), ending]
    return subprocess.Popen(command, env=environment, start_new_session=True)


@pytest.mark.slow
def test_resume_after_a_kill(bpe_corpus: Path, sample: Sample) -> None:
    killed, elsewhere = bpe_corpus, Path(shutil.copytree(bpe_corpus, bpe_corpus.with_name("elsewhere")))
    process = run_program(killed, workers=2, ending="dies")
    assert process.wait() == -signal.SIGKILL
    assert [path.name for path in (killed / "epochs").iterdir()] == [f".epoch-5.part-{process.pid}"]
    assert_session_ends(process.pid)
    epochs = sample(killed)
    assert list((killed / "epochs").iterdir()) == []
    epochs.store(5)
    assert run_program(elsewhere, workers=1, ending="ends").wait() == 0
    assert contents(killed, 5) == contents(elsewhere, 5)
    assert not list((elsewhere / "epochs").glob(".*"))


# --- Batches ----------------------------------------------------------------------------------------------------------

BUDGET = MAX_TOKENS + 1
RECIPE = TrainRecipe(batch_tokens=400, micro_batch_tokens=BUDGET)


def batches_of(directory: Path, epochs: SampledEpochs, **options: Any) -> TrainingBatches:
    return TrainingBatches(PairStore(directory, "train"), RECIPE, seed=7, epochs=epochs, **options)


class UpdateValues(NamedTuple):
    """An update in values that can be compared; a micro-batch is its number, source and target sentences."""

    epoch: int
    position: int
    tgt_tokens: int
    sentence_ids: list[int]
    micro_batches: list[tuple[int, list[list[int]], list[list[int]]]]


def as_values(update: Update) -> UpdateValues:
    """Convert an update; leaves out empty micro-batches."""
    parts = [part for part in update.micro_batches if not part.is_empty]
    micro_batches = [(part.number, part.batch.src.to_lists(), part.batch.tgt.to_lists()) for part in parts]
    return UpdateValues(update.epoch, update.index, update.tgt_tokens, update.sentence_ids.tolist(), micro_batches)


@pytest.mark.slow
def test_every_epoch_has_every_pair_within_the_budget(bpe_corpus: Path, sample: Sample) -> None:
    ids: list[list[int]] = [[], []]
    texts: dict[int, tuple[list[list[int]], list[list[int]]]] = {}
    with batches_of(bpe_corpus, sample(bpe_corpus)) as batches:
        while (update := next(batches)).epoch < 2:
            if update.epoch not in texts:
                store = PairStore(bpe_corpus / "epochs" / f"epoch-{update.epoch}", "train")
                texts[update.epoch] = to_lists(store.src), to_lists(store.tgt)
            src, tgt = texts[update.epoch]
            expected = [([*src[i], EOS_ID], [BOS_ID, *tgt[i]]) for i in update.sentence_ids]
            parts = [part.batch for part in update.micro_batches]
            pairs = [pair for b in parts for pair in zip(b.src.to_lists(), b.tgt.to_lists(), strict=True)]
            assert sorted(pairs) == sorted(expected)
            assert max(max(len(b.src.tokens), b.tgt_tokens) for b in parts) <= BUDGET
            ids[update.epoch] += update.sentence_ids.tolist()
    assert [sorted(epoch_ids) for epoch_ids in ids] == [list(range(NUM_PAIRS))] * 2
    assert texts[0] != texts[1]


@pytest.mark.slow
def test_resume_from_any_position(bpe_corpus: Path, sample: Sample) -> None:
    with batches_of(bpe_corpus, sample(bpe_corpus)) as batches:
        updates = list(islice(batches, 70))
    whole, positions = [as_values(update) for update in updates], [DataPosition(), *(update.next for update in updates)]
    second_epoch = [update.epoch for update in updates].index(1)
    assert updates[-1].epoch >= 2
    for start in (0, 3, second_epoch - 1, second_epoch, 60):
        if start != second_epoch:  # with and without the files of the first run
            shutil.rmtree(bpe_corpus / "epochs")
        with batches_of(bpe_corpus, sample(bpe_corpus), start=positions[start]) as batches:
            assert [as_values(update) for update in islice(batches, 8)] == whole[start : start + 8]


@pytest.mark.slow
def test_ranks_share_sampled_epochs(bpe_corpus: Path, sample: Sample) -> None:
    with batches_of(bpe_corpus, sample(bpe_corpus), multiple=2) as batches:
        alone = [as_values(update) for update in islice(batches, 20)]
    shutil.rmtree(bpe_corpus / "epochs")
    with (
        batches_of(bpe_corpus, sample(bpe_corpus), rank=0, world_size=2) as first,
        batches_of(bpe_corpus, sample(bpe_corpus, is_builder=False), rank=1, world_size=2) as second,
    ):
        for whole in alone:
            shards = [as_values(next(batches)) for batches in (first, second)]
            together = sorted(shards[0].micro_batches + shards[1].micro_batches)
            for shard in shards:
                assert shard._replace(micro_batches=together) == whole


def test_past_epochs_are_removed_when_no_rank_needs_them(
    bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.data.loader._MAX_UPDATES_BEHIND", 4)
    with batches_of(bpe_corpus, sample(bpe_corpus), start=DataPosition(1)) as batches:
        while (update := next(batches)).epoch < 3:
            pass
        assert "epoch-2" in epoch_names(bpe_corpus)
        assert "epoch-1" not in epoch_names(bpe_corpus)
        updates = [update, *islice(batches, 3)]
        assert [u.epoch for u in updates] == [3] * 4
        assert "epoch-2" not in epoch_names(bpe_corpus)


def test_sampling_errors_reach_the_consumer(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    build = SampledEpochs._build

    def fail_later(self: SampledEpochs, epoch: int) -> None:
        if epoch == 1:
            raise UserError("epoch 1 cannot be made")
        build(self, epoch)

    monkeypatch.setattr(SampledEpochs, "_build", fail_later)
    epochs = sample(bpe_corpus)
    batches = batches_of(bpe_corpus, epochs)
    with pytest.raises(UserError, match="epoch 1 cannot be made"):
        list(batches)
    others = sample(bpe_corpus)
    with pytest.raises(UserError, match="epoch 1 cannot be made"):
        batches_of(bpe_corpus, others, start=DataPosition(1))
    for closed in (epochs, others):
        with pytest.raises(SamplingClosed):
            closed.store(0)
