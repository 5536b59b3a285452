"""Comparison of translation commands, loaded systems and servers."""

import importlib
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import pytest
import torch
from bench import __main__ as bench_main
from bench import file_comparison, ledger
from bench.comparison import TOOLS, Comparison, Measurement
from bench.file_comparison import DEFAULTS, FileWorkload, compare_files, compare_loaded, session_memory
from bench.ratio import Ratio
from bench.serving import ServingWorkload, _Server, compare_servers

from nmt.bench.random_model import numbered_word_tokenizers, write_random_model
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.recipe import parse_recipe
from nmt.storage.model_metadata import read_model_metadata
from tests.cli.nasty_lines import as_bytes, nasty_lines
from tests.extras import import_ctranslate2, needs_ctranslate2
from tests.waiting import wait_until

RECIPE = """
name = "small"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy" }]
valid = [{ kind = "toy" }]
[model]
num_encoder_layers = 1
num_decoder_layers = 1
d_model = 16
d_ff = 16
num_heads = 2
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> FileWorkload:
    folder = tmp_path_factory.mktemp("files")
    write_random_model(folder / "model", parse_recipe(RECIPE), numbered_word_tokenizers(40))
    text = "w1 w2 w3\nw4\nw5 w6\n"
    (folder / "source").write_text(text)
    return FileWorkload(folder / "model", folder / "source", folder / "source", beam_size=2, warm_up=0)


@pytest.mark.slow
@needs_ctranslate2
def test_two_commands_are_compared(work: FileWorkload, tmp_path: Path) -> None:
    result = compare_files(work, ("nmt", {"engine": "ctranslate2"}), ("ctranslate2", {"batch_sentences": "2"}), 2)
    for side in (result.ours, result.theirs):
        assert len(side.rates) == 2
        assert all(0.0 < rate < 100.0 for rate in side.rates)  # the start of Python alone takes more than 30 ms
        assert int(side.settings["memory"].removesuffix(" MiB")) > 0
        assert 0.0 <= float(side.settings["BLEU"]) <= 100.0
        assert side.versions["BLEU"].startswith("nrefs:1|case:mixed")
    assert result.theirs.settings["batch_sentences"] == "2"
    workload = {"task": "file", "num_lines": 3, "beam_size": 2}
    ledger.add_entries([ledger.comparison_entry("file-int8", workload, result, "tools/bench/run file", "")], tmp_path)
    shown = (tmp_path / "RESULTS.md").read_text()
    assert "| system | settings | lines/s | rounds |" in shown
    assert "3 lines, beam 2." in shown


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("ctranslate2", {"inter_threads": "1"}), ("transformers", {})])
def test_two_loaded_systems_are_compared(work: FileWorkload, name: str, settings: dict[str, str]) -> None:
    pytest.importorskip(name)
    result = compare_loaded(work, ("nmt", {"precision": "fp32"}), (name, settings), 2)
    for side in (result.ours, result.theirs):
        assert len(side.rates) == 2
        assert min(side.rates) > 0.0
        assert 0.0 <= float(side.settings["BLEU"]) <= 100.0
    assert result.ours.settings["engine"] == "torch"


def test_memory_excludes_the_warm_up(work: FileWorkload, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([300 << 20, 40 << 20, 60 << 20, 50 << 20])
    monkeypatch.setattr(file_comparison, "run_command", lambda words: (1.0, next(peaks)))
    command = file_comparison._Command("nmt", {}, [], work.source)
    for _ in range(4):
        command.run()
    assert command.measurement(replace(work, ref=None, warm_up=1)).settings["memory"] == "60 MiB"


def test_memory_includes_all_processes_of_a_command() -> None:
    """A process of 40 MiB starts one of 30 MiB; they share no memory."""
    child = "import sys; held = b'1' * (30 << 20); print('ready', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; held = b'1' * (40 << 20); subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert 70 << 20 < session_memory(process.pid) < 110 << 20
        process.communicate()
    assert session_memory(process.pid) == 0


@pytest.mark.slow
def test_a_command_ends_with_the_process_that_measures_it(tmp_path: Path) -> None:
    code = f"import os, time; os.chdir({str(tmp_path)!r}); print(os.getpid(), file=open('pid', 'w')); "
    command = [sys.executable, "-c", code + "os.rename('pid', 'ready'); time.sleep(600)"]
    script = f"from bench.file_comparison import run_command; run_command({command!r})"
    path = os.pathsep.join(map(str, [TOOLS, TOOLS.parent]))
    with subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path}) as process:
        wait_until((tmp_path / "ready").exists)
        process.kill()
    state = Path(f"/proc/{(tmp_path / 'ready').read_text().strip()}/stat")
    wait_until(lambda: not state.exists() or " Z " in state.read_text())


def test_compiled_modules_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "module.py").write_text("")
    file_comparison.run_command(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import module"]
    )
    assert list((tmp_path / "__pycache__").glob("module.*.pyc"))


@pytest.mark.slow
def test_a_failing_command_is_an_error(work: FileWorkload, tmp_path: Path) -> None:
    absent = FileWorkload(work.model, tmp_path / "absent", beam_size=2, warm_up=0)
    with pytest.raises(UserError, match=r"translate failed with exit status 1(?s:.*)cannot read"):
        compare_files(absent, ("nmt", {}), ("nmt", {}), 2)


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [("marian", {}, "'marian' does not support files"), ("nmt", {"threads": "2"}, "no setting 'threads'")],
)
def test_unknown_systems_and_settings_are_errors(
    work: FileWorkload, system: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare_files(work, ("nmt", {}), (system, settings), 2)


@pytest.mark.slow
@needs_ctranslate2
@pytest.mark.parametrize("theirs", ["one-call", "translate"])
def test_servers_answer_all_clients_with_the_translations_of_a_file(
    work: FileWorkload, tmp_path: Path, theirs: str
) -> None:
    source = work.source
    if theirs == "translate":  # the other server fails on lone surrogates
        source = tmp_path / "source"
        lines = [f"w{number} {line}" for number, line in enumerate(nasty_lines(90, num_longest=0))]
        source.write_bytes(as_bytes([*lines, "", "\ufffd", "w2\ufffdw1\ufffd", "w1 " * 30_000]))
    workload = ServingWorkload(work.model, source, ("en", "de"), clients=20, beam_size=2)
    comparison = compare_servers(workload, ("nmt", {}), (theirs, {}), rounds=2)
    for measurement in (comparison.ours, comparison.theirs):
        assert len(measurement.rates) == 2
    assert comparison.ours.settings["lost"] == comparison.theirs.settings.get("lost", "0") == "0"
    assert comparison.ours.settings["differing from nmt translate"] == "0"


def test_an_unknown_server_is_an_error(work: FileWorkload) -> None:
    workload = ServingWorkload(work.model, work.source, ("en", "de"))
    with pytest.raises(UserError, match="'other' does not support serving; it must be one of nmt, one-call, translate"):
        compare_servers(workload, ("nmt", {}), ("other", {}), rounds=2)
    with pytest.raises(UserError, match="nmt has no setting 'threads'; its settings are: none; omit it"):
        compare_servers(workload, ("nmt", {"threads": "2"}), ("translate", {}), rounds=2)


def test_the_search_has_a_length_penalty_only_with_a_beam(work: FileWorkload) -> None:
    """With greedy search, `nmt translate` rejects a length penalty, which has no effect."""
    workload = ServingWorkload(work.model, work.source, ("en", "de"), beam_size=1)
    assert workload.search == ["--set=beam_size=1"]
    assert "--set=length_penalty=power" in replace(workload, beam_size=2).search


def test_a_server_that_does_not_answer_is_an_error(work: FileWorkload) -> None:
    workload = ServingWorkload(work.model, work.source, ("en", "de"), clients=1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # without `listen`, connections are refused
        port = unused.getsockname()[1]
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
            server = _Server(workload, process, port, Measurement("nmt", {}, {}, 0.0), ["w1"] * 3)
            with pytest.raises(UserError, match="nmt does not answer"):
                server.run_round(timed=True)
            process.kill()


# --- Devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "device"), [({}, "cuda"), ({"device": "cpu"}, "cpu")])
@pytest.mark.parametrize("name", DEFAULTS)
def test_the_device_reaches_every_system(
    work: FileWorkload,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    settings: dict[str, str],
    device: str,
) -> None:
    monkeypatch.setattr(file_comparison, "run_command", lambda _: (0.0, 0))  # the export
    monkeypatch.setattr(file_comparison, "SystemProcess", lambda *arguments: arguments)
    monkeypatch.setenv("NMT_BENCH_SHARED", "packages")
    on_gpu = replace(work, device="cuda")
    command = file_comparison._command(on_gpu, name, settings, tmp_path / "command")
    option = "--device" if name == "nmt" else "device"
    assert f"{option}={device}" in command.words
    assert command.settings["device"] == device
    _, shown, words, environment, _ = cast("Any", file_comparison._loaded(on_gpu, name, settings, tmp_path / "loaded"))
    assert f"device={device}" in words and shown["device"] == device
    assert environment["PYTHONPATH"].startswith(f"packages{os.pathsep}")


def test_nmt_and_ctranslate2_load_on_the_device(work: FileWorkload, monkeypatch: pytest.MonkeyPatch) -> None:
    ctranslate2 = import_ctranslate2()
    devices = list[object]()
    for module, name in ((ctranslate2, "Translator"), (Translator, "load")):
        monkeypatch.setattr(module, name, lambda *_, **options: devices.append(options["device"]))
    options = {"model": str(work.model), "beam_size": "2", "device": "cuda", "precision": "fp32", "engine": "torch"}
    importlib.import_module("bench.peers.nmt_file").load(options | {"threads": "1"})
    monkeypatch.setattr("sentencepiece.SentencePieceProcessor", lambda **_: None)
    module = importlib.import_module("bench.peers.ctranslate2_file")
    module.load(options | {"compute_type": "float16", "inter_threads": "1", "intra_threads": "1"})
    assert devices == ["cuda", "cuda"]


class FakeGenerator:
    """A model of transformers without weights, which records its dtype and its device."""

    device = "cpu"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def eval(self) -> Self:
        return self

    def to(self, device: str) -> Self:
        self.device = device
        return self


@pytest.mark.slow
def test_transformers_loads_on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made = list[FakeGenerator]()

    class Batch(dict[str, str]):
        def to(self, device: str) -> dict[str, str]:
            return {"device": device}

    class Tokenizer:
        def __call__(self, *_: object, **__: object) -> Batch:
            return Batch()

        def batch_decode(self, ids: str, **_: object) -> list[str]:
            return [ids]

    def load_model(_: str, dtype: torch.dtype) -> FakeGenerator:
        made.append(FakeGenerator(dtype))
        return made[-1]

    monkeypatch.setattr(FakeGenerator, "generate", lambda _, device, **__: device, raising=False)
    monkeypatch.setattr(transformers.AutoModelForSeq2SeqLM, "from_pretrained", load_model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _: Tokenizer())
    options = {"model": "model", "threads": "1", "beam_size": "2", "batch_sentences": "4"}
    module = importlib.import_module("bench.peers.transformers_file")
    translate = module.load(options | {"device": "cuda", "precision": "fp16"})
    (tmp_path / "source").write_bytes(b"w1\r w2\n")
    translate(tmp_path / "source", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "cuda\n", "a carriage return must not end a line"
    assert [model.dtype for model in made] == [torch.float16]


@pytest.mark.parametrize(
    ("device", "end_of_command"), [("cpu", "--source FILE"), ("cuda", "--source FILE --device cuda")]
)
def test_the_ledger_has_the_command_with_its_device(
    work: FileWorkload,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    device: str,
    end_of_command: str,
) -> None:
    measured_workloads = list[FileWorkload]()

    def measured(workload: FileWorkload, *_: object) -> Comparison:
        measured_workloads.append(workload)
        side = Measurement("nmt", {}, {}, 0.0, [1.0, 1.0])
        return Comparison(side, side, Ratio(1.0, 1.0, 1.0))

    monkeypatch.setattr(bench_main, "compare_files", measured)
    files = ["--model", str(work.model), "--source", str(work.source), "--ledger", str(tmp_path)]
    assert bench_main.main(["file", "nmt", "ctranslate2", "--device", device, "--warm-up", "3", *files]) == 0
    (entry,) = ledger.read_ledger(tmp_path)
    (workload,) = measured_workloads
    assert (workload.device, workload.warm_up, workload.model, workload.ref) == (device, 3, work.model, None)
    assert entry["command"].endswith(end_of_command)
    with pytest.raises(SystemExit, match="2"):
        bench_main.main(["file", "nmt", "ctranslate2", "--device", "tpu", *files])
    assert "invalid choice: 'tpu'" in capfd.readouterr().err


def test_references_of_another_length_and_one_round_are_errors(
    work: FileWorkload, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ref").write_text("w1\nw2\n")
    files = ["--model", str(work.model), "--source", str(work.source), "--ledger", str(tmp_path)]
    assert bench_main.main(["file", "nmt", "ctranslate2", "--ref", str(tmp_path / "ref"), *files]) == 1
    assert "has 3 lines and" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        bench_main.main(["file", "nmt", "ctranslate2", "--rounds", "1", *files])
    assert "--rounds must be at least 2, got 1" in capfd.readouterr().err
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("tgt_lang", ["zh", "zho"])
def test_bleu_uses_the_tokenizer_of_the_target_language(
    work: FileWorkload, tgt_lang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = replace(read_model_metadata(work.model), tgt_lang=tgt_lang)
    monkeypatch.setattr(file_comparison, "read_model_metadata", lambda _: metadata)
    side = Measurement("nmt", {}, {}, 0.0, [1.0, 1.0])
    file_comparison._add_bleu(side, work.source, work)
    assert "tok:zh" in side.versions["BLEU"]


def test_a_failing_system_is_named(work: FileWorkload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_comparison, "_export", lambda *_: tmp_path / "absent")
    command = file_comparison._command(work, "ctranslate2", {}, tmp_path / "command")
    with pytest.raises(UserError, match=r"^ctranslate2 failed: .* failed with exit status 1"):
        command.run()
