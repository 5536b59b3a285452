import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from nmt.data import sampling
from nmt.data.loader import DataPosition, TrainingBatches, Update
from nmt.data.sampling import SampledEpochs, SamplingClosed
from nmt.data.store import PairStore, PairWriter, Side, SideStore, token_dtype
from nmt.errors import UserError
from nmt.recipe import TokenizerRecipe, TrainRecipe
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.storage import checksums
from nmt.text.tokenizer import Tokenizers, train_tokenizer, train_tokenizers
from tests.processes.sessions import assert_session_ends
from tests.text.test_segmentation import SYMBOLS, TEXT, surface

ROOT = Path(__file__).parents[2]
WORDS = TEXT.split()
HOSTILE = [
    "größer 漢字 \U0001f600",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 and \U0001d518",
    "the <2de> a,b garden",
    "<2de>the river",
    "a,ba,b",
    "river<2de>",
    "\ufdfd \u0e01\u0e33 e\u0301",
    "x",
    "  the   river \u2581\u2581 follows ",
]
NUM_PAIRS = 330
PAIRS_PER_SHARD = 64
MAX_TOKENS = 200


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


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write_corpus(folder / "bpe", "bpe", joint=True)
    write_corpus(folder / "unigram", "unigram", joint=False)
    return folder


@pytest.fixture(params=["bpe", "unigram"])
def corpus(request: pytest.FixtureRequest, corpora: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpora / request.param, tmp_path / request.param))


@pytest.fixture
def bpe_corpus(corpora: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpora / "bpe", tmp_path / "bpe"))


Sample = Callable[..., SampledEpochs]


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample]:
    """Create sampled epochs with small shards; close them at the end."""
    monkeypatch.setattr(sampling, "_PAIRS_PER_SHARD", PAIRS_PER_SHARD)
    monkeypatch.setattr(sampling, "_POLL_SECONDS", 0.01)
    opened: list[SampledEpochs] = []

    def start(directory: Path, alpha: float = 0.2, sides: str = "both", **options: Any) -> SampledEpochs:
        recipe = TrainRecipe(subword_sampling=alpha, subword_sampling_sides=sides)
        settings = {"seed": 7, "max_tokens": MAX_TOKENS, "workers": 1, **options}
        opened.append(SampledEpochs(directory, recipe, **settings))
        return opened[-1]

    yield start
    for epochs in opened:
        epochs.close()


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


# --- Building and removing --------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def epoch_names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "epochs").iterdir())


@pytest.mark.slow
def test_next_epoch_is_built_and_past_epochs_are_removed(bpe_corpus: Path, sample: Sample) -> None:
    epochs = sample(bpe_corpus)
    store = epochs.store(2)
    wait_for(lambda: epoch_names(bpe_corpus) == ["epoch-2", "epoch-3"])
    epochs.store(3)
    epochs.remove_before(3)
    wait_for(lambda: epoch_names(bpe_corpus) == ["epoch-3", "epoch-4"])
    assert len(to_lists(store.src)) == NUM_PAIRS  # open stores stay readable


def test_complete_epochs_are_reused(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sample(bpe_corpus)
    expected = to_lists(first.store(0).src)
    wait_for(lambda: epoch_names(bpe_corpus) == ["epoch-0", "epoch-1"])
    first.close()
    (bpe_corpus / "epochs" / ".DS_Store").touch()  # by a file manager
    monkeypatch.setattr(SampledEpochs, "_write", None)
    again = sample(bpe_corpus, workers=2)
    assert to_lists(again.store(0).src) == expected


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "flipped bit", "other epoch", "no report", "report without fields"])
def test_incomplete_epochs_are_rebuilt(damage: str, bpe_corpus: Path, sample: Sample) -> None:
    first_epoch(sample(bpe_corpus))
    directory = bpe_corpus / "epochs" / "epoch-0"
    expected = contents(bpe_corpus, 0)
    match damage:
        case "truncated":
            with (directory / "train.src.tokens.npy").open("r+b") as file:
                file.truncate(200)
        case "flipped bit":
            content = bytearray(expected["train.src.tokens.npy"])
            content[-1] ^= 1
            (directory / "train.src.tokens.npy").write_bytes(content)
        case "other epoch":
            shutil.rmtree(bpe_corpus / "epochs" / "epoch-1", ignore_errors=True)
            directory.rename(bpe_corpus / "epochs" / "epoch-1")
        case "no report":
            (directory / "epoch.json").unlink()
        case "report without fields":
            (directory / "epoch.json").write_text("[]")
    epochs = sample(bpe_corpus)
    epochs.store(0)
    assert contents(bpe_corpus, 0) == expected
    if damage == "other epoch":
        assert to_lists(epochs.store(1).src) != to_lists(epochs.store(0).src)


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"seed": 8}, {"alpha": 0.3}, {"max_tokens": 6}, {"sides": "tgt"}])
def test_epochs_of_other_runs_are_rebuilt(other: dict[str, Any], bpe_corpus: Path, sample: Sample) -> None:
    before, after = first_epoch(sample(bpe_corpus)), first_epoch(sample(bpe_corpus, **other))
    assert to_lists(after.src) != to_lists(before.src)
    first_epoch(sample(bpe_corpus))
    assert to_lists(PairStore(bpe_corpus / "epochs" / "epoch-0", "train").src) == to_lists(before.src)


def test_epochs_of_another_text_of_equal_size_are_rebuilt(bpe_corpus: Path, tmp_path: Path, sample: Sample) -> None:
    link = tmp_path / "run" / "data"
    link.parent.mkdir()
    link.symlink_to(bpe_corpus)  # its epochs stay if the shared text is replaced
    for number in (1, 2):
        (bpe_corpus / "prepare.json").write_text(json.dumps({"sha256": {"train.tgt.tokens.npy": str(number)}}))
        store = first_epoch(sample(link, sides="src"))
        assert to_lists(store.tgt) == to_lists(PairStore(bpe_corpus, "train").tgt)
        tgt = to_lists(store.tgt)[::-1]
        for path in bpe_corpus.glob("train.tgt.*.npy"):
            path.unlink()
        with PairWriter(bpe_corpus, "train", {"tgt": store.tgt.tokens.dtype}) as writer:
            writer.append("tgt", np.array([token for line in tgt for token in line]), np.array(list(map(len, tgt))))


def test_report_has_no_paths(bpe_corpus: Path, sample: Sample) -> None:
    sample(bpe_corpus).store(0)
    report = contents(bpe_corpus, 0)["epoch.json"].decode()
    assert json.loads(report)["made_from"]["seed"] == 7
    assert str(bpe_corpus) not in report


def segmenting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "segmenting"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_close_stops_background_work(workers: int, bpe_corpus: Path, sample: Sample) -> None:
    epochs = sample(bpe_corpus, workers=workers)
    epochs.store(0)
    epochs.close()
    epochs.close()
    for thread in segmenting_threads():
        thread.join(timeout=5)
    assert segmenting_threads() == []
    assert multiprocessing.active_children() == []
    assert set(epoch_names(bpe_corpus)) <= {"epoch-0", "epoch-1"}
    with pytest.raises(SamplingClosed):
        epochs.store(1)


@pytest.mark.parametrize("builds", [True, False])
def test_close_releases_waiting_callers(
    builds: bool, bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, epochs = threading.Event(), sample(bpe_corpus, is_builder=builds)
    caught: list[BaseException] = []

    def slow(*arguments: object) -> None:
        entered.set()
        assert epochs._closed.wait(30)

    def wait_for_epoch() -> None:
        with pytest.raises(SamplingClosed) as error:
            epochs.store(0)
        caught.append(error.value)

    monkeypatch.setattr(PairWriter, "append", slow)
    thread = threading.Thread(target=wait_for_epoch)
    thread.start()
    assert entered.wait(30 if builds else 0.1) == builds
    epochs.close()
    thread.join(timeout=30)
    assert len(caught) == 1


# --- Several processes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_ranks_wait_for_the_builder(bpe_corpus: Path, sample: Sample) -> None:
    first_epoch(sample(bpe_corpus, seed=1))
    waiting, found = sample(bpe_corpus, is_builder=False), []
    thread = threading.Thread(target=lambda: found.append(waiting.store(0)))
    thread.start()
    thread.join(timeout=0.1)
    assert thread.is_alive()  # text of another run is ignored
    waiting.remove_before(1)
    assert "epoch-0" in epoch_names(bpe_corpus)
    store = sample(bpe_corpus).store(0)
    thread.join(timeout=30)
    assert to_lists(found[0].src) == to_lists(store.src)


def test_a_directory_that_the_builder_is_removing_is_incomplete(
    bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, measure, calls = sample(bpe_corpus).store(0), sampling._sizes, [0]

    def vanish_once(directory: Path) -> dict[str, int]:
        calls[0] += 1
        if calls[0] == 1:
            raise FileNotFoundError(directory / "train.src.tokens.npy")
        return measure(directory)

    epochs = sample(bpe_corpus, is_builder=False)
    monkeypatch.setattr(sampling, "_sizes", vanish_once)
    assert to_lists(epochs.store(0).src) == to_lists(store.src)
    assert calls[0] > 1


def test_an_epoch_that_does_not_appear_is_an_error(
    bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_TIMEOUT_SECONDS", 0.05)
    killed = bpe_corpus / "epochs" / ".epoch-3.part-1"
    killed.mkdir(parents=True)
    (killed / "train.src.tokens.npy").write_bytes(b"of a killed builder")
    with pytest.raises(UserError, match=r"epoch-3 did not appear .* all machines must share") as caught:
        sample(bpe_corpus, is_builder=False).store(3)
    assert "\n" not in str(caught.value)


def test_the_timeout_starts_when_the_builder_stops(
    bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_TIMEOUT_SECONDS", 0.0)
    incomplete = bpe_corpus / "epochs" / ".epoch-3.part-1"
    incomplete.mkdir(parents=True)
    polls: list[Path] = []

    def write_until_third_poll(directory: Path) -> bool:
        polls.append(directory)
        if len(polls) < 4:
            (incomplete / f"train.{len(polls)}.npy").write_bytes(b"tokens")
        return False

    epochs = sample(bpe_corpus, is_builder=False)
    monkeypatch.setattr(epochs, "_is_complete", write_until_third_poll)
    with pytest.raises(UserError, match="epoch-3 did not appear"):
        epochs.store(3)
    assert len(polls) >= 4


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(PairWriter, "append", fail)
        with pytest.raises(
            UserError, match=r"the disk is full while writing .*epoch-0; .*; free some space, or set"
        ) as caught:
            sample(bpe_corpus).store(0)
    assert "\n" not in str(caught.value)
    assert epoch_names(bpe_corpus) == []
    assert len(sample(bpe_corpus).store(0)) == NUM_PAIRS


def test_a_build_shows_no_progress_bar(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training shows one meanwhile, and a second bar on a terminal is an error in rich before 14.1."""
    monkeypatch.setattr(checksums, "progress", None)
    assert len(sample(bpe_corpus).store(0)) == NUM_PAIRS


def test_an_unwritable_directory_is_an_error(bpe_corpus: Path, sample: Sample) -> None:
    (bpe_corpus / "epochs").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*Not a directory"):
        sample(bpe_corpus).store(0)


def test_a_missing_corpus_is_an_error(tmp_path: Path, sample: Sample) -> None:
    with pytest.raises(UserError, match="prepare the data first"):
        sample(tmp_path)


@pytest.mark.slow
def test_killed_worker_raises_an_error(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = sample(bpe_corpus, workers=2)
    monkeypatch.setattr(epochs, "_make_sampler", ending_sampler)
    with pytest.raises(UserError, match="a worker process ended with exit status 9"):
        epochs.store(0)


def ending_sampler() -> Callable[[object], None]:
    return lambda shard: os._exit(9)


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
