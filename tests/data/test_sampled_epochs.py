"""Directories of sampled epochs: building, removal, several processes and errors."""

import errno
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt import logs
from nmt.data import sampling
from nmt.data.sampling import SampledEpochs, SamplingClosed
from nmt.data.store import PairStore, PairWriter
from nmt.errors import UserError
from tests.data.sampled_corpus import NUM_PAIRS, Sample, contents, epoch_names, first_epoch, to_lists
from tests.waiting import wait_until

# --- Building and removing --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_next_epoch_is_built_and_past_epochs_are_removed(bpe_corpus: Path, sample: Sample) -> None:
    epochs = sample(bpe_corpus)
    store = epochs.store(2)
    wait_until(lambda: epoch_names(bpe_corpus) == ["epoch-2", "epoch-3"])
    epochs.store(3)
    epochs.remove_before(3)
    wait_until(lambda: epoch_names(bpe_corpus) == ["epoch-3", "epoch-4"])
    assert len(to_lists(store.src)) == NUM_PAIRS  # open stores stay readable


def test_complete_epochs_are_reused(bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sample(bpe_corpus)
    expected = to_lists(first.store(0).src)
    wait_until(lambda: epoch_names(bpe_corpus) == ["epoch-0", "epoch-1"])
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
        thread.join(timeout=60)
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
        assert epochs._closed.wait(60)

    def wait_for_epoch() -> None:
        with pytest.raises(SamplingClosed) as error:
            epochs.store(0)
        caught.append(error.value)

    monkeypatch.setattr(PairWriter, "append", slow)
    thread = threading.Thread(target=wait_for_epoch)
    thread.start()
    assert entered.wait(60 if builds else 0.1) == builds
    epochs.close()
    thread.join(timeout=60)
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
    thread.join(timeout=60)
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


def test_a_build_shows_no_progress_bar(
    bpe_corpus: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training shows one meanwhile, and a second bar on a terminal is an error in rich before 14.1."""
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_PLAIN_LINES", 0.0)
    assert len(sample(bpe_corpus).store(0)) == NUM_PAIRS
    assert "computing checksums" not in capsys.readouterr().err


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
