"""Side by side: the protocol of turns, the ledger, and what it calls a win. Other systems themselves are not needed."""

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench import contest as turns
from bench import environments, ledger, trainers, worker
from bench.__main__ import main
from bench.contest import Contest, Side, hold_contest
from bench.environments import Peer
from bench.goals import GOALS
from bench.peers import nmt_itself
from bench.text import prepare_text, text_recipe
from bench.work import Shape, Work, parse_contestant

from nmt.bench.statistics import Ratio
from nmt.recipe import UserError
from nmt.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
WORK = Work("train", "folder", 300)
TINY = Shape(num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2)


# --- The work ---------------------------------------------------------------------------------------------------------


def test_work_travels_as_text_and_takes_settings() -> None:
    name, settings = parse_contestant("eole:precision=bf16,batch_tokens=99,num_workers=2")
    assert name == "eole"
    work = WORK.with_settings(settings)
    assert (work.precision, work.batch_tokens, work.options) == ("bf16", 99, {"num_workers": "2"})
    assert Work.from_json(work.to_json()) == work
    assert work.option("num_workers", "1") == "2"
    assert work.option("bucket_size", "7") == "7"
    assert parse_contestant("nmt") == ("nmt", {})
    with pytest.raises(ValueError, match="'fast' must look like setting=value"):
        parse_contestant("nmt:fast")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that all systems could work on."""
    data, made = tmp_path_factory.mktemp("parallel"), tmp_path_factory.mktemp("bench") / "text"
    for split, num_lines in {"train": 80, "val": 6, "test": 9}.items():
        for side in ("en", "de"):
            lines = [f"{side} word{i} of {split}, number {i * 7 % 13}." for i in range(num_lines)]
            (data / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    prepare_text(text_recipe(data, made, src_lang="en", tgt_lang="de", vocab_size=320))
    return made


def test_all_systems_get_the_same_text(folder: Path) -> None:
    work = Work("train", str(folder), 320)
    vocabulary = (folder / "vocab.txt").read_text().removesuffix("\n").split("\n")
    assert len(vocabulary) == 320
    assert {split: len(work.ids(split, "src")) for split in ("train", "valid", "test")} == {
        "train": 80,
        "valid": 6,
        "test": 9,
    }
    for split in ("train", "test"):
        for side in ("src", "tgt"):
            ids, pieces = work.ids(split, side), work.pieces(split, side)
            assert [[vocabulary[token] for token in sentence] for sentence in ids] == pieces
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    assert [tokenizer.decode(sentence) for sentence in work.ids("test", "src")] == work.text("test", "src")


def test_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no text for train; it must hold one of train\.en"):
        text_recipe(tmp_path, tmp_path, src_lang="en", tgt_lang="de", vocab_size=320)


# --- nmt's own side ---------------------------------------------------------------------------------------------------


class Enough(Exception):  # noqa: N818
    """The laps that a test wants are done."""


class CountingClock(worker.Clock):
    """The worker's clock, which only notes laps and ends after three."""

    def __init__(self) -> None:
        self.laps: list[int] = []

    def lap(self, tokens: int) -> None:
        self.laps.append(tokens)
        if len(self.laps) == 3:
            raise Enough


def laps(task: str, work: Work) -> Sequence[int]:
    clock = CountingClock()
    with pytest.raises(Enough):
        getattr(nmt_itself, task)(work, clock)
    return clock.laps


def test_nmt_trains_translates_and_prepares(folder: Path) -> None:
    work = Work("train", str(folder), 320, TINY, threads=1, batch_tokens=300, updates=2)
    assert all(300 < tokens <= 600 for tokens in laps("train", work.with_settings({"train.micro_batch_tokens": "257"})))
    decode = Work("decode", str(folder), 320, TINY, threads=1, output_tokens=5, num_sentences=7, batch_sentences=2)
    assert laps("decode", decode.with_settings({"decode.length_penalty": "none"})) == [35, 35, 35]
    tokens = sum(map(len, work.ids("train", "src") + work.ids("train", "tgt")))
    assert laps("prepare", work) == [tokens] * 3


# --- What trainers of other systems have alike ------------------------------------------------------------------------


def test_padded_batches_have_about_as_many_target_tokens() -> None:
    counted = [3 + i * 7 % 30 for i in range(20_000)]
    for rows in (counted, sorted(counted), [length + 5 for length in counted]):
        size = trainers.padded_size(rows, [length - 1 for length in rows], 2_000)
        batches, batch = [], list[int]()
        for row in rows:
            if batch and max(*batch, row) * (len(batch) + 1) > size:
                batches.append(batch)
                batch = []
            batch.append(row)
        mean = sum(row - 1 for batch in batches for row in batch) / len(batches)
        assert mean == pytest.approx(2_000, rel=0.02)  # a sentence is 1 %


def test_a_lap_ends_when_the_step_after_it_begins() -> None:
    clock, steps = CountingClock(), list[int]()

    def train(trainer: None, batch: int) -> int:
        steps.append(batch)
        return batch

    step = trainers.counted_steps(train, lambda batch: batch, 2, clock)
    assert [step(None, batch) for batch in (1, 2)] == [1, 2]
    assert clock.laps == []
    step(None, 4)
    assert (clock.laps, steps) == ([3], [1, 2, 4])
    step(None, 8)
    step(None, 16)
    assert clock.laps == [3, 12]


def test_a_precision_that_a_system_lacks_is_named() -> None:
    trainers.refuse_other_precisions(WORK, ("fp32",), "JoeyNMT")
    with pytest.raises(SystemExit, match="JoeyNMT cannot train in bf16 on cpu; it must be one of fp32"):
        trainers.refuse_other_precisions(WORK.with_settings({"precision": "bf16"}), ("fp32",), "JoeyNMT")


# --- Turns ------------------------------------------------------------------------------------------------------------

FAKE = """
import os, time
from pathlib import Path

def train(work, clock):
    mine, other = Path(work.folder) / work.options["me"], Path(work.folder) / work.options["other"]
    mine.write_text(str(os.getpid()))
    if "fails" in work.options:
        raise RuntimeError("no such luck")
    print("chatter on stdout")
    while True:
        time.sleep(0.02)
        stopped = other.exists() and f") T " in Path(f"/proc/{other.read_text()}/stat").read_text()
        clock.lap(1000 if stopped else 1)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A system `fake`, whose laps of 20 ms have 1,000 tokens if its opponent is stopped, and 1 otherwise."""
    (tmp_path / "fake_peer.py").write_text(FAKE)
    for module in (environments, turns):
        monkeypatch.setitem(module.PEERS, "fake", Peer("fake_peer", ("train",)))
    monkeypatch.setattr(turns, "find_python", lambda name: sys.executable)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "tools")])}


def test_one_is_stopped_while_the_other_has_its_turn(fake: dict[str, str], tmp_path: Path) -> None:
    work = Work("train", str(tmp_path), 300, warm_up=2)
    one, other = {**fake, "me": "a", "other": "b"}, {**fake, "me": "b", "other": "a"}
    contest = hold_contest(work, ("fake", one), ("fake", other), rounds=3)
    for side in (contest.ours, contest.theirs):
        assert len(side.rates) == 3
        assert min(side.rates) > 1_000  # each of its laps found the other stopped
        assert side.versions["python"] == sys.version.split()[0]
    assert contest.ratio.low < 1 < contest.ratio.high or 0.5 < contest.ratio.ratio < 2
    for name in "ab":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


def test_a_system_that_fails_ends_the_contest(
    fake: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    work = Work("train", str(tmp_path), 300)
    one, other = {**fake, "me": "a", "other": "b"}, {**fake, "me": "b", "other": "a", "fails": "yes"}
    with pytest.raises(UserError, match="fake has ended before its time"):
        hold_contest(work, ("fake", one), ("fake", other), rounds=3)
    assert "RuntimeError: no such luck" in capfd.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "a").read_text()), 0)


def test_the_clock_counts_from_the_word_to_the_end_of_the_lap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 6.0, 10.0, 12.5, 20.0, 23.0])
    monkeypatch.setattr(worker, "perf_counter", lambda: next(now))
    monkeypatch.setattr(os, "_exit", lambda status: (_ for _ in ()).throw(Enough))
    answers = io.StringIO()
    clock = worker.Clock(1, answers, io.StringIO("go\n"))
    clock.lap(1)  # from 0 to 5: warm-up; ready at 6, told to go on at 10
    with pytest.raises(Enough):
        clock.lap(250)
    ready, lap = map(json.loads, answers.getvalue().splitlines())
    assert ready["ready"]["seconds"] == 6.0
    assert lap == {"seconds": 2.5, "tokens": 250}


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_BENCH_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="install it first: tools/bench/run install transformers"):
        environments.find_python("transformers")
    assert environments.find_python("nmt") == sys.executable


def test_all_systems_can_share_one_python_and_a_folder_of_packages(
    fake: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("NMT_BENCH_SHARED", str(tmp_path))  # where the fake system lies
    assert environments.find_python("transformers") == sys.executable
    work = Work("train", str(tmp_path), 300)
    for name, has_nmt in (("nmt", True), ("fake", False)):
        path = turns._environment(name, work, {}, tmp_path)["PYTHONPATH"].split(os.pathsep)
        assert path[0] == str(tmp_path) and (str(ROOT) in path) is has_nmt
    one, other = {"me": "a", "other": "b"}, {"me": "b", "other": "a"}
    assert len(hold_contest(work, ("fake", one), ("fake", other), rounds=2).ours.rates) == 2


def test_torch_is_installed_first_and_never_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setenv("NMT_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "_run", lambda command, name: commands.append(command))
    for name, peer in environments.PEERS.items():
        commands.clear()
        (tmp_path / name).mkdir()
        environments.install(name)
        if not peer.package:
            assert commands == []
            continue
        installs = [command for command in commands if "install" in command]
        assert "--no-deps" in installs[-1]
        assert installs[-1][-1] == peer.package
        assert "==" in peer.package
        if peer.needs_torch:
            assert installs[0][-1] == environments.TORCH
            assert environments.TORCH in installs[1]  # so that nothing else brings another
        commands.clear()
        environments.install(name)
        assert commands == []


@pytest.mark.parametrize(("name", "peer"), environments.PEERS.items())
def test_a_system_has_a_file_and_pinned_packages(name: str, peer: Peer) -> None:
    source = (ROOT / "tools" / f"{peer.module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert all(f"\ndef {task}(work: Work, clock: Clock)" in source for task in peer.tasks)
    pinned = {_canonical(line.split("==")[0]) for line in environments.CONSTRAINTS.read_text().splitlines()}
    assert [package for package in peer.needed if "==" not in package and _canonical(package) not in pinned] == []


def _canonical(package: str) -> str:
    return package.lower().replace("_", "-")


# --- The ledger -------------------------------------------------------------------------------------------------------


def contest(ratio: Ratio) -> Contest:
    nmt, eole = (
        Side(name, {"precision": "bf16"}, {"torch": "2.13.0"}, 3.0, [1000.0, 1200.0]) for name in ("nmt", "eole")
    )
    return Contest(nmt, eole, ratio)


def noted(goal: str | None, ratio: Ratio) -> dict[str, Any]:
    return ledger.contest_entry(goal, WORK, contest(ratio), "tools/bench/run train nmt eole")


def on(cpu: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "machine": {"cpu": cpu, "cores": 2, "gpus": []}}


def test_an_empty_ledger_names_every_goal() -> None:
    text = "\n".join(ledger.format_ledger([]))
    assert text.count("| | not measured | |") == len(GOALS) >= 15
    assert all(goal.name in text for goal in GOALS)


@pytest.mark.parametrize(
    ("goal", "ratio", "is_reached"),
    [
        ("train-cpu-eole-bf16", Ratio(2.1, 1.9, 2.3), True),
        ("train-cpu-eole-bf16", Ratio(1.9, 1.8, 2.0), False),
        ("train-cpu-eole-bf16", Ratio(2.5, 0.9, 6.0), False),  # a win needs an interval without 1
        ("file-int8", Ratio(1.01, 0.98, 1.04), True),  # level is what is wanted
        ("file-int8", Ratio(0.97, 0.96, 0.98), False),
    ],
)
def test_a_goal_is_reached_beyond_doubt_or_not_at_all(goal: str, ratio: Ratio, is_reached: bool) -> None:
    assert ledger.is_reached(noted(goal, ratio)) is is_reached


@pytest.mark.parametrize(
    ("goal", "value", "is_reached"),
    [
        ("train-cpu-linear", 0.61, True),
        ("train-cpu-linear", 0.59, False),
        ("quickstart", 2.9, True),
        ("quickstart", 4.7, False),
        ("multi30k-41", 41.0, True),
        ("multi30k-41", 40.9, False),
    ],
)
def test_a_figure_reaches_its_goal(goal: str, value: float, is_reached: bool) -> None:
    assert ledger.is_reached(ledger.figure_entry(goal, value, "x", "")) is is_reached


@pytest.mark.parametrize(
    ("goal", "value", "shown"),
    [
        ("train-cpu-linear", 0.613, "at least 60% | Zen 5, 2 cores | 61.3% | reached"),
        ("quickstart", 4.66, "at most 3 min | Zen 5, 2 cores | 4.7 min | not reached"),
        ("multi30k-41", 40.52, "at least 41 BLEU | Zen 5, 2 cores | 40.5 BLEU | not reached"),
    ],
)
def test_a_figure_is_shown_in_its_unit(goal: str, value: float, shown: str) -> None:
    lines = ledger.format_ledger([on("Zen 5", ledger.figure_entry(goal, value, "x", ""))])
    assert next(line for line in lines if line.startswith(f"| {goal}:")).endswith(f"| {shown} |")


def test_the_ledger_grows_and_is_shown(tmp_path: Path) -> None:
    ledger.add_entry(noted("train-cpu-eole-bf16", Ratio(1.5, 1.4, 1.6)), tmp_path)
    ledger.add_entry(noted(None, Ratio(1.0, 0.9, 1.1)), tmp_path)
    ledger.add_entry(noted("train-cpu-eole-bf16", Ratio(2.2, 2.0, 2.4)), tmp_path)
    entries = json.loads((tmp_path / "results.json").read_text())
    assert sorted(entry["ratio"]["ratio"] for entry in entries) == [1.0, 2.2]  # the newest of each goal and machine
    assert entries[0]["ours"]["rates"] == [1000.0, 1200.0]
    assert entries[0]["versions"]["torch"]
    text = (tmp_path / "RESULTS.md").read_text()
    assert re.search(r"CPU: eole in bf16 \| at least 2x \| [^|]+ \| 2\.20x \(2\.00 to 2\.40\) \| reached \|", text)
    assert "| nmt (torch 2.13.0) | precision bf16 | 1,100.0 (1,000.0 to 1,200.0) | 2 |" in text
    assert "Ratio 1.00x (0.90 to 1.10): no difference shown." in text
    assert "Ratio 2.20x (2.00 to 2.40): faster." in text
    assert text.count("###") == 2


def test_a_note_is_kept_and_shown(tmp_path: Path) -> None:
    ratio = Ratio(1.5, 1.4, 1.6)
    entry = ledger.contest_entry("train-cpu-fp32", WORK, contest(ratio), "x", "Text: made up.")
    assert entry["note"] == "Text: made up." and "note" not in noted(None, ratio)
    assert "Ratio 1.50x (1.40 to 1.60): faster. Text: made up." in list(ledger.format_ledger([entry]))


def test_a_ledger_is_filled_from_another_one(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shared = ledger.figure_entry("quickstart", 2.0, "x", "")
    ledger.add_entry(shared, here)
    for entry in (shared, ledger.figure_entry("quickstart", 2.5, "y", "")):
        ledger.add_entry(entry, there)
    for _ in range(2):  # the second time there is nothing to add
        assert main(["ledger", "--add", str(there), "--ledger", str(here)]) == 0
        assert [entry["value"] for entry in ledger.read_ledger(here)] == [2.5]
    assert "2.5 min" in (here / "RESULTS.md").read_text()


def test_each_machine_has_its_row_and_its_newest_figure() -> None:
    goal = "train-cpu-linear"
    entries = [
        on(cpu, ledger.figure_entry(goal, value, "x", ""))
        for cpu, value in (("Intel(R) Xeon(R) Processor", 0.2), ("Zen 5", 0.65), ("Intel(R) Xeon(R) Processor", 0.3))
    ]
    lines = list(ledger.format_ledger(entries))
    first = next(index for index, line in enumerate(lines) if line.startswith(f"| {goal}:"))
    assert lines[first].endswith("| at least 60% | Intel Xeon, 2 cores | 30.0% | not reached |")
    assert lines[first + 1] == "| | | Zen 5, 2 cores | 65.0% | reached |"
    remains = next(line for line in lines if line.startswith(f"- {goal}:"))
    assert len(remains) > 200  # one machine is still behind
    remains = next(line for line in ledger.format_ledger(entries[1:2]) if line.startswith(f"- {goal}:"))
    assert len(remains) < 200


def test_the_ledger_in_the_tree_is_that_of_its_measurements(tmp_path: Path) -> None:
    made = "\n".join(ledger.format_ledger(ledger.read_ledger())) + "\n"
    assert made == (ledger.HOME / "RESULTS.md").read_text(encoding="utf-8")


# --- The command line -------------------------------------------------------------------------------------------------


def test_a_figure_is_noted_from_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.json").write_text('{"figures": {"share_of_linear": 0.62}}')
    note = ["record", "train-cpu-linear", "0.62", "--command", "nmt bench train base", "--ledger", str(tmp_path)]
    assert main([*note, "--evidence", str(tmp_path / "train.json")]) == 0
    (entry,) = ledger.read_ledger(tmp_path)
    assert entry["evidence"]["figures"]["share_of_linear"] == 0.62
    assert "62.0%" in (tmp_path / "RESULTS.md").read_text()
    assert main([*note, "--evidence", str(tmp_path / "none.json")]) == 1
    assert "cannot read" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nmt", "ctranslate2"], "'ctranslate2' cannot train here; it must be one of"),
        (["train", "nmt:fast", "nmt"], "must look like setting=value"),
        (["train", "nmt", "nmt"], "holds no prepared text"),
        (["data", "--data", "nowhere"], "nowhere has no text for train"),
    ],
)
def test_wrong_commands_are_one_line(
    arguments: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--folder", str(tmp_path / "text")]) == 1
    err = capfd.readouterr().err
    assert err.startswith("bench: ")
    assert words in " ".join(err.split())
