"""Speed comparisons: workloads, alternating rounds and the command line, with fake systems."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench import comparison as comparison_module
from bench import environments, trainers, worker
from bench.__main__ import _parse_system, main
from bench.comparison import compare
from bench.environments import Peer
from bench.peers import nmt_system
from bench.ratio import paired_ratio
from bench.text import prepare_text, text_recipe
from bench.workload import Shape, Workload

from nmt.errors import UserError
from nmt.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = Workload("train", "folder", 300)
TINY = Shape(num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2)


# --- Workload ---------------------------------------------------------------------------------------------------------


def test_settings_override_a_workload_that_survives_json() -> None:
    name, settings = _parse_system("eole:precision=bf16,batch_tokens=99,num_workers=2")
    assert name == "eole"
    work = WORKLOAD.with_settings(settings)
    assert (work.precision, work.batch_tokens, work.options) == ("bf16", 99, {"num_workers": "2"})
    assert Workload.from_json(work.to_json()) == work
    assert _parse_system("nmt") == ("nmt", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared text."""
    data, made = tmp_path_factory.mktemp("parallel"), tmp_path_factory.mktemp("bench") / "text"
    for split, num_lines in {"train": 80, "val": 6, "test": 9}.items():
        for side in ("en", "de"):
            lines = [f"{side} word{i} of {split}, number {i * 7 % 13}." for i in range(num_lines)]
            (data / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    prepare_text(text_recipe(data, made, src_lang="en", tgt_lang="de", vocab_size=320))
    return made


def test_prepared_files_agree(folder: Path) -> None:
    work = Workload("train", str(folder), 320)
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
    assert [tokenizer.decode(sentence) for sentence in work.ids("test", "src")] == work.lines("test.src.txt")


def test_missing_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no text for train; it must contain one of train\.en"):
        text_recipe(tmp_path, tmp_path, src_lang="en", tgt_lang="de", vocab_size=320)


# --- nmt --------------------------------------------------------------------------------------------------------------


class StopBenchmark(Exception):  # noqa: N818
    """Ends a benchmark, which otherwise runs forever."""


class CountingClock(worker.Clock):
    """Records the tokens of three rounds, then raises StopBenchmark."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def end_round(self, tokens: int, results: Callable[[], dict[str, Any]] = dict) -> None:
        self.rounds.append(tokens)
        if len(self.rounds) == 3:
            raise StopBenchmark


def run_rounds(task: str, work: Workload) -> Sequence[int]:
    """Run three rounds of a task; return the tokens of each."""
    clock = CountingClock()
    with pytest.raises(StopBenchmark):
        getattr(nmt_system, task)(work, clock)
    return clock.rounds


def decoding_workload(folder: Path) -> Workload:
    return Workload("decode", str(folder), 320, TINY, threads=1, output_tokens=5, num_sentences=7, batch_sentences=2)


@pytest.mark.slow
def test_training_rounds_count_the_tokens_of_their_updates(folder: Path) -> None:
    work = Workload("train", str(folder), 320, TINY, threads=1, batch_tokens=300, updates=2)
    rounds = run_rounds("train", work.with_settings({"train.micro_batch_tokens": "257"}))
    assert all(300 < tokens <= 2 * 300 for tokens in rounds)


@pytest.mark.slow
def test_decoding_rounds_count_the_tokens_of_all_outputs(folder: Path) -> None:
    work = decoding_workload(folder)
    assert run_rounds("decode", work.with_settings({"decode.length_penalty": "none"})) == [7 * 5] * 3
    assert run_rounds("decode", replace(work, num_sentences=50)) == [9 * 5] * 3, "the test set has 9 sentences"


@pytest.mark.slow
def test_preparation_rounds_count_the_tokens_of_both_sides(folder: Path) -> None:
    work = Workload("train", str(folder), 320)
    tokens = sum(map(len, work.ids("train", "src") + work.ids("train", "tgt")))
    assert run_rounds("prepare", work) == [tokens] * 3


def test_a_carriage_return_does_not_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "train.src.txt").write_bytes(b"a\rb\r\nc\n")
    assert Workload("prepare", str(tmp_path), 300).lines("train.src.txt") == ["a\rb\r", "c"]


# --- Trainers of other systems ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_padded_batch_size_gives_the_requested_mean() -> None:
    counted = [3 + i * 7 % 30 for i in range(20_000)]
    for rows in (counted, sorted(counted), [length + 5 for length in counted]):
        size = trainers.padded_batch_size(rows, [length - 1 for length in rows], 2_000)
        batches, batch = [], list[int]()
        for row in rows:
            if batch and max(*batch, row) * (len(batch) + 1) > size:
                batches.append(batch)
                batch = []
            batch.append(row)
        mean = sum(row - 1 for batch in batches for row in batch) / len(batches)
        assert mean == pytest.approx(2_000, rel=0.02)  # one sentence is 1% of a batch


def test_a_round_ends_when_the_next_step_starts() -> None:
    clock, steps = CountingClock(), list[int]()

    def train(trainer: None, batch: int) -> int:
        steps.append(batch)
        return batch

    step = trainers.count_steps(train, lambda batch: batch, 2, clock)
    assert [step(None, batch) for batch in (1, 2)] == [1, 2]
    assert clock.rounds == []
    step(None, 4)
    assert (clock.rounds, steps) == ([3], [1, 2, 4])
    step(None, 8)
    step(None, 16)
    assert clock.rounds == [3, 12]


def test_unsupported_precision_is_an_error() -> None:
    trainers.check_precision(WORKLOAD, "JoeyNMT")
    with pytest.raises(SystemExit, match="JoeyNMT cannot train in bf16 on cpu; precision must be one of fp32"):
        trainers.check_precision(WORKLOAD.with_settings({"precision": "bf16"}), "JoeyNMT")


# --- Alternating rounds -----------------------------------------------------------------------------------------------

FAKE = """
import os, time
from pathlib import Path

def train(work, clock):
    mine, other = Path(work.folder) / work.options["me"], Path(work.folder) / work.options["other"]
    mine.write_text(str(os.getpid()))
    if "fails" in work.options:
        raise RuntimeError("training failed")
    print("output of the system")
    while True:
        time.sleep(0.02)
        stopped = other.exists() and f") T " in Path(f"/proc/{other.read_text()}/stat").read_text()
        clock.end_round(1000 if stopped else 1)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A system `fake` with rounds of 20 ms: 1,000 tokens if the other system is suspended, else 1."""
    (tmp_path / "fake_peer.py").write_text(FAKE)
    for module in (environments, comparison_module):
        monkeypatch.setitem(module.PEERS, "fake", Peer("fake_peer", ("train",)))
    monkeypatch.setattr(comparison_module, "find_python", lambda name: sys.executable)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "tools")])}


@pytest.mark.slow
def test_a_system_is_suspended_while_the_other_runs(fake: dict[str, str], tmp_path: Path) -> None:
    work = Workload("train", str(tmp_path), 300, warm_up=2)
    one, other = {**fake, "me": "a", "other": "b"}, {**fake, "me": "b", "other": "a"}
    result = compare(work, ("fake", one), ("fake", other), rounds=3)
    for side in (result.ours, result.theirs):
        assert len(side.rates) == 3
        assert min(side.rates) > 50  # the other was suspended in every round; otherwise at most 1 token in 20 ms
        assert side.versions["python"] == sys.version.split()[0]
    assert result.ratio == paired_ratio(result.ours.rates, result.theirs.rates)
    for name in "ab":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


@pytest.mark.slow
def test_a_failing_system_ends_the_comparison(
    fake: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    work = Workload("train", str(tmp_path), 300)
    one, other = {**fake, "me": "a", "other": "b"}, {**fake, "me": "b", "other": "a", "fails": "yes"}
    with pytest.raises(UserError, match="fake exited early"):
        compare(work, ("fake", one), ("fake", other), rounds=3)
    assert "RuntimeError: training failed" in capfd.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "a").read_text()), 0)


def test_a_system_that_exits_between_rounds_is_named(tmp_path: Path) -> None:
    """A suspended system may be killed for lack of memory."""
    program = 'import sys; print(\'{"ready": {"versions": {}, "seconds": 0}}\', flush=True); sys.stdin.readline()'
    system = comparison_module.SystemProcess("fake", {}, [sys.executable, "-c", program], {}, tmp_path / "log")
    with system:
        system._signal(signal.SIGKILL)
        system._process.wait()
        with pytest.raises(UserError, match="fake exited early"):
            system.run_round()


def test_an_interruption_of_the_warm_up_ends_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[str]]()

    def interrupt(system: comparison_module.SystemProcess) -> None:
        started.append(system._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison_module.SystemProcess, "_read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        comparison_module.SystemProcess("fake", {}, ["sleep", "600"], {}, tmp_path / "log")
    assert started[0].returncode == -signal.SIGKILL


def test_the_clock_excludes_time_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(status: int) -> None:
        raise StopBenchmark

    now = iter([0.0, 5.0, 6.0, 10.0, 12.5])
    monkeypatch.setattr(worker, "perf_counter", lambda: next(now))
    monkeypatch.setattr(os, "_exit", stop)
    answers = io.StringIO()
    clock = worker.Clock(1, answers, io.StringIO("go\n"))
    clock.end_round(1)  # warm-up from 0 to 5; ready at 6; round from 10 to 12.5
    with pytest.raises(StopBenchmark):
        clock.end_round(250)
    ready, timed = map(json.loads, answers.getvalue().splitlines())
    assert ready["ready"]["seconds"] == 6.0
    assert timed == {"seconds": 2.5, "tokens": 250}


def test_a_missing_system_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_BENCH_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="install it first: tools/bench/run install transformers"):
        environments.find_python("transformers")
    assert environments.find_python("nmt") == sys.executable


@pytest.mark.slow
def test_systems_can_share_an_interpreter_and_packages(
    fake: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("NMT_BENCH_SHARED", str(tmp_path))  # contains the fake system
    assert environments.find_python("transformers") == sys.executable
    work = Workload("train", str(tmp_path), 300)
    for name, has_nmt in (("nmt", True), ("fake", False)):
        path = comparison_module._environment(name, work, {}, tmp_path)["PYTHONPATH"].split(os.pathsep)
        assert path[0] == str(tmp_path) and (str(ROOT) in path) is has_nmt
    one, other = {"me": "a", "other": "b"}, {"me": "b", "other": "a"}
    assert len(compare(work, ("fake", one), ("fake", other), rounds=2).ours.rates) == 2


def test_torch_is_installed_first_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            assert environments.TORCH in installs[1]  # prevents another version
        commands.clear()
        environments.install(name)
        assert commands == []


@pytest.mark.parametrize(("name", "peer"), environments.PEERS.items())
def test_systems_have_modules_and_pinned_packages(name: str, peer: Peer) -> None:
    source = (ROOT / "tools" / f"{peer.module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert all(f"\ndef {task}(workload: Workload, clock: Clock)" in source for task in peer.tasks)
    pinned = {_canonical(line.split("==")[0]) for line in environments.CONSTRAINTS.read_text().splitlines()}
    unpinned = [package for package in peer.dependencies.split() if "==" not in package]
    assert [package for package in unpinned if _canonical(package) not in pinned] == []


@pytest.mark.parametrize("peer", environments.PEERS.values())
def test_own_settings_of_systems_are_those_that_they_read(peer: Peer) -> None:
    source = (ROOT / "tools" / f"{peer.module.replace('.', '/')}.py").read_text(encoding="utf-8")
    read = re.findall(r'options\.get\("(\w+)"', source)
    assert {name for names in peer.options.values() for name in names.split() if not name.endswith(".")} == set(read)


def _canonical(package: str) -> str:
    return package.lower().replace("_", "-")


# A fake `nmt`: its command `hangs` writes its process id to the file `pid` and does not end; others do nothing.
FAKE_NMT = """
import os, sys, time
if sys.argv[1] != {hangs!r}:
    sys.exit()
open({pid!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""
# A comparison of two servers of the fake `nmt`.
COMPARE_SERVERS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from bench import __main__, serving
__main__.find_model = __main__.read_model_metadata = lambda path: SimpleNamespace(src_lang="en", tgt_lang="de")
serving._NMT = (sys.executable, "-c", {program!r})
serving.read_lines = lambda path: ["a line"]
sys.exit(__main__.main(["serve", "nmt", "translate", "--model", "m", "--source", "s"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["translate", "serve"])
def test_sigterm_ends_the_measured_processes(tmp_path: Path, hangs: str) -> None:
    pid = tmp_path / "pid"
    program = COMPARE_SERVERS.format(program=FAKE_NMT.format(hangs=hangs, pid=str(pid)))
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tools"}
    ) as run:
        while not (pid.exists() and pid.read_text()):
            assert run.poll() is None
            time.sleep(0.02)
        run.terminate()
        assert run.wait(60) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nmt", "ctranslate2"], "'ctranslate2' does not support 'train'; it must be one of"),
        (["train", "nmt:fast", "nmt"], "must have the form setting=value"),
        (
            ["train", "nmt:precison=bf16", "nmt"],
            "nmt has no setting 'precison' for 'train'; it must be one of compile,",
        ),
        (["train", "nmt", "sockeye:bucket_size=8"], "sockeye has no setting 'bucket_size' for 'train'"),
        (["decode", "nmt:train.rdrop=1", "nmt"], "nmt has no setting 'train.rdrop' for 'decode'"),
        (["train", "nmt", "eole:beam_size=2"], "eole has no setting 'beam_size' for 'train'"),
        (["train", "nmt", "eole:batches=shuffled"], "eole:batches must be one of sorted, random, got 'shuffled'"),
        (["train", "nmt", "nmt:threads=all"], "nmt:threads must be an integer, got 'all'"),
        (["train", "nmt:warm_up=0", "nmt"], "nmt:warm_up must be at least 1, got 0"),
        (["train", "nmt:train.rdrop=1,compile=true", "nmt:threads=1,MKL_VERBOSE=0"], "has no prepared text"),
        (["data", "--data", "nowhere"], "nowhere has no text for train"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--folder", str(tmp_path / "text")]) == 1
    err = capfd.readouterr().err
    assert err.startswith("bench: ") and err.count("\n") == 1
    assert words in err


FILES = ("--model", "m", "--source", "s")


@pytest.mark.parametrize(
    ("arguments", "lowest"),
    [
        (["train", "nmt", "nmt", "--warm-up"], 1),
        (["decode", "nmt", "nmt", "--warm-up"], 1),
        (["file", "nmt", "nmt", *FILES, "--warm-up"], 0),
        (["serve", "nmt", "nmt", *FILES, "--clients"], 1),
        (["train", "nmt", "nmt", "--updates"], 1),
        (["train", "nmt", "nmt", "--rounds"], 2),
        (["learn", "nmt", "--results", "r", "--rounds"], 1),
    ],
)
def test_counts_that_are_too_small_are_errors(
    arguments: list[str], lowest: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, str(lowest - 1)])
    assert f"{arguments[-1]} must be at least {lowest}, got {lowest - 1}" in capfd.readouterr().err


def test_options_cannot_be_abbreviated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An abbreviated --folder would add a local path to the ledger."""
    with pytest.raises(SystemExit, match="2"):
        main(["train", "nmt", "nmt", "--fold", str(tmp_path)])
    assert f"unrecognized arguments: --fold {tmp_path}" in capfd.readouterr().err
